//! The roots of garbage collection: links, temporary roots, running programs.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use narval_nix::{Sha256, StorePath, nix32};
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags};

use super::process_roots::process_roots;
use super::root::Root;
use super::temporary_roots;
use crate::config::StoreConfig;
use crate::local::LocalStore;
use crate::local::error::LocalStoreError;
use crate::remove::remove_leftover_directories;
use narval_files::{TemporaryDirectory, has_name};

/// The maximum depth of directories below `gcroots`.
const DEPTH_MAX: usize = 64;

/// The maximum size of a file of temporary roots.
const TEMPORARY_ROOTS_LEN_MAX: u64 = 256 << 20;

/// The prefix of temporary directories in which links are created.
const TEMPORARY_LINK: &str = ".tmp-link-";

/// How long an owner of Nix 2.3 can take to write a root. A newer one has its file locked like that as long as it lives,
/// so this much is waited in every collection beside one.
const OWNER_PATIENCE: Duration = Duration::from_millis(100);

/// The polling interval meanwhile.
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(5);

/// How often a file must be found unlocked until it counts as one of a process that has ended, and the time between.
const STALE_ATTEMPTS: usize = 3;
const STALE_INTERVAL: Duration = Duration::from_millis(2);

/// How often opening a file of temporary roots is retried while others replace it.
const ATTEMPTS_MAX: usize = 100;

/// The current roots of a store.
#[derive(Debug, Default)]
pub(in crate::local) struct FoundRoots {
    /// Every root, sorted.
    pub(in crate::local) roots: Vec<Root>,
    /// Files of temporary roots of Nix 2.3, locked so that their owners add none.
    pub(in crate::local) held: Vec<File>,
}

/// Looks for the roots of a store.
#[derive(Debug, Clone, Copy)]
pub(in crate::local) struct RootFinder<'a> {
    pub(in crate::local) config: &'a StoreConfig,
    /// Whether it is for a collection: stale roots and leftovers are removed, and processes that cannot be told to wait
    /// otherwise are held. If not, nothing is changed.
    pub(in crate::local) is_collecting: bool,
}

impl LocalStore {
    /// All current roots: links below `gcroots` and `profiles`, temporary roots of other processes, running programs.
    ///
    /// # Errors
    /// If a directory cannot be read; nothing must be collected then.
    pub fn roots(&self) -> Result<Vec<Root>, LocalStoreError> {
        let finder = RootFinder { config: &self.config, is_collecting: false };
        finder.find().map(|found| found.roots)
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
}

impl RootFinder<'_> {
    /// All current roots.
    ///
    /// # Errors
    /// If one of them cannot be read; nothing must be collected then.
    pub(in crate::local) fn find(&self) -> Result<FoundRoots, LocalStoreError> {
        if self.is_collecting {
            for directory in ["gcroots", "gcroots/auto"] {
                match File::open(self.config.state_dir.join(directory)) {
                    Ok(directory) => clear_up_links(directory.as_fd()),
                    Err(error) => tracing::debug!("cannot remove leftovers from '{directory}': {error}"),
                }
            }
        }
        let mut found = FoundRoots::default();
        // Temporary roots before links: a process creates its link before it drops its temporary roots. In the other
        // order, both could be missed if that happens in between.
        self.temporary_roots(&mut found)?;
        for below in ["gcroots", "profiles"] {
            self.roots_below(&self.config.state_dir.join(below), 0, &mut found.roots)?;
        }
        process_roots(self.config, &mut found.roots);
        found.roots.sort();
        found.roots.dedup();
        Ok(found)
    }

    /// Like Nix's `LocalStore::findRoots`.
    fn roots_below(&self, path: &Path, depth: usize, roots: &mut Vec<Root>) -> Result<(), LocalStoreError> {
        let found = match fs::symlink_metadata(path) {
            Err(error) if is_absent(&error) => return Ok(()),
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
            if let Some(kept) = self.config.store_path_of(target.as_os_str()) {
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
        let to = match fs::symlink_metadata(&target) {
            Ok(found) if found.is_symlink() => fs::read_link(&target),
            Ok(_) => return Ok(()),
            Err(error) => Err(error),
        };
        match to {
            Ok(to) => {
                let to = target.parent().unwrap_or(&target).join(to);
                if let Some(kept) = self.config.store_path_of(to.as_os_str()) {
                    roots.push(Root { source: target, path: kept });
                }
                Ok(())
            }
            Err(error) if is_absent(&error) => {
                if self.is_collecting && path.starts_with(self.config.state_dir.join("gcroots/auto")) {
                    fs::remove_file(path).map_err(|error| LocalStoreError::io("remove", path, error))?;
                }
                Ok(())
            }
            // Another user's directory: its contents are unknown, so nothing must be collected.
            Err(source) => Err(LocalStoreError::Root { link: path.to_owned(), target, source }),
        }
    }

    /// `temproots/<process>`: store paths, each terminated by a NUL. A file that nobody has locked belongs to a process
    /// that has ended.
    ///
    /// Since Nix 2.5, and in Narval, its owner locks it exclusively as long as it lives, and asks the collection before
    /// it adds a root. In Nix 2.3 and 2.4, the owner locks it shared, and exclusively while it adds a root: it waits
    /// for a collector that has locked it shared.
    fn temporary_roots(&self, found: &mut FoundRoots) -> Result<(), LocalStoreError> {
        let directory = self.config.state_dir.join("temproots");
        let fail = |error| LocalStoreError::io("list", &directory, error);
        let mut left = Vec::new();
        let entries = match fs::read_dir(&directory) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            entries => entries.map_err(fail)?,
        };
        for entry in entries {
            let path = entry.map_err(fail)?.path();
            // Files such as `.keep`, which prevent a package manager from removing the folder (Nix skips these too).
            if !path.file_name().is_some_and(|name| name.as_bytes().starts_with(b".")) {
                left.push(path);
            }
        }
        let begun = Instant::now();
        while !left.is_empty() {
            let is_last = !self.is_collecting || begun.elapsed() >= OWNER_PATIENCE;
            let mut busy = Vec::new();
            for path in left {
                let fail = |error| LocalStoreError::io("read", &path, error);
                match self.owned_roots(&path).map_err(fail)? {
                    Owned::Nobodys => {}
                    Owned::Exclusively(_) if !is_last => busy.push(path),
                    Owned::Exclusively(file) => self.read_temporary_roots(&path, &file, &mut found.roots)?,
                    Owned::Shared(file) => {
                        self.read_temporary_roots(&path, &file, &mut found.roots)?;
                        found.held.push(file);
                    }
                }
            }
            left = busy;
            if !left.is_empty() {
                std::thread::sleep(LOOK_AGAIN_AFTER);
            }
        }
        Ok(())
    }

    fn read_temporary_roots(&self, path: &Path, file: &File, roots: &mut Vec<Root>) -> Result<(), LocalStoreError> {
        let mut contents = Vec::new();
        std::io::Read::read_to_end(&mut std::io::Read::take(file, TEMPORARY_ROOTS_LEN_MAX), &mut contents)
            .map_err(|error| LocalStoreError::io("read", path, error))?;
        let kept = temporary_roots::parse(&contents).filter_map(|text| self.config.store_path_of(text));
        roots.extend(kept.map(|kept| Root { source: path.to_owned(), path: kept }));
        Ok(())
    }

    /// The file of temporary roots with this name. Removes it if nobody owns it.
    fn owned_roots(&self, path: &Path) -> std::io::Result<Owned> {
        use FlockOperation::{NonBlockingLockExclusive, NonBlockingLockShared, Unlock};
        for attempt in 1..=ATTEMPTS_MAX {
            let file = match File::options().read(true).write(self.is_collecting).open(path) {
                Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Owned::Nobodys),
                file => file?,
            };
            if rustix::fs::flock(&file, NonBlockingLockExclusive).is_err() {
                let is_shared = rustix::fs::flock(&file, NonBlockingLockShared).is_ok();
                return Ok(if is_shared { Owned::Shared(file) } else { Owned::Exclusively(file) });
            }
            // An owner that converts its lock (flock(2): not atomically) has none for a moment.
            if attempt < STALE_ATTEMPTS {
                rustix::fs::flock(&file, Unlock)?;
                std::thread::sleep(STALE_INTERVAL);
                continue;
            }
            if !self.is_collecting {
                return Ok(Owned::Nobodys);
            }
            // A new process with the same number removes the old file, and creates its own.
            if has_name(rustix::fs::CWD, path, &file)? {
                fs::remove_file(path)?;
                // Marks it as stale for a process that waits for this file, as Nix does.
                (&file).write_all(b"d")?;
                return Ok(Owned::Nobodys);
            }
        }
        Err(ErrorKind::ResourceBusy.into())
    }
}

/// A file of temporary roots, by the lock of its owner.
enum Owned {
    Nobodys,
    /// This process has it locked shared, too.
    Shared(File),
    Exclusively(File),
}

fn is_absent(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
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
    use narval_files::temporary_name;

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

    /// The locks of Nix 2.3's `addTempRoot`: its owner waits as long as a collection holds its file, is never taken for
    /// dead while it converts its lock, and one that has ended keeps nothing.
    #[test]
    fn owners_of_nix_2_3_wait_for_the_collection() {
        use rustix::fs::flock;
        const PATH: &str = "00bgd045z0d4icpbc2yyz4gx48ak44la-hello-1.0";
        let dir = tempfile::tempdir().unwrap();
        let config = StoreConfig::for_root(dir.path()).unwrap();
        let temproots = config.state_dir.join("temproots");
        fs::create_dir_all(&temproots).unwrap();
        fs::write(temproots.join("2"), "/nix/store/10bgd045z0d4icpbc2yyz4gx48ak44la-ended\0").unwrap();
        let owner = File::options().append(true).create(true).open(temproots.join("1")).unwrap();
        (&owner).write_all(format!("/nix/store/{PATH}\0").as_bytes()).unwrap();
        flock(&owner, FlockOperation::LockExclusive).unwrap();
        let adding = std::thread::spawn(move || {
            // It has written the root, and converts its lock.
            std::thread::sleep(OWNER_PATIENCE / 4);
            flock(&owner, FlockOperation::LockShared).unwrap();
            owner
        });
        let find = |is_collecting| {
            let found = RootFinder { config: &config, is_collecting }.find().unwrap();
            let kept: Vec<_> = found.roots.iter().filter(|root| root.source.starts_with(&temproots)).collect();
            assert!(kept.len() == 1 && kept[0].path.base_name() == PATH, "{kept:?}");
            assert_eq!(temproots.join("2").exists(), !is_collecting);
            found
        };
        find(false);
        let found = find(true);
        let owner = adding.join().unwrap();
        assert_eq!(found.held.len(), 1);
        let add = || flock(&owner, FlockOperation::NonBlockingLockExclusive);
        assert_eq!(add(), Err(rustix::io::Errno::WOULDBLOCK));
        drop(found);
        assert_eq!(add(), Ok(()));
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
