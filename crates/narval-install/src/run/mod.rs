//! Runs programs of a store that is not at `/nix/store`, without root: in a user and mount namespace in which it is.

mod enter;
mod follow;
mod helper;

pub use enter::{EnterError, Others, enter, others_hidden};
pub use follow::{Follow, follow};
pub use helper::helper;

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use narval_nix::{PackageName, StorePath};
use narval_store::StoreConfig;

use crate::Error;

/// Whether the store is at its logical place, so that programs need no namespace.
pub fn is_at_home(config: &StoreConfig) -> bool {
    let home = Path::new(config.store_dir.as_str());
    config.real_store_dir == home
        || matches!((fs::canonicalize(&config.real_store_dir), fs::canonicalize(home)), (Ok(a), Ok(b)) if a == b)
}

/// The program to run for a path without a command: `bin/<name without version>`, or the only one in `bin`. The result
/// is below the logical store directory, as seen inside the namespace.
///
/// # Errors
/// [`Error::Usage`] if there is none, or more than one.
pub fn main_program(config: &StoreConfig, path: &StorePath) -> Result<PathBuf, Error> {
    let bin = config.real_store_dir.join(path.base_name()).join("bin");
    let mut programs: Vec<_> = fs::read_dir(&bin)
        .map_err(|_| Error::Usage(format!("{path} has no bin folder: say what to run after --")))?
        .flatten()
        .map(|entry| entry.file_name())
        .collect();
    programs.sort();
    let inside = Path::new(config.store_dir.as_str()).join(path.base_name()).join("bin");
    let wanted = PackageName::of(path.name()).package;
    if programs.iter().any(|program| program == wanted) {
        return Ok(inside.join(wanted));
    }
    match programs.as_slice() {
        [only] => Ok(inside.join(only)),
        _ => Err(Error::Usage(format!(
            "{path} has {} programs and none is called '{wanted}': say which after --",
            programs.len()
        ))),
    }
}

/// Variables for a shell with these paths: their `bin` folders before the existing values.
pub fn shell_variables(config: &StoreConfig, paths: &[StorePath]) -> Vec<(&'static str, OsString)> {
    let folders = [("PATH", "bin"), ("XDG_DATA_DIRS", "share"), ("MANPATH", "share/man")];
    let set = |(variable, below): (&'static str, &str)| {
        let mut value = OsString::new();
        for path in paths {
            if config.real_store_dir.join(path.base_name()).join(below).is_dir() {
                value.push(Path::new(config.store_dir.as_str()).join(path.base_name()).join(below));
                value.push(":");
            }
        }
        let before = std::env::var_os(variable).unwrap_or_default();
        // An empty MANPATH element stands for the default ones.
        if variable == "XDG_DATA_DIRS" && before.is_empty() {
            value.push("/usr/local/share:/usr/share");
        }
        value.push(before);
        (variable, value)
    };
    folders.into_iter().map(set).collect()
}
