//! Unpacks a NAR to disk: streaming, below one directory handle, without following symlinks, with canonical metadata in
//! one pass.
//!
//! Canonical: files 0444 or 0555, directories 0555, all times one second after 1970 (Nix `posix-fs-canonicalise.cc`).

use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use narval_nix::StoreDir;
use narval_nix::nar::{Decoder, Event, NarError};
use narval_nix::store_path::BASE_NAME_LEN_MAX;
use rustix::fs::{AtFlags, FallocateFlags, Mode, OFlags, Timespec, Timestamps};
use rustix::io::Errno;
use thiserror::Error;

/// Space is reserved for files of at least this size; for smaller ones that costs more than it gains.
const RESERVE_MIN: u64 = 1 << 20;

/// The longest path that the kernel accepts (`PATH_MAX` without the NUL). Directory handles can go deeper, but other
/// programs could not open such paths.
pub const PATH_LEN_MAX: usize = 4095;

/// The permissions of canonical modes. If the umask removes any of them, modes are set file by file.
const CANONICAL_BITS: u32 = 0o555;

/// The times of every file, directory and symlink: one second after 1970.
const CANONICAL_TIMES: Timestamps = Timestamps {
    last_access: Timespec { tv_sec: 1, tv_nsec: 0 },
    last_modification: Timespec { tv_sec: 1, tv_nsec: 0 },
};

/// Why a NAR could not be unpacked. What was unpacked stays under its temporary name.
#[derive(Debug, Error)]
pub enum UnpackError {
    /// The NAR is invalid.
    #[error(transparent)]
    Nar(#[from] NarError),
    /// A path that could not be opened by its name: Nix refuses to copy it, and its check of the store would stop
    /// there.
    #[error("a path in the NAR would have more than {PATH_LEN_MAX} bytes below the store")]
    PathTooLong,
    /// The disk is full, a name cannot be represented, or the like.
    #[error("cannot {action} '{}': {source}", path.display())]
    Io {
        /// The operation, as a verb.
        action: &'static str,
        /// The path below the destination's directory.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
}

/// The number of files and bytes unpacked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Unpacked {
    /// Regular files.
    pub files: u64,
    /// Directories.
    pub directories: u64,
    /// Symlinks.
    pub symlinks: u64,
    /// Length of all contents.
    pub contents_bytes: u64,
}

/// Unpacks one NAR to a name that does not exist yet, in an open directory.
///
/// ```no_run
/// # fn nar() -> Vec<u8> { Vec::new() }
/// # use std::{fs::File, os::fd::AsFd};
/// use narval_store::Unpack;
/// let directory = File::open("/srv/root/nix/store")?;
/// let nar = nar();
/// let mut unpack = Unpack::begin(directory.as_fd(), ".tmp-0".as_ref(), Some(nar.len() as u64))?;
/// for piece in nar.chunks(1000) {
///     unpack.write(piece)?;
/// }
/// let what = unpack.finish()?;
/// println!("{} files", what.files);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Unpack {
    decoder: Decoder,
    disk: Disk,
}

impl Unpack {
    /// Prepares to unpack to `name` in `directory`. Nothing is written yet. With `nar_size_bytes`, a NAR of another
    /// size is rejected, and a file that cannot fit is rejected before its first byte.
    ///
    /// # Errors
    /// If `name` is not one component of a path.
    pub fn begin(directory: BorrowedFd<'_>, name: &OsStr, nar_size_bytes: Option<u64>) -> Result<Self, UnpackError> {
        Self::begin_as(directory, name, nar_size_bytes, true)
    }

    /// Like [`Unpack::begin`], for a copy outside of a store: modes follow the umask, and times are not set. `nix-store
    /// --restore` does the same with the umask 022.
    ///
    /// # Errors
    /// See [`Unpack::begin`].
    pub fn begin_writable(directory: BorrowedFd<'_>, name: &OsStr) -> Result<Self, UnpackError> {
        Self::begin_as(directory, name, None, false)
    }

    fn begin_as(
        directory: BorrowedFd<'_>,
        name: &OsStr,
        nar_size_bytes: Option<u64>,
        canonical: bool,
    ) -> Result<Self, UnpackError> {
        let fail = |source| UnpackError::Io { action: "create", path: name.into(), source };
        let bytes = name.as_bytes();
        if matches!(bytes, b"" | b"." | b"..") || bytes.contains(&b'/') {
            return Err(fail(io::ErrorKind::InvalidInput.into()));
        }
        let destination = CString::new(bytes).map_err(|_| fail(io::ErrorKind::InvalidInput.into()))?;
        let directory = directory.try_clone_to_owned().map_err(fail)?;
        let disk = Disk {
            base_len: path_len(&directory) + 1 + BASE_NAME_LEN_MAX,
            directories: vec![directory],
            names: Vec::new(),
            name: destination,
            file: None,
            canonical,
            chmod: canonical && umask_takes(CANONICAL_BITS),
            unpacked: Unpacked::default(),
        };
        let decoder = nar_size_bytes.map_or_else(Decoder::new, Decoder::with_nar_size);
        Ok(Self { decoder, disk })
    }

    /// Unpacks the next bytes of the NAR, in pieces of any size.
    ///
    /// # Errors
    /// [`UnpackError`]; nothing more can be written then.
    pub fn write(&mut self, mut bytes: &[u8]) -> Result<(), UnpackError> {
        loop {
            let (used, event) = self.decoder.next(bytes)?;
            let Some(event) = event else { return Ok(()) };
            self.disk.take(event)?;
            bytes = bytes.get(used..).unwrap_or_default();
        }
    }

    /// The number of bytes unpacked so far, without those of an incomplete token.
    pub fn offset(&self) -> u64 {
        self.decoder.offset()
    }

    /// Ends the NAR.
    ///
    /// # Errors
    /// If it is not.
    pub fn finish(self) -> Result<Unpacked, UnpackError> {
        self.decoder.finish()?;
        Ok(self.disk.unpacked)
    }
}

/// The current position in the tree on disk.
#[derive(Debug)]
struct Disk {
    /// Length of the given directory's path plus the longest name of a store path.
    base_len: usize,
    /// The given directory, then those that are being filled; the last one is the current one.
    directories: Vec<OwnedFd>,
    /// The names of those directories, without the first: for messages.
    names: Vec<CString>,
    /// The name of the next node.
    name: CString,
    file: Option<OwnedFd>,
    /// Whether modes and times are those of a store.
    canonical: bool,
    /// Whether modes must be set explicitly because of the umask.
    chmod: bool,
    unpacked: Unpacked,
}

impl Disk {
    fn take(&mut self, event: Event<'_>) -> Result<(), UnpackError> {
        match event {
            Event::Regular { executable, size } => self.create(executable, size),
            Event::Contents(contents) => self.contents(contents),
            Event::EndRegular => self.end_file(),
            Event::Symlink { target } => self.symlink(target),
            Event::Directory => self.enter(),
            Event::Entry { name } => {
                // The decoder has checked the name: it contains no NUL.
                self.name = CString::new(name).map_err(|_| self.fail("create", Errno::INVAL))?;
                // Without the root, whose name is already counted.
                let names = self.names.iter().skip(1).chain([&self.name]);
                let len: usize = names.map(|name| name.count_bytes() + 1).sum();
                if self.base_len + len > PATH_LEN_MAX { Err(UnpackError::PathTooLong) } else { Ok(()) }
            }
            Event::EndDirectory => self.leave(),
        }
    }

    fn create(&mut self, executable: bool, size: u64) -> Result<(), UnpackError> {
        let mode = Mode::from_raw_mode(match (self.canonical, executable) {
            (true, true) => 0o555,
            (true, false) => 0o444,
            (false, true) => 0o777,
            (false, false) => 0o666,
        });
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file =
            rustix::fs::openat(self.here(), &self.name, flags, mode).map_err(|error| self.fail("create", error))?;
        if self.chmod {
            rustix::fs::fchmod(&file, mode).map_err(|error| self.fail("set the mode of", error))?;
        }
        if size >= RESERVE_MIN {
            match rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, size) {
                // Not every file system supports it; then the writes report a full disk.
                Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {}
                Err(error) => return Err(self.fail("reserve space for", error)),
            }
        }
        self.unpacked.files += 1;
        self.unpacked.contents_bytes += size;
        self.file = Some(file);
        Ok(())
    }

    fn contents(&mut self, mut contents: &[u8]) -> Result<(), UnpackError> {
        let Some(file) = &self.file else { return Ok(()) };
        while !contents.is_empty() {
            match rustix::io::write(file, contents) {
                Ok(written) => contents = contents.get(written..).unwrap_or_default(),
                Err(Errno::INTR) => {}
                Err(error) => return Err(self.fail("write", error)),
            }
        }
        Ok(())
    }

    fn end_file(&mut self) -> Result<(), UnpackError> {
        let Some(file) = self.file.take().filter(|_| self.canonical) else { return Ok(()) };
        rustix::fs::futimens(&file, &CANONICAL_TIMES).map_err(|error| self.fail("set the time of", error))
    }

    fn symlink(&mut self, target: &[u8]) -> Result<(), UnpackError> {
        rustix::fs::symlinkat(target, self.here(), &self.name).map_err(|error| self.fail("create", error))?;
        if self.canonical {
            rustix::fs::utimensat(self.here(), &self.name, &CANONICAL_TIMES, AtFlags::SYMLINK_NOFOLLOW)
                .map_err(|error| self.fail("set the time of", error))?;
        }
        self.unpacked.symlinks += 1;
        Ok(())
    }

    /// A directory is accessible only to us, and writable, until it is complete.
    fn enter(&mut self) -> Result<(), UnpackError> {
        let mode = Mode::from_raw_mode(if self.canonical { 0o700 } else { 0o777 });
        rustix::fs::mkdirat(self.here(), &self.name, mode).map_err(|error| self.fail("create", error))?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory = rustix::fs::openat(self.here(), &self.name, flags, Mode::empty());
        self.directories.push(directory.map_err(|error| self.fail("open", error))?);
        self.names.push(std::mem::take(&mut self.name));
        self.unpacked.directories += 1;
        Ok(())
    }

    fn leave(&mut self) -> Result<(), UnpackError> {
        let Some(directory) = self.directories.pop() else { return Ok(()) };
        self.name = self.names.pop().unwrap_or_default();
        if !self.canonical {
            return Ok(());
        }
        let mode = Mode::from_raw_mode(0o555);
        rustix::fs::fchmod(&directory, mode).map_err(|error| self.fail("set the mode of", error))?;
        rustix::fs::futimens(&directory, &CANONICAL_TIMES).map_err(|error| self.fail("set the time of", error))
    }

    fn here(&self) -> BorrowedFd<'_> {
        // The given directory is never popped: the decoder ends as many directories as it starts.
        self.directories.last().map_or(rustix::fs::CWD, AsFd::as_fd)
    }

    fn fail(&self, action: &'static str, error: Errno) -> UnpackError {
        let mut path = PathBuf::new();
        path.extend(self.names.iter().chain([&self.name]).map(|name| OsString::from_vec(name.to_bytes().to_vec())));
        UnpackError::Io { action, path, source: error.into() }
    }
}

/// Length of the path of an open directory. Without /proc, the shortest that a store can have.
fn path_len(directory: &OwnedFd) -> usize {
    let link = format!("/proc/self/fd/{}", directory.as_raw_fd());
    std::fs::read_link(link).map_or(StoreDir::DEFAULT.len(), |path| path.as_os_str().len())
}

/// Whether the umask removes any of these bits. Reads /proc, because umask(2) returns the umask only when setting it,
/// which a library in a multi-threaded process must not do. If it is unknown, modes are set explicitly.
fn umask_takes(bits: u32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let umask = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    umask.and_then(|umask| u32::from_str_radix(umask.trim(), 8).ok()).is_none_or(|umask| umask & bits != 0)
}
