//! Clients that cause work without a purpose. Each is disconnected with ENHANCE_YOUR_CALM, or with the error for its violation, before
//! it has cost much. Where a test is named after a published attack, its comment cites it.

use std::sync::atomic::Ordering;

use super::client::*;
use super::server::Site;
use crate::harness::{eventually, on_each_driver, unhurried};

/// The maximum that an attack may send before the connection ends.
const TIMES_MAX: usize = 4000;

/// Starts a server for each driver, and lets `attack` send frames until the connection ends with `code`. Others are served
/// before and after that.
fn ends_with(code: u32, mut attack: impl FnMut(&mut Client) -> Vec<u8>) {
    on_each_driver_mut(|site, address| {
        let mut other = Client::start(address);
        other.still_serves();
        let mut client = Client::start(address);
        assert_eq!(client.until_goaway(TIMES_MAX, &mut attack), code);
        site.open_gate();
        other.still_serves();
        eventually("all handlers end", || site.running.load(Ordering::SeqCst) == 0);
    });
}

fn on_each_driver_mut(test: impl FnMut(&Site, std::net::SocketAddr)) {
    let test = std::cell::RefCell::new(test);
    on_each_driver(|driver| {
        let (site, server) = Site::start(driver, unhurried());
        (test.borrow_mut())(&site, server.address);
        site.open_gate();
    });
}

/// HEADERS of a request on the client's next stream, and the stream.
fn opened(client: &mut Client, path: &str, is_last: bool) -> (u32, Vec<u8>) {
    let stream = client.stream();
    let flags = END_HEADERS | if is_last { END_STREAM } else { 0 };
    (stream, frame(HEADERS, flags, stream, block(&get(path))))
}

fn reset(stream: u32) -> Vec<u8> {
    frame(RST_STREAM, 0, stream, code::CANCEL.to_be_bytes())
}

/// CVE-2023-44487: requests that are reset immediately cost the server the full work, and the client almost nothing.
#[test]
fn rapid_reset() {
    on_each_driver_mut(|site, address| {
        let mut client = Client::start(address);
        let code = client.until_goaway(TIMES_MAX, |client| {
            let (stream, headers) = opened(client, "/", true);
            [headers, reset(stream)].concat()
        });
        assert_eq!(code, code::ENHANCE_YOUR_CALM);
        assert!(site.handled() < 1000, "{} handlers ran", site.handled());
    });
}

/// The same with slow handlers: a stream that was reset counts as long as its handler runs.
#[test]
fn reset_streams_count_until_their_handlers_end() {
    on_each_driver_mut(|site, address| {
        let mut client = Client::start(address);
        for _ in 0..128 {
            let (stream, headers) = opened(&mut client, "/wait", true);
            client.send([headers, reset(stream)].concat());
        }
        let stream = client.get("/wait");
        assert_eq!(client.outcome(stream), Outcome::Reset(code::REFUSED_STREAM));
        site.open_gate();
        eventually("all handlers end", || site.running.load(Ordering::SeqCst) == 0);
        let mut answered = false;
        eventually("there is room again", || {
            let stream = client.get("/");
            answered |= matches!(client.outcome(stream), Outcome::Response(_));
            answered
        });
        assert!(site.handled() <= 128 + 1);
    });
}

/// CVE-2025-8671 (MadeYouReset): the client provokes the server into resetting its streams, in every known way.
#[test]
fn made_you_reset_by_zero_window_updates() {
    ends_with(code::ENHANCE_YOUR_CALM, |client| {
        let (stream, headers) = opened(client, "/", true);
        [headers, frame(WINDOW_UPDATE, 0, stream, [0; 4])].concat()
    });
}

#[test]
fn made_you_reset_by_window_overflow() {
    ends_with(code::ENHANCE_YOUR_CALM, |client| {
        let (stream, headers) = opened(client, "/wait", true);
        let update = frame(WINDOW_UPDATE, 0, stream, 0x7fff_ffff_u32.to_be_bytes());
        [headers, update].concat()
    });
}

#[test]
fn made_you_reset_by_bodies_of_the_wrong_length() {
    ends_with(code::ENHANCE_YOUR_CALM, |client| {
        let stream = client.stream();
        let fields = [post("/length"), vec![("content-length", "5")]].concat();
        [frame(HEADERS, END_HEADERS, stream, block(&fields)), frame(DATA, END_STREAM, stream, "four")].concat()
    });
}

#[test]
fn made_you_reset_by_malformed_requests() {
    ends_with(code::ENHANCE_YOUR_CALM, |client| {
        let stream = client.stream();
        let fields = [get("/"), vec![("connection", "close")]].concat();
        frame(HEADERS, END_HEADERS | END_STREAM, stream, block(&fields))
    });
}

/// An error of the stream (RFC 7540 §5.3.1), or of the connection as any error may be (RFC 9113 §5.4.1).
#[test]
fn priorities_of_a_stream_on_itself() {
    ends_with(code::PROTOCOL_ERROR, |client| {
        let (stream, headers) = opened(client, "/", true);
        let priority = [&stream.to_be_bytes()[..], &[16]].concat();
        [headers, frame(PRIORITY, 0, stream, priority)].concat()
    });
}

/// CVE-2024-27316 and others of 2024 (CONTINUATION flood): a header block without an end.
#[test]
fn continuation_flood() {
    for fragment in [0, 1, 16_384] {
        on_each_driver_mut(|site, address| {
            let mut client = Client::start(address);
            let stream = client.stream();
            let headers = frame(HEADERS, END_STREAM, stream, block(&get("/")));
            client.send(headers);
            let more = frame(CONTINUATION, 0, stream, vec![0x82; fragment]);
            let code = client.until_goaway(TIMES_MAX, |_| more.clone());
            assert!(code == code::ENHANCE_YOUR_CALM || code == code::PROTOCOL_ERROR, "{code:#x}, {fragment} octets");
            assert_eq!(site.handled(), 0);
        });
    }
}

/// A block with this entry for the dynamic table, and references to it.
fn bomb(name: &[u8], value: &[u8], references: usize) -> Vec<u8> {
    let mut block = block(&get("/"));
    let mut entry = super::client::block(&[(name, value)]);
    entry[0] = 0x40;
    block.extend(entry);
    block.extend(vec![0xbe; references]);
    block
}

/// HPACK bombs (CVE-2016-6581, CVE-2026-49975): a few octets stand for a list of megabytes, or of many fields.
#[test]
fn header_bombs() {
    for (value, references) in [(3900, 16_000 - 3900), (0, 16_000)] {
        on_each_driver_mut(|site, address| {
            let mut client = Client::start(address);
            for _ in 0..3 {
                let stream = client.stream();
                let block = bomb(b"a", &vec![b'x'; value], references);
                client.send(frame(HEADERS, END_HEADERS | END_STREAM, stream, block));
                match client.outcome(stream) {
                    Outcome::Response(response) => assert_eq!(response.status, 431),
                    Outcome::Reset(code) => assert_eq!(code, code::ENHANCE_YOUR_CALM),
                }
            }
            assert_eq!(site.handled(), 0);
            // The decoder's table is still synchronised.
            client.still_serves();
        });
    }
}

/// The same with Cookie fields, which are one field for the handler.
#[test]
fn cookie_crumbs() {
    on_each_driver_mut(|site, address| {
        let mut client = Client::start(address);
        for value in [3000, 0] {
            let stream = client.stream();
            let block = bomb(b"cookie", &vec![b'x'; value], 12_000);
            client.send(frame(HEADERS, END_HEADERS | END_STREAM, stream, block));
            match client.outcome(stream) {
                Outcome::Response(response) => assert_eq!(response.status, 431),
                Outcome::Reset(code) => assert_eq!(code, code::ENHANCE_YOUR_CALM),
            }
        }
        assert_eq!(site.handled(), 0);
        client.still_serves();
        let fields = [get("/cookie"), vec![("cookie", "a=1"), ("cookie", "b=2"), ("cookie", "c=3")]].concat();
        let stream = client.open(&fields, true);
        assert_eq!(client.response(stream).text(), "a=1; b=2; c=3");
    });
}

/// After an invalid HPACK block the state of the table is unknown, so the connection must end.
#[test]
fn invalid_header_compression() {
    for broken in
        [&[0xff, 0x80, 0x80, 0x80, 0x80, 0x80, 0x01][..], &[0x80], &[0xbe], &[0x00, 0x84, 0xff, 0xff, 0xff, 0xff]]
    {
        on_each_driver_mut(|site, address| {
            let mut client = Client::start(address);
            client.send(frame(HEADERS, END_HEADERS | END_STREAM, 1, broken));
            assert_eq!(client.goaway(), code::COMPRESSION_ERROR);
            assert_eq!(site.handled(), 0);
        });
    }
}

/// CVE-2019-9518 and RUSTSEC-2026-0258: empty DATA frames.
#[test]
fn empty_data() {
    let padding = [&[255_u8][..], &[0; 255]].concat();
    for (flags, payload) in [(0, Vec::new()), (PADDED, vec![0]), (PADDED, padding)] {
        let mut stream = 0;
        ends_with(code::ENHANCE_YOUR_CALM, |client| {
            let data = |stream| frame(DATA, flags, stream, &payload);
            // a new connection
            let opening = client.stream();
            if opening == 1 {
                stream = opening;
                return [frame(HEADERS, END_HEADERS, stream, block(&post("/length"))), data(stream)].concat();
            }
            data(stream)
        });
    }
}

/// A body in frames of one octet is slow, but valid.
#[test]
fn a_body_in_small_pieces_is_accepted() {
    on_each_driver_mut(|_, address| {
        let mut client = Client::start(address);
        let stream = client.open(&post("/length"), false);
        for _ in 0..20 {
            client.send(frame(DATA, 0, stream, "x").repeat(100));
        }
        client.send(frame(DATA, END_STREAM, stream, ""));
        assert_eq!(client.response(stream).text(), "2000");
    });
}

/// CVE-2019-9512.
#[test]
fn ping_flood() {
    ends_with(code::ENHANCE_YOUR_CALM, |_| frame(PING, 0, 0, [7; 8]));
}

/// CVE-2019-9515.
#[test]
fn settings_flood() {
    ends_with(code::ENHANCE_YOUR_CALM, |_| frame(SETTINGS, 0, 0, []));
}

/// One SETTINGS frame with thousands of parameters for each of 128 streams.
#[test]
fn settings_with_many_parameters() {
    on_each_driver_mut(|_, address| {
        let mut client = Client::with_settings(address, &[(INITIAL_WINDOW_SIZE, 0)]);
        let streams: Vec<u32> = (0..100).map(|_| client.get("/large")).collect();
        let many = parameters(&vec![(INITIAL_WINDOW_SIZE, 1); 2700]);
        for _ in 0..20 {
            client.send(frame(SETTINGS, 0, 0, &many));
        }
        client.until(|frame| frame.kind == DATA);
        for stream in streams {
            client.send(reset(stream));
        }
        client.still_serves();
    });
}

/// CVE-2019-9513.
#[test]
fn priority_flood() {
    ends_with(code::ENHANCE_YOUR_CALM, |client| frame(PRIORITY, 0, client.stream(), [0, 0, 0, 0, 16]));
}

#[test]
fn unknown_frame_flood() {
    ends_with(code::ENHANCE_YOUR_CALM, |_| frame(0xf0, 0xff, 0, [1; 8]));
}

#[test]
fn window_update_flood() {
    ends_with(code::ENHANCE_YOUR_CALM, |_| frame(WINDOW_UPDATE, 0, 0, 1_u32.to_be_bytes()));
}

/// Large updates of the connection's window, while no stream waits for it.
#[test]
fn window_update_flood_with_streams_that_wait_for_their_own_windows() {
    on_each_driver_mut(|_, address| {
        let mut client = Client::with_settings(address, &[(INITIAL_WINDOW_SIZE, 0)]);
        for _ in 0..128 {
            client.get("/large");
        }
        let code = client.until_goaway(TIMES_MAX, |_| frame(WINDOW_UPDATE, 0, 0, 256_u32.to_be_bytes()));
        assert_eq!(code, code::ENHANCE_YOUR_CALM);
    });
}

#[test]
fn header_blocks_full_of_size_updates() {
    on_each_driver_mut(|site, address| {
        let mut client = Client::start(address);
        let stream = client.stream();
        let block = [vec![0x20; 16_000], block(&get("/"))].concat();
        client.send(frame(HEADERS, END_HEADERS | END_STREAM, stream, block));
        assert_eq!((client.goaway(), site.handled()), (code::COMPRESSION_ERROR, 0));
    });
}

/// RFC 8446 section 6.2, whatever came before.
#[test]
fn a_record_that_cannot_be_decrypted_is_answered_with_an_alert() {
    on_each_driver_mut(|site, address| {
        for path in ["/", "/wait"] {
            let mut client = Client::start(address);
            client.still_serves();
            let (_, headers) = opened(&mut client, path, true);
            let error = client.send_with_a_bad_record(&headers);
            assert!(error.to_string().contains("BadRecordMac"), "{path}: {error}");
        }
        site.open_gate();
        Client::start(address).still_serves();
    });
}

/// Frames on a stream that was reset are ignored, up to a limit.
#[test]
fn flood_on_a_reset_stream() {
    let mut stream = 0;
    ends_with(code::ENHANCE_YOUR_CALM, |client| {
        let opening = client.stream();
        if opening == 1 {
            stream = opening;
            return [frame(HEADERS, END_HEADERS, 1, block(&post("/length"))), reset(1)].concat();
        }
        frame(WINDOW_UPDATE, 0, stream, 1_u32.to_be_bytes())
    });
}

/// CVE-2019-9517 and others: a client that sends requests and never reads. Pending output is bounded, and beyond that nothing is received;
/// so at some point the server stops reading, or ends the connection.
#[test]
fn floods_without_reading() {
    for flood in [frame(PING, 0, 0, [7; 8]), frame(SETTINGS, 0, 0, [])] {
        on_each_driver_mut(|_, address| {
            let mut client = Client::start(address);
            let batch = flood.repeat(1000);
            let sent = (0..3000).take_while(|_| client.try_send(&batch).is_ok()).count();
            assert!(sent < 3000, "three million frames were taken");
            Client::start(address).still_serves();
        });
    }
}
