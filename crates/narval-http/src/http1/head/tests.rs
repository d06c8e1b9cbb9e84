//! One test per rule of the strict request profile, named after the rule.

use super::*;

fn parse(head: impl AsRef<[u8]>) -> Result<ParsedHead, ProtoError> {
    parse_with(head, &HeadLimits::default())
}

fn parse_with(head: impl AsRef<[u8]>, limits: &HeadLimits) -> Result<ParsedHead, ProtoError> {
    parse_head(head.as_ref(), limits).map(|parsed| parsed.expect("a complete head"))
}

/// A GET request with these field lines.
fn get(fields: &str) -> Result<ParsedHead, ProtoError> {
    parse(format!("GET / HTTP/1.1\r\nHost: h\r\n{fields}\r\n"))
}

#[track_caller]
fn refused(result: Result<ParsedHead, ProtoError>, status: u16) {
    let error = result.expect_err("refused");
    assert_eq!(error.status.as_u16(), status, "{error}");
}

fn text(head: &str, span: Span) -> &str {
    std::str::from_utf8(span.of(head.as_bytes())).expect("ASCII")
}

#[test]
fn a_plain_request_is_taken_apart() {
    let head = "GET /nix-cache-info?a=b HTTP/1.1\r\nHost: cache.example:8080\r\nAccept:  */* \r\nX-Empty:\r\n\r\n";
    let parsed = parse(head).expect("well-formed");
    assert_eq!(parsed.head_len, head.len());
    assert_eq!(parsed.parts.method, Method::GET);
    assert_eq!(parsed.parts.version, Version::HTTP_11);
    assert_eq!(text(head, parsed.parts.target), "/nix-cache-info?a=b");
    assert_eq!(text(head, parsed.parts.path), "/nix-cache-info");
    assert_eq!(parsed.parts.query.map(|span| text(head, span)), Some("a=b"));
    assert_eq!(parsed.parts.host.map(|span| text(head, span)), Some("cache.example:8080"));
    let fields: Vec<_> =
        parsed.parts.fields.iter().map(|&(name, value)| (text(head, name), text(head, value))).collect();
    assert_eq!(fields, [("Host", "cache.example:8080"), ("Accept", "*/*"), ("X-Empty", "")]);
    assert_eq!((parsed.framing, parsed.keep_alive, parsed.expect_continue), (Framing::None, true, false));
}

#[test]
fn what_follows_the_head_is_left_alone() {
    let head = "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\n";
    let parsed = parse(format!("{head}bodyGET / HTTP")).expect("well-formed");
    assert_eq!((parsed.head_len, parsed.framing), (head.len(), Framing::Length(4)));
}

#[test]
fn every_prefix_is_incomplete_and_every_split_gives_the_same() {
    let head = "POST http://h/x?y HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n";
    let whole = format!("{:?}", parse(head));
    let mut scan = HeadScan::default();
    for end in 0..head.len() {
        assert!(matches!(parse_head(&head.as_bytes()[..end], &HeadLimits::default()), Ok(None)), "{end}");
        assert!(matches!(scan.parse(&head.as_bytes()[..end], &HeadLimits::default()), Ok(None)), "{end}");
    }
    let last = scan.parse(head.as_bytes(), &HeadLimits::default()).map(|parsed| parsed.expect("complete"));
    assert_eq!(format!("{last:?}"), whole);
    assert_eq!(scan, HeadScan::default());
}

#[test]
fn bare_lf_anywhere_in_the_head() {
    refused(parse("GET / HTTP/1.1\nHost: h\r\n\r\n"), 400);
    refused(parse("GET / HTTP/1.1\r\nHost: h\n\r\n"), 400);
    refused(parse("GET / HTTP/1.1\r\nHost: h\r\n\n"), 400);
    refused(parse("\nGET / HTTP/1.1\r\nHost: h\r\n\r\n"), 400);
    // Detected before the head is complete, so that the client does not wait for a response.
    assert!(parse_head(b"GET / HTTP/1.1\nHost: h\n\n", &HeadLimits::default()).is_err());
}

#[test]
fn bare_cr_anywhere_in_the_head() {
    refused(parse("GET /a\rb HTTP/1.1\r\nHost: h\r\n\r\n"), 400);
    refused(parse("GET / HTTP/1.1\rHost: h\r\n\r\n"), 400);
    refused(get("A: b\rc\r\n"), 400);
    refused(get("A: b\r\r\n"), 400);
    refused(get("A\r: b\r\n"), 400);
    refused(parse("\rGET / HTTP/1.1\r\nHost: h\r\n\r\n"), 400);
}

#[test]
fn white_space_before_the_colon() {
    refused(get("Content-Length : 5\r\n"), 400);
    refused(get("Content-Length\t: 5\r\n"), 400);
}

#[test]
fn obs_fold() {
    refused(get("A: b\r\n c\r\n"), 400);
    refused(get("A: b\r\n\tc\r\n"), 400);
    refused(parse("GET / HTTP/1.1\r\n Host: h\r\n\r\n"), 400);
}

#[test]
fn nul_ctl_and_del_in_values() {
    for byte in (0..=0x1f).chain([0x7f]).filter(|byte| *byte != b'\t') {
        let mut head = b"GET / HTTP/1.1\r\nHost: h\r\nA: x".to_vec();
        head.push(byte);
        head.extend_from_slice(b"y\r\n\r\n");
        assert!(parse_head(&head, &HeadLimits::default()).is_err(), "{byte:#x}");
    }
    assert!(get("A: x\ty\r\n").is_ok());
    assert!(get("A: caf\u{e9}\r\n").is_ok(), "obs-text is allowed");
}

#[test]
fn empty_and_non_token_names() {
    for name in ["", "a b", "a(b", "a/b", "a\"b", "a{b", "a\u{e9}", "a\0b", "a\u{7f}", "a@b", "a,b", "a;b", "[a]"] {
        refused(get(&format!("{name}: x\r\n")), 400);
    }
    refused(get("no colon\r\n"), 400);
    assert!(get("a!#$%&'*+-.^_`|~09Az: x\r\n").is_ok());
}

#[test]
fn more_than_one_host() {
    refused(get("Host: h\r\n"), 400);
    refused(parse("GET / HTTP/1.0\r\nHost: h\r\nhost: h\r\n\r\n"), 400);
}

#[test]
fn missing_host_on_1_1() {
    refused(parse("GET / HTTP/1.1\r\n\r\n"), 400);
    refused(parse("GET http://h/ HTTP/1.1\r\n\r\n"), 400);
    assert!(parse("GET / HTTP/1.0\r\n\r\n").is_ok());
}

#[test]
fn invalid_host() {
    let host = |value: &str| parse(format!("GET / HTTP/1.1\r\nHost: {value}\r\n\r\n"));
    for bad in ["a b", "a/b", "a?b", "u@h", "h:x", "h:123456", "[::1", "[zz]", "[::1]x", "h\u{e9}", "a\\b", "h#"] {
        refused(host(bad), 400);
    }
    for good in ["", "h", "h:", "h:80", "a-b.c_d", "127.0.0.1:5000", "[::1]", "[::1]:5000", "xn--bcher-kva.example"] {
        assert!(host(good).is_ok(), "{good}");
    }
}

#[test]
fn content_length_that_is_not_one_plain_number() {
    for bad in ["", "+5", "-5", "5, 5", "5,6", "0x5", "5 5", "5a", "05", "00", "1e3", "5.0", "\u{b2}"] {
        refused(get(&format!("Content-Length: {bad}\r\n")), 400);
    }
    assert_eq!(get("Content-Length: 0\r\n").expect("fine").framing, Framing::None);
    assert_eq!(get("Content-Length: 17\r\n").expect("fine").framing, Framing::Length(17));
}

#[test]
fn content_length_more_than_once() {
    refused(get("Content-Length: 5\r\nContent-Length: 6\r\n"), 400);
    refused(get("Content-Length: 5\r\ncontent-length: 5\r\n"), 400);
}

#[test]
fn content_length_beyond_2_53() {
    assert_eq!(get("Content-Length: 9007199254740992\r\n").expect("fine").framing, Framing::Length(1 << 53));
    for bad in ["9007199254740993", "18446744073709551616", "99999999999999999999999999"] {
        refused(get(&format!("Content-Length: {bad}\r\n")), 413);
    }
}

#[test]
fn transfer_encoding_together_with_content_length() {
    refused(get("Transfer-Encoding: chunked\r\nContent-Length: 5\r\n"), 400);
    refused(get("Content-Length: 0\r\nTransfer-Encoding: chunked\r\n"), 400);
}

#[test]
fn transfer_encoding_other_than_exactly_chunked_once() {
    // If the last coding is not chunked, the end of the body is unknown: 400 (RFC 9112 section 6.3).
    let ambiguous =
        ["chunked, gzip", "chunked, identity", "chunked, chunked", "identity", "xchunked", "chunked;a=b", "", ","];
    for bad in ambiguous {
        refused(get(&format!("Transfer-Encoding: {bad}\r\n")), 400);
    }
    for unknown in ["gzip, chunked", "identity, chunked"] {
        refused(get(&format!("Transfer-Encoding: {unknown}\r\n")), 501);
    }
    // Empty elements of a list are ignored (RFC 9110 section 5.6.1.2).
    for fine in ["chunked,", ", chunked", ",chunked ,,"] {
        assert_eq!(get(&format!("Transfer-Encoding: {fine}\r\n")).expect("fine").framing, Framing::Chunked);
    }
    assert!(get("Expect: , 100-continue\r\n").expect("fine").expect_continue);
    refused(get("Expect: 100-continue, x\r\n"), 417);
    assert!(!get("Connection: , close,\r\n").expect("fine").keep_alive);
    refused(get("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n"), 400);
    refused(get("Transfer-Encoding: \x0bchunked\r\n"), 400);
    assert_eq!(get("transfer-encoding: Chunked\r\n").expect("fine").framing, Framing::Chunked);
}

#[test]
fn transfer_encoding_on_http_1_0() {
    refused(parse("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n"), 400);
}

#[test]
fn non_ascii_or_ctl_in_the_target() {
    refused(parse("GET /\u{e9} HTTP/1.1\r\nHost: h\r\n\r\n"), 400);
    refused(parse("GET /\x01 HTTP/1.1\r\nHost: h\r\n\r\n"), 400);
    refused(parse("GET /\x7f HTTP/1.1\r\nHost: h\r\n\r\n"), 400);
    refused(parse("GET /\0 HTTP/1.1\r\nHost: h\r\n\r\n"), 400);
    refused(parse("GET /a\tb HTTP/1.1\r\nHost: h\r\n\r\n"), 400);
    refused(parse("GET /a#b HTTP/1.1\r\nHost: h\r\n\r\n"), 400);
    refused(parse("GET a HTTP/1.1\r\nHost: h\r\n\r\n"), 400);
}

#[test]
fn absolute_form_authority_wins_over_host() {
    let head = "GET http://real.example:81/p?q HTTP/1.1\r\nHost: other\r\n\r\n";
    let parsed = parse(head).expect("well-formed");
    assert_eq!(parsed.parts.host.map(|span| text(head, span)), Some("real.example:81"));
    assert_eq!(text(head, parsed.parts.path), "/p");
    assert_eq!(parsed.parts.query.map(|span| text(head, span)), Some("q"));
    for head in ["GET HTTPS://h HTTP/1.1\r\nHost: h\r\n\r\n", "GET http://h?q HTTP/1.1\r\nHost: h\r\n\r\n"] {
        let parsed = parse(head).expect("well-formed");
        assert_eq!(text(head, parsed.parts.path), "/");
    }
    for bad in ["http:///p", "http://u@h/", "ftp://h/", "http:/h", "http://[::1/", "://h"] {
        refused(parse(format!("GET {bad} HTTP/1.1\r\nHost: h\r\n\r\n")), 400);
    }
}

#[test]
fn connect_where_a_handler_opts_in_and_the_asterisk_form_for_options() {
    let connect = "CONNECT h:443 HTTP/1.1\r\nHost: h:443\r\n\r\n";
    let asterisk = "OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n";
    refused(parse(connect), 501);
    assert!(parse(asterisk).is_ok());
    let limits = HeadLimits { connect_allowed: true, asterisk_allowed: true, ..HeadLimits::default() };
    assert!(parse_with(connect, &limits).is_ok());
    assert!(parse_with(asterisk, &limits).is_ok());
    refused(parse_with("GET * HTTP/1.1\r\nHost: h\r\n\r\n", &limits), 400);
    refused(parse_with("CONNECT / HTTP/1.1\r\nHost: h\r\n\r\n", &limits), 400);
    refused(parse_with("CONNECT h HTTP/1.1\r\nHost: h\r\n\r\n", &limits), 400);
    refused(parse_with("CONNECT :80 HTTP/1.1\r\nHost: h\r\n\r\n", &limits), 400);
}

#[test]
fn version_other_than_1_0_and_1_1() {
    // A later minor version is treated as the highest known one (RFC 9110 section 2.5).
    for version in ["HTTP/1.2", "HTTP/1.9"] {
        for start in ["", "\r\n"] {
            let head = format!("{start}GET /p?q {version}\r\nHost: h\r\nA: b\r\n\r\n");
            let parsed = parse(&head).expect("as HTTP/1.1");
            assert_eq!((parsed.parts.version, text(&head, parsed.parts.path)), (Version::HTTP_11, "/p"));
            assert!(parsed.keep_alive && parsed.head_len == head.len());
        }
    }
    refused(parse("GET / HTTP/1.2\r\n\r\n"), 400);
    for version in ["HTTP/0.9", "HTTP/2.0", "HTTP/9.9"] {
        refused(parse(format!("GET / {version}\r\nHost: h\r\n\r\n")), 505);
    }
    refused(parse("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), 505);
    for version in ["HTTP/1", "http/1.1", "HTTP/1.1 ", "HTTP/11", "FOO", "HTTP/1.10", ""] {
        refused(parse(format!("GET / {version}\r\nHost: h\r\n\r\n")), 400);
    }
    refused(parse("GET /\r\nHost: h\r\n\r\n"), 400);
}

#[test]
fn leading_crlf_at_most_one() {
    let head = "\r\nGET /p HTTP/1.1\r\nHost: h\r\n\r\n";
    let parsed = parse(head).expect("one is allowed");
    assert_eq!((parsed.head_len, text(head, parsed.parts.path)), (head.len(), "/p"));
    refused(parse("\r\n\r\nGET / HTTP/1.1\r\nHost: h\r\n\r\n"), 400);
}

#[test]
fn request_line_has_single_spaces() {
    refused(parse("GET  / HTTP/1.1\r\nHost: h\r\n\r\n"), 400);
    refused(parse("GET /  HTTP/1.1\r\nHost: h\r\n\r\n"), 400);
    refused(parse("GET\t/ HTTP/1.1\r\nHost: h\r\n\r\n"), 400);
    refused(parse(" GET / HTTP/1.1\r\nHost: h\r\n\r\n"), 400);
    refused(parse("G@T / HTTP/1.1\r\nHost: h\r\n\r\n"), 400);
}

#[test]
fn no_method_means_refused_at_the_first_byte() {
    // The start of a TLS ClientHello.
    assert!(parse_head(b"\x16", &HeadLimits::default()).is_err());
    assert!(parse_head(b"(", &HeadLimits::default()).is_err());
}

#[test]
fn keep_alive_is_the_default_of_1_1_and_opt_in_on_1_0() {
    let close = |version: &str, fields: &str| {
        parse(format!("GET / {version}\r\nHost: h\r\n{fields}\r\n")).expect("well-formed").keep_alive
    };
    assert!(close("HTTP/1.1", ""));
    assert!(!close("HTTP/1.1", "Connection: close\r\n"));
    assert!(!close("HTTP/1.1", "Connection: upgrade , CLOSE\r\n"));
    assert!(!close("HTTP/1.1", "Connection: keep-alive\r\nConnection: close\r\n"));
    assert!(!close("HTTP/1.0", ""));
    assert!(close("HTTP/1.0", "Connection: Keep-Alive\r\n"));
    assert!(!close("HTTP/1.0", "Connection: keep-alive, close\r\n"));
}

#[test]
fn expectations_other_than_100_continue_fail() {
    assert!(get("Expect: 100-Continue\r\n").expect("fine").expect_continue);
    refused(get("Expect: 200-ok\r\n"), 417);
    assert!(!parse("GET / HTTP/1.0\r\nExpect: 100-continue\r\n\r\n").expect("ignored on 1.0").expect_continue);
}

#[test]
fn limit_on_bytes() {
    let limits = HeadLimits { bytes_max: 64, ..HeadLimits::default() };
    let head = |value: usize| format!("GET / HTTP/1.1\r\nHost: h\r\nA: {}\r\n\r\n", "x".repeat(value));
    let room = 64 - head(0).len();
    assert!(parse_with(head(room), &limits).is_ok());
    refused(parse_with(head(room + 1), &limits), 431);
    refused(parse_with(head(1000), &limits), 431);
    // An incomplete head is rejected as soon as it can no longer fit.
    let unfinished = head(200);
    assert!(matches!(parse_head(&unfinished.as_bytes()[..63], &limits), Ok(None)));
    assert!(parse_head(&unfinished.as_bytes()[..64], &limits).is_err());
}

#[test]
fn limit_on_the_request_line() {
    let limits = HeadLimits { request_line_bytes_max: 32, ..HeadLimits::default() };
    let head = |path: usize| format!("GET /{} HTTP/1.1\r\nHost: h\r\n\r\n", "x".repeat(path));
    let room = 32 - "GET / HTTP/1.1\r\n".len();
    assert!(parse_with(head(room), &limits).is_ok());
    refused(parse_with(head(room + 1), &limits), 414);
    let error = parse_head(&b"G".repeat(33), &limits).expect_err("known before the line ends");
    assert_eq!(error.status.as_u16(), 414);
}

#[test]
fn limit_on_the_number_of_fields() {
    let limits = HeadLimits { fields_max: 3, ..HeadLimits::default() };
    assert!(parse_with("GET / HTTP/1.1\r\nHost: h\r\nA: b\r\nC: d\r\n\r\n", &limits).is_ok());
    refused(parse_with("GET / HTTP/1.1\r\nHost: h\r\nA: b\r\nC: d\r\nE: f\r\n\r\n", &limits), 431);
    let limits = HeadLimits { fields_max: usize::MAX, ..HeadLimits::default() };
    let many = |n: usize| format!("GET / HTTP/1.1\r\nHost: h\r\n{}\r\n", "A: b\r\n".repeat(n - 1));
    assert!(parse_with(many(FIELDS_MAX), &limits).is_ok());
    refused(parse_with(many(FIELDS_MAX + 1), &limits), 431);
}

#[test]
fn limit_on_the_method() {
    assert_eq!(parse("PROPFIND / HTTP/1.1\r\nHost: h\r\n\r\n").expect("extension").parts.method.as_str(), "PROPFIND");
    refused(parse(format!("{} / HTTP/1.1\r\nHost: h\r\n\r\n", "M".repeat(33))), 501);
}
