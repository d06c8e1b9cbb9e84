//! A path that is being added to the store.

use std::ffi::{CString, OsStr, OsString};
use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicU64, Ordering};

use narval_nix::{NarHash, PathInfo, Sha256Hasher, StorePath};
use rustix::fs::RenameFlags;
use rustix::io::Errno;

use super::LocalStore;
use super::error::LocalStoreError;
use super::identity::Identity;
use super::path_locks::PathLock;
use super::roots::temporary_roots::is_owned;
use crate::hashes::hash_of;
use crate::nar::NarReader;
use crate::remove::{NotRemoved, list, remove_deep_leftovers, remove_tree};
use crate::unpack::{Unpack, Unpacked};

/// The infix of temporary names, after the hash part and before the number of the owner's temporary roots and a counter.
/// A temporary name is deliberately a valid store path name: the temporary root that protects a hash part from
/// collection then protects this name as well, from every version of Nix.
const TEMPORARY: &str = "narval-tmp-";

/// What must be done for a path.
#[derive(Debug)]
pub enum Prepared<'a> {
    /// Nothing: it is valid.
    Valid,
    /// It is on disk, complete and with the right hash, but not valid yet: register it.
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
    /// Whether it replaces a damaged path.
    repair: bool,
    /// Registered at once, under the same lock.
    register: Option<PathInfo>,
    /// Released last: nobody else may see a partial path.
    _lock: PathLock,
}

/// The state on disk of a path that is to become valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OnDisk {
    /// Nothing is there.
    Missing,
    /// Something else.
    Other,
    /// The right contents.
    Right,
}

impl LocalStore {
    /// Determines what must be done for a path, after waiting for other processes that write it. The path is protected
    /// from garbage collection from now on.
    ///
    /// # Errors
    /// [`LocalStoreError`] if the store cannot be read or written.
    pub fn prepare(&self, info: &PathInfo) -> Result<Prepared<'_>, LocalStoreError> {
        self.prepare_with(info, false)
    }

    /// Like [`LocalStore::prepare`], for a path whose references are all valid: it is registered as soon as it is
    /// complete, under the same lock. If it is already complete on disk, it is valid when this returns.
    ///
    /// # Errors
    /// As [`LocalStore::prepare`] and [`LocalStore::register`].
    pub fn prepare_to_register(&self, info: &PathInfo) -> Result<Prepared<'_>, LocalStoreError> {
        self.prepare_with(info, true)
    }

    fn prepare_with(&self, info: &PathInfo, register: bool) -> Result<Prepared<'_>, LocalStoreError> {
        self.keep(&info.path)?;
        if self.reader.is_valid(&info.path)? {
            return Ok(Prepared::Valid);
        }
        let lock = self.lock(&info.path)?;
        // Another process may have registered it while we waited.
        if self.reader.is_valid(&info.path)? {
            return Ok(Prepared::Valid);
        }
        if self.look_at(info)? == OnDisk::Right {
            if register {
                self.register_locked(std::slice::from_ref(info))?;
                return Ok(Prepared::Valid);
            }
            return Ok(Prepared::Present);
        }
        self.remove(OsStr::new(info.path.base_name())).map_err(|(_, error)| error)?;
        let mut incoming = self.begin(info, lock, false)?;
        incoming.register = register.then(|| info.clone());
        Ok(Prepared::Missing(Box::new(incoming)))
    }

    /// Like [`LocalStore::prepare`], for a valid path that is damaged: the commit replaces it atomically.
    ///
    /// # Errors
    /// As [`LocalStore::prepare`].
    pub fn prepare_repair(&self, info: &PathInfo) -> Result<Incoming<'_>, LocalStoreError> {
        self.keep(&info.path)?;
        let lock = self.lock(&info.path)?;
        self.begin(info, lock, true)
    }

    fn begin(&self, info: &PathInfo, lock: PathLock, repair: bool) -> Result<Incoming<'_>, LocalStoreError> {
        let temporary = temporary_name(&info.path, self.roots.number()?);
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
            register: None,
            _lock: lock,
        })
    }

    /// The state on disk of a path that is not valid. The caller holds its lock. A path that was complete before and
    /// has not changed since is not read again.
    pub(super) fn look_at(&self, info: &PathInfo) -> Result<OnDisk, LocalStoreError> {
        let path = self.real_path(&info.path);
        let identity = match Identity::of(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(OnDisk::Missing),
            identity => identity.map_err(|error| LocalStoreError::io("read", &path, error))?,
        };
        if self.complete.lock().get(&info.path) == Some(&(identity, info.nar_hash)) {
            return Ok(OnDisk::Right);
        }
        if !self.is_complete(info)? {
            return Ok(OnDisk::Other);
        }
        self.complete.lock().insert(info.path.clone(), (identity, info.nar_hash));
        Ok(OnDisk::Right)
    }

    /// Whether a path that is not valid is complete on disk: a process unpacked it and was killed before registering
    /// it. It is hashed again, because other processes write there, too, and files may be lost in a power failure.
    fn is_complete(&self, info: &PathInfo) -> Result<bool, LocalStoreError> {
        let path = self.real_path(&info.path);
        match std::fs::symlink_metadata(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(LocalStoreError::io("read", &path, error)),
            // The leftovers of an unfinished build are not canonical.
            Ok(found) if found.mtime() != 1 || (!found.is_symlink() && found.mode() & 0o222 != 0) => return Ok(false),
            Ok(_) => {}
        }
        // Contents that cannot be a NAR are not this path's, and are removed.
        let hash = NarReader::open(&path).ok().and_then(|mut nar| hash_of(&mut nar).ok());
        Ok(hash == Some(info.nar_hash))
    }

    /// Removes the temporary files of processes that have ended.
    ///
    /// # Errors
    /// If the store directory cannot be read or written.
    pub fn remove_leftovers(&self) -> Result<(), LocalStoreError> {
        let fail = |error| LocalStoreError::io("list", &self.config.real_store_dir, error);
        for (name, _) in list(self.directory.as_fd()).map_err(fail)? {
            let Some(owner) = name.to_str().ok().and_then(owner_of_temporary) else { continue };
            if !is_owned(&self.config.state_dir, owner)? {
                self.remove(OsStr::from_bytes(name.to_bytes())).map_err(|(_, error)| error)?;
            }
        }
        self.remove_deep_leftovers().map(drop).map_err(|(_, error)| error)
    }

    /// Finishes removals that were interrupted when their processes ended. Returns the number of bytes freed, with an
    /// error as well.
    pub(super) fn remove_deep_leftovers(&self) -> Result<u64, (u64, LocalStoreError)> {
        let fail = |error| (0, LocalStoreError::io("clear up", &self.config.real_store_dir, error));
        remove_deep_leftovers(self.directory.as_fd()).map_err(fail)
    }

    /// Removes a file or tree from the store directory, or as much of it as possible. Returns the number of bytes freed,
    /// with an error as well.
    pub(super) fn remove(&self, name: &OsStr) -> Result<u64, (u64, LocalStoreError)> {
        // A name in a directory has no NUL.
        let name = CString::new(name.as_bytes()).unwrap_or_default();
        let fail = |left: NotRemoved| {
            (left.freed, LocalStoreError::io("remove", &self.config.real_store_dir.join(left.path), left.errno))
        };
        remove_tree(self.directory.as_fd(), &name).map_err(fail)
    }
}

/// `<hash part>-narval-tmp-<owner>-<number>`, unique among all threads and living processes.
fn temporary_name(path: &StorePath, owner: u64) -> OsString {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    // With the whole name it would exceed the maximum length.
    format!("{}-{TEMPORARY}{owner}-{}", path.hash_part(), NUMBER.fetch_add(1, Ordering::Relaxed)).into()
}

/// The number of the temporary roots file that a temporary name belongs to.
fn owner_of_temporary(name: &str) -> Option<&str> {
    let path = StorePath::parse(name).ok()?;
    let owner = path.name().strip_prefix(TEMPORARY)?.split('-').next()?.len();
    let start = name.len() - path.name().len() + TEMPORARY.len();
    name.get(start..start + owner).filter(|owner| owner.bytes().all(|byte| byte.is_ascii_digit()))
}

impl Incoming<'_> {
    /// The path.
    pub fn path(&self) -> &StorePath {
        &self.path
    }

    /// Hashes and unpacks the next bytes of the NAR, in pieces of any size.
    ///
    /// # Errors
    /// [`LocalStoreError::Unpack`] if the NAR is invalid or the disk is full.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), LocalStoreError> {
        if let Some(hasher) = &mut self.hasher {
            hasher.update(bytes);
        }
        self.unpack(bytes)
    }

    /// Like [`Incoming::write`] without hashing, for callers that hash on another thread and then call
    /// [`Incoming::commit_hashed`].
    ///
    /// # Errors
    /// See [`Incoming::write`].
    pub fn write_unhashed(&mut self, bytes: &[u8]) -> Result<(), LocalStoreError> {
        self.hasher = None;
        self.unpack(bytes)
    }

    fn unpack(&mut self, bytes: &[u8]) -> Result<(), LocalStoreError> {
        let Some(unpack) = &mut self.unpack else { return Ok(()) };
        unpack.write(bytes).map_err(|source| LocalStoreError::Unpack { path: self.path.clone(), source })
    }

    /// Checks size and hash, and renames the path to its final name. It is not valid until [`LocalStore::register`],
    /// unless it was prepared by [`LocalStore::prepare_to_register`].
    ///
    /// # Errors
    /// [`LocalStoreError::Hash`], or the NAR is incomplete. Nothing is left in that case.
    pub fn commit(mut self) -> Result<Unpacked, LocalStoreError> {
        let found = self.hasher.take().unwrap_or_default().finish();
        self.commit_hashed(found)
    }

    /// Like [`Incoming::commit`], with the hash of the bytes given to [`Incoming::write_unhashed`].
    ///
    /// # Errors
    /// See [`Incoming::commit`].
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
        let path = self.store.real_path(&self.path);
        self.rename().map_err(|error| LocalStoreError::io("create", &path, error))?;
        let identity = Identity::of(&path).map_err(|error| LocalStoreError::io("read", &path, error))?;
        self.store.complete.lock().insert(self.path.clone(), (identity, self.nar_hash));
        if let Some(info) = &self.register {
            self.store.register_locked(std::slice::from_ref(info))?;
        }
        Ok(unpacked)
    }

    fn rename(&self) -> Result<(), Errno> {
        let directory = self.store.directory.as_fd();
        let (from, to) = (&self.temporary, self.path.base_name());
        if self.repair {
            // The damaged path then has the temporary name, and is removed with it.
            match rustix::fs::renameat_with(directory, from, directory, to, RenameFlags::EXCHANGE) {
                Err(Errno::NOENT) => {}
                renamed => return renamed,
            }
        }
        match rustix::fs::renameat_with(directory, from, directory, to, RenameFlags::NOREPLACE) {
            // Not every file system supports RENAME_NOREPLACE; we hold the lock, and have removed what was there.
            Err(Errno::INVAL | Errno::NOSYS) => rustix::fs::renameat(directory, from, directory, to),
            renamed => renamed,
        }
    }
}

impl Drop for Incoming<'_> {
    fn drop(&mut self) {
        // After a commit there is nothing under this name. `remove_leftovers` finds what cannot be removed now.
        remove_tree(self.store.directory.as_fd(), &self.temporary).ok();
    }
}

#[cfg(test)]
mod tests {
    use super::{owner_of_temporary, temporary_name};
    use narval_nix::StorePath;

    #[test]
    fn temporary_names_say_whose_they_are() {
        let path = StorePath::parse("00bgd045z0d4icpbc2yyz4gx48ak44la-hello-1.0").unwrap();
        let name = temporary_name(&path, 5_000_000).into_string().unwrap();
        assert_eq!(owner_of_temporary(&name), Some("5000000"));
        assert_eq!(StorePath::parse(&name).unwrap().hash_part(), path.hash_part());
        assert_eq!(owner_of_temporary("00bgd045z0d4icpbc2yyz4gx48ak44la-narval-tmp-../x-1"), None);
        assert_eq!(owner_of_temporary("00bgd045z0d4icpbc2yyz4gx48ak44la-narval-tmp-a-1"), None);
        assert_eq!(owner_of_temporary("00bgd045z0d4icpbc2yyz4gx48ak44la-123-4"), None);
    }
}
