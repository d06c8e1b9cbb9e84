//! The TX lease: exactly one party may write to a connection.
//!
//! The shard holds it while it waits for a request. Dispatching a request moves it into the job, and answering gives it
//! back: normally without a message, and so without a wake-up; with a message if the shard has marked that it waits
//! (for pipelined input, or to close the connection).
//!
//! ```text
//!            dispatch                    wait_for
//!   SHARD ─────────────→ JOB ──────────────────────→ JOB_AWAITED
//!     ↑                   │ finish: quiet                │ finish: the job must send a message
//!     └───────────────────┴──────────── take_back ←──────┘
//! ```

use crate::io::sync::{AtomicU8, Ordering};

/// The shard may write.
const SHARD: u8 = 0;
/// A job may write; the shard needs no message.
const JOB: u8 = 1;
/// A job may write; the shard wants a message when it is done.
const JOB_AWAITED: u8 = 2;

/// Who may write to a connection.
#[derive(Debug)]
pub(crate) struct Lease {
    state: AtomicU8,
}

/// What [`Lease::wait_for`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holder {
    /// The shard holds the lease, and may continue.
    Shard,
    /// A job holds it, and will send a message when done.
    Job,
}

/// How a job gives the lease back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Finish {
    /// The shard holds the lease now; the job must not touch the connection again.
    Quiet,
    /// The shard waits: the job still holds the lease, and must send the message that returns it.
    Message,
}

impl Lease {
    /// A lease held by the shard.
    pub(crate) fn new() -> Self {
        Self { state: AtomicU8::new(SHARD) }
    }

    /// Shard: moves the lease into a job.
    pub(crate) fn dispatch(&self) {
        let before = self.state.swap(JOB, Ordering::Relaxed);
        debug_assert_eq!(before, SHARD, "dispatched twice");
    }

    /// Shard: requests a message at the end of the job, if one is running.
    pub(crate) fn wait_for(&self) -> Holder {
        match self.state.compare_exchange(JOB, JOB_AWAITED, Ordering::Relaxed, Ordering::Acquire) {
            Ok(_) | Err(JOB_AWAITED) => Holder::Job,
            Err(_) => Holder::Shard,
        }
    }

    /// Shard: who holds the lease, without requesting a message.
    pub(crate) fn holder(&self) -> Holder {
        if self.state.load(Ordering::Acquire) == SHARD { Holder::Shard } else { Holder::Job }
    }

    /// Shard: takes the lease out of a job's message.
    pub(crate) fn take_back(&self) {
        let before = self.state.swap(SHARD, Ordering::Acquire);
        debug_assert_ne!(before, SHARD, "given back twice");
    }

    /// Job: everything is sent.
    pub(crate) fn finish(&self) -> Finish {
        match self.state.compare_exchange(JOB, SHARD, Ordering::Release, Ordering::Relaxed) {
            Ok(_) => Finish::Quiet,
            Err(_) => Finish::Message,
        }
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn a_job_nobody_waits_for_finishes_quietly() {
        let lease = Lease::new();
        lease.dispatch();
        assert_eq!(lease.holder(), Holder::Job);
        assert_eq!(lease.finish(), Finish::Quiet);
        assert_eq!(lease.holder(), Holder::Shard);
    }

    #[test]
    fn a_job_that_is_awaited_sends_a_message() {
        let lease = Lease::new();
        lease.dispatch();
        assert_eq!(lease.wait_for(), Holder::Job);
        assert_eq!(lease.finish(), Finish::Message);
        assert_eq!(lease.holder(), Holder::Job, "until the message is taken");
        lease.take_back();
        assert_eq!(lease.wait_for(), Holder::Shard);
    }
}

#[cfg(all(loom, test))]
mod loom_tests {
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicUsize;
    use loom::thread;

    use super::*;

    /// One connection: the lease, a count of writers (never above one), and the mailbox as a counter of messages.
    struct Model {
        lease: Lease,
        writers: AtomicUsize,
        messages: AtomicUsize,
    }

    impl Model {
        fn new() -> Arc<Self> {
            Arc::new(Self { lease: Lease::new(), writers: AtomicUsize::new(0), messages: AtomicUsize::new(0) })
        }

        fn write(&self) {
            assert_eq!(self.writers.fetch_add(1, Ordering::Relaxed), 0, "two writers");
            self.writers.fetch_sub(1, Ordering::Relaxed);
        }

        fn job(&self) {
            self.write();
            if self.lease.finish() == Finish::Message {
                self.write();
                self.messages.fetch_add(1, Ordering::Release);
            }
        }

        /// Waits for the job's message and takes the lease out of it.
        fn take_message(&self) {
            while self.messages.load(Ordering::Acquire) == 0 {
                thread::yield_now();
            }
            self.messages.fetch_sub(1, Ordering::Relaxed);
            self.lease.take_back();
        }

        /// The shard moves the lease into a job, which runs on its own thread.
        fn dispatch(model: &Arc<Self>) -> thread::JoinHandle<()> {
            model.lease.dispatch();
            let model = model.clone();
            thread::spawn(move || model.job())
        }

        /// The shard writes as soon as it holds the lease.
        fn write_when_free(&self) {
            if self.lease.wait_for() == Holder::Job {
                self.take_message();
            }
            self.write();
        }
    }

    /// Input that arrives while a job runs is answered afterwards, on exactly one of the two paths, and there are never
    /// two writers.
    #[test]
    fn loom_pipelined_input_is_never_lost() {
        loom::model(|| {
            let model = Model::new();
            let job = Model::dispatch(&model);
            model.write_when_free();
            let second = Model::dispatch(&model);
            job.join().unwrap();
            second.join().unwrap();
            assert_eq!(model.lease.holder(), Holder::Shard);
            assert_eq!(model.messages.load(Ordering::Relaxed), 0);
        });
    }

    /// A timer makes the shard check, then close: it may close only while it holds the lease.
    #[test]
    fn loom_a_timer_closes_only_with_the_lease() {
        loom::model(|| {
            let model = Model::new();
            let job = Model::dispatch(&model);
            match model.lease.holder() {
                Holder::Shard => model.write(),
                Holder::Job => model.write_when_free(),
            }
            job.join().unwrap();
        });
    }

    /// A job hands its remaining output back, and the shard dispatches another job: three actors in turn.
    #[test]
    fn loom_output_handed_back_and_dispatched_again() {
        loom::model(|| {
            let model = Model::new();
            model.lease.dispatch();
            let first = {
                let model = model.clone();
                thread::spawn(move || {
                    model.write();
                    // Handing back always takes a message.
                    model.messages.fetch_add(1, Ordering::Release);
                })
            };
            let awaited = model.lease.wait_for();
            assert_eq!(awaited, Holder::Job);
            model.take_message();
            model.write();
            let second = Model::dispatch(&model);
            model.write_when_free();
            first.join().unwrap();
            second.join().unwrap();
        });
    }
}
