//! Search by name, in a table of the names of all paths in memory. It is built when somebody opens the page, and dropped when it is not used.
//!
//! A scan of the names of a million paths takes a few milliseconds, and no database index finds parts of words. The names of
//! a live store could not be indexed anyway: its database belongs to Nix.

mod filter;
mod query;
mod table;

use std::collections::HashSet;
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use narval_nix::HashPart;
use parking_lot::{Condvar, Mutex};

use super::paths::{is_accepted, look_up};
use super::places::Places;
use crate::error::ServeError;
pub(super) use query::{Filter, SearchQuery, text_of};
use table::Table;
pub(super) use table::{CatalogEntry, Group, Groups, PAGE_LEN, Results};

/// How long an unused table is kept.
const IDLE_MAX: Duration = Duration::from_secs(300);
/// If building took longer than this, an outdated table is searched until another thread has built the next one.
const WAIT_MAX: Duration = Duration::from_millis(30);
/// How long the first table may take to be built for a view that can do without.
const SOON: Duration = Duration::from_millis(700);
/// An older table is outdated: when paths were used changes all the time.
const AGE_MAX: Duration = Duration::from_secs(60);
/// An outdated table is rebuilt, but at most one twentieth of the time is spent on that.
const REST_FACTOR: u32 = 20;

/// The states of the sources when a table was built.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Stamps(Option<Option<narval_store::Stamp>>, Option<narval_keep::Stamp>);

impl Stamps {
    fn of(places: &Places) -> Self {
        Self(places.store.as_ref().map(|store| store.stamp()), places.writable.as_ref().map(|cache| cache.stamp()))
    }
}

struct Made {
    stamps: Stamps,
    at: Instant,
    took: Duration,
    used: Instant,
    table: Arc<Table>,
}

/// The table, while it is used.
#[derive(Default)]
pub(super) struct Catalog {
    state: Mutex<State>,
    /// Notified when a table was built, or could not be.
    built: Condvar,
}

#[derive(Default)]
struct State {
    made: Option<Made>,
    /// Whether a thread builds the table, or the next one. It does not hold the lock meanwhile.
    is_building: bool,
}

/// The right to build the table.
struct Building(Arc<Catalog>);

impl Drop for Building {
    fn drop(&mut self) {
        self.0.state.lock().is_building = false;
        self.0.built.notify_all();
    }
}

impl fmt::Debug for Catalog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Catalog")
    }
}

impl Catalog {
    /// Searches; builds the table first if there is none.
    pub(super) fn search(self: &Arc<Self>, places: &Arc<Places>, query: &SearchQuery) -> Result<Results, ServeError> {
        let mut results = self.table(places)?.search(query);
        let pinned = pinned(places)?;
        results.paths.iter_mut().try_for_each(|found| found.mark(places, &pinned))?;
        Ok(results)
    }

    /// Searches packages: their versions, together.
    pub(super) fn packages(self: &Arc<Self>, places: &Arc<Places>, query: &SearchQuery) -> Result<Groups, ServeError> {
        let (table, pinned) = (self.table(places)?, pinned(places)?);
        let mut groups = match query.filter {
            Some(filter) => filter::filtered(&table, places, query, filter, &pinned)?,
            None => table.groups(query),
        };
        groups.list.iter_mut().try_for_each(|group| group.newest.mark(places, &pinned))?;
        Ok(groups)
    }

    /// The same if it takes no longer than a moment; otherwise the table is built meanwhile.
    pub(super) fn soon(
        self: &Arc<Self>,
        places: &Arc<Places>,
        query: &SearchQuery,
    ) -> Result<Option<Groups>, ServeError> {
        self.prepare(places);
        let mut state = self.state.lock();
        if state.made.is_none() && state.is_building {
            self.built.wait_for(&mut state, SOON);
        }
        let is_made = state.made.is_some();
        drop(state);
        is_made.then(|| self.packages(places, query)).transpose()
    }

    /// Names of packages that a query may mean.
    pub(super) fn near(self: &Arc<Self>, places: &Arc<Places>, query: &str) -> Result<Vec<String>, ServeError> {
        Ok(self.table(places)?.near(query))
    }

    /// How many paths there are, and the hash parts of the newest.
    pub(super) fn newest(
        self: &Arc<Self>,
        places: &Arc<Places>,
        max: usize,
    ) -> Result<(usize, Vec<String>), ServeError> {
        let table = self.table(places)?;
        let rows = table.len();
        let hash = |at: usize| table.row(at).map(|(hash, ..)| hash.to_owned());
        Ok((rows, (0..rows.min(max)).filter_map(hash).collect()))
    }

    /// A path as it is listed.
    pub(super) fn find(
        self: &Arc<Self>,
        places: &Arc<Places>,
        hash_part: HashPart,
    ) -> Result<Option<CatalogEntry>, ServeError> {
        let query = SearchQuery::words(hash_part.as_str());
        let found = self.table(places)?.search(&query).paths;
        Ok(found.into_iter().find(|found| found.hash == hash_part.as_str()))
    }

    /// Begins to build the table, if there is none: who opens the page may search soon, and with a million paths building takes seconds.
    pub(super) fn prepare(self: &Arc<Self>, places: &Arc<Places>) {
        let mut state = self.state.lock();
        if state.made.is_none() && !state.is_building {
            let building = self.begin(&mut state);
            drop(state);
            self.build_on_a_thread(building, places);
        }
    }

    /// Requests that arrive while the first table is built wait for it.
    fn table(self: &Arc<Self>, places: &Arc<Places>) -> Result<Arc<Table>, ServeError> {
        let stamps = Stamps::of(places);
        let mut state = self.state.lock();
        let building = loop {
            if let Some(known) = state.made.as_mut() {
                known.used = Instant::now();
                let is_new = known.at.elapsed() < AGE_MAX;
                let is_known = is_new && known.stamps == stamps && !matches!(known.stamps.0, Some(None));
                let is_slow = known.took > WAIT_MAX;
                let table = Arc::clone(&known.table);
                if is_known || known.at.elapsed() < known.took * REST_FACTOR || (is_slow && state.is_building) {
                    return Ok(table);
                }
                if is_slow {
                    let building = self.begin(&mut state);
                    drop(state);
                    self.build_on_a_thread(building, places);
                    return Ok(table);
                }
            }
            if !state.is_building {
                break self.begin(&mut state);
            }
            self.built.wait(&mut state);
        };
        drop(state);
        self.build(&building, places)
    }

    fn begin(self: &Arc<Self>, state: &mut State) -> Building {
        state.is_building = true;
        Building(Arc::clone(self))
    }

    fn build_on_a_thread(self: &Arc<Self>, building: Building, places: &Arc<Places>) {
        let (this, places) = (Arc::clone(self), Arc::clone(places));
        let build = move || {
            if let Err(error) = this.build(&building, &places) {
                tracing::warn!("the names of all paths cannot be read: {error}");
            }
        };
        if let Err(error) = std::thread::Builder::new().name("catalog".into()).spawn(build) {
            tracing::debug!("the next search has to build its table: cannot start a thread: {error}");
        }
    }

    /// Builds the table, without the lock: the databases are read.
    fn build(self: &Arc<Self>, _building: &Building, places: &Places) -> Result<Arc<Table>, ServeError> {
        let new = Made::now(places);
        let mut state = self.state.lock();
        let new = new.inspect_err(|_| {
            // The outdated one is used, and the next attempt is not made at once.
            if let Some(known) = state.made.as_mut() {
                known.at = Instant::now();
            }
        })?;
        let table = Arc::clone(&new.table);
        let is_first = state.made.replace(new).is_none();
        drop(state);
        if is_first {
            let catalog = Arc::downgrade(self);
            let spawned = std::thread::Builder::new().name("catalog".into()).spawn(move || drop_when_idle(&catalog));
            if let Err(error) = spawned {
                tracing::warn!("the names of all paths stay in memory: cannot start a thread: {error}");
            }
        }
        Ok(table)
    }
}

impl Made {
    fn now(places: &Places) -> Result<Self, ServeError> {
        // Before anything is read: a table can only be newer than its stamps.
        let (stamps, began) = (Stamps::of(places), Instant::now());
        let table = Arc::new(Table::read(places)?);
        let at = Instant::now();
        Ok(Self { stamps, at, took: at - began, used: at, table })
    }
}

fn drop_when_idle(catalog: &Weak<Catalog>) {
    loop {
        std::thread::sleep(IDLE_MAX / 10);
        let Some(catalog) = catalog.upgrade() else { return };
        let mut state = catalog.state.lock();
        if state.made.as_ref().is_none_or(|made| made.used.elapsed() > IDLE_MAX) {
            let unused = state.made.take();
            drop(state);
            drop(unused);
            return;
        }
    }
}

/// The hash parts of pinned paths.
fn pinned(places: &Places) -> Result<HashSet<String>, ServeError> {
    let pins = places.writable.as_ref().map(|cache| cache.pins()).transpose()?.unwrap_or_default();
    Ok(pins.iter().filter_map(|pin| pin.path.split('-').next()).map(str::to_owned).collect())
}

impl CatalogEntry {
    /// Notes whether it is pinned, and whether it lacks a signature.
    fn mark(&mut self, places: &Places, pinned: &HashSet<String>) -> Result<(), ServeError> {
        self.pinned = pinned.contains(&self.hash);
        self.unsigned = is_unsigned(places, &self.hash)?;
        Ok(())
    }
}

/// Whether a path lacks a signature of this server, which has a key.
fn is_unsigned(places: &Places, hash: &str) -> Result<bool, ServeError> {
    let info = hash.parse().ok().map(|hash| look_up(places, hash)).transpose()?.flatten();
    Ok(info.is_some_and(|info| is_accepted(places, &info) == Some(false)))
}
