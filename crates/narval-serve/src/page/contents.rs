//! One file of a NAR, read at its offset in the listing, without unpacking the NAR.

use std::io;

use narval_http::semantics::conditional::range_applies;
use narval_http::semantics::range::{ByteRange, Selection, select, unsatisfied_content_range};
use narval_http::{BodySource, Fill, HeadRef, HeaderValue, Response, SegmentBuf, StatusCode, header};
use narval_nix::listing::{Listing, Node};

use super::inside::{Inside, Reader};
use crate::error::ServeError;
use crate::nar::representation::Representation;
use crate::piecework::Answered;

/// No file of a package may run scripts with this server's origin.
const POLICY: &str = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; sandbox";

/// Answers with a file, or a range of it.
pub(super) fn answer(inside: &Inside, path: &[u8], head: &HeadRef<'_>) -> Result<Answered, ServeError> {
    let (offset, size) = find(&inside.listing, path)?;
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    let etag = format!("\"{}.{offset}\"", inside.nar_hash.to_nix32());
    let representation = Representation {
        content_type: HeaderValue::from_static(content_type(name)),
        coding: None,
        etag: HeaderValue::from_str(&etag).ok(),
        varies: false,
        size,
    };
    if let Some(response) = representation.on_conditions(head) {
        return Ok(Answered::Whole(response));
    }
    let selection = match head.header_bytes(header::RANGE.as_str()) {
        Some(value) if range_applies(head, &representation.validators_of()) => select(value, size),
        _ => Selection::Whole,
    };
    let (range, response) = match selection {
        Selection::Single(range) => {
            (range, Response::new(StatusCode::PARTIAL_CONTENT).header(header::CONTENT_RANGE, range.content_range(size)))
        }
        Selection::Unsatisfiable => {
            return Ok(Answered::Whole(
                Response::new(StatusCode::RANGE_NOT_SATISFIABLE)
                    .header(header::CONTENT_RANGE, unsatisfied_content_range(size)),
            ));
        }
        // A server may answer a request for several ranges with the whole file (RFC 9110 section 14.2).
        Selection::Whole | Selection::Several(_) => {
            (ByteRange { start: 0, length: size }, Response::new(StatusCode::OK))
        }
    };
    let mut reader = inside.reader();
    let start = offset.saturating_add(range.start);
    inside.may_skip_to(start)?;
    reader.begin(start, range.length).map_err(|error| ServeError::of_files(&inside.path, &error))?;
    let disposition = if head.query() == Some("download") { "attachment" } else { "inline" };
    let response = guarded(representation.fields(response, true))
        .header(header::CONTENT_DISPOSITION, HeaderValue::from_static(disposition));
    Ok(inside.answered(response, OneFile(reader), Some(range.length)))
}

/// Adds the fields that every answer with a package's contents has.
pub(super) fn guarded(response: Response) -> Response {
    response
        .header(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY))
        .header(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"))
        .header(header::CACHE_CONTROL, HeaderValue::from_static("private, no-cache"))
}

/// The offset and the length of a file's contents in the NAR.
fn find(listing: &Listing, path: &[u8]) -> Result<(u64, u64), ServeError> {
    match listing.get(path) {
        Some(Node::Regular { size, nar_offset: Some(offset), .. }) => Ok((*offset, *size)),
        Some(_) => Err(ServeError::Upload("this is not a regular file".into())),
        None => Err(ServeError::NoPath),
    }
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

struct OneFile(Reader);

impl BodySource for OneFile {
    fn fill(&mut self, out: &mut SegmentBuf) -> io::Result<Fill> {
        self.0.fill(out)
    }
}

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
