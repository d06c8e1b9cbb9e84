//! Opens a data folder: repairs what killed processes have left, and starts the maintenance threads.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, RwLock, Weak};
use std::time::{Duration, Instant};

use crate::data::Data;
use crate::database::{self, Opening};
use crate::error::{DataError, io_error};
use crate::in_use::InUse;
use crate::index::Index;
use crate::jobs;
use crate::location::StorageLocation;
use crate::nodes::join;
use crate::options::DataOptions;
use crate::push::pending::WhichPending;
use crate::retention::oversized::Oversized;
use crate::retention::{Shortage, Uses};
use crate::shared::{FileHashes, Losses, SeenPending, Shared};
use crate::stats::counts::Surveys;
use crate::stats::growth::Growth;
use crate::storage::{Bucket, BucketOptions, Folder, Storage};
use crate::tokens::audit;
use crate::tokens::audit::Audit;
use crate::tokens::used::TokensUsed;
use crate::upkeep::backup::refuse_unfinished;
use crate::upkeep::recompress;
use narval_codec::decode::{DECODE_MEMORY, WindowMemory};

/// How often collected uses are written.
const RECORD_EVERY: Duration = Duration::from_secs(10);

/// How often pending changes are made durable.
const SETTLE_EVERY: Duration = Duration::from_secs(60);

impl Data {
    /// Opens a data folder, creating it if necessary. Removes the leftovers of processes that have ended.
    ///
    /// # Errors
    /// If the folder or its index cannot be used.
    pub fn open(place: impl Into<StorageLocation>, options: DataOptions) -> Result<Self, DataError> {
        let place = place.into();
        // A folder that must exist is not created for its lock.
        let is_missing = options.must_exist && !place.folder().exists();
        let lock = if is_missing { None } else { Some(InUse::by_many(place.folder())?) };
        refuse_unfinished(place.folder())?;
        let (storage, index) = open_parts(&place, &options, Opening::Use)?;
        let local = Local { folder: place.folder(), lock };
        let (data, stopped) = Self::assemble(storage, index, local, options.unsafe_no_verify)?;
        if options.collect_every.is_some() {
            // Servers say so. A database that is away by now is reported by others.
            let doubts = data.shared().index.doubts().unwrap_or_default();
            doubts.iter().for_each(|doubt| tracing::warn!("the database of the index: {doubt}"));
        }
        data.window_memory().set_total(options.decode_memory.unwrap_or(DECODE_MEMORY));
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
            let weak = Arc::downgrade(data.shared());
            let doing_jobs = std::thread::Builder::new().name("jobs".into()).spawn(move || jobs::run(&weak));
            doing_jobs.map_err(|source| io_error("start a thread for", path, source))?;
        }
        Ok(data)
    }

    /// Opens a storage and its index, and removes the leftovers of processes that have ended. The receiver reports when the last handle is
    /// dropped.
    pub(super) fn assemble(
        storage: Box<dyn Storage>,
        index: Box<dyn Index>,
        local: Local<'_>,
        unsafe_no_verify: bool,
    ) -> Result<(Self, Receiver<()>), DataError> {
        storage.clear_up().map_err(|source| io_error("clear up", storage.place(), source))?;
        let publishes_later = storage.publishes_later();
        let (stop, stopped) = channel();
        let shared = Arc::new(Shared {
            storage,
            local: local.folder.to_owned(),
            _in_use: local.lock,
            seen_pending: SeenPending::default(),
            audit: Audit::new(local.folder.join("audit.jsonl"), index.keeps_audit()),
            index,
            tokens_used: TokensUsed::default(),
            uses: Uses::default(),
            shortage: Shortage::default(),
            losses: Losses::default(),
            file_hashes: FileHashes::new(),
            window_memory: WindowMemory::new(DECODE_MEMORY),
            surveys: Surveys::default(),
            growth: Growth::new(local.folder),
            unsafe_no_verify,
            next_collection: AtomicU64::new(0),
            makes_keys: AtomicBool::new(true),
            destinations: RwLock::default(),
            reconciled: AtomicI64::new(0),
            looked_at: AtomicI64::new(0),
            caches: RwLock::new(BTreeMap::new()),
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
                    .remove_garbage(cache.now())
                    .inspect_err(|rejection| tracing::error!("cache '{}': {rejection}", cache.name()))
                    .ok();
            }
        }
        Ok((data, stopped))
    }
}

/// The folder on this machine, and the lock that says that it is in use.
pub(super) struct Local<'a> {
    pub(super) folder: &'a Path,
    pub(super) lock: Option<InUse>,
}

/// Where the files are, and what names them.
type StorageAndIndex = (Box<dyn Storage>, Box<dyn Index>);

pub(super) fn open_parts(
    place: &StorageLocation,
    options: &DataOptions,
    opening: Opening,
) -> Result<StorageAndIndex, DataError> {
    let database = options.database.as_ref();
    let absent = |path: &Path| {
        let source = io::Error::new(io::ErrorKind::NotFound, "there is no index in it");
        DataError::Io { action: "open the data folder", path: path.to_owned(), source }
    };
    match place {
        StorageLocation::Folder(path) => {
            if options.peer_url.is_some() {
                let reason = "only servers over a bucket share disk caches ('--peer-url')".to_owned();
                return Err(DataError::IndexMismatch { folder: path.clone(), reason });
            }
            if options.must_exist && !database::exists(path, database) {
                return Err(absent(path));
            }
            let storage = Folder::open(path).map_err(|source| io_error("create the data folder", path, source))?;
            Ok((Box::new(storage), database::open(path, database, opening)?))
        }
        StorageLocation::Bucket { url, folder, cache_size } => {
            let bucket = Bucket::open(&BucketOptions { url, folder, cache_size: *cache_size });
            let bucket = bucket.map_err(|source| io_error("use the local folder", folder, source))?;
            let index = database::open_of_bucket(&bucket, (database, opening), options.must_exist)?;
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
    let mut sized = false;
    let is_next_in = |time: Duration| {
        if let Some(shared) = shared.upgrade() {
            shared.next_collection.store(narval_client::clock::now() + time.as_secs(), Ordering::Relaxed);
        }
    };
    collect_every.into_iter().for_each(is_next_in);
    while stopped.recv_timeout(audit::WRITE_EVERY) == Err(RecvTimeoutError::Timeout) {
        let Some(shared) = shared.upgrade() else { return };
        shared.audit.flush(&*shared.index);
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
            let data = Data::of(Arc::clone(&shared));
            data.settle().unwrap_or_else(|error| tracing::warn!("{error}"));
            data.make_room_again();
            data.restore_lost();
            settled = Instant::now();
        }
        let Some(every) = collect_every else { continue };
        if !std::mem::replace(&mut sized, true) {
            Data::of(Arc::clone(&shared)).note_sizes();
        }
        if collected.elapsed() >= every {
            let data = Data::of(Arc::clone(&shared));
            collect_all(&data, every);
            data.end_unfinished();
            data.forget_old_audit();
            data.forget_old_machines();
            data.forget_old_jobs();
            data.note_sizes();
            collected = Instant::now();
            is_next_in(every);
        }
        oversized.collect(&Data::of(shared));
    }
}

fn collect_all(data: &Data, every: Duration) {
    let caches = data.caches().map_err(|error| tracing::error!("cannot collect garbage: {error}"));
    caches.unwrap_or_default().iter().for_each(|cache| cache.collect_in_turn(every));
}
