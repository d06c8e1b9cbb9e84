use std::io;

use http::header::{CONTENT_ENCODING, CONTENT_RANGE, CONTENT_TYPE, ETAG};
use http::{HeaderValue, Method, StatusCode};

use super::dictionary::delta_etag_named;
use super::resource::{Content, Resource, Variant, bounds, file_range};
use crate::http1::accept::{Coding, negotiate_coding};
use crate::http1::conditional::{self, Outcome, Validators};
use crate::http1::head_parts::HeadRef;
use crate::http1::range::{ByteRange, MultipartRanges, Selection, select, unsatisfied_content_range};
use crate::message::body::Body;
use crate::message::body::source::{BodySource, Fill, SegmentBuf};
use crate::message::response::Response;

/// Answers a GET or HEAD from a resource and the delta from the version that the client has: chooses the encoding,
/// evaluates conditions, selects ranges. Does not access the disk.
pub(super) fn answer(head: &HeadRef<'_>, resource: &Resource, delta: Option<&Variant>) -> Option<Response> {
    let variant = choose(head, resource, delta)?;
    let delta_etag =
        resource.use_as_dictionary.as_ref().and_then(|_| delta_etag_named(head, &resource.identity()?.stamp));
    let etag = delta_etag.as_ref().unwrap_or(&variant.etag);
    let validators = Validators { etag: Some(etag), last_modified: Some(resource.last_modified) };
    match conditional::evaluate(head, Some(&validators)) {
        Outcome::Proceed => {}
        Outcome::NotModified => return Some(not_modified(variant, etag)),
        Outcome::PreconditionFailed => return Some(Response::new(StatusCode::PRECONDITION_FAILED)),
    }
    // Ranges of an encoded file would be ranges of the encoding; a client that resumes wants those of the file.
    let has_ranges = *head.method() == Method::GET && variant.coding != Coding::Dcz;
    let range = has_ranges.then(|| head.header_bytes("range")).flatten();
    if let Some(range) = range
        && conditional::range_applies(head, &validators)
    {
        match select(range, variant.stamp.size) {
            Selection::Whole => {}
            Selection::Single(range) => return Some(single(variant, range)),
            Selection::Several(ranges) => return Some(several(variant, ranges)),
            Selection::Unsatisfiable => {
                let size = unsatisfied_content_range(variant.stamp.size);
                return Some(Response::new(StatusCode::RANGE_NOT_SATISFIABLE).header(CONTENT_RANGE, size));
            }
        }
    }
    Some(whole(variant))
}

fn choose<'r>(head: &HeadRef<'_>, resource: &'r Resource, delta: Option<&'r Variant>) -> Option<&'r Variant> {
    let variants = || delta.into_iter().chain(resource.variants.iter().skip(1));
    let mut codings = [Coding::Identity; 4];
    let mut count = 0;
    for (slot, variant) in codings.iter_mut().zip(variants()) {
        *slot = variant.coding;
        count += 1;
    }
    if count == 0 {
        return resource.identity();
    }
    let coding = negotiate_coding(head, codings.get(..count)?).unwrap_or(Coding::Identity);
    variants().find(|variant| variant.coding == coding).or_else(|| resource.identity())
}

/// A 304 for the representation with this tag, which may be another than the one that a 200 would have.
fn not_modified(variant: &Variant, etag: &HeaderValue) -> Response {
    if variant.etag == *etag {
        return with_headers(StatusCode::NOT_MODIFIED, variant);
    }
    let shared = variant.headers.iter().filter(|(name, _)| name != ETAG && name != CONTENT_ENCODING).cloned();
    shared
        .fold(Response::new(StatusCode::NOT_MODIFIED), |response, (name, value)| response.header(name, value))
        .header(ETAG, etag.clone())
}

/// The response with the whole file.
fn whole(variant: &Variant) -> Response {
    match &variant.content {
        Content::Memory(_, prepared) => prepared.clone().into(),
        Content::File(_) => with_headers(StatusCode::OK, variant).body(variant.body()),
    }
}

fn with_headers(status: StatusCode, variant: &Variant) -> Response {
    variant.headers.iter().cloned().fold(Response::new(status), |response, (name, value)| response.header(name, value))
}

fn single(variant: &Variant, range: ByteRange) -> Response {
    with_headers(StatusCode::PARTIAL_CONTENT, variant)
        .header(CONTENT_RANGE, range.content_range(variant.stamp.size))
        .body(variant.content.part(range))
}

fn several(variant: &Variant, ranges: Vec<ByteRange>) -> Response {
    let framing = MultipartRanges::new(ranges, variant.stamp.size, Some(variant.content_type()));
    let length = framing.content_length();
    let content_type = framing.content_type();
    let headers = variant.headers.iter().filter(|(name, _)| name != CONTENT_TYPE).cloned();
    headers
        .fold(Response::new(StatusCode::PARTIAL_CONTENT), |response, (name, value)| response.header(name, value))
        .header(CONTENT_TYPE, content_type)
        .body(Body::source(Parts { framing, content: variant.content.clone(), next: 0 }, Some(length)))
}

/// The body of a `multipart/byteranges` answer.
struct Parts {
    framing: MultipartRanges,
    content: Content,
    next: usize,
}

impl BodySource for Parts {
    fn fill(&mut self, out: &mut SegmentBuf) -> io::Result<Fill> {
        let Some(range) = self.framing.ranges().get(self.next).copied() else {
            self.framing.end(out.memory());
            return Ok(Fill::Done);
        };
        self.framing.part_head(self.next, out.memory());
        self.next += 1;
        match &self.content {
            Content::Memory(bytes, _) => {
                let slice = bytes.get(bounds(range, bytes.len())).unwrap_or_default();
                out.memory().extend_from_slice(slice);
            }
            Content::File(file) => out.push_file(file_range(file, range)),
        }
        Ok(Fill::More)
    }
}
