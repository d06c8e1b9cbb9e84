//! Runs an HTTP/2 connection without a server: the parts of the shard and the workers are played at random, and the connection is checked.
//!
//! Input arrives in random pieces, the socket accepts random amounts, jobs end at random, and time passes. Whatever the client sends,
//! the output consists of frames in an order that RFC 9113 allows, within the windows that the client has opened; memory is bounded,
//! and an end is final. A client that obeys the rules gets every response completely.

mod world;

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use http::Method;

use self::world::{Carried, How, World, accept, answer, lock, number_of, resource};
use crate::http2::conn::{Conn, HeadBuilder, Work};
use crate::http2::frame::{self, ErrorCode, FrameHeader, HEADER_LENGTH, Kind, PAYLOAD_MAX, PREFACE, flag};
use crate::http2::hpack::{encode_field, encode_status};
use crate::intake::body_memory::BodyMemory;
use crate::intake::{self, Request};
use crate::io::clock::Millis;
use crate::io::output_memory::{Holding, OutputMemory};
use crate::io::sim::Random;
use crate::limits::{HTTP2_HELD_MAX, HTTP2_QUANTUM, HTTP2_STREAMS_MAX, Limits};
use crate::{Peer, ws};

/// The upper bound of a connection's deadlines: longer than every timeout.
const WAIT_MAX: Millis = 24 * 3_600_000;

/// Runs one connection whose client sends `input` after its preface and settings, with choices drawn from `seed`.
///
/// # Panics
/// The connection violated one of its invariants.
pub fn http2_connection(seed: u64, input: &[u8]) {
    let mut run = Run::new(seed);
    let mut sent = PREFACE.to_vec();
    frame::push_settings(&mut sent, &[]);
    sent.extend_from_slice(input);
    let mut rest = &sent[..];
    while !rest.is_empty() {
        let (piece, behind) = rest.split_at(1 + run.world.random.below(rest.len().min(20_000)));
        run.feed(piece);
        rest = behind;
    }
    run.feed_end();
}

/// Runs one connection with a client that obeys the rules. It sends requests and bodies, resets streams, and opens its windows at random.
///
/// # Panics
/// The connection violated one of its invariants.
pub fn http2_conversation(seed: u64) {
    let mut run = Run::new(seed);
    let mut sent = PREFACE.to_vec();
    run.client.initial = 1 << run.world.random.below(18);
    frame::push_settings(&mut sent, &[(4, run.client.initial as u32)]);
    run.feed(&sent);
    let mut next = 1;
    for _ in 0..run.world.random.below(60) {
        run.client_acts(&mut next);
    }
    run.let_all_come();
    for (stream, asked) in &run.client.asked {
        assert!(asked.is_given_up || asked.is_complete, "stream {stream} was not answered: {}", run.conn.describe());
    }
    run.feed_end();
}

/// The state of the client.
#[derive(Default)]
struct Client {
    initial: i64,
    window: i64,
    asked: HashMap<u32, Asked>,
    /// Received but not yet parsed.
    received: Vec<u8>,
    is_told: bool,
}

#[derive(Default)]
struct Asked {
    number: u32,
    window: i64,
    got: u64,
    has_head: bool,
    is_complete: bool,
    is_given_up: bool,
}

struct Run {
    conn: Conn<Carried>,
    world: World,
    work: Vec<Work<Carried>>,
    client: Client,
    /// Whether the client obeys the rules, so that the server must as well.
    is_checked: bool,
}

impl Run {
    fn new(seed: u64) -> Self {
        let limits = Limits::default();
        let world = World {
            random: Random::new(seed),
            memory: BodyMemory::new(limits.body_memory_max),
            holding: Holding::new(&OutputMemory::new(limits.output_memory_max)),
            head: HeadBuilder::default(),
            now: 1,
            is_over: false,
            sockets: Arc::default(),
            limits,
        };
        let client = Client { initial: 65_535, window: 65_535, ..Client::default() };
        let conn = Conn::new(world.now, true, &world.limits);
        Self { conn, world, work: Vec::new(), client, is_checked: false }
    }

    fn feed(&mut self, bytes: &[u8]) {
        if self.conn.wants().read {
            self.conn.received(bytes, &mut self.world);
        }
        self.settle();
        if self.world.random.one_in(3) {
            self.pass();
        }
    }

    /// The client disconnects, and the connection ends.
    fn feed_end(&mut self) {
        self.conn.input_ended(self.world.random.one_in(2), &mut self.world);
        self.settle();
        while let Some(work) = self.work.pop() {
            self.finish(work);
        }
        self.conn.release(&mut self.world);
        assert!(!self.conn.is_busy(), "streams are left: {}", self.conn.describe());
    }

    /// Sends pending output, and accepts new jobs.
    fn settle(&mut self) {
        loop {
            while let Some(work) = self.conn.take_work() {
                self.work.push(work);
            }
            if !self.conn.has_output() || self.world.random.one_in(50) {
                break;
            }
            let quantum = 1 + self.world.random.below(100_000);
            let mut out = Vec::new();
            self.conn.gather(&mut out, quantum, &mut self.world);
            self.client.received.extend_from_slice(&out);
            self.read_frames();
        }
        let wants = self.conn.wants();
        assert!(self.world.is_over <= wants.end.is_some(), "an end was not final");
        self.world.is_over = wants.end.is_some();
        assert!(wants.deadline <= self.world.now + WAIT_MAX || wants.end.is_some(), "nobody looks at it again");
        assert!(self.conn.streams_len() <= HTTP2_STREAMS_MAX);
        assert!(self.conn.streams_len() > 0 || self.conn.in_memory() == 0, "bodies that are gone are counted");
        let one_each = HTTP2_STREAMS_MAX * 16 * 1024;
        assert!(self.conn.held() <= HTTP2_HELD_MAX + HTTP2_QUANTUM + one_each, "{} bytes are held", self.conn.held());
    }

    /// A job or a send completes, or time passes.
    fn pass(&mut self) {
        let to_run = std::mem::take(&mut *lock(&self.world.sockets.to_run));
        for socket in to_run {
            while socket.run() == ws::Turn::Again {}
        }
        let told = std::mem::take(&mut *lock(&self.world.sockets.told));
        for stream in told {
            self.conn.look_at_websocket(stream, &mut self.world);
        }
        if !self.work.is_empty() && !self.world.random.one_in(3) {
            let at = self.world.random.below(self.work.len());
            let work = self.work.swap_remove(at);
            self.finish(work);
        } else {
            self.world.now += self.world.random.below(200) as Millis;
            if self.conn.wants().deadline <= self.world.now {
                self.conn.tick(&mut self.world);
            }
        }
        self.settle();
    }

    fn finish(&mut self, work: Work<Carried>) {
        match work {
            Work::Request { stream, request, .. } => {
                let Request { bytes, head, body } = request;
                if head.parts.method == Method::GET && self.world.random.below(20) > 2 {
                    let request = crate::Request::new(
                        bytes.clone(),
                        head.parts.clone(),
                        Peer::Unix,
                        crate::RequestBody::default(),
                    );
                    if let Some(answer) = accept(&request) {
                        return self.conn.answer(stream, answer, &mut self.world);
                    }
                }
                if let intake::Body::Streamed(pipe) = &body {
                    drop(pipe.lock());
                }
                let number = number_of(&head, &bytes);
                match self.world.random.below(20) {
                    0 if !self.is_checked => self.conn.lost(stream, &mut self.world),
                    1 if !self.is_checked => self.conn.refused(stream, &mut self.world),
                    2 => {
                        let mut block = Vec::new();
                        encode_status(103, &mut block);
                        self.conn.inform(stream, &block);
                        self.conn.answer(stream, answer(number), &mut self.world);
                    }
                    _ => self.conn.answer(stream, answer(number), &mut self.world),
                }
            }
            Work::Later { stream, later, .. } => self.conn.answer(stream, answer(later), &mut self.world),
            Work::Make { stream, maker, quantum, .. } => {
                let made = match maker {
                    How::Fails => Err(io::Error::other("on purpose")),
                    _ => Ok(1 + self.world.random.below(quantum) as u64),
                };
                self.conn.made(stream, made, quantum, &mut self.world);
            }
        }
        self.conn.body_ready(1 + 2 * self.world.random.below(20) as u32);
        self.settle();
    }

    /// Checks that the client receives only frames that are allowed now.
    fn read_frames(&mut self) {
        loop {
            let Some(header) = FrameHeader::read(&self.client.received) else { return };
            let end = HEADER_LENGTH + header.length;
            if self.client.received.len() < end {
                return;
            }
            let payload: Vec<u8> = self.client.received.drain(..end).skip(HEADER_LENGTH).collect();
            assert!(header.length <= PAYLOAD_MAX && header.kind != Kind::Unknown && header.kind != Kind::PushPromise);
            if header.kind == Kind::GoAway {
                self.client.is_told = true;
                assert!(!self.is_checked, "the connection ends: {payload:?}");
            }
            if self.is_checked && header.stream != 0 {
                self.read_on_stream(&header, &payload);
            }
        }
    }

    fn read_on_stream(&mut self, header: &FrameHeader, payload: &[u8]) {
        let asked = self.client.asked.get_mut(&header.stream);
        assert!(asked.is_some(), "a frame on a stream that was never opened");
        let Some(asked) = asked else { return };
        if header.kind != Kind::WindowUpdate {
            assert!(!asked.is_complete || asked.is_given_up, "a frame behind the last: {header:?}");
        }
        let (how, length) = resource(asked.number);
        match header.kind {
            Kind::Headers => asked.has_head = true,
            Kind::Reset => {
                assert!(how == How::Fails || asked.is_given_up, "reset: {payload:?}");
                asked.is_complete = true;
            }
            Kind::Data => {
                assert!(asked.has_head, "DATA without a head");
                for (at, byte) in (asked.got..).zip(payload) {
                    assert_eq!(*byte, at as u8, "stream {}", header.stream);
                }
                asked.got += payload.len() as u64;
                asked.window -= payload.len() as i64;
                self.client.window -= payload.len() as i64;
                let in_time = asked.is_given_up || (asked.window >= 0 && self.client.window >= 0);
                assert!(in_time || payload.is_empty(), "more than the window");
            }
            _ => {}
        }
        if matches!(header.kind, Kind::Data | Kind::Headers) && header.has(flag::END_STREAM) {
            assert_eq!(asked.got, length, "stream {} ended early", header.stream);
            asked.is_complete = true;
        }
    }

    /// The client performs one allowed action.
    fn client_acts(&mut self, next: &mut u32) {
        self.is_checked = true;
        let mut sent = Vec::new();
        match self.world.random.below(8) {
            0..=3 if self.client.asked.values().filter(|asked| !asked.is_complete).count() < 100 => {
                let number = self.world.random.below(1000) as u32;
                let has_body = self.world.random.one_in(4);
                let mut block = Vec::new();
                let path = format!("/{number}");
                let method: &[u8] = if has_body { b"POST" } else { b"GET" };
                for (name, value) in [
                    (&b":method"[..], method),
                    (b":scheme", b"https"),
                    (b":authority", b"h"),
                    (b":path", path.as_bytes()),
                ] {
                    encode_field(name, value, &mut block);
                }
                frame::push_headers(&mut sent, *next, &block, !has_body);
                if has_body {
                    // Within the initial window of a stream.
                    let body = vec![7; self.world.random.below(PAYLOAD_MAX)];
                    sent.extend_from_slice(&frame::data_header(*next, body.len(), true));
                    sent.extend_from_slice(&body);
                }
                let asked = Asked { number, window: self.client.initial, ..Asked::default() };
                self.client.asked.insert(*next, asked);
                *next += 2;
            }
            4 => {
                let by = 1 + self.world.random.below(100_000) as u32;
                frame::push_window_update(&mut sent, 0, by);
                self.client.window += i64::from(by);
            }
            5 | 6 if *next > 1 => {
                let stream = 1 + 2 * self.world.random.below(*next as usize / 2) as u32;
                if let Some(asked) = self.client.asked.get_mut(&stream).filter(|asked| !asked.is_complete) {
                    if self.world.random.one_in(5) {
                        asked.is_given_up = true;
                        frame::push_reset(&mut sent, stream, ErrorCode::Cancel);
                    } else {
                        let by = 1 + self.world.random.below(100_000) as u32;
                        frame::push_window_update(&mut sent, stream, by);
                        asked.window += i64::from(by);
                    }
                }
            }
            _ => frame::push_ping(&mut sent, false, [1; 8]),
        }
        let mut rest = &sent[..];
        while !rest.is_empty() {
            let (piece, behind) = rest.split_at(1 + self.world.random.below(rest.len()));
            // The client sends its window updates at once, so that both sides agree on the windows.
            self.conn.received(piece, &mut self.world);
            rest = behind;
        }
        self.settle();
        self.pass();
    }

    /// The client opens its windows, and time passes until it has received everything.
    fn let_all_come(&mut self) {
        let mut sent = Vec::new();
        frame::push_window_update(&mut sent, 0, 1 << 29);
        self.client.window += 1 << 29;
        for (stream, asked) in &mut self.client.asked {
            if !asked.is_complete {
                frame::push_window_update(&mut sent, *stream, 1 << 29);
                asked.window += 1 << 29;
            }
        }
        self.conn.received(&sent, &mut self.world);
        for _ in 0..20_000 {
            self.settle();
            if !self.conn.is_busy() && !self.conn.has_output() {
                return;
            }
            self.pass();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_that_keeps_the_rules_gets_every_answer_whole() {
        for seed in 0..300 {
            let run = std::panic::catch_unwind(|| http2_conversation(seed));
            assert!(run.is_ok(), "seed {seed}");
        }
    }

    #[test]
    fn whatever_a_client_sends_the_connection_keeps_its_promises() {
        for seed in 0..300 {
            let mut random = Random::new(seed);
            let mut input = Vec::new();
            for _ in 0..random.below(200) {
                // Frames with mostly valid headers and arbitrary contents.
                let length = if random.one_in(10) { random.below(9000) } else { random.below(40) };
                let kind = random.below(11) as u8;
                let stream = if random.one_in(3) { 0 } else { random.below(12) as u32 };
                input.extend_from_slice(&(length as u32).to_be_bytes()[1..]);
                input.extend_from_slice(&[kind, random.next() as u8]);
                input.extend_from_slice(&stream.to_be_bytes());
                input.extend((0..length).map(|_| if random.one_in(2) { 0x82 } else { random.next() as u8 }));
            }
            let run = std::panic::catch_unwind(|| http2_connection(seed, &input));
            assert!(run.is_ok(), "seed {seed}");
        }
    }
}
