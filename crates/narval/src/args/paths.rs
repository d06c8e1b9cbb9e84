//! Store paths as arguments, and files in them.

use std::fs;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use narval_cache::{BinaryCaches, CacheError};
use narval_install::{Closure, Destination, Error, Profile, Wanted};
use narval_nix::{HashPart, StoreDir, StorePath};
use narval_store::StoreConfig;

use crate::args::client::{ClientArgs, other_store_with};
use crate::ui::failure::Failure;

/// The maximum number of symlinks from an argument to a store path.
const LINKS_MAX: usize = 40;

/// The store that an argument names a path of.
#[derive(Clone, Copy)]
pub(crate) struct StoreLocation<'a> {
    dir: &'a StoreDir,
    /// Where its files are. `None`: in any folder.
    real: Option<&'a Path>,
}

impl<'a> From<&'a StoreConfig> for StoreLocation<'a> {
    fn from(config: &'a StoreConfig) -> Self {
        Self { dir: &config.store_dir, real: Some(&config.real_store_dir) }
    }
}

impl<'a> From<&'a StoreDir> for StoreLocation<'a> {
    fn from(dir: &'a StoreDir) -> Self {
        Self { dir, real: None }
    }
}

/// What an argument names: a store path, or a file in it.
pub(crate) struct Named {
    /// The store path.
    pub(crate) wanted: Wanted,
    /// The file below it, without a slash at the start; may be empty.
    pub(crate) below: String,
}

impl Named {
    /// Parses an argument: a store path in full, HASH-NAME or only the hash part, where its files are, or a symlink to any of these;
    /// each may be followed by a file in the path.
    ///
    /// # Errors
    /// Wrong usage: it is none of these, or a path of another store.
    pub(crate) fn parse<'a>(text: &str, place: impl Into<StoreLocation<'a>>) -> Result<Self, Failure> {
        let place = place.into();
        if let Some(named) = Self::below_store(Path::new(text), place.dir) {
            return Ok(named);
        }
        let unusable =
            |why: &str| Failure::usage(format!("'{text}' is neither a store path nor a symlink to one{why}"));
        if !text.contains('/') && !Path::new(text).is_symlink() {
            return Err(Wanted::parse(text, place.dir).err().map_or_else(|| unusable(""), Failure::from));
        }
        let mut path = std::path::absolute(text).map_err(|error| unusable(&format!(": {error}")))?;
        for _ in 0..LINKS_MAX {
            if let Some(named) = place.find(&path) {
                return Ok(named);
            }
            match without_first_link(&path) {
                Some(next) => path = next,
                None => return Err(place.other_root(&path).unwrap_or_else(|| unusable(""))),
            }
        }
        Err(unusable(": there are too many symlinks"))
    }

    /// `HASH-NAME/file`, or a hash part instead of HASH-NAME.
    fn below_store(path: &Path, dir: &StoreDir) -> Option<Self> {
        let mut parts = path.components();
        let Component::Normal(base) = parts.next()? else { return None };
        let wanted = Wanted::parse(base.to_str()?, dir).ok()?;
        Some(Self { wanted, below: parts.as_path().to_str()?.to_owned() })
    }
}

impl StoreLocation<'_> {
    fn find(&self, path: &Path) -> Option<Named> {
        let below = |folder: &Path| Named::below_store(path.strip_prefix(folder).ok()?, self.dir);
        let logical = below(Path::new(self.dir.as_str()));
        logical.or_else(|| match self.real {
            Some(real) => below(real).or_else(|| below(&fs::canonicalize(real).ok()?)),
            None => below(&root_of(path, self.dir)?.join(relative(self.dir))),
        })
    }

    /// The message about a path in the folder of another store.
    fn other_root(&self, path: &Path) -> Option<Failure> {
        let root = root_of(path, self.dir)?;
        let (path, root) = (path.display(), root.display());
        Some(Failure::usage(format!("'{path}' is in another store: name it with --store '{root}'")))
    }
}

fn relative(dir: &StoreDir) -> &str {
    dir.as_str().trim_start_matches('/')
}

/// The folder that holds the store directory that a path is in.
fn root_of(path: &Path, dir: &StoreDir) -> Option<PathBuf> {
    path.ancestors().find(|folder| folder.ends_with(relative(dir))).and_then(|folder| {
        let depth = Path::new(relative(dir)).components().count();
        folder.ancestors().nth(depth).map(Path::to_owned)
    })
}

/// An absolute path with its first symlink replaced by what that points to, and without `..` before it. `None` if there is none.
fn without_first_link(path: &Path) -> Option<PathBuf> {
    let (mut before, mut parts) = (PathBuf::new(), path.components());
    while let Some(part) = parts.next() {
        match part {
            Component::ParentDir => {
                before.pop();
            }
            part => before.push(part),
        }
        if let Ok(target) = fs::read_link(&before) {
            return Some(before.parent().unwrap_or(Path::new("/")).join(target).join(parts.as_path()));
        }
    }
    (before != path).then_some(before)
}

/// Parses the paths of the command line. What follows a store path is ignored; a profile stands for its paths.
pub(crate) fn parse_wanted<'a>(texts: &[String], place: impl Into<StoreLocation<'a>>) -> Result<Vec<Wanted>, Failure> {
    let place = place.into();
    let mut all = Vec::with_capacity(texts.len());
    for text in texts {
        match in_profile(text) {
            Some(paths) if paths.is_empty() => return Err(Failure::usage(format!("the profile '{text}' is empty"))),
            Some(paths) => all.extend(paths.into_iter().map(Wanted::Path)),
            None => all.push(Named::parse(text, place)?.wanted),
        }
    }
    Ok(all)
}

/// The paths of a profile's current generation, or of the generation that is named, if there is one of this name.
fn in_profile(text: &str) -> Option<Vec<StorePath>> {
    if let Some((profile, number)) = Profile::of_generation(Path::new(text)) {
        return profile.paths(number).ok();
    }
    // Nothing is waited for: generations do not change.
    let profile = Profile::at(Path::new(text), Duration::ZERO).ok()?;
    profile.paths(profile.current().ok()??).ok()
}

/// Parses a store path of a cache, whose files may be anywhere; returns its hash part.
pub(crate) fn hash_part(text: &str, store_dir: &StoreDir) -> Result<HashPart, Failure> {
    Named::parse(text, store_dir).map(|named| named.wanted.hash_part())
}

/// Opens the caches for a file in a store path, `HASH-NAME/share/file`: returns the store path and the file below it.
pub(crate) fn open(client: &ClientArgs, path: &str) -> Result<(BinaryCaches, Wanted, String), Failure> {
    client.output.start_log();
    let (caches, destination) = (&client.caches, client.store.destination()?);
    let Named { wanted, below } = Named::parse(path, destination.config())?;
    let (dir, options) = (destination.store_dir(), caches.options(None, false)?);
    let opened = BinaryCaches::open(&options.caches, &caches.client()?, dir, options.keys, options.check_signatures)?;
    Ok((opened, wanted, below))
}

/// The closure of paths in a store. If it lacks one that this machine's store or the user's own has, the error names that.
pub(crate) fn closure_in(store: &Destination, wanted: &[Wanted]) -> Result<Closure, Failure> {
    Closure::in_store(store, wanted).map_err(|error| or_elsewhere(error, store))
}

/// An error, with the store that has the missing path if that is this machine's or the user's own: commands that install use the latter, those that
/// push the former.
pub(crate) fn or_elsewhere(error: Error, store: &Destination) -> Failure {
    let (Error::NotInStore { what, .. } | Error::Cache(CacheError::NotFound { what, .. })) = &error else {
        return error.into();
    };
    let missing = Wanted::parse(what, store.store_dir()).ok();
    match missing.and_then(|missing| other_store_with(store.config(), &missing)) {
        Some(other) => Failure::Coded(error.exit_code(), format!("{error}; {}", named_by(&other))),
        None => error.into(),
    }
}

/// The hint to another store.
pub(crate) fn named_by(store: &str) -> String {
    format!("'--store {store}' names a store that has it")
}
