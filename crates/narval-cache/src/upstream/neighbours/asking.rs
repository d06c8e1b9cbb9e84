//! What is asked of neighbours.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use narval_client::{Budget, Method, Request};
use narval_nix::{Compression, HashPart, NarInfo};

use super::offers::Offer;
use crate::upstream::answer::{Unavailable, UpstreamAnswer};
use crate::upstream::race::{Pace, race};
use crate::upstream::remote::Remote;
use crate::upstream::shared::Shared;
use crate::upstream::shared::known::Known;
use crate::upstream::shared::nar_name::NarName;
use crate::upstream::shared::neighbours::{Coming, TRIED_MAX, rank};
use crate::upstream::standing::nearby::Nearby;

/// The part of the time for which upstreams have been waited for that a client waits for a narinfo of neighbours after that, all together: an answer
/// takes less than a second.
const NARINFO_WITHIN: u32 = 5;

/// A NAR that neighbours have, or that one of them fetches.
pub(in crate::upstream) struct Near {
    pub(in crate::upstream) remotes: Vec<Arc<Remote>>,
    name: NarName,
    /// Whether it is only coming to the one neighbour that has promised it.
    pub(in crate::upstream) is_coming: bool,
    /// What they send.
    pub(in crate::upstream) info: Arc<NarInfo>,
    /// How long they may be silent.
    pub(in crate::upstream) patience: Duration,
}

/// That a NAR is being fetched, as neighbours are told.
pub(in crate::upstream) struct Fetching<'a> {
    shared: &'a Shared,
    file: String,
}

impl Drop for Fetching<'_> {
    fn drop(&mut self) {
        self.shared.neighbours.set_coming(&self.file, None);
    }
}

impl Fetching<'_> {
    pub(in crate::upstream) fn comes(&self, coming: Coming) {
        self.shared.neighbours.set_coming(&self.file, Some(coming));
    }

    /// Whether a neighbour that ranks higher has asked for it while neighbours were asked: it did not want it yet when it was asked itself.
    pub(in crate::upstream) fn is_outbid(&self) -> bool {
        self.shared.neighbours.coming.lock().get(&self.file) == Some(&Coming::Outbid)
    }
}

impl Shared {
    /// Tells neighbours that a NAR is being fetched; `None` if there are none.
    pub(in crate::upstream) fn fetching(&self, info: &NarInfo, plain: bool) -> Option<Fetching<'_>> {
        if self.neighbours.id.load(Ordering::Acquire) == 0 {
            return None;
        }
        let file = if plain { NarName::plain(info).file } else { NarName::of(info).file };
        self.neighbours.set_coming(&file, Some(Coming::Wanted));
        Some(Fetching { shared: self, file })
    }

    /// The neighbours that have a NAR, or else the one that fetches it.
    pub(in crate::upstream) fn near(&self, info: &NarInfo, plain: bool) -> Option<Near> {
        let neighbours = self.neighbours.ready();
        if neighbours.is_empty() {
            return None;
        }
        let name = if plain { NarName::plain(info) } else { NarName::of(info) };
        let (mut here, mut coming) = (Vec::new(), Vec::new());
        for (remote, offer) in self.ask_all(&neighbours, &name) {
            match offer {
                Offer::Here => here.push(remote),
                Offer::Coming(rank) => coming.push(((true, rank), remote)),
                Offer::Wanted(rank) => coming.push(((false, rank), remote)),
                Offer::Nothing => {}
            }
        }
        let mut sent = info.clone();
        if plain {
            (sent.compression, sent.file_hash, sent.file_size) = (Compression::None, None, None);
        }
        sent.url = format!("nar/{name}");
        let is_coming = here.is_empty();
        let (remotes, patience) = match is_coming {
            false => (here.into_iter().take(TRIED_MAX).collect(), self.neighbours.patience()),
            // All who want it follow the same one.
            true => (vec![coming.into_iter().max_by_key(|(rank, _)| *rank)?.1], self.absent_after()),
        };
        Some(Near { remotes, name, is_coming, info: Arc::new(sent), patience })
    }

    /// Whether a neighbour that has sent nothing for a while is waited for: what comes through a slow line to one of them may be silent as long as it
    /// could be silent here. Only one that has kept a promise is believed, and it must say so again.
    pub(in crate::upstream) fn still_comes(&self, near: &Near, remote: &Remote) -> bool {
        let is_proven = remote.nearby.as_ref().is_some_and(Nearby::is_proven);
        let id = self.neighbours.id.load(Ordering::Acquire);
        is_proven
            && matches!(
                remote.offers(&near.name, id),
                UpstreamAnswer::Has(Offer::Here | Offer::Coming(_) | Offer::Wanted(_))
            )
    }

    /// Asks all of them at once. Those that do not answer are forgotten; once one has it, the others need not answer.
    fn ask_all(&self, neighbours: &[Arc<Remote>], name: &NarName) -> Vec<(Arc<Remote>, Offer)> {
        let (id, deadline) = (self.neighbours.id.load(Ordering::Acquire), Instant::now() + self.neighbours.patience());
        let (sender, receiver) = mpsc::channel();
        let mut waits: Vec<_> = neighbours.iter().map(|remote| Some(Arc::clone(remote))).collect();
        for (at, remote) in neighbours.iter().enumerate() {
            let (asked, name, sender) = (Arc::clone(remote), name.clone(), sender.clone());
            let answer = move |answer| {
                // The receiver is gone if the answer came too late. Then it may be asked again.
                if sender.send((at, answer)).is_err() {
                    asked.owes(false);
                }
            };
            // One that has not answered many questions gets no more, and owes no answer to this one.
            if remote.on_a_thread(move |remote| remote.offers(&name, id), answer).is_err() {
                waits.get_mut(at).and_then(Option::take);
            }
        }
        drop(sender);
        let mut answers = Vec::new();
        loop {
            match receiver.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok((at, answer)) => {
                    let (Some(remote), UpstreamAnswer::Has(offer)) = (waits.get_mut(at).and_then(Option::take), answer)
                    else {
                        continue;
                    };
                    answers.push((remote, offer));
                    if offer == Offer::Here {
                        return answers;
                    }
                }
                Err(mpsc::RecvTimeoutError::Disconnected) => return answers,
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    waits.iter().flatten().for_each(|remote| remote.owes(true));
                    // Those that have answered in this moment.
                    receiver.try_iter().for_each(|(at, _)| {
                        waits.get(at).into_iter().flatten().for_each(|remote| remote.owes(false));
                    });
                    return answers;
                }
            }
        }
    }

    /// The narinfo of a path, while no upstream says whether it has it: a neighbour's, if a key of an upstream has signed it.
    pub(in crate::upstream) fn near_narinfo(&self, hash_part: HashPart) -> Option<Arc<Known>> {
        let until = Instant::now() + self.absent_after() / NARINFO_WITHIN;
        for _ in 0..TRIED_MAX {
            let neighbours = self.neighbours.ready();
            let within = self.neighbours.patience().min(until.saturating_duration_since(Instant::now()));
            if neighbours.is_empty() || within.is_zero() {
                return None;
            }
            let pace = Pace { all_after: Duration::ZERO, ..Pace::ranked("narinfo of a neighbour", within) };
            // They are no load on upstreams.
            let beside = Budget::new(0.0);
            let asked = race(&neighbours, &beside, pace, move |remote| remote.narinfo(hash_part));
            let (neighbour, info) = asked.ok().flatten()?;
            let trusted = self.remotes().iter().find_map(|remote| Some((remote.signed(&info)?, Arc::clone(remote))));
            match trusted {
                Some((info, remote)) if !remote.skips(info.path.name()) => {
                    let known = self.remember(info, &remote).inspect_err(|error| tracing::error!("{error}")).ok()?;
                    self.keep(&known);
                    return Some(known);
                }
                _ => {
                    tracing::warn!("neighbour {}: {} is signed by no key of an upstream", neighbour.url(), info.path);
                    neighbour.goes();
                }
            }
        }
        None
    }
}

impl Remote {
    /// Asks a neighbour whether it has a NAR, or fetches it. One that does not answer as it should is forgotten.
    fn offers(&self, name: &NarName, id: u64) -> UpstreamAnswer<Offer> {
        let began = Instant::now();
        match self.offered(name, id) {
            Some(offer) => {
                self.health.answered(true, began.elapsed(), true);
                UpstreamAnswer::Has(offer)
            }
            None => {
                self.goes();
                UpstreamAnswer::Failed(Unavailable::new(5, format!("{} does not say what it has", self.url())))
            }
        }
    }

    fn offered(&self, name: &NarName, id: u64) -> Option<Offer> {
        let url = self.url().child(&format!("nar/{name}?by={id:016x}")).ok()?;
        let request = Request { method: Method::Head, ..Request::get(&url) };
        let answer = self.cache.client().send_once(&request).ok()?;
        match answer.head.status {
            200 => Some(Offer::Here),
            202 => {
                let (kind, by): (fn(u64) -> Offer, _) = match answer.head.field("narval-neighbour") {
                    Some(by) => (Offer::Coming, by),
                    None => (Offer::Wanted, answer.head.field("narval-wanted")?),
                };
                let by = u64::from_str_radix(by, 16).ok().filter(|_| by.len() == 16)?;
                Some(kind(rank(by, &name.file)))
            }
            // One that has enough to do says 503.
            404 | 503 => Some(Offer::Nothing),
            _ => None,
        }
    }
}
