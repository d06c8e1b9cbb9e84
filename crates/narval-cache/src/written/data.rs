//! A data folder, opened.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicI64;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};
use std::time::{Duration, Instant};

use narval_store::{is_temporary_name, remove_leftovers};
use thiserror::Error;

use super::cache::CacheState;
use super::index::{CacheRecord, Index, IndexError, Sqlite};
use super::oversized::Oversized;
use super::retention::{Shortage, Uses};
use super::storage::{CacheDirectory, Storage, TEMPORARY};
use super::tokens::TokensUsed;
use super::{
    Audit, Cache, CacheName, CacheSettings, CollectOptions, Grant, Refusal, RefusalKind, SettingsError, Stamp, Tokens,
};

/// How often what was collected is recorded.
const RECORD_EVERY: Duration = Duration::from_secs(10);

/// How often what is pending is made durable.
const SETTLE_EVERY: Duration = Duration::from_secs(60);

/// Locks that uploads of one NAR share.
const NAR_LOCKS: usize = 64;

/// Why a data folder can't be used.
#[derive(Debug, Error)]
pub enum DataError {
    /// A file can't be used.
    #[error("cannot {action} '{}': {source}", path.display())]
    Io {
        /// What was tried, as a verb.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The index fails.
    #[error(transparent)]
    Index(#[from] IndexError),
    /// The settings of a cache can't be read.
    #[error("cache '{cache}': {source}")]
    Settings {
        /// The cache.
        cache: CacheName,
        /// Why.
        source: SettingsError,
    },
}

/// How to open a data folder.
#[derive(Debug, Clone, Default)]
pub struct DataOptions {
    /// Do not make what is missing: a command that only reads says that there is no data folder instead.
    pub must_exist: bool,
    /// Forget what nothing keeps, so often: for a server, which also recompresses what it is set to. The first time is after one
    /// such period.
    pub collect_every: Option<Duration>,
    /// For measuring only: uncompressed NARs are believed and not synchronised. Whoever uploads could put anything in anybody's
    /// place.
    #[doc(hidden)]
    pub unsafe_no_verify: bool,
}

/// A data folder: cheap to clone, shared by threads, and opened by other processes at the same time.
#[derive(Clone)]
pub struct Data {
    shared: Arc<Shared>,
}

/// What the handles of one folder share.
pub(super) struct Shared {
    pub(super) storage: Storage,
    pub(super) index: Box<dyn Index>,
    pub(super) audit: Audit,
    pub(super) tokens_used: TokensUsed,
    pub(super) uses: Uses,
    pub(super) shortage: Shortage,
    pub(super) unsafe_no_verify: bool,
    /// Up to which change files are known to be as the index says.
    pub(super) reconciled: AtomicI64,
    pub(super) nar_locks: [Mutex<()>; NAR_LOCKS],
    caches: RwLock<HashMap<CacheName, Arc<CacheState>>>,
    /// Ends the thread that keeps house.
    _stop: Sender<()>,
}

impl Data {
    /// Opens a data folder, and makes it when it is missing. Removes what processes that are gone have left behind.
    ///
    /// # Errors
    /// When the folder or its index can't be used.
    pub fn open(path: &Path, options: DataOptions) -> Result<Self, DataError> {
        let index_path = path.join("index.sqlite");
        if options.must_exist && !index_path.exists() {
            let source = io::Error::new(io::ErrorKind::NotFound, "there is no index.sqlite in it");
            return Err(DataError::Io { action: "open the data folder", path: path.to_owned(), source });
        }
        let storage = Storage::open(path).map_err(|source| io_error("create the data folder", path, source))?;
        let incoming = path.join("incoming");
        remove_leftovers(&incoming, |name| is_temporary_name(name, TEMPORARY))
            .map_err(|source| io_error("clear up", &incoming, source))?;
        let index = Box::new(Sqlite::open(&index_path)?);
        let (stop, stopped) = channel();
        let shared = Arc::new(Shared {
            storage,
            index,
            audit: Audit::new(path.join("audit.jsonl")),
            tokens_used: TokensUsed::default(),
            uses: Uses::default(),
            shortage: Shortage::default(),
            unsafe_no_verify: options.unsafe_no_verify,
            reconciled: AtomicI64::new(0),
            nar_locks: [const { Mutex::new(()) }; NAR_LOCKS],
            caches: RwLock::new(HashMap::new()),
            _stop: stop,
        });
        let data = Self { shared };
        data.reconcile()?;
        let weak = Arc::downgrade(&data.shared);
        let keeping = std::thread::Builder::new()
            .name("cache-house".into())
            .spawn(move || keep_house(&weak, &stopped, options.collect_every));
        keeping.map_err(|source| io_error("start a thread for", path, source))?;
        if options.collect_every.is_some() {
            let weak = Arc::downgrade(&data.shared);
            let recompressing = std::thread::Builder::new().name("recompress".into());
            let started = recompressing.spawn(move || super::recompress::run(&weak));
            started.map_err(|source| io_error("start a thread for", path, source))?;
        }
        Ok(data)
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        self.shared.storage.path()
    }

    /// A cache; `None` if there is none of this name.
    ///
    /// # Errors
    /// When the index or the cache's folder can't be read.
    pub fn cache(&self, name: &CacheName) -> Result<Option<Cache>, DataError> {
        if let Some(state) = self.open_caches().get(name) {
            return Ok(Some(self.handle(Arc::clone(state))));
        }
        let record = self.shared.index.caches()?.into_iter().find(|record| record.name == *name);
        record.map(|record| self.open_cache(record)).transpose()
    }

    /// All caches, by name.
    ///
    /// # Errors
    /// As [`Data::cache`].
    pub fn caches(&self) -> Result<Vec<Cache>, DataError> {
        self.shared.index.caches()?.into_iter().map(|record| self.open_cache(record)).collect()
    }

    /// Makes a cache; one of this name that is there stays as it is, and is returned.
    ///
    /// # Errors
    /// When the index or the cache's folder can't be written.
    pub fn create_cache(&self, name: &CacheName, settings: &CacheSettings) -> Result<Cache, DataError> {
        let record = self.shared.index.create_cache(name, &settings.to_json(), super::now())?;
        let cache = self.open_cache(record)?;
        cache
            .write_cache_info()
            .map_err(|source| io_error("write 'nix-cache-info' in", cache.directory().path(), source))?;
        Ok(cache)
    }

    /// Changes with every change that a reader can see, in any of its caches or of its tokens, by whichever process (those of others are
    /// seen within 10 ms).
    pub fn stamp(&self) -> Stamp {
        Stamp(self.shared.index.stamp())
    }

    /// Who may do what.
    pub fn tokens(&self) -> Tokens {
        Tokens::new(Arc::clone(&self.shared))
    }

    /// Who did what.
    pub fn audit(&self) -> &Audit {
        &self.shared.audit
    }

    /// To be called at the end of a command that has changed something: a server beside it has noticed when this returns.
    pub fn wait_until_noticed(&self) {
        std::thread::sleep(2 * super::index::NOTICED_AFTER);
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    fn open_caches(&self) -> std::sync::RwLockReadGuard<'_, HashMap<CacheName, Arc<CacheState>>> {
        self.shared.caches.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn handle(&self, state: Arc<CacheState>) -> Cache {
        Cache::new(Arc::clone(&self.shared), state)
    }

    fn open_cache(&self, record: CacheRecord) -> Result<Cache, DataError> {
        if let Some(state) = self.open_caches().get(&record.name) {
            return Ok(self.handle(Arc::clone(state)));
        }
        let settings = CacheSettings::from_json(&record.settings)
            .map_err(|source| DataError::Settings { cache: record.name.clone(), source })?;
        let path = self.path().join("caches").join(record.name.as_str());
        let directory = CacheDirectory::open(&path).map_err(|source| io_error("create", &path, source))?;
        let mut caches = self.shared.caches.write().unwrap_or_else(PoisonError::into_inner);
        let state = caches
            .entry(record.name.clone())
            .or_insert_with(|| Arc::new(CacheState::new(record.id, record.name, settings, directory)));
        Ok(self.handle(Arc::clone(state)))
    }
}

impl std::fmt::Debug for Data {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Data").field("path", &self.path()).finish_non_exhaustive()
    }
}

impl Data {
    pub(super) fn of(shared: Arc<Shared>) -> Self {
        Self { shared }
    }
}

impl Cache {
    /// The data folder that it is in.
    pub(super) fn data(&self) -> Data {
        Data { shared: Arc::clone(self.shared()) }
    }
}

impl Shared {
    /// Makes files as the index says, for somebody who has the exclusive lock.
    pub(super) fn reconcile_now(self: &Arc<Self>) -> Result<(), Refusal> {
        let data = Data { shared: Arc::clone(self) };
        data.reconcile_locked().map_err(|error| {
            tracing::error!("{error}");
            Refusal::new(RefusalKind::Failed, "the cache cannot put its files in order; its log says why")
        })
    }

    /// Records who was asked for, and by which tokens.
    pub(super) fn record(&self) {
        let uses = self.uses.take();
        if !uses.is_empty()
            && let Err(error) = self.index.used(uses)
        {
            tracing::warn!("{error}");
        }
        let used = self.tokens_used.take();
        if !used.is_empty()
            && let Err(error) = self.index.tokens_used(used)
        {
            tracing::warn!("{error}");
        }
    }

    /// Makes durable what is pending, so that it need not be looked at again.
    fn settle(&self) {
        let settle = || -> Result<(), DataError> {
            let Some(up_to) = self.index.pending_max()? else { return Ok(()) };
            let path = self.storage.path();
            // One call for all files, in place of one for each.
            let folder = File::open(path).map_err(|source| io_error("open", path, source))?;
            rustix::fs::syncfs(&folder).map_err(|error| io_error("synchronise", path, error.into()))?;
            Ok(self.index.settle(up_to)?)
        };
        if let Err(error) = settle() {
            tracing::warn!("{error}");
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.record();
    }
}

fn keep_house(shared: &Weak<Shared>, stopped: &Receiver<()>, collect_every: Option<Duration>) {
    let (mut settled, mut collected) = (Instant::now(), Instant::now());
    let mut oversized = Oversized::default();
    while stopped.recv_timeout(RECORD_EVERY) == Err(RecvTimeoutError::Timeout) {
        let Some(shared) = shared.upgrade() else { return };
        shared.record();
        if settled.elapsed() >= SETTLE_EVERY {
            shared.settle();
            Data { shared: Arc::clone(&shared) }.make_room_again();
            settled = Instant::now();
        }
        let Some(every) = collect_every else { continue };
        if collected.elapsed() >= every {
            collect_all(&Data { shared: Arc::clone(&shared) });
            collected = Instant::now();
        }
        oversized.collect(&Data { shared });
    }
}

fn collect_all(data: &Data) {
    let caches = data.caches().map_err(|error| tracing::error!("no collection: {error}"));
    caches.unwrap_or_default().iter().for_each(collect);
}

/// Forgets what nothing keeps, and says so in the log.
pub(super) fn collect(cache: &Cache) {
    match cache.collect(&CollectOptions::default(), &Grant::administrator("retention")) {
        Ok(collected) => tracing::info!(
            "cache '{}': forgot {} paths, kept {}; removed {} NARs with {} bytes",
            cache.name(),
            collected.forgotten.len(),
            collected.kept,
            collected.files,
            collected.bytes
        ),
        Err(refusal) => tracing::error!("cache '{}': the collection stopped: {refusal}", cache.name()),
    }
}

pub(super) fn io_error(action: &'static str, path: &Path, source: io::Error) -> DataError {
    DataError::Io { action, path: path.to_owned(), source }
}
