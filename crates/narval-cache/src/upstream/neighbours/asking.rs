//! What is asked of neighbours.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use narval_client::{Method, Request};
use narval_nix::{Compression, HashPart, NarInfo};

use super::list::{Coming, TRIED_MAX, rank};
use super::offers::Offer;
use crate::upstream::known::Known;
use crate::upstream::nar::name::NarName;
use crate::upstream::race::{Pace, race};
use crate::upstream::remote::Remote;
use crate::upstream::shared::Shared;

/// A NAR that neighbours have, or fetch.
pub(in crate::upstream) struct Near {
    pub(in crate::upstream) remotes: Vec<Arc<Remote>>,
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
                Offer::Coming(rank) => coming.push((rank, remote)),
                Offer::Nothing => {}
            }
        }
        let mut sent = info.clone();
        if plain {
            (sent.compression, sent.file_hash, sent.file_size) = (Compression::None, None, None);
        }
        sent.url = format!("nar/{name}");
        let (remotes, patience) = match here.is_empty() {
            false => (here, self.neighbours.patience()),
            // All who want it follow the same one.
            true => {
                coming.sort_by_key(|(rank, _)| std::cmp::Reverse(*rank));
                (coming.into_iter().map(|(_, remote)| remote).collect(), self.absent_after())
            }
        };
        let remotes: Vec<_> = remotes.into_iter().take(TRIED_MAX).collect();
        (!remotes.is_empty()).then(|| Near { remotes, info: Arc::new(sent), patience })
    }

    /// Asks all of them at once. Those that do not answer are forgotten; once one has it, the others need not answer.
    fn ask_all(&self, neighbours: &[Arc<Remote>], name: &NarName) -> Vec<(Arc<Remote>, Offer)> {
        let (id, deadline) = (self.neighbours.id.load(Ordering::Acquire), Instant::now() + self.neighbours.patience());
        let (sender, receiver) = mpsc::channel();
        let mut waits: Vec<_> = neighbours.iter().map(|remote| Some(Arc::clone(remote))).collect();
        for (at, remote) in neighbours.iter().enumerate() {
            let Some(permit) = remote.asked.take() else { continue };
            let (remote, name, sender) = (Arc::clone(remote), name.clone(), sender.clone());
            let ask = move || {
                let _permit = permit;
                let began = Instant::now();
                let offer = remote.offers(&name, id);
                match offer {
                    Some(_) => remote.health.answered(true, began.elapsed(), true),
                    None => {
                        remote.goes();
                    }
                }
                // The receiver is gone if the answer came too late. Then it may be asked again.
                if sender.send((at, offer)).is_err() {
                    remote.owes(false);
                }
            };
            if let Err(error) = thread::Builder::new().name("ask-neighbour".into()).spawn(ask) {
                tracing::error!("neighbours: no thread to ask one: {error}");
            }
        }
        drop(sender);
        let mut answers = Vec::new();
        loop {
            match receiver.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok((at, offer)) => {
                    let Some(remote) = waits.get_mut(at).and_then(Option::take) else { continue };
                    answers.extend(offer.map(|offer| (remote, offer)));
                    if offer == Some(Offer::Here) {
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
        for _ in 0..TRIED_MAX {
            let neighbours = self.neighbours.ready();
            if neighbours.is_empty() {
                return None;
            }
            let pace = Pace {
                all_after: Duration::ZERO,
                ..Pace::ranked("narinfo of a neighbour", self.neighbours.patience())
            };
            let asked = race(&neighbours, &self.hedges, pace, move |remote| remote.narinfo(hash_part));
            let (neighbour, info) = asked.ok().flatten()?;
            let trusted = self.remotes().iter().find_map(|remote| Some((remote.signed(&info)?, Arc::clone(remote))));
            match trusted {
                Some((info, remote)) if !remote.skips(info.path.name()) => {
                    let known = self.remember(info, &remote);
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
    /// Asks a neighbour for a NAR; `None` if it does not answer as it should.
    fn offers(&self, name: &NarName, id: u64) -> Option<Offer> {
        let url = self.url().child(&format!("nar/{name}?by={id:016x}")).ok()?;
        let request = Request { method: Method::Head, ..Request::get(&url) };
        let answer = self.cache.client().send_once(&request).ok()?;
        match answer.head.status {
            200 => Some(Offer::Here),
            202 => {
                let by = answer.head.field("narval-neighbour")?;
                let by = u64::from_str_radix(by, 16).ok().filter(|_| by.len() == 16)?;
                Some(Offer::Coming(rank(by, &name.file)))
            }
            // One that has enough to do says 503.
            404 | 503 => Some(Offer::Nothing),
            _ => None,
        }
    }
}
