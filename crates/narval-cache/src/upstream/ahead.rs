//! Prefetches narinfos: a client that requests a path requests its references next.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use narval_nix::{HashPart, NarInfo};
use parking_lot::Mutex;

use super::{AHEAD_MAX, AHEAD_THREADS};

/// The queue of hash parts to fetch.
pub(super) struct Ahead(SyncSender<HashPart>);

impl Ahead {
    /// Starts the threads. Each calls `fetch` with the queued hash parts until that breaks.
    pub(super) fn start(
        fetch: impl Fn(&HashPart) -> ControlFlow<()> + Clone + Send + 'static,
    ) -> std::io::Result<Self> {
        let (sender, receiver) = sync_channel(AHEAD_MAX);
        let receiver = Arc::new(Mutex::new(receiver));
        for at in 0..AHEAD_THREADS {
            let (fetch, receiver) = (fetch.clone(), Arc::clone(&receiver));
            thread::Builder::new().name(format!("ahead-{at}")).spawn(move || run(fetch, &receiver))?;
        }
        Ok(Self(sender))
    }

    /// A queue that fetches nothing.
    pub(super) fn none() -> Self {
        Self(sync_channel(0).0)
    }

    /// Queues the references of a path, as far as there is room.
    pub(super) fn references(&self, info: &NarInfo) {
        let own = info.path.hash_part();
        for reference in info.references.iter().map(narval_nix::StorePath::hash_part).filter(|part| *part != own) {
            if self.0.try_send(reference).is_err() {
                return;
            }
        }
    }
}

fn run(fetch: impl Fn(&HashPart) -> ControlFlow<()>, receiver: &Mutex<Receiver<HashPart>>) {
    loop {
        let next = receiver.lock().recv();
        let Ok(hash_part) = next else { return };
        if fetch(&hash_part).is_break() {
            return;
        }
    }
}
