//! Opens a data folder: repairs what killed processes have left, and starts the maintenance threads.

use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use crate::access::audit;
use crate::assembly::database::Opening;
use crate::assembly::parts::{Local, open_parts};
use crate::data::Data;
use crate::error::{DataError, io_error};
use crate::in_use::InUse;
use crate::jobs;
use crate::location::StorageLocation;
use crate::options::DataOptions;
use crate::push::pending::WhichPending;
use crate::retention::oversized::Oversized;
use crate::shared::Shared;
use crate::upkeep::backup::refuse_unfinished;
use crate::upkeep::recompress;
use narval_codec::decode::DECODE_MEMORY;

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
