//! Upstreams, as a server uses them.

use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::thread;

use narval_client::{Budget, request_id};
use narval_nix::{HashPart, NarInfo, SecretKey, StoreDir, StorePath};
use parking_lot::{Mutex, RwLock};
use quick_cache::sync::Cache as Memory;

use super::answer::{Lookup, NarAnswer, Unavailable};
use super::limits::{
    ABSENT_MAX, AHEAD_MAX, AHEAD_NAR_THREADS, AHEAD_NARS_MAX, AHEAD_THREADS, FETCHES_MAX, FETCHES_OF_ONE_MAX,
    HEDGES_SHARE, NAMES_MAX, NARINFOS_MAX,
};
use super::options::{Deadline, UpstreamOptions, UpstreamsOptions, WhenDown};
use super::race::trace::{Trace, Traces};
use super::remote::Remote;
use super::shared::Shared;
use super::shared::bases::Bases;
use super::shared::known::Known;
use super::shared::neighbours::Neighbours;
use super::shared::question::{NoAnswer, Patience};
use super::shared::walks::Walks;
use super::standing::counts::UpstreamsStats;
use super::standing::health::Standing;
use narval_files::{Background, DiskCache, Fetches, Permits, served_client, work_for};

/// The number of threads that check whether references of pushed paths exist upstream.
const ELSEWHERE_THREADS: usize = 8;

/// Upstreams and their stored files. Cheap to clone: clones share everything.
#[derive(Clone)]
pub struct Upstreams {
    pub(super) shared: Arc<Shared>,
}

/// Why upstreams cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum UpstreamsError {
    /// The folder cannot be used.
    #[error("cannot use the folder of upstreams '{}': {error}", folder.display())]
    Folder {
        /// The folder.
        folder: PathBuf,
        /// The operating system's error.
        error: io::Error,
    },
}

impl Upstreams {
    /// Opens the folder. No upstream is queried yet: they may all be down.
    ///
    /// # Errors
    /// The folder cannot be used.
    pub fn open(options: UpstreamsOptions) -> Result<Self, UpstreamsError> {
        let UpstreamsOptions { folder, bytes_max, upstreams, deadline, store_dir, waiting } = options;
        let kept = DiskCache::open(&folder, bytes_max).map_err(|error| UpstreamsError::Folder { folder, error })?;
        let remotes = remotes(upstreams, &store_dir, deadline);
        let shared = Arc::new_cyclic(|own| Shared {
            remotes: RwLock::new(remotes),
            kept,
            waiting: waiting.0,
            fetches: Permits::shared(FETCHES_MAX, FETCHES_OF_ONE_MAX),
            store_dir,
            sign_keys: RwLock::default(),
            narinfos: Memory::new(NARINFOS_MAX),
            absent: Memory::new(ABSENT_MAX),
            names: Memory::new(NAMES_MAX),
            asking: Mutex::default(),
            deadline: RwLock::new(deadline),
            hedges: Budget::new(HEDGES_SHARE),
            running: Fetches::default(),
            narinfos_ahead: Background::new("ahead", AHEAD_THREADS, AHEAD_MAX),
            nars_ahead: Background::new("ahead-nar", AHEAD_NAR_THREADS, AHEAD_NARS_MAX),
            own: Weak::clone(own),
            walks: Walks::new(bytes_max),
            bases: Bases::default(),
            traces: Traces::default(),
            neighbours: Neighbours::default(),
            forgotten: AtomicU64::new(0),
            counted_absent: AtomicU64::new(0),
            kept_hits: AtomicU64::new(0),
            kept_misses: AtomicU64::new(0),
        });
        Ok(Self { shared })
    }

    /// Replaces the upstreams and the budget. Running fetches continue; paths of removed upstreams, or without a
    /// signature by the current keys, are no longer served.
    pub fn replace(&self, upstreams: Vec<UpstreamOptions>, deadline: Deadline, bytes_max: u64) {
        let shared = &self.shared;
        *shared.remotes.write() = remotes(upstreams, &shared.store_dir, deadline);
        *shared.deadline.write() = deadline;
        shared.narinfos.clear();
        shared.absent.clear();
        shared.walks.set_budget(bytes_max);
        shared.kept.set_bytes_max(bytes_max);
        shared.forgotten.fetch_add(1, Ordering::AcqRel);
    }

    /// The keys whose signatures are added to narinfos that an upstream's key has signed.
    pub fn set_sign_keys(&self, keys: Vec<SecretKey>) {
        *self.shared.sign_keys.write() = keys;
        self.shared.narinfos.clear();
        self.shared.forgotten.fetch_add(1, Ordering::AcqRel);
    }

    /// A lookup only in memory: does not wait or access the disk.
    pub fn remembered(&self, hash_part: &HashPart) -> Option<Lookup> {
        if let Some(known) = self.shared.narinfos.get(hash_part) {
            return Some(Lookup::Found(Arc::clone(&known.text)));
        }
        self.shared.is_absent(hash_part.as_str()).then_some(Lookup::Absent)
    }

    /// The number of narinfos that were invalidated so far. To cache a narinfo, take this number before looking it up,
    /// and compare it later.
    pub fn forgotten(&self) -> u64 {
        self.shared.forgotten.load(Ordering::Acquire)
    }

    /// The stored narinfo of a path. Never queries an upstream: for the presence check before a push.
    pub fn stored(&self, hash_part: &HashPart) -> Option<Arc<[u8]>> {
        self.shared.known(hash_part).map(|known| Arc::clone(&known.text))
    }

    /// The narinfo of a path, for a client. Waits for the upstreams as long as [`Deadline`] says; what they have not answered
    /// by then is absent for this request, and is not remembered. If a client walks a closure, its NARs are prefetched.
    ///
    /// # Errors
    /// [`Unavailable`]: too many wait already; or not all upstreams could be queried, none of the others has it, and the
    /// deadline says that clients are told.
    pub fn narinfo(&self, hash_part: &HashPart) -> Result<Lookup, Unavailable> {
        let known = match self.shared.lookup(hash_part, Patience::Client) {
            Ok(Some(known)) => known,
            Ok(None) => return Ok(Lookup::Absent),
            Err(NoAnswer::Upstreams(_)) if self.shared.deadline.read().when_down == WhenDown::Absent => {
                self.shared.counted_absent.fetch_add(1, Ordering::Relaxed);
                return Ok(Lookup::Absent);
            }
            Err(error) => return Err(error.into()),
        };
        self.shared.nars_ahead(self.shared.walks.requested(&known.info).into_iter().flatten());
        Ok(Lookup::Found(Arc::clone(&known.text)))
    }

    /// Like [`narinfo`](Self::narinfo), for inspecting paths without fetching their NARs: does not count as walking a
    /// closure.
    ///
    /// # Errors
    /// [`Unavailable`]: not all upstreams could be queried, and none of the others has it.
    pub fn narinfo_to_look_at(&self, hash_part: &HashPart) -> Result<Lookup, Unavailable> {
        let known = self.shared.lookup(hash_part, Patience::Client)?;
        Ok(known.map_or(Lookup::Absent, |known| Lookup::Found(Arc::clone(&known.text))))
    }

    /// The length of a NAR according to its narinfo, without fetching the NAR: `None` if there is no such NAR,
    /// `Some(None)` if the length is unknown.
    ///
    /// # Errors
    /// See [`narinfo`](Self::narinfo).
    pub fn nar_length(&self, name: &str) -> Result<Option<Option<u64>>, Unavailable> {
        let known = self.shared.by_name(name)?;
        Ok(known.map(|known| known.length()))
    }

    /// A NAR by its name below `nar/`: from the stored files, from a running fetch, or from a new one.
    ///
    /// # Errors
    /// See [`narinfo`](Self::narinfo).
    pub fn nar(&self, name: &str) -> Result<Option<NarAnswer>, Unavailable> {
        match self.shared.by_name(name)? {
            Some(known) => {
                self.shared.walks.claimed(&known.name.file);
                self.shared.nar(&known)
            }
            None => Ok(None),
        }
    }

    /// How many upstreams respond, as far as their last requests have shown, and how many there are.
    pub fn available(&self) -> (usize, usize) {
        let remotes = Arc::clone(&self.shared.remotes.read());
        let failing = remotes.iter().filter(|remote| remote.standing() == Standing::Down).count();
        (remotes.len() - failing, remotes.len())
    }

    /// What the requests to them have come to, and what is kept.
    pub fn stats(&self) -> UpstreamsStats {
        let stats = |remote: &Arc<Remote>| {
            remote.counts.stats(remote.url().to_string(), remote.standing(), remote.health.usual())
        };
        UpstreamsStats {
            upstreams: self.shared.remotes().iter().map(stats).collect(),
            counted_absent: self.shared.counted_absent.load(Ordering::Relaxed),
            kept_bytes: self.shared.kept.bytes(),
            kept_bytes_max: self.shared.kept.bytes_max(),
            kept_hits: self.shared.kept_hits.load(Ordering::Relaxed),
            kept_misses: self.shared.kept_misses.load(Ordering::Relaxed),
            neighbours: self.shared.neighbours.stats(),
        }
    }

    /// What was asked of the upstreams for a path: for its narinfo, and for its NAR, the last time that any of them was.
    pub fn traces(&self, hash_part: &HashPart) -> Vec<Trace> {
        self.shared.traces.of(hash_part)
    }

    /// The size of the stored files in bytes.
    pub fn kept_bytes(&self) -> u64 {
        self.shared.kept.bytes()
    }
}

impl Upstreams {
    /// Whether a client can get each of these paths from an upstream. Queries unknown ones, several at once. A path that cannot be
    /// queried counts as absent, so that closures stay complete.
    pub fn have(&self, paths: &[&StorePath]) -> Vec<bool> {
        self.look_up_all(paths, |_| true).into_iter().map(|found| found.is_some()).collect()
    }

    /// As [`have`](Self::have): the narinfos, as served. An upstream that is down stops no pushes.
    pub fn served(&self, paths: &[&StorePath]) -> Vec<Option<NarInfo>> {
        let served = |known: &Known| NarInfo::parse(&known.text, &self.shared.store_dir).ok();
        self.look_up_all(paths, served).into_iter().map(Option::flatten).collect()
    }

    fn look_up_all<T: Send>(&self, paths: &[&StorePath], take: impl Fn(&Known) -> T + Sync) -> Vec<Option<T>> {
        self.shared.learn_names(paths.iter().copied());
        let hash_parts: Vec<_> = paths.iter().map(|path| path.hash_part()).collect();
        let size = hash_parts.len().div_ceil(ELSEWHERE_THREADS).max(1);
        let find = |hash_part: &HashPart| Some(take(&*self.shared.lookup(hash_part, Patience::Push).ok()??));
        let (id, client) = (request_id::current(), served_client());
        thread::scope(|scope| {
            let ask = |part: &'_ [HashPart]| {
                let _client = work_for(client);
                let _entered = request_id::enter(id.clone());
                part.iter().map(find).collect::<Vec<_>>()
            };
            let threads: Vec<_> = hash_parts.chunks(size).map(|part| (part, scope.spawn(move || ask(part)))).collect();
            let none = |part: &[HashPart]| part.iter().map(|_| None).collect();
            // A thread that panicked found none.
            threads.into_iter().flat_map(|(part, thread)| thread.join().unwrap_or_else(|_| none(part))).collect()
        })
    }
}

impl std::fmt::Debug for Upstreams {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.shared.remotes().iter().map(|remote| remote.url().to_string())).finish()
    }
}

impl Shared {
    pub(super) fn remotes(&self) -> Arc<[Arc<Remote>]> {
        Arc::clone(&self.remotes.read())
    }
}

/// In order of priority.
fn remotes(mut upstreams: Vec<UpstreamOptions>, store_dir: &StoreDir, deadline: Deadline) -> Arc<[Arc<Remote>]> {
    upstreams.sort_by_key(|upstream| upstream.priority);
    upstreams.into_iter().map(|one| Arc::new(Remote::new(one, store_dir, deadline.absent_after))).collect()
}
