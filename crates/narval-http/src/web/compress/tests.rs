use std::io::{self, Read};
use std::sync::Arc;

use bytes::Bytes;

use super::*;
use crate::message::body::source::FileRange;
use crate::message::handler::Handler;
use crate::web::middleware::wrap;

const ALL: [&str; 3] = ["zstd", "gzip", "deflate"];

fn request(method: &str, accept: &str) -> Request {
    let head = format!("{method} / HTTP/1.1\r\nHost: h\r\nAccept-Encoding: {accept}\r\n\r\n");
    Request::parse(head, Bytes::new()).expect("well-formed")
}

fn typed(content_type: &'static str, body: Body) -> Response {
    Response::new(StatusCode::OK).header(CONTENT_TYPE, HeaderValue::from_static(content_type)).body(body)
}

/// The answer with this body to a client that accepts these codings.
fn answer(accept: &str, make: impl Fn() -> Response + Send + Sync + 'static) -> Response {
    wrap(Compression::default(), move |_: Request| make()).handle(request("GET", accept))
}

fn text() -> Vec<u8> {
    (0..100_000_u64).flat_map(|n| format!("line {}\n", n * n % 977).into_bytes()).collect()
}

/// The whole body, and in how many pieces it was produced.
fn collect(mut response: Response) -> (Vec<u8>, usize) {
    match std::mem::take(response.plain().1).kind {
        BodyKind::Empty => (Vec::new(), 0),
        BodyKind::Bytes(bytes) => (bytes.to_vec(), 1),
        BodyKind::File(_) => panic!("not compressed"),
        BodyKind::Source { mut source, length } => {
            assert_eq!(length, None);
            let (mut all, mut pieces) = (Vec::new(), 0);
            loop {
                let mut out = SegmentBuf::default();
                let fill = source.fill(&mut out).expect("readable");
                assert!(out.files.is_empty() && out.memory.len() <= SegmentBuf::QUANTUM + 1024);
                all.append(&mut out.memory);
                pieces += 1;
                if fill == Fill::Done {
                    return (all, pieces);
                }
            }
        }
    }
}

fn decompress(coding: &str, bytes: &[u8]) -> Vec<u8> {
    let mut plain = Vec::new();
    match coding {
        "zstd" => plain = zstd::decode_all(bytes).expect("zstd"),
        "gzip" => _ = flate2::read::GzDecoder::new(bytes).read_to_end(&mut plain).expect("gzip"),
        "deflate" => _ = flate2::read::ZlibDecoder::new(bytes).read_to_end(&mut plain).expect("deflate"),
        #[cfg(feature = "brotli")]
        "br" => _ = brotli::Decompressor::new(bytes, 4096).read_to_end(&mut plain).expect("brotli"),
        other => panic!("{other}"),
    }
    plain
}

fn encoding(response: &Response) -> Option<String> {
    response.header_value(&CONTENT_ENCODING).map(|value| value.to_str().expect("ASCII").to_owned())
}

/// Checks that `make`'s answer, compressed, is `plain`.
fn check(plain: &[u8], make: impl Fn() -> Response + Clone + Send + Sync + 'static) {
    let codings = ALL.into_iter().chain(cfg!(feature = "brotli").then_some("br"));
    for coding in codings {
        let response = answer(coding, make.clone());
        assert_eq!(encoding(&response).as_deref(), Some(coding));
        assert_eq!(response.header_value(&VARY).expect("has one"), "accept-encoding");
        let (bytes, _) = collect(response);
        assert!(bytes.len() < plain.len() / 2, "{coding}: {} of {}", bytes.len(), plain.len());
        assert!(decompress(coding, &bytes) == plain, "{coding}");
    }
}

#[test]
fn small_bodies_from_memory_keep_a_length() {
    let plain = text()[..5000].to_vec();
    let bytes = Bytes::from(plain.clone());
    let make = move || typed("text/html; charset=utf-8", Body::bytes(bytes.clone()));
    check(&plain, make.clone());
    assert!(answer("gzip", make).content_length().is_some());
}

#[test]
fn large_bodies_from_memory_are_compressed_in_pieces() {
    let bytes = Bytes::from(text());
    check(&bytes.clone(), move || typed("application/json", Body::bytes(bytes.clone())));
}

#[test]
fn files_are_compressed_in_pieces() {
    let mut file = tempfile::tempfile().expect("a file");
    io::copy(&mut text().as_slice(), &mut file).expect("written");
    let file = Arc::new(file);
    let range = FileRange { file, offset: 7, length: 600_000 };
    check(&text()[7..600_007], move || typed("text/css", Body::file(range.clone())));
}

/// Makes its text in pieces of memory and files.
struct Mixed {
    round: usize,
    file: FileRange,
}

impl BodySource for Mixed {
    fn fill(&mut self, out: &mut SegmentBuf) -> io::Result<Fill> {
        self.round += 1;
        out.memory().extend_from_slice(b"before ");
        out.push_file(self.file.clone());
        out.push_file(self.file.clone());
        out.memory().extend_from_slice(b"after ");
        Ok(if self.round == 3 { Fill::Done } else { Fill::More })
    }
}

#[test]
fn streams_of_memory_and_files() {
    let mut file = tempfile::tempfile().expect("a file");
    io::copy(&mut text().as_slice(), &mut file).expect("written");
    let range = FileRange { file: Arc::new(file), offset: 0, length: 300_000 };
    let part = [b"before ", &text()[..300_000], &text()[..300_000], b"after "].concat();
    check(&part.repeat(3), move || {
        typed("text/plain", Body::source(Mixed { round: 0, file: range.clone() }, Some(part.len() as u64 * 3)))
    });
}

/// Makes one line per piece.
struct Lines(u32);

impl BodySource for Lines {
    fn fill(&mut self, out: &mut SegmentBuf) -> io::Result<Fill> {
        self.0 += 1;
        out.memory().extend_from_slice(format!("line {}\n", self.0).as_bytes());
        Ok(if self.0 == 5 { Fill::Done } else { Fill::More })
    }
}

#[test]
fn what_was_streamed_can_be_read_before_the_end() {
    let mut response = answer("gzip", || typed("text/plain", Body::source(Lines(0), None)));
    let BodyKind::Source { mut source, .. } = std::mem::take(response.plain().1).kind else { panic!("a stream") };
    let mut out = SegmentBuf::default();
    assert_eq!(source.fill(&mut out).expect("readable"), Fill::More);
    let mut line = [0; 7];
    flate2::read::GzDecoder::new(&out.memory[..]).read_exact(&mut line).expect("the first line");
    assert_eq!(&line, b"line 1\n");
}

#[test]
fn a_source_that_fails_fails_still() {
    struct Failing;
    impl BodySource for Failing {
        fn fill(&mut self, _: &mut SegmentBuf) -> io::Result<Fill> {
            Err(io::Error::other("disk on fire"))
        }
    }
    let mut response = answer("zstd", || typed("text/plain", Body::source(Failing, None)));
    let BodyKind::Source { mut source, .. } = std::mem::take(response.plain().1).kind else { panic!("a stream") };
    assert_eq!(source.fill(&mut SegmentBuf::default()).expect_err("failed").to_string(), "disk on fire");
}

#[test]
fn what_is_not_compressed() {
    let body = || Body::bytes("x".repeat(5000));
    let plain = |response: fn(Body) -> Response| encoding(&answer("gzip", move || response(body()))).is_none();
    assert!(!plain(|body| typed("text/plain", body)));
    assert!(plain(|body| Response::new(StatusCode::OK).body(body)));
    assert!(plain(|body| typed("image/png", body)));
    assert!(plain(|body| typed("text/event-stream", body)));
    assert!(plain(|_| typed("text/plain", Body::bytes("x".repeat(859)))));
    assert!(plain(|_| typed("text/plain", Body::empty())));
    assert!(plain(
        |body| typed("text/plain", body).header(CACHE_CONTROL, HeaderValue::from_static("public, No-Transform"))
    ));
    assert!(plain(
        |body| typed("text/plain", body).header(CONTENT_RANGE, HeaderValue::from_static("bytes 0-4999/9999"))
    ));
    let partial = answer("gzip", || {
        Response::new(StatusCode::PARTIAL_CONTENT)
            .header(CONTENT_TYPE, HeaderValue::from_static("text/plain"))
            .body(Body::bytes("x".repeat(5000)))
    });
    assert_eq!(encoding(&partial), None);
    let encoded = answer("gzip", || {
        typed("text/plain", Body::bytes("x".repeat(5000))).header(CONTENT_ENCODING, HeaderValue::from_static("br"))
    });
    assert_eq!(encoding(&encoded).as_deref(), Some("br"));
}

#[test]
fn what_does_not_shrink_stays() {
    let random: Vec<u8> = (0..2000_u64).map(|n| (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect();
    let noise =
        zstd::encode_all(zstd::encode_all(&random[..], 3).expect("fine").repeat(1).as_slice(), 3).expect("fine");
    let bytes = Bytes::from(noise);
    let kept = bytes.clone();
    let response = answer("gzip", move || typed("text/plain", Body::bytes(bytes.clone())));
    assert_eq!((encoding(&response), response.body_bytes()), (None, kept));
    assert!(response.header_value(&VARY).is_some(), "another client's wish could have mattered");
}

#[test]
fn vary_is_there_whatever_the_client_accepts() {
    let make = || typed("text/plain", Body::bytes("x".repeat(5000)));
    let response = answer("identity", make);
    assert_eq!(
        (encoding(&response), response.header_value(&VARY).expect("has one")),
        (None, HeaderValue::from(ACCEPT_ENCODING))
    );
    let response = answer("gzip;q=0", move || make().header(VARY, HeaderValue::from_static("Origin, Accept-Encoding")));
    assert_eq!(response.header_value(&VARY).expect("kept"), "Origin, Accept-Encoding");
}

#[test]
fn etags_become_weak_and_ranges_are_not_offered() {
    let response = answer("gzip", || {
        typed("text/plain", Body::bytes("x".repeat(5000)))
            .header(ETAG, HeaderValue::from_static("\"v1\""))
            .header(ACCEPT_RANGES, HeaderValue::from_static("bytes"))
    });
    assert_eq!(response.header_value(&ETAG).expect("has one"), "W/\"v1\"");
    assert_eq!(response.header_value(&ACCEPT_RANGES), None);
}

#[test]
fn head_has_the_fields_of_get() {
    let handler = wrap(Compression::default(), |_: Request| typed("text/plain", Body::bytes("x".repeat(5000))));
    let response = handler.handle(request("HEAD", "gzip"));
    assert_eq!((encoding(&response).as_deref(), response.content_length()), (Some("gzip"), None));
}

#[test]
fn the_order_of_preference_can_be_chosen() {
    let compression = Compression::default().codings(&[Coding::Gzip, Coding::Zstd]).bytes_min(1);
    let handler = wrap(compression, |_: Request| typed("text/plain", Body::bytes("x".repeat(100))));
    assert_eq!(encoding(&handler.handle(request("GET", "zstd, gzip"))).as_deref(), Some("gzip"));
    assert_eq!(encoding(&handler.handle(request("GET", "zstd, gzip;q=0.9"))).as_deref(), Some("zstd"));
}

#[test]
fn inline_answers_stay_inline_for_clients_that_do_not_compress() {
    struct Inline;
    impl Handler for Inline {
        fn inline(&self, _: &HeadRef<'_>) -> Option<Response> {
            Some(typed("text/plain", Body::bytes("x".repeat(5000))))
        }
        fn handle(&self, _: Request) -> Response {
            typed("text/plain", Body::bytes("x".repeat(5000)))
        }
    }
    let handler = wrap(Compression::default(), Inline);
    assert!(handler.inline(&request("GET", "gzip").head()).is_none());
    let response = handler.inline(&request("GET", "identity").head()).expect("inline");
    assert!(response.header_value(&VARY).is_some());
}

#[test]
fn a_304_says_what_its_200_depends_on() {
    let unchanged = |content_type| {
        let content_type = HeaderValue::from_static(content_type);
        move || Response::new(StatusCode::NOT_MODIFIED).header(CONTENT_TYPE, content_type.clone())
    };
    for accept in ["gzip", "identity"] {
        let response = answer(accept, unchanged("text/plain"));
        assert_eq!(
            (encoding(&response), response.header_value(&VARY)),
            (None, Some(HeaderValue::from(ACCEPT_ENCODING)))
        );
        assert_eq!(answer(accept, unchanged("image/png")).header_value(&VARY), None);
    }
}
