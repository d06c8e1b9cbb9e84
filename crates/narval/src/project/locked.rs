//! `narval.lock`: which paths the packages of a project are, on each system, and what these contain.
//!
//! It is TOML, sorted, one value a line, so that a change is seen in a review and two changes of different packages merge. It does not have a hash of
//! narval.toml: that both belong together is seen by the names.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::path::PathBuf;

use narval_install::settings::{Settled, replace};
use narval_nix::release::ReleaseSystem;
use narval_nix::{NarHash, StorePath};

use super::{Project, parsed, read};
use crate::config::{LockFile, LockedPackage};
use crate::ui::failure::Failure;

/// The file.
pub(crate) const FILE: &str = "narval.lock";
/// The version of the format.
const VERSION: u32 = 1;
/// The first line.
const HEAD: &str = "# Made by 'narval lock' from narval.toml, and to be kept with it. Not to be edited.\n";

/// The packages of a lock, by name and system.
pub(crate) type Packages = BTreeMap<(String, ReleaseSystem), LockedPackage>;

/// A lock.
#[derive(Default)]
pub(crate) struct Lock {
    pub(crate) channel: Option<String>,
    pub(crate) packages: Packages,
}

impl Lock {
    fn path(project: &Project) -> PathBuf {
        project.folder().join(FILE)
    }

    /// Reads the lock of a project; `None` if it has none.
    ///
    /// # Errors
    /// It is none that `narval lock` has written.
    pub(crate) fn read(project: &Project) -> Result<Option<Self>, Failure> {
        let path = Self::path(project);
        // What is written must not end up somewhere else.
        if path.is_symlink() {
            return Err(Failure::usage(format!("{}: it is a symlink, and has to be a file", path.display())));
        }
        let Some(text) = read(&path)? else { return Ok(None) };
        let again = |failure: Failure| {
            let message = failure.to_string();
            Failure::usage(format!("{}; delete it, and 'narval lock' makes it again", message.trim_end()))
        };
        let file: LockFile = parsed(&path, &text).map_err(again)?;
        if file.version.value != VERSION {
            let version = file.version.value;
            return Err(Failure::usage(format!("{}: a newer narval has written version {version}", path.display())));
        }
        let mut packages = Packages::new();
        for package in file.package {
            let (origin, key) = (package.origin.clone(), (package.name.clone(), package.system.clone()));
            let wrong = |why: &str| again(super::failure_of(&origin.error(&format!("package '{}'", key.0), why)));
            if package.outputs.is_empty() {
                return Err(wrong("it has no outputs"));
            }
            if packages.insert(key.clone(), package).is_some() {
                return Err(wrong("it is there twice for this system"));
            }
        }
        Ok(Some(Self { channel: file.channel, packages }))
    }

    /// The packages of a project on a system, in its order.
    ///
    /// # Errors
    /// The lock does not belong to narval.toml.
    pub(crate) fn of(&self, project: &Project, system: &ReleaseSystem) -> Result<Vec<&LockedPackage>, Failure> {
        let path = Self::path(project);
        let not = |why: String| Failure::usage(format!("{}: {why}: 'narval lock' mends that", path.display()));
        let file = &project.file;
        if self.channel.as_deref() != file.channel.as_ref().map(|channel| channel.value.as_str()) {
            return Err(not("narval.toml names another channel".to_owned()));
        }
        if let Some((name, _)) =
            self.packages.keys().find(|(name, _)| file.packages.iter().all(|one| one.value != *name))
        {
            return Err(not(format!("narval.toml has no '{name}' any more")));
        }
        if !file.systems.is_empty() && file.systems.iter().all(|one| one.value != *system) {
            return Err(project.says(format!("it is not for {system}: add that to 'systems'")));
        }
        let find = |name: &String| self.packages.get(&(name.clone(), system.clone()));
        let of = |name: &String| find(name).ok_or_else(|| not(format!("it has no '{name}' for {system}")));
        file.packages.iter().map(|one| of(&one.value)).collect()
    }

    /// The file.
    pub(crate) fn written(&self) -> String {
        let mut text = format!("{HEAD}version = {VERSION}\n");
        let mut line = |key: &str, value: &str| {
            // Writing to a string does not fail.
            let _ = writeln!(text, "{key} = {}", quoted(value));
        };
        if let Some(channel) = &self.channel {
            line("channel", channel);
        }
        for package in self.packages.values() {
            let _ = write!(
                text,
                "\n[[package]]\nname = {}\nsystem = {}\n",
                quoted(&package.name),
                quoted(package.system.as_str())
            );
            for (key, value) in [("release", &package.release), ("revision", &package.revision)] {
                if let Some(value) = value {
                    let _ = writeln!(text, "{key} = {}", quoted(value));
                }
            }
            text.push_str("outputs = [\n");
            for one in &package.outputs {
                let (name, path, hash) = (quoted(&one.name), quoted(one.path.base_name()), one.nar_hash);
                let _ = writeln!(text, "  {{ name = {name}, path = {path}, nar-hash = \"{hash}\" }},");
            }
            text.push_str("]\n");
        }
        text
    }

    /// Replaces the file, unless it is the same. Returns whether it has changed.
    ///
    /// # Errors
    /// It cannot be written, or another process has written it meanwhile.
    pub(crate) fn write(&self, project: &Project) -> Result<bool, Failure> {
        let (file, text) = (Settled::read(&Self::path(project))?, self.written());
        if file.exists && file.text == text {
            return Ok(false);
        }
        replace(&file, &text, 0o644)?;
        Ok(true)
    }
}

/// What the paths of these packages must contain.
pub(crate) fn hashes(packages: &[&LockedPackage]) -> HashMap<StorePath, NarHash> {
    packages.iter().flat_map(|package| &package.outputs).map(|one| (one.path.clone(), one.nar_hash)).collect()
}

/// A basic string of TOML.
fn quoted(text: &str) -> String {
    let escaped = |c: char| match c {
        '"' | '\\' => format!("\\{c}"),
        c if c.is_control() => format!("\\u{:04X}", u32::from(c)),
        c => c.to_string(),
    };
    format!("\"{}\"", text.chars().map(escaped).collect::<String>())
}
