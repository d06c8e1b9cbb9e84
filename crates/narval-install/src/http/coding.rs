//! Content codings of metadata: caches store narinfos and listings compressed (Nix 2.32 `narinfo-compression`).

use std::io::Read;

use narval_nix::Compression;

use super::HttpError;
use crate::decode::Decoder;

/// What is asked for with metadata.
pub(crate) const ACCEPT_ENCODING: &str = "zstd, br, gzip";

/// Undoes the coding named in `Content-Encoding`, up to `limit` bytes.
pub(crate) fn decoded(bytes: Vec<u8>, coding: Option<&str>, limit: u64) -> Result<Vec<u8>, HttpError> {
    let compression = match coding {
        None | Some("" | "identity") => return Ok(bytes),
        Some("zstd") => Compression::Zstd,
        Some("br") => Compression::Brotli,
        Some("gzip" | "x-gzip") => Compression::Gzip,
        Some("xz") => Compression::Xz,
        Some("bzip2") => Compression::Bzip2,
        Some(other) => return Err(HttpError::Coding(format!("unknown coding '{other}'"))),
    };
    let failed = |error: &dyn std::fmt::Display| HttpError::Coding(error.to_string());
    let decoder = Decoder::new(&compression, std::io::Cursor::new(bytes), 1).map_err(|error| failed(&error))?;
    let mut out = Vec::new();
    decoder.take(limit + 1).read_to_end(&mut out).map_err(|error| failed(&error))?;
    if out.len() as u64 > limit { Err(HttpError::TooLarge { limit }) } else { Ok(out) }
}
