//! Makes the deltas of a site in advance: from the files of previous releases to those of this one.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::SystemTime;

use sha2::{Digest, Sha256};
use zstd::zstd_safe::{CCtx, CParameter, DCtx, DParameter, get_error_name};

use super::options::{PrecompressOptions, Precompressed};
use super::place::{place, remove_if_there, with_ending};
use super::source::{DEPTH_MAX, Source, collect, named};
use crate::files::dictionary::{DCZ_ENDING, DCZ_HEADER_LEN, DictionaryHash, dcz_header, delta_ending};
use crate::files::family::family;
use crate::files::resource::SIDECARS;

/// The largest file and the largest dictionary, in bytes: one of each is in memory for each thread.
const DELTA_FILE_BYTES_MAX: u64 = 32 << 20;
/// zstd's highest level without extra memory.
const DELTA_LEVEL: i32 = 19;
/// From this size on, matches are looked for with zstd's long distance matcher, too.
const LONG_DISTANCE_MIN: usize = 1 << 20;
/// The smallest window that zstd has, as a binary logarithm.
const WINDOW_LOG_MIN: u32 = 10;
/// The window that every receiver must accept, whatever the size of the dictionary (RFC 9842 section 5: 8 MB).
const WINDOW_MIN: u64 = 8_000_000;
/// A delta is kept if it is smaller than this share of the smallest encoding without a dictionary, in tenths.
const WORTH_TENTHS: u64 = 8;
/// The longest file name on Linux (`NAME_MAX`), less the ending of a file that is not complete.
const NAME_BYTES_MAX: usize = 255 - ".tmp".len();
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
    /// Lists the previous releases, and the deltas in `target`.
    pub(super) fn prepare(target: &Path, previous: &[PathBuf]) -> io::Result<Self> {
        let releases = previous.iter().map(|root| Release::open(root)).collect::<io::Result<_>>()?;
        let mut existing = HashMap::new();
        if target.is_dir() {
            find_deltas(target, Path::new(""), DEPTH_MAX, &mut existing)?;
        }
        Ok(Self { releases, existing })
    }

    /// Makes the deltas of a file, and removes those that are not of these releases, or not of its contents. `base` is the
    /// name that the encodings extend.
    pub(super) fn make(
        &self,
        path: &Path,
        source: &Source,
        base: &Path,
        options: &PrecompressOptions,
        summary: &Precompressed,
    ) -> io::Result<()> {
        let mut kept = Vec::new();
        if !self.releases.is_empty() && source.size <= DELTA_FILE_BYTES_MAX {
            let content = fs::read(path)?;
            let limit = smallest(base, source, options) * WORTH_TENTHS / 10;
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
        let mut sources = Vec::new();
        collect(root, Path::new(""), DEPTH_MAX, &mut sources)?;
        let mut release = Self { root: root.to_owned(), by_path: HashMap::new(), by_family: HashMap::new() };
        for source in sources.into_iter().filter(|source| source.size <= DELTA_FILE_BYTES_MAX) {
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
    let family = family(path.file_name()?.to_str()?)?;
    Some((path.parent()?.to_owned(), family.before.to_owned(), family.after.to_owned()))
}

/// The size of the smallest encoding without a dictionary.
fn smallest(base: &Path, source: &Source, options: &PrecompressOptions) -> u64 {
    let wanted = SIDECARS.iter().filter(|(coding, _)| options.codings.contains(coding));
    let sizes = wanted.filter_map(|(_, ending)| {
        let meta = fs::metadata(with_ending(base, ending)).ok()?;
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
    summary: &Precompressed,
) -> io::Result<Option<PathBuf>> {
    let hash: DictionaryHash = Sha256::digest(dictionary).into();
    let target = with_ending(base, &delta_ending(&hash));
    if target.file_name().is_none_or(|name| name.len() > NAME_BYTES_MAX) {
        return Ok(None);
    }
    // Compared, not believed: builds that set all times to the same would otherwise leave deltas to older contents.
    if is_of_time(&target, source.modified)
        && fs::read(&target).is_ok_and(|delta| is_delta(&delta, &hash, dictionary, content))
    {
        summary.fresh.fetch_add(1, Ordering::Relaxed);
        return Ok(Some(target));
    }
    let Some(delta) = encode(dictionary, &hash, content, usize::try_from(limit).unwrap_or(0))? else {
        summary.larger.fetch_add(1, Ordering::Relaxed);
        return Ok(None);
    };
    if !is_delta(&delta, &hash, dictionary, content) {
        return Err(io::Error::other("zstd made a delta that does not decode to the file"));
    }
    let size = place(source, &target, |file| file.write_all(&delta))?;
    summary.deltas.fetch_add(1, Ordering::Relaxed);
    summary.delta_bytes.fetch_add(size.unwrap_or(0), Ordering::Relaxed);
    Ok(size.map(|_| target))
}

/// The delta, if it has at most `limit` bytes and a window that every receiver accepts.
fn encode(dictionary: &[u8], hash: &DictionaryHash, content: &[u8], limit: usize) -> io::Result<Option<Vec<u8>>> {
    let size = content.len() as u64;
    let window_max = WINDOW_MIN.max(dictionary.len() as u64 * 5 / 4);
    let Some(frame_max) = limit.checked_sub(DCZ_HEADER_LEN).filter(|_| size <= window_max) else { return Ok(None) };
    let mut context = CCtx::try_create().ok_or(ErrorKind::OutOfMemory)?;
    for parameter in [
        CParameter::CompressionLevel(DELTA_LEVEL),
        // The dictionary is out of reach behind the first window. As the size is known, the frame has just that size.
        CParameter::WindowLog(size.next_power_of_two().ilog2().max(WINDOW_LOG_MIN)),
        CParameter::EnableLongDistanceMatching(content.len() >= LONG_DISTANCE_MIN),
        CParameter::DictIdFlag(false),
    ] {
        context.set_parameter(parameter).map_err(failed)?;
    }
    context.ref_prefix(dictionary).map_err(failed)?;
    let mut frame = Vec::with_capacity(frame_max);
    match context.compress2(&mut frame, content) {
        Ok(_) => Ok(Some([&dcz_header(hash)[..], &frame].concat())),
        Err(code) if get_error_name(code).contains("too small") => Ok(None),
        Err(code) => Err(failed(code)),
    }
}

/// Whether a delta decodes to the contents.
fn is_delta(delta: &[u8], hash: &DictionaryHash, dictionary: &[u8], content: &[u8]) -> bool {
    let Some(frame) = delta.strip_prefix(&dcz_header(hash)) else { return false };
    let Some(mut context) = DCtx::try_create() else { return false };
    let window_log = DELTA_FILE_BYTES_MAX.ilog2();
    let mut decoded = Vec::with_capacity(content.len());
    context.set_parameter(DParameter::WindowLogMax(window_log)).is_ok()
        && context.ref_prefix(dictionary).is_ok()
        && context.decompress(&mut decoded, frame).is_ok()
        && decoded == content
}

fn failed(code: usize) -> io::Error {
    io::Error::other(format!("zstd: {}", get_error_name(code)))
}

fn is_of_time(path: &Path, modified: SystemTime) -> bool {
    fs::metadata(path).and_then(|meta| meta.modified()).is_ok_and(|time| time == modified)
}

/// Finds all deltas below a folder, by the file that they are of.
fn find_deltas(root: &Path, below: &Path, depth: usize, found: &mut HashMap<PathBuf, Vec<PathBuf>>) -> io::Result<()> {
    let folder = root.join(below);
    let named = |error: io::Error| named("cannot read", &folder, &error);
    for entry in fs::read_dir(&folder).map_err(named)? {
        let entry = entry.map_err(named)?;
        let kind = match entry.file_type() {
            // Removed since. Only file systems that do not tell it with the names are asked again.
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            kind => kind.map_err(named)?,
        };
        let name = entry.file_name();
        if kind.is_dir() && depth > 0 {
            find_deltas(root, &below.join(&name), depth - 1, found)?;
        } else if let Some(of) = file_of_delta(&name).filter(|_| kind.is_file()) {
            found.entry(below.join(of)).or_default().push(folder.join(&name));
        }
    }
    Ok(())
}

/// The name of the file that a delta is of.
fn file_of_delta(name: &OsStr) -> Option<&OsStr> {
    use std::os::unix::ffi::OsStrExt;
    let rest = name.as_bytes().strip_suffix(DCZ_ENDING.as_bytes())?;
    let (file, hash) = rest.split_at_checked(rest.len().checked_sub(HASH_DIGITS + 1)?)?;
    let is_hash = hash.strip_prefix(b".")?.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    (is_hash && !file.is_empty()).then(|| OsStr::from_bytes(file))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::precompress;
    use crate::http1::accept::Coding;
    use std::num::NonZero;

    fn text(seed: u32) -> String {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state >> 8
        };
        (0..2000).map(|_| format!("let v{:x} = {};\n", next(), next())).collect()
    }

    fn options(previous: &[&Path], into: Option<&Path>) -> PrecompressOptions {
        PrecompressOptions {
            into: into.map(Into::into),
            codings: vec![Coding::Zstd, Coding::Gzip],
            threads: NonZero::new(2).unwrap(),
            previous: previous.iter().map(Into::into).collect(),
        }
    }

    fn write(root: &Path, name: &str, content: &str) {
        fs::create_dir_all(root.join(name).parent().unwrap()).unwrap();
        fs::write(root.join(name), content).unwrap();
    }

    fn deltas(root: &Path) -> Vec<String> {
        let mut found = HashMap::new();
        find_deltas(root, Path::new(""), DEPTH_MAX, &mut found).unwrap();
        let mut names: Vec<_> =
            found.into_iter().flat_map(|(of, deltas)| vec![of.to_str().unwrap().to_owned(); deltas.len()]).collect();
        names.sort();
        names
    }

    #[test]
    fn deltas_of_what_changed() {
        let [old, new] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let (old, new) = (old.path(), new.path());
        let app = text(1);
        write(old, "js/app.1111.js", &app);
        write(old, "js/app.0000.js", &app[..app.len() / 2]);
        write(new, "js/app.2222.js", &app.replacen("= 1", "= 2", 20));
        for (name, before, after) in
            [("same.css", text(2), text(2)), ("page.html", text(3), text(3) + "more"), ("other.js", text(4), text(5))]
        {
            write(old, name, &before);
            write(new, name, &after);
        }
        write(new, "added.js", &app);
        let summary = precompress(new, &options(&[old], None), |_, _| {}).unwrap();
        assert_eq!(deltas(new), ["js/app.2222.js", "page.html"]);
        assert_eq!(summary.deltas.into_inner(), 2);
        let hash: DictionaryHash = Sha256::digest(app.as_bytes()).into();
        let name = new.join(format!("js/app.2222.js{}", delta_ending(&hash)));
        let delta = fs::read(&name).unwrap();
        let content = fs::read(new.join("js/app.2222.js")).unwrap();
        assert!(is_delta(&delta, &hash, app.as_bytes(), &content) && delta.len() < 1000, "{}", delta.len());
        assert!(!is_delta(&delta, &hash, &app.as_bytes()[..app.len() - 1], &content));
        assert!(is_of_time(&name, fs::metadata(new.join("js/app.2222.js")).unwrap().modified().unwrap()));
        // Nothing is made twice, and nothing is removed where no release is named.
        let again = precompress(new, &options(&[old], None), |_, _| {}).unwrap();
        assert_eq!((again.made.into_inner(), again.deltas.into_inner()), (0, 0));
        precompress(new, &options(&[], None), |_, _| {}).unwrap();
        assert_eq!(deltas(new).len(), 2);
    }

    #[test]
    fn deltas_to_older_contents_are_removed() {
        let [old, new, into] = [(); 3].map(|()| tempfile::tempdir().unwrap());
        let (old, new, into) = (old.path(), new.path(), into.path());
        write(old, "a.js", &text(1));
        write(new, "a.js", &(text(1) + "two"));
        let modified = |time: u64| {
            let time = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(time);
            fs::File::open(new.join("a.js")).unwrap().set_modified(time).unwrap();
        };
        modified(1);
        let both = options(&[old, new], Some(into));
        precompress(new, &both, |_, _| {}).unwrap();
        assert_eq!((deltas(into), deltas(new).len()), (vec!["a.js".to_owned()], 0));
        // The same time, as after a reproducible build.
        let three = text(1) + "three";
        write(new, "a.js", &three);
        modified(1);
        assert_eq!(precompress(new, &both, |_, _| {}).unwrap().deltas.into_inner(), 1);
        let hash: DictionaryHash = Sha256::digest(text(1).as_bytes()).into();
        let delta = fs::read(with_ending(&into.join("a.js"), &delta_ending(&hash))).unwrap();
        assert!(is_delta(&delta, &hash, text(1).as_bytes(), three.as_bytes()));
        // Another time, and no release to make one from.
        write(new, "a.js", &text(7));
        modified(2);
        precompress(new, &options(&[], Some(into)), |_, _| {}).unwrap();
        assert!(deltas(into).is_empty());
    }

    #[test]
    fn no_window_is_larger_than_receivers_accept() {
        let content = vec![7; 8_000_001];
        let hash = [1; 32];
        assert!(encode(&content[..1000], &hash, &content, 1 << 20).unwrap().is_none());
        assert!(encode(&content[..6_400_001], &hash, &content, 1 << 20).unwrap().is_some());
        assert!(encode(&content[..1000], &hash, &content[1..], 1 << 20).unwrap().is_some());
        assert!(encode(&content, &hash, &content, DCZ_HEADER_LEN - 1).unwrap().is_none());
    }
}
