//! NARs of the writable cache: files, sent as they were uploaded.

use std::sync::Arc;

use narval_cache::written::Cache;
use narval_http::{HeadRef, HeaderValue, Response};
use narval_nix::Compression;

use crate::error::ServeError;
use crate::metrics::Metrics;
use crate::nar::file::send_file;
use crate::nar::representation::Representation;

/// Answers with a NAR by the name of its file below `nar/`, or with ranges of it.
pub(crate) fn answer(cache: &Cache, name: &str, head: &HeadRef<'_>, metrics: &Metrics) -> Result<Response, ServeError> {
    let nar = cache.nar_file(name)?.ok_or(ServeError::NoPath)?;
    // The same NAR with the same compression and length: the file of another upload would have another name.
    let etag = format!("\"{}.{}\"", nar.nar_hash.to_nix32(), nar.len);
    let representation = Representation {
        content_type: HeaderValue::from_static("application/x-nix-nar"),
        coding: None,
        etag: HeaderValue::from_str(&etag).ok(),
        varies: false,
        size: nar.len,
    };
    let bytes = match nar.compression {
        Compression::None => &metrics.nar_bytes_identity,
        _ => &metrics.nar_bytes_compressed,
    };
    send_file(&representation, head, &Arc::new(nar.file), bytes)
}
