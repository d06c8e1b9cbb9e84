//! `/<hash part>.narinfo`

use std::sync::Arc;

use narval_http::http1::conditional::{Outcome, Validators, evaluate};
use narval_http::{Bytes, HeadRef, HeaderValue, Prepared, Request, Response, StatusCode, header};
use narval_nix::{HashPart, PathInfo, Sha256, narinfo};

use crate::Face;
use crate::error::ServeError;
use crate::narinfo::memo::{Answer, Present};
use crate::narinfo::render::render;
use crate::service::{Shared, prepared};

/// Answers on a worker.
pub(crate) fn answer(shared: &Shared, hash_part: HashPart, request: &Request) -> Result<Response, ServeError> {
    Ok(respond(shared, &request.head(), look_up(shared, hash_part)?))
}

/// What there is to say of a hash part: from the memo, else from the store.
pub(crate) fn look_up(shared: &Shared, hash_part: HashPart) -> Result<Answer, ServeError> {
    // Before the store is read: see the memo's description.
    let generation = shared.store.stamp();
    if let Some(answer) = generation.and_then(|generation| shared.memo.get(generation, &hash_part)) {
        shared.metrics.narinfo_memo_hits.inc();
        return Ok(answer);
    }
    shared.metrics.narinfo_memo_misses.inc();
    let info = shared.store.path_info_by_hash_part(&hash_part)?;
    let is_corrupt = || {
        let corrupt =
            |info: &PathInfo| shared.corrupt.has(hash_part, &info.nar_hash, &shared.store.real_path(&info.path));
        info.as_ref().is_some_and(corrupt)
    };
    let answer = match &info {
        None => Answer::Absent,
        // Not remembered: repairing a path does not change the database.
        Some(_) if is_corrupt() => return Ok(Answer::Absent),
        Some(info) => {
            let compressed = shared.nar_cache.as_ref().and_then(|cache| cache.find_name(&info.nar_hash));
            let text = render(&shared.config, shared.store.store_dir(), hash_part, info, compressed.as_ref());
            Answer::Present(Arc::new(present(shared.config.face, text)))
        }
    };
    if let Some(generation) = generation {
        shared.memo.insert(generation, hash_part, answer.clone());
        // Found out by another one since it was looked at above: it would be remembered for good.
        if is_corrupt() {
            shared.memo.forget(&hash_part);
            return Ok(Answer::Absent);
        }
    }
    Ok(answer)
}

/// The answer to one request.
pub(crate) fn respond(shared: &Shared, head: &HeadRef<'_>, answer: Answer) -> Response {
    let present = match answer {
        Answer::Absent => return Arc::clone(&shared.no_such_path).into(),
        Answer::Present(present) => present,
    };
    if let Some(etag) = &present.etag {
        let current = Validators { etag: Some(etag), last_modified: None };
        match evaluate(head, Some(&current)) {
            Outcome::Proceed => {}
            Outcome::NotModified => {
                return Response::new(StatusCode::NOT_MODIFIED).header(header::ETAG, etag.clone());
            }
            Outcome::PreconditionFailed => return Response::new(StatusCode::PRECONDITION_FAILED),
        }
    }
    Response::within(present)
}

fn present(face: Face, text: String) -> Present {
    let etag = match face {
        Face::NixServe => None,
        Face::Narval => etag(text.as_bytes()),
    };
    let fields: Vec<_> = etag.iter().map(|etag| (header::ETAG, etag.clone())).collect();
    let text = Bytes::from(text);
    Present { response: prepared(StatusCode::OK, narinfo::MIME_TYPE, &fields, text.clone()), etag, text }
}

/// An entity tag that changes with the text: the first 130 bits of its SHA-256.
fn etag(text: &[u8]) -> Option<HeaderValue> {
    let digest = Sha256::of(text).to_nix32();
    HeaderValue::from_str(&format!("\"{}\"", digest.get(..26)?)).ok()
}

/// The answer for a path that is not there. Nothing between may remember it: it may be built a moment later.
pub(crate) fn absent() -> Arc<Prepared> {
    let no_store = (header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Arc::new(prepared(StatusCode::NOT_FOUND, "text/plain", &[no_store], "No such path.\n"))
}
