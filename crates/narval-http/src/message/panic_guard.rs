//! Confines panics of body sources to their connection. The engine calls a source on a worker, on the thread that
//! multiplexes a shard's connections, and wherever a response is dropped; a panic there would end that thread, and with
//! it all its connections.

use std::any::Any;
use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http::{HeaderName, HeaderValue};

use crate::message::body::source::{BodySource, BodyWaker, Fill, SegmentBuf};

/// A source that does not panic. After a panic, its next piece is an error, which aborts the connection.
pub(crate) struct Guarded<S> {
    /// `None` once it is being dropped.
    source: Option<S>,
    /// Taken with its last piece: if that panics, the piece fails.
    trailers: Vec<(HeaderName, HeaderValue)>,
    has_panicked: bool,
}

/// The error for a panic of a source.
#[derive(Debug)]
struct Panicked;

impl fmt::Display for Panicked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the source of a response body panicked")
    }
}

impl std::error::Error for Panicked {}

/// Whether a response was aborted because its source panicked.
pub(crate) fn is_panic(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<Panicked>())
}

/// The message of a panic.
pub(crate) fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}

impl<S: BodySource> Guarded<S> {
    pub(crate) fn new(source: S) -> Self {
        Self { source: Some(source), trailers: Vec::new(), has_panicked: false }
    }

    /// Calls the source; `None` if it panics, now or before.
    fn call<T>(&mut self, method: impl FnOnce(&mut S) -> T) -> Option<T> {
        let source = self.source.as_mut().filter(|_| !self.has_panicked)?;
        let called = catch_unwind(AssertUnwindSafe(|| method(source)));
        self.has_panicked = called.is_err();
        called.inspect_err(|_| tracing::error!("{Panicked}: its connection is aborted")).ok()
    }
}

impl<S: BodySource> BodySource for Guarded<S> {
    fn fill(&mut self, out: &mut SegmentBuf) -> io::Result<Fill> {
        let filled = self.call(|source| {
            let fill = source.fill(out)?;
            Ok((fill, if fill == Fill::Done { source.trailers() } else { Vec::new() }))
        });
        let (fill, trailers) = filled.unwrap_or_else(|| Err(io::Error::other(Panicked)))?;
        self.trailers = trailers;
        Ok(fill)
    }

    fn wait(&mut self, waker: BodyWaker) -> Duration {
        // With no wait, its next piece follows at once, and is the error.
        self.call(|source| source.wait(waker)).unwrap_or(Duration::ZERO)
    }

    fn hang_up(&mut self) -> bool {
        self.call(S::hang_up).unwrap_or(true)
    }

    fn never_blocks(&self) -> bool {
        let Some(source) = self.source.as_ref().filter(|_| !self.has_panicked) else { return true };
        catch_unwind(AssertUnwindSafe(|| source.never_blocks())).unwrap_or_else(|_| {
            tracing::error!("{Panicked} when it was asked whether it may block: taken for one that may");
            false
        })
    }

    fn trailers(&mut self) -> Vec<(HeaderName, HeaderValue)> {
        std::mem::take(&mut self.trailers)
    }
}

/// A value that is only kept, and whose `drop` does not panic.
pub(crate) struct Kept {
    value: Option<Box<dyn Send>>,
    /// Where its owner reads how much has been sent.
    sent: Option<Arc<AtomicU64>>,
}

impl Kept {
    pub(crate) fn new(value: impl Send + 'static) -> Self {
        Self { value: Some(Box::new(value)), sent: None }
    }

    pub(crate) fn counted(value: impl Send + 'static, sent: Arc<AtomicU64>) -> Self {
        Self { value: Some(Box::new(value)), sent: Some(sent) }
    }

    /// Tells its owner how many bytes have been sent so far.
    pub(crate) fn has_sent(&self, bytes: u64) {
        if let Some(sent) = &self.sent {
            sent.store(bytes, Ordering::Relaxed);
        }
    }

    /// The same for so many bytes more.
    pub(crate) fn has_sent_more(&self, bytes: u64) {
        if let Some(sent) = &self.sent {
            sent.fetch_add(bytes, Ordering::Relaxed);
        }
    }
}

impl fmt::Debug for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Kept")
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        let value = self.value.take();
        if catch_unwind(AssertUnwindSafe(|| drop(value))).is_err() {
            tracing::error!("what was kept with the body of a response panicked when it was dropped");
        }
    }
}

impl<S> Drop for Guarded<S> {
    fn drop(&mut self) {
        let source = self.source.take();
        if catch_unwind(AssertUnwindSafe(|| drop(source))).is_err() {
            tracing::error!("{Panicked} when it was dropped");
        }
    }
}
