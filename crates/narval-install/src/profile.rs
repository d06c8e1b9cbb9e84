//! Profiles: a link to a folder of links to what is installed, one folder for each generation. Each generation keeps its
//! paths from being collected as garbage.
//!
//! `DIR` leads to `DIR-3-link`, as Nix names them. A generation is a real folder here, since no store path may be invented.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Write};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use narval_nix::StorePath;
use narval_store::StoreError;

use crate::run::program_name;
use crate::{Destination, Error};

/// The folder in a generation that holds one link for each path: the roots.
const ROOTS: &str = ".narval-roots";
/// Where the profiles of a store are written down, below its state directory.
const LIST: &str = "narval-profiles";
/// How deep folders are merged.
const DEPTH_MAX: usize = 64;
/// What no profile shows (Nix `buildenv.cc`).
const HIDDEN: [&str; 6] =
    ["propagated-build-inputs", "nix-support", "perllocal.pod", "log", "manifest.nix", "manifest.json"];

/// One profile.
pub struct Profile {
    link: PathBuf,
}

impl Profile {
    /// The profile at this path, which need not exist.
    ///
    /// # Errors
    /// When the path is no path for a link.
    pub fn at(path: &Path) -> Result<Self, Error> {
        let link = std::path::absolute(path).map_err(|error| usage(path, &error))?;
        match fs::symlink_metadata(&link) {
            Ok(found) if !found.is_symlink() => {
                Err(Error::Usage(format!("{} is no profile: something else is there", link.display())))
            }
            _ if link.file_name().is_none() => {
                Err(Error::Usage(format!("{} is no place for a profile", link.display())))
            }
            _ => Ok(Self { link }),
        }
    }

    fn generation_path(&self, number: u64) -> PathBuf {
        let mut name = self.link.file_name().map(OsString::from).unwrap_or_default();
        name.push(format!("-{number}-link"));
        self.link.with_file_name(name)
    }

    /// The numbers of all generations, ascending.
    ///
    /// # Errors
    /// When the folder can't be read.
    pub fn generations(&self) -> Result<Vec<u64>, Error> {
        let folder = self.link.parent().unwrap_or(Path::new("/"));
        let start = format!("{}-", self.link.file_name().unwrap_or_default().to_string_lossy());
        let entries = match fs::read_dir(folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(usage(folder, &error)),
        };
        let number = |name: OsString| name.to_str()?.strip_prefix(&start)?.strip_suffix("-link")?.parse().ok();
        let mut numbers: Vec<u64> = entries.flatten().filter_map(|entry| number(entry.file_name())).collect();
        numbers.sort_unstable();
        Ok(numbers)
    }

    /// The generation it shows.
    ///
    /// # Errors
    /// As [`Profile::generations`].
    pub fn current(&self) -> Result<Option<u64>, Error> {
        let Ok(target) = fs::read_link(&self.link) else { return Ok(None) };
        Ok(self
            .generations()?
            .into_iter()
            .find(|number| self.generation_path(*number).file_name() == target.file_name()))
    }

    /// The paths of a generation.
    ///
    /// # Errors
    /// When it can't be read.
    pub fn paths(&self, number: u64) -> Result<Vec<StorePath>, Error> {
        let roots = self.generation_path(number).join(ROOTS);
        let entries = fs::read_dir(&roots).map_err(|error| usage(&roots, &error))?;
        let mut paths: Vec<_> =
            entries.flatten().filter_map(|entry| StorePath::parse(entry.file_name().to_str()?).ok()).collect();
        paths.sort();
        Ok(paths)
    }

    /// Adds paths to what the current generation has, as a new generation; one of the same name is replaced. The new
    /// generation's number, or the current one's when that has them all.
    ///
    /// # Errors
    /// When two paths have a file of the same name, or something can't be written.
    pub fn add(&self, destination: &Destination, added: &[StorePath]) -> Result<u64, Error> {
        let _lock = self.lock()?;
        let current = self.current()?;
        let before = current.map_or(Ok(Vec::new()), |number| self.paths(number))?;
        let name_of = |path: &StorePath| program_name(path.name()).to_owned();
        let mut paths: Vec<_> = before
            .iter()
            .filter(|old| added.iter().all(|new| new == *old || name_of(new) != name_of(old)))
            .cloned()
            .collect();
        paths.extend(added.iter().cloned());
        paths.sort();
        paths.dedup();
        if let Some(number) = current.filter(|_| paths == before) {
            return Ok(number);
        }
        let number = self.generations()?.last().map_or(1, |last| last + 1);
        let folder = self.generation_path(number);
        let made = fs::create_dir_all(folder.join(ROOTS));
        made.map_err(|error| usage(&folder, &error))?;
        add_roots(destination, &folder.join(ROOTS), &paths)?;
        let real_path = |path| destination.store().real_path(path);
        let sources: Vec<_> = paths.iter().map(real_path).filter(|real| real.is_dir()).collect();
        if let Err(error) = merge(&sources, &folder, 0) {
            // A generation that is not complete is none.
            if let Err(error) = fs::remove_dir_all(&folder) {
                tracing::warn!(folder = %folder.display(), %error, "cannot be removed");
            }
            return Err(error);
        }
        self.write_down(destination)?;
        self.switch(number)?;
        Ok(number)
    }

    /// Shows another generation: the one before the current one, unless a number is given.
    ///
    /// # Errors
    /// When there is no such generation.
    pub fn roll_back(&self, to: Option<u64>) -> Result<u64, Error> {
        let current = self.current()?.unwrap_or(0);
        let numbers = self.generations()?;
        let target = match to {
            Some(number) => numbers.iter().find(|other| **other == number),
            None => numbers.iter().rfind(|number| **number < current),
        };
        let none = || {
            Error::Usage(format!(
                "{} has no such generation; it has {numbers:?}, and shows {current}",
                self.link.display()
            ))
        };
        let number = *target.ok_or_else(none)?;
        self.switch(number)?;
        Ok(number)
    }

    /// The right to make a generation, against other processes; held until it is dropped.
    fn lock(&self) -> Result<fs::File, Error> {
        let mut name = self.link.clone().into_os_string();
        name.push(".lock");
        let path = PathBuf::from(name);
        let folder = path.parent().unwrap_or(Path::new("/"));
        let locked = fs::create_dir_all(folder).and_then(|()| {
            let file = fs::File::options().read(true).append(true).create(true).open(&path)?;
            file.lock().map(|()| file)
        });
        locked.map_err(|error| usage(&path, &error))
    }

    fn switch(&self, number: u64) -> Result<(), Error> {
        let mut temporary = self.link.clone().into_os_string();
        temporary.push(format!(".tmp-{}", std::process::id()));
        let target = self.generation_path(number).file_name().map(OsString::from).unwrap_or_default();
        let switched = symlink(target, &temporary).and_then(|()| fs::rename(&temporary, &self.link));
        switched.map_err(|error| usage(&self.link, &error))
    }

    /// Removes all generations but the newest `keep` and the current one. How many went.
    ///
    /// # Errors
    /// When one can't be removed.
    pub fn prune(&self, keep: usize) -> Result<usize, Error> {
        let (numbers, current) = (self.generations()?, self.current()?);
        let old = numbers.iter().rev().skip(keep).filter(|number| Some(**number) != current);
        let mut removed = 0;
        for number in old {
            let folder = self.generation_path(*number);
            fs::remove_dir_all(&folder).map_err(|error| usage(&folder, &error))?;
            removed += 1;
        }
        Ok(removed)
    }

    fn write_down(&self, destination: &Destination) -> Result<(), Error> {
        let list = destination.config().state_dir.join(LIST);
        let mut known = list_of(&list);
        if !known.contains(&self.link) {
            known.push(self.link.clone());
            let text: String = known.iter().map(|path| format!("{}\n", path.display())).collect();
            // Under a name of its own first: what somebody else may have put here, a symlink say, is replaced and not written to.
            let written = tempfile_beside(&list).and_then(|(temporary, mut file)| {
                file.write_all(text.as_bytes()).and_then(|()| fs::rename(&temporary, &list))
            });
            match written {
                // A store that is its daemon's: the generations are roots all the same, and only 'narval profiles' and
                // 'narval gc --keep' do not know of them.
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied && destination.daemon().is_some() => {}
                written => written.map_err(|error| usage(&list, &error))?,
            }
        }
        Ok(())
    }

    /// All profiles that were made with this store and are still there.
    pub fn all(state_dir: &Path) -> Vec<Self> {
        let known = list_of(&state_dir.join(LIST)).into_iter();
        known
            .filter(|link| fs::symlink_metadata(link).is_ok_and(|found| found.is_symlink()))
            .map(|link| Self { link })
            .collect()
    }

    /// Where it is.
    pub fn link(&self) -> &Path {
        &self.link
    }
}

/// Links in `folder`, one for each path, that keep the paths.
fn add_roots(destination: &Destination, folder: &Path, paths: &[StorePath]) -> Result<(), Error> {
    let link = |path: &StorePath| folder.join(path.base_name());
    if let Some(daemon) = destination.daemon() {
        for path in paths {
            let (link, target) = (link(path), destination.store_dir().display(path).to_string());
            symlink(target, &link).map_err(|error| usage(&link, &error))?;
            daemon.add_indirect_root(&link).map_err(StoreError::from)?;
        }
        return Ok(());
    }
    let store = destination.open()?;
    paths.iter().try_for_each(|path| Ok(store.add_root(&link(path), path)?))
}

/// The profiles written down; none where the list is a symlink, which nobody but a stranger makes it.
fn list_of(list: &Path) -> Vec<PathBuf> {
    if fs::symlink_metadata(list).is_ok_and(|found| found.is_symlink()) {
        return Vec::new();
    }
    fs::read_to_string(list).unwrap_or_default().lines().map(PathBuf::from).collect()
}

/// A new file beside another one, under a name that nobody can foresee.
fn tempfile_beside(path: &Path) -> io::Result<(PathBuf, fs::File)> {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".tmp-{:016x}", RandomState::new().hash_one(std::process::id())));
    let file = fs::File::options().write(true).create_new(true).open(&name)?;
    Ok((name.into(), file))
}

/// Links to what one folder alone has; real folders where several have one.
fn merge(sources: &[PathBuf], into: &Path, depth: usize) -> Result<(), Error> {
    if depth > DEPTH_MAX {
        return Err(Error::Usage(format!("{} is too deep for a profile", into.display())));
    }
    let mut entries: BTreeMap<OsString, Vec<PathBuf>> = BTreeMap::new();
    for source in sources {
        for entry in fs::read_dir(source).map_err(|error| usage(source, &error))?.flatten() {
            let hidden = depth == 0 && HIDDEN.iter().any(|name| entry.file_name() == *name);
            if !hidden {
                entries.entry(entry.file_name()).or_default().push(entry.path());
            }
        }
    }
    for (name, from) in entries {
        let to = into.join(name);
        match from.as_slice() {
            [only] => symlink(only, &to).map_err(|error| usage(&to, &error))?,
            several if several.iter().all(|path| path.is_dir()) => {
                fs::create_dir(&to).map_err(|error| usage(&to, &error))?;
                merge(several, &to, depth + 1)?;
            }
            [first, second, ..] => {
                return Err(Error::Usage(format!(
                    "{} and {} cannot be in one profile: both have it",
                    first.display(),
                    second.display()
                )));
            }
            [] => {}
        }
    }
    Ok(())
}

fn usage(path: &Path, error: &io::Error) -> Error {
    Error::Usage(format!("{}: {error}", path.display()))
}
