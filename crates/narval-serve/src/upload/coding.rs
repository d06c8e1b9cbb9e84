//! Content codings of uploads. Nix sends narinfos, listings and logs with `Content-Encoding` if it is told to compress them; they are
//! stored and served decoded.

use std::io::{BufReader, Read};

use narval_codec::decode::Decoder;
use narval_codec::of_coding;
use narval_http::HeadRef;
use narval_nix::Compression;

use crate::error::ServeError;

/// The compression named by a request's `Content-Encoding`; `None` without a coding.
///
/// # Errors
/// 415 for an unknown coding, or for more than one.
pub(crate) fn coding(head: &HeadRef<'_>) -> Result<Option<Compression>, ServeError> {
    let Some(name) = head.header("content-encoding") else { return Ok(None) };
    match name.trim().to_ascii_lowercase().as_str() {
        "" | "identity" | "none" => Ok(None),
        name => of_coding(name).map(Some).ok_or(ServeError::Coding),
    }
}

/// The decoded body.
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
