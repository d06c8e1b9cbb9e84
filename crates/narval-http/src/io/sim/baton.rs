//! Threads of which exactly one runs at a time. A handler that waits for bytes or for room needs a thread of its own.
//! It runs when the simulation passes it the baton, and passes the baton back where it would wait.

use std::cell::RefCell;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

thread_local! {
    /// The turn of this thread's participant.
    static TURN: RefCell<Option<Arc<Turn>>> = const { RefCell::new(None) };
}

/// The participants that have not ended, in a fixed order.
#[derive(Debug, Default)]
pub(crate) struct Baton {
    participants: Mutex<Vec<Participant>>,
    /// The total number of participants.
    added: AtomicU64,
}

#[derive(Debug)]
struct Participant {
    turn: Arc<Turn>,
    thread: JoinHandle<()>,
}

/// Whose turn it is, between the simulation and one participant.
#[derive(Debug)]
struct Turn {
    holder: Mutex<Holder>,
    changed: Condvar,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holder {
    Simulation,
    Participant,
    /// The participant has ended.
    Nobody,
}

impl Baton {
    /// Adds a participant, which starts when it is first passed the baton.
    pub(crate) fn add(&self, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let turn = Arc::new(Turn { holder: Mutex::new(Holder::Simulation), changed: Condvar::new() });
        let own = turn.clone();
        let thread = thread::Builder::new().name("participant".into()).spawn(move || {
            own.wait_while(Holder::Simulation);
            let _end = End(own.clone());
            TURN.set(Some(own));
            work();
        })?;
        self.lock().push(Participant { turn, thread });
        self.added.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// The total number of participants so far.
    pub(crate) fn added(&self) -> u64 {
        self.added.load(Ordering::Relaxed)
    }

    /// The number of participants that have not ended.
    pub(crate) fn len(&self) -> usize {
        self.lock().len()
    }

    /// Lets a participant run until it waits or ends. If it panics, so does this thread.
    pub(crate) fn pass_to(&self, at: usize) {
        let Some(turn) = self.lock().get(at).map(|participant| participant.turn.clone()) else { return };
        turn.pass_to(Holder::Participant);
        if turn.wait_while(Holder::Participant) == Holder::Nobody {
            let participant = self.lock().remove(at);
            if let Err(panic) = participant.thread.join() {
                std::panic::resume_unwind(panic);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Participant>> {
        self.participants.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Turn {
    fn lock(&self) -> MutexGuard<'_, Holder> {
        self.holder.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pass_to(&self, holder: Holder) {
        *self.lock() = holder;
        self.changed.notify_one();
    }

    /// Waits until `other` has passed the baton, and returns to whom.
    fn wait_while(&self, other: Holder) -> Holder {
        *self.changed.wait_while(self.lock(), |holder| *holder == other).unwrap_or_else(PoisonError::into_inner)
    }
}

/// Passes the baton back for good, even if the participant panics.
struct End(Arc<Turn>);

impl Drop for End {
    fn drop(&mut self) {
        self.0.pass_to(Holder::Nobody);
    }
}

/// Whether this thread belongs to a participant.
pub(crate) fn is_participant() -> bool {
    TURN.with_borrow(Option::is_some)
}

/// Participant: passes the baton back, and returns when it has it again.
pub(crate) fn yield_now() {
    if let Some(turn) = TURN.with_borrow(Clone::clone) {
        turn.pass_to(Holder::Simulation);
        turn.wait_while(Holder::Simulation);
    }
}
