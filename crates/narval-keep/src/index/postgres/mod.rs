//! The index in PostgreSQL, which many servers share.
//!
//! The tables are those of SQLite, in the schema `narval`. Where SQLite has one writer, transactions run side by side here: whoever
//! adds something holds a lock that whoever removes something must have alone ([`transaction::Lock`]), as with the lock of a data folder.
//! Locks end with their transactions, so poolers of connections do no harm. What others change is noticed within [`watch::LOOK_EVERY`].

mod address;
mod caches;
mod failed;
mod lease;
mod lost;
mod nars;
mod node;
mod nodes;
mod paths;
mod pool;
mod recorded;
mod retention;
mod schema;
mod sql;
mod together;
mod transaction;
mod tx;
mod uploads;
mod watch;
mod writers;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use narval_nix::{HashPart, nix32};
use quick_cache::sync::Cache as Remembered;
use tokio_postgres_rustls::MakeRustlsConnect;
use zeroize::Zeroizing;

use self::address::Address;
use self::failed::Failed;
use self::lease::Lease;
use self::node::{Node, this_process};
use self::nodes::Nodes;
use self::pool::Pool;
use self::recorded::RecordedNames;
use self::together::Together;
use self::transaction::{ADD_LATER, Database};
use super::tx::{ADD, DEADLINE, DEADLINE_LARGE, How, NOTE, NOTE_LATER, REMOVE, Reading, Tx, TxError, Work};
use super::{
    COLLECTION, CacheId, Commit, Condemned, Cutoff, Fence, Index, IndexError, Lost, LostPath, MayStore, NarRecord,
    NarWriter, PathRecord, Pending, Placed, Placing, Replaced, Used, collection_lease,
};
use crate::NarFileName;
use crate::nodes::{Members, PeerSecret};
use crate::receipt_key::ReceiptKey;
use crate::survey::Counted;

/// The most names of NARs of which is remembered what they mean.
const REMEMBERED_MAX: usize = 16 * 1024;

/// The number of random bytes of the secret of nodes.
const PEER_SECRET_LEN: usize = 32;

/// How a node that ends says so: its end does not wait long.
const LEAVE: How = How { deadline: Duration::from_secs(2), ..NOTE_LATER };

/// The index in PostgreSQL.
pub(crate) struct Postgres {
    database: Database,
    /// What names of NARs mean, under which stamp.
    files: Remembered<(CacheId, String), (u64, NarRecord)>,
    /// Names that are being recorded.
    together: Together,
    /// Names that this process has recorded.
    recorded: RecordedNames,
    /// The nodes that share disk caches.
    nodes: Arc<Nodes>,
    /// Ends the thread that watches.
    _stop: Sender<()>,
}

/// Whether this is the address of a database, as far as can be told without asking it.
pub(crate) fn check_address(address: &str) -> Result<(), IndexError> {
    Address::parse(address).map(drop)
}

impl Postgres {
    /// Opens the index at an address, and makes its tables when they are missing.
    #[cfg(test)]
    pub(crate) fn open(address: &str) -> Result<Self, IndexError> {
        Self::open_for(address, false)
    }

    /// As [`open`](Self::open). One that is being rebuilt can be opened for that only.
    pub(crate) fn open_for(address: &str, is_rebuild: bool) -> Result<Self, IndexError> {
        let address = Address::parse(address)?;
        let name = address.name.clone();
        let unusable = |reason: String| IndexError::Unusable { database: name.clone(), reason };
        let tls = narval_client::tls_config(&[b"postgresql"], None).map_err(|error| unusable(error.to_string()))?;
        let node = Arc::new(Node::new(is_rebuild).map_err(|error| unusable(format!("no random numbers: {error}")))?);
        let pool = Arc::new(Pool::new(address, MakeRustlsConnect::new(tls)));
        let mut connection = pool.open().map_err(|error| error.at(&name))?;
        schema::prepare(&mut connection, &this_process(), &name, schema::PATIENCE)?;
        let seen = connection.run(DEADLINE, async |client| watch::begin(client, &node).await);
        let seen = seen.map_err(|error| error.at(&name))?;
        let stamp = Arc::new(AtomicU64::new(1));
        let (stop, stopped) = channel();
        let nodes = Arc::new(Nodes::default());
        let watch = {
            let (pool, stamp, node) = (Arc::downgrade(&pool), Arc::clone(&stamp), Arc::clone(&node));
            let nodes = Arc::clone(&nodes);
            move || watch::run(&pool, &stamp, (&node, &nodes), connection, seen, &stopped)
        };
        let thread = std::thread::Builder::new().name("index-watch".into()).spawn(watch);
        thread.map_err(|error| unusable(format!("no thread for it: {error}")))?;
        Ok(Self {
            database: Database { pool, stamp, node },
            files: Remembered::new(REMEMBERED_MAX),
            together: Together::default(),
            recorded: RecordedNames::default(),
            nodes,
            _stop: stop,
        })
    }

    /// The id of the folder that this is the index of: `mine` from now on, if it is of none yet.
    pub(crate) fn folder(&self, mine: &str) -> Result<String, IndexError> {
        self.database.write(NOTE, async |change| schema::folder(change.client, mine).await)
    }
}

impl Index for Postgres {
    fn join(&self, members: &Arc<Members>, url: &str) -> Result<Option<PeerSecret>, IndexError> {
        let mut mine = [0; PEER_SECRET_LEN];
        getrandom::fill(&mut mine).map_err(|error| {
            let reason = format!("no random numbers: {error}");
            IndexError::Unusable { database: self.database.pool.name().to_owned(), reason }
        })?;
        let mine = Zeroizing::new(nix32::encode(&mine));
        let (others, secret) = self.database.write(NOTE, async |change| {
            nodes::beat(change.client, members, url).await?;
            let others = nodes::look(change.client, members.own_id()).await?;
            Ok((others, nodes::secret(change.client, &mine).await?))
        })?;
        members.set_others(&others);
        self.nodes.joined(Arc::clone(members), url.to_owned());
        Ok(Some(PeerSecret::new(secret)))
    }

    fn ask(&self, how: Reading, work: &mut dyn FnMut(&mut dyn Tx) -> Result<(), TxError>) -> Result<(), IndexError> {
        self.database.ask(how, work)
    }

    fn change(&self, how: How, mut work: Work) -> Result<(), IndexError> {
        self.database.change(how, &mut *work)
    }

    fn begin_rebuild(&self) -> Result<bool, IndexError> {
        self.database.write(REMOVE, schema::begin_rebuild)
    }

    fn end_rebuild(&self) -> Result<(), IndexError> {
        self.database.write(NOTE, schema::end_rebuild)
    }

    fn leave(&self) {
        let Some(id) = self.nodes.left() else { return };
        let left = self.database.write(LEAVE, async |change| nodes::leave(change.client, &id).await);
        if let Err(error) = left {
            // The others find out by themselves.
            tracing::debug!("{error}");
        }
    }

    fn stamp(&self) -> u64 {
        self.database.stamp.load(Ordering::Acquire)
    }

    fn noticed_after(&self) -> Duration {
        2 * watch::LOOK_EVERY
    }

    fn now(&self) -> u64 {
        self.database.node.now()
    }

    fn doubts(&self) -> Result<Vec<String>, IndexError> {
        self.database.read(DEADLINE, schema::doubts)
    }

    fn is_shared(&self) -> bool {
        true
    }

    fn keeps_audit(&self) -> bool {
        true
    }

    /// What was found once is remembered while nothing changes, and while the database is away.
    fn file(&self, cache: CacheId, name: &str) -> Result<Option<NarRecord>, IndexError> {
        let stamp = self.stamp();
        let key = (cache, name.to_owned());
        let remembered = self.files.get(&key);
        if let Some((_, nar)) = remembered.as_ref().filter(|(of, _)| *of == stamp) {
            return Ok(Some(nar.clone()));
        }
        match self.database.read(DEADLINE, async |client| nars::file(client, cache, name).await) {
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
            let all = self.database.read(DEADLINE, async |client| nars::files_named(client, cache, &asked).await)?;
            for (name, found) in names.iter().zip(&mut found).filter(|(_, nar)| nar.is_none()) {
                *found = all.get(*name).cloned();
            }
            for (name, nar) in all {
                self.files.insert((cache, name), (stamp, nar));
            }
        }
        Ok(found)
    }

    fn add_file(&self, cache: CacheId, name: &str, nar: &NarRecord, now: u64) -> Result<i64, IndexError> {
        let removing = || Failed::Condemned.at(self.database.pool.name());
        self.add(cache, name, nar, (now, Replaced::Removed))?.ok_or_else(removing)
    }

    fn add_object(&self, cache: CacheId, name: &str, nar: &NarRecord, now: u64) -> Result<Option<i64>, IndexError> {
        self.add(cache, name, nar, (now, Replaced::Kept))
    }

    fn remove_file(&self, cache: CacheId, name: &str, lost: Lost) -> Result<bool, IndexError> {
        let entry = lost.entry();
        self.database.write(REMOVE, async |change| {
            // Whoever adds or commits something waits until this transaction ends.
            if let Some(entry) = entry
                && !caches::is_still_lost(change.client, cache, name, entry).await?
            {
                return Ok(false);
            }
            if matches!(lost, Lost::Doubted(_)) {
                lost::remember(change, cache, name).await?;
            }
            nars::remove_files(change, cache, &[name]).await.map(|()| true)
        })
    }

    fn lost(&self, cache: CacheId) -> Result<Vec<LostPath>, IndexError> {
        self.database.read(DEADLINE, async |client| lost::all(client, cache).await)
    }

    fn forget_lost(&self, cache: CacheId, hash_parts: &[HashPart]) -> Result<(), IndexError> {
        self.database.write(NOTE_LATER, async |change| lost::forget(change, cache, hash_parts).await)
    }

    fn commit_numbered(
        &self,
        cache: CacheId,
        paths: Vec<PathRecord>,
        needed: &[HashPart],
        placed: &[Placed],
        now: u64,
    ) -> Result<Option<i64>, IndexError> {
        let how = How { deadline: DEADLINE_LARGE, ..ADD };
        let stored = self.recorded.stored_of(cache);
        let done = self.database.try_write(how, async |change| {
            // Whoever removes paths waits until this transaction ends.
            if paths::present(change.client, cache, needed).await?.contains(&false) {
                return Err(Failed::Changed);
            }
            paths::commit(change, cache, &paths, now).await?;
            // Now that the rows of the files are locked: one that was not there before may have been recorded again since.
            if caches::is_any_replaced(change.client, cache, placed).await? {
                return Err(Failed::Changed);
            }
            caches::settle_files(change, cache, &stored).await?;
            caches::last_pending(change.client).await
        })?;
        match done {
            Some(_) => self.recorded.forget_stored(cache, stored),
            // What is remembered may be the reason. Entries that nobody settles are settled with those of nodes that were killed.
            None => {
                self.recorded.forget_stored(cache, placed.iter().map(|file| (file.name.clone(), file.entry)).collect())
            }
        }
        Ok(done)
    }

    fn rename(
        &self,
        cache: CacheId,
        paths: Vec<PathRecord>,
        old: &str,
        orphaned: u64,
    ) -> Result<Option<i64>, IndexError> {
        self.database.try_write(ADD, async |change| {
            paths::rename(change, cache, &paths, old, orphaned).await?;
            caches::last_pending(change.client).await
        })
    }

    fn lease(&self, cache: CacheId, hash_parts: &[HashPart], until: u64) -> Result<Vec<HashPart>, IndexError> {
        self.database.write(ADD_LATER, async |change| paths::lease(change, cache, hash_parts, until).await)
    }

    fn used(&self, used: &[Used]) -> Result<(), IndexError> {
        self.database.write(NOTE_LATER, async |change| retention::used(change, used).await)
    }

    fn count(
        &self,
        cache: CacheId,
        lines: &[Vec<u8>],
        after: &str,
        max: usize,
    ) -> Result<Option<(Counted, String)>, IndexError> {
        self.database.read(DEADLINE_LARGE, async |client| retention::count(client, cache, lines, after, max).await)
    }

    fn begin_collection(&self) -> Result<Option<Fence>, IndexError> {
        let owner = this_process();
        let lease = self
            .database
            .write(NOTE, async |change| Lease::take(change.client, COLLECTION, &owner, collection_lease()).await)?;
        Ok(lease.map(|lease| Fence(lease.fence())))
    }

    fn take_over_collection(&self, cache: CacheId) -> Result<Option<Fence>, IndexError> {
        let owner = this_process();
        let lease = self.database.write(NOTE, async |change| {
            match retention::is_anything_left(change.client, cache).await? {
                true => Lease::take_over(change.client, COLLECTION, &owner, collection_lease()).await,
                false => Ok(None),
            }
        })?;
        Ok(lease.map(|lease| Fence(lease.fence())))
    }

    fn collector(&self) -> Result<Option<String>, IndexError> {
        self.database.read(DEADLINE, async |client| Lease::owner(client, COLLECTION).await)
    }

    fn continue_collection(&self, fence: Fence) -> Result<(), IndexError> {
        self.database.write_fenced(NOTE, fence, async |_| Ok(()))
    }

    fn end_collection(&self, fence: Fence, collected: Option<CacheId>) -> Result<(), IndexError> {
        self.database.write(NOTE, async |change| {
            if let Some(cache) = collected {
                retention::note_collected(change.client, cache).await?;
            }
            Lease::of(COLLECTION, fence.0).end(change.client).await
        })
    }

    fn collected(&self, cache: CacheId) -> Result<Option<Duration>, IndexError> {
        let ago = self.database.read(DEADLINE, async |client| retention::collected(client, cache).await)?;
        Ok(ago.map(Duration::from_secs))
    }

    fn hide(
        &self,
        fence: Fence,
        cache: CacheId,
        paths: &[(HashPart, u64)],
        now: u64,
    ) -> Result<Vec<HashPart>, IndexError> {
        self.database.write_fenced(REMOVE, fence, async |change| retention::hide(change, cache, paths, now).await)
    }

    fn delete(&self, cache: CacheId, paths: &[HashPart], now: u64) -> Result<Commit, IndexError> {
        self.database.write(REMOVE, async |change| retention::delete(change, cache, paths, now).await)
    }

    fn doom(&self, fence: Fence, cache: CacheId, cutoff: Cutoff, max: usize, now: u64) -> Result<usize, IndexError> {
        self.database.write_fenced(REMOVE, fence, async |change| retention::doom(change, cache, cutoff, max, now).await)
    }

    fn condemn(
        &self,
        fence: Fence,
        cache: CacheId,
        cutoff: Option<Cutoff>,
        max: usize,
    ) -> Result<Condemned, IndexError> {
        self.database
            .write_fenced(REMOVE, fence, async |change| retention::condemn(change, fence.0, cache, cutoff, max).await)
    }

    fn forget(&self, fence: Fence, cache: CacheId, names: &[(String, u64)]) -> Result<(), IndexError> {
        let names: Vec<&str> = names.iter().map(|(name, _)| name.as_str()).collect();
        self.database.write_fenced(REMOVE, fence, async |change| nars::forget(change, cache, fence.0, &names).await)
    }

    fn pending(&self, after: i64) -> Result<Vec<(i64, CacheId, Pending)>, IndexError> {
        self.database.read(DEADLINE_LARGE, async |client| caches::pending(client, after).await)
    }

    fn add_objects(
        &self,
        cache: CacheId,
        objects: &[(String, NarRecord)],
        now: u64,
    ) -> Result<Vec<Option<i64>>, IndexError> {
        self.record_all(cache, objects, now)
    }

    fn add_stored(
        &self,
        cache: CacheId,
        objects: &[(String, NarRecord)],
        epoch: Fence,
        now: u64,
    ) -> Result<Vec<bool>, IndexError> {
        self.record_stored(cache, objects, epoch, now)
    }

    fn may_store(&self, cache: CacheId, writer: i64, objects: &[(String, NarRecord)]) -> Result<MayStore, IndexError> {
        self.database.read(DEADLINE, async |client| writers::may_store(client, cache, writer, objects).await)
    }

    fn have_rows(&self, cache: CacheId, names: &[&str]) -> Result<Vec<bool>, IndexError> {
        self.database.read(DEADLINE, async |client| writers::have_rows(client, cache, names).await)
    }

    fn begin_writer(&self, cache: CacheId, key: &ReceiptKey) -> Result<i64, IndexError> {
        self.database.write(NOTE, async |change| writers::begin(change, cache, key).await)
    }

    fn renew_writer(&self, number: i64) -> Result<bool, IndexError> {
        self.database.write(NOTE, async |change| writers::renew(change, number).await)
    }

    fn end_writer(&self, number: i64) -> Result<(), IndexError> {
        self.database.write(LEAVE, async |change| writers::end(change, number).await)
    }

    fn writers(&self, cache: CacheId) -> Result<Vec<NarWriter>, IndexError> {
        self.database.read(DEADLINE, async |client| writers::all(client, cache).await)
    }

    fn condemn_strays(
        &self,
        fence: Fence,
        cache: CacheId,
        strays: &[NarFileName],
        now: u64,
    ) -> Result<Vec<String>, IndexError> {
        self.database.write_fenced(REMOVE, fence, async |change| {
            writers::condemn_strays(change, fence.0, cache, strays, now).await
        })
    }

    fn note_pending(&self, cache: CacheId, pending: &Pending) -> Result<i64, IndexError> {
        self.database.write(NOTE, async |change| caches::note_pending(change, cache, pending).await)
    }

    fn take_over(&self, numbers: &[i64]) -> Result<Vec<(i64, CacheId, HashPart)>, IndexError> {
        self.database.write(NOTE, async |change| caches::take_over(change, numbers).await)
    }

    fn settle(&self, up_to: i64) -> Result<(), IndexError> {
        self.database.write(NOTE_LATER, async |change| caches::settle(change, up_to).await)
    }

    fn settle_these(&self, numbers: &[i64]) -> Result<(), IndexError> {
        self.database.write(NOTE_LATER, async |change| caches::settle_these(change, numbers).await)
    }

    fn settle_alone(&self, cache: CacheId, hash_parts: &[HashPart], up_to: i64) -> Result<(), IndexError> {
        self.database.write(NOTE_LATER, async |change| caches::settle_alone(change, cache, hash_parts, up_to).await)
    }

    fn settle_file(&self, cache: CacheId, name: &str, number: i64) -> Result<bool, IndexError> {
        self.database.write(NOTE_LATER, async |change| caches::settle_file(change, cache, name, number).await)
    }

    fn settle_file_soon(&self, cache: CacheId, name: &str, number: i64) -> Result<bool, IndexError> {
        self.note_stored(cache, name, number)
    }

    fn settle_files_soon(&self, cache: CacheId, files: &[(String, i64)]) -> Result<Vec<bool>, IndexError> {
        self.note_all_stored(cache, files)
    }

    fn settle_stored_files(&self) -> Result<(), IndexError> {
        self.settle_stored()
    }

    fn is_unplaced(&self, cache: CacheId, name: &str) -> Result<bool, IndexError> {
        self.is_on_its_way(cache, name)
    }

    fn placings(&self, cache: CacheId, names: &[&str]) -> Result<Vec<Placing>, IndexError> {
        self.placings_of(cache, names)
    }

    fn pending_max(&self) -> Result<Option<i64>, IndexError> {
        // Numbers are given out before transactions end: alone, none is on its way with a smaller one.
        self.database.write(How { deadline: DEADLINE, ..REMOVE }, async |change| caches::pending_max(change).await)
    }
}

#[cfg(test)]
impl std::ops::Deref for Postgres {
    type Target = dyn Index;

    fn deref(&self) -> &Self::Target {
        self
    }
}

#[cfg(test)]
mod tests;
