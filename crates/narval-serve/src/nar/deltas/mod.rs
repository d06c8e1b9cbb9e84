//! Deltas of NARs: made once, however many clients ask, and kept in the folder of compressed NARs.
//!
//! A delta is made from two verified NARs in memory, and kept only if decoding it gives the NAR again. A few threads make them
//! ([`makers`]). Requests wait for them on threads of their own ([`answer_on_a_thread`]); one that would have to wait for long gets the
//! whole NAR instead.

mod makers;
mod request;

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use narval_codec::delta::delta_fits;
use narval_codec::encode::{DELTA_FORMAT, Encoding, is_delta_of, make_delta};
use narval_files::Background;
use narval_http::{HeadRef, HeaderValue, Request, Response, header};
use narval_keep::CacheName;
use narval_nix::{NarHash, Sha256};
use parking_lot::Mutex;
use quick_cache::sync::Cache;

use super::delta_mode::DeltaMode;
use super::file::send_file;
use super::representation::Representation;
use super::zstd::{Folder, NarCacheConfig, Stored, etag, is_as_named};
use crate::error::ServeError;
use crate::metrics::Metrics;
use makers::{Job, Ticket, WAITING_MAX};
pub(crate) use request::DeltaRequest;

/// The memory that zstd takes, besides the two NARs and the delta.
const CONTEXT_BYTES: u64 = 64 * 1024 * 1024;
/// Writing, syncing and renaming a file takes about as long as making a delta of this many bytes.
const FILE_BYTES: u64 = 1024 * 1024;
/// The suffix of a delta's file name.
const EXTENSION: &str = ".dcz";
/// The maximum number of remembered pairs of NARs.
const KNOWN_MAX: usize = 16 * 1024;
/// How long a verified file is trusted.
const CHECK_AGAIN_AFTER: Duration = Duration::from_secs(24 * 3600);
/// A delta is sent if it has less than this fraction of the compressed NAR.
const WORTH_IT: (u64, u64) = (4, 5);
/// Where there is no compressed NAR, its size is found by compressing it, at this level at most: higher ones take seconds.
const COMPARED_LEVEL_MAX: i32 = 3;
/// A delta of less than this fraction of the NAR is not compared: hardly any NAR compresses that well.
const CLEARLY_WORTH_IT: u64 = 16;

/// Answers a request on a thread of its own, if there may be another one, else here: workers remain free for others.
pub(crate) fn answer_on_a_thread(
    request: Request,
    answer: impl FnOnce(Request) -> Response + Send + 'static,
) -> Response {
    static THREADS: LazyLock<Arc<Background>> = LazyLock::new(|| Background::new("nar-waiting", WAITING_MAX, 0));
    let (response, responder) = Response::later();
    // If it panics, the client gets the 500 of a responder that is dropped.
    THREADS.run(Box::new(move || responder.respond(answer(request))));
    response
}

/// A NAR, and how to read it.
pub(crate) struct DeltaEnd {
    pub(crate) hash: NarHash,
    pub(crate) size: u64,
    /// Reads the whole NAR and verifies it.
    pub(crate) read: Box<dyn Fn() -> Result<Vec<u8>, String> + Send>,
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

/// See the module's description.
#[derive(Debug)]
pub(crate) struct Deltas {
    mode: DeltaMode,
    /// The level of compressed NARs.
    level: i32,
    folder: Folder,
    encoding: String,
    known: Cache<Pair, Known>,
    /// The deltas that are being made, or wait for it.
    making: Mutex<HashMap<Pair, Ticket>>,
    metrics: Arc<Metrics>,
}

impl Deltas {
    /// Opens the folder for a cache; `None` if no deltas are wanted. Each has its own deltas: how fast one answers says nothing about what another
    /// was asked for.
    ///
    /// # Errors
    /// It cannot be created or written to.
    pub(crate) fn open(config: &NarCacheConfig, cache: &CacheName, metrics: Arc<Metrics>) -> io::Result<Option<Self>> {
        if config.deltas == DeltaMode::Off {
            return Ok(None);
        }
        let of_cache = if *cache == CacheName::default() { String::new() } else { format!("-{cache}") };
        Ok(Some(Self {
            mode: config.deltas,
            level: config.level,
            folder: Folder::open(&config.folder, config.level, config.bytes_max)?,
            encoding: format!("delta-{}-{DELTA_FORMAT}{of_cache}", zstd::zstd_safe::version_number()),
            known: Cache::new(KNOWN_MAX),
            making: Mutex::default(),
            metrics,
        }))
    }

    /// The delta between two NARs, if it is worth it: kept, or made if the mode says so and it is expected to be ready within `patience`.
    /// If it is not, it may be made later. `compressed` is the size of the compressed NAR, if there is one.
    pub(crate) fn get(
        self: &Arc<Self>,
        (base, nar): (DeltaEnd, DeltaEnd),
        compressed: Option<u64>,
        patience: Duration,
    ) -> Delta {
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
        let (ticket, is_ours) = match self.begin(pair, (base, nar), compressed) {
            Ok(Some(ticket)) => (ticket, true),
            Ok(None) => return Delta::None,
            Err(ticket) => {
                self.metrics.single_flight_waits.inc();
                (ticket, false)
            }
        };
        makers::wait(ticket, patience);
        match self.find(&pair) {
            Some((stored, file)) if is_ours => Delta::Made(stored, file),
            Some((stored, file)) => Delta::Kept(stored, file),
            None => Delta::None,
        }
    }

    /// Answers with the delta between two NARs, or with ranges of it; `None` if the whole NAR is to be sent. See [`get`](Self::get).
    pub(crate) fn answer(
        self: &Arc<Self>,
        head: &HeadRef<'_>,
        request: &DeltaRequest,
        (base, nar): (DeltaEnd, DeltaEnd),
        compressed: Option<u64>,
    ) -> Result<Option<Response>, ServeError> {
        let (base_hash, nar_hash) = (base.hash, nar.hash);
        let (Delta::Kept(stored, file) | Delta::Made(stored, file)) =
            self.get((base, nar), compressed, request.patience)
        else {
            return Ok(None);
        };
        self.metrics.nar_deltas_sent.inc();
        let representation = representation(&stored, &nar_hash, &base_hash);
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

    /// Queues a delta to be made; `None` if too many are queued.
    ///
    /// # Errors
    /// Another request has queued it.
    fn begin(
        self: &Arc<Self>,
        pair: Pair,
        (base, nar): (DeltaEnd, DeltaEnd),
        compressed: Option<u64>,
    ) -> Result<Option<Ticket>, Ticket> {
        let mut all = self.making.lock();
        if let Some(ticket) = all.get(&pair) {
            return Err(*ticket);
        }
        // The result is smaller than the NAR.
        let (bytes, memory) = (base.size + nar.size + FILE_BYTES, base.size + 2 * nar.size + CONTEXT_BYTES);
        let guard = MakingGuard { deltas: Arc::clone(self), pair };
        let make = Box::new(move || {
            let deltas = &guard.deltas;
            // Another process, or the last request for it, may have made it just now.
            if deltas.find(&pair).is_none()
                && let Err(reason) = deltas.make(&base, &nar, compressed)
            {
                tracing::debug!("no delta from {} to {}: {reason}", base.hash, nar.hash);
            }
        });
        match makers::queue(Job { bytes, memory, make }) {
            Ok(ticket) => {
                all.insert(pair, ticket);
                Ok(Some(ticket))
            }
            Err(refused) => {
                // A job takes this lock when it is dropped.
                drop(all);
                drop(refused);
                Ok(None)
            }
        }
    }

    /// Makes, verifies and keeps a delta, if it is worth it.
    fn make(&self, base: &DeltaEnd, nar: &DeltaEnd, compressed: Option<u64>) -> Result<(), String> {
        let pair = Pair { base: base.hash, nar: nar.hash };
        let (old, new) = ((base.read)()?, (nar.read)()?);
        let len_max = usize::try_from(compressed.unwrap_or(nar.size) / WORTH_IT.1 * WORTH_IT.0).unwrap_or(0);
        let made = make_delta((&old, &base.hash), &new, len_max).map_err(|error| error.to_string())?;
        let delta = match made {
            Some(delta) if compressed.is_some() || self.is_worth_it(&delta, (&new, &nar.hash)) => delta,
            _ => {
                self.known.insert(pair, Known::NotWorthIt);
                return Ok(());
            }
        };
        if !is_delta_of(&delta, &old, &new).map_err(|error| error.to_string())? {
            self.known.insert(pair, Known::NotWorthIt);
            return Err("undoing it does not give the NAR".to_owned());
        }
        let kept = self.keep(&pair, &delta).inspect_err(|error| self.folder.pause(error));
        let stored = kept.map_err(|error| error.to_string())?;
        self.metrics.nar_deltas_made.inc();
        self.known.insert(pair, Known::Stored(stored, Some(Instant::now())));
        Ok(())
    }

    /// Whether a delta is so much smaller than the NAR becomes when it is compressed: that is only done until it is clear.
    fn is_worth_it(&self, delta: &[u8], (nar, hash): (&[u8], &NarHash)) -> bool {
        if (delta.len() as u64).saturating_mul(CLEARLY_WORTH_IT) < nar.len() as u64 {
            return true;
        }
        let (needed, mut len) = (delta.len() as u64 / WORTH_IT.0 * WORTH_IT.1, 0);
        let encoding = Encoding::Zstd(self.level.min(COMPARED_LEVEL_MAX));
        let encoded = encoding.encode(&mut &*nar, nar.len() as u64, *hash, &mut |bytes| {
            len += bytes.len() as u64;
            if len > needed { Err(io::ErrorKind::FileTooLarge.into()) } else { Ok(()) }
        });
        encoded.is_err() && len > needed
    }

    fn keep(&self, pair: &Pair, delta: &[u8]) -> io::Result<Stored> {
        let filling = self.folder.begin()?;
        filling.file().write_all(delta)?;
        self.folder.keep(filling, &self.encoding, (&pair.name(), EXTENSION), &Sha256::of(delta))
    }
}

/// Removes the in-flight delta when dropped, also after a panic.
struct MakingGuard {
    deltas: Arc<Deltas>,
    pair: Pair,
}

impl Drop for MakingGuard {
    fn drop(&mut self) {
        self.deltas.making.lock().remove(&self.pair);
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
