//! The worker's side of a WebSocket: it runs the handler for the queued events.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::codec::decoder::CompressedMessage;
use super::codec::{CloseCode, Message, ProtocolError, close, deflate};
use super::error::{CloseReason, WsError};
use super::inbox::Pending;
use super::socket::{Shared, WebSocket};
use crate::io::output_memory::Share;

/// How many events of one socket are handled before the worker takes another job.
const EVENTS_PER_TURN: usize = 32;

/// What happens with the job next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Turn {
    /// No more events are queued.
    Done,
    /// Other jobs first, then this one again.
    Again,
}

impl Shared {
    /// Worker: handles events until none is queued, or other jobs should have their turn.
    pub(crate) fn run(self: &Arc<Self>) -> Turn {
        let socket = WebSocket { shared: self.clone() };
        for _ in 0..EVENTS_PER_TURN {
            let (event, resumes) = self.inbox.lock().pop(self.options.receive_queue_bytes);
            if resumes {
                self.out.state().tell();
            }
            let Some(event) = event else { return Turn::Done };
            let was_last = event.is_last();
            match catch_unwind(AssertUnwindSafe(|| self.handle(&socket, event))) {
                Ok(Ok(())) => {}
                Ok(Err(error)) => self.fail(&socket, error),
                Err(_) => {
                    tracing::error!(?socket, "a WebSocket handler panicked: its connection is closed");
                    if !was_last {
                        self.fail(&socket, WsError::Panicked);
                    }
                }
            }
        }
        Turn::Again
    }

    fn handle(&self, socket: &WebSocket, event: Pending) -> Result<(), WsError> {
        let handler = &self.handler;
        match event {
            Pending::Open => handler.open(socket),
            Pending::Message(message) => handler.message(socket, message),
            Pending::Compressed(message) => {
                // Until the handler has returned.
                let mut held = self.share();
                handler.message(socket, self.decompress(message, &mut held)?);
            }
            Pending::Ping(payload) => handler.ping(socket, payload),
            Pending::Pong(payload) => handler.pong(socket, payload),
            Pending::Drained => handler.drained(socket),
            Pending::Closed(frame) => {
                self.out.answer_close(frame.as_ref().map(|frame| frame.code));
                handler.close(socket, CloseReason::clean(frame));
            }
            Pending::Failed(error) => return Err(error.into()),
            Pending::Lost(error) => {
                // The shard may not have dropped the connection yet; nothing is sent any more in any case.
                self.out.state().fail();
                handler.error(socket, error);
                handler.close(socket, CloseReason::failed(None, error));
            }
        }
        Ok(())
    }

    fn decompress(&self, message: CompressedMessage, held: &mut Share) -> Result<Message, WsError> {
        let limit = self.options.limits.message_bytes_max;
        let mut is_short = false;
        let mut may_grow = |bytes| {
            is_short = !held.grow(bytes);
            !is_short
        };
        let inflater = self.inbox.lock().inflater.take();
        let data = match inflater {
            Some(mut inflater) => {
                let data = inflater.message_within(&message.data, limit, &mut may_grow);
                self.inbox.lock().inflater = Some(inflater);
                data
            }
            None => deflate::decompress_within(&message.data, limit, &mut may_grow),
        };
        let data = data.map_err(|error| if is_short { WsError::TooSlow } else { error.into() })?;
        if !message.text {
            return Ok(Message::Binary(data.into()));
        }
        let text = String::from_utf8(data).map_err(|_| ProtocolError::InvalidUtf8)?;
        Ok(Message::Text(text))
    }

    /// Fails the connection (RFC 6455 section 7.1.7): sends a Close frame, and ignores further input.
    fn fail(&self, socket: &WebSocket, error: WsError) {
        self.inbox.lock().end();
        let code = match error {
            WsError::Protocol(error) => error.close_code(),
            WsError::TooSlow => CloseCode::TRY_AGAIN_LATER,
            _ => CloseCode::INTERNAL_ERROR,
        };
        let reason = match error {
            WsError::Protocol(error) => error.to_string(),
            _ => String::new(),
        };
        self.out.close(close::encode(code, &reason));
        self.out.state().finish();
        let told = catch_unwind(AssertUnwindSafe(|| {
            self.handler.error(socket, error);
            self.handler.close(socket, CloseReason::failed(Some(code), error));
        }));
        if told.is_err() {
            tracing::error!(?socket, "a WebSocket handler panicked while its connection was closed");
        }
    }
}
