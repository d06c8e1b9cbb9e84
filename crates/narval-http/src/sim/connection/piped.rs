use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use http::HeaderMap;

use crate::http1::ProtoError;
use crate::intake::{Pipe, Receiver};

/// The maximum number of bytes that arrive at once.
pub(super) const PIECE_MAX: usize = 5000;

/// A body that is streamed to its handler.
#[derive(Default)]
pub(crate) struct Piped {
    pub(super) received: Vec<u8>,
    pub(super) read: usize,
    pub(super) window: usize,
    pub(super) is_paused: bool,
    pub(super) is_complete: bool,
    pub(super) is_over: bool,
    /// The response has begun: the rest is discarded.
    pub(super) is_answered: bool,
    /// Bytes that are still to come, where that is known.
    pub(super) rest: Option<u64>,
    /// The handler receives them itself, from time to time: where the bits of this are set, one after the other.
    pub(super) choices: u64,
    pub(super) is_received_by_handler: bool,
    /// What it has received, and the connection was not told of.
    pub(super) received_by_handler: u64,
}

impl Piped {
    /// One that begins with what was received, and takes so much.
    pub(in crate::sim) fn begun(received: Vec<u8>, window: usize) -> Self {
        Self { received, window, ..Self::default() }
    }
}

impl Pipe for Arc<Mutex<Piped>> {
    fn push(&self, data: &[u8]) {
        let mut pipe = lock(self);
        assert!(!pipe.is_over, "a body continues after its end");
        assert!(!pipe.is_received_by_handler, "two receive");
        if pipe.is_answered {
            return;
        }
        if let Some(rest) = &mut pipe.rest {
            *rest -= data.len() as u64;
        }
        pipe.received.extend_from_slice(data);
        assert!(
            pipe.received.len() <= pipe.read + pipe.window + PIECE_MAX,
            "more is received than the handler has room for"
        );
    }

    fn complete(&self, _: HeaderMap) {
        let mut pipe = lock(self);
        assert!(!std::mem::replace(&mut pipe.is_over, true), "a body ends twice");
        pipe.is_complete = true;
    }

    fn refuse(&self, _: ProtoError) {
        assert!(!std::mem::replace(&mut lock(self).is_over, true), "a body ends twice");
    }

    fn abort(&self, _: io::ErrorKind) {
        assert!(!std::mem::replace(&mut lock(self).is_over, true), "a body ends twice");
    }

    fn receiver(&self) -> Receiver {
        let mut pipe = lock(self);
        if pipe.is_received_by_handler {
            return Receiver::Handler;
        }
        pipe.choices = pipe.choices.rotate_left(1);
        if !pipe.is_over && !pipe.is_answered && pipe.rest.is_some_and(|rest| rest > 0) && pipe.choices & 1 == 1 {
            pipe.is_received_by_handler = true;
            return Receiver::Handler;
        }
        pipe.is_paused = !pipe.is_answered && pipe.received.len() >= pipe.read + pipe.window;
        if pipe.is_paused { Receiver::Nobody } else { Receiver::Connection }
    }

    fn has_begun(&self) -> bool {
        lock(self).read > 0
    }

    fn take_received(&self) -> u64 {
        std::mem::take(&mut lock(self).received_by_handler)
    }

    fn is_paused(&self) -> bool {
        let pipe = lock(self);
        pipe.is_paused || pipe.is_received_by_handler
    }
}

pub(super) fn lock(pipe: &Mutex<Piped>) -> MutexGuard<'_, Piped> {
    pipe.lock().unwrap_or_else(PoisonError::into_inner)
}
