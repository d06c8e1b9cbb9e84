//! Malformed requests (RFC 9113 §8): a request that another implementation could interpret differently never reaches a handler.

use super::client::*;
use super::server::Site;
use crate::harness::{on_each_driver, unhurried};

fn with_client(test: impl Fn(&mut Client, &Site)) {
    on_each_driver(|driver| {
        let (site, server) = Site::start(driver, unhurried());
        test(&mut Client::start(server.address), &site);
        site.open_gate();
    });
}

type Fields<'a> = Vec<(&'a [u8], &'a [u8])>;

fn bytes<'a>(fields: &[(&'a str, &'a str)]) -> Fields<'a> {
    fields.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes())).collect()
}

/// A GET with these additional fields.
fn with<'a>(fields: &[(&'a str, &'a str)]) -> Fields<'a> {
    bytes(&[get("/").as_slice(), fields].concat())
}

/// A GET without a pseudo-field, or with another value for it.
fn but<'a>(name: &str, value: Option<&'a str>) -> Fields<'a> {
    let mut fields = get("/");
    match value {
        Some(value) => fields.iter_mut().filter(|field| field.0 == name).for_each(|field| field.1 = value),
        None => fields.retain(|field| field.0 != name),
    }
    bytes(&fields)
}

/// RFC 9113 §8.2 and §8.3: each of these is a stream error, or answered 400, and the connection stays open.
#[test]
fn malformed_requests_reach_no_handler() {
    let mut after_a_field = with(&[("x-a", "b")]);
    after_a_field.push((b":path", b"/other"));
    let cases: Vec<(&str, Fields<'_>)> = vec![
        ("a name in upper case", with(&[("X-A", "b")])),
        ("a space in a name", with(&[("x a", "b")])),
        ("a colon in a name", with(&[("x:a", "b")])),
        ("an empty name", with(&[("", "b")])),
        ("CR and LF in a name", with(&[("x\r\ny", "b")])),
        ("CR and LF in a value", with(&[("x-a", "b\r\nhost: other")])),
        ("LF in a value", with(&[("x-a", "b\nc")])),
        ("CR in a value", with(&[("x-a", "b\rc")])),
        ("NUL in a value", with(&[("x-a", "b\0c")])),
        ("a value that begins with a space", with(&[("x-a", " b")])),
        ("a value that ends with a tab", with(&[("x-a", "b\t")])),
        ("connection", with(&[("connection", "close")])),
        ("proxy-connection", with(&[("proxy-connection", "close")])),
        ("keep-alive", with(&[("keep-alive", "timeout=5")])),
        ("transfer-encoding", with(&[("transfer-encoding", "chunked")])),
        ("upgrade", with(&[("upgrade", "websocket")])),
        ("te", with(&[("te", "gzip")])),
        ("two lengths", with(&[("content-length", "0"), ("content-length", "0")])),
        ("a length that is none", with(&[("content-length", "+1")])),
        ("lengths in a list", with(&[("content-length", "0, 0")])),
        ("a length without a body", with(&[("content-length", "5")])),
        ("two hosts", with(&[("host", "localhost"), ("host", "localhost")])),
        ("another host", with(&[("host", "other")])),
        ("no method", but(":method", None)),
        ("no scheme", but(":scheme", None)),
        ("no path", but(":path", None)),
        ("no authority and no host", but(":authority", None)),
        ("an empty path", but(":path", Some(""))),
        ("a path without a slash", but(":path", Some("x"))),
        ("a whole URI as the path", but(":path", Some("https://localhost/"))),
        ("a space in the path", but(":path", Some("/a b"))),
        ("LF in the path", but(":path", Some("/a\nb"))),
        ("a request line in the path", but(":path", Some("/ HTTP/1.1\r\nhost: other\r\n\r\n"))),
        ("a space in the method", but(":method", Some("GET /x"))),
        ("an empty method", but(":method", Some(""))),
        ("user information in the authority", but(":authority", Some("user@localhost"))),
        ("a path in the authority", but(":authority", Some("localhost/x"))),
        ("an empty authority", but(":authority", Some(""))),
        ("a pseudo-field twice", with(&[(":path", "/")])),
        ("a pseudo-field behind a field", after_a_field),
        ("an unknown pseudo-field", with(&[(":other", "x")])),
        ("a status", with(&[(":status", "200")])),
        ("a protocol that was not offered", with(&[(":protocol", "connect-udp")])),
    ];
    with_client(|client, site| {
        for (what, fields) in &cases {
            let stream = client.open(fields, true);
            match client.outcome(stream) {
                Outcome::Reset(code) => assert_eq!(code, code::PROTOCOL_ERROR, "{what}"),
                Outcome::Response(response) => assert_eq!(response.status, 400, "{what}"),
            }
            assert_eq!(site.handled(), 0, "{what}");
        }
        client.still_serves();
    });
}

#[test]
fn unusual_requests_are_answered() {
    let octets = [get("/").as_slice(), &[("x-a", "b\u{e9}c"), ("te", "trailers")]].concat();
    let cases: Vec<(&str, u16, Fields<'_>)> = vec![
        ("other octets in a value", 200, bytes(&octets)),
        ("an empty value", 200, with(&[("x-a", "")])),
        ("a Host that agrees", 200, with(&[("host", "localhost")])),
        ("Host alone", 200, bytes(&[&get("/")[..2], &[(":path", "/"), ("host", "localhost")]].concat())),
        ("a length of nothing", 200, with(&[("content-length", "0")])),
        ("another scheme", 200, but(":scheme", Some("http"))),
    ];
    with_client(|client, _| {
        for (what, status, fields) in &cases {
            let stream = client.open(fields, true);
            assert_eq!(client.response(stream).status, *status, "{what}");
        }
    });
}

/// The length of a body must match its Content-Length (§8.1.1).
#[test]
fn content_length_must_match_the_data() {
    with_client(|client, site| {
        for (length, pieces) in [("5", ["abc", ""]), ("5", ["abcdef", ""]), ("5", ["abcd", "ef"]), ("0", ["", "a"])] {
            let stream = client.open(&[post("/echo"), vec![("content-length", length)]].concat(), false);
            client.send(frame(DATA, 0, stream, pieces[0]));
            client.send(frame(DATA, END_STREAM, stream, pieces[1]));
            assert_eq!(client.outcome(stream), Outcome::Reset(code::PROTOCOL_ERROR), "{length} {pieces:?}");
            assert_eq!(site.handled(), 0);
        }
        let stream = client.open(&[post("/echo"), vec![("content-length", "5")]].concat(), false);
        client.send(frame(DATA, PADDED, stream, b"\x03abc..."));
        client.send(frame(DATA, END_STREAM, stream, "de"));
        assert_eq!(client.response(stream).text(), "abcde");
    });
}

#[test]
fn an_answer_that_needs_no_body_does_not_wait_for_one() {
    with_client(|client, _| {
        let stream = client.open(&[post("/refuse"), vec![("content-length", "500")]].concat(), false);
        client.until(|frame| frame.stream == stream && frame.kind == HEADERS);
        client.send(frame(DATA, END_STREAM, stream, [b'x'; 500]));
        client.still_serves();
        // One that is late.
        let stream = client.open(&[post("/length"), vec![("content-length", "5")]].concat(), false);
        std::thread::sleep(std::time::Duration::from_millis(300));
        client.send(frame(DATA, END_STREAM, stream, "later"));
        assert_eq!(client.response(stream).text(), "5");
    });
}

/// Trailers (§8.1): another field section, which ends the stream and has no pseudo-fields.
#[test]
fn trailers() {
    with_client(|client, site| {
        let stream = client.open(&post("/echo"), false);
        client.send(frame(DATA, 0, stream, "body"));
        client.send(frame(HEADERS, END_HEADERS | END_STREAM, stream, block(&[("x-sum", "1")])));
        assert_eq!(client.response(stream).text(), "body");
        // As with HTTP/1: fields for framing and routing are left out.
        let stream = client.open(&post("/trailers"), false);
        let fields = [("content-length", "4"), ("host", "a"), ("te", "trailers"), ("trailer", "x-sum"), ("x-sum", "1")];
        client.send(frame(HEADERS, END_HEADERS | END_STREAM, stream, block(&fields)));
        assert_eq!(client.response(stream).text(), "x-sum");
        let before = site.handled();
        for (what, flags, fields) in [
            ("a pseudo-field", END_STREAM, vec![(":path", "/")]),
            ("the stream does not end", 0, vec![("x-sum", "1")]),
            ("a name in upper case", END_STREAM, vec![("X-Sum", "1")]),
            ("a connection's field", END_STREAM, vec![("transfer-encoding", "chunked")]),
        ] {
            let stream = client.open(&post("/echo"), false);
            client.send(frame(DATA, 0, stream, "body"));
            client.send(frame(HEADERS, END_HEADERS | flags, stream, block(&fields)));
            assert_eq!(client.outcome(stream), Outcome::Reset(code::PROTOCOL_ERROR), "{what}");
        }
        assert_eq!(site.handled(), before);
        client.still_serves();
    });
}

/// Streams beyond the announced limit are refused, and can be retried.
#[test]
fn streams_beyond_the_limit_are_refused() {
    with_client(|client, site| {
        let waiting: Vec<u32> = (0..128).map(|_| client.get("/wait")).collect();
        let refused = client.get("/");
        assert_eq!(client.outcome(refused), Outcome::Reset(code::REFUSED_STREAM));
        site.open_gate();
        for stream in waiting {
            // its frames may have arrived while the client waited for another stream
            client.send(frame(RST_STREAM, 0, stream, code::CANCEL.to_be_bytes()));
        }
        crate::harness::eventually("there is room again", || {
            let stream = client.get("/");
            matches!(client.outcome(stream), Outcome::Response(_))
        });
    });
}

/// §5.1: frames that a client sends on a stream that it has ended.
#[test]
fn data_after_the_end_is_a_stream_error() {
    with_client(|client, _| {
        let stream = client.get("/wait");
        client.send(frame(DATA, END_STREAM, stream, "more"));
        assert_eq!(client.outcome(stream), Outcome::Reset(code::STREAM_CLOSED));
        client.still_serves();
    });
}
