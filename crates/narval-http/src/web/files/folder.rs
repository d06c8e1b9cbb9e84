use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, Stat, fstat, open, openat2};

/// A folder beneath which names are opened: symbolic links may point to other places inside it, but not out of it.
#[derive(Debug)]
pub(super) struct Folder {
    handle: OwnedFd,
}

/// Identifies a state of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    device: u64,
    inode: u64,
    pub(super) size: u64,
    modified_s: i64,
    modified_ns: u32,
}

impl Stamp {
    pub(super) fn modified(&self) -> SystemTime {
        let second = Duration::from_secs(self.modified_s.unsigned_abs());
        let base = if self.modified_s < 0 { UNIX_EPOCH.checked_sub(second) } else { UNIX_EPOCH.checked_add(second) };
        base.and_then(|time| time.checked_add(Duration::from_nanos(self.modified_ns.into()))).unwrap_or(UNIX_EPOCH)
    }

    /// Nanoseconds since 1970, for an entity tag.
    pub(super) fn modified_ns(&self) -> i128 {
        i128::from(self.modified_s) * 1_000_000_000 + i128::from(self.modified_ns)
    }

    fn of(stat: &Stat) -> Self {
        Self {
            device: stat.st_dev,
            inode: stat.st_ino,
            size: u64::try_from(stat.st_size).unwrap_or(0),
            modified_s: stat.st_mtime,
            modified_ns: u32::try_from(stat.st_mtime_nsec).unwrap_or(0),
        }
    }
}

/// What a name refers to.
#[derive(Debug)]
pub(super) enum Found {
    File(File, Stamp),
    Folder(OwnedFd),
    /// Nothing, or nothing that is served: a device, a socket, a link that points outside.
    Nothing,
    /// A file or folder that we may not read.
    Forbidden,
}

impl Folder {
    /// Opens a folder.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let handle = open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let folder = Self { handle };
        // Detected at start rather than by the first request: openat2(2) exists since Linux 5.6.
        folder.find(Path::new("."))?;
        Ok(folder)
    }

    /// Opens a relative name.
    ///
    /// # Errors
    /// Only for failures that the name did not cause: too many open files, an I/O error.
    pub(super) fn find(&self, name: &Path) -> io::Result<Found> {
        loop {
            match self.find_once(name) {
                // A concurrent rename; the kernel asks to try again.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                outcome => return outcome,
            }
        }
    }

    fn find_once(&self, name: &Path) -> io::Result<Found> {
        let name = if name.as_os_str().is_empty() { Path::new(".") } else { name };
        // Without NONBLOCK, opening a FIFO would wait for a writer.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        let handle = loop {
            match openat2(&self.handle, name, flags, Mode::empty(), beneath) {
                Ok(handle) => break handle,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return nothing_there(error),
            }
        };
        let stat = fstat(&handle)?;
        Ok(match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => Found::File(handle.into(), Stamp::of(&stat)),
            FileType::Directory => Found::Folder(handle),
            _ => Found::Nothing,
        })
    }
}

fn nothing_there(error: rustix::io::Errno) -> io::Result<Found> {
    use rustix::io::Errno;
    match error {
        Errno::NOENT
        | Errno::NOTDIR
        | Errno::LOOP
        | Errno::XDEV
        | Errno::NAMETOOLONG
        | Errno::NXIO
        | Errno::INVAL
        | Errno::NODEV => Ok(Found::Nothing),
        Errno::ACCESS | Errno::PERM => Ok(Found::Forbidden),
        error => Err(error.into()),
    }
}

/// The whole file, if it is in the state `stamp`; `None` if it changed while it was read.
pub(super) fn read_whole(file: &File, stamp: &Stamp) -> io::Result<Option<Vec<u8>>> {
    let mut content = Vec::with_capacity(usize::try_from(stamp.size).unwrap_or(0));
    let mut reader = file;
    reader.by_ref().take(stamp.size + 1).read_to_end(&mut content)?;
    let after = Stamp::of(&fstat(file)?);
    Ok((after == *stamp && content.len() as u64 == stamp.size).then_some(content))
}
