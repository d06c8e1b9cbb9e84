//! One path on its way into the store.

use std::ffi::{CString, OsStr, OsString};
use std::io::{ErrorKind, Read};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use narval_nix::{NarHash, PathInfo, Sha256Hasher, StorePath};
use rustix::fs::RenameFlags;
use rustix::io::Errno;

use super::temporary_roots::is_owned;
use super::{LocalStore, LocalStoreError, PathLock};
use crate::nar::NarReader;
use crate::remove::{list, remove_deep_leftovers, remove_tree};
use crate::unpack::{Unpack, Unpacked};

/// What the names of paths that are being unpacked have after their hash part; then come the number of the owner's temporary
/// roots, and one of its own. It is the name of a store path on purpose: the temporary root that keeps a hash part from
/// being collected keeps this name as well, from Nix of every version.
const TEMPORARY: &str = "narval-tmp-";

/// What temporary names of Narval 0.1 began with.
const TEMPORARY_BEFORE: &str = ".tmp-";

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
    /// Made valid at once, under the same lock.
    register: Option<PathInfo>,
    /// Released last: nobody else may see the path half there.
    _lock: PathLock,
}

/// What tells a path in the store directory from another one that has taken its place: replacing it, or only making it
/// writable, changes the time of the last change of state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Identity {
    device: u64,
    inode: u64,
    changed: (i64, i64),
}

impl Identity {
    fn of(path: &Path) -> std::io::Result<Self> {
        let found = std::fs::symlink_metadata(path)?;
        let changed = (found.ctime(), found.ctime_nsec());
        Ok(Self { device: found.dev(), inode: found.ino(), changed })
    }
}

/// How a path is on the disk that is to become valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OnDisk {
    /// Nothing is there.
    Missing,
    /// Something else.
    Other,
    /// What it should be.
    Right,
}

impl LocalStore {
    /// Determines what is to be done for a path, and waits for other processes that write it. From now on the path is
    /// protected from garbage collection.
    ///
    /// # Errors
    /// [`LocalStoreError`] when the store cannot be read or written.
    pub fn prepare(&self, info: &PathInfo) -> Result<Prepared<'_>, LocalStoreError> {
        self.prepare_with(info, false)
    }

    /// Like [`LocalStore::prepare`], for a path whose references are all valid: it becomes valid as soon as it is complete,
    /// under the same lock. If it is complete on disk already, it is valid when this returns.
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
        // Another process may have made it valid while we waited.
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
        self.remove(OsStr::new(info.path.base_name()))?;
        let mut incoming = self.begin(info, lock, false)?;
        incoming.register = register.then(|| info.clone());
        Ok(Prepared::Missing(Box::new(incoming)))
    }

    /// Like [`LocalStore::prepare`], for a valid path that is damaged: the commit exchanges it atomically.
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

    /// How a path that is not valid is on the disk. The caller holds its lock. What was seen complete before and has not been
    /// touched since is not read again.
    pub(super) fn look_at(&self, info: &PathInfo) -> Result<OnDisk, LocalStoreError> {
        let path = self.real_path(&info.path);
        let identity = match Identity::of(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(OnDisk::Missing),
            identity => identity.map_err(|error| LocalStoreError::io("read", &path, error))?,
        };
        if self.complete().get(&info.path) == Some(&(identity, info.nar_hash)) {
            return Ok(OnDisk::Right);
        }
        if !self.is_complete(info)? {
            return Ok(OnDisk::Other);
        }
        self.complete().insert(info.path.clone(), (identity, info.nar_hash));
        Ok(OnDisk::Right)
    }

    /// Whether a path that is not valid is on the disk as it should be: unpacked by someone who was killed before it was
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

    /// Removes the temporary files of processes that have ended.
    ///
    /// # Errors
    /// If the store directory cannot be read or written.
    pub fn remove_leftovers(&self) -> Result<(), LocalStoreError> {
        let fail = |error| LocalStoreError::io("list", &self.config.real_store_dir, error);
        for (name, _) in list(self.directory.as_fd()).map_err(fail)? {
            let Some(owner) = name.to_str().ok().and_then(owner_of_temporary) else { continue };
            if !is_owned(&self.config.state_dir, owner)? {
                self.remove(OsStr::from_bytes(name.to_bytes()))?;
            }
        }
        self.remove_deep_leftovers().map(drop)
    }

    /// Removes what is left of trees that were being removed by processes that are gone; bytes freed.
    pub(super) fn remove_deep_leftovers(&self) -> Result<u64, LocalStoreError> {
        let fail = |error| LocalStoreError::io("clear up", &self.config.real_store_dir, error);
        remove_deep_leftovers(self.directory.as_fd()).map_err(fail)
    }

    /// Removes a file or tree from the store directory; bytes freed.
    pub(super) fn remove(&self, name: &OsStr) -> Result<u64, LocalStoreError> {
        let fail = |error: Errno| LocalStoreError::io("remove", &self.config.real_store_dir.join(name), error);
        let name = CString::new(name.as_bytes()).map_err(|_| fail(Errno::INVAL))?;
        remove_tree(self.directory.as_fd(), &name).map_err(fail)
    }
}

/// `<hash part>-narval-tmp-<owner>-<number>`: no other thread or living process has it.
fn temporary_name(path: &StorePath, owner: u64) -> OsString {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    // With all of the name it would be longer than names may be.
    format!("{}-{TEMPORARY}{owner}-{}", path.hash_part(), NUMBER.fetch_add(1, Ordering::Relaxed)).into()
}

/// The number of the temporary roots that a temporary name belongs to.
fn owner_of_temporary(name: &str) -> Option<&str> {
    let path = StorePath::parse(name).ok()?;
    let owner = path.name().strip_prefix(TEMPORARY)?.split('-').next()?.len();
    let start = name.len() - path.name().len() + TEMPORARY.len();
    name.get(start..start + owner).filter(|owner| owner.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Whether this is a temporary name of Narval 0.1. Its owner held `gc.lock` as long as it lived, so that it is gone for
/// whoever holds that lock alone.
pub(super) fn is_temporary_of_before(name: &str) -> bool {
    let Some((of, rest)) = name.strip_prefix(TEMPORARY_BEFORE).and_then(|rest| rest.split_once('-')) else {
        return false;
    };
    let numbers = rest.split('-').all(|number| number.bytes().all(|byte| byte.is_ascii_digit()));
    numbers && (of == "deep" || narval_nix::HashPart::parse(of.as_bytes()).is_ok())
}

impl Incoming<'_> {
    /// The path.
    pub fn path(&self) -> &StorePath {
        &self.path
    }

    /// Hashes and unpacks the next bytes of the NAR, in pieces of any size.
    ///
    /// # Errors
    /// [`LocalStoreError::Unpack`] when the NAR breaks a rule or the disk is full.
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
    /// As [`Incoming::write`].
    pub fn write_unhashed(&mut self, bytes: &[u8]) -> Result<(), LocalStoreError> {
        self.hasher = None;
        self.unpack(bytes)
    }

    fn unpack(&mut self, bytes: &[u8]) -> Result<(), LocalStoreError> {
        let Some(unpack) = &mut self.unpack else { return Ok(()) };
        unpack.write(bytes).map_err(|source| LocalStoreError::Unpack { path: self.path.clone(), source })
    }

    /// Checks size and hash, and gives the path its name. It is not valid yet ([`LocalStore::register`]), unless it was
    /// prepared by [`LocalStore::prepare_to_register`].
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
        let path = self.store.real_path(&self.path);
        self.rename().map_err(|error| LocalStoreError::io("create", &path, error))?;
        let identity = Identity::of(&path).map_err(|error| LocalStoreError::io("read", &path, error))?;
        self.store.complete().insert(self.path.clone(), (identity, self.nar_hash));
        if let Some(info) = &self.register {
            self.store.register_locked(std::slice::from_ref(info))?;
        }
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
    use super::{is_temporary_of_before, owner_of_temporary, temporary_name};
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
        assert!(is_temporary_of_before(".tmp-00bgd045z0d4icpbc2yyz4gx48ak44la-123-4"));
        assert!(is_temporary_of_before(".tmp-deep-123-4") && !is_temporary_of_before(".tmp-link-123-4"));
    }
}
