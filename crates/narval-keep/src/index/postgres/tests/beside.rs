//! Pushes, deletions and collections of several nodes beside each other, with pauses between any two statements.

use std::collections::{BTreeSet, HashSet, VecDeque};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::*;
use narval_nix::NarHash;

use crate::index::postgres::simulation::PAUSE;
use crate::name::NarFileName;
use crate::records::paths::CacheId;
use crate::records::pins::{Pin, PinFor};
use crate::records::releases::{Recorded, ReleaseRequest, ReleaseToRecord};

/// What each thread does, so many times. `NARVAL_BESIDE` has another number.
const ROUNDS: usize = 40;

/// The longest pause before a statement.
const PAUSE_MAX: Duration = Duration::from_millis(4);

/// Names and paths, few, so that all get in each other's way.
const NAMES: u64 = 8;

/// Paths that are kept at a time: so few that most names have none of them, and can go.
const KEPT_MAX: usize = 3;

/// What is wrong, which nothing must be at any moment.
const WRONG: &str = "select concat_ws(' ', \
     (select 'a path without its file' from narval.paths p left join narval.nars f on f.cache = p.cache and f.name = p.file \
       where f.name is null or f.orphaned is not null limit 1), \
     (select 'a reference to nothing' from narval.refs r join narval.paths o on o.id = r.referrer \
       where not exists (select from narval.paths p where p.cache = o.cache and p.hash_part = r.reference) limit 1), \
     (select 'a file that no path names' from narval.nars f where f.orphaned is null \
       and not exists (select from narval.paths p where p.cache = f.cache and p.file = f.name) limit 1), \
     (select 'garbage with a row' from narval.nars f join narval.garbage g on g.cache = f.cache and g.name = f.name limit 1), \
     (select 'counted ' || c.bytes from narval.caches c where c.bytes <> coalesce((select sum(n.file_size) from narval.nars n \
       where n.cache = c.id), 0)))";

/// A generator of numbers below a limit.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % limit
    }
}

/// A NAR, and a name for it.
fn object(name: &str) -> (String, NarRecord) {
    let nar = nar(name);
    (NarFileName::new(nar.file_hash, nar.compression).unique().unwrap().to_string(), nar)
}

struct StorageLocation<'a> {
    index: &'a Postgres,
    cache: CacheId,
    /// The names whose bytes are stored.
    bytes: &'a Mutex<HashSet<String>>,
    /// Paths that were leased, pinned, released or used, with their files, which nobody else deletes.
    kept: &'a Mutex<VecDeque<(HashPart, String)>>,
    /// Of releases.
    revisions: &'a Mutex<BTreeSet<u64>>,
    unique: &'a AtomicU64,
}

impl StorageLocation<'_> {
    fn has(&self, name: &str) -> bool {
        self.bytes.lock().unwrap().contains(name)
    }

    /// Commits a path with this file, which refers to others.
    fn commit(&self, name: &str, file: &str, needed: &[HashPart]) -> bool {
        let part = path(name, file).hash_part;
        for _ in 0..9 {
            let old = self.index.path(self.cache, &part).unwrap();
            let needed: Vec<HashPart> = needed.iter().copied().filter(|other| *other != part).collect();
            let mut record = path(name, file);
            record.version = old.map_or(0, |old| old.version);
            record.references.clone_from(&needed);
            if self.index.commit(self.cache, vec![record], &needed, 1).unwrap() == Commit::Done {
                return true;
            }
            if self.index.file(self.cache, file).unwrap().is_none()
                || self.index.present(self.cache, &needed).unwrap().contains(&false)
            {
                return false;
            }
        }
        false
    }

    /// A NAR is stored and recorded, unless it is there, and then a path is committed.
    fn push(&self, random: &mut Random) {
        let (mut file, nar) = object(&format!("nar-{}", random.below(NAMES)));
        let there = self.index.files_of(self.cache, &nar.nar_hash).unwrap().into_iter().next();
        if let Some((known, _)) = there.filter(|_| random.below(2) == 0) {
            file = known;
        } else {
            self.bytes.lock().unwrap().insert(file.clone());
            self.index.record(self.cache, (file.clone(), nar), (1, u64::MAX)).unwrap();
        }
        let other = path(&format!("path-{}", random.below(NAMES)), "").hash_part;
        self.commit(&format!("path-{}", random.below(NAMES)), &file, &[other][..random.below(2) as usize]);
        // One of its own, which a lease, a pin or a use protects from then on.
        let name = format!("own-{}", self.unique.fetch_add(1, Ordering::Relaxed));
        if !self.commit(&name, &file, &[]) {
            return;
        }
        let part = path(&name, "").hash_part;
        let is_kept = match random.below(4) {
            0 => self.index.lease(self.cache, &[part], 1_000).unwrap() == [part],
            1 => {
                let holds = PinFor { until: None, keep: Some(1) };
                let pin = Pin { path: format!("{part}-{name}"), name, created: 1, holds };
                self.index.pin(self.cache, pin, true).unwrap()
            }
            2 => self.release(part),
            _ => {
                let used = Used { cache: self.cache, path: Some(part), file: None, time: 100 };
                self.index.used(&[used]).unwrap();
                self.index.present(self.cache, &[part]).unwrap() == [true]
            }
        };
        if is_kept {
            self.kept.lock().unwrap().push_back((part, file));
        }
        self.let_go(KEPT_MAX);
    }

    /// Deletes all but so many of the kept paths, which must be there until then, with their bytes.
    fn let_go(&self, max: usize) {
        loop {
            let mut kept = self.kept.lock().unwrap();
            let Some((part, file)) = (kept.len() > max).then(|| kept.pop_front()).flatten() else { return };
            drop(kept);
            assert_eq!(self.index.present(self.cache, &[part]).unwrap(), [true], "a path is gone that was to stay");
            assert!(self.has(&file), "the bytes of a path are gone that was to stay");
            let _ = self.index.delete(self.cache, &[part], 2).unwrap();
        }
    }

    /// Whether a release of a path was recorded, which keeps it.
    fn release(&self, part: HashPart) -> bool {
        let make = move |_: &str, revision: u64, contents: &[(HashPart, String, NarHash)]| {
            let [(found, path, _)] = contents else { return None };
            let paths = vec![("x86_64-linux".parse().unwrap(), *found, path.clone())];
            Some((revision, ReleaseToRecord { version: None, percent: None, json: "{}".to_owned(), paths }))
        };
        let asked = ReleaseRequest { name: "api".parse().unwrap(), key: None, new_uid: "id".to_owned() };
        let recorded = self.index.add_release(self.cache, asked, (BTreeSet::from([part]), 10_000, 1), make).unwrap();
        matches!(recorded, Ok(Recorded::New(revision)) if self.revisions.lock().unwrap().insert(revision))
    }

    fn delete(&self, random: &mut Random) {
        let part = path(&format!("path-{}", random.below(NAMES)), "").hash_part;
        match random.below(3) {
            0 => {
                let _ = self.index.delete(self.cache, &[part], 2).unwrap();
            }
            1 => {
                let all: Vec<HashPart> =
                    (0..NAMES).map(|number| path(&format!("path-{number}"), "").hash_part).collect();
                let _ = self.index.delete(self.cache, &all, 2).unwrap();
            }
            _ => {
                // Nothing refers to a path of this one: it goes whatever refers to it.
                let (file, nar) = object("lost");
                self.bytes.lock().unwrap().insert(file.clone());
                self.index.record(self.cache, (file.clone(), nar), (1, u64::MAX)).unwrap();
                self.commit("path", &file, &[]);
                self.index.remove_file(self.cache, &file, false, 1).unwrap();
            }
        }
    }

    fn collect(&self, random: &mut Random) -> usize {
        let Some(fence) = self.index.begin_collection().unwrap() else { return 0 };
        let mut paths = self.index.list(self.cache, "", 999).unwrap();
        paths.sort_by_cached_key(|_| random.below(99));
        let paths: Vec<(HashPart, u64)> = paths.into_iter().map(|path| (path.hash_part, 50)).collect();
        let hidden = self.index.hide(fence, self.cache, &paths, 5).unwrap().len();
        self.index.discard(fence, self.cache, Cutoff { orphaned: 9, used: 9 }, (4, 1)).unwrap();
        let garbage = self.index.garbage(self.cache, 9, 99).unwrap();
        self.bytes.lock().unwrap().retain(|name| !garbage.contains(name));
        self.index.forget(self.cache, garbage).unwrap();
        self.index.end_collection(fence, None).unwrap();
        hidden
    }
}

#[test]
fn pushes_deletions_and_collections_lose_nothing_beside_each_other() {
    let Some(server) = PostgresServer::shared() else { return };
    let address = server.database();
    let name = address.split(['/', '?']).nth(3).unwrap();
    let rounds = std::env::var("NARVAL_BESIDE").map_or(ROUNDS, |rounds| rounds.parse().unwrap());
    let nodes: Vec<Postgres> = (0..3).map(|_| Postgres::open(&address).unwrap()).collect();
    let cache = nodes[0].create_cache(&CacheName::default(), "{}", 1).unwrap().id;
    let (bytes, kept, revisions) = (Mutex::default(), Mutex::default(), Mutex::default());
    let (unique, hidden) = (AtomicU64::new(0), AtomicUsize::new(0));
    let wrong = || server.sql(name, WRONG).unwrap().trim().to_owned();
    std::thread::scope(|scope| {
        let work = |number: usize| {
            let index = &nodes[number % 3];
            let place =
                StorageLocation { index, cache, bytes: &bytes, kept: &kept, revisions: &revisions, unique: &unique };
            let hidden = &hidden;
            scope.spawn(move || {
                PAUSE.set(PAUSE_MAX);
                let mut random = Random(number as u64 + 0x9e37_79b9);
                for _ in 0..rounds {
                    match number {
                        0..5 => place.push(&mut random),
                        5 => place.delete(&mut random),
                        _ => drop(hidden.fetch_add(place.collect(&mut random), Ordering::Relaxed)),
                    }
                }
            })
        };
        let threads: Vec<_> = (0..8).map(work).collect();
        while threads.iter().any(|thread| !thread.is_finished()) {
            assert_eq!(wrong(), "");
            std::thread::sleep(Duration::from_millis(50));
        }
    });
    assert_eq!(wrong(), "");
    let place =
        StorageLocation { index: &nodes[0], cache, bytes: &bytes, kept: &kept, revisions: &revisions, unique: &unique };
    for path in nodes[0].list(cache, "", 9_999).unwrap() {
        let path = nodes[0].path(cache, &path.hash_part).unwrap().unwrap();
        assert!(place.has(&path.file), "the bytes of '{}' are gone", path.path);
    }
    let revisions = revisions.lock().unwrap();
    assert!(
        revisions.iter().copied().eq(1..=revisions.len() as u64),
        "each release has a revision of its own: {revisions:?}"
    );
    assert!(!kept.lock().unwrap().is_empty() && hidden.into_inner() > 0, "nothing has happened");
    place.let_go(0);
}
