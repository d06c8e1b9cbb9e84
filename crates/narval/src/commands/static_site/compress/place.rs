//! Writes encodings beside a file or in a folder of their own: whole or not at all, also if several processes write them
//! at the same time.

use std::ffi::OsStr;
use std::fs::{self, File, FileTimes};
use std::io::{self, Write};
use std::path::Path;

use narval_files::{TemporaryFile, is_temporary_name, remove_leftovers};

use super::files::{Source, named};

/// Names of encodings that are not complete begin with this. A site does not serve names with a dot.
pub(super) const TEMPORARY: &str = ".narval-tmp-";

/// Writes one encoding to a temporary name, and renames it when it is complete. `None` if it is not smaller; an older
/// encoding is then removed, because it has other contents.
pub(super) fn place(
    source: &Source,
    target: &Path,
    write: impl FnOnce(&mut Limited<'_>) -> io::Result<()>,
) -> io::Result<Option<u64>> {
    let folder = target.parent().unwrap_or(Path::new(""));
    let file = TemporaryFile::create(folder, TEMPORARY, source.mode)
        .map_err(|error| named("cannot write in", folder, &error))?;
    let mut limited = Limited { file: file.file(), left: source.size.saturating_sub(1), over: false };
    let outcome = write(&mut limited);
    if limited.over {
        return remove_if_there(target).map(|()| None);
    }
    outcome?;
    file.file().set_times(FileTimes::new().set_modified(source.modified))?;
    let size = file.file().metadata()?.len();
    file.persist(target)?;
    Ok(Some(size))
}

/// Removes what killed processes have left in a folder.
pub(super) fn clean(folder: &Path) -> io::Result<()> {
    remove_leftovers(folder, is_unfinished).map_err(|error| named("cannot clean", folder, &error))
}

/// Whether a name is that of an encoding that is not complete.
pub(super) fn is_unfinished(name: &OsStr) -> bool {
    is_temporary_name(name, TEMPORARY)
}

pub(super) fn remove_if_there(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// A file with a size limit: an encoding that is not smaller is abandoned at once.
pub(super) struct Limited<'a> {
    file: &'a File,
    left: u64,
    over: bool,
}

impl Write for Limited<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.left.checked_sub(bytes.len() as u64) {
            Some(left) if !self.over => {
                self.left = left;
                self.file.write_all(bytes)?;
                Ok(bytes.len())
            }
            _ => {
                self.over = true;
                Err(io::Error::other("the encoding is not smaller"))
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}
