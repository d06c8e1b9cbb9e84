//! Response bodies that any thread writes while they are sent: a bounded buffer between the writer, which blocks when
//! it is full, and the connection, which waits when it is empty. No worker waits for either.

use std::io::{self, Write};
use std::sync::{Arc, Condvar, MutexGuard, PoisonError};
use std::time::Duration;

use http::{HeaderName, HeaderValue};

use crate::io::sync::{self, Mutex};
use crate::limits::{WRITER_ATTACH, WRITER_BUFFER_MAX, WRITER_GATHER};
use crate::message::body::source::{BodySource, BodyWaker, Fill, SegmentBuf};

/// Writes a response body; see [`Body::writer`](crate::Body::writer).
///
/// Writes are buffered: the bytes are sent when there are enough of them, at a [`flush`](Write::flush), and at the end.
/// Writing blocks while the client is slow, and fails when the client is gone, or was disconnected for being too slow.
/// Return the response before (or while) much is written: nothing is sent until the engine has it.
///
/// Dropping a writer without [`finish`](Self::finish) aborts the connection: an incomplete body never ends cleanly.
#[derive(Debug)]
pub struct BodyWriter {
    shared: Arc<Shared>,
    gathered: Vec<u8>,
    finished: bool,
}

/// The two sides of a pushed body.
pub(crate) fn pair() -> (BodyWriter, impl BodySource + 'static) {
    let shared = Arc::new(Shared::default());
    (BodyWriter { shared: shared.clone(), gathered: Vec::new(), finished: false }, Source { shared })
}

impl BodyWriter {
    /// Ends the body.
    ///
    /// # Errors
    /// The client is gone.
    pub fn finish(self) -> io::Result<()> {
        self.finish_with(Vec::new())
    }

    /// Ends the body, and sends these trailer fields (RFC 9110 section 6.5) if it is chunked. A body without a length
    /// is, except to HTTP/1.0 clients.
    ///
    /// # Errors
    /// The client is gone.
    pub fn finish_with(mut self, trailers: Vec<(HeaderName, HeaderValue)>) -> io::Result<()> {
        self.flush()?;
        self.finished = true;
        let mut state = self.shared.state.lock();
        state.trailers = trailers;
        state.end = Some(End::Finished);
        state.wake();
        if state.gone { Err(gone()) } else { Ok(()) }
    }

    /// Whether the client is connected. It may take a while until a disconnect is detected.
    pub fn is_open(&self) -> bool {
        !self.shared.state.lock().gone
    }
}

impl Write for BodyWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.gathered.len() + bytes.len() < WRITER_GATHER {
            self.gathered.extend_from_slice(bytes);
            return Ok(bytes.len());
        }
        self.flush()?;
        self.shared.push(bytes)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let gathered = std::mem::take(&mut self.gathered);
        let pushed = self.shared.push(&gathered);
        self.gathered = gathered;
        self.gathered.clear();
        pushed
    }
}

impl Drop for BodyWriter {
    fn drop(&mut self) {
        if !self.finished {
            let mut state = self.shared.state.lock();
            state.end = Some(End::Dropped);
            state.wake();
        }
    }
}

/// Shared by the two sides.
#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    has_room: Condvar,
}

#[derive(Debug, Default)]
struct State {
    buffer: Vec<u8>,
    end: Option<End>,
    trailers: Vec<(HeaderName, HeaderValue)>,
    /// The response is being sent.
    attached: bool,
    /// The bytes are not read any more.
    gone: bool,
    /// The connection waits for bytes.
    waker: Option<BodyWaker>,
}

/// How the writer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Finished,
    Dropped,
}

impl Shared {
    /// Hands over bytes, in pieces as there is room.
    fn push(&self, mut bytes: &[u8]) -> io::Result<()> {
        let mut state = self.state.lock();
        while !bytes.is_empty() {
            if state.gone {
                return Err(gone());
            }
            let room = WRITER_BUFFER_MAX.saturating_sub(state.buffer.len());
            if room == 0 {
                state = self.wait_for_room(state)?;
                continue;
            }
            let (now, later) = bytes.split_at(room.min(bytes.len()));
            state.buffer.extend_from_slice(now);
            state.wake();
            bytes = later;
        }
        Ok(())
    }

    fn wait_for_room<'a>(&'a self, state: MutexGuard<'a, State>) -> io::Result<MutexGuard<'a, State>> {
        if state.attached || sync::is_simulated() {
            // The connection's deadlines bound this: eventually there is room, or the source is dropped.
            return Ok(sync::wait(&self.has_room, &self.state, state));
        }
        // A handler that writes more than the buffer holds before it returns would wait for itself.
        let stuck = |state: &mut State| !state.attached && !state.gone;
        let (state, waited) =
            self.has_room.wait_timeout_while(state, WRITER_ATTACH, stuck).unwrap_or_else(PoisonError::into_inner);
        if waited.timed_out() {
            let why = "the response to this body was not returned: write from another thread, or return first";
            return Err(io::Error::new(io::ErrorKind::TimedOut, why));
        }
        Ok(state)
    }
}

impl State {
    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

fn gone() -> io::Error {
    io::Error::new(io::ErrorKind::BrokenPipe, "the client takes no more of the response")
}

/// The connection's side.
struct Source {
    shared: Arc<Shared>,
}

impl BodySource for Source {
    fn fill(&mut self, out: &mut SegmentBuf) -> io::Result<Fill> {
        let mut state = self.shared.state.lock();
        state.attached = true;
        if out.memory().is_empty() {
            std::mem::swap(out.memory(), &mut state.buffer);
        } else {
            out.memory().append(&mut state.buffer);
        }
        self.shared.has_room.notify_all();
        match state.end {
            Some(End::Finished) => Ok(Fill::Done),
            Some(End::Dropped) if out.memory().is_empty() => {
                Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the writer of the body was dropped before its end"))
            }
            Some(End::Dropped) => Ok(Fill::More),
            None if out.memory().is_empty() => {
                // A waiting connection holds no buffer.
                state.buffer = Vec::new();
                Ok(Fill::Wait)
            }
            None => Ok(Fill::More),
        }
    }

    fn wait(&mut self, waker: BodyWaker) -> Duration {
        let mut state = self.shared.state.lock();
        if state.end.is_some() || !state.buffer.is_empty() {
            return Duration::ZERO;
        }
        state.waker = Some(waker);
        Duration::MAX
    }

    fn never_blocks(&self) -> bool {
        true
    }

    fn trailers(&mut self) -> Vec<(HeaderName, HeaderValue)> {
        std::mem::take(&mut self.shared.state.lock().trailers)
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        (state.gone, state.buffer, state.waker) = (true, Vec::new(), None);
        self.shared.has_room.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(source: &mut impl BodySource) -> (Vec<u8>, Fill) {
        let mut out = SegmentBuf::default();
        let fill = source.fill(&mut out).expect("no error");
        (out.memory, fill)
    }

    #[test]
    fn what_is_written_is_gathered_until_a_flush_or_the_end() {
        let (mut writer, mut source) = pair();
        writer.write_all(b"one ").unwrap();
        assert_eq!(filled(&mut source), (Vec::new(), Fill::Wait));
        writer.flush().unwrap();
        assert_eq!(filled(&mut source), (b"one ".to_vec(), Fill::More));
        writer.write_all(b"two").unwrap();
        writer.finish_with(vec![(http::header::ETAG, HeaderValue::from_static("\"x\""))]).unwrap();
        assert_eq!(filled(&mut source), (b"two".to_vec(), Fill::Done));
        assert_eq!(source.trailers().len(), 1);
    }

    #[test]
    fn a_writer_that_is_dropped_before_the_end_is_an_error_behind_its_bytes() {
        let (mut writer, mut source) = pair();
        writer.write_all(&[7; WRITER_GATHER]).unwrap();
        drop(writer);
        assert_eq!(filled(&mut source), (vec![7; WRITER_GATHER], Fill::More));
        assert!(source.fill(&mut SegmentBuf::default()).is_err());
    }

    #[test]
    fn writing_waits_for_room_and_fails_when_nobody_reads() {
        let (mut writer, mut source) = pair();
        let total = 10 * WRITER_BUFFER_MAX;
        let thread = std::thread::spawn(move || {
            writer.write_all(&vec![1; total]).unwrap();
            writer
        });
        let mut got = 0;
        while got < total {
            let (bytes, _) = filled(&mut source);
            assert!(bytes.len() <= WRITER_BUFFER_MAX);
            got += bytes.len();
        }
        let mut writer = thread.join().unwrap();
        assert!(writer.is_open());
        drop(source);
        assert!(!writer.is_open());
        assert_eq!(writer.write_all(&[1; WRITER_GATHER]).unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }
}
