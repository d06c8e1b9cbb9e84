//! Deltas of NARs: made once, however many clients ask, and kept in the folder of compressed NARs.
//!
//! A delta is made from two verified NARs in memory, and kept only if decoding it gives the NAR again. Processors and memory are
//! bounded by permits ([`permits`]). A request that would have to wait for long gets the whole NAR instead.

mod asked;
mod permits;

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use narval_cache::delta_fits;
use narval_cache::encode::{DELTA_FORMAT, is_delta_of, make_delta};
use narval_http::{HeadRef, HeaderValue, Response, header};
use narval_nix::{NarHash, Sha256};
use quick_cache::sync::Cache;

use super::delta_mode::DeltaMode;
use super::file::send_file;
use super::representation::Representation;
use super::zstd::{Folder, NarCacheConfig, Stored, etag, is_as_named};
use crate::error::ServeError;
use crate::metrics::Metrics;
pub(crate) use asked::Asked;
use permits::{Permit, WAIT_MAX, Waiting};

/// The level of zstd. A security release of git (45 MB): 1.2 MB in 0.24 s at level 3, 0.26 MB in 1.0 s at this one, 0.18 MB in 27 s
/// at level 19.
const LEVEL: i32 = 9;
/// The memory that zstd takes at this level, besides the two NARs and the delta.
const CONTEXT_BYTES: u64 = 64 * 1024 * 1024;
/// The suffix of a delta's file name.
const EXTENSION: &str = ".dcz";
/// The maximum number of remembered pairs of NARs.
const KNOWN_MAX: usize = 16 * 1024;
/// How long a verified file is trusted.
const CHECK_AGAIN_AFTER: Duration = Duration::from_secs(24 * 3600);
/// A delta is sent if it has less than this fraction of the compressed NAR.
const WORTH_IT: (u64, u64) = (4, 5);
/// The size of a compressed NAR is estimated as this fraction of the NAR until there is one: a half. At level 1, programs become 0.35 to 0.7 of
/// their NAR. A delta is made at a higher level, so it is hardly ever larger than the compressed NAR, whatever that is.
const COMPRESSED_FRACTION: u64 = 2;

/// A NAR, and how to read it.
pub(crate) struct DeltaEnd<'a> {
    pub(crate) hash: NarHash,
    pub(crate) size: u64,
    /// Reads the whole NAR and verifies it.
    pub(crate) read: &'a dyn Fn() -> Result<Vec<u8>, String>,
}

/// Two NARs, by their hashes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Pair {
    base: NarHash,
    nar: NarHash,
}

impl Pair {
    /// How the names of their delta's file begin.
    fn name(&self) -> String {
        format!("{}.{}", self.nar.to_nix32(), self.base.to_nix32())
    }
}

/// What is remembered of a pair.
#[derive(Clone, Debug)]
enum Known {
    /// Its delta's file, and when its contents were verified.
    Stored(Stored, Option<Instant>),
    /// The delta is too large, or cannot be made.
    NotWorthIt,
}

/// The result of making a delta in advance.
#[derive(Debug)]
pub(crate) enum Delta {
    /// It existed already.
    Kept(Stored, Arc<File>),
    /// It was made.
    Made(Stored, Arc<File>),
    /// There is none: the whole NAR is to be sent.
    None,
}

/// What can be expected of a delta that is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Prospect {
    /// It is kept, and has this many bytes.
    Ready(u64),
    /// It would be made.
    Possible,
    /// The whole NAR would be sent.
    None,
}

/// See the module's description.
#[derive(Debug)]
pub(crate) struct Deltas {
    mode: DeltaMode,
    folder: Folder,
    encoding: String,
    known: Cache<Pair, Known>,
    making: Mutex<HashMap<Pair, Arc<Making>>>,
    metrics: Arc<Metrics>,
}

/// An in-flight delta: one request makes it, others wait.
#[derive(Debug, Default)]
struct Making {
    is_done: Mutex<bool>,
    done: Condvar,
}

impl Deltas {
    /// Opens the folder; `None` if no deltas are wanted.
    ///
    /// # Errors
    /// It cannot be created or written to.
    pub(crate) fn open(config: &NarCacheConfig, metrics: Arc<Metrics>) -> io::Result<Option<Self>> {
        if config.deltas == DeltaMode::Off {
            return Ok(None);
        }
        Ok(Some(Self {
            mode: config.deltas,
            folder: Folder::open(&config.folder, config.level, config.bytes_max)?,
            encoding: format!("delta-{LEVEL}-{}-{DELTA_FORMAT}", zstd::zstd_safe::version_number()),
            known: Cache::new(KNOWN_MAX),
            making: Mutex::default(),
            metrics,
        }))
    }

    /// The delta between two NARs, if it is worth it: kept, or made now if the mode says so. `compressed` is the size of the compressed
    /// NAR, if there is one.
    pub(crate) fn get(&self, base: &DeltaEnd<'_>, nar: &DeltaEnd<'_>, compressed: Option<u64>) -> Delta {
        let pair = Pair { base: base.hash, nar: nar.hash };
        if base.hash == nar.hash || !delta_fits(base.size, nar.size) {
            return Delta::None;
        }
        if let Some((stored, file)) = self.find(&pair) {
            return Delta::Kept(stored, file);
        }
        let is_refused = matches!(self.known.get(&pair), Some(Known::NotWorthIt));
        if self.mode != DeltaMode::On || is_refused || self.folder.is_paused() {
            return Delta::None;
        }
        let making = match self.begin(&pair) {
            Ok(making) => making,
            Err(other) => {
                self.metrics.single_flight_waits.inc();
                other.wait();
                return self.find(&pair).map_or(Delta::None, |(stored, file)| Delta::Kept(stored, file));
            }
        };
        // Another request may have made it just now.
        if let Some((stored, file)) = self.find(&pair) {
            return Delta::Kept(stored, file);
        }
        let whole = compressed.unwrap_or(nar.size / COMPRESSED_FRACTION);
        let made = self.make(base, nar, whole / WORTH_IT.1 * WORTH_IT.0);
        drop(making);
        match made {
            Ok(Some((stored, file))) => Delta::Made(stored, file),
            Ok(None) => Delta::None,
            Err(reason) => {
                tracing::debug!("no delta from {} to {}: {reason}", base.hash, nar.hash);
                Delta::None
            }
        }
    }

    /// What [`get`](Self::get) would do for two NARs, given by hash and size: nothing is read or made for it.
    pub(crate) fn prospect(&self, base: (NarHash, u64), nar: (NarHash, u64)) -> Prospect {
        let pair = Pair { base: base.0, nar: nar.0 };
        if base.0 == nar.0 || !delta_fits(base.1, nar.1) {
            return Prospect::None;
        }
        let known = self.known.get(&pair);
        match known {
            Some(Known::Stored(stored, _)) => return Prospect::Ready(stored.file_size),
            // `narval warm` may have made it meanwhile.
            _ => {
                if let Some(stored) = self.folder.find_named(&self.encoding, &pair.name(), EXTENSION) {
                    return Prospect::Ready(stored.file_size);
                }
            }
        }
        let is_refused = matches!(known, Some(Known::NotWorthIt)) || self.folder.is_paused();
        if self.mode == DeltaMode::On && !is_refused { Prospect::Possible } else { Prospect::None }
    }

    /// Answers with the delta between two NARs, or with ranges of it; `None` if the whole NAR is to be sent. See [`get`](Self::get).
    pub(crate) fn answer(
        &self,
        head: &HeadRef<'_>,
        (base, nar): (&DeltaEnd<'_>, &DeltaEnd<'_>),
        compressed: Option<u64>,
    ) -> Result<Option<Response>, ServeError> {
        let (Delta::Kept(stored, file) | Delta::Made(stored, file)) = self.get(base, nar, compressed) else {
            return Ok(None);
        };
        self.metrics.nar_deltas_sent.inc();
        let representation = representation(&stored, &nar.hash, &base.hash);
        let response = send_file(&representation, head, &file, &self.metrics.nar_bytes_delta)?;
        // It depends on what the client has (RFC 9842, section 6.2).
        let vary = HeaderValue::from_static("accept-encoding, available-dictionary");
        Ok(Some(response.header(header::VARY, vary)))
    }

    /// A kept delta, verified.
    fn find(&self, pair: &Pair) -> Option<(Stored, Arc<File>)> {
        let (stored, checked_at) = match self.known.get(pair) {
            Some(Known::Stored(stored, checked_at)) => (stored, checked_at),
            // `narval warm` may have made it meanwhile.
            _ => (self.folder.find_named(&self.encoding, &pair.name(), EXTENSION)?, None),
        };
        let Some(file) = self.folder.open_file(&stored) else {
            self.known.remove(pair);
            return None;
        };
        if checked_at.is_none_or(|at| at.elapsed() >= CHECK_AGAIN_AFTER) {
            if !is_as_named(&file, &stored) {
                self.metrics.nar_cache_damaged.inc();
                self.folder.discard(&stored);
                self.known.remove(pair);
                return None;
            }
            self.known.insert(*pair, Known::Stored(stored.clone(), Some(Instant::now())));
        }
        Some((stored, Arc::new(file)))
    }

    /// Registers this request as the one that makes a delta.
    ///
    /// # Errors
    /// The in-flight delta of another request.
    fn begin<'a>(&'a self, pair: &Pair) -> Result<Begun<'a>, Arc<Making>> {
        let mut all = self.all_making();
        if let Some(other) = all.get(pair) {
            return Err(Arc::clone(other));
        }
        let making = Arc::new(Making::default());
        all.insert(*pair, Arc::clone(&making));
        Ok(Begun { deltas: self, pair: *pair, making })
    }

    fn all_making(&self) -> MutexGuard<'_, HashMap<Pair, Arc<Making>>> {
        self.making.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes, verifies and keeps a delta of at most `len_max` bytes.
    fn make(
        &self,
        base: &DeltaEnd<'_>,
        nar: &DeltaEnd<'_>,
        len_max: u64,
    ) -> Result<Option<(Stored, Arc<File>)>, String> {
        let pair = Pair { base: base.hash, nar: nar.hash };
        let Some(_permit) = Permit::take(base.size + nar.size + len_max + CONTEXT_BYTES) else { return Ok(None) };
        let (old, new) = ((base.read)()?, (nar.read)()?);
        let len_max = usize::try_from(len_max).unwrap_or(0);
        let made = make_delta((&old, &base.hash), &new, LEVEL, len_max).map_err(|error| error.to_string())?;
        drop(new);
        let Some(delta) = made else {
            self.known.insert(pair, Known::NotWorthIt);
            return Ok(None);
        };
        if !is_delta_of(&delta, &old, (nar.size, &nar.hash)).map_err(|error| error.to_string())? {
            self.known.insert(pair, Known::NotWorthIt);
            return Err("undoing it does not give the NAR".to_owned());
        }
        let kept = self.keep(&pair, &delta).inspect_err(|error| self.folder.pause(error));
        let (stored, file) = kept.map_err(|error| error.to_string())?;
        self.metrics.nar_deltas_made.inc();
        self.known.insert(pair, Known::Stored(stored.clone(), Some(Instant::now())));
        Ok(Some((stored, file)))
    }

    fn keep(&self, pair: &Pair, delta: &[u8]) -> io::Result<(Stored, Arc<File>)> {
        let filling = self.folder.begin()?;
        filling.file().write_all(delta)?;
        let stored = self.folder.keep(filling, &self.encoding, (&pair.name(), EXTENSION), &Sha256::of(delta))?;
        let file = self.folder.open_file(&stored).ok_or(io::ErrorKind::NotFound)?;
        Ok((stored, Arc::new(file)))
    }
}

impl Making {
    /// Waits until it is done, for a limited time.
    fn wait(&self) {
        let Some(_waiting) = Waiting::begin() else { return };
        let is_done = self.is_done.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.done.wait_timeout_while(is_done, WAIT_MAX, |is_done| !*is_done);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }
}

/// Removes the in-flight delta when dropped, also after a panic.
struct Begun<'a> {
    deltas: &'a Deltas,
    pair: Pair,
    making: Arc<Making>,
}

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        self.deltas.all_making().remove(&self.pair);
        *self.making.is_done.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.making.done.notify_all();
    }
}

/// A delta as the representation of a NAR. It decodes to the NAR, also at the URL of a compressed NAR.
fn representation(stored: &Stored, nar: &NarHash, base: &NarHash) -> Representation {
    let tag = etag(&format!("{}.{}", nar.to_nix32(), base.to_nix32()), &stored.encoding);
    Representation {
        content_type: HeaderValue::from_static("application/x-nix-nar"),
        coding: Some(HeaderValue::from_static("dcz")),
        etag: HeaderValue::from_str(&tag).ok(),
        varies: false,
        size: stored.file_size,
    }
}
