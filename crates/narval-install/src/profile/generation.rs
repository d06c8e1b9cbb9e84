//! One generation of a profile: links to the files of its paths, and the manifest that says what these are.
//!
//! Where the store is at its place, a generation is a store path, as Nix makes it: [`seal`]. Otherwise it is a folder beside the profile, which also has
//! the links that are its roots. These can only be registered at their final place, so the folder is renamed before it is complete: until then, a file in
//! it marks it as incomplete, and it is not used.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use narval_nix::{StorePath, StorePathName};
use narval_store::{NarReader, StoreError, describe};

use super::launcher::{self, Launchers};
use super::manifest::{self, Manifest, PRIORITY_DEFAULT};
use narval_transfer::{Destination, Error};

/// The folder in a generation that holds one link for each path: the roots.
const ROOTS: &str = ".narval-roots";
/// The file in a generation that is not complete.
const UNFINISHED: &str = ".narval-unfinished";
/// The file in a folder of an earlier version that has no paths, and is meant to have none.
const EMPTY: &str = ".narval-empty";
/// The file in a folder of an earlier version with the priorities of its paths, for those that have another than the default: one per line, `3 HASH-NAME`.
const PRIORITIES: &str = ".narval-priorities";
/// The name of generations in the store, as in Nix.
const NAME: &str = "profile";
/// The maximum depth of merged folders.
const DEPTH_MAX: usize = 64;
/// The folders of a path that a profile shows. What else there is, such as a licence or `nix-support`, is not for `PATH` and its like.
const SHOWN: [&str; 6] = ["bin", "etc", "include", "lib", "sbin", "share"];

/// Whether the generations of this store are store paths.
pub(super) fn are_paths(destination: &Destination) -> bool {
    Launchers::of(destination.config()).is_none()
}

/// Whether this is a generation, complete or not.
pub(super) fn is_ours(folder: &Path) -> bool {
    let is_folder = |path: &Path| fs::symlink_metadata(path).is_ok_and(|found| found.is_dir());
    folder.is_symlink() || is_folder(folder) && is_folder(&folder.join(ROOTS))
}

/// Whether a folder is a generation that [`complete`] has not reached.
pub(super) fn is_unfinished(folder: &Path) -> bool {
    fs::symlink_metadata(folder).is_ok_and(|found| found.is_dir())
        && fs::symlink_metadata(folder.join(UNFINISHED)).is_ok()
}

/// Whether this is a complete generation.
pub(super) fn is_complete(folder: &Path) -> Result<bool, Error> {
    // A store path is complete, or not there.
    if folder.join(manifest::FILE).is_file() && !is_unfinished(folder) {
        return Ok(true);
    }
    if folder.is_symlink() || !is_ours(folder) || is_unfinished(folder) {
        return Ok(false);
    }
    // Earlier versions left generations without paths and without this file when they were killed.
    Ok(!names(&folder.join(ROOTS))?.is_empty() || fs::symlink_metadata(folder.join(EMPTY)).is_ok())
}

/// What a generation has.
pub(super) fn manifest(folder: &Path) -> Result<Manifest, Error> {
    let file = folder.join(manifest::FILE);
    let mut text = Vec::new();
    match fs::File::open(&file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return of_links(folder),
        opened => {
            let read = opened.and_then(|file| file.take(manifest::LEN_MAX).read_to_end(&mut text));
            read.map_err(|error| Error::file("read", &file, error))?;
        }
    }
    let damaged = |why| Error::file("read", &file, io::Error::new(io::ErrorKind::InvalidData, why));
    Manifest::read(&text).map_err(|why: String| damaged(why))
}

/// What the folder of an earlier version has, which is without a manifest.
fn of_links(folder: &Path) -> Result<Manifest, Error> {
    let names = names(&folder.join(ROOTS))?;
    let file = folder.join(PRIORITIES);
    let text = match fs::read_to_string(&file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        text => text.map_err(|error| Error::file("read", &file, error))?,
    };
    let priorities: BTreeMap<&str, i64> = text
        .lines()
        .filter_map(|line| line.split_once(' '))
        .filter_map(|(p, name)| Some((name, p.parse().ok()?)))
        .collect();
    let priority = |path: &StorePath| priorities.get(path.base_name()).copied().unwrap_or(PRIORITY_DEFAULT);
    let paths = names.iter().filter_map(|name| StorePath::parse(name.to_str()?).ok());
    Ok(Manifest::of_paths(paths.map(|path| (path.clone(), priority(&path)))))
}

/// Builds a generation in a new folder. If [`are_paths`], [`seal`] does the rest, otherwise [`protect`] and [`complete`].
pub(super) fn build(destination: &Destination, folder: &Path, manifest: &Manifest) -> Result<(), Error> {
    let fail = |path: &Path, error| Error::file("create", path, error);
    fs::create_dir(folder).map_err(|error| fail(folder, error))?;
    if !are_paths(destination) {
        let (roots, unfinished) = (folder.join(ROOTS), folder.join(UNFINISHED));
        fs::write(&unfinished, "").map_err(|error| fail(&unfinished, error))?;
        fs::create_dir(&roots).map_err(|error| fail(&roots, error))?;
        for path in manifest.paths() {
            let link = roots.join(path.base_name());
            let target = destination.store_dir().display(&path).to_string();
            symlink(target, &link).map_err(|error| fail(&link, error))?;
        }
    }
    let file = folder.join(manifest::FILE);
    fs::write(&file, manifest.written(destination.store_dir())).map_err(|error| fail(&file, error))?;
    let real_path = |(path, priority): (&StorePath, i64)| (priority, destination.store().real_path(path));
    let sources: Vec<_> = manifest.shown().into_iter().map(real_path).filter(|(_, real)| real.is_dir()).collect();
    let launchers = Launchers::of(destination.config()).map(|launchers| launchers.with(manifest.shown().into_keys()));
    Merge { launchers }.merge(&sources, folder, 0)
}

/// Adds a built folder to the store, with the paths of the manifest as its references, and makes `link` a root that leads to it. It is kept at any step:
/// the link is registered before it is made, and again for a garbage collection that has found it leading nowhere.
pub(super) fn seal(destination: &Destination, built: &Path, link: &Path, manifest: &Manifest) -> Result<(), Error> {
    let fail = |error| Error::file("create", link, error);
    let name = StorePathName::parse(NAME).map_err(|error| fail(io::Error::other(error)))?;
    let path = if let Some(daemon) = destination.daemon() {
        let info = describe(built, &name, manifest.paths(), destination.store_dir()).map_err(fail)?;
        destination.keep(std::slice::from_ref(&info.path))?;
        if !daemon.is_valid(&info.path).map_err(StoreError::from)? {
            let nar = NarReader::open(built).map_err(|error| fail(io::Error::other(error)))?;
            daemon.add_to_store_nar(&info, nar, false).map_err(StoreError::from)?;
        }
        info.path
    } else {
        let store = destination.open()?;
        let info = store.add(built, &name, manifest.paths(), &|| Ok(()))?;
        store.register(std::slice::from_ref(&info))?;
        info.path
    };
    destination.add_indirect_roots([link.to_owned()])?;
    symlink(destination.store_dir().display(&path).to_string(), link).map_err(fail)?;
    destination.add_indirect_roots([link.to_owned()])
}

/// Registers the roots of a generation with the store, now that it has its final name.
pub(super) fn protect(destination: &Destination, folder: &Path, manifest: &Manifest) -> Result<(), Error> {
    if folder.is_symlink() {
        return destination.add_indirect_roots([folder.to_owned()]);
    }
    destination.add_indirect_roots(manifest.paths().iter().map(|path| folder.join(ROOTS).join(path.base_name())))
}

/// Marks a generation as complete, after it is protected.
pub(super) fn complete(folder: &Path) -> Result<(), Error> {
    let unfinished = folder.join(UNFINISHED);
    fs::remove_file(&unfinished).map_err(|error| Error::file("remove", &unfinished, error))
}

/// Whether the files of a generation are those of this store. A profile can outlive its store, or the store's place.
pub(super) fn leads_into(destination: &Destination, folder: &Path) -> Result<bool, Error> {
    if are_paths(destination) != folder.is_symlink() {
        return Ok(false);
    }
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
    /// Links to entries of a single source; creates a real folder where several sources have one, where programs need launchers, or where links lead to the
    /// logical place of the store. Of several files of one name, the one with the lowest priority is linked.
    fn merge(&self, sources: &[(i64, PathBuf)], into: &Path, depth: usize) -> Result<(), Error> {
        if depth > DEPTH_MAX {
            return Err(Error::Usage(format!("{} is too deep for a profile", into.display())));
        }
        let is_of_programs = depth == 1 && into.file_name().is_some_and(Launchers::are_in);
        let launchers = self.launchers.as_ref().filter(|_| is_of_programs);
        let mut entries: BTreeMap<OsString, Vec<(i64, PathBuf)>> = BTreeMap::new();
        for (priority, source) in sources {
            for name in names(source)? {
                if depth > 0 || SHOWN.iter().any(|shown| name == *shown) {
                    let path = source.join(&name);
                    entries.entry(name).or_default().push((*priority, path));
                }
            }
        }
        let fail = |path: &Path, error: io::Error| Error::file("create", path, error);
        for (name, mut from) in entries {
            if let Some(launchers) = &self.launchers {
                for (_, path) in &mut from {
                    // A program keeps its own name.
                    *path = launchers
                        .real(path)
                        .filter(|real| !is_of_programs || real.is_dir())
                        .unwrap_or_else(|| path.clone());
                }
            }
            let is_made = |folder: &Path| {
                self.launchers
                    .as_ref()
                    .is_some_and(|launchers| depth == 0 && Launchers::are_in(&name) || launchers.leads_inside(folder))
            };
            let to = into.join(&name);
            let first = from.iter().map(|(priority, _)| *priority).min();
            let is_first = |(priority, _): &&(i64, PathBuf)| Some(*priority) == first;
            let is_folder = from.iter().filter(is_first).all(|(_, path)| path.is_dir());
            from.retain(|one| if is_folder { one.1.is_dir() } else { is_first(&one) });
            if !is_folder {
                // Equal files need only one link.
                for (_, other) in from.drain(1..).collect::<Vec<_>>() {
                    let (_, first) = &from[0];
                    if !is_same_file(first, &other)? {
                        return Err(Error::Conflict { first: first.clone(), second: other });
                    }
                }
            }
            match from.as_slice() {
                [(_, only)] if !only.is_dir() || !is_made(only) => {
                    let launcher = launchers.and_then(|launchers| launchers.for_program(only));
                    let made = launcher.map_or_else(|| symlink(only, &to), |text| launcher::write(&to, &text));
                    made.map_err(|error| fail(&to, error))?;
                }
                several => {
                    fs::create_dir(&to).map_err(|error| fail(&to, error))?;
                    self.merge(several, &to, depth + 1)?;
                }
            }
        }
        Ok(())
    }
}

/// Whether two files have the same contents, and are both executable or not; or two symlinks the same target.
fn is_same_file(one: &Path, other: &Path) -> Result<bool, Error> {
    let look = |path: &Path| fs::symlink_metadata(path).map_err(|error| Error::file("read", path, error));
    let (found, other_found) = (look(one)?, look(other)?);
    if found.file_type() != other_found.file_type() || found.len() != other_found.len() {
        return Ok(false);
    }
    if found.is_symlink() {
        return Ok(fs::read_link(one).ok() == fs::read_link(other).ok());
    }
    let is_executable = |found: &fs::Metadata| found.permissions().mode() & 0o100 != 0;
    if !found.is_file() || is_executable(&found) != is_executable(&other_found) {
        return Ok(false);
    }
    let open = |path: &Path| fs::File::open(path).map_err(|error| Error::file("read", path, error));
    let (mut one_read, mut other_read) = (BufReader::new(open(one)?), BufReader::new(open(other)?));
    loop {
        let a = one_read.fill_buf().map_err(|error| Error::file("read", one, error))?;
        let b = other_read.fill_buf().map_err(|error| Error::file("read", other, error))?;
        let len = a.len().min(b.len());
        if a[..len] != b[..len] {
            return Ok(false);
        }
        if len == 0 {
            return Ok(a.len() == b.len());
        }
        one_read.consume(len);
        other_read.consume(len);
    }
}

/// The names in a folder; empty if it does not exist.
pub(super) fn names(folder: &Path) -> Result<Vec<OsString>, Error> {
    let listed = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.and_then(|entries| entries.map(|entry| Ok(entry?.file_name())).collect()),
    };
    listed.map_err(|error| Error::file("list", folder, error))
}
