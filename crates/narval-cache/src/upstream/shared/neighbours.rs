//! Which machines are neighbours, and what is fetched here.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use narval_client::{Request, Url};
use narval_nix::{Sha256Hasher, StoreDir};
use parking_lot::{Mutex, RwLock};

use crate::upstream::options::UpstreamOptions;
use crate::upstream::remote::Remote;
use crate::upstream::standing::nearby::Nearby;
use crate::upstream::standing::neighbour_counts::{NeighbourCounts, NeighbourStats};

/// The maximum number of neighbours that are asked.
pub const NEIGHBOURS_MAX: usize = 32;
/// Where machines are busy, a question may take a multiple of what neighbours usually take to answer, as their median: one of them cannot make others wait.
/// No longer than this.
const PATIENCE_TIMES: u32 = 4;
const PATIENCE_MAX: Duration = Duration::from_millis(300);
/// How often a new neighbour is asked for something at first, in order to know how soon it answers.
const GREETINGS: usize = 3;
const GREETING_LEN_MAX: u64 = 4096;
/// After which time one that has not answered is forgotten.
const ANSWERS_WITHIN: Duration = Duration::from_secs(2);
/// How long a neighbour that failed is not asked; it doubles.
const FORGOTTEN_FOR: Duration = Duration::from_secs(5);
const FORGOTTEN_FOR_MAX: Duration = Duration::from_secs(3600);
/// The maximum number of hosts that are remembered for that.
const FORGOTTEN_MAX: usize = 1024;
/// How many neighbours are tried for one NAR, one after the other.
pub(in crate::upstream) const TRIED_MAX: usize = 3;

/// The neighbours of an upstream cache.
#[derive(Default)]
pub(in crate::upstream) struct Neighbours {
    /// The name of this machine among them; 0 if it has no neighbours.
    pub(in crate::upstream) id: AtomicU64,
    list: RwLock<Arc<[Arc<Remote>]>>,
    /// How long a question may take where machines are not busy.
    patience: RwLock<Duration>,
    forgotten: Mutex<HashMap<IpAddr, (Instant, Duration)>>,
    /// NARs that are being fetched here, by the names of their files.
    pub(in crate::upstream) coming: Mutex<HashMap<String, Coming>>,
    pub(in crate::upstream) counts: Arc<NeighbourCounts>,
}

/// Where a NAR that is being fetched comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::upstream) enum Coming {
    /// Neighbours are being asked for it.
    Wanted,
    /// The same, and one of them that ranks higher for it has asked for it meanwhile.
    Outbid,
    /// From a neighbour: nobody else may have it before it is verified.
    Near,
    /// From an upstream.
    Upstream,
}

impl Neighbours {
    /// What has passed between them; `None` if this machine has no neighbours.
    pub(in crate::upstream) fn stats(&self) -> Option<NeighbourStats> {
        (self.id.load(Ordering::Acquire) != 0).then(|| self.counts.stats(self.all().len()))
    }

    /// Those that may be asked now.
    pub(in crate::upstream) fn ready(&self) -> Vec<Arc<Remote>> {
        let is_ready = |remote: &&Arc<Remote>| remote.nearby.as_ref().is_some_and(Nearby::is_ready);
        self.all().iter().filter(is_ready).cloned().collect()
    }

    /// How long a question to neighbours may take, and how long one may be silent that sends a NAR.
    pub(in crate::upstream) fn patience(&self) -> Duration {
        let mut times: Vec<_> = self.ready().iter().filter_map(|remote| remote.health.usual()).collect();
        times.sort();
        let median = times.get(times.len() / 2).copied().unwrap_or_default();
        self.patience.read().max((median * PATIENCE_TIMES).min(PATIENCE_MAX))
    }

    /// Those that have not failed. The others are forgotten.
    pub(in crate::upstream) fn all(&self) -> Arc<[Arc<Remote>]> {
        let list = Arc::clone(&self.list.read());
        if !list.iter().any(|remote| is_gone(remote)) {
            return list;
        }
        let (gone, left): (Vec<_>, Vec<_>) = list.iter().cloned().partition(|remote: &Arc<Remote>| is_gone(remote));
        gone.iter().filter_map(|remote| remote.nearby.as_ref()).for_each(|nearby| self.forget(nearby.host));
        let left: Arc<[Arc<Remote>]> = left.into();
        *self.list.write() = Arc::clone(&left);
        left
    }

    fn forget(&self, host: IpAddr) {
        let (mut forgotten, now) = (self.forgotten.lock(), Instant::now());
        if forgotten.len() >= FORGOTTEN_MAX && !forgotten.contains_key(&host) {
            forgotten.retain(|_, (until, _)| *until > now);
            if forgotten.len() >= FORGOTTEN_MAX {
                forgotten.clear();
            }
        }
        let (until, last) = forgotten.entry(host).or_insert((now, Duration::ZERO));
        // Several failures at the same time count once.
        if *until <= now {
            *last = (*last * 2).clamp(FORGOTTEN_FOR, FORGOTTEN_FOR_MAX);
            *until = now + *last;
            tracing::info!("neighbour {host} is not asked for {} s", last.as_secs());
        }
    }

    /// Replaces them by those at these addresses. Those that are known already stay as they are. Returns the new ones.
    pub(in crate::upstream) fn set(
        &self,
        id: u64,
        patience: Duration,
        addresses: &[SocketAddr],
        store_dir: &StoreDir,
    ) -> Vec<Arc<Remote>> {
        self.id.store(id, Ordering::Release);
        *self.patience.write() = patience;
        let (known, now) = (self.all(), Instant::now());
        let (mut list, mut new): (Vec<Arc<Remote>>, Vec<_>) = Default::default();
        for address in addresses {
            let host = address.ip();
            let is_forgotten = self.forgotten.lock().get(&host).is_some_and(|(until, _)| *until > now);
            let Ok(url) = Url::parse(&format!("http://{address}")) else { continue };
            if is_forgotten || list.len() >= NEIGHBOURS_MAX || list.iter().any(|other| *other.url() == url) {
                continue;
            }
            let same = known.iter().find(|remote| *remote.url() == url).cloned();
            list.push(same.unwrap_or_else(|| {
                let (timeout, stall_timeout) = (ANSWERS_WITHIN, ANSWERS_WITHIN);
                let options = UpstreamOptions { timeout, stall_timeout, ..UpstreamOptions::new(url, None) };
                let remote = Arc::new(Remote::nearby(options, store_dir, Nearby::at(host)));
                new.push(Arc::clone(&remote));
                remote
            }));
        }
        *self.list.write() = list.into();
        new
    }

    pub(in crate::upstream) fn set_coming(&self, file: &str, coming: Option<Coming>) {
        let mut all = self.coming.lock();
        match coming {
            Some(coming) => all.insert(file.to_owned(), coming),
            None => all.remove(file),
        };
    }
}

/// Asks a new neighbour a few times, on a thread of its own.
pub(in crate::upstream) fn greet(remote: &Arc<Remote>) {
    let greeted = Arc::clone(remote);
    let greet = move || {
        for _ in 0..GREETINGS {
            let began = Instant::now();
            let url = greeted.url().child("nix-cache-info").ok();
            let answer =
                url.and_then(|url| greeted.cache.client().small_answer(&Request::get(&url), GREETING_LEN_MAX).ok());
            if answer.flatten().is_none() {
                greeted.goes();
                return;
            }
            greeted.health.answered(true, began.elapsed(), true);
        }
    };
    if let Err(error) = thread::Builder::new().name("greet-neighbour".into()).spawn(greet) {
        tracing::error!("neighbours: no thread to ask one: {error}");
    }
}

fn is_gone(remote: &Remote) -> bool {
    remote.nearby.as_ref().is_some_and(Nearby::is_gone)
}

/// Who of several machines fetches a NAR that all of them want: the one for which this is highest.
pub(in crate::upstream) fn rank(id: u64, file: &str) -> u64 {
    let mut hasher = Sha256Hasher::new();
    hasher.update(&id.to_be_bytes());
    hasher.update(file.as_bytes());
    hasher.finish().as_bytes().first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_fails_is_forgotten_for_a_while_and_numbers_are_limited() {
        let (neighbours, store_dir) = (Neighbours::default(), StoreDir::default());
        let addresses: Vec<SocketAddr> = (1..100).map(|at| SocketAddr::from(([10, 0, 0, at], 1))).collect();
        neighbours.set(7, Duration::ZERO, &addresses, &store_dir);
        let all = neighbours.all();
        assert_eq!(all.len(), NEIGHBOURS_MAX);
        assert!(all[0].goes());
        assert_eq!(neighbours.all().len(), NEIGHBOURS_MAX - 1);
        neighbours.set(7, Duration::ZERO, &addresses[..3], &store_dir);
        assert_eq!(neighbours.all().len(), 2, "the first is forgotten");
        assert!(Arc::ptr_eq(&neighbours.all()[0], &all[1]), "and the others are as they were");
        for at in 0..2 * FORGOTTEN_MAX as u32 {
            neighbours.forget(IpAddr::from(at.to_be_bytes()));
        }
        assert!(neighbours.forgotten.lock().len() <= FORGOTTEN_MAX);
    }

    #[test]
    fn each_machine_ranks_highest_for_some_files() {
        let best = |file: usize| (1..=10).max_by_key(|id| rank(*id, &file.to_string())).unwrap();
        let mut counts = [0; 11];
        (0..1000).for_each(|file| counts[usize::try_from(best(file)).unwrap()] += 1);
        assert!(counts[1..].iter().all(|count| (50..200).contains(count)), "{counts:?}");
    }
}
