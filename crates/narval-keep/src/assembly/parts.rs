//! The parts of open data, its storage and its index: they are opened and put together.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, RwLock};

use super::database::{self, Opening};
use super::join;
use crate::access::audit::Audit;
use crate::access::used::TokensUsed;
use crate::data::Data;
use crate::error::{DataError, io_error};
use crate::in_use::InUse;
use crate::index::Index;
use crate::location::StorageLocation;
use crate::options::DataOptions;
use crate::push::pending::WhichPending;
use crate::shared::counts::Surveys;
use crate::shared::growth::Growth;
use crate::shared::{FileHashes, Losses, SeenPending, Shared, Shortage, Uses};
use crate::storage::{Bucket, BucketOptions, Folder, Storage};
use narval_codec::decode::{DECODE_MEMORY, WindowMemory};

impl Data {
    /// Opens a storage and its index, and removes the leftovers of processes that have ended. The receiver reports when the last handle is
    /// dropped.
    pub(crate) fn assemble(
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
pub(crate) struct Local<'a> {
    pub(crate) folder: &'a Path,
    pub(crate) lock: Option<InUse>,
}

/// Where the files are, and what names them.
type StorageAndIndex = (Box<dyn Storage>, Box<dyn Index>);

pub(crate) fn open_parts(
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
