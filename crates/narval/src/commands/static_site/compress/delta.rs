//! Makes the deltas of a site in advance: from the files of previous releases to those of this one.

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsStr;
use std::fs;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use narval_codec::delta::delta_header;
use narval_codec::encode::{is_delta_of, make_smallest_delta};
use narval_http::files::{delta_ending, family, sidecar_ending};
use narval_http::semantics::accept::Coding;
use narval_nix::Sha256;
use parking_lot::Mutex;

use super::files::{Source, compressible, is_of_time, named, walk, with_ending};
use super::place::{clean, is_unfinished, place, remove_if_there};
use super::site::{Site, Summary};

/// The largest file and the largest dictionary, in bytes: one of each is in memory for each thread.
const DELTA_FILE_BYTES_MAX: u64 = 32 << 20;
/// A delta is kept if it is smaller than this share of the smallest encoding without a dictionary, in tenths.
const WORTH_TENTHS: u64 = 8;
/// The longest file name on Linux (`NAME_MAX`).
const NAME_BYTES_MAX: usize = 255;
/// The digits of a SHA-256.
const HASH_DIGITS: usize = 64;

/// The files of a previous release.
struct Release {
    root: PathBuf,
    /// By path, with the size.
    by_path: HashMap<PathBuf, u64>,
    /// By folder and what names have besides a hash.
    by_family: HashMap<(PathBuf, String, String), Vec<PathBuf>>,
}

/// What deltas are made from, and those that there are.
pub(super) struct Deltas {
    releases: Vec<Release>,
    /// The deltas of each file, by its path below the folder that they are in.
    existing: HashMap<PathBuf, Vec<PathBuf>>,
}

impl Deltas {
    /// Lists the previous releases, and the deltas that there are. What killed processes have left there is removed.
    pub(super) fn prepare(site: &Site) -> io::Result<Self> {
        let releases = site.previous.iter().map(|root| Release::open(root)).collect::<io::Result<_>>()?;
        let target = site.target();
        let existing = if target.is_dir() { find_deltas(target)? } else { HashMap::new() };
        Ok(Self { releases, existing })
    }

    /// Makes the deltas of a file, and removes those that are not of these releases, or not of its contents. `base` is the
    /// name that the encodings extend.
    pub(super) fn make(
        &self,
        path: &Path,
        source: &Source,
        base: &Path,
        codings: &[Coding],
        summary: &Mutex<Summary>,
    ) -> io::Result<()> {
        let mut kept = Vec::new();
        if !self.releases.is_empty() && source.size <= DELTA_FILE_BYTES_MAX {
            let content = fs::read(path)?;
            let limit = smallest(base, source, codings) * WORTH_TENTHS / 10;
            for release in &self.releases {
                let Some(dictionary) = release.version_of(source) else { continue };
                let dictionary = fs::read(&dictionary).map_err(|error| named("cannot read", &dictionary, &error))?;
                if dictionary != content {
                    kept.extend(make_one(&dictionary, &content, source, base, limit, summary)?);
                }
            }
        }
        for delta in self.existing.get(&source.path).into_iter().flatten() {
            let is_old = || !self.releases.is_empty() || !is_of_time(delta, source.modified);
            if !kept.contains(delta) && is_old() {
                remove_if_there(delta)?;
            }
        }
        Ok(())
    }
}

impl Release {
    fn open(root: &Path) -> io::Result<Self> {
        let mut release = Self { root: root.to_owned(), by_path: HashMap::new(), by_family: HashMap::new() };
        for source in compressible(root)?.into_iter().filter(|source| source.size <= DELTA_FILE_BYTES_MAX) {
            if let Some(family) = family_of(&source.path) {
                release.by_family.entry(family).or_default().push(source.path.clone());
            }
            release.by_path.insert(source.path, source.size);
        }
        Ok(release)
    }

    /// This release's version of a file: of the same name, or else the one nearest in size whose name differs in the hash.
    fn version_of(&self, source: &Source) -> Option<PathBuf> {
        if self.by_path.contains_key(&source.path) {
            return Some(self.root.join(&source.path));
        }
        let versions = self.by_family.get(&family_of(&source.path)?)?;
        let difference = |path: &PathBuf| self.by_path.get(path).copied().unwrap_or(u64::MAX).abs_diff(source.size);
        let nearest = versions.iter().min_by_key(|path| (difference(path), *path))?;
        Some(self.root.join(nearest))
    }
}

fn family_of(path: &Path) -> Option<(PathBuf, String, String)> {
    let (before, after) = family(path.file_name()?.to_str()?)?;
    Some((path.parent()?.to_owned(), before.to_owned(), after.to_owned()))
}

/// The size of the smallest encoding without a dictionary.
fn smallest(base: &Path, source: &Source, codings: &[Coding]) -> u64 {
    let sizes = codings.iter().filter_map(|coding| {
        let meta = fs::metadata(with_ending(base, sidecar_ending(*coding)?)).ok()?;
        (meta.modified().ok()? == source.modified).then_some(meta.len())
    });
    sizes.min().unwrap_or(source.size).min(source.size)
}

/// Makes one delta unless it is there; returns its name if it is worth it.
fn make_one(
    dictionary: &[u8],
    content: &[u8],
    source: &Source,
    base: &Path,
    limit: u64,
    summary: &Mutex<Summary>,
) -> io::Result<Option<PathBuf>> {
    let hash = Sha256::of(dictionary);
    let target = with_ending(base, &delta_ending(hash.as_bytes()));
    if target.file_name().is_none_or(|name| name.len() > NAME_BYTES_MAX) {
        return Ok(None);
    }
    let is_delta = |delta: &[u8]| -> io::Result<bool> {
        Ok(delta.starts_with(&delta_header(&hash)) && is_delta_of(delta, dictionary, content)?)
    };
    // Compared, not believed: builds that set all times to the same would otherwise leave deltas to older contents.
    if is_of_time(&target, source.modified)
        && let Ok(delta) = fs::read(&target)
        && is_delta(&delta)?
    {
        summary.lock().fresh += 1;
        return Ok(Some(target));
    }
    let limit = usize::try_from(limit).unwrap_or(0);
    let Some(delta) = make_smallest_delta((dictionary, &hash), content, limit)? else {
        summary.lock().larger += 1;
        return Ok(None);
    };
    if !is_delta(&delta)? {
        return Err(io::Error::other("zstd made a delta that does not decode to the file"));
    }
    let Some(size) = place(source, &target, |file| file.write_all(&delta))? else { return Ok(None) };
    let mut summary = summary.lock();
    (summary.deltas, summary.delta_bytes) = (summary.deltas + 1, summary.delta_bytes + size);
    Ok(Some(target))
}

/// Finds all deltas below a folder, by the file that they are of.
pub(super) fn find_deltas(root: &Path) -> io::Result<HashMap<PathBuf, Vec<PathBuf>>> {
    let (mut found, mut to_clean) = (HashMap::<_, Vec<_>>::new(), BTreeSet::new());
    walk(root, &mut |path, _| {
        let Some((folder, name)) = path.parent().zip(path.file_name()) else { return Ok(()) };
        if let Some(of) = file_of_delta(name) {
            found.entry(folder.join(of)).or_default().push(root.join(&path));
        } else if is_unfinished(name) {
            to_clean.insert(root.join(folder));
        }
        Ok(())
    })?;
    to_clean.iter().try_for_each(|folder| clean(folder))?;
    Ok(found)
}

/// The name of the file that a delta is of.
fn file_of_delta(name: &OsStr) -> Option<&OsStr> {
    let rest = name.as_bytes().strip_suffix(b".dcz")?;
    let (file, hash) = rest.split_at_checked(rest.len().checked_sub(HASH_DIGITS + 1)?)?;
    let is_hash = hash.strip_prefix(b".")?.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    (is_hash && !file.is_empty()).then(|| OsStr::from_bytes(file))
}
