//! The worker pool: plain threads on one bounded queue.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, Thread};

use crate::run::job::{Call, Job};
use crate::ws;

/// A worker as it sleeps.
#[derive(Debug)]
pub(crate) struct Sleeper {
    thread: Thread,
    woken: AtomicBool,
}

impl Sleeper {
    /// For the current thread.
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
    requests_max: usize,
    /// The most threads that are started when they are wanted.
    threads_max: usize,
}

#[derive(Debug, Default)]
struct State {
    /// Requests, at most `requests_max`.
    requests: VecDeque<Box<Call>>,
    /// Answers that go on; at most one per connection.
    continued: VecDeque<Job>,
    /// Whether the last job taken was one that goes on: they take turns with requests.
    continued_last: bool,
    /// Workers that sleep, the one that fell asleep last at the end: it is woken first, for its caches are warm.
    asleep: Vec<Arc<Sleeper>>,
    /// A worker was woken and has not yet taken its job. While one is on its way, no other is woken: it wakes the next
    /// itself if it finds more work, so that a burst of quick requests does not wake a crowd.
    waking: bool,
    /// Threads that were started when they were wanted.
    threads: usize,
    closed: bool,
}

impl ws::Runs for Pool {
    fn run(&self, socket: Arc<ws::Shared>) {
        self.push_continued(Job::WebSocket(socket));
    }
}

impl Pool {
    /// A queue for threads that are there from the start.
    pub(crate) fn new(requests_max: usize) -> Self {
        Self::growing(requests_max, 0)
    }

    /// A queue for up to `threads_max` threads, which are [started](Self::wants_thread) when there is something to do for them.
    pub(crate) fn growing(requests_max: usize, threads_max: usize) -> Self {
        Self { state: Mutex::default(), requests_max, threads_max }
    }

    /// Adds a request, and says how many wait now; or gives it back when the queue is full (or closed).
    pub(crate) fn push(&self, call: Box<Call>) -> Result<usize, Box<Call>> {
        let mut state = self.lock();
        if state.requests.len() >= self.requests_max || state.closed {
            return Err(call);
        }
        state.requests.push_back(call);
        let depth = state.requests.len();
        self.wake_one(state);
        Ok(depth)
    }

    /// Whether another thread is to be started, and its number; it counts as started from now on.
    pub(crate) fn wants_thread(&self) -> Option<usize> {
        let mut state = self.lock();
        let coming = state.asleep.len() + usize::from(state.waking);
        let wanted = state.requests.len() > coming && state.threads < self.threads_max && !state.closed;
        let number = state.threads;
        state.threads += usize::from(wanted);
        wanted.then_some(number)
    }

    /// The first of these threads is about to be started, for there is to be one in any case.
    pub(crate) fn first_thread(&self) {
        self.lock().threads = 1;
    }

    /// The thread that was wanted could not be started; those that there are do without it.
    pub(crate) fn thread_failed(&self) {
        self.lock().threads -= 1;
    }

    /// Threads that are at work, and requests that wait for one; of the most there can be.
    pub(crate) fn load(&self) -> (usize, usize) {
        let state = self.lock();
        (state.threads.saturating_sub(state.asleep.len()) + state.requests.len(), self.threads_max)
    }

    /// Adds an answer that goes on.
    pub(crate) fn push_continued(&self, job: Job) {
        let mut state = self.lock();
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
        let mut state = self.lock();
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
            state = self.lock();
            state.waking = false;
        }
    }

    /// A job, if there is one; never waits.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn try_take(&self) -> Option<Job> {
        self.lock().next()
    }

    /// Whether anything waits for a worker.
    pub(crate) fn has_work(&self) -> bool {
        self.lock().has_work()
    }

    /// Requests that wait for a worker.
    pub(crate) fn depth(&self) -> usize {
        self.lock().requests.len()
    }

    /// Lets the workers end when the queue is empty.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        let asleep = std::mem::take(&mut state.asleep);
        drop(state);
        asleep.iter().for_each(|sleeper| sleeper.wake());
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn has_work(&self) -> bool {
        !self.requests.is_empty() || !self.continued.is_empty()
    }

    fn next(&mut self) -> Option<Job> {
        self.continued_last = !self.continued_last;
        if self.continued_last
            && let Some(job) = self.continued.pop_front()
        {
            return Some(job);
        }
        self.requests.pop_front().map(Job::Answer).or_else(|| self.continued.pop_front())
    }
}
