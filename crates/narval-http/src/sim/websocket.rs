//! Simulated WebSockets: an echo on the server's side, and what a client sends and expects.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::pattern;
use crate::io::sim::Random;
use crate::message::request::Request;
use crate::message::response::Response;
use crate::ws::codec::mask;
use crate::ws::{CloseReason, Message, Options, Upgrade, WebSocket, WsHandler};

/// The totals of all sockets in a run.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) opened: AtomicUsize,
    pub(super) closed: AtomicUsize,
    /// Events out of order, and echoes that were rejected.
    pub(super) faults: AtomicUsize,
}

/// Sends each message back.
struct Echo {
    tally: Arc<Tally>,
    is_open: AtomicBool,
}

/// Accepts a socket with small buffers: about `room` bytes of messages in each direction.
pub(super) fn accept(request: &Request, room: usize, tally: &Arc<Tally>) -> Response {
    let upgrade = match Upgrade::new(request) {
        Ok(upgrade) => upgrade,
        Err(error) => return error.into(),
    };
    let options = Options {
        receive_queue_bytes: 100 + room,
        send_soft_bytes: 100 + room,
        send_hard_bytes: usize::MAX,
        ..Options::default()
    };
    let echo = Echo { tally: tally.clone(), is_open: AtomicBool::new(false) };
    upgrade.options(options).accept(echo)
}

impl Echo {
    fn check(&self, is_right: bool) {
        self.tally.faults.fetch_add(usize::from(!is_right), Ordering::Relaxed);
    }
}

impl WsHandler for Echo {
    fn open(&self, _: &WebSocket) {
        self.tally.opened.fetch_add(1, Ordering::Relaxed);
        self.check(!self.is_open.swap(true, Ordering::Relaxed));
    }

    fn message(&self, socket: &WebSocket, message: Message) {
        self.check(self.is_open.load(Ordering::Relaxed));
        let sent = socket.send(message);
        self.check(sent.is_accepted() || !socket.is_open());
    }

    fn close(&self, _: &WebSocket, _: CloseReason) {
        self.tally.closed.fetch_add(1, Ordering::Relaxed);
        self.check(self.is_open.swap(false, Ordering::Relaxed));
    }
}

/// What a client expects.
#[derive(Debug, Default)]
pub(super) struct Echoes {
    /// All messages: whether they are text, and their payloads.
    messages: Vec<(bool, Vec<u8>)>,
    pings: Vec<Vec<u8>>,
    /// The start of the final Close frame's payload.
    close: Vec<u8>,
}

const CONTINUATION: u8 = 0;
const TEXT: u8 = 1;
const BINARY: u8 = 2;
const CLOSE: u8 = 8;
const PING: u8 = 9;
const PONG: u8 = 10;
const FIN: u8 = 0x80;

/// The key and the accept value of RFC 6455 section 1.3.
const KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";
const ACCEPT: &str = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";

/// What a client sends over HTTP/1.1: the handshake, and [frames].
pub(super) fn conversation(random: &mut Random, count: usize) -> (Vec<u8>, Echoes) {
    let room = random.below(20_000);
    let mut script = format!(
        "GET /socket/{room} HTTP/1.1\r\nHost: s\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {KEY}\r\n\r\n"
    )
    .into_bytes();
    let (mut frames, echoes) = frames(random, count);
    script.append(&mut frames);
    (script, echoes)
}

/// What a client sends: some messages, whole or in fragments with Pings between them, and an end.
pub(super) fn frames(random: &mut Random, count: usize) -> (Vec<u8>, Echoes) {
    let (mut script, mut echoes) = (Vec::new(), Echoes::default());
    for _ in 0..count {
        let is_text = random.one_in(2);
        let length = if random.one_in(5) { random.below(100_000) } else { random.below(300) };
        let mut payload = pattern(length);
        if is_text {
            payload.iter_mut().for_each(|byte| *byte = b'a' + *byte % 26);
        }
        let fragments_max = if random.one_in(3) { 5 } else { 1 };
        message(random, &mut script, &mut echoes, is_text, &payload, fragments_max);
        echoes.messages.push((is_text, payload));
    }
    match random.below(4) {
        0 => {
            frame(random, &mut script, FIN | CLOSE, &[]);
        }
        1 => {
            // A reserved opcode: the server fails the connection with 1002.
            frame(random, &mut script, FIN | 3, b"?");
            echoes.close = 1002u16.to_be_bytes().to_vec();
        }
        _ => {
            frame(random, &mut script, FIN | CLOSE, b"\x03\xe8bye");
            echoes.close = 1000u16.to_be_bytes().to_vec();
        }
    }
    (script, echoes)
}

fn message(
    random: &mut Random,
    script: &mut Vec<u8>,
    echoes: &mut Echoes,
    is_text: bool,
    payload: &[u8],
    fragments: usize,
) {
    let mut rest = payload;
    let mut opcode = if is_text { TEXT } else { BINARY };
    for left in (0..fragments).rev() {
        let (now, later) = rest.split_at(if left == 0 { rest.len() } else { random.below(rest.len() + 1) });
        frame(random, script, if left == 0 { FIN | opcode } else { opcode }, now);
        (rest, opcode) = (later, CONTINUATION);
        if random.one_in(4) {
            let ping = random.next().to_be_bytes().to_vec();
            frame(random, script, FIN | PING, &ping);
            echoes.pings.push(ping);
        }
        if random.one_in(8) {
            frame(random, script, FIN | PONG, b"unasked");
        }
    }
}

/// A frame of a client, masked.
fn frame(random: &mut Random, script: &mut Vec<u8>, first: u8, payload: &[u8]) {
    let key = (random.next() as u32).to_be_bytes();
    script.push(first);
    match payload.len() {
        length @ 0..=125 => script.push(0x80 | length as u8),
        length @ 126..=0xffff => {
            script.push(0x80 | 126);
            script.extend_from_slice(&(length as u16).to_be_bytes());
        }
        length => {
            script.push(0x80 | 127);
            script.extend_from_slice(&(length as u64).to_be_bytes());
        }
    }
    script.extend_from_slice(&key);
    let mut masked = payload.to_vec();
    mask::apply(&mut masked, key, 0);
    script.extend_from_slice(&masked);
}

/// How much of the expected data a client must receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Came {
    /// All of it.
    All,
    /// A prefix, which may end in the middle of a frame.
    Part,
}

impl Echoes {
    /// Compares what came over HTTP/1.1 with what was expected, and panics if it differs.
    pub(super) fn check(&self, input: &[u8], stopped: bool) -> Came {
        let Some(end) = input.windows(4).position(|window| window == b"\r\n\r\n") else { return Came::Part };
        let head = String::from_utf8_lossy(input.get(..end).unwrap_or_default()).to_lowercase();
        let is_upgrade = head.starts_with("http/1.1 101 ") && head.contains(&ACCEPT.to_lowercase());
        assert!(is_upgrade, "a WebSocket's request was answered: {head}");
        self.check_frames(input.get(end + 4..).unwrap_or_default(), stopped)
    }

    /// Compares the received frames with the expected ones, and panics if they differ. If `stopped`, the server may
    /// close with "going away".
    pub(super) fn check_frames(&self, mut input: &[u8], stopped: bool) -> Came {
        let (mut messages, mut pings) = (self.messages.iter(), self.pings.iter());
        while let Some((first, payload)) = take_frame(&mut input) {
            match first {
                0x81 | 0x82 => {
                    let is_text = first == FIN | TEXT;
                    let is_next = messages.next().is_some_and(|next| (next.0, next.1.as_slice()) == (is_text, payload));
                    assert!(is_next, "an echo of {} bytes that is not the next one", payload.len());
                }
                // Some may be omitted, but the others are in order.
                0x8a => assert!(pings.any(|ping| ping == payload), "a Pong without its Ping"),
                0x88 => {
                    assert!(input.is_empty(), "{} bytes behind the Close frame", input.len());
                    let goes_away = stopped && payload.starts_with(&1001u16.to_be_bytes());
                    if goes_away {
                        return Came::Part;
                    }
                    assert!(payload.starts_with(&self.close), "Close {payload:?} instead of {:?}", self.close);
                    assert_eq!(messages.len(), 0, "the Close frame came before the last echoes");
                    return Came::All;
                }
                // The server checks whether the client is alive.
                other => assert_eq!(other, FIN | PING, "a frame that begins with {other:#x}"),
            }
        }
        Came::Part
    }
}

/// Takes a complete server frame from `input`: its first octet and its payload.
fn take_frame<'a>(input: &mut &'a [u8]) -> Option<(u8, &'a [u8])> {
    let (first, second) = (*input.first()?, *input.get(1)?);
    let (length, at) = match second {
        126 => (u64::from(u16::from_be_bytes(*input.get(2..)?.first_chunk()?)), 4),
        127 => (u64::from_be_bytes(*input.get(2..)?.first_chunk()?), 10),
        length => {
            assert!(length < 0x80, "a server does not mask");
            (u64::from(length), 2)
        }
    };
    let end = at + usize::try_from(length).ok()?;
    let payload = input.get(at..end)?;
    *input = input.get(end..)?;
    Some((first, payload))
}
