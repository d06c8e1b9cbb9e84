//! Request heads: pieces parse as the whole does, spans lie inside the head, framing is never ambiguous; also the parsers of fields.

#![no_main]

use libfuzzer_sys::fuzz_target;
use narval_http::semantics::accept::{Coding, negotiate_coding, negotiate_media_type};
use narval_http::semantics::conditional::{Validators, evaluate, range_applies};
use narval_http::codecs::head::{Framing, HeadLimits, HeadScan, ParsedHead, parse_head};
use narval_http::{HeadRef, HeaderValue, Peer, Version};

fuzz_target!(|data: &[u8]| {
    let Some((&cut, message)) = data.split_first() else { return };
    let limits = HeadLimits { bytes_max: 1024, fields_max: 16, connect_allowed: cut & 1 == 1, ..HeadLimits::default() };
    let whole = parse_head(message, &limits);
    let step = usize::from(cut >> 1) + 1;
    let mut scan = HeadScan::default();
    let mut pieces = Ok(None);
    for end in (0..message.len()).step_by(step).chain([message.len()]) {
        pieces = scan.parse(&message[..end], &limits);
        if !matches!(pieces, Ok(None)) {
            break;
        }
    }
    match (&whole, &pieces) {
        (Ok(Some(whole)), Ok(Some(pieces))) => assert_eq!(format!("{whole:?}"), format!("{pieces:?}")),
        (Ok(None), Ok(None)) => {}
        // Which of several faults is found first may depend on how much input there was.
        (Err(_), Err(_)) => {}
        _ => panic!("{whole:?} in one, {pieces:?} in pieces of {step}"),
    }
    if let Ok(Some(parsed)) = whole {
        check(message, &parsed);
    }
});

fn check(message: &[u8], parsed: &ParsedHead) {
    let head = &message[..parsed.head_len];
    assert!(head.ends_with(b"\r\n\r\n"));
    assert!(!head[..head.len() - 3].windows(4).any(|window| window == b"\r\n\r\n"));
    let lone = |(at, byte): (usize, &u8)| match byte {
        b'\n' => at == 0 || head[at - 1] != b'\r',
        b'\r' => head.get(at + 1) != Some(&b'\n'),
        0 | 0x7f => true,
        _ => false,
    };
    assert!(!head.iter().enumerate().any(lone));

    let remote = Peer::Unix.into();
    let head_ref = HeadRef::new(head, &parsed.parts, &remote);
    assert!(!head_ref.target().is_empty() && head_ref.target().bytes().all(|byte| byte.is_ascii_graphic()));
    assert!(!head_ref.path().is_empty() && !head_ref.path().contains('?'));
    for (name, value) in head_ref.headers() {
        assert!(!name.is_empty() && !name.contains([' ', '\t', ':']));
        assert_eq!(value, value.trim_ascii());
    }
    assert!(head_ref.header_all("host").count() <= 1);
    let (te, length) = (head_ref.header_bytes("transfer-encoding"), head_ref.header_bytes("content-length"));
    match parsed.framing {
        Framing::None => assert!(te.is_none() && matches!(length, None | Some(b"0"))),
        Framing::Length(bytes) => assert!(te.is_none() && length == Some(bytes.to_string().as_bytes())),
        Framing::Chunked => assert!(length.is_none() && head_ref.version() == Version::HTTP_11),
    }

    let etag = HeaderValue::from_static("\"a\"");
    let current = Validators { etag: Some(&etag), last_modified: Some(std::time::SystemTime::UNIX_EPOCH) };
    evaluate(&head_ref, Some(&current));
    evaluate(&head_ref, None);
    range_applies(&head_ref, &current);
    negotiate_coding(&head_ref, &[Coding::Zstd, Coding::Gzip]);
    negotiate_media_type(&head_ref, &["text/html", "application/json"]);
}
