//! Reads the body of a response, instead of sending it: for middlewares and tests.

use std::io::{self, Read};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::message::body::produced::{Produced, Rest};
use crate::message::body::source::{BodyWaker, SegmentBuf};
use crate::message::body::{Body, BodyKind};
use crate::message::carrier::Bell;
use crate::message::departure::Departure;
use crate::message::responder::{Awaiting, LateAnswer};
use crate::message::response::{Response, ResponseKind};

impl Response {
    /// The whole body, of at most `bytes_max` bytes. This thread waits until it is there: for an answer that [follows
    /// later](Self::later), and for a body that is produced while it is sent.
    ///
    /// ```
    /// use narval_http::{Body, Next, Request, Response};
    ///
    /// fn with_a_checksum(request: Request, next: Next<'_>) -> Response {
    ///     next.run(request).map(|mut response| match response.take_body().into_bytes(1 << 20) {
    ///         Ok(bytes) => response.header("x-length", bytes.len()).body(Body::bytes(bytes)),
    ///         Err(error) => Response::failure(error),
    ///     })
    /// }
    /// # let _: &dyn narval_http::Middleware = &with_a_checksum;
    /// ```
    ///
    /// # Errors
    /// The body is longer, or its source fails or has another length than it said.
    pub fn into_bytes(self, bytes_max: usize) -> io::Result<Bytes> {
        self.when_answered().take_body().into_bytes(bytes_max)
    }

    /// Takes the body, and leaves an empty one. The body of an answer that [follows later](Self::later) is empty until then:
    /// use [`map`](Self::map).
    pub fn take_body(&mut self) -> Body {
        match &self.kind {
            ResponseKind::Prepared(prepared) => Body::bytes(prepared.body.clone()),
            ResponseKind::Plain { .. } => std::mem::take(self.plain().1),
        }
    }

    /// Waits for an answer that follows later.
    pub(crate) fn when_answered(mut self) -> Self {
        let Some(later) = self.late.take() else { return self };
        let (sender, receiver) = mpsc::channel();
        let waited = later.wait(sender, |sender| {
            // Who waits is gone only if its thread has panicked.
            let answer = Box::new(move |answer| drop(sender.send(answer)));
            Awaiting { answer, departure: Departure::default(), informer: None }
        });
        let answer = waited.map(|(answer, _)| answer).or_else(|| receiver.recv().ok());
        answer.unwrap_or_else(LateAnswer::failed).take()
    }
}

impl Body {
    /// The whole body; see [`Response::into_bytes`].
    ///
    /// # Errors
    /// As there.
    pub fn into_bytes(self, bytes_max: usize) -> io::Result<Bytes> {
        let length = self.length();
        let too_long = || io::Error::other(format!("the body of the response has more than {bytes_max} bytes"));
        if length.is_some_and(|length| length > bytes_max as u64) {
            return Err(too_long());
        }
        if let BodyKind::Bytes(bytes) = self.kind {
            return Ok(bytes);
        }
        let mut bytes = Vec::new();
        BodyReader::new(self).take((bytes_max as u64).saturating_add(1)).read_to_end(&mut bytes)?;
        if bytes.len() > bytes_max { Err(too_long()) } else { Ok(bytes.into()) }
    }
}

/// A body as it is read. This thread produces it, and waits for it.
pub(crate) struct BodyReader {
    body: Produced,
    /// Rings when the source has more.
    bell: Arc<Bell>,
    /// When waiting ends.
    until: Option<Instant>,
}

impl BodyReader {
    pub(crate) fn new(body: Body) -> Self {
        Self { body: Produced::new(body), bell: Arc::default(), until: None }
    }

    /// From now on, waits at most that long.
    pub(crate) fn wait_at_most(&mut self, time: Duration) {
        self.until = Some(Instant::now() + time);
    }

    /// Waits until the source may have more.
    fn wait(&mut self) -> io::Result<()> {
        let mut at_most = self.body.wait(BodyWaker(self.bell.address()));
        if let Some(until) = self.until {
            let left = until.checked_duration_since(Instant::now()).ok_or(io::ErrorKind::TimedOut)?;
            at_most = at_most.min(left);
        }
        self.bell.wait(at_most);
        self.body.resume();
        Ok(())
    }
}

impl Read for BodyReader {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        while !out.is_empty() {
            let taken = if self.body.ready() > 0 { self.body.take(out)? } else { 0 };
            if taken > 0 {
                return Ok(taken);
            }
            match self.body.rest() {
                Rest::End { .. } => break,
                Rest::Waiting => self.wait()?,
                Rest::Here | Rest::Worker => self.body.make(SegmentBuf::QUANTUM)?,
                // It has failed.
                Rest::Making => return Err(io::ErrorKind::UnexpectedEof.into()),
            }
        }
        Ok(0)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::thread;

    use http::StatusCode;

    use super::*;
    use crate::message::body::source::FileRange;
    use crate::web::events::{Event, EventOptions};

    #[test]
    fn bodies_are_read_to_their_end_and_to_their_limit() {
        let (body, mut writer) = Body::writer(None);
        let writing = thread::spawn(move || {
            for _ in 0..1000 {
                writer.write_all(&[b'x'; 1000])?;
            }
            writer.finish()
        });
        let bytes = Response::new(StatusCode::OK).body(body).into_bytes(1 << 20).expect("complete");
        assert_eq!(bytes.len(), 1_000_000);
        writing.join().expect("no panic").expect("read");
        let (body, writer) = Body::writer(Some(5));
        drop(writer);
        assert!(body.into_bytes(10).is_err(), "it was aborted");
        assert!(Body::bytes("too long").into_bytes(7).is_err());
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(b"0123456789").expect("written");
        let range = |length| FileRange { file: Arc::new(file.try_clone().expect("cloned")), offset: 2, length };
        assert_eq!(Body::file(range(3)).into_bytes(10).expect("read"), "234");
        assert!(Body::file(range(9)).into_bytes(10).is_err(), "the file is shorter");
    }

    #[test]
    fn late_answers_and_streams_are_waited_for() {
        let (response, responder) = Response::later();
        let later = thread::spawn(move || responder.respond(Response::text(StatusCode::OK, "late")));
        assert_eq!(response.map(|late| late.header("x", "y")).into_bytes(10).expect("answered"), "late");
        later.join().expect("no panic");
        let (response, events) = Response::events(EventOptions::default());
        let sending = thread::spawn(move || {
            assert!(events.send(&Event::new("one")).is_accepted());
        });
        assert_eq!(response.into_bytes(100).expect("ended"), "data: one\n\n");
        sending.join().expect("no panic");
    }
}
