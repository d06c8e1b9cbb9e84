//! `/<hash part>.ls`: the file tree of a NAR, with the offset of each file in the NAR.

use narval_http::semantics::accept::{Coding, negotiate_coding};
use narval_http::{Body, HeadRef, HeaderValue, Response, StatusCode, header};
use narval_nix::HashPart;

use crate::error::ServeError;
use crate::nar::plan::Planner;

/// Listings of at least this size are compressed for clients that accept it.
const COMPRESS_BYTES_MIN: usize = 1024;
/// Fast: a listing is made for each request.
const LEVEL: i32 = 1;

/// Answers with the listing. As in Nix, a path with file names that are not UTF-8 has none.
pub(crate) fn answer(planner: &Planner, hash_part: HashPart, head: &HeadRef<'_>) -> Result<Response, ServeError> {
    let (planned, _) = planner.plan(hash_part)?;
    let damaged = |reason: String| ServeError::Damaged { path: planned.path.base_name().to_owned(), reason };
    let listing = planned.layout.listing().map_err(|error| damaged(error.to_string()))?;
    let json = listing.to_json().map_err(|error| damaged(error.to_string()))?;
    let response = Response::new(StatusCode::OK)
        .header(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))
        .header(header::VARY, HeaderValue::from_static("accept-encoding"));
    let zstd = json.len() >= COMPRESS_BYTES_MIN
        && negotiate_coding(head, &[Coding::Zstd, Coding::Identity]) == Some(Coding::Zstd);
    if zstd && let Ok(compressed) = zstd::bulk::compress(json.as_bytes(), LEVEL) {
        return Ok(response
            .header(header::CONTENT_ENCODING, HeaderValue::from_static("zstd"))
            .body(Body::bytes(compressed)));
    }
    Ok(response.body(Body::bytes(json)))
}
