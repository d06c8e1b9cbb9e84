//! NARs that this node keeps, for other nodes over the same bucket.
//!
//! They prove themselves by a secret that is in the database. They may read every cache: whoever asks them was allowed to. Such a request
//! reaches no third node, and is never redirected.

use std::sync::Arc;

use narval_http::{HeadRef, Method, Response};
use narval_keep::{CacheName, Data, DataError, NarBytes};

use super::nar::representation;
use crate::auth::unauthorized;
use crate::error::ServeError;
use crate::metrics::Metrics;
use crate::nar::file::send_file;
use crate::nar::growing::send_growing;
use crate::routes::table::PeerRoute;

/// Answers another node with a NAR, or with one range of it.
///
/// # Errors
/// 401, whatever is asked for, if the request does not come from another node.
pub(crate) fn answer(
    data: &Data,
    route: PeerRoute<'_>,
    head: &HeadRef<'_>,
    metrics: &Arc<Metrics>,
) -> Result<Response, ServeError> {
    if !head.header_bytes("authorization").is_some_and(|authorization| data.is_peer(authorization)) {
        return Err(unauthorized("only other nodes of this cache may ask for this"));
    }
    if *head.method() != Method::GET {
        return Err(ServeError::Method("GET"));
    }
    let cache = CacheName::parse(route.cache).map_err(|_| ServeError::NoPath)?;
    let cache = data.cache(&cache).map_err(|error| match error {
        DataError::Index(error) => ServeError::from(error),
        error => {
            tracing::error!("{error}");
            ServeError::NoPath
        }
    })?;
    let found = cache.ok_or(ServeError::NoPath)?.nar_for_peer(route.name)?;
    let (nar, bytes) = found.ok_or(ServeError::NoPath)?;
    let (representation, counter) = (representation(&nar), &metrics.peer_bytes_sent);
    match bytes {
        NarBytes::File(file) => send_file(&representation, head, &Arc::new(file), counter),
        NarBytes::Growing(growing) => send_growing(&representation, head, growing, (counter, metrics)),
        NarBytes::Redirect(_) => Err(ServeError::NoPath),
    }
}
