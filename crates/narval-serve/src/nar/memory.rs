//! NARs that are answered inline. Small ones are remembered whole: derivations, scripts, configuration. They are most of
//! the paths of a store and hardly any of its bytes; making one from its file costs more than all the rest of the request.
//! Of others it is remembered that they are kept in a file (see `flat_nars`), or compressed (see `nar_cache`).
//!
//! What is remembered was checked against the NAR hash, and belongs to a generation like a narinfo (see `memo`).

use std::io::Read;
use std::sync::{Arc, Weak};

use narval_http::{Body, FileRange, HeadRef, HeaderValue, Prepared, Response, StatusCode, header};
use narval_nix::{HashPart, NarHash, Sha256};
use narval_store::{NarReader, NarStream};
use quick_cache::Weighter;
use quick_cache::sync::Cache;

use crate::error::ServeError;
use crate::nar::damaged::NOT_AS_REGISTERED;
use crate::nar::packed::Kept;
use crate::nar::plan::Planned;
use crate::nar::representation::Representation;
use crate::narinfo::memo::Generation;
use crate::service::{Shared, prepared};

/// The largest NAR that counts as small, in bytes.
pub(crate) const SMALL_NAR_BYTES_MAX: u64 = 16 * 1024;
/// The memory that they may take, in bytes.
const SMALL_NARS_BYTES_MAX: u64 = 8 * 1024 * 1024;
/// What one takes beside its bytes.
const ENTRY_BYTES: u64 = 500;

/// NARs that are ready to be sent.
#[derive(Debug)]
pub(crate) struct ReadyNars {
    entries: Cache<(HashPart, Form), (Generation, Arc<Ready>), ByBytes>,
}

/// How a NAR is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Form {
    /// As it is.
    Identity,
    /// With zstd as its coding.
    Coded,
    /// As a file that is compressed with zstd.
    Zstd,
}

/// One of them.
#[derive(Debug)]
struct Ready {
    /// Its hash in nix32.
    nar_hash: String,
    answer: Answer,
}

#[derive(Debug)]
enum Answer {
    /// A small NAR.
    Memory(Arc<Prepared>),
    /// One that is kept, for as long as it is.
    File(Weak<Kept>, Representation),
    /// One that is compressed, for as long as it is there.
    Compressed(NarHash, Sha256, Representation),
}

#[derive(Clone, Debug)]
struct ByBytes;

impl Weighter<(HashPart, Form), (Generation, Arc<Ready>)> for ByBytes {
    fn weight(&self, _: &(HashPart, Form), (_, ready): &(Generation, Arc<Ready>)) -> u64 {
        match &ready.answer {
            Answer::Memory(response) => ENTRY_BYTES + response.body().len() as u64,
            Answer::File(..) | Answer::Compressed(..) => ENTRY_BYTES,
        }
    }
}

impl ReadyNars {
    pub(crate) fn new() -> Self {
        Self { entries: Cache::with_weighter(4096, SMALL_NARS_BYTES_MAX, ByBytes) }
    }

    /// The answer for `/nar/<hash part>-<NAR hash>.nar` (or `.nar.zst`) in this generation, to a request without ranges and
    /// conditions.
    pub(crate) fn get(
        &self,
        shared: &Shared,
        generation: Generation,
        (hash_part, nar_hash, form): (HashPart, &str, Form),
    ) -> Option<Response> {
        let entry = self.entries.get(&(hash_part, form));
        // Small NARs are not coded.
        let entry = match form {
            Form::Coded => entry.or_else(|| {
                let identity = self.entries.get(&(hash_part, Form::Identity));
                identity.filter(|(_, ready)| matches!(ready.answer, Answer::Memory(_)))
            }),
            Form::Identity | Form::Zstd => entry,
        };
        let (of, ready) = entry?;
        if of != generation || ready.nar_hash != nar_hash {
            return None;
        }
        let (metrics, whole) = (&shared.metrics, |representation: &Representation, file| {
            let body = Body::file(FileRange { file, offset: 0, length: representation.size });
            representation.fields(Response::new(StatusCode::OK), true).body(body)
        });
        match &ready.answer {
            Answer::Memory(response) => {
                metrics.nar_bytes_identity.inc_by(response.body().len() as u64);
                Some(Arc::clone(response).into())
            }
            Answer::File(kept, representation) => {
                let kept = kept.upgrade()?;
                let file = Arc::clone(kept.packed.whole()?);
                shared.flat_nars.as_ref()?.is_used(&kept);
                metrics.nar_bytes_identity.inc_by(representation.size);
                Some(whole(representation, file))
            }
            Answer::Compressed(nar_hash, file_hash, representation) => {
                let file = shared.nar_cache.as_ref()?.find_inline(nar_hash, file_hash)?;
                metrics.nar_cache_hits.inc();
                metrics.nar_bytes_zstd.inc_by(representation.size);
                Some(whole(representation, file.into()))
            }
        }
    }

    /// Remembers a NAR that is kept whole, for a generation that was taken before its path was looked up.
    pub(crate) fn is_kept(
        &self,
        generation: Generation,
        planned: &Planned,
        kept: &Arc<Kept>,
        representation: Representation,
    ) {
        let answer = Answer::File(Arc::downgrade(kept), representation);
        self.insert(generation, (planned.path.hash_part(), Form::Identity), &planned.nar_hash, answer);
    }

    /// Remembers a NAR that is there compressed, likewise.
    pub(crate) fn is_compressed(
        &self,
        generation: Generation,
        key: (HashPart, Form),
        (nar_hash, file_hash): (&NarHash, Sha256),
        representation: Representation,
    ) {
        self.insert(generation, key, nar_hash, Answer::Compressed(*nar_hash, file_hash, representation));
    }

    fn insert(&self, generation: Generation, key: (HashPart, Form), nar_hash: &NarHash, answer: Answer) {
        let ready = Ready { nar_hash: nar_hash.to_nix32(), answer };
        self.entries.insert(key, (generation, Arc::new(ready)));
    }
}

/// Whether a request asks for the whole, whatever the client has: no ranges, no conditions.
pub(crate) fn is_plain(head: &HeadRef<'_>) -> bool {
    !head.headers().any(|(name, _)| {
        name.eq_ignore_ascii_case("range") || name.get(..3).is_some_and(|start| start.eq_ignore_ascii_case("if-"))
    })
}

impl Shared {
    /// Makes a small NAR, checks it, and remembers it for a generation that was taken before it was planned.
    pub(crate) fn small_nar(
        &self,
        generation: Option<Generation>,
        planned: &Planned,
        stream: NarStream,
        content_type: &'static str,
    ) -> Result<Arc<Prepared>, ServeError> {
        let nar = self.checked_nar(planned, stream)?;
        let nar_hash = planned.nar_hash.to_nix32();
        let mut fields = vec![(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"))];
        if let Ok(etag) = HeaderValue::from_str(&format!("\"{nar_hash}\"")) {
            fields.push((header::ETAG, etag));
        }
        let response = Arc::new(prepared(StatusCode::OK, content_type, &fields, nar));
        if let Some(generation) = generation {
            let ready = Ready { nar_hash, answer: Answer::Memory(Arc::clone(&response)) };
            self.ready_nars.entries.insert((planned.path.hash_part(), Form::Identity), (generation, Arc::new(ready)));
        }
        Ok(response)
    }

    /// Makes a NAR in memory, and checks it.
    pub(crate) fn checked_nar(&self, planned: &Planned, stream: NarStream) -> Result<Vec<u8>, ServeError> {
        let damaged = |reason: String| ServeError::Damaged { path: planned.path.base_name().to_owned(), reason };
        let mut nar = Vec::with_capacity(usize::try_from(planned.layout.size_bytes()).unwrap_or(0));
        NarReader::of(stream).read_to_end(&mut nar).map_err(|error| ServeError::of_files(&planned.path, &error))?;
        if Sha256::of(&nar) != planned.nar_hash {
            self.corrupt.add(planned.path.hash_part(), &planned.nar_hash, &planned.real_path);
            return Err(damaged(NOT_AS_REGISTERED.to_owned()));
        }
        Ok(nar)
    }
}
