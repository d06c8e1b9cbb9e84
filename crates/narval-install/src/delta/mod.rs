//! Deltas of NARs: a path is fetched as the difference to one that the destination has (`docs/deltas.md`).

mod bases;
mod pace;

use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use narval_cache::TrustedNarInfo;
use narval_codec::delta::{DELTA_NAR_BYTES_MIN, DeltaMemory, Reserved, delta_fits, delta_memory};
use narval_nix::{Compression, NarHash, PathInfo, Sha256Hasher, StorePath};
use narval_store::{NarReader, Store};

pub use bases::DeltaBases;
pub(crate) use pace::{Download, Pace, PendingDelta};

/// The number of bytes of a base that are read and hashed at a time.
const PIECE_LEN: usize = 256 * 1024;

/// The longest time that a server is asked to wait for a delta that it has yet to make. Servers of ours do not wait longer, either.
const WAIT_MAX: Duration = Duration::from_secs(25);
/// The size of a compressed NAR is assumed to be this fraction of the NAR if it is not known: a half.
const COMPRESSED_FRACTION: u64 = 2;
/// The size of a delta is assumed to be this fraction of the compressed NAR if it is not known: a quarter.
const DELTA_FRACTION: u64 = 4;

/// Whether deltas are asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeltaUse {
    /// Never.
    Never,
    /// If the connection is so slow that they save time.
    #[default]
    Adaptive,
    /// Always.
    Always,
}

/// The deltas of one run.
pub(crate) struct Deltas<'a> {
    /// The destination, which has the bases.
    store: &'a Store,
    when: DeltaUse,
    /// Their closures are preferred as bases.
    preferred: &'a [StorePath],
    /// `None` if the store could not be read.
    bases: OnceLock<Option<DeltaBases>>,
    memory: DeltaMemory,
    pub(crate) pace: Arc<Pace>,
}

/// A base of a delta that is asked for.
pub(crate) struct Base<'a> {
    pub(crate) info: PathInfo,
    path: PathBuf,
    memory: &'a DeltaMemory,
    /// It is read while the request is on its way, if there is memory for it: otherwise once the delta has come.
    reading: Option<(JoinHandle<io::Result<Vec<u8>>>, Reserved<'a>)>,
}

impl<'a> Deltas<'a> {
    /// The bases are the valid paths of this store, best those in the closures of `preferred`.
    pub(crate) fn new(store: &'a Store, when: DeltaUse, preferred: &'a [StorePath]) -> Self {
        let (bases, memory, pace) = (OnceLock::new(), DeltaMemory::default(), Arc::default());
        Self { store, when, preferred, bases, memory, pace }
    }

    /// Starts to read the best base for a path, if a delta may be worth it.
    pub(crate) fn begin(&self, found: &TrustedNarInfo) -> Option<Base<'_>> {
        let info = self.base_for(found)?;
        let (path, size, hash) = (self.store.real_path(&info.path), info.nar_size, info.nar_hash);
        let reading = self.memory.try_reserve(delta_memory(size)).and_then(|reserved| {
            let (path, thread) = (path.clone(), std::thread::Builder::new().name("delta-base".to_owned()));
            Some((thread.spawn(move || read(&path, size, &hash)).ok()?, reserved))
        });
        Some(Base { info, path, memory: &self.memory, reading })
    }

    /// Counts the download of a whole NAR.
    pub(crate) fn download(&self, found: &TrustedNarInfo) -> Download<'_> {
        self.pace.download(whole_len(found))
    }

    /// Counts a delta that is asked for, until the answer has begun.
    pub(crate) fn pending(&self, found: &TrustedNarInfo) -> PendingDelta<'_> {
        self.pace.pending(whole_len(found) / DELTA_FRACTION)
    }

    /// Counts the download of a delta of this many bytes.
    pub(crate) fn download_delta(&self, found: &TrustedNarInfo, len: Option<u64>) -> Download<'_> {
        self.pace.download_delta(len.unwrap_or(whole_len(found) / DELTA_FRACTION))
    }

    /// How long the server may take for a delta that it has yet to make: as long as the whole NAR would take. In full seconds, and
    /// shorter than what the connection may stall.
    pub(crate) fn patience(&self, found: &TrustedNarInfo) -> Duration {
        let longest = WAIT_MAX.min(found.cache.client().stall_timeout() * 5 / 6).as_secs();
        let seconds = match self.when {
            DeltaUse::Always => longest,
            _ => self.pace.time_for(whole_len(found)).as_secs().saturating_add(1),
        };
        Duration::from_secs(seconds.min(longest))
    }

    /// Whether a path is asked for as a delta if there is a base for it.
    pub(crate) fn may_ask(&self, found: &TrustedNarInfo) -> bool {
        let (info, cache) = (&found.info, &found.cache);
        let is_wanted = match self.when {
            DeltaUse::Never => false,
            DeltaUse::Adaptive => self.pace.is_slow(cache.opened_in()),
            DeltaUse::Always => true,
        };
        is_wanted && cache.sends_deltas() && info.nar_size >= DELTA_NAR_BYTES_MIN
    }

    /// Waits for the memory of a decoder, and counts it as that of deltas. The caller must not hold a permit for a core.
    pub(crate) fn decoder_memory(&self, bytes: u64) -> Option<Reserved<'_>> {
        self.memory.reserve(bytes)
    }

    /// The best base for a path, if a delta may be worth it.
    pub(crate) fn base_for(&self, found: &TrustedNarInfo) -> Option<PathInfo> {
        let info = &found.info;
        if !self.may_ask(found) {
            return None;
        }
        let bases = self.bases.get_or_init(|| {
            let bases = self.store.all_valid_paths().map(DeltaBases::of);
            let bases = bases.and_then(|bases| {
                let (preferred, _) = self.store.closure(self.preferred.iter().cloned())?;
                Ok(bases.preferring(preferred.into_iter().map(|info| info.path).collect()))
            });
            bases.inspect_err(|error| tracing::debug!(%error, "there are no bases for deltas")).ok()
        });
        let fits = |base: &PathInfo| delta_fits(base.nar_size, info.nar_size) && base.nar_hash != info.nar_hash;
        let best = bases.as_ref()?.best(&info.path, self.store, fits);
        best.inspect_err(|error| tracing::debug!(%error, "no base")).ok()?
    }
}

impl<'a> Base<'a> {
    /// Waits for the base. `None` if its files have changed since they were registered, or cannot be read. The caller must not hold
    /// a permit for a core, see [`DeltaMemory::reserve`].
    pub(crate) fn finish(self) -> Option<(Vec<u8>, PathInfo, Reserved<'a>)> {
        let Self { info, path, memory, reading } = self;
        let (base, reserved) = match reading {
            // A panic was already reported.
            Some((reading, reserved)) => (reading.join().ok()?, reserved),
            None => {
                let reserved = memory.reserve(delta_memory(info.nar_size))?;
                (read(&path, info.nar_size, &info.nar_hash), reserved)
            }
        };
        match base {
            Ok(base) => Some((base, info, reserved)),
            Err(error) => {
                tracing::debug!(path = %info.path, %error, "cannot be the base of a delta");
                None
            }
        }
    }

    /// Drops the base, which is not needed. If it is being read, waits for that: it counts as memory in use until then.
    pub(crate) fn abandon(self) {
        if let Some((reading, reserved)) = self.reading {
            // It does not matter what became of it.
            let _ = reading.join();
            drop(reserved);
        }
    }
}

/// The bytes that a whole NAR takes over a slow line, about.
fn whole_len(found: &TrustedNarInfo) -> u64 {
    match (&found.info.compression, found.info.file_size) {
        (Compression::None, _) | (_, None) => found.info.nar_size / COMPRESSED_FRACTION,
        (_, Some(file_size)) => file_size,
    }
}

/// Reads a NAR from its files, and verifies it.
fn read(path: &Path, size: u64, hash: &NarHash) -> io::Result<Vec<u8>> {
    let size = usize::try_from(size).map_err(io::Error::other)?;
    let (mut reader, mut hasher) = (NarReader::open(path).map_err(io::Error::from)?, Sha256Hasher::new());
    let mut nar = vec![0; size];
    for piece in nar.chunks_mut(PIECE_LEN) {
        reader.read_exact(piece)?;
        hasher.update(piece);
    }
    let at_end = reader.read(&mut [0])? == 0;
    if at_end && hasher.finish() == *hash { Ok(nar) } else { Err(io::Error::other("its files have changed")) }
}
