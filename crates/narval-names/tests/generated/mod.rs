//! A channel made of names, with the right answers: what the lists of a real one have, and its traps, in known shares.

use std::collections::{BTreeSet, HashMap};

use narval_nix::{HashPart, Sha256, StorePath, StorePathName};
use serde_json::{Map, Value, json};

/// The system that `packages.json` is of.
pub(crate) const SYSTEM: &str = "x86_64-linux";
/// The systems of the list of paths; programs of the last one are used on the first.
const SYSTEMS: [&str; 3] = [SYSTEM, "aarch64-linux", "i686-linux"];
/// A name of so many has each of the traps.
const TRAPS: usize = 100;

/// A package to make attributes of.
pub(crate) struct Name {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) description: String,
}

/// Which path an output of an attribute has.
pub(crate) struct Answer {
    pub(crate) attribute: String,
    pub(crate) output: String,
    pub(crate) path: StorePath,
    /// Whether another package of the name exists, so that the only path may be that of either.
    pub(crate) has_twin: bool,
}

/// The channel.
#[derive(Default)]
pub(crate) struct Channel {
    /// `packages`, of `packages.json`.
    pub(crate) packages: Map<String, Value>,
    pub(crate) paths: BTreeSet<StorePath>,
    pub(crate) answers: Vec<Answer>,
    pub(crate) references: HashMap<StorePath, Vec<StorePath>>,
    pub(crate) derivers: HashMap<StorePath, StorePath>,
    /// The system of each path that has one.
    pub(crate) systems: HashMap<StorePath, &'static str>,
}

fn path(seed: &str, name: &str) -> StorePath {
    let digest = Sha256::of(format!("{seed} {name}").as_bytes());
    let digest: [u8; 20] = digest.as_bytes()[..20].try_into().unwrap();
    StorePath::from_parts(HashPart::from_digest(&digest), &StorePathName::parse(name).unwrap())
}

/// What is made of one derivation.
struct Derivation<'a> {
    attribute: String,
    pname: &'a str,
    /// The name that the attribute says, if it is not that of the paths.
    renamed: Option<String>,
    outputs: &'a [&'a str],
    /// The system of its programs; `None`: it has no references.
    library: Option<&'static str>,
    is_built: bool,
    has_twin: bool,
    description: String,
}

impl Channel {
    /// Makes a channel of at least so many attributes. The same names make the same channel.
    pub(crate) fn of(names: &[Name], attributes: usize) -> Self {
        let mut channel = Self::default();
        for system in SYSTEMS {
            let library = channel.library(system);
            channel.references.insert(library.clone(), Vec::new());
            channel.systems.insert(library.clone(), system);
            channel.paths.insert(library);
        }
        for set in ["", "python3Packages.", "perlPackages.", "haskellPackages."] {
            for (at, name) in names.iter().enumerate() {
                if channel.packages.len() >= attributes {
                    return channel;
                }
                channel.add(set, at, name);
            }
        }
        channel
    }

    /// The C library of a system.
    pub(crate) fn library(&self, system: &str) -> StorePath {
        path(system, "glibc-2.40")
    }

    fn add(&mut self, set: &str, at: usize, name: &Name) {
        let pname = format!("{}{}", set.replace("Packages.", "-"), name.name);
        let attribute = match name.name.starts_with(|c: char| c.is_ascii_digit()) {
            true => format!("{set}\"{}\"", name.name),
            false => format!("{set}{}", name.name.replace(['.', '+'], "_")),
        };
        let plain = Derivation {
            attribute: attribute.clone(),
            pname: &pname,
            renamed: None,
            outputs: if at.is_multiple_of(3) { &["out", "dev", "man"] } else { &["out"] },
            library: Some(SYSTEM),
            is_built: true,
            has_twin: false,
            description: name.description.clone(),
        };
        match at % TRAPS {
            // Three derivations of one name, as git, gitMinimal and gitFull.
            0 => {
                for variant in ["", "Full", "Minimal"] {
                    let one = Derivation { attribute: format!("{attribute}{variant}"), ..plain_of(&plain) };
                    self.derivation(variant, name, one);
                }
            }
            // An alias.
            1 => {
                self.derivation("", name, Derivation { attribute: format!("{attribute}_1"), ..plain_of(&plain) });
                self.derivation("", name, plain);
            }
            // Its paths are not named as it is.
            2 => {
                let renamed = Some(format!("{pname}-minimal-{}", name.version));
                self.derivation("", name, Derivation { renamed, ..plain });
            }
            // Another package of the name, which is not built.
            3 => {
                let unwrapped = Derivation {
                    attribute: format!("{attribute}-unwrapped"),
                    is_built: false,
                    description: format!("{} (unwrapped)", name.description),
                    ..plain_of(&plain)
                };
                self.derivation("unwrapped", name, unwrapped);
                self.derivation("", name, Derivation { has_twin: true, ..plain });
            }
            // Data: nothing tells its system.
            4 => self.derivation("", name, Derivation { library: None, ..plain }),
            // A program of another system.
            5 => self.derivation("", name, Derivation { library: Some("i686-linux"), ..plain }),
            // Two derivations that differ by their outputs.
            6 => {
                let more = Derivation {
                    attribute: format!("{attribute}WithDebug"),
                    outputs: &["out", "debug"],
                    ..plain_of(&plain)
                };
                self.derivation("debug", name, more);
                self.derivation("", name, plain);
            }
            _ => self.derivation("", name, plain),
        }
    }

    fn derivation(&mut self, seed: &str, name: &Name, of: Derivation<'_>) {
        let full = format!("{}-{}", of.pname, name.version);
        for system in SYSTEMS.iter().take(2).filter(|_| of.is_built) {
            // The other system has a path of its own, if there is a difference at all.
            let library = of.library.map(|library| if library == SYSTEM { *system } else { library });
            let deriver = path(&format!("{seed} {system}"), &format!("{full}.drv"));
            for output in of.outputs {
                let suffix = if *output == "out" { String::new() } else { format!("-{output}") };
                let path = path(&format!("{seed} {}", library.unwrap_or(system)), &format!("{full}{suffix}"));
                let references = library.map(|library| self.library(library)).into_iter().collect();
                self.references.insert(path.clone(), references);
                if let Some(library) = library {
                    self.systems.insert(path.clone(), library);
                }
                self.derivers.insert(path.clone(), deriver.clone());
                self.paths.insert(path.clone());
                if *system == SYSTEM {
                    let (attribute, output) = (of.attribute.clone(), (*output).to_owned());
                    self.answers.push(Answer { attribute, output, path, has_twin: of.has_twin });
                }
            }
        }
        let outputs: Map<String, Value> = of.outputs.iter().map(|output| ((*output).to_owned(), Value::Null)).collect();
        let entry = json!({
            "name": of.renamed.unwrap_or(full), "pname": of.pname, "version": name.version, "outputName": "out", "outputs": outputs,
            "system": of.library.unwrap_or(SYSTEM),
            "meta": {"description": of.description, "homepage": format!("https://{}.example.org", of.pname), "available": true,
                "broken": false, "insecure": false, "unfree": false, "unsupported": false, "outputsToInstall": ["out"],
                "license": {"deprecated": false, "free": true, "fullName": "GNU General Public License v3.0 or later", "shortName": "gpl3Plus",
                    "spdxId": "GPL-3.0-or-later", "url": "https://spdx.org/licenses/GPL-3.0-or-later.html"},
                "maintainers": [{"email": "maintainer@example.org", "github": "maintainer", "githubId": 1, "name": "A Maintainer"}],
                "position": format!("pkgs/by-name/{}/package.nix:12", of.pname),
                "platforms": ["aarch64-linux", "armv5tel-linux", "armv6l-linux", "armv7a-linux", "armv7l-linux", "i686-linux", "loongarch64-linux",
                    "powerpc64-linux", "powerpc64le-linux", "riscv32-linux", "riscv64-linux", "s390x-linux", "x86_64-linux"]},
        });
        self.packages.insert(of.attribute, entry);
    }

    /// `packages.json`.
    pub(crate) fn packages_json(&self) -> String {
        json!({"packages": self.packages, "version": "2"}).to_string()
    }

    /// `store-paths`.
    pub(crate) fn store_paths(&self) -> String {
        self.paths.iter().map(|path| format!("/nix/store/{path}\n")).collect()
    }

    /// What an evaluation of the same attributes prints, with their paths.
    pub(crate) fn evaluation(&self) -> String {
        let mut all = self.packages.clone();
        for answer in &self.answers {
            all[&answer.attribute]["outputs"][&answer.output] = format!("/nix/store/{}", answer.path).into();
        }
        Value::Object(all).to_string()
    }
}

fn plain_of<'a>(of: &Derivation<'a>) -> Derivation<'a> {
    Derivation {
        attribute: of.attribute.clone(),
        renamed: of.renamed.clone(),
        description: of.description.clone(),
        ..*of
    }
}
