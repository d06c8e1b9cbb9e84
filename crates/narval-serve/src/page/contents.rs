//! One file of a NAR, by its offset in the listing: the rest is not unpacked.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::sync::Arc;

use narval_cache::decode::{Decoder, INPUT_LEN};
use narval_cache::written::{Cache, SmallKind};
use narval_http::{Body, BodySource, Fill, HeadRef, HeaderValue, Response, SegmentBuf, StatusCode, header};
use narval_nix::HashPart;
use narval_nix::listing::{LISTING_LEN_MAX, Listing, Node};
use narval_store::{NarStream, Step};

use super::{Places, paths};
use crate::error::ServeError;

/// No file of a package may run scripts with this server's origin.
const POLICY: &str = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; sandbox";

/// Answers with a file. Follows symlinks within the same path, which a browser cannot do.
pub(super) fn answer(
    places: &Places,
    hash_part: HashPart,
    path: &str,
    head: &HeadRef<'_>,
) -> Result<Response, ServeError> {
    let decoded = percent_encoding::percent_decode_str(path).collect::<Vec<u8>>();
    let live = match (&places.planner, &places.store) {
        (Some(planner), Some(store)) if store.path_from_hash_part(&hash_part)?.is_some() => {
            let (planned, _) = planner.plan(hash_part)?;
            let damaged = |error: &dyn std::error::Error| ServeError::damaged(&planned.path, error.to_string());
            let listing = planned.layout.listing().map_err(|error| damaged(&error))?;
            let (offset, size) = find(&listing, &decoded)?;
            let stream = planned.stream(offset..offset + size, &planner.ahead).map_err(|error| damaged(&error))?;
            Some((Body::source(Live { stream }, Some(size)), size))
        }
        _ => None,
    };
    let (body, _size) = match (live, &places.written) {
        (Some(live), _) => live,
        (None, Some(cache)) => written(places, cache, hash_part, &decoded)?,
        (None, None) => return Err(ServeError::NoPath),
    };
    let name = decoded.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    let disposition = if head.query() == Some("download") { "attachment" } else { "inline" };
    Ok(Response::new(StatusCode::OK)
        .header(header::CONTENT_TYPE, HeaderValue::from_static(content_type(name)))
        .header(header::CONTENT_DISPOSITION, HeaderValue::from_static(disposition))
        .header(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY))
        .header(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"))
        .header(header::CACHE_CONTROL, HeaderValue::from_static("no-store"))
        .body(body))
}

/// The offset and the length of a file's contents in the NAR.
fn find(listing: &Listing, path: &[u8]) -> Result<(u64, u64), ServeError> {
    match listing.get(path) {
        Some(Node::Regular { size, nar_offset: Some(offset), .. }) => Ok((*offset, *size)),
        Some(_) => Err(ServeError::Upload("this is not a regular file".into())),
        None => Err(ServeError::NoPath),
    }
}

fn written(places: &Places, cache: &Cache, hash_part: HashPart, path: &[u8]) -> Result<(Body, u64), ServeError> {
    let info = paths::look_up(places, hash_part)?.ok_or(ServeError::NoPath)?;
    let damaged = |reason: String| ServeError::damaged(&info.path, reason);
    let (file, len) = cache.small_file(SmallKind::Listing, hash_part.as_str())?.ok_or(ServeError::NoPath)?;
    let mut json = Vec::new();
    file.take(len.min(LISTING_LEN_MAX as u64)).read_to_end(&mut json).map_err(|error| damaged(error.to_string()))?;
    let listing = Listing::parse(&json).map_err(|error| damaged(error.to_string()))?;
    let (offset, size) = find(&listing, path)?;
    let name = info.url.strip_prefix("nar/").unwrap_or_default();
    let nar = cache.nar_file(name)?.ok_or(ServeError::NoPath)?;
    let decoder = Decoder::new(&nar.compression, BufReader::with_capacity(INPUT_LEN, nar.file), 1);
    let decoder = decoder.map_err(|error| damaged(error.to_string()))?;
    Ok((Body::source(Packed { decoder, skip: offset, left: size }, Some(size)), size))
}

/// Text is always `text/plain`; other types depend on the name.
fn content_type(name: &[u8]) -> &'static str {
    let extension = name.rsplit(|byte| *byte == b'.').next().unwrap_or_default().to_ascii_lowercase();
    match extension.as_slice() {
        b"png" => "image/png",
        b"jpg" | b"jpeg" => "image/jpeg",
        b"gif" => "image/gif",
        b"webp" => "image/webp",
        b"svg" => "image/svg+xml",
        b"ico" => "image/x-icon",
        b"pdf" => "application/pdf",
        b"gz" | b"xz" | b"zst" | b"bz2" | b"zip" | b"so" | b"a" | b"o" | b"jar" => "application/octet-stream",
        _ => "text/plain; charset=utf-8",
    }
}

/// A part of the NAR of a live store.
struct Live {
    stream: NarStream,
}

impl BodySource for Live {
    fn fill(&mut self, out: &mut SegmentBuf) -> io::Result<Fill> {
        let room = out.room();
        match self.stream.fill(out.memory(), room)? {
            Step::More => Ok(Fill::More),
            Step::Done => Ok(Fill::Done),
            Step::File(part) => {
                out.push_file(narval_http::FileRange {
                    file: Arc::clone(&part.file),
                    offset: part.offset,
                    length: part.length,
                });
                Ok(Fill::More)
            }
        }
    }
}

/// A part of a compressed NAR.
struct Packed {
    decoder: Decoder<BufReader<File>>,
    /// Bytes before the file.
    skip: u64,
    left: u64,
}

impl BodySource for Packed {
    fn fill(&mut self, out: &mut SegmentBuf) -> io::Result<Fill> {
        if self.skip > 0 {
            // In pieces, because other requests wait for this thread.
            let piece = self.skip.min(SKIP_BYTES);
            let skipped = io::copy(&mut (&mut self.decoder).take(piece), &mut io::sink())?;
            if skipped < piece {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.skip -= skipped;
            return Ok(Fill::More);
        }
        let room = (out.room() as u64).min(self.left);
        let got = (&mut self.decoder).take(room).read_to_end(out.memory())? as u64;
        if got < room {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.left -= got;
        Ok(if self.left == 0 { Fill::Done } else { Fill::More })
    }
}

/// How much is decoded at a time before the file.
const SKIP_BYTES: u64 = 4 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_shown_as_text() {
        for name in ["index.html", "x.js", "README", "a.xhtml", "page.svg.html"] {
            assert_eq!(content_type(name.as_bytes()), "text/plain; charset=utf-8", "{name}");
        }
        assert_eq!(content_type(b"logo.SVG"), "image/svg+xml");
    }
}
