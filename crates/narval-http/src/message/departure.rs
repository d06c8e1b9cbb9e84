//! How work for a request learns that its client has left.

use std::fmt;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::io::sync::Mutex;
use crate::limits::DEPARTURE_LOOKS;

/// Tells whether the client of a request has left, so that nobody works for it any longer. Cheap to clone, usable from any
/// thread, and keeps no connection open; see [`Request::departure`](crate::Request::departure).
///
/// A client has left when its connection is reset or closed, or, over HTTP/2, when it resets the stream. A client that
/// only ends its side of the connection may still read the answer. TCP does not tell it from one that has closed the
/// connection until something is sent, so an HTTP/1.1 client that has ended its side is sent `100 Continue`, which every
/// client must ignore (RFC 9110 section 15.2.1), if its answer takes longer than half a second. Over HTTP/1.0, and once
/// the answer has begun, the bytes of the answer show whether the client is there.
///
/// ```
/// use narval_http::{Request, Response, StatusCode};
///
/// fn count(request: Request) -> Response {
///     let departure = request.departure();
///     let mut sum = 0u64;
///     for n in 0..1_000_000 {
///         if n % 1000 == 0 && departure.is_gone() {
///             break;
///         }
///         sum += n;
///     }
///     Response::text(StatusCode::OK, sum.to_string())
/// }
/// # let _: &dyn narval_http::Handler = &count;
/// ```
#[derive(Clone, Default)]
pub struct Departure {
    /// `None` for a request that came over no connection.
    shared: Option<Arc<Shared>>,
}

/// What the engine holds until the answer is sent, or cannot be sent. Then what was to be called is dropped.
#[derive(Debug)]
pub(crate) struct Here {
    departure: Departure,
}

struct Shared {
    state: AtomicU8,
    /// After how many looks at a client that has ended its side it is probed; 0 if it is not, or was.
    looks_left: AtomicU8,
    calls: Mutex<Vec<Box<dyn FnOnce() + Send>>>,
}

/// The client waits for its answer.
const HERE: u8 = 0;
/// It has left.
const GONE: u8 = 1;
/// It was answered.
const OVER: u8 = 2;

impl Departure {
    /// Whether the client has left.
    pub fn is_gone(&self) -> bool {
        self.is(GONE)
    }

    /// Calls `call` when the client leaves before its answer is sent: at once if it has left already, and never if it was
    /// answered.
    ///
    /// It runs on the thread that serves the connection: it must not block. It may set a flag, or wake a thread.
    pub fn on_gone(&self, call: impl FnOnce() + Send + 'static) {
        let Some(shared) = &self.shared else { return };
        let mut calls = shared.calls.lock();
        match shared.state.load(Ordering::Acquire) {
            HERE => calls.push(Box::new(call)),
            GONE => {
                drop(calls);
                call();
            }
            _ => {}
        }
    }

    /// The client has left. Returns how many of the calls panicked.
    pub(crate) fn tell(&self) -> u64 {
        let Some(shared) = &self.shared else { return 0 };
        let calls = shared.leave_for(GONE);
        calls.into_iter().map(|call| u64::from(!is_done(call))).sum()
    }

    /// Shard: looked at a client that has ended its side and waits for its answer. Returns whether to find out now if it
    /// is there.
    pub(crate) fn looked(&self) -> bool {
        let Some(shared) = self.shared.as_ref().filter(|_| self.is(HERE)) else { return false };
        let left = shared.looks_left.load(Ordering::Relaxed);
        shared.looks_left.store(left.saturating_sub(1), Ordering::Relaxed);
        left == 1
    }

    /// Whether the client is there, and its answer is not sent.
    pub(crate) fn is_awaited(&self) -> bool {
        self.is(HERE)
    }

    fn is(&self, state: u8) -> bool {
        self.shared.as_ref().is_some_and(|shared| shared.state.load(Ordering::Acquire) == state)
    }
}

impl Here {
    /// For a request that waits for its answer. `may_be_probed`: its client understands informational responses.
    pub(crate) fn new(may_be_probed: bool) -> Self {
        let looks_left = AtomicU8::new(if may_be_probed { DEPARTURE_LOOKS } else { 0 });
        let shared = Shared { state: AtomicU8::new(HERE), looks_left, calls: Mutex::default() };
        Self { departure: Departure { shared: Some(Arc::new(shared)) } }
    }

    pub(crate) fn departure(&self) -> &Departure {
        &self.departure
    }
}

impl Drop for Here {
    fn drop(&mut self) {
        if let Some(shared) = &self.departure.shared {
            for call in shared.leave_for(OVER) {
                // What it captured may panic when it is dropped.
                is_done(|| drop(call));
            }
        }
    }
}

impl Shared {
    /// Ends the wait for the answer, and returns what was to be called.
    fn leave_for(&self, state: u8) -> Vec<Box<dyn FnOnce() + Send>> {
        let mut calls = self.calls.lock();
        if self.state.load(Ordering::Relaxed) == HERE {
            self.state.store(state, Ordering::Release);
        }
        mem::take(&mut *calls)
    }
}

fn is_done(call: impl FnOnce()) -> bool {
    let done = catch_unwind(AssertUnwindSafe(call)).is_ok();
    if !done {
        tracing::error!("what was to be called when a client leaves panicked");
    }
    done
}

impl fmt::Debug for Departure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Departure").field("is_gone", &self.is_gone()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    fn counting(count: &Arc<AtomicUsize>) -> impl FnOnce() + Send + 'static {
        let count = count.clone();
        move || {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn each_call_is_made_once_when_the_client_leaves_or_has_left() {
        let (here, count) = (Here::new(true), Arc::new(AtomicUsize::new(0)));
        let departure = here.departure().clone();
        departure.on_gone(counting(&count));
        departure.on_gone(|| panic!("a panic of a test"));
        departure.on_gone(counting(&count));
        assert!(!departure.is_gone() && count.load(Ordering::Relaxed) == 0);
        assert_eq!(departure.tell(), 1, "the panic is confined");
        assert!(departure.is_gone() && count.load(Ordering::Relaxed) == 2);
        departure.on_gone(counting(&count));
        drop(here);
        departure.tell();
        assert_eq!(count.load(Ordering::Relaxed), 3);
        assert!(departure.is_gone());
    }

    #[test]
    fn nothing_is_called_or_kept_once_the_client_is_answered() {
        let (here, count) = (Here::new(true), Arc::new(AtomicUsize::new(0)));
        let departure = here.departure().clone();
        // A call that refers to its own departure is dropped, too.
        let own = (departure.clone(), counting(&count));
        departure.on_gone(move || own.1());
        drop(here);
        assert_eq!(Arc::strong_count(&count), 1);
        departure.on_gone(counting(&count));
        departure.tell();
        assert!(!departure.is_gone() && count.load(Ordering::Relaxed) == 0);
        assert_eq!(Arc::strong_count(&count), 1);
    }

    #[test]
    fn a_client_is_probed_once_and_only_while_it_waits() {
        let here = Here::new(true);
        let looks = || (0..10).filter(|_| here.departure().looked()).count();
        assert_eq!(looks(), 1);
        assert!(!Here::new(false).departure().looked());
        let departure = Here::new(true).departure().clone();
        assert!(!(0..10).any(|_| departure.looked()), "it was answered");
    }
}
