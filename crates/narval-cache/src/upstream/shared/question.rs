//! A question that is put to the upstreams once, whoever asks it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::known::Known;
use crate::upstream::answer::Unavailable;

/// The longest wait for a narinfo that another thread requests, and for the start of a NAR.
pub(in crate::upstream) const PATIENCE: Duration = Duration::from_secs(60);

/// For whom the upstreams are asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::upstream) enum Patience {
    /// A client, who goes on without what does not come soon.
    Client,
    /// A push or a page: upstreams that are slow are waited for.
    Push,
}

/// Why it is not known whether an upstream has a path.
pub(in crate::upstream) enum NoAnswer {
    /// Too many threads wait for upstreams already.
    Busy(Unavailable),
    /// Upstreams have failed, or are late.
    Upstreams(Unavailable),
}

impl From<NoAnswer> for Unavailable {
    fn from((NoAnswer::Busy(why) | NoAnswer::Upstreams(why)): NoAnswer) -> Self {
        why
    }
}

/// What the upstreams say.
type Answer = Result<Option<Arc<Known>>, Unavailable>;

/// A narinfo that a thread is requesting.
#[derive(Default)]
pub(in crate::upstream) struct Question {
    answer: Mutex<Option<Answer>>,
    answered: Condvar,
}

impl Question {
    /// Asks, for all who wait.
    pub(in crate::upstream) fn ask(&self, ask: impl FnOnce() -> Answer) -> Answer {
        // A panic must not leave the others waiting, and the question open.
        let answer = catch_unwind(AssertUnwindSafe(ask))
            .unwrap_or_else(|_| Err(Unavailable::new(5, "a panic, which was reported")));
        *self.answer.lock() = Some(answer.clone());
        self.answered.notify_all();
        answer
    }

    /// Waits for the thread that asks.
    pub(in crate::upstream) fn wait(&self) -> Answer {
        let mut answer = self.answer.lock();
        self.answered.wait_while_for(&mut answer, |answer| answer.is_none(), PATIENCE);
        answer.clone().unwrap_or_else(|| Err(Unavailable::new(5, "they take too long")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_answer() {
        let question = Question::default();
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| question.wait());
            assert!(question.ask(|| panic!("a test")).is_err());
            assert!(waits.join().unwrap().is_err_and(|error| error.reason.contains("a panic")));
        });
    }
}
