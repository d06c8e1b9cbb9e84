//! Content codings: of metadata, which caches store compressed (Nix 2.32 `narinfo-compression`), and of NARs from
//! servers that apply one without being asked.

use std::io::{self, BufRead, BufReader, Read};

use super::head::Head;
use crate::error::HttpError;

/// The maximum number of codings of one response.
const CODINGS_MAX: usize = 4;
/// The input buffer of one decoder.
const INPUT_LEN: usize = 128 * 1024;

/// The content codings (RFC 9110 section 8.4.1) that a [`Client`](crate::Client) can decode. The caller supplies the
/// decoders.
#[derive(Clone, Copy, Debug)]
pub struct Codings {
    /// The value of `Accept-Encoding` for requests that accept a content coding.
    pub accepted: &'static str,
    /// Creates the decoder of a coding.
    pub decoder: DecoderOf,
}

/// Returns a decoder for a coding, or `None` if there is none. The name is in lower case, and may be missing from
/// [`Codings::accepted`]: some servers use codings that the client did not offer.
pub type DecoderOf = fn(name: &str, source: Box<dyn BufRead + Send>) -> Option<io::Result<Box<dyn Read + Send>>>;

impl Default for Codings {
    /// No coding at all.
    fn default() -> Self {
        Self { accepted: "identity", decoder: |_, _| None }
    }
}

impl Codings {
    /// Decodes while the bytes are read. `names` are those of [`names`].
    pub(crate) fn reader(
        &self,
        source: impl Read + Send + 'static,
        names: &[String],
    ) -> Result<Box<dyn Read + Send>, HttpError> {
        let mut reader: Box<dyn Read + Send> = Box::new(source);
        for name in names.iter().rev() {
            let source = Box::new(BufReader::with_capacity(INPUT_LEN, reader));
            let unknown = || HttpError::Coding(format!("unknown coding '{name}'"));
            let decoder = (self.decoder)(name, source).ok_or_else(unknown)?;
            reader = decoder.map_err(|error| HttpError::Coding(error.to_string()))?;
        }
        Ok(reader)
    }

    /// Decodes a whole response, up to `limit` bytes.
    pub(crate) fn decoded(&self, bytes: Vec<u8>, names: &[String], limit: u64) -> Result<Vec<u8>, HttpError> {
        if names.is_empty() {
            return Ok(bytes);
        }
        let mut out = Vec::new();
        let mut reader = self.reader(io::Cursor::new(bytes), names)?.take(limit.saturating_add(1));
        reader.read_to_end(&mut out).map_err(|error| HttpError::Coding(error.to_string()))?;
        if out.len() as u64 > limit { Err(HttpError::TooLarge { limit }) } else { Ok(out) }
    }
}

/// The codings of a response in lower case, in the order in which they were applied, without `identity`, which some
/// servers spell `none`.
pub(crate) fn names(head: &Head) -> Result<Vec<String>, HttpError> {
    let names = head.list("content-encoding").map(str::to_ascii_lowercase);
    let names: Vec<_> = names.filter(|name| !matches!(name.as_str(), "" | "identity" | "none")).collect();
    if names.len() > CODINGS_MAX {
        return Err(HttpError::Coding(format!("more than {CODINGS_MAX} of them")));
    }
    Ok(names)
}
