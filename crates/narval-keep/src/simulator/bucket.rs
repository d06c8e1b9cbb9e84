//! The object store.

use std::time::{Duration, UNIX_EPOCH};

use narval_client::{HttpError, Valid};

use super::rule::{Rule, holds};
use super::state::{Effect, Phase, SKEW_MAX, State};
use super::task::{Dead, Task, current};
use narval_client::clock::Virtual;
use narval_s3::{Object, Simulated};

/// How long a request can be on its way that is not signed for a short time.
const ON_ITS_WAY_MAX: u64 = 60_000;

/// For how long a signature of AWS is valid at most, in milliseconds.
const EVER: u64 = 15 * 60_000;

/// How long a request waits for an answer.
const STALLED_AFTER: Duration = Duration::from_secs(20);

pub(crate) struct Bucket;

fn refused(status: u16) -> HttpError {
    let is_retryable = status >= 500;
    HttpError::Bucket { status, message: "simulated".to_owned(), retry_after: None, is_retryable }
}

/// Whether a request has taken effect is unknown.
fn unanswered() -> HttpError {
    HttpError::Stalled { what: "a simulated answer", limit: STALLED_AFTER }
}

impl From<Dead> for HttpError {
    fn from(_: Dead) -> Self {
        refused(0)
    }
}

impl Task {
    /// A request that changes an object. It can be refused or lost, and it can take effect when nobody waits for it any more.
    fn change(&self, effect: Effect, valid: Option<Valid>) -> Result<(), HttpError> {
        // It is signed at once, and sent later.
        let signed = self.sim.state.lock().unwrap().now();
        self.step()?;
        let mut state = self.sim.state.lock().unwrap();
        if state.phase == Phase::Quiet {
            state.take_effect(effect);
            return Ok(());
        }
        if state.is_elsewhere() {
            return Err(refused(404));
        }
        let now = state.now();
        // Until when the store takes it, by the true time.
        let until = match valid {
            Some(valid) if holds(Rule::Valid) => {
                let from = valid.from.duration_since(UNIX_EPOCH).unwrap().as_millis() as u64;
                // A store that looked at more than the end would refuse what a clock that nobody has set dates.
                let from = from.saturating_add_signed(-state.nodes[self.node].wrong_by);
                from + u64::from(valid.seconds) * 1000 + SKEW_MAX - state.skew_of_store
            }
            Some(_) => signed + EVER,
            None => signed + ON_ITS_WAY_MAX,
        };
        if until < now {
            state.note("too late", String::new);
            return Err(refused(403));
        }
        let chaos = state.chaos;
        match state.rng.below(160) / chaos {
            0 => {
                state.note("put refused", String::new);
                return Err(refused(503));
            }
            1 => state.take_effect(effect),
            2 => state.note("put lost", String::new),
            3 | 4 => {
                let due = now + state.rng.below(until - now + 1);
                state.note("put delayed", || format!("by {} ms", due - now));
                state.in_flight.push((due, effect));
            }
            _ => {
                state.take_effect(effect);
                drop(state);
                return Ok(self.may_die()?);
            }
        }
        // The connection breaks at once, or nothing is heard of it for a while.
        let waits = state.rng.below(2) == 0;
        drop(state);
        if waits {
            self.sleep(STALLED_AFTER);
        }
        self.step()?;
        Err(unanswered())
    }

    fn remove_object(&self, key: &str, valid: Valid) -> Result<(), HttpError> {
        let sent = self.sim.state.lock().unwrap().now();
        self.change(Effect::Remove(key.to_owned(), sent), Some(valid))?;
        let mut state = self.sim.state.lock().unwrap();
        // The next one would be sent right after it.
        if state.phase == Phase::Running && state.has_accidents && state.rng.once_in(8) {
            state.suspend(self.node);
            drop(state);
            self.step()?;
        }
        Ok(())
    }

    fn ask<T>(&self, answer: impl FnOnce(&State) -> T) -> Result<T, HttpError> {
        self.step()?;
        let mut state = self.sim.state.lock().unwrap();
        let chaos = state.chaos;
        if state.phase == Phase::Running && state.rng.below(200) < chaos {
            return Err(refused(503));
        }
        Ok(answer(&state))
    }
}

impl Simulated for Bucket {
    fn remembers_unanswered(&self) -> bool {
        holds(Rule::Answered)
    }

    fn put(&self, key: &str, bytes: &[u8], valid: Option<Valid>) -> Result<(), HttpError> {
        current().ok_or_else(|| refused(0))?.change(Effect::Put(key.to_owned(), bytes.to_vec()), valid)
    }

    fn remove(&self, key: &str, valid: Valid) -> Result<(), HttpError> {
        current().ok_or_else(|| refused(0))?.remove_object(key, valid)
    }

    fn len(&self, key: &str) -> Result<Option<u64>, HttpError> {
        let task = current().ok_or_else(|| refused(0))?;
        let (len, is_elsewhere) =
            task.ask(|state| (state.objects.get(key).map(|bytes| bytes.len() as u64), state.is_elsewhere()))?;
        if len.is_some() && is_elsewhere {
            task.is_misled.set(true);
            task.sim.state.lock().unwrap().note("misled", || key.to_owned());
        }
        Ok(len.filter(|_| !is_elsewhere))
    }

    fn read(&self, key: &str) -> Result<Option<Vec<u8>>, HttpError> {
        let task = current().ok_or_else(|| refused(0))?;
        let read = task.ask(|state| state.objects.get(key).filter(|_| !state.is_elsewhere()).cloned())?;
        if read.is_some() {
            task.is_misled.set(false);
        }
        Ok(read)
    }

    fn list(&self, prefix: &str, _: bool, visit: &mut dyn FnMut(Object)) -> Result<Vec<String>, HttpError> {
        let found: Option<Vec<Object>> = current().ok_or_else(|| refused(0))?.ask(|state| {
            if state.is_elsewhere() {
                return None;
            }
            let below = state.objects.iter().filter(|(key, _)| key.starts_with(prefix));
            let modified = |key: &str| state.modified.get(key).copied();
            let object = |(key, bytes): (&String, &Vec<u8>)| Object {
                key: key.clone(),
                len: bytes.len() as u64,
                modified: modified(key),
            };
            Some(below.map(object).collect())
        })?;
        found.ok_or_else(|| refused(404))?.into_iter().for_each(visit);
        Ok(Vec::new())
    }
}
