//! The nodes that share their disk caches, as this node has last read them: a snapshot, which readers take without a lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use narval_client::Url;
use narval_nix::Sha256;

use super::rendezvous::{score, weighted};
use narval_client::clock;

/// How long a node that cannot be reached is not asked again.
const GONE_FOR: Duration = Duration::from_secs(5);

/// How long a node that has sent wrong bytes is not asked again.
const DISTRUSTED_FOR: Duration = Duration::from_secs(60);

/// The maximum number of other nodes. Further ones are ignored.
pub(crate) const MEMBERS_MAX: usize = 256;

/// Another node.
#[derive(Debug)]
pub(crate) struct Member {
    pub(super) id: String,
    pub(super) url: Url,
    /// Until when it is not asked, in milliseconds of [`clock::elapsed`]; 0 if it may be.
    gone_until: AtomicU64,
}

/// Who keeps a NAR.
#[derive(Debug)]
pub(crate) enum Holder {
    /// This node.
    Here,
    /// Another node. `is_next`: if that one is gone, it is this node.
    Other { member: Arc<Member>, is_next: bool },
}

/// What the database says of a node.
#[derive(Debug, Clone)]
pub(crate) struct NodeRow {
    pub(crate) id: String,
    /// Its address.
    pub(crate) url: String,
    /// The size of its disk cache.
    pub(crate) weight: u64,
}

/// The nodes.
#[derive(Debug)]
pub(crate) struct Members {
    own: String,
    /// The size of this node's disk cache.
    weight: u64,
    /// The other nodes, with the sizes of theirs.
    others: ArcSwap<Vec<(Arc<Member>, u64)>>,
}

impl Members {
    /// No other nodes, and this one with its id and the size of its disk cache.
    pub(crate) fn new(own: String, weight: u64) -> Self {
        Self { own, weight, others: ArcSwap::default() }
    }

    /// The id of this node.
    #[cfg_attr(not(feature = "postgres"), expect(dead_code, reason = "the database has the nodes"))]
    pub(crate) fn own_id(&self) -> &str {
        &self.own
    }

    /// The size of this node's disk cache.
    #[cfg_attr(not(feature = "postgres"), expect(dead_code, reason = "the database has the nodes"))]
    pub(crate) fn own_weight(&self) -> u64 {
        self.weight
    }

    /// The number of nodes, with this one.
    pub(crate) fn count(&self) -> usize {
        1 + self.others.load().len()
    }

    /// Sets the other nodes. Those with addresses at which none can be asked are left out.
    #[cfg_attr(not(feature = "postgres"), expect(dead_code, reason = "the database has the nodes"))]
    pub(crate) fn set_others(&self, rows: &[NodeRow]) {
        let before = self.others.load();
        let member = |NodeRow { id, url, weight }: &NodeRow| {
            let url = Url::parse(url).ok().filter(|url| super::refused(url).is_none())?;
            // What is known of a node stays known.
            let mut known = before.iter().map(|(known, _)| known);
            let known = known.find(|known| known.id == *id && known.url.to_string() == url.to_string());
            let new = || Arc::new(Member { id: id.clone(), url, gone_until: AtomicU64::new(0) });
            Some((known.cloned().unwrap_or_else(new), *weight))
        };
        let members: Vec<_> =
            rows.iter().filter(|row| row.id != self.own).take(MEMBERS_MAX).filter_map(member).collect();
        let ids = |members: &[(Arc<Member>, u64)]| members.iter().map(|(one, _)| one.id.clone()).collect::<Vec<_>>();
        if ids(&before) != ids(&members) {
            tracing::info!("this node shares its disk cache with {} others", members.len());
        }
        self.others.store(Arc::new(members));
    }

    /// Who keeps a NAR, of the nodes that can be reached as far as this one knows.
    ///
    /// A node is asked only by nodes with lower scores, so no two nodes ask each other for the same NAR.
    pub(crate) fn holder(&self, file_hash: &Sha256) -> Holder {
        let others = self.others.load();
        let score = |id, weight| weighted(score(id, file_hash), weight);
        let own = (score(&self.own, self.weight), self.own.as_str());
        let scored = others.iter();
        let scored = scored.map(|(member, weight)| ((score(&member.id, *weight), member.id.as_str()), member));
        let mut above: Vec<_> = scored.filter(|(score, _)| *score > own).collect();
        above.sort_by(|(one, _), (other, _)| other.cmp(one));
        let mut above = above.into_iter().map(|(_, member)| member);
        match above.find(|member| member.may_ask()) {
            Some(member) => {
                let is_next = !above.any(|member| !member.is_gone());
                Holder::Other { member: Arc::clone(member), is_next }
            }
            None => Holder::Here,
        }
    }
}

fn now_ms() -> u64 {
    u64::try_from(clock::elapsed().as_millis()).unwrap_or(u64::MAX)
}

impl Member {
    fn is_gone(&self) -> bool {
        now_ms() < self.gone_until.load(Ordering::Acquire)
    }

    /// Whether to ask it. After it was gone for a while, one caller tries, and the others wait for its result.
    fn may_ask(&self) -> bool {
        let (until, now) = (self.gone_until.load(Ordering::Acquire), now_ms());
        if until == 0 {
            return true;
        }
        let again = after(now, GONE_FOR);
        now >= until && self.gone_until.compare_exchange(until, again, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// It has answered.
    pub(super) fn answered(&self) {
        self.gone_until.store(0, Ordering::Release);
    }

    /// It cannot be reached.
    pub(super) fn set_unavailable(&self) {
        self.gone_until.fetch_max(after(now_ms(), GONE_FOR), Ordering::AcqRel);
    }

    /// It has sent wrong bytes.
    pub(super) fn is_wrong(&self) {
        self.gone_until.fetch_max(after(now_ms(), DISTRUSTED_FOR), Ordering::AcqRel);
    }
}

fn after(now: u64, duration: Duration) -> u64 {
    now.saturating_add(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const WEIGHT: u64 = 20_000_000_000;

    fn row(id: &str, url: &str, weight: u64) -> NodeRow {
        NodeRow { id: id.to_owned(), url: url.to_owned(), weight }
    }

    fn rows(ids: &[&str]) -> Vec<NodeRow> {
        ids.iter().map(|id| row(id, &format!("http://{id}.example.org:5000"), WEIGHT)).collect()
    }

    fn members(own: &str, all: &[&str]) -> Members {
        let members = Members::new(own.to_owned(), WEIGHT);
        members.set_others(&rows(all));
        members
    }

    fn held_by(members: &Members, nar: u32) -> String {
        match members.holder(&Sha256::of(&nar.to_le_bytes())) {
            Holder::Here => members.own.clone(),
            Holder::Other { member, .. } => member.id.clone(),
        }
    }

    #[test]
    fn all_nodes_agree_on_who_keeps_a_nar_and_who_is_next() {
        let all = ["a", "b", "c", "d"];
        let nodes = all.map(|own| members(own, &all));
        assert!(nodes.iter().all(|node| node.count() == 4));
        for nar in 0..200 {
            let holder = held_by(&nodes[0], nar);
            assert!(nodes.iter().all(|node| held_by(node, nar) == holder));
            let is_next = |node: &Members| {
                matches!(node.holder(&Sha256::of(&nar.to_le_bytes())), Holder::Other { is_next: true, .. })
            };
            assert_eq!(nodes.iter().filter(|node| is_next(node)).count(), 1);
            let next = nodes.iter().find(|node| is_next(node)).unwrap();
            let without: Vec<&str> = all.into_iter().filter(|id| *id != holder).collect();
            assert_eq!(held_by(&members(&next.own, &without), nar), next.own, "without the first, it is the next");
        }
    }

    #[test]
    fn a_node_that_is_gone_is_not_asked_for_a_while() {
        let node = members("a", &["a", "b"]);
        let nar = (0..).find(|nar| held_by(&node, *nar) == "b").unwrap();
        let Holder::Other { member, .. } = node.holder(&Sha256::of(&u32::to_le_bytes(nar))) else { unreachable!() };
        member.set_unavailable();
        assert_eq!(held_by(&node, nar), "a");
        // Rows that are read again change nothing.
        node.set_others(&rows(&["a", "b"]));
        assert_eq!(held_by(&node, nar), "a");
        member.gone_until.store(1, Ordering::Release);
        while now_ms() < 1 {
            std::thread::yield_now();
        }
        assert_eq!([held_by(&node, nar), held_by(&node, nar)], ["b", "a"], "one tries, the others do not wait for it");
        member.answered();
        assert_eq!(held_by(&node, nar), "b");
        // At another address, it is tried at once.
        member.set_unavailable();
        node.set_others(&[row("b", "http://10.0.0.9:5000", WEIGHT)]);
        assert_eq!(held_by(&node, nar), "b");
    }

    #[test]
    fn addresses_that_cannot_be_asked_are_left_out() {
        let node = members("a", &[]);
        let rows = ["", "nowhere", "s3://bucket", "http://user:password@b", "file:///etc"];
        node.set_others(&rows.map(|url| row(&format!("node at {url}"), url, WEIGHT)));
        assert_eq!(node.count(), 1);
    }

    #[test]
    fn weights_count() {
        let all = ["a", "b", "c"];
        let node = members("a", &all);
        let held = |node: &Members| (0..300).map(|nar| held_by(node, nar)).collect::<Vec<_>>();
        let mut of_two = rows(&all);
        of_two[1].weight = 10 * WEIGHT;
        let (known, of_b) = (0..)
            .find(|nar| held_by(&node, *nar) == "b")
            .map(|nar| (node.holder(&Sha256::of(&u32::to_le_bytes(nar))), nar))
            .unwrap();
        node.set_others(&of_two);
        let count = held(&node).iter().filter(|id| *id == "b").count();
        assert!((220..280).contains(&count), "b keeps {count} of 300, not 10 of 12 parts");
        // It is the same node as before.
        let Holder::Other { member, .. } = known else { unreachable!() };
        member.set_unavailable();
        assert_ne!(held_by(&node, of_b), "b");
        // All agree.
        let b = Members::new("b".to_owned(), 10 * WEIGHT);
        b.set_others(&of_two);
        member.answered();
        assert_eq!(held(&b), held(&node));
    }
}
