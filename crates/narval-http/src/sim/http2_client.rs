//! A simulated client that speaks HTTP/2: it opens streams, sends bodies as far as the server's windows allow, opens its own windows at
//! random, resets streams, and checks every response.

#![allow(clippy::expect_used, reason = "a client of tests, which fail by panicking")]

use std::collections::{BTreeMap, VecDeque};

use super::expected::Expected;
#[cfg(test)]
use super::expected::UPLOADS_MAX;
use super::pattern;
use super::websocket::{self, Came, Echoes};
use crate::http2::frame::{self, ErrorCode, FrameHeader, HEADER_LENGTH, Kind, PAYLOAD_MAX, PREFACE, STREAM_MAX, flag};
use crate::http2::hpack::{Decoder, encode_field};
use crate::io::sim::Random;

/// By how much a client in a hurry opens its windows.
const WIDE: u32 = 1 << 29;
/// The maximum number of open streams.
const OPEN_MAX: usize = 20;
/// The responses of the simulated handler to GET.
const GETS: [&str; 9] = ["inline", "at-once", "bytes", "file", "length", "chunked", "mixed", "waits", "pushed"];
/// The responses of the simulated handler to POST.
const POSTS: [&str; 4] = ["post", "chunks", "echo", "early"];

/// The client's side of a connection.
pub(super) struct Http2Client {
    random: Random,
    planned: VecDeque<Planned>,
    streams: BTreeMap<u32, Stream>,
    next: u32,
    /// How much of what was received is parsed.
    parsed: usize,
    decoder: Decoder,
    /// The receive window of the connection, and the initial one of each stream.
    window: i64,
    initial: i64,
    /// The send window of the connection.
    send_window: i64,
    /// The initial send window of each stream.
    send_initial: i64,
    has_begun: bool,
    hurries: bool,
    /// The last stream that the server handles.
    last: Option<u32>,
}

/// A request that was not sent yet.
struct Planned {
    method: &'static str,
    path: String,
    fields: Vec<(&'static str, String)>,
    body: Vec<u8>,
    trailers: bool,
    outcome: Outcome,
}

/// The expected result of a request.
enum Outcome {
    Answer(Expected),
    /// The body fails: the server resets the stream.
    Fails,
    WebSocket(Echoes),
}

struct Stream {
    body: Vec<u8>,
    sent: usize,
    trailers: bool,
    /// The client has ended its side.
    has_ended: bool,
    send_window: i64,
    window: i64,
    outcome: Outcome,
    status: u16,
    received: Vec<u8>,
    /// The server has ended its side.
    is_complete: bool,
    /// The client has reset it.
    is_given_up: bool,
    /// The server has reset it.
    is_reset: bool,
}

impl Http2Client {
    pub(super) fn new(random: &mut Random, count: usize) -> Self {
        Self::with(random, |random| (0..count).map(|_| plan(random)).collect())
    }

    /// One that uploads.
    #[cfg(test)]
    pub(super) fn uploading(random: &mut Random) -> Self {
        Self::with(random, |random| {
            (0..1 + random.below(UPLOADS_MAX))
                .map(|_| {
                    let length = random.below(300_000);
                    plan_post(random, "post", length)
                })
                .collect()
        })
    }

    fn with(random: &mut Random, plan: impl FnOnce(&mut Random) -> VecDeque<Planned>) -> Self {
        let planned = plan(random);
        let initial = [0, 1000, 65_535, 300_000][random.below(4)];
        Self {
            random: Random::new(random.next()),
            planned,
            streams: BTreeMap::new(),
            next: 1,
            parsed: 0,
            decoder: Decoder::new(4096, 1 << 16),
            window: 65_535,
            initial,
            send_window: 65_535,
            send_initial: 65_535,
            has_begun: false,
            hurries: false,
            last: None,
        }
    }

    /// From now on the client accepts everything, and sends what it can.
    pub(super) fn hurry(&mut self) {
        self.hurries = true;
    }

    /// Parses `received`, all bytes so far, and returns the bytes to send. If `idles`, it sends only mandatory replies.
    pub(super) fn act(&mut self, received: &[u8], idles: bool) -> Vec<u8> {
        let mut out = Vec::new();
        if !self.has_begun {
            self.has_begun = true;
            out.extend_from_slice(PREFACE);
            frame::push_settings(&mut out, &[(4, self.initial as u32)]);
        }
        self.read(received, &mut out);
        if self.hurries {
            self.open_windows(&mut out);
            while self.open_next(&mut out) {}
            while self.send_bodies(&mut out) {}
        } else if !idles {
            self.act_at_random(&mut out);
        }
        out
    }

    fn act_at_random(&mut self, out: &mut Vec<u8>) {
        match self.random.below(8) {
            0 | 1 => drop(self.open_next(out)),
            2 => {
                let by = 1 + self.random.below(100_000) as u32;
                frame::push_window_update(out, 0, by);
                self.window += i64::from(by);
            }
            3 | 4 => {
                let by = 1 + self.random.below(100_000) as u32;
                if let Some((id, stream)) = pick(&mut self.random, &mut self.streams) {
                    frame::push_window_update(out, id, by);
                    stream.window += i64::from(by);
                }
            }
            5 if self.random.one_in(6) => {
                if let Some((id, stream)) = pick(&mut self.random, &mut self.streams) {
                    stream.is_given_up = true;
                    frame::push_reset(out, id, ErrorCode::Cancel);
                }
            }
            5 => frame::push_ping(out, false, [7; 8]),
            _ => drop(self.send_bodies(out)),
        }
    }

    fn open_windows(&mut self, out: &mut Vec<u8>) {
        if self.window < i64::from(WIDE) {
            frame::push_window_update(out, 0, WIDE);
            self.window += i64::from(WIDE);
        }
        for (id, stream) in &mut self.streams {
            if !stream.is_over() && stream.window < i64::from(WIDE) {
                frame::push_window_update(out, *id, WIDE);
                stream.window += i64::from(WIDE);
            }
        }
    }

    /// Opens the next stream, if the server's limit allows it.
    fn open_next(&mut self, out: &mut Vec<u8>) -> bool {
        let open = self.streams.values().filter(|stream| !stream.is_over()).count();
        if self.last.is_some() || open >= OPEN_MAX {
            return false;
        }
        let Some(planned) = self.planned.pop_front() else { return false };
        let is_socket = matches!(planned.outcome, Outcome::WebSocket(_));
        let has_ended = planned.body.is_empty() && !planned.trailers && !is_socket;
        let mut block = Vec::new();
        encode_field(b":method", planned.method.as_bytes(), &mut block);
        encode_field(b":scheme", b"https", &mut block);
        encode_field(b":authority", b"s", &mut block);
        encode_field(b":path", planned.path.as_bytes(), &mut block);
        for (name, value) in &planned.fields {
            encode_field(name.as_bytes(), value.as_bytes(), &mut block);
        }
        frame::push_headers(out, self.next, &block, has_ended);
        let stream = Stream {
            body: planned.body,
            sent: 0,
            trailers: planned.trailers,
            has_ended,
            send_window: self.send_initial,
            window: self.initial,
            outcome: planned.outcome,
            status: 0,
            received: Vec::new(),
            is_complete: false,
            is_given_up: false,
            is_reset: false,
        };
        self.streams.insert(self.next, stream);
        self.next += 2;
        true
    }

    /// Sends the next piece of each body, as far as the windows allow. Returns `false` if there was none.
    fn send_bodies(&mut self, out: &mut Vec<u8>) -> bool {
        let mut has_sent = false;
        for (id, stream) in &mut self.streams {
            if stream.has_ended || stream.is_given_up || stream.is_reset {
                continue;
            }
            let is_socket = matches!(stream.outcome, Outcome::WebSocket(_));
            if is_socket && stream.status == 0 {
                continue;
            }
            let left = stream.body.get(stream.sent..).unwrap_or_default();
            let window = usize::try_from(self.send_window.min(stream.send_window)).unwrap_or(0);
            let most = left.len().min(window).min(PAYLOAD_MAX);
            let n = if self.hurries || most == 0 { most } else { 1 + self.random.below(most) };
            let is_last = n == left.len();
            // The client of a WebSocket waits for the server to close it.
            let ends = if is_socket { is_last && stream.is_complete } else { is_last };
            if n == 0 && !ends {
                continue;
            }
            let with_trailers = ends && stream.trailers;
            if n > 0 || !with_trailers {
                out.extend_from_slice(&frame::data_header(*id, n, ends && !with_trailers));
                out.extend_from_slice(left.get(..n).unwrap_or_default());
            }
            if with_trailers {
                let mut block = Vec::new();
                encode_field(b"x-checked", b"yes", &mut block);
                frame::push_headers(out, *id, &block, true);
            }
            stream.sent += n;
            stream.has_ended = ends;
            stream.send_window -= n as i64;
            self.send_window -= n as i64;
            has_sent = true;
        }
        has_sent
    }

    fn read(&mut self, received: &[u8], out: &mut Vec<u8>) {
        while let Some(header) = FrameHeader::read(received.get(self.parsed..).unwrap_or_default()) {
            let at = self.parsed + HEADER_LENGTH;
            let Some(payload) = received.get(at..at + header.length) else { return };
            self.parsed = at + header.length;
            match header.kind {
                Kind::Settings if !header.has(flag::ACK) => {
                    for &[i0, i1, v0, v1, v2, v3] in payload.as_chunks::<6>().0 {
                        if [i0, i1] == [0, 4] {
                            self.send_initial = i64::from(u32::from_be_bytes([v0, v1, v2, v3]));
                        }
                    }
                    let by = self.send_initial - 65_535;
                    self.streams.values_mut().for_each(|stream| stream.send_window += by);
                    frame::push_settings_ack(out);
                }
                Kind::Ping if !header.has(flag::ACK) => {
                    frame::push_ping(out, true, payload.try_into().expect("8 bytes"));
                }
                Kind::GoAway => {
                    let (last, code) = payload.split_first_chunk::<4>().expect("a GOAWAY has 8 bytes");
                    assert_eq!(code, [0; 4], "the connection ends with an error");
                    self.last = Some(u32::from_be_bytes(*last));
                }
                Kind::WindowUpdate => {
                    let by = i64::from(u32::from_be_bytes(payload.try_into().expect("4 bytes")));
                    match self.streams.get_mut(&header.stream) {
                        Some(stream) => stream.send_window += by,
                        None => self.send_window += by,
                    }
                }
                Kind::Headers | Kind::Data | Kind::Reset => self.read_on_stream(&header, payload),
                _ => {}
            }
        }
    }

    fn read_on_stream(&mut self, header: &FrameHeader, payload: &[u8]) {
        let stream = self.streams.get_mut(&header.stream).expect("a stream that was opened");
        assert!(!stream.is_reset, "a frame behind a reset");
        match header.kind {
            Kind::Headers => {
                assert!(header.has(flag::END_HEADERS), "blocks of the server are short");
                let mut status = None;
                let decoded = self.decoder.decode(payload, |field| {
                    if field.name == b":status" {
                        status = std::str::from_utf8(field.value).ok().and_then(|status| status.parse().ok());
                    }
                });
                decoded.expect("a valid header block");
                if let Some(status) = status.filter(|status| *status >= 200) {
                    stream.status = status;
                }
            }
            Kind::Data => {
                assert!(stream.status != 0, "DATA before the head");
                stream.window -= payload.len() as i64;
                self.window -= payload.len() as i64;
                assert!(stream.window >= 0 && self.window >= 0 || payload.is_empty(), "more than the window");
                stream.received.extend_from_slice(payload);
            }
            _ => {
                let was_answered = stream.is_complete || stream.is_given_up;
                let is_cut = matches!(stream.outcome, Outcome::WebSocket(_) | Outcome::Fails);
                // The server has announced that it would refuse this stream, whatever was sent of it.
                let is_refused = self.last.is_some();
                assert!(was_answered || is_cut || is_refused, "stream {} was reset: {payload:?}", header.stream);
                stream.is_reset = true;
            }
        }
        if header.kind != Kind::Reset {
            assert!(!stream.is_complete, "a frame behind the last");
            stream.is_complete = header.has(flag::END_STREAM);
        }
    }

    /// Compares the responses with the expected ones. If `stopped`, the server may have sent GOAWAY; if `may_be_cut`, the connection may be broken.
    pub(super) fn check(&self, stopped: bool, may_be_cut: bool) {
        for (id, stream) in &self.streams {
            if stream.is_given_up {
                continue;
            }
            let is_handled = self.last.is_none_or(|last| *id <= last);
            match &stream.outcome {
                Outcome::Answer(expected) if stream.is_complete => {
                    assert_eq!(stream.status, expected.status, "stream {id}");
                    assert!(stream.received == expected.body, "stream {id}: {} bytes", stream.received.len());
                }
                Outcome::Answer(expected) => {
                    assert!(
                        may_be_cut || stopped && !is_handled || stopped && self.last == Some(STREAM_MAX),
                        "stream {id} was not answered"
                    );
                    assert!(expected.body.starts_with(&stream.received), "stream {id} has other bytes");
                }
                Outcome::Fails => {
                    assert!(!stream.is_complete, "stream {id} has all of a body that failed");
                    assert!(stream.is_reset || may_be_cut || stopped, "stream {id} was not reset");
                }
                Outcome::WebSocket(echoes) => {
                    if stream.status != 0 {
                        assert_eq!(stream.status, 200);
                        let came = echoes.check_frames(&stream.received, stopped);
                        assert!(came == Came::All || may_be_cut || stopped, "a WebSocket was not served to its end");
                    }
                }
            }
        }
        assert!(self.planned.is_empty() || may_be_cut || stopped, "{} requests were not sent", self.planned.len());
    }
}

impl Stream {
    fn is_over(&self) -> bool {
        self.is_given_up || self.is_reset || (self.is_complete && self.has_ended)
    }
}

/// One of the open streams.
fn pick<'a>(random: &mut Random, streams: &'a mut BTreeMap<u32, Stream>) -> Option<(u32, &'a mut Stream)> {
    let open: Vec<u32> = streams.iter().filter(|(_, stream)| !stream.is_over()).map(|(id, _)| *id).collect();
    let id = *open.get(random.below(open.len()))?;
    streams.get_mut(&id).map(|stream| (id, stream))
}

fn plan(random: &mut Random) -> Planned {
    if random.one_in(6) {
        let room = random.below(20_000);
        let count = 1 + random.below(6);
        let (body, echoes) = websocket::frames(random, count);
        let fields = vec![(":protocol", "websocket".to_owned()), ("sec-websocket-version", "13".to_owned())];
        let path = format!("/socket/{room}");
        return Planned { method: "CONNECT", path, fields, body, trailers: false, outcome: Outcome::WebSocket(echoes) };
    }
    let length = if random.one_in(4) { random.below(300_000) } else { random.below(1000) };
    if random.one_in(3) {
        let kind = POSTS[random.below(POSTS.len())];
        return plan_post(random, kind, length);
    }
    if random.one_in(20) {
        let (path, fields) = ("/fails/1".to_owned(), Vec::new());
        return Planned { method: "GET", path, fields, body: Vec::new(), trailers: false, outcome: Outcome::Fails };
    }
    let kind = GETS[random.below(GETS.len())];
    let is_head = random.one_in(8);
    let body = if is_head { Vec::new() } else { pattern(length) };
    let outcome = Outcome::Answer(Expected { status: 200, body, is_head });
    let method = if is_head { "HEAD" } else { "GET" };
    Planned {
        method,
        path: format!("/{kind}/{length}"),
        fields: Vec::new(),
        body: Vec::new(),
        trailers: false,
        outcome,
    }
}

fn plan_post(random: &mut Random, kind: &str, length: usize) -> Planned {
    let body = pattern(length);
    let mut fields = Vec::new();
    if random.one_in(4) {
        fields.push(("expect", "100-continue".to_owned()));
    }
    if random.one_in(2) {
        fields.push(("content-length", length.to_string()));
    }
    let answer = match kind {
        "echo" => body.clone(),
        "early" => Vec::new(),
        _ => length.to_string().into_bytes(),
    };
    let outcome = Outcome::Answer(Expected { status: 200, body: answer, is_head: false });
    let trailers = random.one_in(5);
    Planned { method: "POST", path: format!("/{kind}/{length}"), fields, body, trailers, outcome }
}
