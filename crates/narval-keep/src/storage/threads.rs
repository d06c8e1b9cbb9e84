//! Several requests to a storage at the same time.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::rejection::Rejection;
use narval_client::clock;

/// Does something with each of these, on at most so many threads. After the first failure, no other one is begun.
pub(crate) fn several<T: Sync, R: Send>(
    threads_max: usize,
    items: &[T],
    each: impl Fn(&T) -> Result<R, Rejection> + Sync,
) -> Result<Vec<R>, Rejection> {
    let (next, failed) = (AtomicUsize::new(0), Mutex::new(None));
    let fail = |rejection| {
        next.store(items.len(), Ordering::Relaxed);
        failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(rejection);
    };
    let work = || {
        let mut done = Vec::new();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(number) else { return done };
            match each(item) {
                Ok(result) => done.push((number, result)),
                Err(rejection) => fail(rejection),
            }
        }
    };
    let threads_max = if clock::has_threads() { threads_max } else { 1 };
    let mut done = std::thread::scope(|scope| {
        let threads: Vec<_> = (1..items.len().min(threads_max)).map(|_| scope.spawn(work)).collect();
        let mut done = work();
        for thread in threads {
            match thread.join() {
                Ok(more) => done.extend(more),
                Err(_) => fail(Rejection::failed("a thread has died")),
            }
        }
        done
    });
    if let Some(rejection) = failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
        return Err(rejection);
    }
    done.sort_unstable_by_key(|(number, _)| *number);
    Ok(done.into_iter().map(|(_, result)| result).collect())
}
