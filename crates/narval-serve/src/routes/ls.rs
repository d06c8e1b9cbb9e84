//! `/<hash part>.ls`: the tree of a NAR without contents, and where in the NAR the contents are.

use narval_http::http1::accept::{Coding, negotiate_coding};
use narval_http::{Body, HeaderValue, Request, Response, StatusCode, header};
use narval_nix::HashPart;

use crate::error::ServeError;
use crate::service::Shared;

/// Listings from this size on are compressed for clients that say they can decompress.
const COMPRESS_BYTES_MIN: usize = 1024;
/// Fast: a listing is made for each request.
const LEVEL: i32 = 1;

/// Answers with the listing. A path with names that JSON can't hold has none, as in Nix.
pub(crate) fn answer(shared: &Shared, hash_part: HashPart, request: &Request) -> Result<Response, ServeError> {
    let (planned, _) = shared.plan(hash_part)?;
    let damaged = |reason: String| ServeError::Damaged { path: planned.path.base_name().to_owned(), reason };
    let listing = planned.layout.listing().map_err(|error| damaged(error.to_string()))?;
    let json = listing.to_json().map_err(|error| damaged(error.to_string()))?;
    let response = Response::new(StatusCode::OK)
        .header(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))
        .header(header::VARY, HeaderValue::from_static("accept-encoding"));
    let zstd = json.len() >= COMPRESS_BYTES_MIN
        && negotiate_coding(&request.head(), &[Coding::Zstd, Coding::Identity]) == Some(Coding::Zstd);
    if zstd && let Ok(compressed) = zstd::bulk::compress(json.as_bytes(), LEVEL) {
        return Ok(response
            .header(header::CONTENT_ENCODING, HeaderValue::from_static("zstd"))
            .body(Body::bytes(compressed)));
    }
    Ok(response.body(Body::bytes(json)))
}
