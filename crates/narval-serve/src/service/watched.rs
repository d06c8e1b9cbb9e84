//! What the page's Status is told of a cache and of the server: what is wrong, and how full they are.

use narval_cache::upstream::{Upstreams, UpstreamsStats};
use narval_client::clock;
use narval_http::Snapshot;
use narval_keep::{Cache, Data, Fullness};
use narval_nix::HashPart;
use rustix::fs::statvfs;

use crate::origins::Origins;
use crate::routes::health;
use crate::state::ServerState;
use crate::watch::problems::{self, CacheFacts, Problem, ServerFacts};

/// A file system that the server uses.
#[derive(Debug)]
pub(crate) struct Disk {
    pub(crate) used_for: &'static str,
    pub(crate) free: u64,
    pub(crate) size: u64,
    /// In how many seconds it will be full at the rate of the last hours.
    pub(crate) full_in: Option<u64>,
}

impl Origins {
    /// What is wrong with this cache, the worst first; with `of_server`, also what is wrong with the whole server. Checks what takes a while if
    /// that was not done lately, so this is not for the shards.
    pub(crate) fn problems(&self, state: &ServerState, of_server: bool) -> Vec<Problem> {
        self.metrics.history.check(|| {
            let store = self.live.as_ref().map(|live| &*live.store);
            health::broken(store, self.writable.as_ref().map(|writable| &writable.cache))
        });
        self.begin_survey();
        self.known_problems(state, of_server)
    }

    /// The same, as far as it is known without asking anybody.
    fn known_problems(&self, state: &ServerState, of_server: bool) -> Vec<Problem> {
        let now = clock::now();
        let mut all = problems::of_cache(now, &self.cache_facts(), &self.metrics.history);
        if of_server && self.shows_engine {
            all.extend(problems::of_server(now, &self.server_facts(state), state.history()));
            problems::sort(&mut all);
        }
        all
    }

    /// Takes a sample for the history; called by a thread of the server.
    pub(crate) fn look(&self, state: &ServerState) {
        self.metrics.history.take(self.metrics.totals());
        drop(self.known_problems(state, true));
    }

    fn cache_facts(&self) -> CacheFacts {
        let full = self.fullness();
        let settings = self.writable.as_ref().map(|writable| writable.cache.settings());
        let quota = settings.and_then(|settings| settings.quota);
        let upstreams = self.upstream.as_ref().map(|upstreams| upstreams.stats().upstreams).unwrap_or_default();
        CacheFacts {
            broken: self.metrics.history.broken(),
            unsigned: full.as_ref().and_then(|full| Some((full.unsigned?, full.paths))),
            quota: full.as_ref().zip(quota).map(|(full, quota)| (bytes(full), quota)),
            collected: full.as_ref().and_then(|full| full.collected),
            upstreams: upstreams.into_iter().map(|upstream| (upstream.url, upstream.is_up)).collect(),
        }
    }

    fn server_facts(&self, state: &ServerState) -> ServerFacts {
        let survey = self.writable.as_ref().and_then(|writable| writable.data.last_survey());
        let tokens = survey.map(|survey| survey.tokens.clone()).unwrap_or_default();
        ServerFacts {
            disks: self.disks(state).into_iter().map(|disk| (disk.used_for.to_owned(), disk.full_in)).collect(),
            certificates: state.certificates(),
            tokens: tokens.into_iter().map(|token| (token.id, token.expires)).collect(),
        }
    }

    /// How full the cache was when it was counted last.
    pub(crate) fn fullness(&self) -> Option<Fullness> {
        self.writable.as_ref()?.data.last_survey()?.caches.get(&self.name()).cloned()
    }

    /// The file systems that the server uses.
    pub(crate) fn disks(&self, state: &ServerState) -> Vec<Disk> {
        let data = self.writable.as_ref().map(|writable| ("data", writable.data.folder().to_owned()));
        let nars = self.live.as_ref().and_then(|live| live.nars.compressed.as_ref());
        let nars = nars.map(|nars| ("nar-cache", nars.root().to_owned()));
        let disk = |(used_for, folder): (&'static str, std::path::PathBuf)| {
            // A folder that is not there has no disk to run full.
            let disk = statvfs(&folder).ok()?;
            let (free, size) =
                (disk.f_bavail.saturating_mul(disk.f_frsize), disk.f_blocks.saturating_mul(disk.f_frsize));
            Some(Disk { used_for, free, size, full_in: state.history().free(used_for, clock::now(), free) })
        };
        data.into_iter().chain(nars).filter_map(disk).collect()
    }

    /// The writable cache.
    pub(crate) fn cache(&self) -> Option<&Cache> {
        self.writable.as_ref().map(|writable| &writable.cache)
    }

    /// The data folder of the writable cache.
    pub(crate) fn data(&self) -> Option<&Data> {
        self.writable.as_ref().map(|writable| &writable.data)
    }

    /// The upstreams, if there are any.
    pub(crate) fn upstreams(&self) -> Option<UpstreamsStats> {
        self.upstream.as_ref().map(Upstreams::stats)
    }

    /// Whether NARs of a store are compressed and kept.
    pub(crate) fn compresses(&self) -> bool {
        self.live.as_ref().is_some_and(|live| live.nars.compressed.is_some())
    }

    /// Bytes that are kept besides the paths, and how many there may be.
    pub(crate) fn bounded(&self) -> Vec<(&'static str, u64, u64)> {
        let nars = self.live.as_ref().and_then(|live| live.nars.compressed.as_ref()).map(|nars| nars.bytes());
        let kept = self.upstreams().map(|stats| (stats.kept_bytes, stats.kept_bytes_max));
        let nars = nars.map(|(used, most)| ("Compressed NARs", used, most));
        nars.into_iter().chain(kept.map(|(used, most)| ("Kept of upstreams", used, most))).collect()
    }

    /// The name of the path whose NAR a request named; otherwise, what it named.
    pub(crate) fn name_of_nar(&self, file: &str) -> String {
        let hash = file.get(..32).and_then(|part| HashPart::parse(part.as_bytes()).ok());
        let stored = || self.live.as_ref()?.store.path_from_hash_part(&hash?).ok()?.map(|path| path.name().to_string());
        let writable = || {
            let path = self.writable.as_ref()?.cache.path_of_nar(file).ok()??;
            path.get(33..).map(str::to_owned)
        };
        writable().or_else(stored).unwrap_or_else(|| match file.split_once('.') {
            Some((hash, _)) if hash.len() > 12 => format!("NAR {}…", hash.get(..8).unwrap_or_default()),
            _ => file.to_owned(),
        })
    }

    /// The engine's counters, if this cache may show them.
    pub(crate) fn engine(&self, state: &ServerState) -> Option<Snapshot> {
        state.engine().filter(|_| self.shows_engine)
    }
}

/// All bytes of a cache that count towards its limits.
fn bytes(full: &Fullness) -> u64 {
    [full.listing_bytes, full.log_bytes, full.other_bytes].into_iter().fold(full.nar_bytes, u64::saturating_add)
}
