//! Walks the files of a store path: in byte order of their names, by directory handles, never through a symlink.

use std::ffi::{CStr, OsStr};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use narval_nix::nar::{DEPTH_MAX, NAME_LEN_MAX, TARGET_LEN_MAX};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, RawDir, Stat};

use super::layout::{Kind, NarLayout, Record, RootIdentity};
use super::{ENTRIES_MAX, NarIoError, TEXT_LEN_MAX};

/// Flags for opening a directory: fails for anything else, including a symlink to one.
pub(super) const DIRECTORY_FLAGS: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// The rule that a directory at [`DEPTH_MAX`] breaks.
const TOO_DEEP: &str = "is nested deeper than 64, which no NAR allows";

/// The owner's execute bit, the only one that Nix uses (`archive.cc`).
const OWNER_EXECUTE: u32 = 0o100;

/// Size of the buffer for directory entries.
const DIRECTORY_BUFFER_LEN: usize = 32 * 1024;

impl NarLayout {
    /// Plans the NAR of the file, directory or symlink at this path. A symlink there is itself the NAR.
    ///
    /// # Errors
    /// [`NarIoError`] for files that cannot be read, or cannot be in a NAR.
    pub fn scan(path: &Path) -> Result<Self, NarIoError> {
        let stat = rustix::fs::lstat(path).map_err(|error| NarIoError::io("read", path, error))?;
        let mut plan =
            Plan { root: path, records: Vec::new(), text: Vec::new(), stack: Vec::new(), buffer: Vec::new() };
        plan.buffer.reserve_exact(DIRECTORY_BUFFER_LEN);
        let name = c"";
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => {
                let directory = rustix::fs::open(path, DIRECTORY_FLAGS, Mode::empty())
                    .map_err(|error| NarIoError::io("open", path, error))?;
                plan.directory(name, directory)?;
            }
            FileType::Symlink => {
                let target =
                    rustix::fs::readlink(path, Vec::new()).map_err(|error| NarIoError::io("read", path, error))?;
                plan.symlink(name, target.as_bytes())?;
            }
            FileType::RegularFile => plan.regular(name, &stat)?,
            _ => return Err(NarIoError::Kind { path: path.to_owned() }),
        }
        plan.run()?;
        plan.finish(identity(&stat))
    }
}

/// Identifies a root.
#[allow(clippy::unnecessary_cast, reason = "the fields' types differ between architectures")]
pub(super) fn identity(stat: &Stat) -> RootIdentity {
    let changed = (stat.st_ctime as i64, stat.st_ctime_nsec as i64);
    RootIdentity { device: stat.st_dev as u64, inode: stat.st_ino as u64, changed }
}

struct Plan<'a> {
    root: &'a Path,
    records: Vec<Record>,
    text: Vec<u8>,
    /// The directories being walked, the root first; at most [`DEPTH_MAX`].
    stack: Vec<OpenDirectory>,
    buffer: Vec<u8>,
}

struct OpenDirectory {
    handle: OwnedFd,
    record: u32,
    names: Names,
    next: usize,
}

impl Plan<'_> {
    fn run(&mut self) -> Result<(), NarIoError> {
        while let Some(mut directory) = self.stack.pop() {
            let Some((name, kind)) = directory.names.get(directory.next) else {
                self.close_directory();
                continue;
            };
            directory.next += 1;
            // Children find their directory on top of the stack.
            let name = name.to_owned();
            self.stack.push(directory);
            self.child(&name, kind)?;
        }
        Ok(())
    }

    fn child(&mut self, name: &CStr, mut kind: FileType) -> Result<(), NarIoError> {
        let Some(directory) = self.stack.last() else { return Ok(()) };
        let handle = directory.handle.as_fd();
        let fail = |action, error| NarIoError::io(action, &self.path_of(name), error);
        let mut stat = None;
        if !matches!(kind, FileType::Directory | FileType::Symlink) {
            let found =
                rustix::fs::statat(handle, name, AtFlags::SYMLINK_NOFOLLOW).map_err(|error| fail("read", error))?;
            kind = FileType::from_raw_mode(found.st_mode);
            stat = Some(found);
        }
        match (kind, stat) {
            (FileType::Directory, _) => {
                let opened = rustix::fs::openat(handle, name, DIRECTORY_FLAGS, Mode::empty());
                let opened = opened.map_err(|error| fail("open", error))?;
                self.directory(name, opened)
            }
            (FileType::Symlink, _) => {
                let target = rustix::fs::readlinkat(handle, name, Vec::new()).map_err(|error| fail("read", error))?;
                self.symlink(name, target.as_bytes())
            }
            (FileType::RegularFile, Some(stat)) => self.regular(name, &stat),
            _ => Err(NarIoError::Kind { path: self.path_of(name) }),
        }
    }

    fn directory(&mut self, name: &CStr, handle: OwnedFd) -> Result<(), NarIoError> {
        let names = self.list(name, handle.as_fd())?;
        let record = self.push(name, b"", Kind::Directory, 0)?;
        if self.stack.len() >= DEPTH_MAX {
            return Err(NarIoError::Limit { path: self.path_of(name), rule: TOO_DEEP });
        }
        self.stack.push(OpenDirectory { handle, record, names, next: 0 });
        Ok(())
    }

    fn symlink(&mut self, name: &CStr, target: &[u8]) -> Result<(), NarIoError> {
        if target.is_empty() || target.len() > TARGET_LEN_MAX {
            return Err(NarIoError::Limit {
                path: self.path_of(name),
                rule: "points to a path of 0 or over 4095 bytes",
            });
        }
        let closes = self.closes_of_node() - 1;
        let record = self.push(name, target, Kind::Symlink, target.len() as u64)?;
        self.close(record, closes);
        Ok(())
    }

    fn regular(&mut self, name: &CStr, stat: &Stat) -> Result<(), NarIoError> {
        let kind = if stat.st_mode & OWNER_EXECUTE != 0 { Kind::Executable } else { Kind::Regular };
        let size = u64::try_from(stat.st_size)
            .map_err(|_| NarIoError::Limit { path: self.path_of(name), rule: "has a negative size" })?;
        let closes = self.closes_of_node();
        let record = self.push(name, b"", kind, size)?;
        self.close(record, closes);
        Ok(())
    }

    /// How many `)` close a node in the directory on top of the stack: its own and, below the root, that of its entry.
    fn closes_of_node(&self) -> u8 {
        if self.stack.is_empty() { 1 } else { 2 }
    }

    /// The directory that was just popped ends with the last entry so far.
    fn close_directory(&mut self) {
        let closes = self.closes_of_node();
        self.close(self.records.len().saturating_sub(1) as u32, closes);
    }

    fn close(&mut self, record: u32, closes: u8) {
        if let Some(record) = self.records.get_mut(record as usize) {
            // At most 2 for each of 64 directories and 2 for a file.
            record.closes = record.closes.saturating_add(closes);
        }
    }

    fn push(&mut self, name: &CStr, target: &[u8], kind: Kind, extent: u64) -> Result<u32, NarIoError> {
        let name_bytes = name.to_bytes();
        let limit = |rule| NarIoError::Limit { path: self.path_of(name), rule };
        let name_len = u8::try_from(name_bytes.len()).map_err(|_| limit("has a name of over 255 bytes"))?;
        if self.stack.len() >= DEPTH_MAX {
            return Err(limit(TOO_DEEP));
        }
        if self.records.len() >= ENTRIES_MAX || self.text.len() + NAME_LEN_MAX + TARGET_LEN_MAX > TEXT_LEN_MAX {
            return Err(limit("exceeds the limit of files in a store path"));
        }
        let record = self.records.len() as u32;
        let parent = self.stack.last().map_or(record, |directory| directory.record);
        let text = self.text.len() as u32;
        self.text.extend_from_slice(name_bytes);
        self.text.extend_from_slice(target);
        self.records.push(Record { start: 0, extent, parent, text, name_len, kind, closes: 0 });
        Ok(record)
    }

    fn list(&mut self, name: &CStr, handle: BorrowedFd<'_>) -> Result<Names, NarIoError> {
        let mut names = Names::default();
        let mut buffer = std::mem::take(&mut self.buffer);
        let spare: &mut [MaybeUninit<u8>] = buffer.spare_capacity_mut();
        let mut entries = RawDir::new(handle, spare);
        let mut failure = None;
        while let Some(entry) = entries.next() {
            match entry {
                Ok(entry) => names.push(entry.file_name(), entry.file_type()),
                Err(error) => {
                    failure = Some(error);
                    break;
                }
            }
        }
        self.buffer = buffer;
        if let Some(error) = failure {
            return Err(NarIoError::io("list", &self.path_of(name), error));
        }
        names.sort();
        Ok(names)
    }

    /// The path of a name in the directory on top of the stack, for messages.
    fn path_of(&self, name: &CStr) -> PathBuf {
        let mut names = vec![name.to_bytes()];
        let mut at = self.stack.last().and_then(|directory| self.records.get(directory.record as usize));
        while let Some(record) = at.filter(|record| record.name_len > 0) {
            let from = record.text as usize;
            names.push(self.text.get(from..from + usize::from(record.name_len)).unwrap_or_default());
            at = self.records.get(record.parent as usize);
        }
        let mut path = self.root.to_owned();
        path.extend(names.iter().rev().filter(|name| !name.is_empty()).map(|name| OsStr::from_bytes(name)));
        path
    }

    fn finish(mut self, root: RootIdentity) -> Result<NarLayout, NarIoError> {
        let mut at = 0_u64;
        for record in &mut self.records {
            record.start = at;
            at = at.saturating_add(record.len());
        }
        if at > i64::MAX as u64 {
            return Err(NarIoError::Limit { path: self.root.to_owned(), rule: "is larger than a NAR can be" });
        }
        Ok(NarLayout {
            root,
            records: self.records.into_boxed_slice(),
            text: self.text.into_boxed_slice(),
            size_bytes: at,
        })
    }
}

/// The names in one directory, each with its NUL, in one piece of memory.
#[derive(Default)]
struct Names {
    text: Vec<u8>,
    entries: Vec<(u32, u16, FileType)>,
}

impl Names {
    fn push(&mut self, name: &CStr, kind: FileType) {
        let bytes = name.to_bytes_with_nul();
        if matches!(bytes, b".\0" | b"..\0") {
            return;
        }
        // Names on Linux have at most 255 bytes, and no directory has 4 GB of them.
        let (Ok(from), Ok(len)) = (u32::try_from(self.text.len()), u16::try_from(bytes.len())) else { return };
        self.text.extend_from_slice(bytes);
        self.entries.push((from, len, kind));
    }

    fn sort(&mut self) {
        let text = &self.text;
        // The final NUL sorts below every byte of a name.
        self.entries.sort_unstable_by(|a, b| bytes(text, a).cmp(bytes(text, b)));
    }

    fn get(&self, index: usize) -> Option<(&CStr, FileType)> {
        let entry = self.entries.get(index)?;
        Some((CStr::from_bytes_with_nul(bytes(&self.text, entry)).ok()?, entry.2))
    }
}

fn bytes<'a>(text: &'a [u8], (from, len, _): &(u32, u16, FileType)) -> &'a [u8] {
    text.get(*from as usize..*from as usize + usize::from(*len)).unwrap_or_default()
}

/// Opens the root directory.
pub(super) fn open_root(path: &Path) -> Result<OwnedFd, NarIoError> {
    rustix::fs::openat(CWD, path, DIRECTORY_FLAGS, Mode::empty()).map_err(|error| NarIoError::io("open", path, error))
}
