//! Projects: folders with `narval.toml`, which names packages, and `narval.lock`, which has the paths of these.
//!
//! Whoever wrote the folder is not trusted: `accept.rs` asks before caches and keys of a project are used.

pub(crate) mod accept;
pub(crate) mod locked;
mod roots;

use std::collections::BTreeSet;
use std::fs;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use narval_nix::release::ReleaseSystem;
use narval_nix::{Sha256, nix32};

use crate::args::own_folder;
use crate::config::{ConfigErrors, ProjectFile, Table, parse};
use crate::ui::failure::Failure;
use crate::values::folders::user_folder;

pub(crate) use roots::{forget_deleted, protect};

/// The file of a project.
pub(crate) const FILE: &str = "narval.toml";
/// The most packages of a project.
pub(crate) const PACKAGES_MAX: usize = 500;
/// The most systems of a project.
pub(crate) const SYSTEMS_MAX: usize = 16;
/// The largest file of a project.
const FILE_LEN_MAX: u64 = 1024 * 1024;
/// The most folders that are looked at.
const FOLDERS_MAX: usize = 64;

/// The project of commands.
#[derive(Clone, Debug, clap::Args)]
pub struct ProjectArgs {
    /// Folder of the project [default: this folder, or one above it, that has narval.toml]
    #[arg(long, value_name = "DIR", env = "NARVAL_PROJECT", hide_env_values = true, help_heading = "Project")]
    project: Option<PathBuf>,
    /// Use the caches, keys and channel that narval.toml names, without asking. Remembered for this project until they change
    #[arg(
        long,
        env = "NARVAL_ACCEPT_PROJECT",
        hide_env_values = true,
        value_parser = clap::builder::FalseyValueParser::new(),
        help_heading = "Project"
    )]
    pub(crate) accept_project: bool,
}

impl ProjectArgs {
    /// The project.
    ///
    /// # Errors
    /// There is none, or `narval.toml` is wrong.
    pub(crate) fn open(&self) -> Result<Project, Failure> {
        match &self.project {
            Some(folder) => Project::at(folder),
            None => Project::found(),
        }
    }
}

/// A folder with `narval.toml`.
pub(crate) struct Project {
    folder: PathBuf,
    pub(crate) file: ProjectFile,
}

impl Project {
    fn at(folder: &Path) -> Result<Self, Failure> {
        let folder = fs::canonicalize(folder)
            .map_err(|error| Failure::of_file(&format!("project '{}'", folder.display()), &error))?;
        let path = folder.join(FILE);
        let text = read(&path)?.ok_or_else(|| Failure::usage(format!("there is no {}", path.display())))?;
        let file: ProjectFile = parsed(&path, &text)?;
        check(&file)?;
        Ok(Self { folder, file })
    }

    /// Looks in the working directory and above it. Folders of another owner or another file system are not looked at: everybody can put a file into
    /// `/tmp`.
    fn found() -> Result<Self, Failure> {
        let start = std::env::current_dir()
            .map_err(|error| Failure::runtime(format!("cannot find the working directory: {error}")))?;
        let home = user_folder("HOME", "").and_then(|home| fs::canonicalize(home).ok());
        let place = |folder: &Path| fs::metadata(folder).map(|found| (found.dev(), found.uid()));
        let border = place(&start).map_err(|error| Failure::of_file(&start.display().to_string(), &error))?;
        let mut last = start.as_path();
        for folder in start.ancestors().take(FOLDERS_MAX) {
            if place(folder).ok() != Some(border) {
                break;
            }
            let path = folder.join(FILE);
            if let Ok(found) = fs::metadata(&path) {
                let own = rustix::process::getuid().as_raw();
                if ![own, border.1, 0].contains(&found.uid()) {
                    return Err(Failure::usage(format!(
                        "{} belongs to another user; --project '{}' uses it nevertheless",
                        path.display(),
                        folder.display()
                    )));
                }
                return Self::at(folder);
            }
            last = folder;
            if home.as_deref() == Some(folder) {
                break;
            }
        }
        Err(Failure::usage(format!(
            "give a PATH, or make a project: there is no {FILE} in {} or above it, up to {}",
            start.display(),
            last.display()
        )))
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// What this user's state of the project is in: what was accepted, and roots.
    fn state(&self) -> Result<PathBuf, Failure> {
        let hash = Sha256::of(self.folder.as_os_str().as_encoded_bytes());
        let name = nix32::encode(hash.as_bytes().first_chunk::<20>().unwrap_or(&[0; 20]));
        Ok(all_states()?.join(name))
    }

    /// A message about a setting of narval.toml.
    pub(crate) fn says(&self, message: impl std::fmt::Display) -> Failure {
        Failure::usage(format!("{}: {message}", self.folder.join(FILE).display()))
    }
}

/// `$XDG_STATE_HOME/narval/projects`, which is `~/.local/state/narval/projects`.
fn all_states() -> Result<PathBuf, Failure> {
    own_folder(
        "XDG_STATE_HOME",
        ".local/state",
        "narval/projects",
        "set it, or XDG_STATE_HOME, for the state of projects",
    )
}

/// What is wrong although each value is valid.
fn check(file: &ProjectFile) -> Result<(), Failure> {
    let mut seen = BTreeSet::new();
    for package in &file.packages {
        let wrong = match () {
            () if !seen.insert(&package.value) => "it is there twice",
            () if package.value.chars().any(char::is_control) => "it has a control character",
            () if seen.len() > PACKAGES_MAX => "there are more than 500",
            () => continue,
        };
        return Err(failure_of(&package.origin.error(&format!("packages = \"{}\"", package.value), wrong)));
    }
    let systems: BTreeSet<&ReleaseSystem> = file.systems.iter().map(|system| &system.value).collect();
    match file.systems.get(SYSTEMS_MAX).or_else(|| file.systems.last().filter(|_| systems.len() < file.systems.len())) {
        Some(system) => Err(failure_of(&system.origin.error("systems", "give at most 16, each once"))),
        None => Ok(()),
    }
}

/// Reads a file of a project; `None` if there is none. It may be anything: a device, or gigabytes.
fn read(path: &Path) -> Result<Option<String>, Failure> {
    let failed = |error: std::io::Error| Failure::of_file(&path.display().to_string(), &error);
    match fs::metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        found if !found.as_ref().map_err(|error| failed(error.kind().into()))?.is_file() => {
            return Err(Failure::usage(format!("{}: it is no file", path.display())));
        }
        _ => {}
    }
    let mut bytes = Vec::new();
    fs::File::open(path).and_then(|file| file.take(FILE_LEN_MAX + 1).read_to_end(&mut bytes)).map_err(failed)?;
    if bytes.len() as u64 > FILE_LEN_MAX {
        return Err(Failure::usage(format!("{}: it is larger than {FILE_LEN_MAX} bytes", path.display())));
    }
    let text = String::from_utf8(bytes).map_err(|error| Failure::usage(format!("{}: {error}", path.display())))?;
    Ok(Some(text))
}

/// Parses a file of a project. The first error is said.
fn parsed<T: Table>(path: &Path, text: &str) -> Result<T, Failure> {
    parse(&path.display().to_string(), text).map_err(|ConfigErrors(errors)| match errors.first() {
        Some(error) => failure_of(error),
        None => Failure::usage(format!("{}: it cannot be read", path.display())),
    })
}

/// An error in a file that somebody else has written, without what a terminal would obey.
fn failure_of(error: &crate::config::ConfigError) -> Failure {
    Failure::usage(error.to_string().chars().map(|c| if c.is_control() { '�' } else { c }).collect::<String>())
}
