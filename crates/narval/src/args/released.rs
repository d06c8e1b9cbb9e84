//! The release that a push records.

use std::collections::BTreeMap;
use std::sync::Arc;

use narval_client::{Client, Url};
use narval_install::Error;
use narval_install::names::machine_system;
use narval_nix::release::{ReleaseName, ReleaseSystem, ReleaseVersion, check_notes};
use narval_nix::{PackageName, Release, StoreDir, StorePath};
use narval_push::Administered;
use serde_json::{Value, json};

use crate::ui::failure::Failure;

/// Options of the release that a push records.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Release")]
pub struct ReleaseArgs {
    /// Record a release of these paths, once they are in the cache: `api`, or with a version, `api@1.4.2`. Needs a token with the scope
    /// `release:NAME`
    #[arg(long, value_name = "NAME[@VERSION]", value_parser = parse_release)]
    release: Option<Named>,
    /// System that the paths are for [default: this machine's]
    #[arg(long, value_name = "SYSTEM", requires = "release")]
    system: Option<String>,
    /// Note that the release has, such as `git=0123abc`. Repeatable
    #[arg(long, value_name = "NAME=TEXT", requires = "release", value_parser = parse_note)]
    release_note: Vec<(String, String)>,
}

type Named = (ReleaseName, Option<ReleaseVersion>);

fn parse_release(text: &str) -> Result<Named, String> {
    let text = text.trim_start_matches('@');
    let (name, version) = match text.split_once('@') {
        Some((name, version)) => (name, Some(version.parse::<ReleaseVersion>().map_err(|error| error.to_string())?)),
        None => (text, None),
    };
    Ok((name.parse::<ReleaseName>().map_err(|error| error.to_string())?, version))
}

fn parse_note(text: &str) -> Result<(String, String), String> {
    let (name, note) = text.split_once('=').ok_or("a note is NAME=TEXT")?;
    Ok((name.to_owned(), note.to_owned()))
}

/// A release to record.
pub(crate) struct ToRecord {
    name: ReleaseName,
    body: Value,
}

impl ReleaseArgs {
    /// The release of these paths, if one was asked for. Each path is the output that its name ends with.
    ///
    /// # Errors
    /// If two of them are the same output, or a note or the system is malformed.
    pub(crate) fn to_record(&self, paths: &[StorePath], store_dir: &StoreDir) -> Result<Option<ToRecord>, Failure> {
        self.to_record_with(BTreeMap::new(), paths, store_dir)
    }

    /// Whether one was asked for.
    pub(crate) const fn is_asked_for(&self) -> bool {
        self.release.is_some()
    }

    /// The same, with these notes unless there are others of the same names.
    ///
    /// # Errors
    /// See [`to_record`](Self::to_record).
    pub(crate) fn to_record_with(
        &self,
        mut notes: BTreeMap<String, String>,
        paths: &[StorePath],
        store_dir: &StoreDir,
    ) -> Result<Option<ToRecord>, Failure> {
        let Some((name, version)) = &self.release else { return Ok(None) };
        let system: ReleaseSystem =
            self.system.clone().unwrap_or_else(machine_system).parse().map_err(Failure::usage)?;
        notes.extend(self.release_note.iter().cloned());
        check_notes(&notes).map_err(Failure::usage)?;
        let mut outputs: BTreeMap<&str, String> = BTreeMap::new();
        for path in paths {
            let output = match PackageName::of(path.name()).output {
                "" => "out",
                output => output,
            };
            let text = store_dir.display(path).to_string();
            if let Some(other) = outputs.insert(output, text.clone()).filter(|other| *other != text) {
                return Err(Failure::usage(format!(
                    "--release {name}: '{other}' and '{text}' are both the output '{output}': record a release for each"
                )));
            }
        }
        let mut body = json!({"systems": {system.as_str(): outputs}, "notes": notes});
        if let (Some(version), Some(fields)) = (version, body.as_object_mut()) {
            fields.insert("version".to_owned(), json!(version.as_str()));
        }
        Ok(Some(ToRecord { name: name.clone(), body }))
    }
}

impl ToRecord {
    /// Records it.
    ///
    /// # Errors
    /// If the cache cannot be reached, or refuses. What was pushed stays.
    pub(crate) fn record(&self, cache: &Url, client: &Arc<Client>) -> Result<Release, Error> {
        Administered::new(cache.clone(), Arc::clone(client)).release(&self.name, &self.body)
    }

    /// Only servers of Narval record releases.
    pub(crate) fn not_possible(&self, cache: &Url) -> Error {
        Error::Usage(format!("--release {}: {cache} is not a Narval server, so it records no releases", self.name))
    }
}
