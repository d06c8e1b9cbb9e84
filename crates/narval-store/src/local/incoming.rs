//! One path on its way into the store.

use std::ffi::{CString, OsStr, OsString};
use std::io::{ErrorKind, Read};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;

use narval_nix::{NarHash, PathInfo, Sha256Hasher, StorePath};
use rustix::fs::RenameFlags;
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};

use super::{LocalStore, LocalStoreError, PathLock, unique_suffix};
use crate::nar::NarReader;
use crate::remove::{list, remove_tree};
use crate::unpack::{Unpack, Unpacked};

/// What temporary names in the store directory begin with; then come hash part, process and number.
pub(super) const TEMPORARY: &str = ".tmp-";

/// Bytes hashed at once.
const BUFFER_LEN: usize = 256 * 1024;

/// What there is to do for a path.
#[derive(Debug)]
pub enum Prepared<'a> {
    /// Nothing: it is valid.
    Valid,
    /// It is on the disk, complete and with the right hash, but not valid yet: register it.
    Present,
    /// Its NAR must be written.
    Missing(Box<Incoming<'a>>),
}

/// A path that is being unpacked under a temporary name. Dropped without [`Incoming::commit`], it is removed.
#[derive(Debug)]
pub struct Incoming<'a> {
    store: &'a LocalStore,
    path: StorePath,
    nar_hash: NarHash,
    temporary: CString,
    unpack: Option<Unpack>,
    hasher: Option<Sha256Hasher>,
    /// Whether a broken path is there that is to be exchanged.
    repair: bool,
    /// Released last: nobody else may see the path half there.
    _lock: PathLock,
}

impl LocalStore {
    /// Finds out what there is to do for a path, and waits for others that are at it.
    ///
    /// # Errors
    /// [`LocalStoreError`] when the store can't be read or written.
    pub fn prepare(&self, info: &PathInfo) -> Result<Prepared<'_>, LocalStoreError> {
        if self.reader.is_valid(&info.path)? {
            return Ok(Prepared::Valid);
        }
        let lock = self.lock(&info.path)?;
        // Another process may have made it valid while we waited.
        if self.reader.is_valid(&info.path)? {
            return Ok(Prepared::Valid);
        }
        if self.is_complete(info)? {
            return Ok(Prepared::Present);
        }
        self.remove(OsStr::new(info.path.base_name()))?;
        self.begin(info, lock, false).map(|incoming| Prepared::Missing(Box::new(incoming)))
    }

    /// As [`LocalStore::prepare`] for a path that is there, valid and broken: committing exchanges it in one step.
    ///
    /// # Errors
    /// As [`LocalStore::prepare`].
    pub fn prepare_repair(&self, info: &PathInfo) -> Result<Incoming<'_>, LocalStoreError> {
        let lock = self.lock(&info.path)?;
        self.begin(info, lock, true)
    }

    fn begin(&self, info: &PathInfo, lock: PathLock, repair: bool) -> Result<Incoming<'_>, LocalStoreError> {
        let temporary = temporary_name(&info.path);
        let unpack = Unpack::begin(self.directory.as_fd(), &temporary, Some(info.nar_size))
            .map_err(|source| LocalStoreError::Unpack { path: info.path.clone(), source })?;
        // The name has no NUL: a base name is ASCII.
        let temporary = CString::new(temporary.as_bytes()).unwrap_or_default();
        Ok(Incoming {
            store: self,
            path: info.path.clone(),
            nar_hash: info.nar_hash,
            temporary,
            unpack: Some(unpack),
            hasher: Some(Sha256Hasher::new()),
            repair,
            _lock: lock,
        })
    }

    /// Whether a path that isn't valid is on the disk as it should be: unpacked by someone who was killed before it was
    /// registered. Its bytes are hashed again, since others write there too, and files may be lost in a power cut.
    fn is_complete(&self, info: &PathInfo) -> Result<bool, LocalStoreError> {
        let path = self.real_path(&info.path);
        match std::fs::symlink_metadata(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(LocalStoreError::io("read", &path, error)),
            // What an unfinished build left is not canonical.
            Ok(found) if found.mtime() != 1 || (!found.is_symlink() && found.mode() & 0o222 != 0) => return Ok(false),
            Ok(_) => {}
        }
        // What can't be a NAR is not this path's; it is removed.
        let Ok(mut nar) = NarReader::open(&path) else { return Ok(false) };
        let mut hasher = Sha256Hasher::new();
        let mut buffer = vec![0; BUFFER_LEN];
        loop {
            match nar.read(&mut buffer) {
                Ok(0) => return Ok(hasher.finish() == info.nar_hash),
                Ok(read) => hasher.update(buffer.get(..read).unwrap_or_default()),
                Err(_) => return Ok(false),
            }
        }
    }

    /// Removes what temporary names are left of processes that are gone. Call it before unpacking, not while.
    ///
    /// # Errors
    /// When the store directory can't be read or written.
    pub fn remove_leftovers(&self) -> Result<(), LocalStoreError> {
        let fail = |error| LocalStoreError::io("list", &self.config.real_store_dir, error);
        for (name, _) in list(self.directory.as_fd()).map_err(fail)? {
            let Some(owner) = name.to_str().ok().and_then(owner_of_temporary) else { continue };
            if owner != std::process::id() && !is_alive(owner) {
                self.remove(OsStr::from_bytes(name.to_bytes()))?;
            }
        }
        Ok(())
    }

    /// Removes a file or tree from the store directory; bytes freed.
    pub(super) fn remove(&self, name: &OsStr) -> Result<u64, LocalStoreError> {
        let fail = |error: Errno| LocalStoreError::io("remove", &self.config.real_store_dir.join(name), error);
        let name = CString::new(name.as_bytes()).map_err(|_| fail(Errno::INVAL))?;
        remove_tree(self.directory.as_fd(), &name).map_err(fail)
    }
}

/// `.tmp-<hash part>-<process>-<number>`: no other thread or living process has it.
fn temporary_name(path: &StorePath) -> OsString {
    // With all of the name it would be longer than names may be.
    format!("{TEMPORARY}{}-{}", path.hash_part(), unique_suffix()).into()
}

/// The process that a temporary name belongs to.
pub(super) fn owner_of_temporary(name: &str) -> Option<u32> {
    name.strip_prefix(TEMPORARY)?.split('-').nth(1)?.parse().ok()
}

/// Whether there is a process of this number, whoever's it is. `/proc` is not asked: an empty root has none, and every
/// other install's work would be taken for a dead one's.
pub(super) fn is_alive(process: u32) -> bool {
    let process = i32::try_from(process).ok().and_then(Pid::from_raw);
    process.is_some_and(|process| test_kill_process(process) != Err(Errno::SRCH))
}

impl Incoming<'_> {
    /// The path.
    pub fn path(&self) -> &StorePath {
        &self.path
    }

    /// Takes the next bytes of the NAR, in pieces of any size: hashes and unpacks them.
    ///
    /// # Errors
    /// [`LocalStoreError::Unpack`] when the NAR breaks a rule or the disk is full.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), LocalStoreError> {
        if let Some(hasher) = &mut self.hasher {
            hasher.update(bytes);
        }
        self.unpack(bytes)
    }

    /// As [`Incoming::write`] without hashing, for those who hash on another thread and then call
    /// [`Incoming::commit_hashed`].
    ///
    /// # Errors
    /// As [`Incoming::write`].
    pub fn write_unhashed(&mut self, bytes: &[u8]) -> Result<(), LocalStoreError> {
        self.hasher = None;
        self.unpack(bytes)
    }

    fn unpack(&mut self, bytes: &[u8]) -> Result<(), LocalStoreError> {
        let Some(unpack) = &mut self.unpack else { return Ok(()) };
        unpack.write(bytes).map_err(|source| LocalStoreError::Unpack { path: self.path.clone(), source })
    }

    /// Checks size and hash, and gives the path its name. It is not valid yet: [`LocalStore::register`].
    ///
    /// # Errors
    /// [`LocalStoreError::Hash`], or that the NAR is not complete; then nothing is left.
    pub fn commit(mut self) -> Result<Unpacked, LocalStoreError> {
        let found = self.hasher.take().unwrap_or_default().finish();
        self.commit_hashed(found)
    }

    /// As [`Incoming::commit`] with the hash of the bytes given to [`Incoming::write_unhashed`].
    ///
    /// # Errors
    /// As [`Incoming::commit`].
    pub fn commit_hashed(mut self, found: NarHash) -> Result<Unpacked, LocalStoreError> {
        let unpack_error = |source| LocalStoreError::Unpack { path: self.path.clone(), source };
        let unpacked = match self.unpack.take() {
            Some(unpack) => unpack.finish().map_err(unpack_error)?,
            None => Unpacked::default(),
        };
        if found != self.nar_hash {
            let (expected, found) = (Box::new(self.nar_hash), Box::new(found));
            return Err(LocalStoreError::Hash { path: self.path.clone(), expected, found });
        }
        self.rename().map_err(|error| LocalStoreError::io("create", &self.store.real_path(&self.path), error))?;
        Ok(unpacked)
    }

    fn rename(&self) -> Result<(), Errno> {
        let directory = self.store.directory.as_fd();
        let (from, to) = (&self.temporary, self.path.base_name());
        if self.repair {
            // What was broken has the temporary name then, and is removed with it.
            match rustix::fs::renameat_with(directory, from, directory, to, RenameFlags::EXCHANGE) {
                Err(Errno::NOENT) => {}
                renamed => return renamed,
            }
        }
        match rustix::fs::renameat_with(directory, from, directory, to, RenameFlags::NOREPLACE) {
            // Not every file system can refuse to replace; we hold the lock, and have removed what was there.
            Err(Errno::INVAL | Errno::NOSYS) => rustix::fs::renameat(directory, from, directory, to),
            renamed => renamed,
        }
    }
}

impl Drop for Incoming<'_> {
    fn drop(&mut self) {
        // After a commit there is nothing under this name. What can't be removed now is found by `remove_leftovers`.
        remove_tree(self.store.directory.as_fd(), &self.temporary).ok();
    }
}

#[cfg(test)]
mod tests {
    use super::{is_alive, owner_of_temporary};

    #[test]
    fn processes_live_until_they_are_waited_for() {
        assert!(is_alive(std::process::id()) && is_alive(1));
        let mut child = std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        let number = child.id();
        assert!(is_alive(number));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!is_alive(number) && !is_alive(0) && !is_alive(u32::MAX));
    }

    #[test]
    fn temporary_names_say_whose_they_are() {
        assert_eq!(owner_of_temporary(".tmp-00bgd045z0d4icpbc2yyz4gx48ak44la-123-4"), Some(123));
        assert_eq!(owner_of_temporary("00bgd045z0d4icpbc2yyz4gx48ak44la-123-4"), None);
    }
}
