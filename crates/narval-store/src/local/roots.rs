//! The roots of garbage collection: links, temporary roots, running programs.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use narval_nix::{Sha256, StorePath, nix32};
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags};

use super::{LocalStore, LocalStoreError, temporary_roots};
use crate::remove::remove_leftover_directories;
use crate::temporary::{TemporaryDirectory, has_name};

/// The maximum depth of directories below `gcroots`.
const DEPTH_MAX: usize = 64;

/// The maximum size of a file of temporary roots.
const TEMPORARY_ROOTS_LEN_MAX: u64 = 256 << 20;

/// The prefix of temporary directories in which links are created.
const TEMPORARY_LINK: &str = ".tmp-link-";

/// How often opening a file of temporary roots is retried while others replace it.
const ATTEMPTS_MAX: usize = 100;

/// A root and the path that it keeps.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Root {
    /// A link, a file of temporary roots, or a process (`/proc/<id>`).
    pub source: PathBuf,
    /// The path that it keeps, with its closure.
    pub path: StorePath,
}

impl LocalStore {
    /// All current roots: links below `gcroots` and `profiles`, temporary roots of other processes, running programs.
    /// Dangling links are removed from `gcroots/auto`.
    ///
    /// # Errors
    /// If a directory cannot be read; nothing must be collected then.
    pub fn roots(&self) -> Result<Vec<Root>, LocalStoreError> {
        for directory in ["gcroots", "gcroots/auto"] {
            match File::open(self.config.state_dir.join(directory)) {
                Ok(directory) => clear_up_links(directory.as_fd()),
                Err(error) => tracing::debug!("cannot remove leftovers from '{directory}': {error}"),
            }
        }
        let mut roots = Vec::new();
        // Temporary roots before links: a process creates its link before it drops its temporary roots. In the other
        // order, both could be missed if that happens in between.
        self.temporary_roots(&mut roots)?;
        for below in ["gcroots", "profiles"] {
            self.roots_below(&self.config.state_dir.join(below), 0, &mut roots)?;
        }
        self.process_roots(&mut roots);
        roots.sort();
        roots.dedup();
        Ok(roots)
    }

    /// Creates a symlink to a store path, anywhere on disk, that keeps the path alive. An existing symlink is replaced.
    ///
    /// # Errors
    /// If it cannot be created, or something else is in its place.
    pub fn add_root(&self, link: &Path, path: &StorePath) -> Result<(), LocalStoreError> {
        if fs::symlink_metadata(link).is_ok_and(|found| !found.is_symlink()) {
            return Err(LocalStoreError::io("replace", link, ErrorKind::AlreadyExists));
        }
        replace_link(link, self.full(path).as_ref())?;
        self.add_indirect_root(link)
    }

    /// Registers the symlink at this absolute path as a root: it keeps the store path that it points to alive.
    ///
    /// # Errors
    /// If it cannot be registered.
    pub fn add_indirect_root(&self, link: &Path) -> Result<(), LocalStoreError> {
        let link = std::path::absolute(link).map_err(|error| LocalStoreError::io("find", link, error))?;
        // The name only has to be unique; Nix uses 160 bits of a hash of the link's path, too.
        let hash = Sha256::of(link.as_os_str().as_bytes());
        let name = nix32::encode(hash.as_bytes().first_chunk::<20>().unwrap_or(&[0; 20]));
        replace_link(&self.config.state_dir.join("gcroots/auto").join(name), &link)
    }

    /// Like Nix's `LocalStore::findRoots`.
    fn roots_below(&self, path: &Path, depth: usize, roots: &mut Vec<Root>) -> Result<(), LocalStoreError> {
        let found = match fs::symlink_metadata(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            found => found.map_err(|error| LocalStoreError::io("read", path, error))?,
        };
        if found.is_dir() {
            if depth >= DEPTH_MAX {
                return Err(LocalStoreError::io("look for roots below", path, ErrorKind::InvalidInput));
            }
            for entry in fs::read_dir(path).map_err(|error| LocalStoreError::io("list", path, error))? {
                let entry = entry.map_err(|error| LocalStoreError::io("list", path, error))?;
                self.roots_below(&entry.path(), depth + 1, roots)?;
            }
        } else if found.is_symlink() {
            let target = read_link(path)?;
            if let Some(kept) = self.store_path_of(target.as_os_str()) {
                roots.push(Root { source: path.to_owned(), path: kept });
            } else {
                self.indirect_root(path, &target, roots)?;
            }
        } else if found.is_file()
            && let Some(kept) = path.file_name().and_then(OsStr::to_str).and_then(|name| StorePath::parse(name).ok())
        {
            roots.push(Root { source: path.to_owned(), path: kept });
        }
        Ok(())
    }

    /// A link to a link elsewhere, created by `nix-build` and similar.
    fn indirect_root(&self, path: &Path, target: &Path, roots: &mut Vec<Root>) -> Result<(), LocalStoreError> {
        let target = path.parent().unwrap_or(path).join(target);
        match fs::symlink_metadata(&target) {
            Ok(found) if found.is_symlink() => {
                let to = read_link(&target)?;
                let to = target.parent().unwrap_or(&target).join(to);
                if let Some(kept) = self.store_path_of(to.as_os_str()) {
                    roots.push(Root { source: target, path: kept });
                }
                Ok(())
            }
            Ok(_) => Ok(()),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                if path.starts_with(self.config.state_dir.join("gcroots/auto")) {
                    fs::remove_file(path).map_err(|error| LocalStoreError::io("remove", path, error))?;
                }
                Ok(())
            }
            // Another user's directory: its contents are unknown, so nothing must be collected.
            Err(error) => Err(LocalStoreError::io("read", &target, error)),
        }
    }

    /// `temproots/<process>`: store paths, each terminated by a NUL. A file that nobody has locked belongs to a process
    /// that has ended.
    fn temporary_roots(&self, roots: &mut Vec<Root>) -> Result<(), LocalStoreError> {
        let directory = self.config.state_dir.join("temproots");
        for entry in fs::read_dir(&directory).map_err(|error| LocalStoreError::io("list", &directory, error))? {
            let path = entry.map_err(|error| LocalStoreError::io("list", &directory, error))?.path();
            // Files such as `.keep`, which prevent a package manager from removing the folder (Nix skips these too).
            if path.file_name().is_some_and(|name| name.as_bytes().starts_with(b".")) {
                continue;
            }
            let fail = |error| LocalStoreError::io("read", &path, error);
            let Some(file) = owned_roots(&path).map_err(fail)? else { continue };
            let mut contents = Vec::new();
            std::io::Read::read_to_end(&mut std::io::Read::take(&file, TEMPORARY_ROOTS_LEN_MAX), &mut contents)
                .map_err(fail)?;
            for text in temporary_roots::parse(&contents) {
                if let Some(kept) = self.store_path_of(text) {
                    roots.push(Root { source: path.clone(), path: kept });
                }
            }
        }
        Ok(())
    }

    /// The store path that this path is, or is in, by its logical or its real location.
    pub(super) fn store_path_of(&self, path: &OsStr) -> Option<StorePath> {
        let bytes = path.as_bytes();
        [self.config.store_dir.as_str().as_bytes(), self.config.real_store_dir.as_os_str().as_bytes()]
            .into_iter()
            .find_map(|directory| {
                let below = bytes.strip_prefix(directory)?.strip_prefix(b"/")?;
                StorePath::parse_bytes(below.split(|byte| *byte == b'/').next()?).ok()
            })
    }
}

/// The file of temporary roots with this name, if its owner lives; otherwise removes it.
fn owned_roots(path: &Path) -> std::io::Result<Option<File>> {
    for _ in 0..ATTEMPTS_MAX {
        let file = match File::options().read(true).write(true).open(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        if rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Ok(Some(file));
        }
        // A new process with the same number removes the old file, and creates its own.
        if has_name(rustix::fs::CWD, path, &file)? {
            fs::remove_file(path)?;
            // Marks it as stale for a process that waits for this file, as Nix does.
            (&file).write_all(b"d")?;
            return Ok(None);
        }
    }
    Err(ErrorKind::ResourceBusy.into())
}

fn read_link(path: &Path) -> Result<PathBuf, LocalStoreError> {
    fs::read_link(path).map_err(|error| LocalStoreError::io("read", path, error))
}

/// Puts a link in place atomically, replacing another one.
fn replace_link(link: &Path, target: &Path) -> Result<(), LocalStoreError> {
    let replaced = match symlink(target, link) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => exchange_link(link, target),
        made => made,
    };
    replaced.map_err(|error| LocalStoreError::io("create", link, error))
}

/// A link cannot be locked, so a new one is created in a locked directory.
fn exchange_link(link: &Path, target: &Path) -> std::io::Result<()> {
    if fs::read_link(link).is_ok_and(|found| found == target) {
        return Ok(());
    }
    let name = link.file_name().ok_or(ErrorKind::InvalidInput)?;
    let parent = link.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let parent = rustix::fs::open(parent, flags, Mode::empty())?;
    clear_up_links(parent.as_fd());
    let temporary = TemporaryDirectory::create(parent.as_fd(), TEMPORARY_LINK)?;
    rustix::fs::symlinkat(target, temporary.handle(), c"link")?;
    let renamed = rustix::fs::renameat(temporary.handle(), c"link", &parent, name);
    if renamed.is_err() {
        // The other error is the one to report; the next call removes what is left.
        rustix::fs::unlinkat(temporary.handle(), c"link", AtFlags::empty()).ok();
    }
    Ok(renamed?)
}

/// Removes the temporary directories of processes that were killed while creating links.
fn clear_up_links(directory: BorrowedFd<'_>) {
    if let Err(error) = remove_leftover_directories(directory, TEMPORARY_LINK) {
        // For example a directory that is writable but not readable: leftovers there keep too much, never too little.
        tracing::debug!("cannot remove the leftovers of links: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::temporary::temporary_name;

    /// Any number of processes can replace links atomically at once (locks belong to an open file, so threads will do),
    /// and leftovers of killed ones are removed.
    #[test]
    fn links_are_exchanged_and_nothing_stays_behind() {
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("link");
        let left = dir.path().join(temporary_name(TEMPORARY_LINK));
        fs::create_dir(&left).unwrap();
        symlink("/never/named", left.join("link")).unwrap();
        replace_link(&link, Path::new("/first")).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..3 {
                let link = &link;
                scope.spawn(move || {
                    for number in 0..100 {
                        replace_link(link, Path::new(&format!("/{thread}-{number}"))).unwrap();
                        assert!(fs::read_link(link).unwrap().to_str().unwrap().contains('-'));
                    }
                });
            }
        });
        let names: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["link"]);
        let file = dir.path().join("no link");
        fs::create_dir(&file).unwrap();
        assert!(replace_link(&file, Path::new("/first")).is_err());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
    }

    /// A link whose creator was killed keeps nothing from the next collection on; one that is being created stays.
    #[test]
    fn links_in_the_making() {
        let dir = tempfile::tempdir().unwrap();
        let parent = File::open(dir.path()).unwrap();
        let living = TemporaryDirectory::create(parent.as_fd(), TEMPORARY_LINK).unwrap();
        fs::create_dir(dir.path().join(temporary_name(TEMPORARY_LINK))).unwrap();
        clear_up_links(parent.as_fd());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        drop(living);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
