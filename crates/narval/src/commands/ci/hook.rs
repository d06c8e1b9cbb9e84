//! A post-build hook for the job's Nix, where the database of the store cannot be read.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use narval_install::settings::{UserTrust, user_trust};
use narval_store::{Access, Store, StoreConfig, SubstituterSettings};

use super::near::write_private;
use crate::ui::failure::Failure;
use crate::ui::output::note;

/// The hook, if one is needed and Nix takes it. Only users that the daemon trusts may give it one.
///
/// # Errors
/// It cannot be written.
pub(super) fn hook(folder: &Path, store: &StoreConfig) -> Result<Option<PathBuf>, Failure> {
    let by_database = Store::new(StoreConfig { access: Access::Database, ..store.clone() });
    let read = by_database.database().map(|database| database.last_registered());
    let Some(Err(error)) = read else { return Ok(None) };
    if !matches!(user_trust(store, &SubstituterSettings::of_system()), Ok(UserTrust::Trusted(_))) {
        // The watcher says that nothing is pushed.
        return Ok(None);
    }
    note!("narval ci: {error}; a post-build hook says what is built");
    let program = std::env::current_exe().map_err(|error| Failure::of_file("/proc/self/exe", &error))?;
    let script = format!("#!/bin/sh\nexec {} hook --state {}\n", quoted(&program), quoted(&state(folder)));
    let file = folder.join("post-build-hook");
    write_private(&file, &script)?;
    let made = std::fs::set_permissions(&file, Permissions::from_mode(0o755));
    made.map_err(|error| Failure::of_file(&file.display().to_string(), &error))?;
    Ok(Some(file))
}

/// The folder of what is to be pushed, with the queue that the hook fills.
pub(super) fn state(folder: &Path) -> PathBuf {
    folder.join("pushes")
}

/// A word of a shell.
fn quoted(path: &Path) -> String {
    format!("'{}'", path.display().to_string().replace('\'', r"'\''"))
}
