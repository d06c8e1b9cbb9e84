//! Answers with a NAR that is a file.

use std::fs::File;
use std::sync::Arc;

use narval_http::semantics::range::ByteRange;
use narval_http::{Body, FileRange, HeadRef, Response};

use crate::error::ServeError;
use crate::metrics::Counter;
use crate::nar::representation::{Representation, Selected};
use crate::nar::sources::FileRanges;

/// Answers with a file or ranges of it, and counts the bytes.
pub(crate) fn send_file(
    representation: &Representation,
    head: &HeadRef<'_>,
    file: &Arc<File>,
    bytes: &Counter,
) -> Result<Response, ServeError> {
    let part = |range: ByteRange| {
        bytes.inc_by(range.length);
        FileRange { file: Arc::clone(file), offset: range.start, length: range.length }
    };
    representation.answer(head, |selection| {
        Ok(match selection {
            Selected::Whole => Body::file(part(ByteRange { start: 0, length: representation.size })),
            Selected::One(range) => Body::file(part(range)),
            Selected::Several(parts) => {
                let length = parts.content_length();
                Body::source(FileRanges::new(Arc::clone(file), parts), Some(length))
            }
        })
    })
}
