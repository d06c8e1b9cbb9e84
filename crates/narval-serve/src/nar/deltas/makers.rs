//! The threads that make deltas, and the deltas that wait for one. They are shared by all caches of this process, and bound the
//! processors and the memory that deltas take.
//!
//! A request waits for its delta while that is expected to be ready in time; how fast deltas are made is measured. If it is not, the
//! request gets the whole NAR, and the delta is made when nobody waits for another one: the next client has it.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

/// The maximum number of requests that wait for a delta: two clients that fetch as many paths at once as ours do. Further ones are
/// answered by the worker, and wait for nothing that is not ready.
pub(super) const WAITING_MAX: usize = 64;
/// The maximum number of deltas that are made at once; each takes a processor.
const MAKERS_MAX: usize = 4;
/// The maximum memory for making deltas, in bytes.
const MEMORY_MAX: u64 = 512 * 1024 * 1024;
/// The maximum number of deltas in the queue that no request waits for.
const UNWANTED_MAX: usize = 64;
/// How often a waiting request checks whether its delta is still expected in time.
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(100);
/// How fast deltas are made, until that was measured: bytes of both NARs, read, compressed and verified on one processor.
const BYTES_PER_S_ASSUMED: u64 = 128 * 1024 * 1024;
/// The measured bytes after which older ones count half.
const MEASURED_BYTES_MAX: u64 = 256 * 1024 * 1024;

/// A delta to make.
pub(super) struct Job {
    /// The bytes of both NARs: what the time depends on.
    pub(super) bytes: u64,
    /// The memory that it takes, in bytes.
    pub(super) memory: u64,
    /// Makes and keeps the delta.
    pub(super) make: Box<dyn FnOnce() + Send>,
}

/// The name of a job while it is queued or running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ticket(u64);

struct Queued {
    ticket: Ticket,
    /// How many requests wait for it.
    waiting: usize,
    job: Job,
}

struct Running {
    ticket: Ticket,
    bytes: u64,
    memory: u64,
    since: Instant,
}

struct State {
    tickets: u64,
    threads: usize,
    waiting: usize,
    queue: VecDeque<Queued>,
    running: Vec<Running>,
    measured_bytes: u64,
    measured: Duration,
}

static STATE: Mutex<State> = Mutex::new(State {
    tickets: 0,
    threads: 0,
    waiting: 0,
    queue: VecDeque::new(),
    running: Vec::new(),
    measured_bytes: BYTES_PER_S_ASSUMED,
    measured: Duration::from_secs(1),
});
/// Notified when a job has ended.
static ENDED: Condvar = Condvar::new();

fn state() -> MutexGuard<'static, State> {
    STATE.lock()
}

/// Half of the processors: the others answer requests.
fn threads_max() -> usize {
    // Cached: the standard library reads files to find out.
    static MAKERS: OnceLock<usize> = OnceLock::new();
    *MAKERS.get_or_init(|| (std::thread::available_parallelism().map_or(2, usize::from) / 2).clamp(1, MAKERS_MAX))
}

/// Queues a job.
///
/// # Errors
/// The job, if it takes too much memory, or too much is queued already.
pub(super) fn queue(job: Job) -> Result<Ticket, Job> {
    let mut state = state();
    if job.memory > MEMORY_MAX || (state.unwanted() >= UNWANTED_MAX && state.waiting >= WAITING_MAX) {
        return Err(job);
    }
    if state.threads < threads_max() && state.threads <= state.running.len() + state.queue.len() {
        let thread = std::thread::Builder::new().name("nar-delta".to_owned()).spawn(work);
        if thread.is_err() && state.threads == 0 {
            return Err(job);
        }
        state.threads += usize::from(thread.is_ok());
    }
    state.tickets += 1;
    let ticket = Ticket(state.tickets);
    state.queue.push_back(Queued { ticket, waiting: 0, job });
    Ok(ticket)
}

/// Waits until a job has ended, unless it is expected to take longer than this.
pub(super) fn wait(ticket: Ticket, patience: Duration) {
    let until = Instant::now() + patience;
    let mut state = state();
    if state.waiting >= WAITING_MAX {
        let dropped = state.drop_if_too_many(ticket);
        drop(state);
        return drop(dropped);
    }
    state.waiting += 1;
    state.adjust(ticket, |waiting| waiting + 1);
    while let Some(expected) = state.expected(ticket, threads_max(), Instant::now()) {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() || expected > left {
            break;
        }
        ENDED.wait_for(&mut state, left.min(LOOK_AGAIN_AFTER));
    }
    state.waiting -= 1;
    state.adjust(ticket, |waiting| waiting - 1);
    let dropped = state.drop_if_too_many(ticket);
    // Dropping a job takes other locks.
    drop(state);
    drop(dropped);
}

/// Makes deltas until the queue is empty.
fn work() {
    let mut state = state();
    while !state.queue.is_empty() {
        let Some(Queued { ticket, job: Job { bytes, memory, make }, .. }) = state.next() else {
            // There is too little memory until another one has ended.
            ENDED.wait(&mut state);
            continue;
        };
        let since = Instant::now();
        state.running.push(Running { ticket, bytes, memory, since });
        drop(state);
        // A panic was reported by its hook. Whoever waits gets the whole NAR.
        let _ = catch_unwind(AssertUnwindSafe(make));
        state = self::state();
        state.running.retain(|running| running.ticket != ticket);
        state.measure(bytes, since.elapsed());
        ENDED.notify_all();
    }
    state.threads -= 1;
}

impl State {
    /// Takes the next job out of the queue: the shortest that a request waits for, else the first. A client that asks for many deltas
    /// soon has some to receive, and the whole NARs of the short ones would be sent before the long ones are made.
    fn next(&mut self) -> Option<Queued> {
        let wanted = self.queue.iter().enumerate().filter(|(_, queued)| queued.waiting > 0);
        let at = wanted.min_by_key(|(at, queued)| (queued.job.bytes, *at)).map_or(0, |(at, _)| at);
        let used: u64 = self.running.iter().map(|running| running.memory).sum();
        let memory = self.queue.get(at)?.job.memory;
        if used + memory > MEMORY_MAX {
            return None;
        }
        self.queue.remove(at)
    }

    fn unwanted(&self) -> usize {
        self.queue.iter().filter(|queued| queued.waiting == 0).count()
    }

    fn adjust(&mut self, ticket: Ticket, change: impl Fn(usize) -> usize) {
        if let Some(queued) = self.queue.iter_mut().find(|queued| queued.ticket == ticket) {
            queued.waiting = change(queued.waiting);
        }
    }

    /// Takes a job out of the queue that no request waits for, if there are too many of them.
    fn drop_if_too_many(&mut self, ticket: Ticket) -> Option<Queued> {
        if self.unwanted() <= UNWANTED_MAX {
            return None;
        }
        let at = self.queue.iter().position(|queued| queued.ticket == ticket && queued.waiting == 0)?;
        self.queue.remove(at)
    }

    fn measure(&mut self, bytes: u64, took: Duration) {
        self.measured_bytes += bytes;
        self.measured += took;
        if self.measured_bytes > MEASURED_BYTES_MAX {
            self.measured_bytes /= 2;
            self.measured /= 2;
        }
    }

    /// When a job is expected to have ended; `None` if it has.
    fn expected(&self, ticket: Ticket, threads: usize, now: Instant) -> Option<Duration> {
        let elapsed = |running: &Running| now.saturating_duration_since(running.since).as_secs_f64();
        // A job that takes longer than usual counts as measured already.
        let (mut bytes, mut seconds) = (self.measured_bytes as f64, self.measured.as_secs_f64());
        for running in &self.running {
            if elapsed(running) * bytes > seconds * running.bytes as f64 {
                (bytes, seconds) = (bytes + running.bytes as f64, seconds + elapsed(running));
            }
        }
        let per_byte = seconds / bytes.max(1.0);
        let rest = |running: &Running| (running.bytes as f64).mul_add(per_byte, -elapsed(running)).max(0.0);
        if let Some(running) = self.running.iter().find(|running| running.ticket == ticket) {
            return Some(Duration::from_secs_f64(rest(running)));
        }
        let at = self.queue.iter().position(|queued| queued.ticket == ticket)?;
        let own = self.queue.get(at)?.job.bytes;
        let wanted = self.queue.iter().enumerate().filter(|(_, queued)| queued.waiting > 0);
        let before =
            wanted.filter(|(other, queued)| (queued.job.bytes, *other) < (own, at)).map(|(_, queued)| queued.job.bytes);
        let before = before.sum::<u64>() as f64 * per_byte + self.running.iter().map(rest).sum::<f64>();
        let own = own as f64 * per_byte;
        Some(Duration::from_secs_f64(before / threads.max(1) as f64 + own))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn job(seconds: u64) -> Job {
        Job { bytes: seconds * BYTES_PER_S_ASSUMED, memory: 1, make: Box::new(|| {}) }
    }

    fn empty() -> State {
        let (measured_bytes, measured) = (BYTES_PER_S_ASSUMED, SECOND);
        State {
            tickets: 0,
            threads: 0,
            waiting: 0,
            queue: VecDeque::new(),
            running: Vec::new(),
            measured_bytes,
            measured,
        }
    }

    fn with(jobs: &[(u64, usize)]) -> State {
        let mut state = empty();
        for (number, (seconds, waiting)) in jobs.iter().enumerate() {
            state.queue.push_back(Queued { ticket: Ticket(number as u64), waiting: *waiting, job: job(*seconds) });
        }
        state
    }

    /// When a job is expected to have ended, in tenths of a second.
    fn expected(state: &State, number: u64, threads: usize, now: Instant) -> Option<u64> {
        let expected = state.expected(Ticket(number), threads, now)?;
        Some((expected.as_secs_f64() * 10.0).round() as u64)
    }

    #[test]
    fn the_shortest_that_is_waited_for_is_made_first_and_the_others_are_expected_after_it() {
        let now = Instant::now();
        let mut state = with(&[(50, 0), (4, 1), (2, 1), (4, 1), (1, 0)]);
        let times = [1, 2, 3, 9].map(|number| expected(&state, number, 1, now));
        assert_eq!(times, [Some(60), Some(20), Some(100), None]);
        assert_eq!(expected(&state, 1, 2, now), Some(50));
        assert_eq!([2, 1, 3, 0, 4], [(); 5].map(|()| state.next().unwrap().ticket.0));
    }

    #[test]
    fn a_job_that_takes_longer_than_usual_makes_the_others_late() {
        let now = Instant::now();
        let mut state = with(&[(4, 1)]);
        state.running.push(Running { ticket: Ticket(7), bytes: 2 * BYTES_PER_S_ASSUMED, memory: 1, since: now });
        assert_eq!([0, 7].map(|number| expected(&state, number, 1, now + SECOND)), [Some(50), Some(10)]);
        // It should have ended after 2 s: three times the bytes have taken six seconds.
        assert_eq!([0, 7].map(|number| expected(&state, number, 1, now + 5 * SECOND)), [Some(80), Some(0)]);
        state.running.clear();
        state.measure(2 * BYTES_PER_S_ASSUMED, 5 * SECOND);
        assert_eq!(expected(&state, 0, 1, now), Some(80));
    }

    #[test]
    fn memory_and_the_queue_are_bounded() {
        assert!(queue(Job { memory: MEMORY_MAX + 1, ..job(1) }).is_err());
        let mut state = with(&[(1, 1)]);
        let large = Running { ticket: Ticket(7), bytes: 1, memory: MEMORY_MAX, since: Instant::now() };
        state.running.push(large);
        assert!(state.next().is_none());
        state.running.clear();
        assert!(state.next().is_some());
        let mut state = with(&[(1, 0); UNWANTED_MAX + 1]);
        assert!(state.drop_if_too_many(Ticket(3)).is_some() && state.drop_if_too_many(Ticket(4)).is_none());
    }

    #[test]
    fn a_job_that_panics_ends_too() {
        let ended = |make: Box<dyn FnOnce() + Send>| {
            let Ok(ticket) = queue(Job { make, ..job(1) }) else { return false };
            wait(ticket, 60 * SECOND);
            state().expected(ticket, 1, Instant::now()).is_none()
        };
        assert!(ended(Box::new(|| panic!("a test"))));
        assert!(ended(Box::new(|| {})));
    }
}
