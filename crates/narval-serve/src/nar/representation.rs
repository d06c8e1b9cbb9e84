//! Answers conditional and range requests for something of a known size with an entity tag (RFC 9110 sections 13 and 14).

use narval_http::semantics::conditional::{Outcome, Validators, evaluate, range_applies};
use narval_http::semantics::range::{ByteRange, MultipartRanges, Selection, select, unsatisfied_content_range};
use narval_http::{Body, HeadRef, HeaderValue, Response, StatusCode, header};

use crate::error::ServeError;

/// The representation to send.
#[derive(Debug)]
pub(crate) struct Representation {
    pub(crate) content_type: HeaderValue,
    /// `Content-Encoding`, if it has one.
    pub(crate) coding: Option<HeaderValue>,
    pub(crate) etag: Option<HeaderValue>,
    /// Whether the answer depends on `Accept-Encoding`.
    pub(crate) varies: bool,
    /// Its size in bytes.
    pub(crate) size: u64,
}

/// The selected part.
pub(crate) enum Selected {
    /// All of it.
    Whole,
    /// One range.
    One(ByteRange),
    /// Several, with their framing.
    Several(MultipartRanges),
}

impl Representation {
    /// Answers a request; `body` makes the body of the selected part.
    pub(crate) fn answer(
        &self,
        head: &HeadRef<'_>,
        body: impl FnOnce(Selected) -> Result<Body, ServeError>,
    ) -> Result<Response, ServeError> {
        if let Some(response) = self.on_conditions(head) {
            return Ok(response);
        }
        let validators = self.validators_of();
        let selection = match head.header_bytes(header::RANGE.as_str()) {
            Some(value) if range_applies(head, &validators) => select(value, self.size),
            _ => Selection::Whole,
        };
        Ok(match selection {
            Selection::Whole => {
                let body = body(Selected::Whole)?;
                self.fields(Response::new(StatusCode::OK), true).body(body)
            }
            Selection::Single(range) => {
                let body = body(Selected::One(range))?;
                self.fields(Response::new(StatusCode::PARTIAL_CONTENT), true)
                    .header(header::CONTENT_RANGE, range.content_range(self.size))
                    .body(body)
            }
            Selection::Several(ranges) => {
                let parts = MultipartRanges::new(ranges, self.size, Some(self.content_type.clone()));
                let response = self.validators(Response::new(StatusCode::PARTIAL_CONTENT));
                let response = self.coding(response).header(header::CONTENT_TYPE, parts.content_type());
                response.body(body(Selected::Several(parts))?)
            }
            Selection::Unsatisfiable => self
                .validators(Response::new(StatusCode::RANGE_NOT_SATISFIABLE))
                .header(header::CONTENT_RANGE, unsatisfied_content_range(self.size)),
        })
    }

    /// The answer if the request's conditions exclude a body: 304 or 412.
    pub(crate) fn on_conditions(&self, head: &HeadRef<'_>) -> Option<Response> {
        match evaluate(head, Some(&self.validators_of())) {
            Outcome::Proceed => None,
            Outcome::NotModified => Some(self.validators(Response::new(StatusCode::NOT_MODIFIED))),
            Outcome::PreconditionFailed => Some(Response::new(StatusCode::PRECONDITION_FAILED)),
        }
    }

    /// For the conditions of a request.
    pub(crate) fn validators_of(&self) -> Validators<'_> {
        Validators { etag: self.etag.as_ref(), last_modified: None }
    }

    /// Adds the fields of an answer with a body; `ranges` says whether range requests are supported.
    pub(crate) fn fields(&self, response: Response, ranges: bool) -> Response {
        let response = self.coding(self.validators(response)).header(header::CONTENT_TYPE, self.content_type.clone());
        if ranges { response.header(header::ACCEPT_RANGES, HeaderValue::from_static("bytes")) } else { response }
    }

    fn coding(&self, response: Response) -> Response {
        match &self.coding {
            Some(coding) => response.header(header::CONTENT_ENCODING, coding.clone()),
            None => response,
        }
    }

    fn validators(&self, mut response: Response) -> Response {
        if let Some(etag) = &self.etag {
            response = response.header(header::ETAG, etag.clone());
        }
        if self.varies {
            response = response.header(header::VARY, HeaderValue::from_static("accept-encoding"));
        }
        response
    }
}
