//! Small files about paths of a live store, as JSON.
//!
//! - `/<hash part>.ls`: the file tree of a NAR, with the offset of each file in the NAR.
//! - `/build-trace-v2/<derivation>/<output>.doi` (Nix 2.35 and newer) and `/realisations/sha256:<hash>!<output>.doi` (older): which path an output of
//!   a content-addressed derivation turned out to be (`libstore/binary-cache-store.cc`).

use std::collections::BTreeMap;

use narval_http::semantics::accept::{Coding, negotiate_coding};
use narval_http::{Body, HeadRef, HeaderValue, Response, StatusCode, header};
use narval_nix::HashPart;
use narval_nix::realisation::{BuildTrace, BuildTraceKey, DrvOutput, Realisation};
use narval_store::Store;

use crate::error::ServeError;
use crate::nar::plan::Planner;

/// Listings of at least this size are compressed for clients that accept it.
const COMPRESS_BYTES_MIN: usize = 1024;
/// Fast: a listing is made for each request.
const LEVEL: i32 = 1;

/// Answers with the listing. As in Nix, a path with file names that are not UTF-8 has none.
pub(crate) fn listing(planner: &Planner, hash_part: HashPart, head: &HeadRef<'_>) -> Result<Response, ServeError> {
    let (path_nar, _) = planner.plan(hash_part)?;
    let damaged = |reason: String| ServeError::Damaged { path: path_nar.path.base_name().to_owned(), reason };
    let listing = path_nar.layout.listing().map_err(|error| damaged(error.to_string()))?;
    let text = listing.to_json().map_err(|error| damaged(error.to_string()))?;
    let vary = HeaderValue::from_static("accept-encoding");
    let zstd = text.len() >= COMPRESS_BYTES_MIN
        && negotiate_coding(head, &[Coding::Zstd, Coding::Identity]) == Some(Coding::Zstd);
    if zstd && let Ok(compressed) = zstd::bulk::compress(text.as_bytes(), LEVEL) {
        return Ok(json(compressed)
            .header(header::VARY, vary)
            .header(header::CONTENT_ENCODING, HeaderValue::from_static("zstd")));
    }
    Ok(json(text).header(header::VARY, vary))
}

/// Answers with a build trace and its signatures.
pub(crate) fn build_trace(store: &Store, key: &BuildTraceKey) -> Result<Response, ServeError> {
    let found = store.realisation(&key.drv_path, key.output_name.as_str())?.ok_or(ServeError::NoPath)?;
    let trace = BuildTrace { out_path: found.output_path, signatures: found.signatures };
    Ok(json(trace.to_json()))
}

/// Answers in the older form, by the hash of the derivation.
pub(crate) fn realisation(store: &Store, id: DrvOutput) -> Result<Response, ServeError> {
    let hash = format!("sha256:{}", id.drv_hash.to_hex());
    let found = store.realisation_by_hash(&hash, id.output_name.as_str())?.ok_or(ServeError::NoPath)?;
    let (out_path, signatures) = (found.output_path, found.signatures);
    let realisation = Realisation { id, out_path, signatures, dependent_realisations: BTreeMap::new() };
    Ok(json(realisation.to_json()))
}

fn json(text: impl Into<Vec<u8>>) -> Response {
    Response::new(StatusCode::OK)
        .header(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))
        .body(Body::bytes(text.into()))
}
