//! Asks the upstreams for a narinfo.

use std::sync::Arc;
use std::time::{Duration, Instant};

use narval_client::clock;
use narval_nix::{HashPart, StorePath};

use super::answer::Unavailable;
use super::limits::ABSENT_FOR;
use super::race::trace::{self, Happened};
use super::race::{Pace, race};
use super::remote::Remote;
use super::shared::Shared;
use super::shared::known::{Known, wrong_name};
use super::shared::question::{NoAnswer, PATIENCE, Patience, Question};
use super::standing::health::Standing;
use super::standing::presence::Says;

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
            let _ = self.ask_once(hash_part, Patience::Client);
        }
    }

    pub(super) fn lookup(&self, hash_part: &HashPart, patience: Patience) -> Result<Option<Arc<Known>>, NoAnswer> {
        if let Some(known) = self.known(hash_part) {
            return Ok(Some(known));
        }
        if self.is_absent(hash_part.as_str()) {
            return Ok(None);
        }
        let _permit = self.waiting.take().ok_or_else(|| NoAnswer::Busy(Self::busy()))?;
        self.ask_once(*hash_part, patience).map_err(NoAnswer::Upstreams)
    }

    /// Queries the upstreams, or waits for the thread that does.
    fn ask_once(&self, hash_part: HashPart, patience: Patience) -> Result<Option<Arc<Known>>, Unavailable> {
        let (question, is_ours) = {
            let mut asking = self.asking.lock();
            match asking.get(&(hash_part, patience)) {
                Some(question) => (Arc::clone(question), false),
                None => {
                    let question = Arc::new(Question::default());
                    asking.insert((hash_part, patience), Arc::clone(&question));
                    (question, true)
                }
            }
        };
        if !is_ours {
            return question.wait();
        }
        let ask = || self.traces.record(hash_part, false, || self.ask(hash_part, patience), trace::end_of);
        let answer = question.ask(ask);
        self.asking.lock().remove(&(hash_part, patience));
        answer
    }

    fn ask(&self, hash_part: HashPart, patience: Patience) -> Result<Option<Arc<Known>>, Unavailable> {
        let within = match patience {
            Patience::Client => self.absent_after(),
            Patience::Push => PATIENCE,
        };
        let pace = Pace { path: Some(hash_part), ..Pace::ranked("narinfo", within) };
        let all = self.remotes_for(&hash_part);
        let mut remotes = all.clone();
        // A push waits for the answer itself.
        if patience == Patience::Client {
            let checked_by = pace.begun + pace.all_after;
            remotes.retain(|remote| !self.lacks(remote, &hash_part, checked_by));
        }
        let asked = race(&remotes, &self.hedges, pace, move |remote| remote.narinfo(hash_part));
        let asked = match asked {
            Err(unavailable) => return self.near_narinfo(hash_part).map(Some).ok_or(unavailable),
            Ok(asked) => asked,
        };
        let Some((remote, info)) = asked else {
            // What a filter says holds for this moment.
            if remotes.len() == all.len() {
                self.note_absent(hash_part.as_str());
            }
            return Ok(None);
        };
        let known = self.remember(info, &remote).map_err(|error| {
            tracing::error!("{error}");
            Unavailable::new(5, error.to_string())
        })?;
        self.keep(&known);
        self.references_ahead(&known.info);
        Ok(Some(known))
    }

    /// Whether an upstream does not have a path, as far as its presence filter says so for certain, or is made to say so by then.
    fn lacks(&self, remote: &Arc<Remote>, hash_part: &HashPart, by: Instant) -> bool {
        let within = by.saturating_duration_since(clock::instant());
        let mut says = remote.presence_of(hash_part);
        if says == Says::WasAbsent && !within.is_zero() && remote.standing() == Standing::Good {
            remote.presence.check(within, |check| {
                let check = Arc::new(check);
                let ask = move |remote: &Arc<Remote>| remote.check_presence(&check);
                if race(std::slice::from_ref(remote), &self.hedges, Pace::ranked("changes of its filter", within), ask)
                    .is_err()
                {
                    remote.presence.gives_up();
                }
            });
            says = remote.presence_of(hash_part);
        }
        if says == Says::Absent {
            remote.counts.filtered();
            trace::now(remote, "narinfo", Happened::Filtered);
        }
        says == Says::Absent
    }

    /// Remembers the names of paths that some upstream is not asked for: a client asks for a hash part alone.
    pub(super) fn learn_names<'a>(&self, paths: impl IntoIterator<Item = &'a StorePath>) {
        let remotes = self.remotes();
        if remotes.iter().any(|remote| remote.skips_any()) {
            let skipped = |path: &&StorePath| remotes.iter().any(|remote| remote.skips(path.name()));
            for path in paths.into_iter().filter(skipped) {
                self.names.insert(path.hash_part(), path.name().into());
            }
        }
    }

    /// The upstreams that may have a path, and may be asked for it. One that lately had a wrong NAR for it, or none, is left out.
    pub(super) fn remotes_for(&self, hash_part: &HashPart) -> Vec<Arc<Remote>> {
        let name = self.names.get(hash_part);
        let may_have = |remote: &&Arc<Remote>| {
            !self.is_absent(&wrong_name(remote, hash_part)) && !name.as_ref().is_some_and(|name| remote.skips(name))
        };
        self.remotes().iter().filter(may_have).cloned().collect()
    }

    pub(super) fn absent_after(&self) -> Duration {
        self.deadline.read().absent_after
    }
}
