//! The server around a simulated HTTP/2 connection, and the bodies of its responses.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::http1::ProtoError;
use crate::http1::head::ParsedHead;
use crate::http2::conn::{Answer, Body, Ending, Exchange, HeadBuilder, Inline, Rest, Service};
use crate::http2::hpack::encode_status;
use crate::intake::Host;
use crate::intake::body_memory::{BodyMemory, Buffered};
use crate::io::clock::Millis;
use crate::io::driver::Token;
use crate::io::output_memory::Holding;
use crate::io::sim::Random;
use crate::limits::Limits;
use crate::message::carrier::{Address, Carrier, Home, Nudge};
use crate::message::departure::Departure;
use crate::sim::connection::Piped;
use crate::ws;

/// How the body of a simulated response is produced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    Memory,
    Here,
    Worker,
    Waits,
    Fails,
}

/// The response for the path with this number.
pub(super) fn resource(number: u32) -> (How, u64) {
    let mut random = Random::new(number.into());
    let how = [How::Memory, How::Memory, How::Here, How::Worker, How::Worker, How::Waits, How::Fails][random.below(7)];
    let length = if random.one_in(3) { random.below(300_000) } else { random.below(3_000) };
    (how, length as u64)
}

pub(super) struct SimBody {
    how: How,
    made: u64,
    taken: u64,
    length: u64,
    is_away: bool,
    is_waiting: bool,
}

impl SimBody {
    fn new(number: u32) -> Option<Self> {
        let (how, length) = resource(number);
        let made = if how == How::Memory { length } else { 0 };
        let body = Self { how, made, taken: 0, length, is_away: false, is_waiting: false };
        (length > 0 || how != How::Memory).then_some(body)
    }
}

impl Body for SimBody {
    type Maker = How;
    type Made = u64;

    fn ready(&self) -> u64 {
        self.made - self.taken
    }

    fn held(&self) -> usize {
        if self.how == How::Memory { 0 } else { self.ready() as usize }
    }

    fn in_memory(&self) -> usize {
        self.ready() as usize
    }

    fn rest(&self) -> Rest {
        match self.how {
            _ if self.is_away => Rest::Making,
            _ if self.is_waiting => Rest::Waiting,
            How::Fails => Rest::Worker,
            _ if self.made == self.length => Rest::End { trailers: false },
            How::Memory | How::Here | How::Waits => Rest::Here,
            How::Worker => Rest::Worker,
        }
    }

    fn take(&mut self, into: &mut [u8]) -> io::Result<usize> {
        assert!(self.ready() > 0 && !into.is_empty());
        let taken = self.ready().min(into.len() as u64);
        for (place, at) in into.iter_mut().zip(self.taken..self.taken + taken) {
            *place = at as u8;
        }
        self.taken += taken;
        Ok(taken as usize)
    }

    fn make(&mut self, quantum: usize) -> io::Result<()> {
        assert!(self.rest() == Rest::Here && quantum > 0);
        self.made += (self.length - self.made).min(quantum as u64);
        self.is_waiting = self.how == How::Waits && self.made < self.length;
        Ok(())
    }

    fn maker(&mut self) -> Option<How> {
        assert!(self.rest() == Rest::Worker);
        self.is_away = true;
        Some(self.how)
    }

    fn made(&mut self, made: u64) {
        assert!(std::mem::take(&mut self.is_away), "made twice");
        self.made += made.min(self.length - self.made);
    }

    fn resume(&mut self) {
        self.is_waiting = false;
    }

    fn trailers(&mut self) -> Vec<u8> {
        Vec::new()
    }

    fn hang_up(&mut self) -> bool {
        false
    }
}

pub(super) enum Carried {}

impl Exchange for Carried {
    type Body = SimBody;
    type Maker = How;
    type Made = u64;
    type Later = u32;
    type Pipe = Arc<Mutex<Piped>>;
    type Note = ();
}

/// The server around the connection.
pub(super) struct World {
    pub(super) random: Random,
    pub(super) limits: Limits,
    pub(super) memory: Arc<BodyMemory>,
    pub(super) holding: Arc<Holding>,
    pub(super) head: HeadBuilder,
    pub(super) now: Millis,
    pub(super) is_over: bool,
    pub(super) sockets: Arc<Sockets>,
}

/// The WebSockets that have pending work: for a worker, and for the connection.
#[derive(Debug, Default)]
pub(super) struct Sockets {
    pub(super) to_run: Mutex<Vec<Arc<ws::Shared>>>,
    pub(super) told: Mutex<Vec<u32>>,
}

impl ws::Runs for Sockets {
    fn run(&self, socket: Arc<ws::Shared>) {
        lock(&self.to_run).push(socket);
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Home for Sockets {
    fn nudge(&self, _: Token, stream: u32, nudge: Nudge) {
        assert_eq!(nudge, Nudge::WebSocket);
        lock(&self.told).push(stream);
    }
}

/// Accepts a WebSocket that echoes messages, if the request asks for one.
pub(super) fn accept(request: &crate::Request) -> Option<Answer<Carried>> {
    let upgrade = ws::Upgrade::new(request).ok()?;
    let mut response = upgrade.accept(|socket: &ws::WebSocket, event| {
        if let ws::WsEvent::Message(message) = event {
            assert!(socket.send(message).is_accepted());
        }
    });
    let mut block = Vec::new();
    encode_status(200, &mut block);
    Some(Answer { status: 200, block, body: None, note: None, accepted: response.upgrade.take() })
}

pub(super) fn number_of(head: &ParsedHead, bytes: &[u8]) -> u32 {
    let path = head.parts.path.of(bytes);
    std::str::from_utf8(path).ok().and_then(|path| path.trim_start_matches('/').parse().ok()).unwrap_or_default()
}

pub(super) fn answer(number: u32) -> Answer<Carried> {
    let mut block = Vec::new();
    encode_status(200, &mut block);
    Answer { status: 200, block, body: SimBody::new(number), note: None, accepted: None }
}

impl Host for World {
    fn now(&self) -> Millis {
        self.now
    }

    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn is_stopping(&self) -> bool {
        false
    }

    fn buffer(&self) -> Buffered {
        Buffered::new(&self.memory)
    }

    fn has_spare_streams(&self) -> bool {
        self.now.is_multiple_of(2)
    }

    fn is_short_for_bodies(&self) -> bool {
        false
    }

    fn count_timeout(&self) {}
}

impl Service<Carried> for World {
    fn head(&mut self) -> HeadBuilder {
        std::mem::take(&mut self.head)
    }

    fn give_head_back(&mut self, head: HeadBuilder) {
        self.head = head;
    }

    fn inline(&mut self, head: &ParsedHead, bytes: &[u8], _: bool) -> Inline<Carried> {
        assert!(!self.is_over, "a request is begun behind the end");
        match self.random.below(4) {
            0 => Inline::Later(number_of(head, bytes)),
            1 => Inline::Job,
            _ => Inline::Answer(answer(number_of(head, bytes))),
        }
    }

    fn reject(&mut self, _: ProtoError, _: bool) -> Answer<Carried> {
        Answer { body: None, ..answer(0) }
    }

    fn count_malformed(&self) {}

    fn overloaded(&mut self, _: bool) -> Answer<Carried> {
        Answer { body: None, ..answer(0) }
    }

    fn pipe(&self, _: u32, begun: Buffered, _: bool) -> Arc<Mutex<Piped>> {
        // Its handler reads the body in one call.
        Arc::new(Mutex::new(Piped::begun(begun.bytes, usize::MAX / 2)))
    }

    fn wait(&mut self, _: u32, _: &mut SimBody) -> Duration {
        Duration::from_millis(self.random.below(50) as u64)
    }

    fn websocket_workers(&self) -> &impl ws::Runs {
        &*self.sockets
    }

    fn carrier(&self, stream: u32) -> Carrier {
        Carrier { address: Address { home: self.sockets.clone(), token: Token::new(0, 0), stream }, link: None }
    }

    fn over(&mut self, _: u16, _: u64, _: Option<()>, _: Ending<'_>) {}

    fn holding(&self) -> &Arc<Holding> {
        &self.holding
    }

    fn tell_departed(&self, departure: &Departure) {
        departure.tell();
    }

    fn count_abuse(&self, _: &'static str) {}
}
