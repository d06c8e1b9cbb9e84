//! NARs that are answered inline. Small ones are remembered whole: derivations, scripts, configuration. They are most of
//! the paths of a store and hardly any of its bytes; making one from its file costs more than all the rest of the request.
//! Of others it is remembered that they are kept in a file (see `flat_nars`).
//!
//! What is remembered was checked against the NAR hash, and belongs to a generation like a narinfo (see `memo`).

use std::io::Read;
use std::sync::{Arc, Weak};

use narval_http::{Body, FileRange, HeadRef, HeaderValue, Prepared, Response, StatusCode, header};
use narval_nix::{HashPart, Sha256};
use narval_store::{NarReader, NarStream};
use quick_cache::Weighter;
use quick_cache::sync::Cache;

use crate::error::ServeError;
use crate::flat_nars::Kept;
use crate::layouts::Planned;
use crate::memo::Generation;
use crate::routes::nar::asks_for_zstd;
use crate::routes::representation::Representation;
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
    entries: Cache<HashPart, (Generation, Arc<Ready>), ByBytes>,
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
}

#[derive(Clone, Debug)]
struct ByBytes;

impl Weighter<HashPart, (Generation, Arc<Ready>)> for ByBytes {
    fn weight(&self, _: &HashPart, (_, ready): &(Generation, Arc<Ready>)) -> u64 {
        match &ready.answer {
            Answer::Memory(response) => ENTRY_BYTES + response.body().len() as u64,
            Answer::File(..) => ENTRY_BYTES,
        }
    }
}

impl ReadyNars {
    pub(crate) fn new() -> Self {
        Self { entries: Cache::with_weighter(4096, SMALL_NARS_BYTES_MAX, ByBytes) }
    }

    /// The answer for `/nar/<hash part>-<NAR hash>.nar` in this generation.
    pub(crate) fn get(
        &self,
        shared: &Shared,
        generation: Generation,
        hash_part: &HashPart,
        nar_hash: &str,
        head: &HeadRef<'_>,
    ) -> Option<Response> {
        let (of, ready) = self.entries.get(hash_part)?;
        if of != generation || ready.nar_hash != nar_hash {
            return None;
        }
        match &ready.answer {
            Answer::Memory(response) => Some(Arc::clone(response).into()),
            // Small NARs are not coded.
            Answer::File(..) if shared.nar_cache.is_some() && asks_for_zstd(head) => None,
            Answer::File(kept, representation) => {
                let kept = kept.upgrade()?;
                let file = Arc::clone(kept.packed.whole()?);
                shared.flat_nars.as_ref()?.is_used(&kept);
                let body = Body::file(FileRange { file, offset: 0, length: representation.size });
                Some(representation.fields(Response::new(StatusCode::OK), true).body(body))
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
        let ready = Ready { nar_hash: planned.nar_hash.to_nix32(), answer };
        self.entries.insert(planned.path.hash_part(), (generation, Arc::new(ready)));
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
        let damaged = |reason: String| ServeError::Damaged { path: planned.path.base_name().to_owned(), reason };
        let mut nar = Vec::new();
        NarReader::of(stream).read_to_end(&mut nar).map_err(|error| damaged(error.to_string()))?;
        let hash_part = planned.path.hash_part();
        if Sha256::of(&nar) != planned.nar_hash {
            self.corrupt.add(hash_part, &planned.nar_hash, &planned.real_path);
            return Err(damaged(crate::corrupt::NOT_AS_REGISTERED.to_owned()));
        }
        let nar_hash = planned.nar_hash.to_nix32();
        let mut fields = vec![(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"))];
        if let Ok(etag) = HeaderValue::from_str(&format!("\"{nar_hash}\"")) {
            fields.push((header::ETAG, etag));
        }
        let response = prepared(StatusCode::OK, content_type, &fields, nar);
        if let Some(generation) = generation {
            let ready = Ready { nar_hash, answer: Answer::Memory(Arc::clone(&response)) };
            self.ready_nars.entries.insert(hash_part, (generation, Arc::new(ready)));
        }
        Ok(response)
    }
}
