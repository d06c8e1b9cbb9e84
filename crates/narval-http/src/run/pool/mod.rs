//! The worker pool: plain threads on one bounded queue.

pub(crate) mod queue;

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, MutexGuard};
use std::thread::{self, Thread};

use crate::io::sync::Mutex;
use crate::run::job::{Call, Job};
use crate::run::pool::queue::Queue;
use crate::ws;

/// A handle to wake a sleeping worker.
#[derive(Debug)]
pub(crate) struct Sleeper {
    thread: Thread,
    woken: AtomicBool,
}

impl Sleeper {
    /// A handle for the current thread.
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { thread: thread::current(), woken: AtomicBool::new(false) })
    }

    fn wake(&self) {
        self.woken.store(true, Ordering::Release);
        self.thread.unpark();
    }

    fn sleep(&self) {
        while !self.woken.swap(false, Ordering::Acquire) {
            thread::park();
        }
    }
}

/// The queue between shards and workers, or threads of another kind.
#[derive(Debug)]
pub(crate) struct Pool {
    state: Mutex<State>,
    /// The maximum number of threads started on demand.
    threads_max: usize,
}

#[derive(Debug)]
struct State {
    requests: Queue<Box<Call>>,
    /// Responses to continue; at most one per connection.
    continued: VecDeque<Job>,
    /// Whether the last job taken continued a response: they alternate with requests.
    continued_last: bool,
    /// Sleeping workers. The last one to fall asleep is at the end and is woken first: its caches are warm.
    asleep: Vec<Arc<Sleeper>>,
    /// A worker was woken and has not taken its job yet. Meanwhile no other is woken: it wakes the next one itself if
    /// it finds more work. This way a burst of quick requests does not wake every worker.
    waking: bool,
    /// Threads started on demand.
    threads: usize,
    closed: bool,
}

impl ws::Runs for Pool {
    fn run(&self, socket: Arc<ws::Shared>) {
        self.push_continued(Job::WebSocket(socket));
    }
}

impl Pool {
    /// A queue for a fixed number of threads.
    pub(crate) fn new(requests_max: usize) -> Self {
        Self::growing(requests_max, 0)
    }

    /// A queue for up to `threads_max` threads, which are [started](Self::wants_thread) on demand.
    pub(crate) fn growing(requests_max: usize, threads_max: usize) -> Self {
        let state = State {
            requests: Queue::new(requests_max),
            continued: VecDeque::new(),
            continued_last: false,
            asleep: Vec::new(),
            waking: false,
            threads: 0,
            closed: false,
        };
        Self { state: Mutex::new(state), threads_max }
    }

    /// Adds a request of a client, and returns the length of the queue; gives the request back if there is [no
    /// place](Queue::push) for it, or the queue is closed.
    pub(crate) fn push(&self, client: Option<IpAddr>, call: Box<Call>) -> Result<usize, Box<Call>> {
        let mut state = self.state.lock();
        if state.closed {
            return Err(call);
        }
        state.requests.push(client, call)?;
        let depth = state.requests.len();
        self.wake_one(state);
        Ok(depth)
    }

    /// The number of the next thread, if another one should be started; it counts as started from now on.
    pub(crate) fn wants_thread(&self) -> Option<usize> {
        let mut state = self.state.lock();
        let coming = state.asleep.len() + usize::from(state.waking);
        let wanted = state.requests.len() > coming && state.threads < self.threads_max && !state.closed;
        let number = state.threads;
        state.threads += usize::from(wanted);
        wanted.then_some(number)
    }

    /// Counts the first thread, which is always started.
    pub(crate) fn first_thread(&self) {
        self.state.lock().threads = 1;
    }

    /// A thread could not be started; the others continue without it.
    pub(crate) fn thread_failed(&self) {
        self.state.lock().threads -= 1;
    }

    /// Busy threads plus queued requests, and the maximum of that.
    pub(crate) fn load(&self) -> (usize, usize) {
        let state = self.state.lock();
        (state.threads.saturating_sub(state.asleep.len()) + state.requests.len(), self.threads_max)
    }

    /// Adds a response to continue.
    pub(crate) fn push_continued(&self, job: Job) {
        let mut state = self.state.lock();
        state.continued.push_back(job);
        self.wake_one(state);
    }

    fn wake_one(&self, mut state: MutexGuard<'_, State>) {
        if !state.waking
            && let Some(sleeper) = state.asleep.pop()
        {
            state.waking = true;
            drop(state);
            sleeper.wake();
        }
    }

    /// Waits for a job; `None` when the pool is closed and empty.
    pub(crate) fn take(&self, me: &Arc<Sleeper>) -> Option<Job> {
        let mut state = self.state.lock();
        loop {
            if let Some(job) = state.next() {
                if state.has_work() {
                    self.wake_one(state);
                }
                return Some(job);
            }
            if state.closed {
                return None;
            }
            state.asleep.push(me.clone());
            drop(state);
            me.sleep();
            state = self.state.lock();
            state.waking = false;
        }
    }

    /// A job, if there is one; never waits.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn try_take(&self) -> Option<Job> {
        self.state.lock().next()
    }

    /// Whether anything is queued.
    pub(crate) fn has_work(&self) -> bool {
        self.state.lock().has_work()
    }

    /// The number of queued requests.
    pub(crate) fn depth(&self) -> usize {
        self.state.lock().requests.len()
    }

    /// Makes the workers end once the queue is empty.
    pub(crate) fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        let asleep = std::mem::take(&mut state.asleep);
        drop(state);
        asleep.iter().for_each(|sleeper| sleeper.wake());
    }
}

impl State {
    fn has_work(&self) -> bool {
        self.requests.len() > 0 || !self.continued.is_empty()
    }

    fn next(&mut self) -> Option<Job> {
        self.continued_last = !self.continued_last;
        if self.continued_last
            && let Some(job) = self.continued.pop_front()
        {
            return Some(job);
        }
        self.requests.pop().map(Job::Answer).or_else(|| self.continued.pop_front())
    }
}
