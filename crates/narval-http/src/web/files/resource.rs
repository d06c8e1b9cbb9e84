use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::header::{
    ACCEPT_RANGES, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_TYPE, ETAG, LAST_MODIFIED, VARY, X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderName, HeaderValue, StatusCode};

use super::dictionary::{DCZ_HEADER_LEN, DictionaryHash, dcz_header, delta_ending, delta_etag, use_as_dictionary};
use super::folder::{Folder, Found, Stamp, read_whole};
use super::{SiteOptions, content_type};
use crate::http1::accept::Coding;
use crate::http1::date;
use crate::http1::range::ByteRange;
use crate::http1::response_head::Prepared;
use crate::message::body::Body;
use crate::message::body::source::FileRange;

/// Files up to this size are kept in memory and sent together with their head: copying 32 KiB costs about as much as
/// the system calls that would avoid it.
const MEMORY_FILE_BYTES_MAX: u64 = 32 * 1024;

/// The encodings looked for beside a file, with their file name extensions.
const SIDECARS: [(Coding, &str); 3] = [(Coding::Zstd, ".zst"), (Coding::Brotli, ".br"), (Coding::Gzip, ".gz")];

/// The field of RFC 9842 section 2.1.
const USE_AS_DICTIONARY: HeaderName = HeaderName::from_static("use-as-dictionary");

/// A file of the site, with all its encodings.
#[derive(Debug)]
pub(super) struct Resource {
    /// The file itself first, then smaller encodings, the smallest first.
    pub(super) variants: Vec<Variant>,
    pub(super) last_modified: SystemTime,
    /// Its `Use-As-Dictionary` field. Only such files have deltas.
    pub(super) use_as_dictionary: Option<HeaderValue>,
    /// Its name beneath the root.
    path: PathBuf,
    /// When it was last checked, in milliseconds of the site's clock.
    checked_ms: AtomicU64,
}

/// One encoding of a file.
#[derive(Debug)]
pub(super) struct Variant {
    pub(super) coding: Coding,
    pub(super) stamp: Stamp,
    pub(super) etag: HeaderValue,
    /// The fields of a 200, except those for the length.
    pub(super) headers: Vec<(HeaderName, HeaderValue)>,
    pub(super) content: Content,
}

#[derive(Clone, Debug)]
pub(super) enum Content {
    /// A small file: its bytes, and the encoded response.
    Memory(Bytes, Arc<Prepared>),
    File(Arc<File>),
}

impl Resource {
    /// Makes a resource of an open file, and finds its encodings.
    pub(super) fn load(
        file: File,
        stamp: Stamp,
        path: &Path,
        root: &Folder,
        sidecar_root: Option<&Folder>,
        options: &SiteOptions,
    ) -> io::Result<Self> {
        let mut found = vec![(Coding::Identity, file, stamp)];
        if options.sidecars {
            let mut smaller = find_sidecars(path, &stamp, sidecar_root.unwrap_or(root))?;
            smaller.sort_by_key(|(_, _, stamp)| stamp.size);
            found.extend(smaller);
        }
        let use_as_dictionary = use_as_dictionary(path, options);
        let last_modified = not_in_the_future(stamp.modified());
        let common = Common {
            content_type: content_type(path),
            last_modified,
            cache_control: options.cache_control.iter().find_map(|rule| rule.value_for(path)),
            use_as_dictionary: use_as_dictionary.as_ref(),
            has_sidecars: found.len() > 1,
        };
        let variants = found
            .into_iter()
            .map(|(coding, file, stamp)| {
                let etag = etag(&stamp, coding);
                let headers = headers(&common, coding, &etag);
                let content = Content::load(file, &stamp, &headers)?;
                Ok(Variant { coding, stamp, etag, headers, content })
            })
            .collect::<io::Result<Vec<_>>>()?;
        Ok(Self { variants, last_modified, use_as_dictionary, path: path.to_owned(), checked_ms: AtomicU64::new(0) })
    }

    /// Worker: the delta of this file from a dictionary. `None` if there is none, or none that is newer than the file.
    pub(super) fn load_delta(
        &self,
        dictionary: &DictionaryHash,
        root: &Folder,
        sidecar_root: Option<&Folder>,
        options: &SiteOptions,
    ) -> io::Result<Option<Self>> {
        let Some(identity) = self.identity() else { return Ok(None) };
        let path = with_ending(&self.path, &delta_ending(dictionary));
        let Found::File(file, stamp) = sidecar_root.unwrap_or(root).find(&path)? else { return Ok(None) };
        let mut header = [0; DCZ_HEADER_LEN];
        if !is_sidecar(&stamp, &identity.stamp)
            || stamp.size <= DCZ_HEADER_LEN as u64
            || file.read_exact_at(&mut header, 0).is_err()
            || header != dcz_header(dictionary)
        {
            return Ok(None);
        }
        let common = Common {
            content_type: identity.content_type(),
            last_modified: self.last_modified,
            cache_control: options.cache_control.iter().find_map(|rule| rule.value_for(&self.path)),
            use_as_dictionary: self.use_as_dictionary.as_ref(),
            has_sidecars: true,
        };
        let etag = delta_etag(&identity.stamp, dictionary);
        let headers = headers(&common, Coding::Dcz, &etag);
        let content = Content::load(file, &stamp, &headers)?;
        Ok(Some(Self {
            variants: vec![Variant { coding: Coding::Dcz, stamp, etag, headers, content }],
            last_modified: self.last_modified,
            use_as_dictionary: None,
            path,
            checked_ms: AtomicU64::new(0),
        }))
    }

    /// Whether this delta is of that file in its current state.
    pub(super) fn is_delta_of(&self, file: &Self, dictionary: &DictionaryHash) -> bool {
        let etag = file.identity().map(|identity| delta_etag(&identity.stamp, dictionary));
        self.identity().map(|delta| &delta.etag) == etag.as_ref()
    }

    /// Worker: checks whether its name and those of its encodings still refer to the same files; if so, nothing needs
    /// to be read. Also returns `false` if that is not known.
    pub(super) fn is_still_so(&self, root: &Folder, sidecar_root: Option<&Folder>, options: &SiteOptions) -> bool {
        let Some(identity) = self.identity() else { return false };
        let is_same = matches!(root.find(&self.path), Ok(Found::File(_, stamp)) if stamp == identity.stamp);
        is_same
            && (!options.sidecars
                || SIDECARS.iter().all(|(coding, ending)| {
                    let known = self.variants.iter().skip(1).find(|variant| variant.coding == *coding);
                    match sidecar_root.unwrap_or(root).find(&with_ending(&self.path, ending)) {
                        Ok(Found::File(_, stamp)) if is_sidecar(&stamp, &identity.stamp) => {
                            known.is_some_and(|variant| variant.stamp == stamp)
                        }
                        Ok(_) => known.is_none(),
                        Err(_) => false,
                    }
                }))
    }

    /// Whether this is its name beneath the root.
    pub(super) fn is_at(&self, path: &Path) -> bool {
        self.path == path
    }

    /// The variant that is the file itself.
    pub(super) fn identity(&self) -> Option<&Variant> {
        self.variants.first()
    }

    pub(super) fn is_same_as(&self, other: &Self) -> bool {
        self.variants.len() == other.variants.len()
            && self.variants.iter().zip(&other.variants).all(|(a, b)| a.stamp == b.stamp && a.coding == b.coding)
    }

    pub(super) fn checked_at(&self, now_ms: u64) {
        self.checked_ms.store(now_ms, Ordering::Relaxed);
    }

    pub(super) fn is_fresh(&self, now_ms: u64, revalidate_after_ms: u64) -> bool {
        now_ms.saturating_sub(self.checked_ms.load(Ordering::Relaxed)) < revalidate_after_ms
    }

    pub(super) fn memory_bytes(&self) -> u64 {
        self.variants
            .iter()
            .map(|variant| match &variant.content {
                Content::Memory(bytes, _) => bytes.len() as u64,
                Content::File(_) => 0,
            })
            .sum()
    }

    pub(super) fn open_files(&self) -> u64 {
        self.variants.iter().filter(|variant| matches!(variant.content, Content::File(_))).count() as u64
    }
}

impl Variant {
    pub(super) fn content_type(&self) -> HeaderValue {
        let field = self.headers.iter().find(|(name, _)| name == CONTENT_TYPE);
        field.map_or(HeaderValue::from_static("application/octet-stream"), |(_, value)| value.clone())
    }

    /// All of it.
    pub(super) fn body(&self) -> Body {
        self.content.part(ByteRange { start: 0, length: self.stamp.size })
    }
}

impl Content {
    fn load(file: File, stamp: &Stamp, headers: &[(HeaderName, HeaderValue)]) -> io::Result<Self> {
        if stamp.size <= MEMORY_FILE_BYTES_MAX {
            let Some(content) = read_whole(&file, stamp)? else {
                // The caller tries again.
                return Err(io::ErrorKind::Interrupted.into());
            };
            let content = Bytes::from(content);
            return Ok(Self::Memory(content.clone(), Arc::new(Prepared::new(StatusCode::OK, headers, content))));
        }
        Ok(Self::File(Arc::new(file)))
    }

    /// A part of it.
    pub(super) fn part(&self, range: ByteRange) -> Body {
        match self {
            Self::Memory(bytes, _) => Body::bytes(bytes.slice(bounds(range, bytes.len()))),
            Self::File(file) => Body::file(file_range(file, range)),
        }
    }
}

pub(super) fn file_range(file: &Arc<File>, range: ByteRange) -> FileRange {
    FileRange { file: file.clone(), offset: range.start, length: range.length }
}

/// The range as indices; it was selected for this length.
pub(super) fn bounds(range: ByteRange, length: usize) -> std::ops::Range<usize> {
    let clamp = |offset: u64| usize::try_from(offset).unwrap_or(length).min(length);
    clamp(range.start)..clamp(range.start.saturating_add(range.length))
}

/// The file name extension of an encoding; `None` for those that are never looked for.
pub fn sidecar_ending(coding: Coding) -> Option<&'static str> {
    SIDECARS.iter().find(|(have, _)| *have == coding).map(|(_, ending)| *ending)
}

/// Encodings of `path` that are smaller than it and not older.
fn find_sidecars(path: &Path, source: &Stamp, root: &Folder) -> io::Result<Vec<(Coding, File, Stamp)>> {
    let mut found = Vec::new();
    for (coding, ending) in SIDECARS {
        if let Found::File(file, stamp) = root.find(&with_ending(path, ending))?
            && is_sidecar(&stamp, source)
        {
            found.push((coding, file, stamp));
        }
    }
    Ok(found)
}

fn with_ending(path: &Path, ending: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(ending);
    name.into()
}

/// Whether an encoding is smaller than its source and not older.
fn is_sidecar(stamp: &Stamp, source: &Stamp) -> bool {
    stamp.size < source.size && stamp.modified_ns() >= source.modified_ns()
}

/// A strong tag: modification time in nanoseconds and size, of the bytes that are sent.
fn etag(stamp: &Stamp, coding: Coding) -> HeaderValue {
    let suffix = if coding == Coding::Identity { "" } else { coding.name() };
    let tag = format!("\"{:x}-{:x}{suffix}\"", stamp.modified_ns(), stamp.size);
    HeaderValue::try_from(tag).unwrap_or(HeaderValue::from_static("\"\""))
}

/// `Last-Modified` is never later than `Date` (RFC 9110 section 8.8.2.1), which may be a second old.
fn not_in_the_future(modified: SystemTime) -> SystemTime {
    let now = SystemTime::now();
    if modified > now { now - Duration::from_secs(1) } else { modified }
}

/// What the responses with any encoding of a file have in common.
struct Common<'a> {
    content_type: HeaderValue,
    last_modified: SystemTime,
    cache_control: Option<&'a HeaderValue>,
    use_as_dictionary: Option<&'a HeaderValue>,
    has_sidecars: bool,
}

fn headers(common: &Common<'_>, coding: Coding, etag: &HeaderValue) -> Vec<(HeaderName, HeaderValue)> {
    let mut headers = vec![(CONTENT_TYPE, common.content_type.clone())];
    if coding != Coding::Identity {
        headers.push((CONTENT_ENCODING, HeaderValue::from_static(coding.name())));
    }
    if let Some(value) = common.use_as_dictionary {
        headers.push((VARY, HeaderValue::from_static("accept-encoding, available-dictionary")));
        headers.push((USE_AS_DICTIONARY, value.clone()));
    } else if common.has_sidecars {
        headers.push((VARY, HeaderValue::from_static("accept-encoding")));
    }
    if let Ok(date) = HeaderValue::from_bytes(&date::format(common.last_modified)) {
        headers.push((LAST_MODIFIED, date));
    }
    headers.push((ETAG, etag.clone()));
    if coding != Coding::Dcz {
        headers.push((ACCEPT_RANGES, HeaderValue::from_static("bytes")));
    }
    headers.push((X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")));
    if let Some(value) = common.cache_control {
        headers.push((CACHE_CONTROL, value.clone()));
    }
    headers
}
