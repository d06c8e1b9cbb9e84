//! Small NARs, remembered whole and answered inline: derivations, scripts, configuration. They are most of the paths
//! of a store and hardly any of its bytes; making one from its file costs more than all the rest of the request.
//!
//! What is remembered was checked against the NAR hash, and belongs to a generation like a narinfo (see `memo`).

use std::io::Read;
use std::sync::Arc;

use narval_http::{HeadRef, HeaderValue, Prepared, header};
use narval_nix::{HashPart, Sha256};
use narval_store::{NarReader, NarStream};
use quick_cache::Weighter;
use quick_cache::sync::Cache;

use crate::error::ServeError;
use crate::layouts::Planned;
use crate::memo::Generation;
use crate::service::{Shared, prepared};

/// The largest NAR that counts as small, in bytes.
pub(crate) const SMALL_NAR_BYTES_MAX: u64 = 16 * 1024;
/// The memory that they may take, in bytes.
const SMALL_NARS_BYTES_MAX: u64 = 8 * 1024 * 1024;
/// What one takes beside its bytes.
const ENTRY_BYTES: u64 = 500;

/// A small NAR, ready to be sent.
#[derive(Debug)]
pub(crate) struct SmallNar {
    /// Its hash in nix32.
    nar_hash: String,
    /// The answer.
    response: Arc<Prepared>,
    length: u64,
}

/// See the module's description.
#[derive(Debug)]
pub(crate) struct SmallNars {
    entries: Cache<HashPart, (Generation, Arc<SmallNar>), ByBytes>,
}

#[derive(Clone, Debug)]
struct ByBytes;

impl Weighter<HashPart, (Generation, Arc<SmallNar>)> for ByBytes {
    fn weight(&self, _: &HashPart, (_, small): &(Generation, Arc<SmallNar>)) -> u64 {
        ENTRY_BYTES + small.length
    }
}

impl SmallNars {
    pub(crate) fn new() -> Self {
        Self { entries: Cache::with_weighter(4096, SMALL_NARS_BYTES_MAX, ByBytes) }
    }

    /// The answer for `/nar/<hash part>-<NAR hash>.nar` in this generation.
    pub(crate) fn get(&self, generation: Generation, hash_part: &HashPart, nar_hash: &str) -> Option<Arc<Prepared>> {
        let (of, small) = self.entries.get(hash_part)?;
        (of == generation && small.nar_hash == nar_hash).then(|| Arc::clone(&small.response))
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
        let length = nar.len() as u64;
        let response = prepared(narval_http::StatusCode::OK, content_type, &fields, nar);
        if let Some(generation) = generation {
            let small = SmallNar { nar_hash, response: Arc::clone(&response), length };
            self.small_nars.entries.insert(hash_part, (generation, Arc::new(small)));
        }
        Ok(response)
    }
}
