//! Opens a data folder: repairs what killed processes have left, and starts the maintenance threads.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::AtomicI64;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, RwLock, Weak};
use std::time::{Duration, Instant};

use narval_client::Url;

use super::data::Data;
use super::database::{self, Database};
use super::error::{DataError, io_error};
use super::index::Index;
use super::oversized::Oversized;
use super::pending::{SeenPending, WhichPending};
use super::retention::{Shortage, Uses};
use super::shared::{NAR_LOCKS, Shared};
use super::storage::{Bucket, BucketOptions, Folder, Storage};
use super::tokens_used::TokensUsed;
use super::{Audit, Place, audit, join, recompress};

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
    /// With a bucket and a database: the address at which other servers over the same bucket reach this one, to share disk caches.
    pub peer_url: Option<Url>,
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
    pub fn open(place: impl Into<Place>, options: DataOptions) -> Result<Self, DataError> {
        let place = place.into();
        let (storage, index) = open_parts(&place, &options)?;
        let (data, stopped) = Self::assemble(storage, index, place.folder(), options.unsafe_no_verify)?;
        let weak = Arc::downgrade(data.shared());
        let keeping = std::thread::Builder::new()
            .name("cache-house".into())
            .spawn(move || keep_house(&weak, &stopped, options.collect_every));
        let path = place.folder();
        keeping.map_err(|source| io_error("start a thread for", path, source))?;
        if options.collect_every.is_some() {
            let weak = Arc::downgrade(data.shared());
            let recompressing = std::thread::Builder::new().name("recompress".into());
            let started = recompressing.spawn(move || recompress::run(&weak));
            started.map_err(|source| io_error("start a thread for", path, source))?;
        }
        Ok(data)
    }

    /// Opens a storage and its index, and removes the leftovers of processes that have ended. The receiver reports when the last handle is
    /// dropped.
    pub(super) fn assemble(
        storage: Box<dyn Storage>,
        index: Box<dyn Index>,
        local: &std::path::Path,
        unsafe_no_verify: bool,
    ) -> Result<(Self, Receiver<()>), DataError> {
        storage.clear_up().map_err(|source| io_error("clear up", storage.place(), source))?;
        let publishes_later = storage.publishes_later();
        let (stop, stopped) = channel();
        let shared = Arc::new(Shared {
            storage,
            local: local.to_owned(),
            seen_pending: SeenPending::default(),
            audit: Audit::new(local.join("audit.jsonl"), index.keeps_audit()),
            index,
            tokens_used: TokensUsed::default(),
            uses: Uses::default(),
            shortage: Shortage::default(),
            unsafe_no_verify,
            reconciled: AtomicI64::new(0),
            nar_locks: [const { Mutex::new(()) }; NAR_LOCKS],
            caches: RwLock::new(HashMap::new()),
            _stop: stop,
        });
        let data = Self::of(shared);
        if publishes_later {
            data.publish_pending(WhichPending::All)?;
        } else {
            data.reconcile()?;
            for cache in data.caches()? {
                // The next collection tries again.
                cache
                    .finish_interrupted()
                    .inspect_err(|refusal| tracing::error!("cache '{}': {refusal}", cache.name()))
                    .ok();
            }
        }
        Ok((data, stopped))
    }
}

/// Where the files are, and what names them.
type StorageAndIndex = (Box<dyn Storage>, Box<dyn Index>);

fn open_parts(place: &Place, options: &DataOptions) -> Result<StorageAndIndex, DataError> {
    let database = options.database.as_ref();
    let absent = |path: &std::path::Path| {
        let source = io::Error::new(io::ErrorKind::NotFound, "there is no index in it");
        DataError::Io { action: "open the data folder", path: path.to_owned(), source }
    };
    match place {
        Place::Folder(path) => {
            if options.peer_url.is_some() {
                let reason = "only servers over a bucket share disk caches ('--peer-url')".to_owned();
                return Err(DataError::Elsewhere { folder: path.clone(), reason });
            }
            if options.must_exist && !database::exists(path, database) {
                return Err(absent(path));
            }
            let storage = Folder::open(path).map_err(|source| io_error("create the data folder", path, source))?;
            Ok((Box::new(storage), database::open(path, database)?))
        }
        Place::Bucket { url, folder, cache_size } => {
            let bucket = Bucket::open(&BucketOptions { url, folder, cache_size: *cache_size });
            let bucket = bucket.map_err(|source| io_error("use the local folder", folder, source))?;
            let index = database::open_of_bucket(&bucket, database, options.must_exist)?;
            if let Some(url) = &options.peer_url {
                bucket.set_peers(join::join(&*index, folder, url, cache_size.unwrap_or(0))?);
            }
            Ok((Box::new(bucket), index))
        }
    }
}

fn keep_house(shared: &Weak<Shared>, stopped: &Receiver<()>, collect_every: Option<Duration>) {
    let (mut recorded, mut settled, mut collected) = (Instant::now(), Instant::now(), Instant::now());
    let mut oversized = Oversized::default();
    while stopped.recv_timeout(audit::WRITE_EVERY) == Err(RecvTimeoutError::Timeout) {
        let Some(shared) = shared.upgrade() else { return };
        shared.audit.flush(&*shared.index);
        shared.settle_stored_files();
        if recorded.elapsed() < RECORD_EVERY {
            continue;
        }
        recorded = Instant::now();
        shared.record();
        if shared.storage.publishes_later()
            && let Err(error) = Data::of(Arc::clone(&shared)).publish_pending(WhichPending::Due)
        {
            tracing::debug!("{error}");
        }
        if settled.elapsed() >= SETTLE_EVERY {
            shared.settle();
            Data::of(Arc::clone(&shared)).make_room_again();
            settled = Instant::now();
        }
        let Some(every) = collect_every else { continue };
        if collected.elapsed() >= every {
            let data = Data::of(Arc::clone(&shared));
            collect_all(&data, every);
            data.end_unfinished();
            data.forget_old_audit();
            collected = Instant::now();
        }
        oversized.collect(&Data::of(shared));
    }
}

fn collect_all(data: &Data, every: Duration) {
    let caches = data.caches().map_err(|error| tracing::error!("cannot collect garbage: {error}"));
    caches.unwrap_or_default().iter().for_each(|cache| cache.collect_in_turn(every));
}
