//! Asks the upstreams for a narinfo.

use std::sync::Arc;
use std::time::Instant;

use narval_client::HttpError;
use narval_nix::HashPart;
use parking_lot::{Condvar, Mutex};

use super::known::{Known, wrong_name};
use super::lookup::{PATIENCE, Shared};
use super::{ABSENT_FOR, Unavailable};
use crate::CacheError;

/// A narinfo that a thread is requesting.
#[derive(Default)]
pub(super) struct Question {
    answer: Mutex<Option<Result<Option<Arc<Known>>, Unavailable>>>,
    answered: Condvar,
}

impl Shared {
    pub(super) fn busy() -> Unavailable {
        Unavailable::new(1, "too many requests are already waiting for them")
    }

    pub(super) fn is_absent(&self, what: &str) -> bool {
        self.absent.get(what).is_some_and(|since| since.elapsed() < ABSENT_FOR)
    }

    pub(super) fn note_absent(&self, what: &str) {
        self.absent.insert(what.into(), Instant::now());
    }

    /// Looks up a path that a client will probably request.
    pub(super) fn look_ahead(&self, hash_part: HashPart) {
        if self.known(&hash_part).is_none() && !self.is_absent(hash_part.as_str()) {
            // A client that requests it gets the error.
            let _ = self.ask_once(hash_part);
        }
    }

    pub(super) fn lookup(&self, hash_part: &HashPart) -> Result<Option<Arc<Known>>, Unavailable> {
        if let Some(known) = self.known(hash_part) {
            return Ok(Some(known));
        }
        if self.is_absent(hash_part.as_str()) {
            return Ok(None);
        }
        let _permit = self.waiting.take().ok_or_else(Self::busy)?;
        self.ask_once(*hash_part)
    }

    /// Queries the upstreams, or waits for the thread that does.
    pub(super) fn ask_once(&self, hash_part: HashPart) -> Result<Option<Arc<Known>>, Unavailable> {
        let (question, is_ours) = {
            let mut asking = self.asking.lock();
            match asking.get(&hash_part) {
                Some(question) => (Arc::clone(question), false),
                None => {
                    let question = Arc::new(Question::default());
                    asking.insert(hash_part, Arc::clone(&question));
                    (question, true)
                }
            }
        };
        if is_ours {
            let answer = self.ask(hash_part);
            self.asking.lock().remove(&hash_part);
            *question.answer.lock() = Some(answer.clone());
            question.answered.notify_all();
            return answer;
        }
        let mut answer = question.answer.lock();
        question.answered.wait_while_for(&mut answer, |answer| answer.is_none(), PATIENCE);
        answer.clone().unwrap_or_else(|| Err(Unavailable::new(5, "they take too long")))
    }

    pub(super) fn ask(&self, hash_part: HashPart) -> Result<Option<Arc<Known>>, Unavailable> {
        let mut failed = None;
        for remote in self.remotes().iter() {
            let url = remote.url();
            if self.is_absent(&wrong_name(remote, &hash_part)) {
                continue;
            }
            if remote.cache.breaker.is_open() {
                failed.get_or_insert_with(|| Unavailable::new(10, format!("{url} does not respond")));
                continue;
            }
            match remote.narinfo(hash_part) {
                Ok(Some(info)) => {
                    let known = self.remember(info, remote);
                    self.keep(&known);
                    self.ahead.references(&known.info);
                    return Ok(Some(known));
                }
                Ok(None) => {}
                // It leads elsewhere, which does not become better by asking again.
                Err(error @ CacheError::Fetch { source: HttpError::OutOfBounds { .. }, .. }) => {
                    tracing::warn!("upstream {error}");
                }
                // Neither says a page of a proxy, or another invalid answer, that it does not have the path.
                Err(error @ (CacheError::Fetch { .. } | CacheError::NarInfo { .. })) => {
                    tracing::warn!("upstream {error}");
                    failed.get_or_insert_with(|| Unavailable::new(5, error.to_string()));
                }
                // What it has is not accepted.
                Err(error) => tracing::warn!("upstream {error}"),
            }
        }
        match failed {
            Some(unavailable) => Err(unavailable),
            None => {
                self.note_absent(hash_part.as_str());
                Ok(None)
            }
        }
    }
}
