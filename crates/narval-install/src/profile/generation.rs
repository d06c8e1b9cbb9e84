//! One generation of a profile: a folder of links to the files of its paths, and the links that are their roots.
//!
//! It is built under a temporary name. Roots can only be registered at the final place of their links, so the folder is
//! renamed before it is complete: until then, a file in it marks it as incomplete, and it is not used.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use narval_nix::StorePath;
use narval_store::StoreError;

use super::launcher::{self, Launchers};
use super::names;
use crate::{Destination, Error};

/// The folder in a generation that holds one link for each path: the roots.
const ROOTS: &str = ".narval-roots";
/// The file in a generation that is not complete.
const UNFINISHED: &str = ".narval-unfinished";
/// The file in a generation that has no paths, and is meant to have none.
const EMPTY: &str = ".narval-empty";
/// The maximum depth of merged folders.
const DEPTH_MAX: usize = 64;
/// Files that no profile shows (Nix `buildenv.cc`).
const HIDDEN: [&str; 6] =
    ["propagated-build-inputs", "nix-support", "perllocal.pod", "log", "manifest.nix", "manifest.json"];

/// Whether a folder is a generation, complete or not.
pub(super) fn is_ours(folder: &Path) -> bool {
    let is_folder = |path: &Path| fs::symlink_metadata(path).is_ok_and(|found| found.is_dir());
    is_folder(folder) && is_folder(&folder.join(ROOTS))
}

/// Whether a folder is a generation that [`complete`] has not reached.
pub(super) fn is_unfinished(folder: &Path) -> bool {
    fs::symlink_metadata(folder).is_ok_and(|found| found.is_dir())
        && fs::symlink_metadata(folder.join(UNFINISHED)).is_ok()
}

/// Whether a folder is a complete generation.
pub(super) fn is_complete(folder: &Path) -> Result<bool, Error> {
    if !is_ours(folder) || is_unfinished(folder) {
        return Ok(false);
    }
    // Earlier versions left generations without paths and without this file when they were killed.
    Ok(!names(&folder.join(ROOTS))?.is_empty() || fs::symlink_metadata(folder.join(EMPTY)).is_ok())
}

/// The paths of a generation.
pub(super) fn paths(folder: &Path) -> Result<Vec<StorePath>, Error> {
    let names = names(&folder.join(ROOTS))?;
    let mut paths: Vec<_> = names.iter().filter_map(|name| StorePath::parse(name.to_str()?).ok()).collect();
    paths.sort();
    Ok(paths)
}

/// Builds a generation of these paths in a new folder; [`protect`] and [`complete`] do the rest.
pub(super) fn build(destination: &Destination, folder: &Path, paths: &[StorePath]) -> Result<(), Error> {
    let fail = |path: &Path, error| Error::file("create", path, error);
    let (roots, unfinished) = (folder.join(ROOTS), folder.join(UNFINISHED));
    fs::create_dir(folder).map_err(|error| fail(folder, error))?;
    fs::write(&unfinished, "").map_err(|error| fail(&unfinished, error))?;
    fs::create_dir(&roots).map_err(|error| fail(&roots, error))?;
    for path in paths {
        let link = roots.join(path.base_name());
        let target = destination.store_dir().display(path).to_string();
        symlink(target, &link).map_err(|error| fail(&link, error))?;
    }
    if paths.is_empty() {
        fs::write(folder.join(EMPTY), "").map_err(|error| fail(folder, error))?;
    }
    let real_path = |path| destination.store().real_path(path);
    let sources: Vec<_> = paths.iter().map(real_path).filter(|real| real.is_dir()).collect();
    Merge { launchers: Launchers::of(destination.config()) }.merge(&sources, folder, 0)
}

/// Registers the roots of a generation with the store, now that it has its final name.
pub(super) fn protect(destination: &Destination, folder: &Path, paths: &[StorePath]) -> Result<(), Error> {
    let links = paths.iter().map(|path| folder.join(ROOTS).join(path.base_name()));
    if let Some(daemon) = destination.daemon() {
        for link in links {
            daemon.add_indirect_root(&link).map_err(StoreError::from)?;
        }
    } else if !paths.is_empty() {
        let store = destination.open()?;
        for link in links {
            store.add_indirect_root(&link)?;
        }
    }
    Ok(())
}

/// Marks a generation as complete, after it is protected.
pub(super) fn complete(folder: &Path) -> Result<(), Error> {
    let unfinished = folder.join(UNFINISHED);
    fs::remove_file(&unfinished).map_err(|error| Error::file("remove", &unfinished, error))
}

/// Whether the files of a generation are those of this store. A profile can outlive its store, or the store's place.
pub(super) fn leads_into(destination: &Destination, folder: &Path) -> Result<bool, Error> {
    let launchers = Launchers::of(destination.config());
    let mut folders = vec![(folder.to_owned(), 0)];
    while let Some((folder, depth)) = folders.pop() {
        for name in names(&folder)?.into_iter().filter(|name| depth > 0 || name != ROOTS) {
            let path = folder.join(name);
            match fs::read_link(&path) {
                // The others were made with it.
                Ok(target) => return Ok(target.starts_with(&destination.config().real_store_dir)),
                Err(_) if path.is_dir() && depth < DEPTH_MAX => folders.push((path, depth + 1)),
                // One of the marks.
                Err(_) if depth == 0 => {}
                Err(_) => return Ok(launchers.is_some_and(|launchers| launchers.made(&path))),
            }
        }
    }
    Ok(true)
}

/// Fills the folders of a generation.
struct Merge<'a> {
    launchers: Option<Launchers<'a>>,
}

impl Merge<'_> {
    /// Links to entries of a single source; creates a real folder where several sources have one, or where programs need launchers.
    fn merge(&self, sources: &[PathBuf], into: &Path, depth: usize) -> Result<(), Error> {
        if depth > DEPTH_MAX {
            return Err(Error::Usage(format!("{} is too deep for a profile", into.display())));
        }
        let is_of_programs = depth == 1 && into.file_name().is_some_and(Launchers::are_in);
        let launchers = self.launchers.as_ref().filter(|_| is_of_programs);
        let mut entries: BTreeMap<OsString, Vec<PathBuf>> = BTreeMap::new();
        for source in sources {
            for name in names(source)? {
                let hidden = depth == 0 && HIDDEN.iter().any(|hidden| name == *hidden);
                if !hidden {
                    let path = source.join(&name);
                    entries.entry(name).or_default().push(path);
                }
            }
        }
        let fail = |path: &Path, error: io::Error| Error::file("create", path, error);
        for (name, mut from) in entries {
            let below = self.launchers.as_ref().filter(|_| depth == 0 && Launchers::are_in(&name));
            if let Some(launchers) = below {
                from.iter_mut().for_each(|path| *path = launchers.real(path));
            }
            let to = into.join(name);
            match from.as_slice() {
                [only] if below.is_none() || !only.is_dir() => {
                    let launcher = launchers.and_then(|launchers| launchers.for_program(only));
                    let made = launcher.map_or_else(|| symlink(only, &to), |text| launcher::write(&to, &text));
                    made.map_err(|error| fail(&to, error))?;
                }
                several if several.iter().all(|path| path.is_dir()) => {
                    fs::create_dir(&to).map_err(|error| fail(&to, error))?;
                    self.merge(several, &to, depth + 1)?;
                }
                [first, second, ..] => {
                    return Err(Error::Usage(format!(
                        "{} and {} conflict: a profile cannot have both",
                        first.display(),
                        second.display()
                    )));
                }
                _ => {}
            }
        }
        Ok(())
    }
}
