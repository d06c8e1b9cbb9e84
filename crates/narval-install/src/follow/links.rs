//! The links of a profile as Nix makes them: `system` leads to `system-7-link`, and that to a store path.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

use narval_files::temporary_name;
use narval_store::{StoreError, lock_file};

use narval_transfer::{Destination, Error};

/// Between the name of the profile and that of a temporary link.
const TEMPORARY: &str = ".tmp-";

/// The links of one profile. Changes survive a power failure when a function has returned.
pub(super) struct Links {
    link: PathBuf,
    lock_timeout: Duration,
}

impl Links {
    pub(super) fn at(path: &Path, lock_timeout: Duration) -> Result<Self, Error> {
        let link = std::path::absolute(path).map_err(|error| Error::file("find", path, error))?;
        let is_other = fs::symlink_metadata(&link).is_ok_and(|found| !found.is_symlink());
        if is_other || link.file_name().is_none() {
            return Err(Error::Usage(format!("there cannot be a profile at '{}'", link.display())));
        }
        let links = Self { link, lock_timeout };
        create(links.folder()).map_err(|error| Error::file("create", links.folder(), error))?;
        Ok(links)
    }

    /// The folder of the state, which is created: `system.follow`.
    pub(super) fn state_folder(&self) -> Result<PathBuf, Error> {
        let folder = self.with_suffix(".follow");
        create(&folder).map(|()| folder.clone()).map_err(|error| Error::file("create", &folder, error))
    }

    /// The current generation: its number, and where it leads. `None` if there is no profile.
    pub(super) fn current(&self) -> Result<Option<(u64, PathBuf)>, Error> {
        let target = match fs::read_link(&self.link) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            target => target.map_err(|error| Error::file("read", &self.link, error))?,
        };
        let foreign = || {
            let (link, target) = (self.link.display(), target.display());
            Error::Usage(format!(
                "'{link}' is not a profile whose generations are store paths: it points to {target}; give another --profile"
            ))
        };
        let number = target.file_name().and_then(|name| self.number_of(&name.to_string_lossy())).ok_or_else(foreign)?;
        match fs::read_link(self.generation(number)) {
            Ok(path) => Ok(Some((number, path))),
            // Somebody has removed the generation that runs.
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            // A profile of `narval install` has folders.
            Err(_) => Err(foreign()),
        }
    }

    /// The number of a new generation.
    pub(super) fn next(&self) -> Result<u64, Error> {
        let fail = |error| Error::file("list", self.folder(), error);
        let mut last = 0;
        for entry in fs::read_dir(self.folder()).map_err(fail)? {
            let name = entry.map_err(fail)?.file_name();
            last = last.max(self.number_of(&name.to_string_lossy()).unwrap_or(0));
        }
        Ok(last.saturating_add(1))
    }

    /// Makes the generation that leads to `path`, unless it is there, and makes it the current one. The store does not collect it.
    pub(super) fn point_to(&self, destination: &Destination, number: u64, path: &Path) -> Result<(), Error> {
        let _lock = self.lock()?;
        let generation = self.generation(number);
        if fs::read_link(&generation).ok().as_deref() != Some(path) {
            self.replace(&generation, path)?;
        }
        protect(destination, &generation)?;
        let name = generation.file_name().map(OsString::from).unwrap_or_default();
        self.replace(&self.link, name.as_ref())
    }

    /// A link to what is gone back to: `nix-collect-garbage -d` removes all generations but the current one.
    pub(super) fn keep(&self, destination: &Destination, path: &Path) -> Result<(), Error> {
        let link = self.state_folder()?.join("good");
        if fs::read_link(&link).ok().as_deref() != Some(path) {
            self.replace(&link, path)?;
        }
        protect(destination, &link)
    }

    /// Removes a generation; with `is_current`, first the link to it.
    pub(super) fn remove(&self, number: u64, is_current: bool) -> Result<(), Error> {
        let _lock = self.lock()?;
        let links = [is_current.then(|| self.link.clone()), Some(self.generation(number))];
        for link in links.into_iter().flatten() {
            // One after the other: the link never leads to nothing.
            match fs::remove_file(&link).and_then(|()| sync(self.folder())) {
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(Error::file("remove", &link, error)),
                _ => {}
            }
        }
        Ok(())
    }

    fn replace(&self, link: &Path, target: &Path) -> Result<(), Error> {
        let mut temporary = link.to_owned().into_os_string();
        temporary.push(temporary_name(TEMPORARY));
        let replaced = symlink(target, &temporary).and_then(|()| fs::rename(&temporary, link));
        let replaced = replaced.and_then(|()| sync(link.parent().unwrap_or(Path::new("/"))));
        replaced.map_err(|error| {
            // If it cannot be removed either, it is a link that nobody reads.
            fs::remove_file(&temporary).ok();
            Error::file("create", link, error)
        })
    }

    /// As Nix locks it.
    fn lock(&self) -> Result<File, Error> {
        Ok(lock_file(&self.with_suffix(".lock"), self.lock_timeout)?)
    }

    fn folder(&self) -> &Path {
        self.link.parent().unwrap_or(Path::new("/"))
    }

    fn with_suffix(&self, suffix: &str) -> PathBuf {
        let mut name = self.link.clone().into_os_string();
        name.push(suffix);
        name.into()
    }

    fn generation(&self, number: u64) -> PathBuf {
        self.with_suffix(&format!("-{number}-link"))
    }

    fn number_of(&self, name: &str) -> Option<u64> {
        let own = self.link.file_name()?.to_str()?;
        name.strip_prefix(own)?.strip_prefix('-')?.strip_suffix("-link")?.parse().ok()
    }
}

/// Creates a folder and those above it, each after the one above it lasts.
fn create(folder: &Path) -> io::Result<()> {
    let Some(parent) = folder.parent().filter(|_| !folder.is_dir()) else { return Ok(()) };
    create(parent)?;
    fs::create_dir(folder)?;
    sync(parent)
}

fn sync(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// Registers a link as a root.
fn protect(destination: &Destination, link: &Path) -> Result<(), Error> {
    match destination.daemon() {
        Some(daemon) => Ok(daemon.add_indirect_root(link).map_err(StoreError::from)?),
        None => Ok(destination.open()?.add_indirect_root(link)?),
    }
}
