//! Answers that are encoded once and sent many times.

use narval_http::{Bytes, HeaderName, HeaderValue, Prepared, StatusCode, header};

/// An answer from memory, with a content type and further fields.
pub(crate) fn prepared(
    status: StatusCode,
    content_type: &'static str,
    fields: &[(HeaderName, HeaderValue)],
    body: impl Into<Bytes>,
) -> Prepared {
    let mut all = vec![(header::CONTENT_TYPE, HeaderValue::from_static(content_type))];
    all.extend_from_slice(fields);
    Prepared::new(status, &all, body.into())
}
