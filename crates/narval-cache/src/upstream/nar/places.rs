//! Where a NAR can be had: at the upstream that its narinfo came from, and at others that have the same.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use narval_client::{HttpError, Trouble};
use narval_nix::{Compression, NarInfo};
use parking_lot::Mutex;

use crate::file::CacheFile;
use crate::upstream::answer::{Unavailable, UpstreamAnswer};
use crate::upstream::neighbours::asking::Near;
use crate::upstream::options::Deadline;
use crate::upstream::race::trace::{self, Happened};
use crate::upstream::race::{Pace, race};
use crate::upstream::remote::Remote;
use crate::upstream::shared::Shared;
use crate::upstream::shared::question::PATIENCE;
use crate::upstream::standing::counts::RequestOutcome;
use crate::upstream::standing::nearby::Nearby;

/// After how long all upstreams are asked to open a NAR's file, whatever that costs.
const ALL_AFTER: Duration = Duration::from_secs(5);

/// A NAR to fetch, and who may have it.
pub(in crate::upstream) struct Places {
    pub(in crate::upstream) shared: Arc<Shared>,
    pub(in crate::upstream) remote: Arc<Remote>,
    pub(in crate::upstream) info: Arc<NarInfo>,
    /// If it is to come from neighbours. Upstreams continue what they do not finish.
    pub(in crate::upstream) near: Option<FromNear>,
}

/// Neighbours that have a NAR.
pub(in crate::upstream) struct FromNear {
    pub(in crate::upstream) near: Near,
    /// Those that have sent some of it.
    pub(in crate::upstream) used: Mutex<Vec<Arc<Remote>>>,
    /// Whether clients have got some of it.
    pub(in crate::upstream) shown: Arc<AtomicBool>,
}

/// A file of the NAR that has been opened.
pub(in crate::upstream) struct Opened {
    pub(in crate::upstream) remote: Arc<Remote>,
    pub(in crate::upstream) info: Arc<NarInfo>,
    pub(in crate::upstream) body: CacheFile,
}

/// What can take the place of a file.
///
/// A client has been told the name, the length and the hash of one file, and may have its first bytes: no other file can take its
/// place, even if it decodes to the same NAR. Where the NAR itself is sent, any file of it can.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::upstream) enum Same {
    /// The same bytes.
    File,
    /// Any file of the same NAR.
    Nar,
}

impl Same {
    fn fits(self, info: &NarInfo, other: &NarInfo) -> bool {
        let is_compressed = info.compression != Compression::None;
        let same_file = other.compression == info.compression
            && (!is_compressed || info.file_hash.is_some() && other.file_hash == info.file_hash);
        other.nar_hash == info.nar_hash && (self == Self::Nar || same_file)
    }
}

impl Places {
    /// The upstreams that may have it, without those that were tried.
    pub(in crate::upstream) fn others(&self, tried: &[Arc<Remote>]) -> Vec<Arc<Remote>> {
        let mut remotes = self.near.as_ref().map_or_else(Vec::new, |from| from.near.remotes.clone());
        remotes.extend(self.shared.remotes_for(&self.info.path.hash_part()));
        remotes.retain(|remote| !tried.iter().any(|other| Arc::ptr_eq(other, remote)));
        remotes
    }

    /// Whether another one than these may have it.
    pub(in crate::upstream) fn has_others(&self, tried: &[Arc<Remote>], current: &Arc<Remote>) -> bool {
        self.is_coming() || self.others(tried).iter().any(|remote| !Arc::ptr_eq(remote, current))
    }

    /// How long clients wait for upstreams.
    pub(in crate::upstream) fn deadline(&self) -> Deadline {
        *self.shared.deadline.read()
    }

    /// Opens the file: at its own upstream if that answers soon.
    pub(in crate::upstream) fn open(&self) -> Result<Opened, Trouble> {
        if let Some(from) = &self.near {
            return self.race(&from.near.remotes, 0, Same::File).ok_or(Trouble::Absent);
        }
        let mut remotes = self.others(std::slice::from_ref(&self.remote));
        remotes.insert(0, Arc::clone(&self.remote));
        if remotes.len() > 1
            && let Some(opened) = self.race(&remotes, 0, Same::File)
        {
            return Ok(opened);
        }
        // It may need several attempts, and says what is wrong.
        let url = self.remote.cache.nar_url(&self.info).map_err(|error| Trouble::Wrong(error.to_string()))?;
        trace::now(&self.remote, "NAR", Happened::Asked);
        let body = self.remote.counted(|| CacheFile::open(&self.remote.nars, &url));
        let happened = match &body {
            Ok(Some(_)) => Happened::Has,
            Ok(None) => Happened::Absent,
            Err(error) => Happened::failed(&error.to_string()),
        };
        trace::now(&self.remote, "NAR", happened);
        let body = body.map_err(|error| self.remote.failed(error))?.ok_or(Trouble::Absent)?;
        if let (Some(length), Some(announced)) = (body.total_len(), self.info.file_size)
            && length != announced
        {
            return Err(Trouble::Wrong(format!("FileSize is {length}, but the narinfo has {announced}")));
        }
        Ok(Opened { remote: Arc::clone(&self.remote), info: Arc::clone(&self.info), body })
    }

    /// Opens what is left at an upstream that was not tried.
    pub(in crate::upstream) fn elsewhere(&self, tried: &[Arc<Remote>], position: u64, same: Same) -> Option<Opened> {
        let opened = self.race(&self.others(tried), position, same)?;
        tracing::warn!(
            "upstream {}: the NAR of {} is continued at byte {position} from {}",
            tried.last().unwrap_or(&self.remote).url(),
            self.info.path,
            opened.remote.url()
        );
        Some(opened)
    }

    /// How long this one may be silent, if it is a neighbour.
    pub(in crate::upstream) fn patience(&self, remote: &Remote) -> Option<Duration> {
        self.near.as_ref().filter(|_| remote.is_near()).map(|from| from.near.patience)
    }

    /// Whether a neighbour sends it while it comes to it. What it does not finish is asked of neighbours again: those that follow the same one would
    /// otherwise turn to an upstream all at once.
    pub(in crate::upstream) fn is_coming(&self) -> bool {
        self.near.as_ref().is_some_and(|from| from.near.is_coming)
    }

    /// Whether clients have got some of what comes from a neighbour: it cannot be begun again.
    pub(in crate::upstream) fn is_shown(&self) -> bool {
        self.near.as_ref().is_some_and(|from| from.shown.load(Ordering::Acquire))
    }

    /// Whether this one, which has sent nothing for so long, is waited for nevertheless.
    pub(in crate::upstream) fn still_comes(&self, remote: &Remote, silent: Duration) -> bool {
        let from = self.near.as_ref().filter(|from| from.near.is_coming && silent < self.remote.stall_timeout);
        from.is_some_and(|from| self.shared.still_comes(&from.near, remote))
    }

    /// Records something of the neighbours that have sent some of it.
    pub(in crate::upstream) fn neighbours_used(&self, record: impl Fn(&Nearby)) {
        let used = self.near.iter().flat_map(|from| from.used.lock().clone());
        used.for_each(|remote| remote.nearby.iter().for_each(&record));
    }

    fn race(&self, remotes: &[Arc<Remote>], position: u64, same: Same) -> Option<Opened> {
        let (own, info) = (Arc::clone(&self.remote), Arc::clone(&self.info));
        let near = self.near.as_ref().map(|from| Arc::clone(&from.near.info));
        let open = move |remote: &Arc<Remote>| {
            if let Some(near) = near.as_ref().filter(|_| remote.is_near()) {
                let answer = remote.open_nar(Arc::clone(near), position);
                if matches!(answer, UpstreamAnswer::Absent) {
                    // It has said otherwise.
                    remote.goes();
                }
                return answer;
            }
            if Arc::ptr_eq(remote, &own) {
                return remote.open_nar(Arc::clone(&info), position);
            }
            match remote.narinfo(info.path.hash_part()) {
                UpstreamAnswer::Has(other) if same.fits(&info, &other) => remote.open_nar(Arc::new(other), position),
                UpstreamAnswer::Has(_) | UpstreamAnswer::Absent => UpstreamAnswer::Absent,
                UpstreamAnswer::Failed(unavailable) => UpstreamAnswer::Failed(unavailable),
            }
        };
        let hedge_after = self.deadline().absent_after / 2;
        let pace = match self.patience(remotes.first()?) {
            // Those that do not open it in time are late.
            Some(patience) => Pace { all_after: patience, equal: Some(patience / 2), ..Pace::ranked("NAR", patience) },
            None => {
                let all_after = ALL_AFTER.max(hedge_after);
                Pace { all_after, equal: Some(hedge_after), ..Pace::ranked("NAR", PATIENCE) }
            }
        };
        let (remote, (info, body)) = race(remotes, &self.shared.hedges, pace, open).ok().flatten()?;
        if let Some(from) = self.near.as_ref().filter(|_| remote.is_near()) {
            from.used.lock().push(Arc::clone(&remote));
        }
        Some(Opened { remote, info, body })
    }
}

impl Remote {
    /// Opens a NAR's file, with one attempt.
    fn open_nar(self: &Arc<Self>, info: Arc<NarInfo>, position: u64) -> UpstreamAnswer<(Arc<NarInfo>, CacheFile)> {
        let Ok(url) = self.cache.nar_url(&info) else { return UpstreamAnswer::Absent };
        let length = info.file_size.or((info.compression == Compression::None).then_some(info.nar_size));
        let opened = self.counted(|| match (position, length) {
            (0, _) => CacheFile::open_once(&self.nars, &url),
            (_, Some(length)) => CacheFile::rest(&self.nars, &url, position, length),
            (_, None) => Ok(None),
        });
        match opened {
            Ok(Some(body)) if length.is_none() || body.total_len().is_none() || body.total_len() == length => {
                UpstreamAnswer::Has((info, body))
            }
            Ok(_) | Err(HttpError::Changed | HttpError::OutOfBounds { .. }) => UpstreamAnswer::Absent,
            Err(error) => {
                tracing::warn!("upstream {url}: {error}");
                self.health.nar_failed();
                self.has_failed(error.retry_after());
                UpstreamAnswer::Failed(Unavailable::new(5, error.to_string()))
            }
        }
    }

    fn counted(
        &self,
        open: impl FnOnce() -> Result<Option<CacheFile>, HttpError>,
    ) -> Result<Option<CacheFile>, HttpError> {
        let began = Instant::now();
        let opened = open();
        self.owes(false);
        let outcome = match &opened {
            Ok(Some(_)) => RequestOutcome::Found,
            Ok(None) => RequestOutcome::Absent,
            Err(_) => RequestOutcome::Failed,
        };
        self.counts.add(outcome, began.elapsed());
        opened
    }
}
