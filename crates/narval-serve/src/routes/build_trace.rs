//! `/build-trace-v2/<derivation>/<output>.doi` (Nix 2.35 and newer) and `/realisations/sha256:<hash>!<output>.doi`
//! (older): which path an output of a content-addressed derivation turned out to be (`libstore/binary-cache-store.cc`).

use std::collections::BTreeMap;

use narval_http::{Body, HeaderValue, Response, StatusCode, header};
use narval_nix::realisation::{BuildTrace, BuildTraceKey, DrvOutput, Realisation};
use narval_store::Store;

use crate::error::ServeError;

/// Answers with a build trace and its signatures.
pub(crate) fn answer(store: &Store, key: &BuildTraceKey) -> Result<Response, ServeError> {
    let found = store.realisation(&key.drv_path, key.output_name.as_str())?.ok_or(ServeError::NoPath)?;
    let trace = BuildTrace { out_path: found.output_path, signatures: found.signatures };
    Ok(json(trace.to_json()))
}

/// Answers in the older form, by the hash of the derivation.
pub(crate) fn older(store: &Store, id: DrvOutput) -> Result<Response, ServeError> {
    let hash = format!("sha256:{}", id.drv_hash.to_hex());
    let found = store.realisation_by_hash(&hash, id.output_name.as_str())?.ok_or(ServeError::NoPath)?;
    let (out_path, signatures) = (found.output_path, found.signatures);
    let realisation = Realisation { id, out_path, signatures, dependent_realisations: BTreeMap::new() };
    Ok(json(realisation.to_json()))
}

fn json(text: String) -> Response {
    Response::new(StatusCode::OK)
        .header(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))
        .body(Body::bytes(text))
}
