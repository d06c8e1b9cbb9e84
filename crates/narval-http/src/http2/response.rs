//! Header blocks of responses.
//!
//! The encoder has no table, so a block can be encoded on any thread and reused on any connection.

use std::cell::RefCell;

use http::header::{CONNECTION, CONTENT_LENGTH, DATE, TRANSFER_ENCODING, UPGRADE};
use http::{HeaderName, HeaderValue, StatusCode};

use super::hpack::{encode_field, encode_status};
use crate::http1::date;
use crate::http1::response_head::{Prepared, has_content};

/// The header block of a response, like [`encode_head`](crate::http1::response_head::encode_head) for HTTP/1, but
/// without the fields of HTTP/1 connections.
pub(crate) fn block(
    status: StatusCode,
    fields: &[(HeaderName, HeaderValue)],
    length: Option<u64>,
    is_head: bool,
) -> Vec<u8> {
    let mut out = Vec::with_capacity(128);
    encode_status(status.as_u16(), &mut out);
    let (mut has_date, mut given_length) = (false, None);
    for (name, value) in fields {
        if *name == CONTENT_LENGTH {
            given_length = Some(value);
        } else if !is_of_connection(name) {
            has_date |= *name == DATE;
            encode_field(name.as_str().as_bytes(), value.as_bytes(), &mut out);
        }
    }
    let kept_length = given_length.filter(|_| status == StatusCode::NOT_MODIFIED || is_head && length == Some(0));
    match (kept_length, length) {
        (Some(value), _) if status != StatusCode::NO_CONTENT => {
            encode_field(CONTENT_LENGTH.as_str().as_bytes(), value.as_bytes(), &mut out);
        }
        (_, Some(bytes)) if has_content(status) => {
            encode_field(CONTENT_LENGTH.as_str().as_bytes(), itoa::Buffer::new().format(bytes).as_bytes(), &mut out);
        }
        _ => {}
    }
    if !has_date {
        push_date(&mut out);
    }
    out
}

/// The header block of a prepared response.
pub(crate) fn prepared_block(prepared: &Prepared) -> Vec<u8> {
    let block = prepared.block_or_encode(encode_prepared);
    let mut out = Vec::with_capacity(block.len() + 32);
    out.extend_from_slice(block);
    push_date(&mut out);
    out
}

/// The part that [`Prepared`] keeps: all but the date.
fn encode_prepared(prepared: &Prepared) -> Vec<u8> {
    let mut out = Vec::new();
    encode_status(prepared.status.as_u16(), &mut out);
    for (name, value) in prepared.fields().iter().filter(|(name, _)| !is_of_connection(name)) {
        encode_field(name.as_str().as_bytes(), value.as_bytes(), &mut out);
    }
    if has_content(prepared.status) {
        let length = prepared.body.len();
        encode_field(CONTENT_LENGTH.as_str().as_bytes(), itoa::Buffer::new().format(length).as_bytes(), &mut out);
    }
    out.shrink_to_fit();
    out
}

/// The header block of an informational response.
pub(crate) fn informational_block(status: StatusCode, fields: &[(HeaderName, HeaderValue)]) -> Vec<u8> {
    let mut out = Vec::new();
    encode_status(status.as_u16(), &mut out);
    for (name, value) in fields.iter().filter(|(name, _)| !is_of_connection(name)) {
        encode_field(name.as_str().as_bytes(), value.as_bytes(), &mut out);
    }
    out
}

/// The header block of `100 Continue`.
pub(crate) fn continue_block() -> Vec<u8> {
    informational_block(StatusCode::CONTINUE, &[])
}

/// The header block of trailers; empty if there are none.
pub(crate) fn trailers_block(trailers: &[(HeaderName, HeaderValue)]) -> Vec<u8> {
    let mut out = Vec::new();
    for (name, value) in trailers.iter().filter(|(name, _)| !is_of_connection(name)) {
        encode_field(name.as_str().as_bytes(), value.as_bytes(), &mut out);
    }
    out
}

/// Whether a field is about an HTTP/1 connection, and must not be sent (RFC 9113 section 8.2.2).
fn is_of_connection(name: &HeaderName) -> bool {
    matches!(*name, CONNECTION | TRANSFER_ENCODING | UPGRADE)
        || matches!(name.as_str(), "keep-alive" | "proxy-connection")
}

/// The last encoded date.
type Dated = ([u8; date::LENGTH], Vec<u8>);

thread_local! {
    static DATE_FIELD: RefCell<Dated> = const { RefCell::new(([0; date::LENGTH], Vec::new())) };
}

fn push_date(out: &mut Vec<u8>) {
    let now = date::now();
    DATE_FIELD.with_borrow_mut(|(last, block)| {
        if *last != now {
            *last = now;
            block.clear();
            encode_field(DATE.as_str().as_bytes(), &now, block);
        }
        out.extend_from_slice(block);
    });
}

#[cfg(test)]
mod tests {
    use http::header::{CONTENT_TYPE, ETAG};

    use super::*;
    use crate::http2::hpack::Decoder;

    fn fields_of(block: &[u8]) -> Vec<(String, String)> {
        let mut fields = Vec::new();
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let mut decoder = Decoder::new(0, 1 << 16);
        decoder.decode(block, |field| fields.push((text(field.name), text(field.value)))).unwrap();
        fields.retain(|(name, _)| name != "date");
        fields
    }

    fn field(name: HeaderName, value: &'static str) -> (HeaderName, HeaderValue) {
        (name, HeaderValue::from_static(value))
    }

    fn expect(block: &[u8], expected: &[(&str, &str)]) {
        let fields = fields_of(block);
        let fields: Vec<_> = fields.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        assert_eq!(fields, expected);
    }

    #[test]
    fn a_block_has_what_the_head_of_http_1_has_but_for_its_connection() {
        let given = [
            field(CONTENT_TYPE, "text/plain"),
            field(CONNECTION, "close"),
            field(TRANSFER_ENCODING, "chunked"),
            field(CONTENT_LENGTH, "99"),
        ];
        let known = Some(5);
        let expected = [(":status", "200"), ("content-type", "text/plain"), ("content-length", "5")];
        expect(&block(StatusCode::OK, &given, known, false), &expected);
        expect(&block(StatusCode::OK, &given, None, false), &expected[..2]);
        let expected = [expected[0], expected[1], ("content-length", "99")];
        expect(&block(StatusCode::OK, &given, Some(0), true), &expected);
        expect(&block(StatusCode::NO_CONTENT, &given[..1], known, false), &[(":status", "204"), expected[1]]);
        expect(&block(StatusCode::OK, &[], Some(0), false), &[(":status", "200"), ("content-length", "0")]);
    }

    #[test]
    fn a_prepared_response_is_encoded_once() {
        let given = [field(ETAG, "\"x\""), field(CONNECTION, "close")];
        let prepared = Prepared::new(StatusCode::OK, &given, bytes::Bytes::from_static(b"hello"));
        let expected = [(":status", "200"), ("etag", "\"x\""), ("content-length", "5")];
        expect(&prepared_block(&prepared), &expected);
        let kept = || prepared.block_or_encode(|_| unreachable!()).as_ptr();
        assert_eq!(kept(), kept());
    }

    #[test]
    fn the_date_is_there_once() {
        let count = |block: &[u8]| {
            let mut count = 0;
            Decoder::new(0, 1 << 16).decode(block, |field| count += usize::from(field.name == b"date")).unwrap();
            count
        };
        assert_eq!(count(&block(StatusCode::OK, &[], Some(0), false)), 1);
        let given = [field(DATE, "Sun, 06 Nov 1994 08:49:37 GMT")];
        assert_eq!(count(&block(StatusCode::OK, &given, Some(0), false)), 1);
    }
}
