//! The list of the profiles of a store, in its state directory.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use narval_files::{TemporaryFile, is_temporary_name, remove_leftovers};
use narval_store::{LocalStoreError, lock_file};

use narval_transfer::{Destination, Error};

/// The file with the list of profiles, one per line.
const LIST: &str = "narval-profiles";

/// The listed profiles; empty if the list is a symlink, which narval never creates.
pub(super) fn read(state_dir: &Path) -> Result<Vec<PathBuf>, Error> {
    let list = state_dir.join(LIST);
    if fs::symlink_metadata(&list).is_ok_and(|found| found.is_symlink()) {
        return Ok(Vec::new());
    }
    let bytes = match fs::read(&list) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        bytes => bytes.map_err(|error| Error::file("read", &list, error))?,
    };
    let lines = bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    Ok(lines.map(|line| PathBuf::from(OsString::from_vec(line.to_vec()))).collect())
}

/// Adds a profile to the list.
pub(super) fn add(destination: &Destination, link: &Path) -> Result<(), Error> {
    let config = destination.config();
    match try_add(&config.state_dir, link, config.lock_timeout) {
        // A store that belongs to its daemon: the generations are still roots, only 'narval profiles' and 'narval gc
        // --keep' do not know them.
        Err(error) if is_refused(&error) && destination.daemon().is_some() => Ok(()),
        added => added,
    }
}

fn try_add(state_dir: &Path, link: &Path, lock_timeout: Duration) -> Result<(), Error> {
    if read(state_dir)?.iter().any(|known| known == link) {
        return Ok(());
    }
    let _lock = lock_file(&state_dir.join(format!("{LIST}.lock")), lock_timeout)?;
    // Read again: other processes may have written to it meanwhile.
    let mut known = read(state_dir)?;
    if !known.iter().any(|known| known == link) {
        known.push(link.to_owned());
    }
    let text: Vec<u8> = known.iter().flat_map(|path| [path.as_os_str().as_bytes(), b"\n"].concat()).collect();
    // Under a temporary name first: a file that somebody else has put here, such as a symlink, is replaced and not
    // written to.
    let (list, prefix) = (state_dir.join(LIST), format!("{LIST}.tmp-"));
    let write = || {
        remove_leftovers(state_dir, |name| is_temporary_name(name, &prefix))?;
        let temporary = TemporaryFile::create(state_dir, &prefix, 0o644)?;
        temporary.file().write_all(&text)?;
        temporary.persist(&list)
    };
    write().map_err(|error| Error::file("write", &list, error))
}

fn is_refused(error: &Error) -> bool {
    let (Error::File { source, .. } | Error::LocalStore { error: LocalStoreError::Io { source, .. } }) = error else {
        return false;
    };
    matches!(source.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem)
}
