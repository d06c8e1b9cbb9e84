//! The watcher: collects paths to push, with one thread per cache to deliver them.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::Duration;

use narval_client::Url;
use narval_nix::StorePath;
use narval_store::{Access, Database, Store, StoreConfig};

use super::deliver::{Delivered, Delivery};
use super::options::WatchOptions;
use super::queue::Queue;
use super::state::{DestinationId, Position, WatcherState};
use super::stop::Stop;
use super::wake::Waker;
use narval_client::clock::now;
use narval_transfer::Error;

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
    /// The number of paths that the caches had already.
    pub already: u64,
    /// Bytes sent.
    pub sent: u64,
    /// The paths that were delivered with their closures, the first [`DELIVERED_MAX`](super::DELIVERED_MAX) of them.
    pub delivered: Vec<StorePath>,
    /// The number of paths left for the next run, summed over the caches.
    pub left: u64,
    /// The paths that would be pushed, with the sizes of their NARs in bytes, if nothing is.
    pub lacking: BTreeMap<StorePath, u64>,
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
    let of_database = Store::new(StoreConfig { access: Access::Database, ..options.store.clone() });
    let database = match of_database.database().map(|database| database.last_registered().map(|_| database)) {
        Some(Ok(database)) => Some(database),
        // The daemon says what is valid.
        None | Some(Err(_)) if options.queue_only => None,
        Some(Err(error)) => return Err(error.into()),
        None => return Err(Error::Usage("a watcher needs access to the store's database".to_owned())),
    };
    let store = Store::new(options.store.clone());
    let queue = Queue::new(&options.state);
    queue.make()?;
    queue.remove_leftovers()?;
    let state = WatcherState::open(&options.state)?;
    let followed = database.map(|database| Followed { database, state: &state, options });
    let collector = Collector { state: &state, queue: &queue, store: &store, followed, options };
    let destinations = collector.destinations()?;
    let database_folder = options.store.database().parent().map(PathBuf::from).unwrap_or_default();
    let folders: Vec<_> = database.map(|_| &*database_folder).into_iter().chain([queue.folder()]).collect();
    let waker = Waker::new(&folders);
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
            if !stop.is_finishing() && waker.wait(if waker.is_told() { LOOK_ANYWAY } else { LOOK }) {
                waker.settle(QUIET, QUIET_AT_LATEST, || stop.is_stopped() || stop.is_finishing());
            }
            // What became valid before it was set is collected now.
            let is_last = stop.is_finishing();
            match collector.collect(&destinations) {
                Ok(0) => {}
                Ok(_) => stop.change(false),
                Err(error) => tracing::error!("{error}; trying again"),
            }
            if is_last {
                break;
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
        report.already += delivered.already;
        report.sent += delivered.sent;
        report.delivered.extend(delivered.paths);
        report.lacking.extend(delivered.lacking);
        report.left += delivered.left;
        report.failures.extend(delivered.failure);
        report
    }))
}

/// Reads the queue and the database.
struct Collector<'a> {
    state: &'a WatcherState,
    queue: &'a Queue,
    store: &'a Store,
    /// `None` if only the queue is pushed, and it cannot be read.
    followed: Option<Followed<'a>>,
    options: &'a WatchOptions,
}

impl Collector<'_> {
    /// The caches in the state, each once.
    fn destinations(&self) -> Result<Vec<(Url, DestinationId)>, Error> {
        let store = self.options.store.database().display().to_string();
        let start = self.followed.as_ref().map_or_else(|| Ok(Position::default()), Followed::start)?;
        let mut found: Vec<(Url, DestinationId)> = Vec::new();
        for url in &self.options.targets {
            let id = self.state.destination(url, &store, &start)?;
            if let Some(followed) = &self.followed {
                followed.prepare(id, &start)?;
            }
            if !found.iter().any(|(_, other)| *other == id) {
                found.push((url.clone(), id));
            }
        }
        Ok(found)
    }

    /// Whether a path that a hook has queued is pushed. Of one that is not valid any more, the delivery says so.
    fn takes_queued(&self, path: &StorePath) -> Result<bool, Error> {
        let filter = &self.options.selection.filter;
        let info = if filter.sizes == (0..=u64::MAX) { None } else { self.store.path_info(path)? };
        Ok(filter.takes(path, info.map_or(*filter.sizes.start(), |info| info.nar_size), true))
    }

    /// Records new paths for each cache. Returns their number.
    fn collect(&self, destinations: &[(Url, DestinationId)]) -> Result<usize, Error> {
        let mut added = 0;
        loop {
            let queued = self.queue.oldest()?;
            if queued.is_empty() {
                break;
            }
            let mut paths: Vec<StorePath> = Vec::new();
            for path in queued.iter().flat_map(|queued| &queued.paths) {
                if self.takes_queued(path)? {
                    paths.push(path.clone());
                }
            }
            for (_, id) in destinations {
                added += self.state.add(*id, &paths, None)?;
            }
            // Only now: if killed before, they are only recorded twice.
            self.queue.forget(&queued)?;
        }
        for (_, id) in destinations {
            added += self.followed.as_ref().map_or(Ok(0), |followed| followed.read(*id))?;
        }
        Ok(added)
    }
}

/// The store's database.
struct Followed<'a> {
    database: &'a Database,
    state: &'a WatcherState,
    options: &'a WatchOptions,
}

impl Followed<'_> {
    /// Where a cache begins that is new.
    fn start(&self) -> Result<Position, Error> {
        if self.options.existing {
            return Ok(Position { file: self.file()?, is_from_start: true, ..Position::default() });
        }
        self.newest()
    }

    /// Brings what is recorded of a cache up to date.
    fn prepare(&self, id: DestinationId, start: &Position) -> Result<(), Error> {
        let position = self.state.position(id)?;
        if self.options.existing && !position.is_from_start {
            self.state.add(id, &[], Some(start))?;
        } else if position.file.is_none() {
            // Of an earlier version, which did not record the database.
            let path = self.database.registered_as(position.number)?;
            self.state.add(id, &[], Some(&Position { path, file: self.file()?, ..position }))?;
        }
        Ok(())
    }

    /// The device and the inode of the database.
    fn file(&self) -> Result<Option<(u64, u64)>, Error> {
        let path = self.options.store.database();
        let found = fs::metadata(&path).map_err(|error| Error::file("look at", &path, error))?;
        Ok(Some((found.dev(), found.ino())))
    }

    /// The end of the database.
    fn newest(&self) -> Result<Position, Error> {
        let (file, looked_at, number) = (self.file()?, now(), self.database.last_registered()?);
        Ok(Position { number, path: self.database.registered_as(number)?, file, looked_at, is_from_start: false })
    }

    /// Whether the database is the one that was read this far. The path with the last number tells, if it is still valid: a
    /// database may be copied, and another one may get its inode.
    fn is_the_same(&self, position: &Position, file: Option<(u64, u64)>) -> Result<bool, Error> {
        if let Some(known) = &position.path
            && let Some(path) = self.database.registered_as(position.number)?
        {
            return Ok(*known == path);
        }
        let is_file = position.file.is_none() || position.file == file;
        Ok(is_file && self.database.last_registered()? >= position.number)
    }

    /// Where to begin in a database that is another one than before.
    fn begin_again(&self, id: DestinationId, before: &Position, file: Option<(u64, u64)>) -> Result<Position, Error> {
        let is_from_start = self.options.existing;
        let number = match before.looked_at {
            _ if is_from_start => 0,
            // A state of an earlier version.
            0 => self.database.last_registered()?,
            time => self.database.number_before(time)?,
        };
        let what = if is_from_start {
            "all of its paths are pushed"
        } else {
            "only paths that became valid since then are pushed; --existing pushes all of them"
        };
        tracing::warn!("'{}' is another database than before; {what}", self.options.store.database().display());
        let path = self.database.registered_as(number)?;
        let position = Position { number, path, file, looked_at: before.looked_at, is_from_start };
        self.state.add(id, &[], Some(&position))?;
        Ok(position)
    }

    /// Records the paths that have become valid for a cache. Returns their number.
    fn read(&self, id: DestinationId) -> Result<usize, Error> {
        let mut position = self.state.position(id)?;
        if self.options.queue_only {
            let newest = Position { is_from_start: position.is_from_start, ..self.newest()? };
            self.state.add(id, &[], Some(&newest))?;
            return Ok(0);
        }
        let mut added = 0;
        loop {
            let (file, looked_at) = (self.file()?, now());
            if !self.is_the_same(&position, file)? {
                position = self.begin_again(id, &position, file)?;
            }
            let found = self.database.registered_after(position.number, ROWS_MAX)?;
            if self.file()? != file {
                // These may be of either database.
                let error = io::Error::other("it is being replaced");
                return Err(Error::file("read", &self.options.store.database(), error));
            }
            let Some(newest) = found.last() else { return Ok(added) };
            let filter = &self.options.selection.filter;
            let taken = found.iter().filter(|one| filter.takes(&one.path, one.nar_size, one.is_built_here));
            let paths: Vec<StorePath> = taken.map(|one| one.path.clone()).collect();
            let path = Some(self.options.store.store_dir.display(&newest.path).to_string());
            position = Position { number: newest.number, path, file, looked_at, ..position };
            added += self.state.add(id, &paths, Some(&position))?;
        }
    }
}
