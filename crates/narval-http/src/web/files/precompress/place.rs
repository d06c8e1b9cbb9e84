//! Writes encodings beside a file or in a folder of their own: whole or not at all, also if several processes write them
//! at the same time.

use std::ffi::OsString;
use std::fs::{self, File, FileTimes, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;

use super::source::{Source, named};

/// How often creating a file is retried while other processes write or remove it.
const ATTEMPTS_MAX: usize = 100;

/// Writes one encoding to a temporary name, and renames it when it is complete. `None` if it is not smaller; an older
/// encoding is then removed, because it has other contents.
pub(super) fn place(
    source: &Source,
    target: &Path,
    write: impl FnOnce(&mut Limited<'_>) -> io::Result<()>,
) -> io::Result<Option<u64>> {
    let partial = with_ending(target, ".tmp");
    // Locked until it is renamed or removed.
    let file = create_partial(&partial, source.mode).map_err(|error| named("cannot write", &partial, &error))?;
    let mut limited = Limited { file: &file, left: source.size.saturating_sub(1), over: false };
    let made = (|| {
        let outcome = write(&mut limited);
        if limited.over {
            return Ok(None);
        }
        outcome?;
        file.set_times(FileTimes::new().set_modified(source.modified))?;
        Ok(Some(file.metadata()?.len()))
    })();
    match made {
        Ok(Some(size)) => fs::rename(&partial, target).map(|()| Some(size)),
        other => {
            remove_if_there(&partial)?;
            if other.is_ok() {
                remove_if_there(target)?;
            }
            other
        }
    }
}

/// Creates a new file and locks it. Waits for another process that is writing it; leftovers of a killed process are
/// removed.
fn create_partial(path: &Path, mode: u32) -> io::Result<File> {
    for _ in 0..ATTEMPTS_MAX {
        match OpenOptions::new().write(true).create_new(true).mode(mode).open(path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => remove_left_over(path)?,
            file => {
                let file = file?;
                // Before it was locked, another process may have taken it for a leftover.
                if lock(&file, FlockOperation::NonBlockingLockExclusive)? && has_name(path, &file)? {
                    return Ok(file);
                }
            }
        }
    }
    Err(io::Error::other("other processes write it again and again"))
}

fn remove_left_over(path: &Path) -> io::Result<()> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let file = match OpenOptions::new().read(true).custom_flags(flags).open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        file => file?,
    };
    lock(&file, FlockOperation::LockExclusive)?;
    // The process that held the lock has renamed or removed it.
    if has_name(path, &file)? { remove_if_there(path) } else { Ok(()) }
}

/// Whether the lock was taken, or the file system has no locks.
fn lock(file: &File, operation: FlockOperation) -> io::Result<bool> {
    loop {
        return match flock(file, operation) {
            Ok(()) | Err(Errno::NOLCK | Errno::OPNOTSUPP | Errno::NOSYS) => Ok(true),
            Err(Errno::WOULDBLOCK) => Ok(false),
            Err(Errno::INTR) => continue,
            Err(error) => Err(error.into()),
        };
    }
}

fn has_name(path: &Path, file: &File) -> io::Result<bool> {
    let named = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        named => named?,
    };
    let open = file.metadata()?;
    Ok((named.dev(), named.ino()) == (open.dev(), open.ino()))
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

pub(super) fn with_ending(path: &Path, ending: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(ending);
    name.into()
}
