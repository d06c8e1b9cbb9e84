//! Where an element of a profile came from, in a field of ours and in Nix's.

use serde_json::{Map, Value, json};

/// The flake that the channels of nixpkgs are branches of.
const NIXPKGS: &str = "github:NixOS/nixpkgs/";
/// The same by its name in Nix's registry, and the channel that this means.
const NIXPKGS_BY_NAME: (&str, &str) = ("flake:nixpkgs", "nixpkgs-unstable");

/// The name that a path was installed by: one of a channel, or a release of a cache (`@api`), which is its channel then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// As the user has given it, without outputs: `nodejs@22`.
    pub name: String,
    /// The attribute that this was: `nodejs_22`.
    pub attribute: String,
    /// The system it is for.
    pub system: String,
    /// The channel, by its name or URL.
    pub channel: String,
    /// The channel's release.
    pub release: String,
    /// The revision of nixpkgs; may be empty.
    pub revision: String,
    /// The path that the user has chosen among several, by its base name.
    pub choice: Option<String>,
    /// What tells that path from the others, also in other releases.
    pub distinction: Vec<String>,
    /// Whether the outputs are the default ones, which may be others in the next release.
    pub is_default: bool,
}

impl Origin {
    pub(super) fn is_release(&self) -> bool {
        self.attribute.starts_with('@')
    }

    /// Whether this is the same package of the same channel, whatever the release.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        (&self.attribute, &self.channel, &self.system) == (&other.attribute, &other.channel, &other.system)
    }

    pub(super) fn read(json: &Value) -> Option<Self> {
        let text = |name: &str| json[name].as_str().map(str::to_owned);
        Some(Self {
            attribute: text("attribute")?,
            channel: text("channel")?,
            name: text("name").or_else(|| text("attribute"))?,
            system: text("system").unwrap_or_default(),
            release: text("release").unwrap_or_default(),
            revision: text("revision").unwrap_or_default(),
            choice: text("choice"),
            distinction: json["distinction"]
                .as_array()
                .map(|all| all.iter().filter_map(Value::as_str).map(str::to_owned).collect())
                .unwrap_or_default(),
            is_default: json["defaultOutputs"] != Value::Bool(false),
        })
    }

    pub(super) fn written(&self) -> Value {
        json!({"name": self.name, "attribute": self.attribute, "system": self.system, "channel": self.channel,
            "release": self.release, "revision": self.revision, "choice": self.choice,
            "distinction": self.distinction, "defaultOutputs": self.is_default})
    }

    /// What `nix profile install` has written for an attribute of a channel of nixpkgs.
    pub(super) fn of_flake(fields: &Map<String, Value>) -> Option<Self> {
        let text = |name: &str| fields.get(name).and_then(Value::as_str);
        let original = text("originalUrl")?;
        let by_name = || (original == NIXPKGS_BY_NAME.0).then_some(NIXPKGS_BY_NAME.1);
        let channel = original.strip_prefix(NIXPKGS).or_else(by_name).filter(|channel| is_short(channel))?;
        let (system, attribute) = text("attrPath")?.strip_prefix("legacyPackages.")?.split_once('.')?;
        let revision = text("url").and_then(|url| url.strip_prefix(NIXPKGS)).unwrap_or_default();
        Some(Self {
            name: attribute.to_owned(),
            attribute: attribute.to_owned(),
            system: system.to_owned(),
            channel: channel.to_owned(),
            release: String::new(),
            revision: revision.split('?').next().unwrap_or_default().to_owned(),
            choice: None,
            distinction: Vec::new(),
            is_default: fields.get("outputs").is_none_or(Value::is_null),
        })
    }

    /// The fields by which Nix knows this: the channels of nixpkgs are branches of its repository.
    pub(super) fn as_flake(&self) -> Option<Map<String, Value>> {
        let is_revision = self.revision.len() == 40 && self.revision.bytes().all(|byte| byte.is_ascii_hexdigit());
        if !is_short(&self.channel) || !is_revision || self.system.is_empty() {
            return None;
        }
        let mut fields = Map::new();
        let mut set = |name: &str, value: String| drop(fields.insert(name.to_owned(), value.into()));
        set("originalUrl", format!("{NIXPKGS}{}", self.channel));
        set("url", format!("{NIXPKGS}{}", self.revision));
        set("attrPath", format!("legacyPackages.{}.{}", self.system, self.attribute));
        Some(fields)
    }
}

/// Whether a channel is one of nixpkgs', by its name, and no URL or folder.
fn is_short(channel: &str) -> bool {
    !channel.is_empty() && channel.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte))
}
