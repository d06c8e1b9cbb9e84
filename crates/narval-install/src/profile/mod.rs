//! Profiles: a link to a folder of links to installed files, one folder per generation. Each generation protects its
//! paths from garbage collection.
//!
//! `DIR` points to `DIR-3-link`, as in Nix. That leads to a store path where the store is at its place, so that Nix can work on the profile, too;
//! elsewhere, a link into the store would lead nowhere, and the generation is a real folder. Changes of a profile are made under the lock `DIR.lock`.

mod generation;
mod launcher;
mod list;
mod manifest;
mod origin;

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use narval_files::{is_temporary_name, temporary_name};
use narval_nix::StorePath;
use narval_store::{StoreConfig, lock_file};

use self::generation::names;
pub use self::manifest::{Addition, Chosen, Element, Manifest};
pub use self::origin::Origin;
use narval_cache::Wanted;
use narval_transfer::{Destination, Error};

/// How many generations are read for where paths came from.
const RECALLED_MAX: usize = 16;

/// One profile.
pub struct Profile {
    link: PathBuf,
    lock_timeout: Duration,
}

/// The result of [`Profile::add`].
#[derive(Debug, Default)]
pub struct Added {
    /// The current generation's number.
    pub generation: u64,
    /// Each path that is no longer in the profile, and the one that has replaced it.
    pub replaced: Vec<(StorePath, StorePath)>,
}

/// The result of [`Profile::remove`].
pub struct Removed {
    /// The new generation's number.
    pub generation: u64,
    /// The removed paths.
    pub removed: Vec<StorePath>,
    /// The remaining paths.
    pub left: Vec<StorePath>,
}

impl Profile {
    /// The profile at this path, which need not exist. `lock_timeout` is how long to wait for its lock.
    ///
    /// # Errors
    /// If there cannot be a link at this path.
    pub fn at(path: &Path, lock_timeout: Duration) -> Result<Self, Error> {
        let link = std::path::absolute(path).map_err(|error| Error::file("find", path, error))?;
        match fs::symlink_metadata(&link) {
            Ok(found) if !found.is_symlink() => {
                Err(Error::Usage(format!("{} is not a profile: something else has this name", link.display())))
            }
            _ if link.file_name().is_none() => {
                Err(Error::Usage(format!("there cannot be a profile at {}", link.display())))
            }
            _ => Ok(Self { link, lock_timeout }),
        }
    }

    /// The profile of a generation, and its number, by the generation's own name: `profile-3-link`.
    pub fn of_generation(path: &Path) -> Option<(Self, u64)> {
        let (name, number) = path.file_name()?.to_str()?.strip_suffix("-link")?.rsplit_once('-')?;
        // Nothing is waited for: generations do not change.
        Some((Self::at(&path.with_file_name(name), Duration::ZERO).ok()?, number.parse().ok()?))
    }

    /// All existing profiles that were created with this store.
    ///
    /// # Errors
    /// If the list of them cannot be read.
    pub fn all(config: &StoreConfig) -> Result<Vec<Self>, Error> {
        let known = list::read(&config.state_dir)?.into_iter();
        Ok(known
            .filter(|link| fs::symlink_metadata(link).is_ok_and(|found| found.is_symlink()))
            .map(|link| Self { link, lock_timeout: config.lock_timeout })
            .collect())
    }

    /// The link of the profile.
    pub fn link(&self) -> &Path {
        &self.link
    }

    /// The numbers of its complete generations, ascending.
    ///
    /// # Errors
    /// If a folder cannot be read.
    pub fn generations(&self) -> Result<Vec<u64>, Error> {
        let mut complete = Vec::new();
        for number in self.numbers()? {
            if generation::is_complete(&self.generation_path(number))? {
                complete.push(number);
            }
        }
        Ok(complete)
    }

    /// The number of the current generation, or `None` if the profile does not exist yet.
    ///
    /// # Errors
    /// If the link points to something else.
    pub fn current(&self) -> Result<Option<u64>, Error> {
        let target = match fs::read_link(&self.link) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            target => target.map_err(|error| Error::file("read", &self.link, error))?,
        };
        let number = target.file_name().and_then(|name| self.number_of(name));
        let number = number.filter(|number| self.link.with_file_name(&target) == self.generation_path(*number));
        let foreign = || {
            let (link, target) = (self.link.display(), target.display());
            Error::Usage(format!("{link} is not a profile of narval: it points to {target}; use another --profile"))
        };
        number.map(Some).ok_or_else(foreign)
    }

    /// The paths of a generation.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn paths(&self, number: u64) -> Result<Vec<StorePath>, Error> {
        Ok(self.manifest(number)?.paths().into_iter().collect())
    }

    /// What a generation has. Where Nix has dropped where paths came from, that is taken from an earlier generation.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn manifest(&self, number: u64) -> Result<Manifest, Error> {
        let mut manifest = generation::manifest(&self.generation_path(number))?;
        if manifest.has_forgotten() {
            for earlier in self.generations()?.into_iter().rev().filter(|earlier| *earlier < number).take(RECALLED_MAX)
            {
                manifest.recall(&generation::manifest(&self.generation_path(earlier))?);
            }
        }
        Ok(manifest)
    }

    /// The current generation's number, and what it has.
    ///
    /// # Errors
    /// If there is no profile, or it cannot be read.
    pub fn existing(&self) -> Result<(u64, Manifest), Error> {
        self.shown()?.ok_or_else(|| self.absent())
    }

    /// When a generation was made; `None` if that is not known.
    pub fn made(&self, number: u64) -> Option<SystemTime> {
        fs::symlink_metadata(self.generation_path(number)).and_then(|found| found.modified()).ok()
    }

    fn absent(&self) -> Error {
        Error::Usage(format!("there is no profile {}: 'narval install' makes it", self.link.display()))
    }

    /// Creates a generation with the current paths and these. A path that the profile does not have yet replaces the same output of its element, and other
    /// versions of its package and output. If the current generation is the same, it is only protected again: the store may be
    /// new, or the profile may be from another place. Of two different files of one name, the profile shows that of the element with the lower `priority`
    /// [default: what the element has in the profile, otherwise 5].
    ///
    /// # Errors
    /// [`Error::Conflict`] if two paths of one priority have different files of one name; or a file cannot be written.
    pub fn add(&self, destination: &Destination, added: &[Addition], priority: Option<u32>) -> Result<Added, Error> {
        let folder = self.folder();
        fs::create_dir_all(folder).map_err(|error| Error::file("create", folder, error))?;
        let _lock = self.lock()?;
        let shown = self.shown()?;
        let before = shown.as_ref().map(|(_, manifest)| manifest.clone()).unwrap_or_default();
        let mut manifest = before.clone();
        let replaced = manifest.add(added, priority.map(i64::from));
        let generation = match shown.as_ref().map(|(number, _)| *number) {
            Some(number)
                if before == manifest && generation::leads_into(destination, &self.generation_path(number))? =>
            {
                self.check_that_there_are(destination, &manifest)?;
                generation::protect(destination, &self.generation_path(number), &manifest)?;
                list::add(destination, &self.link)?;
                number
            }
            _ => self.make(destination, &manifest)?,
        };
        Ok(Added { generation, replaced })
    }

    /// Creates a generation without some paths of the current one. Each is given as for [`Wanted::parse`], or by its element in the manifest,
    /// its name, or its package, which stands for all outputs and versions.
    ///
    /// # Errors
    /// [`Error::NotInProfile`] if one of them is not in the profile; nothing is changed then.
    pub fn remove(&self, destination: &Destination, names: &[String]) -> Result<Removed, Error> {
        self.current()?.ok_or_else(|| self.absent())?;
        let _lock = self.lock()?;
        let (_, mut manifest) = self.existing()?;
        let chosen = self.chosen(&manifest, destination, names)?;
        manifest.remove(&chosen);
        let removed: BTreeSet<_> = chosen.into_values().flatten().collect();
        let left = manifest.paths().into_iter().collect();
        Ok(Removed { generation: self.make(destination, &manifest)?, removed: removed.into_iter().collect(), left })
    }

    /// What these names mean in a manifest. See [`Profile::remove`].
    ///
    /// # Errors
    /// [`Error::NotInProfile`] if one of them means nothing.
    pub fn chosen(&self, manifest: &Manifest, destination: &Destination, names: &[String]) -> Result<Chosen, Error> {
        let mut chosen = Chosen::new();
        for name in names {
            let wanted = Wanted::parse(name, destination.store_dir()).ok();
            let meant = manifest.named(name, |path| wanted.as_ref().is_some_and(|wanted| wanted.is(path)));
            if meant.is_empty() {
                let has = manifest.paths().iter().map(|path| path.name().to_owned()).collect();
                return Err(Error::NotInProfile { what: name.clone(), profile: self.link.clone(), has });
            }
            for (element, paths) in meant {
                chosen.entry(element).or_default().extend(paths);
            }
        }
        Ok(chosen)
    }

    /// Switches to the generation before the current one, or to the given one.
    ///
    /// # Errors
    /// If there is no such generation, or it is not complete.
    pub fn roll_back(&self, to: Option<u64>) -> Result<u64, Error> {
        // If there is no profile, no lock file is created.
        let _lock = if self.numbers()?.is_empty() { None } else { Some(self.lock()?) };
        let current = self.current()?.unwrap_or(0);
        let numbers = self.generations()?;
        let target = match to {
            Some(number) => numbers.iter().find(|other| **other == number),
            None => numbers.iter().rfind(|number| **number < current),
        };
        let none = || {
            let link = self.link.display();
            let why = match to {
                Some(number) if fs::symlink_metadata(self.generation_path(number)).is_ok() => {
                    format!("generation {number} of {link} is incomplete: creating it was interrupted")
                }
                None if numbers.contains(&current) => {
                    return Error::Usage(format!("{link}: there is nothing before generation {current}"));
                }
                _ => format!("{link} has no such generation"),
            };
            Error::Usage(format!("{why}; it has {numbers:?}, and the current one is {current}"))
        };
        let number = *target.ok_or_else(none)?;
        self.switch(number)?;
        Ok(number)
    }

    /// The folders that [`Profile::prune`] would remove: generations, and leftovers of killed processes.
    ///
    /// # Errors
    /// If the profile cannot be read.
    pub fn prunable(&self, keep: usize) -> Result<(Vec<PathBuf>, Vec<PathBuf>), Error> {
        let generations = self.old(keep)?.into_iter().map(|number| self.generation_path(number)).collect();
        Ok((generations, self.leftovers()?))
    }

    /// Removes all generations except the newest `keep` and the current one. Returns how many were removed.
    ///
    /// # Errors
    /// If one cannot be removed.
    pub fn prune(&self, keep: usize) -> Result<usize, Error> {
        // Without anything to do, no write access is needed.
        if self.old(keep)?.is_empty() && self.leftovers()?.is_empty() {
            return Ok(0);
        }
        let _lock = self.lock()?;
        self.remove_leftovers()?;
        let old = self.old(keep)?;
        for number in &old {
            // Atomically: there must be no partial generation.
            let (folder, temporary) = (self.generation_path(*number), self.temporary());
            fs::rename(&folder, &temporary).map_err(|error| Error::file("remove", &folder, error))?;
            fs::remove_dir_all(&temporary).map_err(|error| Error::file("remove", &temporary, error))?;
        }
        Ok(old.len())
    }

    /// The generations, complete or not, that are neither the newest `keep` nor the current one.
    fn old(&self, keep: usize) -> Result<Vec<u64>, Error> {
        let (complete, current) = (self.generations()?, self.current()?);
        let is_kept = |number: &u64| complete.iter().rev().take(keep).any(|kept| kept == number);
        let is_old = |number: &u64| {
            Some(*number) != current && !is_kept(number) && generation::is_ours(&self.generation_path(*number))
        };
        Ok(self.numbers()?.into_iter().filter(is_old).collect())
    }

    /// The current generation, and what it has.
    fn shown(&self) -> Result<Option<(u64, Manifest)>, Error> {
        let Some(number) = self.current()? else { return Ok(None) };
        let folder = self.generation_path(number);
        if !generation::is_complete(&folder)? {
            let (link, folder) = (self.link.display(), folder.display());
            return Err(Error::Usage(format!(
                "{link} points to {folder}, which is not a complete generation; 'narval rollback --profile {link}' switches to the previous one"
            )));
        }
        Ok(Some((number, self.manifest(number)?)))
    }

    /// Creates a generation of this, and switches to it. The caller holds the lock.
    fn make(&self, destination: &Destination, manifest: &Manifest) -> Result<u64, Error> {
        self.remove_leftovers()?;
        let number = self.numbers()?.last().map_or(1, |last| last.saturating_add(1));
        let (temporary, folder) = (self.temporary(), self.generation_path(number));
        let made = self.check_that_there_are(destination, manifest).and_then(|()| {
            generation::build(destination, &temporary, manifest)?;
            if generation::are_paths(destination) {
                generation::seal(destination, &temporary, &folder, manifest)?;
                fs::remove_dir_all(&temporary).map_err(|error| Error::file("remove", &temporary, error))?;
            } else {
                fs::rename(&temporary, &folder).map_err(|error| Error::file("create", &folder, error))?;
                generation::protect(destination, &folder, manifest)?;
                generation::complete(&folder)?;
            }
            list::add(destination, &self.link)?;
            self.switch(number)
        });
        if made.is_err() {
            for folder in [temporary, folder] {
                match fs::remove_dir_all(&folder) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => {
                        tracing::warn!(folder = %folder.display(), %error, "cannot be removed");
                    }
                    _ => {}
                }
            }
        }
        made.map(|()| number)
    }

    /// Checks that the store has these paths: a profile of another store would lose some.
    fn check_that_there_are(&self, destination: &Destination, manifest: &Manifest) -> Result<(), Error> {
        let is_gone = |path: &&StorePath| fs::symlink_metadata(destination.store().real_path(path)).is_err();
        let paths = manifest.paths();
        let Some(gone) = paths.iter().find(is_gone) else { return Ok(()) };
        let (link, store) = (self.link.display(), destination.name());
        Err(Error::Usage(format!(
            "{link} has {gone}, which is not in {store}: name the profile's store with --store, or remove it from the profile"
        )))
    }

    /// Locks the profile against changes by other processes, until dropped.
    fn lock(&self) -> Result<File, Error> {
        let mut name = self.link.clone().into_os_string();
        name.push(".lock");
        Ok(lock_file(name.as_ref(), self.lock_timeout)?)
    }

    fn switch(&self, number: u64) -> Result<(), Error> {
        let temporary = self.temporary();
        let target = self.generation_path(number).file_name().map(OsString::from).unwrap_or_default();
        let switched = symlink(target, &temporary).and_then(|()| fs::rename(&temporary, &self.link));
        switched.map_err(|error| {
            // If it cannot be removed either, the next change of the profile removes it.
            fs::remove_file(&temporary).ok();
            Error::file("switch", &self.link, error)
        })
    }

    fn folder(&self) -> &Path {
        self.link.parent().unwrap_or(Path::new("/"))
    }

    fn name(&self) -> &OsStr {
        self.link.file_name().unwrap_or_default()
    }

    fn generation_path(&self, number: u64) -> PathBuf {
        let mut name = self.name().to_owned();
        name.push(format!("-{number}-link"));
        self.link.with_file_name(name)
    }

    /// The number in a generation's name.
    fn number_of(&self, name: &OsStr) -> Option<u64> {
        let rest = name.as_bytes().strip_prefix(self.name().as_bytes())?;
        let number: u64 = std::str::from_utf8(rest).ok()?.strip_prefix('-')?.strip_suffix("-link")?.parse().ok()?;
        (self.generation_path(number).file_name() == Some(name)).then_some(number)
    }

    /// The numbers of all generations, complete or not, ascending.
    fn numbers(&self) -> Result<Vec<u64>, Error> {
        let mut numbers: Vec<_> = self.names()?.iter().filter_map(|name| self.number_of(name)).collect();
        numbers.sort_unstable();
        Ok(numbers)
    }

    /// A unique name beside the profile.
    fn temporary(&self) -> PathBuf {
        self.link.with_file_name(temporary_name_of(self.name()))
    }

    /// The leftovers of killed processes, if nobody holds the lock.
    fn leftovers(&self) -> Result<Vec<PathBuf>, Error> {
        let current = self.current()?;
        let is_left = |name: &OsStr| match self.number_of(name) {
            Some(number) => Some(number) != current && generation::is_unfinished(&self.generation_path(number)),
            None => is_temporary_name_of(name, self.name()),
        };
        Ok(self.names()?.iter().filter(|name| is_left(name)).map(|name| self.link.with_file_name(name)).collect())
    }

    /// The caller holds the lock.
    fn remove_leftovers(&self) -> Result<(), Error> {
        self.leftovers()?.iter().try_for_each(|path| {
            let is_folder = fs::symlink_metadata(path).is_ok_and(|found| found.is_dir());
            let removed = if is_folder { fs::remove_dir_all(path) } else { fs::remove_file(path) };
            removed.map_err(|error| Error::file("remove", path, error))
        })
    }

    /// The names in the profile's folder.
    fn names(&self) -> Result<Vec<OsString>, Error> {
        names(self.folder())
    }
}

/// The infix of temporary names.
const TEMPORARY: &str = ".tmp-";

fn temporary_name_of(name: &OsStr) -> OsString {
    let mut name = name.to_owned();
    name.push(temporary_name(TEMPORARY));
    name
}

fn is_temporary_name_of(temporary: &OsStr, name: &OsStr) -> bool {
    let rest = temporary.as_bytes().strip_prefix(name.as_bytes());
    rest.is_some_and(|rest| is_temporary_name(OsStr::from_bytes(rest), TEMPORARY))
}
