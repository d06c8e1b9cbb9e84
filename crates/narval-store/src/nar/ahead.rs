//! Reading small files before they are asked for, by several threads, in the order of the NAR.
//!
//! A stream puts the next batches into a queue, and takes their bytes in its own order. A batch that no thread has begun
//! when its turn comes is read by the stream itself: a busy or absent pool costs nothing but the help.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, bounded};

use super::NarIoError;
use super::layout::NarLayout;
use super::open::Root;
use super::stream::read_batch;

/// Batches that wait for a thread, over all streams.
const QUEUE_LEN_MAX: usize = 256;

/// Entries that are read together.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) layout: Arc<NarLayout>,
    pub(super) root: Arc<Root>,
    pub(super) entries: Range<usize>,
}

/// Threads that read ahead for any number of streams, and the memory they may fill.
#[derive(Debug)]
pub struct ReadAhead {
    queue: Option<Sender<Arc<Slot>>>,
    threads: Vec<JoinHandle<()>>,
    held: Arc<AtomicUsize>,
    bytes_max: usize,
}

impl ReadAhead {
    /// Starts threads that together buffer at most `bytes_max` bytes.
    ///
    /// # Errors
    /// If the system starts no thread.
    pub fn start(threads: usize, bytes_max: usize) -> std::io::Result<Self> {
        let (queue, jobs) = bounded(QUEUE_LEN_MAX);
        let threads = (0..threads)
            .map(|number| {
                let jobs = jobs.clone();
                std::thread::Builder::new().name(format!("read-ahead-{number}")).spawn(move || work(&jobs))
            })
            .collect::<Result<_, _>>()?;
        Ok(Self { queue: Some(queue), threads, held: Arc::new(AtomicUsize::new(0)), bytes_max })
    }

    /// Puts a batch into the queue; `None` when the queue or the memory is full.
    pub(super) fn schedule(&self, batch: Batch) -> Option<Arc<Slot>> {
        let span = batch.layout.span(&batch.entries);
        let bytes = usize::try_from(span.end - span.start).ok()?;
        // A few streams may pass this line together: the limit is one for memory in the large.
        if self.held.load(Ordering::Relaxed).saturating_add(bytes) > self.bytes_max {
            return None;
        }
        let hold = Hold { held: self.held.clone(), bytes };
        self.held.fetch_add(bytes, Ordering::Relaxed);
        let slot = Arc::new(Slot { batch, hold, state: Mutex::new(State::Waiting), done: Condvar::new() });
        self.queue.as_ref()?.try_send(slot.clone()).ok()?;
        Some(slot)
    }
}

impl Drop for ReadAhead {
    fn drop(&mut self) {
        self.queue = None;
        for thread in self.threads.drain(..) {
            // A thread that has panicked has nothing left to clean up.
            thread.join().ok();
        }
    }
}

/// Memory that counts against the limit until it is dropped.
#[derive(Debug)]
struct Hold {
    held: Arc<AtomicUsize>,
    bytes: usize,
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.held.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// A batch on its way.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) batch: Batch,
    #[expect(dead_code, reason = "counts as long as the slot lives")]
    hold: Hold,
    state: Mutex<State>,
    done: Condvar,
}

#[derive(Debug)]
enum State {
    Waiting,
    Running,
    Ready(Result<Vec<u8>, NarIoError>),
    Taken,
}

impl Slot {
    /// The bytes; waits for a thread that is at it, and is `None` when none has begun.
    pub(super) fn take(&self) -> Option<Result<Vec<u8>, NarIoError>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        while matches!(*state, State::Running) {
            state = self.done.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        match std::mem::replace(&mut *state, State::Taken) {
            State::Ready(bytes) => Some(bytes),
            _ => None,
        }
    }

    fn read(&self) {
        {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            if !matches!(*state, State::Waiting) {
                return;
            }
            *state = State::Running;
        }
        let mut bytes = Vec::new();
        let read = read_batch(&self.batch.layout, &self.batch.root, &self.batch.entries, &mut bytes);
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = State::Ready(read.map(|()| bytes));
        self.done.notify_all();
    }
}

fn work(jobs: &Receiver<Arc<Slot>>) {
    while let Ok(slot) = jobs.recv() {
        // Held by the queue alone: its stream is gone.
        if Arc::strong_count(&slot) > 1 {
            slot.read();
        }
    }
}
