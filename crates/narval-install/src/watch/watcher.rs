//! The watcher: collects paths to push, with one thread per cache to deliver them.

use std::path::PathBuf;
use std::time::Duration;

use narval_client::Url;
use narval_nix::StorePath;
use narval_store::{Access, Database, Store, StoreConfig};

use super::deliver::{Delivered, Delivery};
use super::options::WatchOptions;
use super::queue::Queue;
use super::state::{DestinationId, State};
use super::stop::Stop;
use super::wake::Waker;
use crate::Error;

/// The maximum number of caches of one watcher.
const TARGETS_MAX: usize = 16;

/// The maximum number of rows read from the database at a time.
const ROWS_MAX: u32 = 4096;

/// A build registers several paths in a row: they are pushed together once nothing changes for this long.
const QUIET: Duration = Duration::from_secs(1);
/// The maximum of that wait.
const QUIET_AT_LATEST: Duration = Duration::from_secs(10);

/// How often changes are checked for without an event.
const LOOK_ANYWAY: Duration = Duration::from_secs(30);
/// The same if there can be no events.
const LOOK: Duration = Duration::from_secs(2);

/// The result of a watcher's run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WatchReport {
    /// The number of pushed paths, summed over the caches.
    pub pushed: u64,
    /// The number of paths left for the next run, summed over the caches.
    pub left: u64,
    /// Why paths are left, per cache, if known.
    pub failures: Vec<String>,
}

/// Pushes the paths that become valid in a store, and those that hooks have queued, until it is stopped. `ready` is
/// called once everything is open.
///
/// # Errors
/// If the database cannot be read, or the state cannot be used or is in use by another watcher. Later failures
/// are logged and retried.
pub fn watch(options: &WatchOptions, stop: &Stop, ready: impl FnOnce()) -> Result<WatchReport, Error> {
    if options.targets.is_empty() || options.targets.len() > TARGETS_MAX {
        return Err(Error::Usage(format!("the number of caches to push to must be between 1 and {TARGETS_MAX}")));
    }
    let store = Store::new(StoreConfig { access: Access::Database, ..options.store.clone() });
    let database =
        store.database().ok_or_else(|| Error::Usage("a watcher needs access to the store's database".to_owned()))?;
    let queue = Queue::new(&options.state);
    queue.make()?;
    queue.remove_leftovers()?;
    let state = State::open(&options.state)?;
    let collector = Collector { state: &state, queue: &queue, database, options };
    let destinations = collector.destinations()?;
    let database_folder = options.store.database().parent().map(PathBuf::from).unwrap_or_default();
    let waker = Waker::new(&[&database_folder, queue.folder()]);
    let waker = waker.map_err(|error| Error::file("watch", &database_folder, error))?;
    let waker = stop.wake_by(waker);
    collector.collect(&destinations)?;
    ready();
    let delivered: Vec<Delivered> = std::thread::scope(|scope| {
        let start = |(url, id): &(Url, DestinationId)| {
            let delivery = Delivery { options, state: &state, id: *id, url: url.clone(), stop };
            scope.spawn(move || delivery.run())
        };
        let threads: Vec<_> = destinations.iter().map(start).collect();
        while !options.once && !stop.is_stopped() {
            if waker.wait(if waker.is_told() { LOOK_ANYWAY } else { LOOK }) {
                waker.settle(QUIET, QUIET_AT_LATEST, || stop.is_stopped());
            }
            match collector.collect(&destinations) {
                Ok(0) => {}
                Ok(_) => stop.change(false),
                Err(error) => tracing::error!("{error}; trying again"),
            }
        }
        stop.change(true);
        threads.into_iter().filter_map(|thread| thread.join().ok()).collect()
    });
    if delivered.len() < destinations.len() {
        return Err(Error::Died);
    }
    Ok(delivered.into_iter().fold(WatchReport::default(), |mut report, delivered| {
        report.pushed += delivered.pushed;
        report.left += delivered.left;
        report.failures.extend(delivered.failure);
        report
    }))
}

/// Reads the queue and the database.
struct Collector<'a> {
    state: &'a State,
    queue: &'a Queue,
    database: &'a Database,
    options: &'a WatchOptions,
}

impl Collector<'_> {
    /// The caches in the state, each once.
    fn destinations(&self) -> Result<Vec<(Url, DestinationId)>, Error> {
        let newest = self.database.last_registered()?;
        let start = if self.options.existing { 0 } else { newest };
        let store = self.options.store.database().display().to_string();
        let mut found: Vec<(Url, DestinationId)> = Vec::new();
        for url in &self.options.targets {
            let id = self.state.destination(&url.to_string(), &store, start)?;
            if self.state.last_registered(id)? > newest {
                tracing::warn!(
                    "'{store}' is another database than before; only paths that become valid from now on are pushed"
                );
                self.state.add(id, &[], Some(newest))?;
            }
            if !found.iter().any(|(_, other)| *other == id) {
                found.push((url.clone(), id));
            }
        }
        Ok(found)
    }

    /// Records new paths for each cache. Returns their number.
    fn collect(&self, destinations: &[(Url, DestinationId)]) -> Result<usize, Error> {
        let mut added = 0;
        loop {
            let queued = self.queue.oldest()?;
            if queued.is_empty() {
                break;
            }
            let paths = queued.iter().flat_map(|queued| &queued.paths);
            let paths: Vec<StorePath> = paths.filter(|path| self.options.filter.takes(path, true)).cloned().collect();
            for (_, id) in destinations {
                added += self.state.add(*id, &paths, None)?;
            }
            // Only now: if killed before, they are only recorded twice.
            self.queue.forget(&queued)?;
        }
        if self.options.queue_only {
            let newest = self.database.last_registered()?;
            for (_, id) in destinations {
                self.state.add(*id, &[], Some(newest))?;
            }
            return Ok(added);
        }
        for (_, id) in destinations {
            let mut last = self.state.last_registered(*id)?;
            loop {
                let found = self.database.registered_after(last, ROWS_MAX)?;
                let Some(newest) = found.last() else { break };
                last = newest.number;
                let taken = found.iter().filter(|one| self.options.filter.takes(&one.path, one.is_built_here));
                let paths: Vec<StorePath> = taken.map(|one| one.path.clone()).collect();
                added += self.state.add(*id, &paths, Some(last))?;
            }
        }
        Ok(added)
    }
}
