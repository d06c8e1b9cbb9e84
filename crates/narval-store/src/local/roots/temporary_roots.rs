//! Temporary roots: protect what this process adds or uses from every garbage collection, Nix's and our own, from
//! before it is examined until they are dropped.
//!
//! As in Nix's `LocalStore::addTempRoot` (`libstore/gc.cc`), the paths are in a file below `temproots`, which is locked
//! as long as its owner lives. Nix requires the file's name to be a number, and uses its process id. A process in
//! another PID namespace may have the same id and would remove the file as its own leftover, so the number here is one
//! that no process can have.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use narval_nix::{StoreDir, StorePath};
use parking_lot::Mutex;
use rustix::fs::FlockOperation;
use rustix::io::Errno;

use super::root_server;
use crate::config::StoreConfig;
use crate::local::error::LocalStoreError;
use crate::local::locks::{Waiting, open};
use narval_files::random;

/// The kernel's maximum process id (`PID_MAX_LIMIT`).
const PROCESS_MAX: u64 = 1 << 22;

/// Numbers tried for the file's name.
const ATTEMPTS_MAX: usize = 100;

/// The temporary roots of one user of a store. Created when the first path is kept. Can be shared between threads.
#[derive(Debug)]
pub struct LocalRoots {
    directory: PathBuf,
    gc_lock: PathBuf,
    state_dir: PathBuf,
    store_dir: StoreDir,
    waiting: Waiting,
    state: Mutex<Option<Roots>>,
}

#[derive(Debug)]
struct Roots {
    number: u64,
    path: PathBuf,
    /// Locked exclusively as long as it is open.
    file: File,
    gc_lock: File,
    /// The connection to a running collection.
    collector: Option<UnixStream>,
    kept: BTreeSet<StorePath>,
}

impl LocalRoots {
    /// Temporary roots for this store. Nothing is created yet.
    pub fn new(config: &StoreConfig) -> Self {
        Self {
            directory: config.state_dir.join("temproots"),
            gc_lock: config.state_dir.join("gc.lock"),
            state_dir: config.state_dir.clone(),
            store_dir: config.store_dir.clone(),
            waiting: Waiting::of(config),
            state: Mutex::new(None),
        }
    }

    /// Protects paths, valid or not. Check their validity only after this has returned: a running collection may be
    /// deleting them.
    ///
    /// # Errors
    /// If the roots cannot be written.
    pub fn keep<'a>(&self, paths: impl IntoIterator<Item = &'a StorePath>) -> Result<(), LocalStoreError> {
        let mut state = self.state.lock();
        let roots = match &mut *state {
            Some(roots) => roots,
            none => none.insert(self.create()?),
        };
        let new: Vec<&StorePath> = paths.into_iter().filter(|path| !roots.kept.contains(*path)).collect();
        if new.is_empty() {
            return Ok(());
        }
        let full: Vec<String> = new.iter().map(|path| self.store_dir.display(path).to_string()).collect();
        // The file first: a collection that starts from now on reads it, and a running one is notified.
        let text: String = full.iter().map(|path| format!("{path}\0")).collect();
        roots.file.write_all(text.as_bytes()).map_err(|error| LocalStoreError::io("write", &roots.path, error))?;
        self.wait_for_collector(roots, &full)?;
        roots.kept.extend(new.into_iter().cloned());
        Ok(())
    }

    /// The number that names the file, and temporary names in the store directory.
    pub(in crate::local) fn number(&self) -> Result<u64, LocalStoreError> {
        let mut state = self.state.lock();
        match &*state {
            Some(roots) => Ok(roots.number),
            None => Ok(state.insert(self.create()?).number),
        }
    }

    fn create(&self) -> Result<Roots, LocalStoreError> {
        let gc_lock = open(&self.gc_lock)?;
        fs::create_dir_all(&self.directory).map_err(|error| LocalStoreError::io("create", &self.directory, error))?;
        for _ in 0..ATTEMPTS_MAX {
            let number = PROCESS_MAX + 1 + random() % (u64::from(i32::MAX.cast_unsigned()) - PROCESS_MAX);
            let path = self.directory.join(number.to_string());
            let fail = |error| LocalStoreError::io("create", &path, error);
            let mut options = OpenOptions::new();
            let file = match options.read(true).append(true).create_new(true).mode(0o600).open(&path) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => continue,
                file => file.map_err(fail)?,
            };
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                // A collection found the file before it was locked, and removes it.
                Err(Errno::WOULDBLOCK) => continue,
                locked => locked.map_err(|error| fail(error.into()))?,
            }
            let found = file.metadata().map_err(fail)?;
            if found.nlink() > 0 && found.len() == 0 {
                return Ok(Roots { number, path, file, gc_lock, collector: None, kept: BTreeSet::new() });
            }
        }
        Err(LocalStoreError::io("create a file in", &self.directory, ErrorKind::AlreadyExists))
    }

    /// Returns when no collection is running, or the running one knows these paths.
    fn wait_for_collector(&self, roots: &mut Roots, full: &[String]) -> Result<(), LocalStoreError> {
        let mut wait = self.waiting.begin(&self.gc_lock);
        loop {
            match rustix::fs::flock(&roots.gc_lock, FlockOperation::NonBlockingLockShared) {
                Ok(()) => {
                    let unlocked = rustix::fs::flock(&roots.gc_lock, FlockOperation::Unlock);
                    return unlocked.map_err(|error| LocalStoreError::io("unlock", &self.gc_lock, error));
                }
                Err(Errno::INTR) => continue,
                Err(Errno::WOULDBLOCK) => {}
                Err(error) => return Err(LocalStoreError::io("lock", &self.gc_lock, error)),
            }
            if roots.tell_collector(&self.state_dir, full)? {
                return Ok(());
            }
            wait.pause()?;
        }
    }
}

impl Roots {
    /// Whether the running collection has accepted these paths; `false` if it has ended, or accepts none.
    fn tell_collector(&mut self, state_dir: &Path, full: &[String]) -> Result<bool, LocalStoreError> {
        use ErrorKind::{BrokenPipe, ConnectionRefused, ConnectionReset, NotFound, UnexpectedEof};
        let sent = (|| {
            let stream = match &mut self.collector {
                Some(stream) => stream,
                none => none.insert(root_server::connect(state_dir)?),
            };
            for path in full {
                stream.write_all(format!("{path}\n").as_bytes())?;
                // It answers once it is not deleting this path, or has deleted it.
                stream.read_exact(&mut [0])?;
            }
            Ok(())
        })();
        sent.map(|()| true).or_else(|error: std::io::Error| {
            self.collector = None;
            match error.kind() {
                NotFound | ConnectionRefused | ConnectionReset | BrokenPipe | UnexpectedEof => Ok(false),
                _ => Err(LocalStoreError::io("tell the garbage collection of", state_dir, error)),
            }
        })
    }
}

impl Drop for Roots {
    fn drop(&mut self) {
        // A leftover file keeps nothing: nobody has locked it.
        fs::remove_file(&self.path).ok();
    }
}

/// Whether the owner of the file with this number lives.
pub(in crate::local) fn is_owned(state_dir: &Path, number: &str) -> Result<bool, LocalStoreError> {
    let path = state_dir.join("temproots").join(number);
    let file = match File::open(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        // Another user's: unknown here; a collection can tell.
        Err(error) if error.kind() == ErrorKind::PermissionDenied => return Ok(true),
        file => file.map_err(|error| LocalStoreError::io("open", &path, error))?,
    };
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared) {
        Ok(()) => Ok(false),
        Err(Errno::WOULDBLOCK) => Ok(true),
        Err(error) => Err(LocalStoreError::io("lock", &path, error)),
    }
}

/// The roots in a file's contents. An entry without a final NUL is still being written.
pub(in crate::local) fn parse(contents: &[u8]) -> impl Iterator<Item = &std::ffi::OsStr> {
    let complete = contents.iter().rposition(|byte| *byte == 0).unwrap_or(0);
    let texts = contents.get(..complete).unwrap_or_default().split(|byte| *byte == 0);
    texts.map(std::ffi::OsStr::from_bytes)
}
