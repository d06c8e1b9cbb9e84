//! NARs of the writable cache: files, sent as they were uploaded, and objects on their way from a bucket.

use std::sync::Arc;
use std::time::Duration;

use narval_cache::upstream::Unavailable;
use narval_cache::written::{Cache, NarBytes, NarHead};
use narval_http::{Body, HeadRef, HeaderValue, Method, Response};
use narval_nix::Compression;

use crate::error::ServeError;
use crate::metrics::Metrics;
use crate::nar::file::send_file;
use crate::nar::growing::{Follower, Nothing};
use crate::nar::representation::{Representation, Selected};

/// Answers with a NAR by the name of its file below `nar/`, or with ranges of it.
pub(crate) fn answer(
    cache: &Cache,
    name: &str,
    head: &HeadRef<'_>,
    metrics: &Arc<Metrics>,
) -> Result<Response, ServeError> {
    let representation = |nar: &NarHead| {
        // The same NAR with the same compression and length: the file of another upload would have another name.
        let etag = format!("\"{}.{}\"", nar.nar_hash.to_nix32(), nar.len);
        Representation {
            content_type: HeaderValue::from_static("application/x-nix-nar"),
            coding: None,
            etag: HeaderValue::from_str(&etag).ok(),
            varies: false,
            size: nar.len,
        }
    };
    // The index knows the length of an object: nothing is fetched for it.
    if *head.method() == Method::HEAD && !cache.is_local() {
        let nar = cache.nar_head(name)?.ok_or(ServeError::NoPath)?;
        return representation(&nar).answer(head, |_| Ok(Body::source(Nothing, Some(nar.len))));
    }
    let (nar, bytes) = cache.nar(name)?.ok_or(ServeError::NoPath)?;
    let representation = representation(&nar);
    match bytes {
        NarBytes::File(file) => {
            let bytes = match nar.compression {
                Compression::None => &metrics.nar_bytes_identity,
                _ => &metrics.nar_bytes_compressed,
            };
            send_file(&representation, head, &Arc::new(file), bytes)
        }
        NarBytes::Growing(growing) => representation.answer(head, |selected| match selected {
            Selected::Whole => Ok(Body::source(Follower::new(growing, 0, Some(nar.len), metrics), Some(nar.len))),
            Selected::One(range) => {
                let follower = Follower::new(growing, range.start, Some(range.start + range.length), metrics);
                Ok(Body::source(follower, Some(range.length)))
            }
            // No Nix client asks for several ranges.
            Selected::Several(_) => Err(Unavailable {
                retry_after: Duration::from_secs(1),
                reason: "several ranges are sent once the NAR is here".to_owned(),
            }
            .into()),
        }),
    }
}
