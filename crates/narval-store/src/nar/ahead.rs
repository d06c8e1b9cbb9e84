//! Reads small files ahead, on several threads, in the order of the NAR.
//!
//! A stream queues its next batches, and takes their bytes in order. If no thread has started a batch when its turn
//! comes, the stream reads it itself, so a busy or absent pool never blocks a stream.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, bounded};
use parking_lot::{Condvar, Mutex};

use super::NarIoError;
use super::batch::{Batch, read_batch};

/// Batches queued for a thread, over all streams.
const QUEUE_LEN_MAX: usize = 256;

/// Threads that read ahead for any number of streams, within a limit on memory.
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
    /// If no thread can be started.
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

    /// Queues a batch; `None` if the queue or the memory is full.
    pub(super) fn schedule(&self, batch: Batch) -> Option<Arc<Slot>> {
        let span = batch.layout.span(&batch.entries);
        let bytes = usize::try_from(span.end - span.start).ok()?;
        // A few streams may pass this check at the same time: the limit is approximate.
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

/// A queued batch.
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
    /// Returns the bytes, after waiting for the thread that reads them; `None` if no thread has started.
    pub(super) fn take(&self) -> Option<Result<Vec<u8>, NarIoError>> {
        let mut state = self.state.lock();
        while matches!(*state, State::Running) {
            self.done.wait(&mut state);
        }
        match std::mem::replace(&mut *state, State::Taken) {
            State::Ready(bytes) => Some(bytes),
            _ => None,
        }
    }

    fn read(&self) {
        {
            let mut state = self.state.lock();
            if !matches!(*state, State::Waiting) {
                return;
            }
            *state = State::Running;
        }
        let mut bytes = Vec::new();
        let read = read_batch(&self.batch.layout, &self.batch.root, &self.batch.entries, &mut bytes);
        *self.state.lock() = State::Ready(read.map(|()| bytes));
        self.done.notify_all();
    }
}

fn work(jobs: &Receiver<Arc<Slot>>) {
    while let Ok(slot) = jobs.recv() {
        // Only the queue holds it: its stream is gone.
        if Arc::strong_count(&slot) > 1 {
            slot.read();
        }
    }
}
