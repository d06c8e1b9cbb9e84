//! Flow control (RFC 9113 §5.2 and §6.9): both sides respect the windows, and no stream blocks another.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use narval_http::{Body, FileRange, Limits, Request, Response, StatusCode};

use super::client::*;
use super::server::{LARGE, Site, octet, serve};
use crate::harness::{eventually, on_each_driver, unhurried};

const WINDOW_MAX: u32 = 0x7fff_ffff;

fn with_client(settings: &[(u16, u32)], test: impl Fn(&mut Client, &Site)) {
    on_each_driver(|driver| {
        let (site, server) = Site::start(driver, unhurried());
        let mut client = Client::with_settings(server.address, settings);
        test(&mut client, &site);
        site.open_gate();
    });
}

fn with_long_uploads(test: impl Fn(&mut Client, &Site)) {
    on_each_driver(|driver| {
        let (site, server) = Site::start(driver, Limits { body_max: 1 << 30, ..unhurried() });
        test(&mut Client::start(server.address), &site);
        site.open_gate();
    });
}

/// Body bytes that come for a stream until the server has none that it may send: until the answer to a PING, which is sent
/// behind them.
fn body_until_ping(client: &mut Client, stream: u32, expected: usize) -> usize {
    let mut length = 0;
    while length < expected {
        let data = client.until(|frame| frame.kind == DATA && frame.stream == stream);
        length += data.payload.len();
    }
    for _ in 0..3 {
        client.send(frame(PING, 0, 0, *b"anymore?"));
        loop {
            let next = client.frame();
            match next.kind {
                DATA if next.stream == stream => length += next.payload.len(),
                PING => break,
                _ => {}
            }
        }
    }
    length
}

#[test]
fn bodies_arrive_completely_through_small_windows() {
    for window in [1000, 16_384, 65_535, 1 << 20] {
        with_client(&[(INITIAL_WINDOW_SIZE, window)], |client, _| {
            let stream = client.get("/large");
            let body = client.response(stream).body;
            assert_eq!(body.len() as u64, LARGE);
            assert!((0..LARGE).zip(body).all(|(at, have)| have == octet(at)));
        });
    }
}

#[test]
fn what_is_kept_with_a_body_is_dropped_when_its_stream_ends() {
    on_each_driver(|driver| {
        let (kept, length) = (Arc::new(()), 300_000);
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&vec![7; length]).unwrap();
        let bytes = Arc::new(AtomicU64::new(0));
        let (held, file, sent_bytes) = (kept.clone(), Arc::new(file), bytes.clone());
        let server = serve(driver, unhurried(), move |_: Request| {
            let range = FileRange { file: file.clone(), offset: 0, length: length as u64 };
            Response::new(StatusCode::OK).body(Body::file(range)).keep_counted(held.clone(), sent_bytes.clone())
        });
        let mut client = Client::with_settings(server.address, &[(INITIAL_WINDOW_SIZE, 100)]);
        let [aborted, sent] = [0, 1].map(|_| {
            let stream = client.get("/");
            client.until(|frame| frame.kind == DATA && frame.stream == stream);
            stream
        });
        // Ours, the handler's, and one for each stream.
        assert_eq!(Arc::strong_count(&kept), 4);
        assert_eq!(bytes.load(Ordering::Relaxed), 200, "both windows are used up");
        client.send(frame(RST_STREAM, 0, aborted, code::CANCEL.to_be_bytes()));
        eventually("the stream is gone", || Arc::strong_count(&kept) == 3);
        client.window(0, 1 << 20);
        client.window(sent, 1 << 20);
        client.until(|frame| frame.kind == DATA && frame.stream == sent && frame.flags & END_STREAM != 0);
        eventually("the response is sent", || Arc::strong_count(&kept) == 2);
        assert_eq!(bytes.load(Ordering::Relaxed), 100 + length as u64);
    });
}

#[test]
fn nothing_is_sent_beyond_the_windows() {
    with_client(&[(INITIAL_WINDOW_SIZE, 100)], |client, _| {
        let stream = client.get("/large");
        assert_eq!(body_until_ping(client, stream, 100), 100);
        // Reduced below what was sent, so that the window is -50.
        client.send(frame(SETTINGS, 0, 0, parameters(&[(INITIAL_WINDOW_SIZE, 50)])));
        client.window(stream, 50);
        assert_eq!(body_until_ping(client, stream, 0), 0);
        client.window(stream, 7);
        assert_eq!(body_until_ping(client, stream, 7), 7);
        client.send(frame(SETTINGS, 0, 0, parameters(&[(INITIAL_WINDOW_SIZE, 60)])));
        assert_eq!(body_until_ping(client, stream, 10), 10);
        // The connection's window has 65,535 - 117 left.
        client.window(stream, 1 << 20);
        assert_eq!(body_until_ping(client, stream, 65_418), 65_418);
        client.still_blocked(stream);
        client.window(0, 1);
        assert_eq!(body_until_ping(client, stream, 1), 1);
    });
}

#[test]
fn windows_do_not_overflow() {
    with_client(&[], |client, _| {
        client.window(0, WINDOW_MAX);
        assert_eq!(client.goaway(), code::FLOW_CONTROL_ERROR);
    });
    with_client(&[], |client, _| {
        let stream = client.get("/wait");
        client.window(stream, WINDOW_MAX);
        assert_eq!(client.outcome(stream), Outcome::Reset(code::FLOW_CONTROL_ERROR));
        client.still_serves();
    });
    // by SETTINGS, of a stream that has been widened
    with_client(&[], |client, _| {
        let stream = client.get("/wait");
        client.window(stream, WINDOW_MAX - 65_535);
        client.send(frame(SETTINGS, 0, 0, parameters(&[(INITIAL_WINDOW_SIZE, 65_536)])));
        assert_eq!(client.goaway(), code::FLOW_CONTROL_ERROR);
    });
}

#[test]
fn zero_window_updates_are_errors() {
    with_client(&[], |client, _| {
        client.window(0, 0);
        assert_eq!(client.goaway(), code::PROTOCOL_ERROR);
    });
    with_client(&[], |client, _| {
        let stream = client.get("/wait");
        client.window(stream, 0);
        assert_eq!(client.outcome(stream), Outcome::Reset(code::PROTOCOL_ERROR));
        client.still_serves();
    });
}

/// A client that sends more than it may of a body that nobody reads.
#[test]
fn the_windows_bound_what_a_client_may_send() {
    with_client(&[], |client, _| {
        let stream = client.open(&post("/later"), false);
        let data = frame(DATA, 0, stream, vec![b'x'; 16_384]);
        let mut sent = 0;
        let mut is_refused = false;
        while !is_refused && sent < 64 << 20 {
            is_refused = client.try_send(&data).is_err() || client.is_refused(stream, code::FLOW_CONTROL_ERROR);
            sent += 16_384;
        }
        assert!(is_refused, "64 MiB of a body that nobody reads were taken");
    });
}

/// A handler that does not read stops its stream, and no other of its connection.
#[test]
fn an_unread_body_does_not_block_other_streams() {
    with_client(&[], |client, site| {
        // The handler runs when as much is there as is taken into memory.
        let held = client.open(&post("/later"), false);
        let mut window = client.window_of(held);
        let mut sent = 0;
        while site.running.load(Ordering::SeqCst) == 0 && sent < 8 << 20 {
            let piece = window.min(16_384);
            client.send(frame(DATA, 0, held, vec![b'x'; piece as usize]));
            sent += u64::from(piece);
            window = window - piece + client.widened(held);
        }
        assert!(sent < 8 << 20, "the handler has not begun");
        for _ in 0..3 {
            let other = client.open(&post("/echo"), false);
            client.send(frame(DATA, END_STREAM, other, vec![b'y'; 60_000 / 4]));
            assert_eq!(client.response(other).body, vec![b'y'; 15_000]);
            client.still_serves();
        }
        site.open_gate();
        client.send(frame(DATA, END_STREAM, held, []));
        assert_eq!(client.response(held).text(), sent.to_string());
    });
}

/// An upload larger than every window, which grows to its limit and no further.
#[test]
fn windows_reopen_as_uploads_are_read() {
    with_long_uploads(|client, site| {
        site.open_gate();
        let stream = client.open(&post("/length"), false);
        let (widest, _) = client.upload(stream, 40 << 20);
        client.send(frame(DATA, END_STREAM, stream, []));
        assert_eq!(client.response(stream).text(), (40 << 20).to_string());
        assert!((1 << 20..=16 << 20).contains(&widest), "{widest}");
    });
}

/// What the client sent on a stream before it knew that the server has reset it.
#[test]
fn late_frames_on_a_stream_that_was_reset_are_ignored() {
    with_client(&[], |client, _| {
        for is_trailers in [false, true] {
            let stream = client.open(&post("/length"), false);
            client.window(stream, 0);
            assert_eq!(client.outcome(stream), Outcome::Reset(code::PROTOCOL_ERROR));
            for _ in 0..1000 {
                client.still_serves();
            }
            client.send(match is_trailers {
                false => frame(DATA, END_STREAM, stream, "late"),
                true => frame(HEADERS, END_HEADERS | END_STREAM, stream, block(&[("x-late", "1")])),
            });
            client.still_serves();
        }
    });
}

/// All that the windows allow, in many frames.
#[test]
fn late_data_within_the_window_is_not_counted() {
    with_long_uploads(|client, site| {
        site.open_gate();
        let stream = client.open(&post("/length"), false);
        let (_, window) = client.upload(stream, 40 << 20);
        client.window(stream, 0);
        assert_eq!(client.outcome(stream), Outcome::Reset(code::PROTOCOL_ERROR));
        let data = frame(DATA, 0, stream, [b'x'; 500]);
        let frames = window / 500;
        assert!(frames > 1100, "{window}");
        for _ in 0..frames {
            client.send(&data);
        }
        client.still_serves();
    });
}

/// A client that returns its windows in small pieces.
#[test]
fn many_updates_of_a_window_that_is_used_are_not_counted() {
    with_client(&[(INITIAL_WINDOW_SIZE, 1 << 30)], |client, _| {
        let stream = client.get("/endless");
        for _ in 0..40 {
            let mut used = 0;
            while used < 16_384 {
                used += client.until(|frame| frame.kind == DATA && frame.stream == stream).payload.len();
            }
            for _ in 0..used / 256 {
                client.window(0, 256);
            }
        }
        client.send(frame(RST_STREAM, 0, stream, code::CANCEL.to_be_bytes()));
        client.window(0, 1 << 20);
        client.still_serves();
    });
}

/// However many streams a client uploads on, their windows together are bounded.
#[test]
fn the_sum_of_all_upload_windows_is_bounded() {
    with_long_uploads(|client, site| {
        site.open_gate();
        let (mut streams, mut windows) = (Vec::new(), 0);
        for _ in 0..6 {
            let stream = client.open(&post("/length"), false);
            windows += client.upload(stream, 12 << 20).1;
            streams.push(stream);
        }
        assert!(windows <= (32 << 20) + 6 * (64 << 10), "{windows}");
        for stream in streams {
            client.send(frame(DATA, END_STREAM, stream, []));
            assert_eq!(client.response(stream).text(), (12 << 20).to_string());
        }
    });
}

/// One stream whose window is shut, and the others of its connection.
#[test]
fn a_paused_stream_does_not_block_others() {
    with_client(&[(INITIAL_WINDOW_SIZE, 1000)], |client, _| {
        client.window(0, 1 << 30);
        let paused: Vec<u32> = (0..16).map(|_| client.get("/large")).collect();
        // In whichever order the workers answer.
        let mut silent = paused.clone();
        while !silent.is_empty() {
            let data = client.until(|frame| frame.kind == DATA);
            silent.retain(|stream| *stream != data.stream);
        }
        let other = client.get("/large");
        assert_eq!(client.response(other).body.len() as u64, LARGE);
        client.still_serves();
        for stream in paused {
            client.window(stream, 1 << 30);
        }
        client.still_serves();
    });
}

/// Small answers overtake large ones, and large ones take turns.
#[test]
fn bodies_take_turns() {
    with_client(&[(INITIAL_WINDOW_SIZE, 1 << 30)], |client, _| {
        // The connection's window holds all back until all are asked for.
        let large: Vec<u32> = (0..16).map(|_| client.get("/large")).collect();
        let mut held = 0;
        while held < 65_535 {
            held += client.until(|frame| frame.kind == DATA).payload.len();
        }
        let small = client.get("/");
        client.window(0, 1 << 30);
        let (mut before_small, mut counts) = (0, vec![0_usize; 16]);
        let mut small_came = false;
        loop {
            let next = client.frame();
            if next.kind != DATA {
                continue;
            }
            if next.stream == small {
                small_came = true;
            } else if !small_came {
                before_small += next.payload.len();
            }
            if let Some(at) = large.iter().position(|stream| *stream == next.stream) {
                counts[at] += next.payload.len();
            }
            if next.flags & END_STREAM != 0 && next.stream != small {
                break;
            }
        }
        assert!(small_came, "the small answer waits for a large one");
        assert!(before_small < 8 << 20, "{before_small} bytes of large bodies went before the small one");
        let least = counts.iter().min().unwrap();
        assert!(*least > LARGE as usize / 2, "when the first is complete, others have had {least} bytes");
    });
}

/// Streams that the client gives up make room at once.
#[test]
fn aborted_bodies_leave_nothing_behind() {
    with_client(&[(INITIAL_WINDOW_SIZE, 1 << 30)], |client, site| {
        client.window(0, 1 << 30);
        for _ in 0..100 {
            let stream = client.get("/endless");
            client.until(|frame| frame.kind == DATA && frame.stream == stream);
            client.send(frame(RST_STREAM, 0, stream, code::CANCEL.to_be_bytes()));
        }
        client.still_serves();
        eventually("handlers end", || site.running.load(Ordering::SeqCst) == 0);
    });
}

impl Client {
    /// Another stream's head still comes, but no body: the connection's window is shut.
    fn still_blocked(&mut self, of: u32) {
        let stream = self.get("/");
        let next = self.until(|frame| frame.stream == stream || frame.stream == of);
        assert_eq!((next.kind, next.stream), (HEADERS, stream));
        self.fields(&next);
        self.send(frame(RST_STREAM, 0, stream, code::CANCEL.to_be_bytes()));
    }

    /// What may be sent of a stream's body at first: after an exchange, as the server may have widened it.
    fn window_of(&mut self, stream: u32) -> u32 {
        self.initial_window + self.widened(stream)
    }

    /// By how much the window of a stream was widened since this was asked last; an exchange makes sure that all is seen.
    fn widened(&mut self, stream: u32) -> u32 {
        self.send(frame(PING, 0, 0, *b"windows?"));
        let mut by = 0;
        loop {
            let next = self.frame();
            match (next.kind, next.stream) {
                (PING, _) => return by,
                (WINDOW_UPDATE, of) if of == stream => by += increment(&next),
                (RST_STREAM | GOAWAY, _) => panic!("{next:?}"),
                _ => {}
            }
        }
    }

    /// Sends so much of a body. Returns the widest that its window was, and its width at the end.
    fn upload(&mut self, stream: u32, mut left: u32) -> (u32, u32) {
        let mut window = self.window_of(stream);
        let mut widest = window;
        while left > 0 {
            let piece = left.min(16_384).min(window);
            if piece == 0 {
                window += self.wait_for_window(stream);
                widest = widest.max(window);
                continue;
            }
            self.send(frame(DATA, 0, stream, vec![b'x'; piece as usize]));
            (left, window) = (left - piece, window - piece);
        }
        (widest, window + self.widened(stream))
    }

    fn wait_for_window(&mut self, stream: u32) -> u32 {
        increment(&self.until(|frame| frame.kind == WINDOW_UPDATE && frame.stream == stream))
    }

    /// Whether the stream or the connection was ended with this code by now.
    fn is_refused(&mut self, stream: u32, code: u32) -> bool {
        self.send(frame(PING, 0, 0, *b"refused?"));
        loop {
            let Some(next) = self.try_frame() else { return true };
            match next.kind {
                PING => return false,
                GOAWAY => return next.code() == code,
                RST_STREAM if next.stream == stream => return next.code() == code,
                _ => {}
            }
        }
    }
}

fn increment(update: &Frame) -> u32 {
    u32::from_be_bytes(update.payload[..4].try_into().unwrap())
}
