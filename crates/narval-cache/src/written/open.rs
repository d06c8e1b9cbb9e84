//! Opens a data folder: repairs what killed processes have left, and starts the maintenance threads.

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::atomic::AtomicI64;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, RwLock, Weak};
use std::time::{Duration, Instant};

use narval_store::{is_temporary_name, remove_leftovers};

use super::data::Data;
use super::database::{self, Database};
use super::error::{DataError, io_error};
use super::oversized::Oversized;
use super::retention::{Shortage, Uses};
use super::shared::{NAR_LOCKS, Shared};
use super::storage::{Storage, TEMPORARY};
use super::tokens_used::TokensUsed;
use super::{Audit, Cache, recompress};

/// How often collected uses are written.
const RECORD_EVERY: Duration = Duration::from_secs(10);

/// How often pending changes are made durable.
const SETTLE_EVERY: Duration = Duration::from_secs(60);

/// Options for opening a data folder.
#[derive(Debug, Clone, Default)]
pub struct DataOptions {
    /// Whether the folder must exist; otherwise it is created.
    pub must_exist: bool,
    /// Where the index is, if not in the folder.
    pub database: Option<Database>,
    /// How often to collect garbage; for servers, which also recompress if configured. The first time is after one such
    /// period.
    pub collect_every: Option<Duration>,
    /// Only for measurements: uncompressed NARs are neither verified nor synced, so any uploader could forge paths.
    #[doc(hidden)]
    pub unsafe_no_verify: bool,
}

impl Data {
    /// Opens a data folder, creating it if necessary. Removes the leftovers of processes that have ended.
    ///
    /// # Errors
    /// If the folder or its index cannot be used.
    pub fn open(path: &Path, options: DataOptions) -> Result<Self, DataError> {
        let database = options.database.as_ref();
        if options.must_exist && !database::exists(path, database) {
            let source = io::Error::new(io::ErrorKind::NotFound, "there is no index in it");
            return Err(DataError::Io { action: "open the data folder", path: path.to_owned(), source });
        }
        let storage = Storage::open(path).map_err(|source| io_error("create the data folder", path, source))?;
        let incoming = path.join("incoming");
        remove_leftovers(&incoming, |name| is_temporary_name(name, TEMPORARY))
            .map_err(|source| io_error("clear up", &incoming, source))?;
        let index = database::open(path, database)?;
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
        let data = Self::of(shared);
        data.reconcile()?;
        let weak = Arc::downgrade(data.shared());
        let keeping = std::thread::Builder::new()
            .name("cache-house".into())
            .spawn(move || keep_house(&weak, &stopped, options.collect_every));
        keeping.map_err(|source| io_error("start a thread for", path, source))?;
        if options.collect_every.is_some() {
            let weak = Arc::downgrade(data.shared());
            let recompressing = std::thread::Builder::new().name("recompress".into());
            let started = recompressing.spawn(move || recompress::run(&weak));
            started.map_err(|source| io_error("start a thread for", path, source))?;
        }
        Ok(data)
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
            Data::of(Arc::clone(&shared)).make_room_again();
            settled = Instant::now();
        }
        let Some(every) = collect_every else { continue };
        if collected.elapsed() >= every {
            collect_all(&Data::of(Arc::clone(&shared)));
            collected = Instant::now();
        }
        oversized.collect(&Data::of(shared));
    }
}

fn collect_all(data: &Data) {
    let caches = data.caches().map_err(|error| tracing::error!("cannot collect garbage: {error}"));
    caches.unwrap_or_default().iter().for_each(Cache::collect_in_background);
}
