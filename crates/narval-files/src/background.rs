//! A few threads for work that others must not wait for.

use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};

/// A piece of work.
pub type Job = Box<dyn FnOnce() + Send>;

/// How long a thread without work waits for more of it: starting one costs as much as many small jobs.
const IDLE_MAX: Duration = Duration::from_secs(1);

/// Threads that are started on demand, and the jobs that wait for one.
pub struct Background {
    name: &'static str,
    threads_max: usize,
    waiting_max: usize,
    work: Mutex<Work>,
    /// Notified when a job waits while a thread is idle.
    queued: Condvar,
}

#[derive(Default)]
struct Work {
    waiting: VecDeque<Job>,
    threads: usize,
    /// Threads without a job.
    idle: usize,
}

impl Background {
    /// At most `threads_max` threads of this name, started on demand. Once all of them work, at most `waiting_max` jobs wait for one; beyond
    /// that, the caller runs its job itself, or refuses it.
    pub fn new(name: &'static str, threads_max: usize, waiting_max: usize) -> Arc<Self> {
        Arc::new(Self { name, threads_max, waiting_max, work: Mutex::default(), queued: Condvar::new() })
    }

    /// Runs a job on a thread, or at once if too many wait. A panic of it is no panic of the caller.
    pub fn run(self: &Arc<Self>, job: Job) {
        if let Err(job) = self.offer(job) {
            run(job);
        }
    }

    /// Runs a job on a thread, unless too many wait.
    ///
    /// # Errors
    /// The job, if too many wait, or there is no thread and none can be started.
    pub fn offer(self: &Arc<Self>, job: Job) -> Result<(), Job> {
        let work = self.work.lock();
        let is_full = work.threads >= self.threads_max && work.waiting.len() >= self.waiting_max + work.idle;
        if is_full { Err(job) } else { self.queue(work, job) }
    }

    /// Runs a job on a thread, however many wait: for callers that bound them, and must not run them.
    ///
    /// # Errors
    /// The job, if there is no thread and none can be started.
    pub fn add(self: &Arc<Self>, job: Job) -> Result<(), Job> {
        self.queue(self.work.lock(), job)
    }

    fn queue(self: &Arc<Self>, mut work: MutexGuard<'_, Work>, job: Job) -> Result<(), Job> {
        if work.idle > work.waiting.len() {
            self.queued.notify_one();
        } else if work.threads < self.threads_max {
            let this = Arc::clone(self);
            let started = std::thread::Builder::new().name(self.name.to_owned()).spawn(move || this.work());
            // Without another one, the existing threads will run it.
            if started.is_err() && work.threads == 0 {
                return Err(job);
            }
            work.threads += usize::from(started.is_ok());
        }
        work.waiting.push_back(job);
        Ok(())
    }

    /// Runs jobs until the queue has been empty for a while.
    fn work(&self) {
        loop {
            let mut work = self.work.lock();
            work.idle += 1;
            self.queued.wait_while_for(&mut work, |work| work.waiting.is_empty(), IDLE_MAX);
            work.idle -= 1;
            let Some(job) = work.waiting.pop_front() else {
                work.threads -= 1;
                return;
            };
            drop(work);
            run(job);
        }
    }
}

/// Runs a job. A panic was reported by its hook; what the job held is dropped.
fn run(job: Job) {
    let _ = catch_unwind(AssertUnwindSafe(job));
}

impl fmt::Debug for Background {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let work = self.work.lock();
        write!(f, "Background({} waiting, {} threads)", work.waiting.len(), work.threads)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;

    use super::*;

    const THREADS_MAX: usize = 4;
    const WAITING_MAX: usize = 64;

    #[test]
    fn a_full_queue_makes_the_caller_run_the_job() {
        let writer = Background::new("test", THREADS_MAX, WAITING_MAX);
        let (busy, busiest) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (done, all) = mpsc::channel();
        let (go, gate) = mpsc::channel::<()>();
        let gate = Arc::new(Mutex::new(gate));
        let job = || -> Job {
            let (busy, busiest, done, gate) = (busy.clone(), busiest.clone(), done.clone(), gate.clone());
            Box::new(move || {
                busiest.fetch_max(busy.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                // Blocks until the other end is dropped.
                let _ = gate.lock().recv();
                busy.fetch_sub(1, Ordering::SeqCst);
                done.send(()).unwrap();
            })
        };
        (0..THREADS_MAX).for_each(|_| writer.run(job()));
        while !writer.work.lock().waiting.is_empty() {
            std::thread::yield_now();
        }
        (0..WAITING_MAX).for_each(|_| writer.run(job()));
        assert!(writer.offer(Box::new(|| unreachable!("it is refused"))).is_err());
        let (mine, by_me) = mpsc::channel();
        writer.run(Box::new(move || mine.send(std::thread::current().id()).unwrap()));
        assert_eq!(by_me.try_recv(), Ok(std::thread::current().id()), "there was no room for one more");
        drop((go, done));
        assert_eq!(all.iter().count(), THREADS_MAX + WAITING_MAX);
        assert_eq!(busiest.load(Ordering::SeqCst), THREADS_MAX);
        // Idle threads take what comes, also where nothing may wait.
        let writer = Background::new("test", 1, 0);
        let (ran, by) = mpsc::channel();
        let mut threads: Vec<_> = (0..3)
            .map(|_| {
                let ran = ran.clone();
                assert!(writer.offer(Box::new(move || ran.send(std::thread::current().id()).unwrap())).is_ok());
                let thread = by.recv().unwrap();
                while writer.work.lock().idle == 0 {
                    std::thread::yield_now();
                }
                thread
            })
            .collect();
        threads.dedup();
        assert_eq!(threads.len(), 1);
        while writer.work.lock().threads > 0 {
            std::thread::sleep(IDLE_MAX / 10);
        }
    }
}
