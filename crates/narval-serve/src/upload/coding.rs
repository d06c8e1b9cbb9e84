//! Content codings of uploads. Nix sends narinfos, listings and logs with `Content-Encoding` if it is told to compress them; they are
//! kept and served without.

use std::io::{BufReader, Read};

use narval_cache::decode::Decoder;
use narval_http::HeadRef;
use narval_nix::Compression;

use crate::error::ServeError;

/// The compression that a request's `Content-Encoding` names; `None` without a coding.
///
/// # Errors
/// 415 for a coding that is not known, and for several at once.
pub(crate) fn coding(head: &HeadRef<'_>) -> Result<Option<Compression>, ServeError> {
    let Some(name) = head.header("content-encoding") else { return Ok(None) };
    Ok(Some(match name.trim().to_ascii_lowercase().as_str() {
        "" | "identity" | "none" => return Ok(None),
        "zstd" => Compression::Zstd,
        "br" => Compression::Brotli,
        "gzip" | "x-gzip" => Compression::Gzip,
        "xz" => Compression::Xz,
        "bzip2" => Compression::Bzip2,
        _ => return Err(ServeError::Coding),
    }))
}

/// The body without its coding.
///
/// # Errors
/// The decoder cannot be started.
pub(crate) fn decoded<'a>(
    coding: Option<Compression>,
    body: &'a mut dyn Read,
) -> Result<Box<dyn Read + 'a>, ServeError> {
    let Some(coding) = coding else { return Ok(Box::new(body)) };
    let decoder =
        Decoder::new(&coding, BufReader::new(body), 1).map_err(|error| ServeError::Upload(error.to_string()))?;
    Ok(Box::new(decoder))
}
