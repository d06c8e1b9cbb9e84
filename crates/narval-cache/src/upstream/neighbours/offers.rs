//! What neighbours are told, and get: what is here, and nothing else. No upstream is asked for them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use narval_nix::{HashPart, NarInfo};

use crate::upstream::answer::NarAnswer;
use crate::upstream::lookup::Upstreams;
use crate::upstream::shared::Shared;
use crate::upstream::shared::known::Known;
use crate::upstream::shared::nar_name::NarName;
use crate::upstream::shared::neighbours::{Coming, greet, rank};
use crate::upstream::standing::neighbour_counts::NeighbourCounts;
use narval_files::GrowingFile;

/// What a machine says of a NAR that a neighbour wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offer {
    /// It is here.
    Here,
    /// It is being fetched from an upstream, by the machine of this name or rank.
    Coming(u64),
    /// The machine of this name or rank wants it, too, and ranks higher: it will probably fetch it.
    Wanted(u64),
    /// Neither.
    Nothing,
}

impl Upstreams {
    /// Sets the neighbours, the name of this machine among them (0 if there shall be none), and how long a question to them may take where machines
    /// are not busy.
    pub fn set_neighbours(&self, id: u64, patience: Duration, addresses: &[SocketAddr]) {
        self.shared.neighbours.set(id, patience, addresses, &self.shared.store_dir).iter().for_each(greet);
    }

    /// The narinfo of a path, for a neighbour: as it came from the upstream, if it is kept here.
    pub fn offered_narinfo(&self, hash_part: &HashPart) -> Option<String> {
        let known = self.shared.known(hash_part)?;
        self.shared.is_offered(&known).then(|| known.info.render(&self.shared.store_dir))
    }

    /// What a neighbour of this name is told of a NAR, by its name below `nar/`.
    pub fn offer(&self, name: &str, by: u64) -> Offer {
        let offer = self.offer_of(name, by);
        if offer != Offer::Nothing {
            self.shared.neighbours.counts.offered();
        }
        offer
    }

    /// What has passed between neighbours, to be counted by who answers them.
    pub fn neighbour_counts(&self) -> &Arc<NeighbourCounts> {
        &self.shared.neighbours.counts
    }

    fn offer_of(&self, name: &str, by: u64) -> Offer {
        let shared = &self.shared;
        let Some(known) = shared.offered(name) else { return Offer::Nothing };
        if shared.kept.has(&format!("nar/{}", known.name.file)) {
            return Offer::Here;
        }
        let own = shared.neighbours.id.load(Ordering::Acquire);
        let mut all = shared.neighbours.coming.lock();
        let Some(coming) = all.get_mut(&known.name.file) else { return Offer::Nothing };
        match coming {
            Coming::Upstream => Offer::Coming(own),
            Coming::Near => Offer::Nothing,
            Coming::Wanted | Coming::Outbid if rank(own, &known.name.file) > rank(by, &known.name.file) => {
                Offer::Wanted(own)
            }
            Coming::Wanted | Coming::Outbid => {
                *coming = Coming::Outbid;
                Offer::Nothing
            }
        }
    }

    /// A NAR for a neighbour, by its name below `nar/`: one that is here, or is being fetched from an upstream.
    pub fn offered_nar(&self, name: &str) -> Option<NarAnswer> {
        let shared = &self.shared;
        let known = shared.offered(name)?;
        let kept = format!("nar/{}", known.name.file);
        let fills = shared.running.lock();
        match fills.get(&kept).and_then(GrowingFile::waits) {
            Some(waits) => Some(NarAnswer::Growing(waits, known.length())),
            None => shared.kept.get(&kept).map(|(file, length)| NarAnswer::File(file, length)),
        }
    }
}

impl Shared {
    fn offered(&self, name: &str) -> Option<Arc<Known>> {
        let known = self.known(&NarName::hash_part(name)?)?;
        self.is_offered(&known).then_some(known)?.named(name)
    }

    /// Whether neighbours may have a path: a key must have signed it, and its upstream must be one that anybody can read.
    fn is_offered(&self, known: &Known) -> bool {
        let is_signed = |info: &NarInfo| known.remote.signed(info).is_some();
        known.remote.is_offered && is_signed(&known.info)
    }
}
