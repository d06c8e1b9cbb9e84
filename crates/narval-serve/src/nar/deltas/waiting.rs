//! Threads for requests that may wait for a delta: workers remain free for others.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

use narval_http::{Request, Response};

/// The maximum number of requests that wait for a delta: two clients that fetch as many paths at once as ours do. Further ones are
/// answered by the worker, and wait for nothing that is not ready.
pub(super) const WAITING_MAX: usize = 64;

/// The threads of this process that answer requests for deltas.
static THREADS: AtomicUsize = AtomicUsize::new(0);

/// A thread counts until this is dropped.
struct Counted;

impl Counted {
    fn one_more() -> Option<Self> {
        let more = |threads| (threads < WAITING_MAX).then_some(threads + 1);
        THREADS.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok().map(|_| Self)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        THREADS.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Answers a request on a thread of its own, if there may be another one, else here.
pub(crate) fn answer_on_a_thread(
    request: Request,
    answer: impl FnOnce(Request) -> Response + Send + 'static,
) -> Response {
    let Some(counted) = Counted::one_more() else { return answer(request) };
    let (response, responder) = Response::later();
    let job: Box<dyn FnOnce() + Send> = Box::new(move || {
        // A panic was reported by its hook. The client gets the 500 of a responder that is dropped.
        if let Ok(response) = catch_unwind(AssertUnwindSafe(|| answer(request))) {
            responder.respond(response);
        }
    });
    // The job is handed over once the thread is there: it would be lost with a thread that cannot be started.
    let (give, take) = mpsc::sync_channel::<Box<dyn FnOnce() + Send>>(1);
    let work = move || {
        let _counted = counted;
        if let Ok(job) = take.recv() {
            job();
        }
    };
    match std::thread::Builder::new().name("nar-waiting".to_owned()).spawn(work) {
        Ok(_) => {
            if let Err(mpsc::SendError(job)) = give.send(job) {
                job();
            }
        }
        Err(_) => job(),
    }
    response
}
