//! NARs that are answered inline. Small ones are kept in memory: derivations, scripts, configuration. They are most
//! paths of a store, but few of its bytes, and generating one from its file costs more than the rest of the request.
//! For others, memory holds their location: packed into one file (`packed`) or compressed (`zstd`).
//!
//! Entries are verified against the NAR hash, and valid for one state of the database, like narinfos (`narinfo/memo`).

use std::io::Read;
use std::sync::{Arc, Weak};

use narval_http::{Body, FileRange, HeadRef, HeaderValue, Prepared, Response, StatusCode, header};
use narval_nix::{HashPart, NarHash, Sha256};
use narval_store::{NarReader, NarStream, Stamp};
use quick_cache::Weighter;
use quick_cache::sync::Cache;

use crate::error::ServeError;
use crate::metrics::Metrics;
use crate::nar::damaged::{DamagedPaths, NOT_AS_REGISTERED};
use crate::nar::packed::{PackedFile, PackedNars};
use crate::nar::plan::PathNar;
use crate::nar::representation::Representation;
use crate::nar::zstd::NarCache;
use crate::prepared::prepared;

/// The largest NAR that counts as small, in bytes.
pub(crate) const SMALL_NAR_BYTES_MAX: u64 = 16 * 1024;
/// Memory for all of them, in bytes.
const SMALL_NARS_BYTES_MAX: u64 = 8 * 1024 * 1024;
/// Memory of an entry besides the NAR itself.
const ENTRY_BYTES: u64 = 500;

/// NARs that can be sent immediately.
#[derive(Debug)]
pub(crate) struct NarMemory {
    entries: Cache<(HashPart, NarFormat), (Stamp, Arc<Ready>), ByBytes>,
    packed: Option<Arc<PackedNars>>,
    compressed: Option<Arc<NarCache>>,
    metrics: Arc<Metrics>,
}

/// The format in which a NAR is requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum NarFormat {
    /// Uncompressed.
    Identity,
    /// With zstd as its content coding.
    Coded,
    /// As the compressed file (`.nar.zst`).
    Zstd,
}

/// A NAR in memory, or its location.
#[derive(Debug)]
struct Ready {
    /// The NAR hash in nix32.
    nar_hash: String,
    answer: Answer,
}

#[derive(Debug)]
enum Answer {
    /// A small NAR.
    Memory(Arc<Prepared>),
    /// A packed NAR, as long as its file is kept.
    Packed(Weak<PackedFile>, Representation),
    /// A compressed NAR, as long as its file is kept.
    Compressed(NarHash, Sha256, Representation),
}

#[derive(Clone, Debug)]
struct ByBytes;

impl Weighter<(HashPart, NarFormat), (Stamp, Arc<Ready>)> for ByBytes {
    fn weight(&self, _: &(HashPart, NarFormat), (_, ready): &(Stamp, Arc<Ready>)) -> u64 {
        match &ready.answer {
            Answer::Memory(response) => ENTRY_BYTES + response.body().len() as u64,
            Answer::Packed(..) | Answer::Compressed(..) => ENTRY_BYTES,
        }
    }
}

impl NarMemory {
    pub(crate) fn new(
        packed: Option<Arc<PackedNars>>,
        compressed: Option<Arc<NarCache>>,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self { entries: Cache::with_weighter(4096, SMALL_NARS_BYTES_MAX, ByBytes), packed, compressed, metrics }
    }

    /// The answer for `/nar/<hash part>-<NAR hash>.nar` (or `.nar.zst`) in the state of the database that `stamp` stands for, to a
    /// request without ranges and conditions.
    pub(crate) fn get(
        &self,
        stamp: Stamp,
        (hash_part, nar_hash, format): (HashPart, &str, NarFormat),
    ) -> Option<Response> {
        let entry = self.entries.get(&(hash_part, format));
        // Small NARs are not coded.
        let entry = match format {
            NarFormat::Coded => entry.or_else(|| {
                let identity = self.entries.get(&(hash_part, NarFormat::Identity));
                identity.filter(|(_, ready)| matches!(ready.answer, Answer::Memory(_)))
            }),
            NarFormat::Identity | NarFormat::Zstd => entry,
        };
        let (of, ready) = entry?;
        if of != stamp || ready.nar_hash != nar_hash {
            return None;
        }
        let (metrics, whole) = (&self.metrics, |representation: &Representation, file| {
            let body = Body::file(FileRange { file, offset: 0, length: representation.size });
            representation.fields(Response::new(StatusCode::OK), true).body(body)
        });
        match &ready.answer {
            Answer::Memory(response) => {
                metrics.nar_bytes_identity.inc_by(response.body().len() as u64);
                Some(Arc::clone(response).into())
            }
            Answer::Packed(packed, representation) => {
                let packed = packed.upgrade()?;
                let file = Arc::clone(packed.nar.whole()?);
                self.packed.as_ref()?.record_use(&packed);
                metrics.nar_bytes_identity.inc_by(representation.size);
                Some(whole(representation, file))
            }
            Answer::Compressed(nar_hash, file_hash, representation) => {
                let file = self.compressed.as_ref()?.find_inline(nar_hash, file_hash)?;
                metrics.nar_cache_hits.inc();
                metrics.nar_bytes_zstd.inc_by(representation.size);
                Some(whole(representation, file.into()))
            }
        }
    }

    /// Remembers that a whole NAR is packed into one file. As always, `stamp` must have been taken before the path was
    /// looked up.
    pub(crate) fn insert_packed(
        &self,
        stamp: Stamp,
        path_nar: &PathNar,
        packed: &Arc<PackedFile>,
        representation: Representation,
    ) {
        let answer = Answer::Packed(Arc::downgrade(packed), representation);
        self.insert(stamp, (path_nar.path.hash_part(), NarFormat::Identity), &path_nar.nar_hash, answer);
    }

    /// Remembers that there is a compressed file of a NAR.
    pub(crate) fn insert_compressed(
        &self,
        stamp: Stamp,
        key: (HashPart, NarFormat),
        (nar_hash, file_hash): (&NarHash, Sha256),
        representation: Representation,
    ) {
        self.insert(stamp, key, nar_hash, Answer::Compressed(*nar_hash, file_hash, representation));
    }

    fn insert(&self, stamp: Stamp, key: (HashPart, NarFormat), nar_hash: &NarHash, answer: Answer) {
        let ready = Ready { nar_hash: nar_hash.to_nix32(), answer };
        self.entries.insert(key, (stamp, Arc::new(ready)));
    }

    /// Generates a small NAR, verifies it, and remembers it.
    pub(crate) fn small_nar(
        &self,
        stamp: Option<Stamp>,
        path_nar: &PathNar,
        stream: NarStream,
        content_type: &'static str,
        damaged: &DamagedPaths,
    ) -> Result<Arc<Prepared>, ServeError> {
        let nar = verified_nar(path_nar, stream, damaged)?;
        let nar_hash = path_nar.nar_hash.to_nix32();
        let mut fields = vec![(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"))];
        if let Ok(etag) = HeaderValue::from_str(&format!("\"{nar_hash}\"")) {
            fields.push((header::ETAG, etag));
        }
        let response = Arc::new(prepared(StatusCode::OK, content_type, &fields, nar));
        if let Some(stamp) = stamp {
            let ready = Ready { nar_hash, answer: Answer::Memory(Arc::clone(&response)) };
            self.entries.insert((path_nar.path.hash_part(), NarFormat::Identity), (stamp, Arc::new(ready)));
        }
        Ok(response)
    }
}

/// Whether a request asks for the whole NAR unconditionally: no ranges, no conditions.
pub(crate) fn is_plain(head: &HeadRef<'_>) -> bool {
    !head.headers().any(|(name, _)| {
        name.eq_ignore_ascii_case("range") || name.get(..3).is_some_and(|start| start.eq_ignore_ascii_case("if-"))
    })
}

/// Generates a NAR in memory, and verifies it.
pub(crate) fn verified_nar(
    path_nar: &PathNar,
    stream: NarStream,
    damaged: &DamagedPaths,
) -> Result<Vec<u8>, ServeError> {
    let mut nar = Vec::with_capacity(usize::try_from(path_nar.layout.size_bytes()).unwrap_or(0));
    NarReader::of(stream).read_to_end(&mut nar).map_err(|error| ServeError::of_files(&path_nar.path, &error))?;
    if Sha256::of(&nar) != path_nar.nar_hash {
        damaged.add(path_nar.path.hash_part(), &path_nar.nar_hash, &path_nar.real_path);
        return Err(ServeError::damaged(&path_nar.path, NOT_AS_REGISTERED));
    }
    Ok(nar)
}
