//! The index in PostgreSQL, which many servers share.
//!
//! The tables are those of SQLite, in the schema `narval`. Where SQLite has one writer, transactions run side by side here: whoever
//! adds something holds a lock that whoever removes something must have alone ([`Lock`]), as with the lock of a data folder.
//! Locks end with their transactions, so poolers of connections do no harm. What others change is noticed within [`watch::LOOK_EVERY`].

mod address;
mod audit;
mod caches;
mod failed;
mod lease;
mod nars;
mod paths;
mod pool;
mod retention;
mod schema;
mod sql;
mod together;
mod tokens;
mod watch;

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use narval_nix::{Compression, HashPart, NarHash, nix32};
use quick_cache::sync::Cache as Remembered;
use tokio_postgres::Client;
use tokio_postgres_rustls::MakeRustlsConnect;

use self::address::Address;
use self::failed::Failed;
use self::lease::Lease;
use self::pool::Pool;
use self::sql::{execute, p};
use self::together::{Addition, Together};
use super::{
    COLLECTION, COLLECTION_LEASE, CacheId, CacheRecord, Commit, Condemned, Cutoff, Fence, Index, IndexError,
    ListedPath, NarRecord, PathRecord, Pending, PinRecord, Placed, Placing, Snapshot, TokenRecord, Usage, Used,
};
use crate::written::{AuditLine, CacheName};

/// How long a statement or a transaction may take.
const DEADLINE: Duration = Duration::from_secs(20);

/// The same for those that read or write a whole cache.
const DEADLINE_LARGE: Duration = Duration::from_secs(600);

/// How long a transaction waits for the locks of others.
const LOCK_TIMEOUT: Duration = Duration::from_secs(15);

/// How long a transaction may do nothing: that of a node that was paused ends, with its locks, before others stop waiting for them.
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);

/// How long an upload waits for a collection to have removed what it sends again.
const CONDEMNED_MAX: Duration = Duration::from_secs(5);

/// How often it looks.
const CONDEMNED_EVERY: Duration = Duration::from_millis(100);

/// How often a transaction is tried that others get in the way of.
const ATTEMPTS_MAX: u32 = 8;

/// The lock that whoever adds something shares. PostgreSQL's advisory locks are numbers: `nar` and `val` in ASCII.
const LOCK: &str = "7233906, 7758188";

/// The most names of NARs of which is remembered what they mean.
const REMEMBERED_MAX: usize = 16 * 1024;

/// The most names of which is remembered under which number they are pending.
const RECORDED_MAX: usize = 4096;

/// The index in PostgreSQL.
pub(crate) struct Postgres {
    pool: Arc<Pool>,
    /// Changes of others are counted by the thread that watches.
    stamp: Arc<AtomicU64>,
    node: Arc<Node>,
    /// What names of NARs mean, under which stamp.
    files: Remembered<(CacheId, String), (u64, NarRecord)>,
    /// Names that are being recorded.
    together: Together,
    /// Names that this process has recorded, until the index knows that their files are stored.
    recorded: Mutex<HashMap<(CacheId, String), Recorded>>,
    /// Ends the thread that watches.
    _stop: Sender<()>,
}

/// A name whose file is being stored.
struct Recorded {
    /// Under which number it is pending.
    number: i64,
    /// Whether the file is stored.
    is_stored: bool,
}

/// What changes of this process are marked with: it counts those itself.
struct Node {
    id: String,
    /// Another name after a change of which nobody knows whether it took effect: it is noticed as others' are.
    generation: AtomicU64,
}

impl Node {
    fn new() -> Result<Self, getrandom::Error> {
        let mut id = [0; 10];
        getrandom::fill(&mut id)?;
        Ok(Self { id: nix32::encode(&id), generation: AtomicU64::new(0) })
    }

    fn name(&self) -> String {
        format!("{}.{}", self.id, self.generation.load(Ordering::Acquire))
    }
}

/// This process, for messages on other machines.
fn this_process() -> String {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    format!("process {} on {host}", std::process::id())
}

/// Who must not be in the middle of something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lock {
    /// Nobody is in the way.
    None,
    /// Whoever removes something.
    Shared,
    /// Whoever adds or removes something.
    Alone,
}

/// How a transaction is done.
#[derive(Debug, Clone, Copy)]
struct How {
    lock: Lock,
    /// A crash of the database may undo it, as long as no durable transaction came after it.
    is_durable: bool,
    deadline: Duration,
}

const ADD: How = How { lock: Lock::Shared, is_durable: true, deadline: DEADLINE };
const ADD_LATER: How = How { is_durable: false, ..ADD };
const REMOVE: How = How { lock: Lock::Alone, deadline: DEADLINE_LARGE, ..ADD };
const NOTE: How = How { lock: Lock::None, is_durable: true, deadline: DEADLINE };
const NOTE_LATER: How = How { is_durable: false, ..NOTE };

impl How {
    fn begin(self) -> String {
        let lock = match self.lock {
            Lock::None => String::new(),
            Lock::Shared => format!("select pg_advisory_xact_lock_shared({LOCK});"),
            Lock::Alone => format!("select pg_advisory_xact_lock({LOCK});"),
        };
        let asynchronous = if self.is_durable { "" } else { "set local synchronous_commit = off;" };
        format!(
            "begin isolation level read committed; set local lock_timeout = {}; set local statement_timeout = {}; \
             set local idle_in_transaction_session_timeout = {}; {asynchronous} {lock}",
            LOCK_TIMEOUT.as_millis(),
            self.deadline.as_millis(),
            IDLE_TIMEOUT.as_millis(),
        )
    }
}

/// A transaction that is under way.
struct Change<'a> {
    client: &'a Client,
    node: &'a str,
    /// Whether nobody else adds or removes anything.
    is_alone: bool,
    visible: &'a Cell<bool>,
}

impl Change<'_> {
    /// To be done in every transaction that changes what a reader can see, or what names mean.
    async fn is_visible(&self) -> Result<(), Failed> {
        if self.visible.replace(true) {
            return Ok(());
        }
        execute(self.client, "insert into narval.changes (node) values ($1)", &[p(&self.node)]).await.map(drop)
    }
}

/// Whether this is the address of a database, as far as can be told without asking it.
pub(crate) fn check_address(address: &str) -> Result<(), IndexError> {
    Address::parse(address).map(drop)
}

/// How far a transaction got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Work,
    Commit,
}

impl Postgres {
    /// Opens the index at an address, and makes its tables when they are missing.
    pub(crate) fn open(address: &str) -> Result<Self, IndexError> {
        let address = Address::parse(address)?;
        let name = address.name.clone();
        let unusable = |reason: String| IndexError::Unusable { database: name.clone(), reason };
        let tls = narval_client::tls_config(&[b"postgresql"]).map_err(|error| unusable(error.to_string()))?;
        let node = Arc::new(Node::new().map_err(|error| unusable(format!("no random numbers: {error}")))?);
        let pool = Arc::new(Pool::new(address, MakeRustlsConnect::new(tls)));
        let mut connection = pool.open().map_err(|error| error.at(&name))?;
        schema::prepare(&mut connection, &node.id, &name)?;
        let seen = connection.run(DEADLINE, async |client| watch::begin(client, &node.name()).await);
        let seen = seen.map_err(|error| error.at(&name))?;
        let stamp = Arc::new(AtomicU64::new(1));
        let (stop, stopped) = channel();
        let watch = {
            let (pool, stamp, node) = (Arc::downgrade(&pool), Arc::clone(&stamp), Arc::clone(&node));
            move || watch::run(&pool, &stamp, &node, connection, seen, &stopped)
        };
        let thread = std::thread::Builder::new().name("index-watch".into()).spawn(watch);
        thread.map_err(|error| unusable(format!("no thread for it: {error}")))?;
        Ok(Self {
            pool,
            stamp,
            node,
            files: Remembered::new(REMEMBERED_MAX),
            together: Together::default(),
            recorded: Mutex::default(),
            _stop: stop,
        })
    }

    fn recorded(&self) -> MutexGuard<'_, HashMap<(CacheId, String), Recorded>> {
        self.recorded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers under which numbers names are pending.
    fn remember_recorded(&self, cache: CacheId, names: Vec<(String, i64)>) {
        let mut recorded = self.recorded();
        if recorded.len() + names.len() > RECORDED_MAX {
            // Uploads that failed are among them. The others are settled one by one.
            recorded.retain(|_, name| name.is_stored);
        }
        for (name, number) in names {
            if recorded.len() < RECORDED_MAX {
                recorded.insert((cache, name), Recorded { number, is_stored: false });
            }
        }
    }

    /// Names of a cache whose files are stored, which the index does not know yet, with their numbers.
    fn stored_of(&self, cache: CacheId) -> Vec<(String, i64)> {
        let recorded = self.recorded();
        let stored = recorded.iter().filter(|((of, _), name)| *of == cache && name.is_stored);
        stored.map(|((_, name), recorded)| (name.clone(), recorded.number)).collect()
    }

    /// The number of a name whose file is stored, which the index does not know yet.
    fn stored_number(&self, cache: CacheId, name: &str) -> Option<i64> {
        let recorded = self.recorded();
        recorded.get(&(cache, name.to_owned())).filter(|name| name.is_stored).map(|name| name.number)
    }

    /// The index knows that these are stored.
    fn forget_stored(&self, cache: CacheId, names: Vec<(String, i64)>) {
        let mut recorded = self.recorded();
        for (name, number) in names {
            let key = (cache, name);
            // It may be on its way again since.
            if recorded.get(&key).is_some_and(|name| name.number == number) {
                recorded.remove(&key);
            }
        }
    }

    /// The id of the folder that this is the index of: `mine` from now on, if it is of none yet.
    pub(crate) fn folder(&self, mine: &str) -> Result<String, IndexError> {
        self.write(NOTE, async |change| schema::folder(change.client, mine).await)
    }

    fn read<T>(&self, deadline: Duration, ask: impl AsyncFn(&Client) -> Result<T, Failed>) -> Result<T, IndexError> {
        loop {
            let (mut connection, was_used) = self.pool.take()?;
            match connection.run(deadline, &ask) {
                Ok(answer) => {
                    self.pool.give_back(connection);
                    return Ok(answer);
                }
                // The server has closed it meanwhile; a new one is opened next.
                Err(error) if error.breaks_connection() && was_used && !matches!(error, Failed::Deadline(_)) => {
                    self.pool.outdated();
                }
                Err(error) if error.breaks_connection() => {
                    self.pool.lost(&error);
                    return Err(error.at(self.pool.name()));
                }
                Err(error) => {
                    self.pool.give_back(connection);
                    return Err(error.at(self.pool.name()));
                }
            }
        }
    }

    /// A transaction of a collection: nothing is done if its lease is another's now. It is renewed.
    fn write_fenced<T>(
        &self,
        how: How,
        fence: Fence,
        work: impl AsyncFn(&Change<'_>) -> Result<T, Failed>,
    ) -> Result<T, IndexError> {
        let lease = Lease::of(COLLECTION, fence.0);
        self.write(how, async |change| {
            lease.renew(change.client, COLLECTION_LEASE).await?;
            work(change).await
        })
    }

    fn write<T>(&self, how: How, work: impl AsyncFn(&Change<'_>) -> Result<T, Failed>) -> Result<T, IndexError> {
        match self.try_write(how, work)? {
            Some(done) => Ok(done),
            None => Err(Failed::Changed.at(self.pool.name())),
        }
    }

    /// Does a transaction. `None`: others have changed what it is about, and nothing was done.
    fn try_write<T>(
        &self,
        mut how: How,
        work: impl AsyncFn(&Change<'_>) -> Result<T, Failed>,
    ) -> Result<Option<T>, IndexError> {
        let mut attempts = 0;
        loop {
            attempts += 1;
            let (mut connection, was_used) = self.pool.take()?;
            let (visible, stage, node) = (Cell::new(false), Cell::new(Stage::Work), self.node.name());
            let done = connection.run(how.deadline, async |client| {
                client.batch_execute(&how.begin()).await?;
                let change = Change { client, node: &node, is_alone: how.lock == Lock::Alone, visible: &visible };
                let done = work(&change).await;
                if done.is_ok() {
                    stage.set(Stage::Commit);
                    client.batch_execute("commit").await?;
                } else if !matches!(&done, Err(error) if error.breaks_connection()) {
                    client.batch_execute("rollback").await?;
                }
                done
            });
            if stage.get() == Stage::Commit && visible.get() {
                self.stamp.fetch_add(1, Ordering::AcqRel);
            }
            let error = match done {
                Ok(done) => {
                    self.pool.give_back(connection);
                    return Ok(Some(done));
                }
                Err(error) => error,
            };
            if error.breaks_connection() {
                if stage.get() == Stage::Commit {
                    // Nobody knows whether it took effect, or will: others' changes are looked for.
                    self.node.generation.fetch_add(1, Ordering::AcqRel);
                } else if was_used && !matches!(error, Failed::Deadline(_)) {
                    self.pool.outdated();
                    continue;
                }
                self.pool.lost(&error);
                return Err(error.at(self.pool.name()));
            }
            self.pool.give_back(connection);
            match error {
                Failed::Changed => return Ok(None),
                Failed::NeedsLock => how.lock = Lock::Alone,
                error if error.is_collision() && attempts < ATTEMPTS_MAX => {}
                error => return Err(error.at(self.pool.name())),
            }
        }
    }
}

impl Index for Postgres {
    fn stamp(&self) -> u64 {
        self.stamp.load(Ordering::Acquire)
    }

    fn noticed_after(&self) -> Duration {
        2 * watch::LOOK_EVERY
    }

    fn is_shared(&self) -> bool {
        true
    }

    fn keeps_audit(&self) -> bool {
        true
    }

    fn add_audit(&self, lines: &[AuditLine]) -> Result<(), IndexError> {
        self.write(NOTE_LATER, async |change| audit::add(change, lines).await)
    }

    fn audit(&self, after: i64, since: u64, max: usize) -> Result<Vec<(i64, AuditLine)>, IndexError> {
        self.read(DEADLINE, async |client| audit::after(client, after, since, max).await)
    }

    fn forget_audit(&self, before: u64) -> Result<(), IndexError> {
        self.write(How { deadline: DEADLINE_LARGE, ..NOTE_LATER }, async |change| audit::forget(change, before).await)
    }

    fn caches(&self) -> Result<Vec<CacheRecord>, IndexError> {
        self.read(DEADLINE, caches::all)
    }

    fn create_cache(&self, name: &CacheName, settings: &str, now: u64) -> Result<CacheRecord, IndexError> {
        self.write(ADD, async |change| caches::create(change, name, settings, now).await)
    }

    fn set_settings(&self, cache: CacheId, settings: &str) -> Result<(), IndexError> {
        self.write(NOTE, async |change| caches::set_settings(change, cache, settings).await)
    }

    fn usage(&self, cache: CacheId) -> Result<Usage, IndexError> {
        self.read(DEADLINE_LARGE, async |client| nars::usage(client, cache).await)
    }

    fn nar(&self, nar_hash: &NarHash, compression: Compression) -> Result<Option<NarRecord>, IndexError> {
        self.read(DEADLINE, async |client| nars::nar(client, nar_hash, compression).await)
    }

    /// What was found once is remembered while nothing changes, and while the database is away.
    fn file(&self, cache: CacheId, name: &str) -> Result<Option<NarRecord>, IndexError> {
        let stamp = self.stamp();
        let key = (cache, name.to_owned());
        let remembered = self.files.get(&key);
        if let Some((_, nar)) = remembered.as_ref().filter(|(of, _)| *of == stamp) {
            return Ok(Some(nar.clone()));
        }
        match self.read(DEADLINE, async |client| nars::file(client, cache, name).await) {
            Ok(Some(nar)) => {
                self.files.insert(key, (stamp, nar.clone()));
                Ok(Some(nar))
            }
            Ok(None) => {
                self.files.remove(&key);
                Ok(None)
            }
            Err(error) if error.is_away() => remembered.map(|(_, nar)| Some(nar)).ok_or(error),
            Err(error) => Err(error),
        }
    }

    fn files_named(&self, cache: CacheId, names: &[&str]) -> Result<Vec<Option<NarRecord>>, IndexError> {
        let stamp = self.stamp();
        let of_now = |name: &&str| Some(self.files.get(&(cache, (*name).to_owned()))?).filter(|(of, _)| *of == stamp);
        let mut found: Vec<Option<NarRecord>> = names.iter().map(|name| of_now(name).map(|(_, nar)| nar)).collect();
        let asked: Vec<&str> =
            names.iter().zip(&found).filter(|(_, nar)| nar.is_none()).map(|(name, _)| *name).collect();
        if !asked.is_empty() {
            let all = self.read(DEADLINE, async |client| nars::files_named(client, cache, &asked).await)?;
            for (name, found) in names.iter().zip(&mut found).filter(|(_, nar)| nar.is_none()) {
                *found = all.get(*name).cloned();
            }
            for (name, nar) in all {
                self.files.insert((cache, name), (stamp, nar));
            }
        }
        Ok(found)
    }

    fn files(&self, cache: CacheId) -> Result<Vec<(String, NarRecord)>, IndexError> {
        self.read(DEADLINE_LARGE, async |client| nars::files(client, cache).await)
    }

    fn files_of(&self, cache: CacheId, nar_hash: &NarHash) -> Result<Vec<(String, NarRecord)>, IndexError> {
        self.read(DEADLINE, async |client| nars::files_of(client, cache, nar_hash).await)
    }

    fn add_file(&self, cache: CacheId, name: &str, nar: &NarRecord, now: u64) -> Result<i64, IndexError> {
        // Until its file is stored again, it is not.
        let key = (cache, name.to_owned());
        self.recorded().remove(&key);
        let addition = Addition { cache, name: name.to_owned(), nar: nar.clone(), now };
        let record = |all: &[Addition]| {
            // Whatever is in the way of one of them, each finds out by itself.
            let recorded = self.try_write(ADD_LATER, async |change| nars::add_files(change, all).await);
            let Ok(Some(names)) = recorded else { return false };
            if let Some(first) = all.first() {
                self.remember_recorded(first.cache, names);
            }
            true
        };
        // Its number may not be remembered, if there are too many: then it is added once more.
        if self.together.add(addition, record)
            && let Some(recorded) = self.recorded().get(&key)
        {
            return Ok(recorded.number);
        }
        let until = Instant::now() + CONDEMNED_MAX;
        loop {
            let is_last = Instant::now() >= until;
            let added =
                self.write(ADD_LATER, async |change| match nars::add_file(change, cache, name, nar, now).await {
                    Err(Failed::Condemned) if !is_last => Ok(None),
                    added => added.map(Some),
                })?;
            if let Some(number) = added {
                return Ok(number);
            }
            std::thread::sleep(CONDEMNED_EVERY);
        }
    }

    fn remove_file(&self, cache: CacheId, name: &str) -> Result<(), IndexError> {
        self.write(REMOVE, async |change| nars::remove_files(change, cache, &[name]).await)
    }

    fn narinfo(&self, cache: CacheId, hash_part: &HashPart) -> Result<Option<Vec<u8>>, IndexError> {
        Ok(self.narinfos(cache, &[*hash_part])?.into_iter().next().flatten())
    }

    fn narinfos(&self, cache: CacheId, hash_parts: &[HashPart]) -> Result<Vec<Option<Vec<u8>>>, IndexError> {
        self.read(DEADLINE, async |client| paths::narinfos(client, cache, hash_parts).await)
    }

    fn path(&self, cache: CacheId, hash_part: &HashPart) -> Result<Option<PathRecord>, IndexError> {
        Ok(self.paths(cache, &[*hash_part])?.pop().flatten())
    }

    fn paths(&self, cache: CacheId, hash_parts: &[HashPart]) -> Result<Vec<Option<PathRecord>>, IndexError> {
        self.read(DEADLINE, async |client| paths::paths(client, cache, hash_parts).await)
    }

    fn present(&self, cache: CacheId, hash_parts: &[HashPart]) -> Result<Vec<bool>, IndexError> {
        if hash_parts.is_empty() {
            return Ok(Vec::new());
        }
        self.read(DEADLINE, async |client| paths::present(client, cache, hash_parts).await)
    }

    fn located(&self, cache: CacheId, hash_parts: &[HashPart]) -> Result<Vec<Option<(String, u64)>>, IndexError> {
        self.read(DEADLINE, async |client| paths::located(client, cache, hash_parts).await)
    }

    fn commit(
        &self,
        cache: CacheId,
        paths: Vec<PathRecord>,
        needed: &[HashPart],
        placed: &[Placed],
        now: u64,
    ) -> Result<Commit, IndexError> {
        let how = How { deadline: DEADLINE_LARGE, ..ADD };
        let stored = self.stored_of(cache);
        let done = self.try_write(how, async |change| {
            // Whoever removes paths waits until this transaction ends.
            if paths::present(change.client, cache, needed).await?.contains(&false) {
                return Err(Failed::Changed);
            }
            let done = paths::commit(change, cache, &paths, now).await?;
            // Now that the rows of the files are locked: one that was not there before may have been recorded again since.
            if caches::is_any_replaced(change.client, cache, placed).await? {
                return Err(Failed::Changed);
            }
            caches::settle_files(change, cache, &stored).await?;
            Ok(done)
        })?;
        match done {
            Some(_) => self.forget_stored(cache, stored),
            // What is remembered may be the reason. Entries that nobody settles are settled with those of nodes that were killed.
            None => self.forget_stored(cache, placed.iter().map(|file| (file.name.clone(), file.entry)).collect()),
        }
        Ok(done.unwrap_or(Commit::Changed))
    }

    fn rename(&self, cache: CacheId, paths: Vec<PathRecord>, old: &str, orphaned: u64) -> Result<Commit, IndexError> {
        let done = self.try_write(ADD, async |change| paths::rename(change, cache, &paths, old, orphaned).await)?;
        Ok(done.unwrap_or(Commit::Changed))
    }

    fn paths_of_file(&self, cache: CacheId, name: &str) -> Result<Vec<HashPart>, IndexError> {
        self.read(DEADLINE, async |client| paths::of_file(client, cache, name).await)
    }

    fn not_zstd(&self, cache: CacheId, after: &str, max: usize) -> Result<Vec<String>, IndexError> {
        self.read(DEADLINE, async |client| nars::not_zstd(client, cache, after, max).await)
    }

    fn lease(&self, cache: CacheId, hash_parts: &[HashPart], until: u64) -> Result<(), IndexError> {
        self.write(ADD_LATER, async |change| paths::lease(change, cache, hash_parts, until).await)
    }

    fn used(&self, used: &[Used]) -> Result<(), IndexError> {
        self.write(NOTE_LATER, async |change| retention::used(change, used).await)
    }

    fn snapshot(&self, cache: CacheId, wanted: Option<&HashPart>) -> Result<Snapshot, IndexError> {
        self.read(DEADLINE_LARGE, async |client| retention::snapshot(client, cache, wanted).await)
    }

    fn names(&self, cache: CacheId, ids: &[i64]) -> Result<Vec<(i64, ListedPath)>, IndexError> {
        self.read(DEADLINE, async |client| retention::names(client, cache, ids).await)
    }

    fn sizes(&self, cache: CacheId) -> Result<Vec<(i64, i64, u64)>, IndexError> {
        self.read(DEADLINE_LARGE, async |client| retention::sizes(client, cache).await)
    }

    fn list(&self, cache: CacheId, after: &str, max: usize) -> Result<Vec<ListedPath>, IndexError> {
        self.read(DEADLINE, async |client| retention::list(client, cache, after, max).await)
    }

    fn begin_collection(&self) -> Result<Option<Fence>, IndexError> {
        let owner = this_process();
        let lease =
            self.write(NOTE, async |change| Lease::take(change.client, COLLECTION, &owner, COLLECTION_LEASE).await)?;
        Ok(lease.map(|lease| Fence(lease.fence())))
    }

    fn take_over_collection(&self, cache: CacheId) -> Result<Option<Fence>, IndexError> {
        let owner = this_process();
        let lease =
            self.write(NOTE, async |change| match retention::is_anything_left(change.client, cache).await? {
                true => Lease::take_over(change.client, COLLECTION, &owner, COLLECTION_LEASE).await,
                false => Ok(None),
            })?;
        Ok(lease.map(|lease| Fence(lease.fence())))
    }

    fn collector(&self) -> Result<Option<String>, IndexError> {
        self.read(DEADLINE, async |client| Lease::owner(client, COLLECTION).await)
    }

    fn continue_collection(&self, fence: Fence) -> Result<(), IndexError> {
        self.write_fenced(NOTE, fence, async |_| Ok(()))
    }

    fn end_collection(&self, fence: Fence, collected: Option<CacheId>) -> Result<(), IndexError> {
        self.write(NOTE, async |change| {
            if let Some(cache) = collected {
                retention::note_collected(change.client, cache).await?;
            }
            Lease::of(COLLECTION, fence.0).end(change.client).await
        })
    }

    fn collected(&self, cache: CacheId) -> Result<Option<Duration>, IndexError> {
        let ago = self.read(DEADLINE, async |client| retention::collected(client, cache).await)?;
        Ok(ago.map(Duration::from_secs))
    }

    fn hide(
        &self,
        fence: Fence,
        cache: CacheId,
        paths: &[(HashPart, u64)],
        now: u64,
    ) -> Result<Vec<HashPart>, IndexError> {
        self.write_fenced(REMOVE, fence, async |change| retention::hide(change, cache, paths, now).await)
    }

    fn delete(&self, cache: CacheId, paths: &[HashPart], now: u64) -> Result<Commit, IndexError> {
        self.write(REMOVE, async |change| retention::delete(change, cache, paths, now).await)
    }

    fn orphans(&self, cache: CacheId, cutoff: Cutoff) -> Result<Vec<(String, u64)>, IndexError> {
        self.read(DEADLINE_LARGE, async |client| retention::orphans(client, cache, cutoff).await)
    }

    fn doom(&self, fence: Fence, cache: CacheId, cutoff: Cutoff, max: usize, now: u64) -> Result<usize, IndexError> {
        self.write_fenced(REMOVE, fence, async |change| retention::doom(change, cache, cutoff, max, now).await)
    }

    fn condemn(
        &self,
        fence: Fence,
        cache: CacheId,
        cutoff: Option<Cutoff>,
        max: usize,
    ) -> Result<Condemned, IndexError> {
        self.write_fenced(REMOVE, fence, async |change| retention::condemn(change, fence.0, cache, cutoff, max).await)
    }

    fn forget(&self, fence: Fence, cache: CacheId, names: &[(String, u64)]) -> Result<(), IndexError> {
        let names: Vec<&str> = names.iter().map(|(name, _)| name.as_str()).collect();
        self.write_fenced(REMOVE, fence, async |change| nars::forget(change, cache, fence.0, &names).await)
    }

    fn referrers(&self, cache: CacheId, hash_part: &HashPart) -> Result<Vec<HashPart>, IndexError> {
        self.read(DEADLINE, async |client| retention::referrers(client, cache, hash_part).await)
    }

    fn pin(&self, cache: CacheId, pin: PinRecord, only_present: bool) -> Result<bool, IndexError> {
        // Two of one name at once would leave too many.
        self.write(REMOVE, async |change| retention::pin(change, cache, &pin, only_present).await)
    }

    fn unpin(&self, cache: CacheId, name: &str, hash_part: Option<HashPart>) -> Result<usize, IndexError> {
        let removed = self.write(NOTE, async |change| retention::unpin(change, cache, name, hash_part).await)?;
        Ok(usize::try_from(removed).unwrap_or(usize::MAX))
    }

    fn pins(&self, cache: CacheId) -> Result<Vec<PinRecord>, IndexError> {
        self.read(DEADLINE, async |client| retention::pins(client, cache).await)
    }

    fn pending(&self, after: i64) -> Result<Vec<(i64, CacheId, Pending)>, IndexError> {
        self.read(DEADLINE_LARGE, async |client| caches::pending(client, after).await)
    }

    fn settle(&self, up_to: i64) -> Result<(), IndexError> {
        self.write(NOTE_LATER, async |change| caches::settle(change, up_to).await)
    }

    fn settle_these(&self, numbers: &[i64]) -> Result<(), IndexError> {
        self.write(NOTE_LATER, async |change| caches::settle_these(change, numbers).await)
    }

    fn settle_alone(&self, cache: CacheId, hash_parts: &[HashPart]) -> Result<(), IndexError> {
        self.write(NOTE_LATER, async |change| caches::settle_alone(change, cache, hash_parts).await)
    }

    fn settle_file(&self, cache: CacheId, name: &str, number: i64) -> Result<bool, IndexError> {
        self.write(NOTE_LATER, async |change| caches::settle_file(change, cache, name, number).await)
    }

    fn settle_file_soon(&self, cache: CacheId, name: &str, number: i64) -> Result<bool, IndexError> {
        let key = (cache, name.to_owned());
        let is_mine = |recorded: &&mut Recorded| recorded.number == number;
        if self.recorded().get_mut(&key).filter(is_mine).is_some() {
            let is_pending = self.read(DEADLINE, async |client| caches::is_pending(client, number).await)?;
            let mut recorded = self.recorded();
            if !is_pending {
                recorded.remove(&key);
                return Ok(false);
            }
            if let Some(recorded) = recorded.get_mut(&key).filter(is_mine) {
                recorded.is_stored = true;
                return Ok(true);
            }
        }
        self.settle_file(cache, name, number)
    }

    fn settle_stored_files(&self) -> Result<(), IndexError> {
        let stored = |((cache, _), name): (&(CacheId, String), &Recorded)| name.is_stored.then_some(*cache);
        let caches: HashSet<CacheId> = self.recorded().iter().filter_map(stored).collect();
        for cache in caches {
            let names = self.stored_of(cache);
            self.write(NOTE_LATER, async |change| caches::settle_files(change, cache, &names).await)?;
            self.forget_stored(cache, names);
        }
        Ok(())
    }

    fn is_unplaced(&self, cache: CacheId, name: &str) -> Result<bool, IndexError> {
        let stored = self.stored_number(cache, name).unwrap_or(-1);
        let find = async |client: &Client| caches::oldest_pending(client, cache, name, stored).await;
        let (oldest, is_stored) = self.read(DEADLINE, find)?;
        Ok(oldest.is_some() && !is_stored)
    }

    fn placings(&self, cache: CacheId, names: &[&str]) -> Result<Vec<Placing>, IndexError> {
        let stored: Vec<Option<i64>> = names.iter().map(|name| self.stored_number(cache, name)).collect();
        let asked = names.iter().zip(&stored).filter(|(_, stored)| stored.is_none());
        let asked: Vec<&str> = asked.map(|(name, _)| *name).collect();
        let oldest = match asked.is_empty() {
            true => HashMap::new(),
            false => self.read(DEADLINE, async |client| caches::oldest_pendings(client, cache, &asked).await)?,
        };
        let pending = |name: &str| oldest.get(name).copied().map_or(Placing::Done, Placing::Pending);
        Ok(names
            .iter()
            .zip(stored)
            .map(|(name, stored)| stored.map_or_else(|| pending(name), Placing::Stored))
            .collect())
    }

    fn pending_max(&self) -> Result<Option<i64>, IndexError> {
        // Numbers are given out before transactions end: alone, none is on its way with a smaller one.
        self.write(How { deadline: DEADLINE, ..REMOVE }, async |change| caches::pending_max(change).await)
    }

    fn add_token(&self, token: TokenRecord) -> Result<(), IndexError> {
        self.write(NOTE, async |change| tokens::add(change, &token).await)
    }

    fn token(&self, id: &str) -> Result<Option<TokenRecord>, IndexError> {
        self.read(DEADLINE, async |client| tokens::find(client, id).await)
    }

    fn tokens(&self) -> Result<Vec<TokenRecord>, IndexError> {
        self.read(DEADLINE, tokens::all)
    }

    fn revoke_token(&self, id: &str, now: u64) -> Result<bool, IndexError> {
        self.write(NOTE, async |change| tokens::revoke(change, id, now).await)
    }

    fn forget_tokens(&self, before: u64) -> Result<(), IndexError> {
        self.write(NOTE_LATER, async |change| tokens::forget(change, before).await)
    }

    fn tokens_used(&self, used: Vec<(String, u64)>) -> Result<(), IndexError> {
        self.write(NOTE_LATER, async |change| tokens::used(change, &used).await)
    }
}

#[cfg(test)]
mod tests;
