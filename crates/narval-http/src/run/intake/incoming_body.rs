//! A request body as it is received: where it ends, and whether the client is fast enough. The caller decides where its
//! bytes go.

use http::HeaderMap;

use crate::http1::ProtoError;
use crate::http1::chunked::ChunkedDecoder;
use crate::http1::head::Framing;
use crate::io::clock::{Millis, millis};
use crate::io::progress::Progress;
use crate::limits::Limits;

/// A request body that is being received.
#[derive(Debug)]
pub(crate) struct IncomingBody {
    decoder: Decoder,
    /// Bytes of the body so far.
    received: u64,
    progress: Progress,
    /// Bytes received when the client's progress was last checked.
    received_at_check: u64,
    /// Receiving was paused since then, because the handler did not read.
    was_paused: bool,
    /// The same since the start of the window.
    was_paused_in_window: bool,
}

#[derive(Debug)]
enum Decoder {
    Length(u64),
    Chunked(Box<ChunkedDecoder>),
}

/// The result of [`IncomingBody::feed`].
pub(crate) struct Fed {
    /// Bytes of the input that belong to the body.
    pub(crate) consumed: usize,
    /// Whether the body is complete.
    pub(crate) done: bool,
}

impl IncomingBody {
    /// A body that has not started to arrive.
    pub(crate) fn new(framing: Framing, now: Millis) -> Self {
        let decoder = match framing {
            Framing::Chunked => Decoder::Chunked(Box::default()),
            Framing::Length(length) => Decoder::Length(length),
            Framing::None => Decoder::Length(0),
        };
        Self {
            decoder,
            received: 0,
            progress: Progress::new(now, 0),
            received_at_check: 0,
            was_paused: false,
            was_paused_in_window: false,
        }
    }

    /// Its length, if announced.
    pub(crate) fn length(&self) -> Option<u64> {
        match &self.decoder {
            Decoder::Length(left) => Some(*left + self.received),
            Decoder::Chunked(_) => None,
        }
    }

    /// Whether any of it has arrived.
    pub(crate) fn has_begun(&self) -> bool {
        self.received > 0
    }

    /// Whether a body of announced length is complete; [`Framing::Length`] of [`u64::MAX`] means that no length was
    /// announced.
    pub(crate) fn is_whole(&self) -> bool {
        self.length().is_none_or(|length| length == u64::MAX || length == self.received)
    }

    /// Bytes still to come, if the length was announced.
    pub(crate) fn rest(&self) -> Option<u64> {
        match &self.decoder {
            Decoder::Length(left) => Some(*left),
            Decoder::Chunked(_) => None,
        }
    }

    /// Counts bytes that the handler has received itself, of a body of announced length. Returns whether the body is
    /// complete.
    pub(crate) fn skip(&mut self, bytes: u64) -> bool {
        let Decoder::Length(left) = &mut self.decoder else { return false };
        *left = left.saturating_sub(bytes);
        self.received += bytes;
        *left == 0
    }

    /// Decodes the start of `input`, and passes each piece of the body to `sink`.
    ///
    /// # Errors
    /// Broken chunks, or a body longer than `body_max`.
    pub(crate) fn feed(
        &mut self,
        input: &[u8],
        limits: &Limits,
        mut sink: impl FnMut(&[u8]),
    ) -> Result<Fed, ProtoError> {
        let mut consumed = 0;
        loop {
            let rest = input.get(consumed..).unwrap_or_default();
            let (taken, data, done) = match &mut self.decoder {
                Decoder::Length(left) => {
                    let n = usize::try_from(*left).unwrap_or(usize::MAX).min(rest.len());
                    *left -= n as u64;
                    (n, rest.get(..n).unwrap_or_default(), *left == 0)
                }
                Decoder::Chunked(decoder) => {
                    let decoded = decoder.decode(rest)?;
                    (decoded.consumed, decoded.data, decoded.done)
                }
            };
            consumed += taken;
            self.received += data.len() as u64;
            if self.received > limits.body_max {
                return Err(ProtoError::new(http::StatusCode::PAYLOAD_TOO_LARGE, "the request body is too large"));
            }
            sink(data);
            if done || data.is_empty() || consumed >= input.len() {
                return Ok(Fed { consumed, done });
            }
        }
    }

    /// The trailer fields, once the body is done.
    pub(crate) fn trailers(&self) -> HeaderMap {
        match &self.decoder {
            Decoder::Chunked(decoder) => decoder.trailers().clone(),
            Decoder::Length(_) => HeaderMap::new(),
        }
    }

    /// Receiving is paused: the client's progress is not checked meanwhile.
    pub(crate) fn pause(&mut self) {
        self.was_paused = true;
    }

    /// When to check the client's progress next.
    pub(crate) fn next_check(&self, now: Millis, limits: &Limits) -> Millis {
        self.progress.until(millis(limits.body_stall_timeout)).min(now + millis(limits.body_busy_timeout).max(1))
    }

    /// Looks whether the client has sent enough, or receiving was paused; returns when to look again, or `None` if it is too slow.
    /// `is_paused`: the handler must read before more is received. `is_in_demand`: other bodies wait for the thread or memory of
    /// this one.
    pub(crate) fn look(&mut self, now: Millis, limits: &Limits, is_paused: bool, is_in_demand: bool) -> Option<Millis> {
        let paused = std::mem::replace(&mut self.was_paused, is_paused) || is_paused;
        let since_check = self.received - std::mem::replace(&mut self.received_at_check, self.received);
        self.was_paused_in_window |= paused;
        if is_in_demand && !paused && since_check < limits.body_busy_progress_min {
            return None;
        }
        let stall = millis(limits.body_stall_timeout);
        if now >= self.progress.until(stall) {
            // A pause excuses the whole window.
            let least = if std::mem::take(&mut self.was_paused_in_window) { 0 } else { limits.body_progress_min };
            self.progress.check(now, self.received, least, stall)?;
        }
        Some(self.next_check(now, limits))
    }
}
