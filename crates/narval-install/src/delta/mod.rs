//! Deltas of NARs: a path is fetched as the difference to one that the destination has (`docs/deltas.md`).

mod bases;
mod pace;
mod prospects;

use std::io::{self, Read};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;

use narval_cache::{DELTA_NAR_BYTES_MIN, DeltaMemory, Found, Reserved, delta_fits, delta_memory};
use narval_nix::{NarHash, PathInfo, Sha256Hasher, StorePath};
use narval_store::{NarReader, Store};

pub use bases::DeltaBases;
pub(crate) use pace::Pace;
pub use prospects::PlannedDelta;
pub(crate) use prospects::prospects;

/// The number of bytes of a base that are read and hashed at a time.
const PIECE_LEN: usize = 256 * 1024;

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

/// A base that is being read.
pub(crate) struct Base<'a> {
    pub(crate) info: PathInfo,
    pub(crate) memory: Reserved<'a>,
    reading: JoinHandle<io::Result<Vec<u8>>>,
}

impl<'a> Deltas<'a> {
    /// The bases are the valid paths of this store, best those in the closures of `preferred`.
    pub(crate) fn new(store: &'a Store, when: DeltaUse, preferred: &'a [StorePath]) -> Self {
        let (bases, memory, pace) = (OnceLock::new(), DeltaMemory::default(), Arc::default());
        Self { store, when, preferred, bases, memory, pace }
    }

    /// Starts to read the best base for a path, if a delta may be worth it.
    pub(crate) fn begin(&self, found: &Found) -> Option<Base<'_>> {
        let base = self.base_for(found)?;
        let memory = self.memory.reserve(delta_memory(base.nar_size))?;
        let (path, size, hash) = (self.store.real_path(&base.path), base.nar_size, base.nar_hash);
        let thread = std::thread::Builder::new().name("delta-base".to_owned());
        let reading = thread.spawn(move || read(path, size, &hash)).ok()?;
        Some(Base { info: base, memory, reading })
    }

    /// The best base for a path, if a delta may be worth it.
    pub(crate) fn base_for(&self, found: &Found) -> Option<PathInfo> {
        let (info, cache) = (&found.info, &found.cache);
        let is_wanted = match self.when {
            DeltaUse::Never => false,
            DeltaUse::Adaptive => self.pace.is_slow(cache.opened_in()),
            DeltaUse::Always => true,
        };
        if !is_wanted || !cache.sends_deltas() || info.nar_size < DELTA_NAR_BYTES_MIN {
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
    /// Waits for the base. `None` if its files have changed since they were registered, or cannot be read.
    pub(crate) fn finish(self) -> Option<(Vec<u8>, PathInfo, Reserved<'a>)> {
        let Self { info, memory, reading } = self;
        match reading.join() {
            Ok(Ok(base)) => Some((base, info, memory)),
            Ok(Err(error)) => {
                tracing::debug!(path = %info.path, %error, "cannot be the base of a delta");
                None
            }
            // A panic was already reported.
            Err(_) => None,
        }
    }
}

/// Reads a NAR from its files, and verifies it.
fn read(path: PathBuf, size: u64, hash: &NarHash) -> io::Result<Vec<u8>> {
    let size = usize::try_from(size).map_err(io::Error::other)?;
    let (mut reader, mut hasher) = (NarReader::open(&path).map_err(io::Error::from)?, Sha256Hasher::new());
    let mut nar = vec![0; size];
    for piece in nar.chunks_mut(PIECE_LEN) {
        reader.read_exact(piece)?;
        hasher.update(piece);
    }
    let at_end = reader.read(&mut [0])? == 0;
    if at_end && hasher.finish() == *hash { Ok(nar) } else { Err(io::Error::other("its files have changed")) }
}
