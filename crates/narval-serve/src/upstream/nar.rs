//! NARs of upstreams: files that are kept, and files that grow while they are sent.

use std::sync::Arc;

use narval_cache::upstream::{NarAnswer, Upstreams};
use narval_http::{Body, HeadRef, HeaderValue, Method, Response, StatusCode};

use crate::error::ServeError;
use crate::metrics::Metrics;
use crate::nar::file::send_file;
use crate::nar::growing::{Follower, Nothing, send_growing};
use crate::nar::representation::Representation;

/// Answers with a NAR by its name below `nar/`, or with a range of it. It waits for what the upstream says first, and for no more.
pub(crate) fn answer(
    upstreams: &Upstreams,
    name: &str,
    head: &HeadRef<'_>,
    metrics: &Arc<Metrics>,
) -> Result<Response, ServeError> {
    let file_name = name.split_once('-').map_or(name, |(_, file)| file);
    let representation = |size| Representation {
        content_type: HeaderValue::from_static("application/x-nix-nar"),
        coding: None,
        etag: HeaderValue::from_str(&format!("\"{file_name}\"")).ok(),
        varies: false,
        size,
    };
    if *head.method() == Method::HEAD {
        // Answered by the narinfo: nothing is fetched.
        return match upstreams.nar_length(name)?.ok_or(ServeError::NoPath)? {
            Some(length) => representation(length).answer(head, |_| Ok(Body::source(Nothing, Some(length)))),
            None => Ok(representation(0).fields(Response::new(StatusCode::OK), false)),
        };
    }
    if let Some(response) = representation(0).on_conditions(head) {
        return Ok(response);
    }
    let counted = (&metrics.nar_bytes_upstream, metrics);
    match upstreams.nar(name)?.ok_or(ServeError::NoPath)? {
        NarAnswer::File(file, length) => {
            let bytes =
                if name.ends_with(".nar") { &metrics.nar_bytes_identity } else { &metrics.nar_bytes_compressed };
            send_file(&representation(length), head, &Arc::new(file), bytes)
        }
        NarAnswer::Growing(waits, None) => {
            let body = Body::source(Follower::new(Arc::clone(&waits), 0, None, counted), None);
            Ok(representation(0).fields(Response::new(StatusCode::OK), false).body(body))
        }
        NarAnswer::Growing(waits, Some(length)) => {
            send_growing(&representation(length), head, Arc::clone(&waits), counted)
        }
    }
}
