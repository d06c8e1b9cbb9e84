//! What the tasks of a node do: clients push, ask, read, pin and delete; the node itself publishes and collects.

use std::sync::LazyLock;
use std::time::Duration;

use narval_nix::{Compression, HashPart, NarInfo, Sha256, StoreDir, StorePath};

use super::node::{Node, Opened, open};
use crate::access::grant::Grant;
use crate::cache::Cache;
use crate::name::{NarFileName, NarTarget};
use crate::push::pending::WhichPending;
use crate::receive::{Begin, Stored};
use crate::records::pins::PinFor;
use crate::retention::{CollectOptions, UNFINISHED_GRACE};
use crate::simulator::state::{CACHES, Op, Phase};
use crate::simulator::task::Task;
use crate::tests::{TestPath, pusher};
use narval_client::clock::Virtual;

/// A file of a path's NAR, with the narinfo that names it.
struct Encoded {
    name: String,
    file: Vec<u8>,
    narinfo: Vec<u8>,
}

pub(super) struct Path {
    part: HashPart,
    pub(super) path: StorePath,
    references: Vec<usize>,
    /// The same NAR: uncompressed, and compressed in two ways.
    encoded: Vec<Encoded>,
}

pub(super) static PATHS: LazyLock<Vec<Path>> = LazyLock::new(|| {
    let references: [&[usize]; 8] = [&[], &[], &[], &[0], &[0, 1], &[3], &[3, 4], &[5, 2]];
    let mut paths: Vec<TestPath> = Vec::new();
    for (at, references) in references.iter().enumerate() {
        let references: Vec<TestPath> = references.iter().map(|at| paths[*at].clone()).collect();
        // Two have the same NAR.
        let contents = format!("contents of {}\n", if at == 2 { 1 } else { at }).repeat(50 + at);
        let references: Vec<&TestPath> = references.iter().collect();
        paths.push(TestPath::with_contents(&format!("path-{at}"), &references, contents.as_bytes()));
    }
    let encoded = |path: &TestPath, compression: Compression, file: Vec<u8>| {
        let hash = Sha256::of(&file);
        let name = NarFileName::new(hash, compression).to_string();
        let mut info = NarInfo::new(&path.info, format!("nar/{name}"), compression);
        (info.file_hash, info.file_size) = (Some(hash.into()), Some(file.len() as u64));
        Encoded { name, file, narinfo: info.render(&StoreDir::default()).into_bytes() }
    };
    let path = |(path, references): (&TestPath, &[usize])| {
        let zstd = |level| encoded(path, Compression::Zstd, zstd::encode_all(&path.nar[..], level).unwrap());
        let encoded = vec![encoded(path, Compression::None, path.nar.clone()), zstd(1), zstd(19)];
        assert_ne!(encoded[1].name, encoded[2].name);
        Path { part: path.part(), path: path.info.path.clone(), references: references.to_vec(), encoded }
    };
    paths.iter().zip(references).map(path).collect()
});

impl Task {
    pub(super) fn below(&self, bound: usize) -> usize {
        self.sim.state.lock().unwrap().rng.below(bound as u64) as usize
    }

    pub(super) fn begins(&self, op: Op) -> u64 {
        self.op.set(op);
        self.fence.set(None);
        let mut state = self.sim.state.lock().unwrap();
        let (id, node) = (self.id, self.node);
        state.note(name_of(op), || format!("by task {id} of node {node}"));
        state.now()
    }

    /// The node's caches, if it is up; this task belongs to it from now on.
    fn caches(&self, nodes: &[Node]) -> Option<Opened> {
        let state = self.sim.state.lock().unwrap();
        let node = &state.nodes[self.node];
        self.generation.set(node.generation);
        if !node.is_up {
            return None;
        }
        drop(state);
        nodes[self.node].lock().unwrap().clone()
    }

    /// One of the two: mostly the first.
    fn one_of<'a>(&self, caches: &'a [Cache; 2]) -> &'a Cache {
        let at = usize::from(self.below(4) == 0);
        self.cache.set(CACHES[at]);
        &caches[at]
    }

    pub(super) fn is_ending(&self) -> bool {
        self.sim.state.lock().unwrap().phase != Phase::Running
    }

    fn rests(&self) {
        let lasts = match self.below(40) {
            0..3 => 30 * 3_600_000,
            3..6 => 3 * 3_600_000,
            6..10 => 700_000,
            10..16 => 30_000,
            _ => 300,
        };
        // Where transactions are done beside each other, more of them are to meet.
        let lasts = if self.has_statements() && self.below(2) == 0 { lasts.min(100) } else { lasts };
        let lasts = self.below(lasts) as u64;
        self.sleep(Duration::from_millis(lasts));
    }

    pub(super) fn serves_clients(&self, nodes: &[Node]) {
        while !self.is_ending() {
            match self.caches(nodes) {
                None => self.sleep(Duration::from_millis(500)),
                Some((_data, caches)) => self.serves(self.one_of(&caches)),
            }
            self.rests();
        }
    }

    fn serves(&self, cache: &Cache) {
        if self.is_focused() {
            return match self.below(20) {
                0..7 => self.pushes(cache, 0),
                7..9 => self.pushes_closure(cache, 0),
                9..12 => self.commits_later(cache),
                12 => self.reads(cache, 0),
                13..15 => self.deletes(cache, 0),
                _ => self.collects(cache),
            };
        }
        let few = self.is_chaotic() && self.below(2) == 0;
        let at = self.below(if few { 3 } else { PATHS.len() });
        if self.has_releases() && self.below(4) == 0 {
            return self.releases(cache, at);
        }
        match self.below(28) {
            25.. => self.commits_later(cache),
            0..11 => self.pushes(cache, at),
            11..14 => self.pushes_closure(cache, at),
            14..18 => self.reads(cache, at),
            18..20 => self.pins(cache, at),
            20 => self.unpins(cache, at),
            21 | 22 => self.deletes(cache, at),
            23 => self.repairs(cache, at),
            _ => self.collects(cache),
        }
    }

    /// As `fsck --repair` does with a narinfo in the bucket that is not that of the index.
    fn repairs(&self, cache: &Cache, at: usize) {
        self.begins(Op::Publish);
        cache.publish_again(PATHS[at].part).ok();
    }

    /// Returns the narinfo to commit.
    fn uploads(&self, cache: &Cache, (at, encoding): (usize, usize)) -> Option<Vec<u8>> {
        let encoded = &PATHS[at].encoded[encoding];
        let target = NarTarget::File(NarFileName::parse(&encoded.name).unwrap());
        let begun = cache.begin(target, Some(encoded.file.len() as u64), &pusher());
        let stored = match begun.ok()? {
            Begin::Known(stored) => stored,
            Begin::Receive(upload) => upload.receive(&mut &encoded.file[..]).ok()?,
        };
        Some(self.was_told((at, encoding), stored))
    }

    fn was_told(&self, (at, encoding): (usize, usize), stored: Stored) -> Vec<u8> {
        let encoded = &PATHS[at].encoded[encoding];
        let mut narinfo = self.signed(encoded);
        // Nix names what it has sent, and `narval push` what it was told.
        if self.below(2) == 0 {
            let text = String::from_utf8(narinfo).unwrap();
            narinfo = text.replace(&encoded.name, &stored.name.to_string()).into_bytes();
        }
        self.sim.state.lock().unwrap().history.narinfos.push((at, narinfo.clone()));
        narinfo
    }

    /// One by one, or all in one request.
    fn uploads_all(&self, cache: &Cache, all: &[usize], encoding: usize) -> Option<Vec<Vec<u8>>> {
        if self.below(2) == 0 {
            return all.iter().map(|at| self.uploads(cache, (*at, encoding))).collect();
        }
        let encoded = all.iter().map(|at| &PATHS[*at].encoded[encoding]);
        let nars: Vec<_> = encoded
            .map(|encoded| (NarTarget::File(NarFileName::parse(&encoded.name).unwrap()), &encoded.file[..]))
            .collect();
        let stored = cache.receive_nars(&nars, &pusher()).ok()?;
        Some(all.iter().zip(stored).map(|(at, stored)| self.was_told((*at, encoding), stored)).collect())
    }

    /// A client brings a narinfo to another node than it has sent the NAR to, or long after.
    fn commits_later(&self, cache: &Cache) {
        let begun = self.begins(Op::Push);
        let known = self.sim.state.lock().unwrap().history.narinfos.len();
        // One of the last, or any.
        let from = if self.below(2) == 0 { known.saturating_sub(4) } else { 0 };
        let at = from + self.below(known - from);
        let narinfo = self.sim.state.lock().unwrap().history.narinfos.get(at).cloned();
        let Some((at, narinfo)) = narinfo else { return };
        self.commits(cache, &[(PATHS[at].part, narinfo)], (begun, 0));
    }

    #[cfg(feature = "postgres")]
    fn has_statements(&self) -> bool {
        self.sim.state.lock().unwrap().shared.is_some()
    }

    #[cfg(not(feature = "postgres"))]
    fn has_statements(&self) -> bool {
        false
    }

    fn has_accidents(&self) -> bool {
        self.sim.state.lock().unwrap().has_accidents
    }

    fn has_releases(&self) -> bool {
        self.sim.state.lock().unwrap().has_releases
    }

    fn is_focused(&self) -> bool {
        self.sim.state.lock().unwrap().is_focused
    }

    fn is_chaotic(&self) -> bool {
        self.sim.state.lock().unwrap().chaos > 1
    }

    /// A narinfo, perhaps with a signature: whoever commits it changes the one that is there.
    fn signed(&self, encoded: &Encoded) -> Vec<u8> {
        let mut narinfo = encoded.narinfo.clone();
        if self.is_chaotic() {
            let sign = |key: usize| format!("Sig: key-{key}:{}==\n", "A".repeat(86)).into_bytes();
            match self.below(4) {
                0 => {}
                key => narinfo.extend(sign(key)),
            }
        }
        narinfo
    }

    fn encoding(&self) -> usize {
        [0, 0, 1, 2][self.below(4)]
    }

    /// As Nix does: a NAR, then its narinfo.
    fn pushes(&self, cache: &Cache, at: usize) {
        let begun = self.begins(Op::Push);
        let encoding = self.encoding();
        if let Some(narinfo) = self.uploads(cache, (at, encoding)) {
            if self.below(6) == 0 {
                let pause = self.below(900) as u64;
                self.sleep(Duration::from_secs(pause));
            }
            self.commits(cache, &[(PATHS[at].part, narinfo)], (begun, begun));
        }
    }

    fn commits(&self, cache: &Cache, narinfos: &[(HashPart, Vec<u8>)], (begun, told): (u64, u64)) {
        let parts: Vec<HashPart> = narinfos.iter().map(|(part, _)| *part).collect();
        self.sim.state.lock().unwrap().are_pushed(self.cache.get(), &parts);
        let committed = cache.commit_narinfos(narinfos, &pusher());
        let mut state = self.sim.state.lock().unwrap();
        if let Err(rejection) = committed {
            state.was_refused(told, &rejection.to_string());
        } else {
            state.note("committed", || parts.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "));
            state.were_pushed(self.cache.get(), &parts, begun);
        }
    }

    /// As `narval push` does: asks what is missing, sends it, and commits it at once.
    fn pushes_closure(&self, cache: &Cache, at: usize) {
        let begun = self.begins(Op::Ask);
        let (mut closure, mut open) = (vec![at], vec![at]);
        while let Some(next) = open.pop() {
            let new: Vec<usize> =
                PATHS[next].references.iter().copied().filter(|reference| !closure.contains(reference)).collect();
            closure.extend(&new);
            open.extend(new);
        }
        let parts: Vec<HashPart> = closure.iter().map(|at| PATHS[*at].part).collect();
        let Ok(missing) = cache.missing(&parts, Some(24 * 3600)) else { return };
        let here: Vec<HashPart> = parts.iter().filter(|part| !missing.contains(part)).copied().collect();
        self.sim.state.lock().unwrap().were_leased(self.cache.get(), &here, begun);
        let begun = self.begins(Op::Push);
        let encoding = self.encoding();
        let wanted: Vec<usize> = closure.into_iter().filter(|at| missing.contains(&PATHS[*at].part)).collect();
        if wanted.is_empty() {
            return;
        }
        if let Some(narinfos) = self.uploads_all(cache, &wanted, encoding) {
            let narinfos: Vec<_> =
                wanted.iter().zip(narinfos).map(|(at, narinfo)| (PATHS[*at].part, narinfo)).collect();
            self.commits(cache, &narinfos, (begun, 0));
        }
    }

    fn reads(&self, cache: &Cache, at: usize) {
        self.begins(Op::Read);
        let Ok(Some(text)) = cache.narinfo(&PATHS[at].part) else { return };
        let info = NarInfo::parse(&text, &StoreDir::default()).unwrap();
        let name = info.url.strip_prefix("nar/").unwrap();
        // Only whether its object is there: bodies are not simulated.
        cache.read_simulated(name).ok();
    }

    fn pins(&self, cache: &Cache, at: usize) {
        self.begins(Op::Pin);
        let holds = PinFor { keep: [None, Some(1)][self.below(2)], until: None };
        cache.pin(&format!("pin-{}", at % 3), &PATHS[at].part, holds, &Grant::administrator("test")).ok();
    }

    fn unpins(&self, cache: &Cache, at: usize) {
        self.begins(Op::Pin);
        cache.unpin(&format!("pin-{}", at % 3), None, &Grant::administrator("test")).ok();
    }

    fn deletes(&self, cache: &Cache, at: usize) {
        self.begins(Op::Delete);
        if let Ok(deleted) = cache.delete(&PATHS[at].part, self.below(2) == 0, &Grant::administrator("test")) {
            self.sim.state.lock().unwrap().were_deleted(self.cache.get(), &deleted.paths);
        }
    }

    pub(super) fn collects(&self, cache: &Cache) {
        self.begins(Op::Collect);
        if self.below(3) == 0 {
            // As when there is no room.
            cache.shared().record();
            cache.sweep(UNFINISHED_GRACE, cache.now()).ok();
        } else {
            cache.collect(&CollectOptions::default(), &Grant::administrator("test")).ok();
        }
    }

    pub(super) fn keeps_house(&self, nodes: &[Node]) {
        while !self.is_ending() {
            match self.caches(nodes) {
                None => self.opens(nodes),
                Some((data, caches)) => {
                    self.begins(Op::Publish);
                    data.shared().record();
                    data.publish_pending(WhichPending::Due).ok();
                    if self.has_accidents() && self.below(3) == 0 {
                        self.op.set(Op::Read);
                        data.restore_lost();
                    }
                    if self.below(4) == 0 {
                        self.collects(self.one_of(&caches));
                    }
                }
            }
            let period = [10, 10, 100, 100, 1_200, 18_000][self.below(6)];
            self.sleep(Duration::from_secs(period));
        }
    }

    /// Starts the node again.
    fn opens(&self, nodes: &[Node]) {
        self.begins(Op::Open);
        // A process that was killed records nothing in the end.
        let generation = self.generation.replace(u32::MAX);
        // A node that ends asks the time, and perhaps the index: not while anything is locked.
        let old = nodes[self.node].lock().unwrap().take();
        drop(old);
        self.generation.set(generation);
        let Some(opened) = open(&self.sim) else { return };
        let is_mine = {
            let mut state = self.sim.state.lock().unwrap();
            let node = &state.nodes[self.node];
            let is_mine = node.generation == self.generation.get() && state.phase == Phase::Running;
            state.nodes[self.node].is_up |= is_mine;
            is_mine
        };
        if is_mine {
            *nodes[self.node].lock().unwrap() = Some(opened);
        }
    }
}

fn name_of(op: Op) -> &'static str {
    match op {
        Op::Push => "push",
        Op::Ask => "ask",
        Op::Read => "read",
        Op::Pin => "pin",
        Op::Delete => "delete",
        Op::Collect => "collect",
        Op::Publish => "publish",
        Op::Open => "open",
        Op::Release => "release",
    }
}
