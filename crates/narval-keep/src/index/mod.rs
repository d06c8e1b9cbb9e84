//! The index of a data folder: caches, NARs, paths, pins and tokens.
//!
//! It is a trait because one machine keeps it in SQLite, while many machines share one in PostgreSQL. Each method is one transaction:
//! it has taken effect completely when it returns, or not at all. Durable changes also survive a power failure.
//!
//! What both databases do by the same statements is in [`sql`].

mod error;
#[cfg(feature = "postgres")]
mod postgres;
mod snapshot;
mod sql;
mod sqlite;
#[cfg(test)]
mod tests;
mod tx;

use std::sync::Arc;
use std::time::Duration;

use narval_nix::{Compression, HashPart, NarHash, Sha256};

use self::tx::{How, Reading, Tx, TxError, Work};
use super::nodes::{Members, PeerSecret};
use super::receipt_key::ReceiptKey;
use super::survey::Counted;
use super::{CacheName, NarFileName};
use crate::rule::{Rule, holds};
use narval_client::clock;

pub use error::IndexError;
#[cfg(feature = "postgres")]
pub(crate) use postgres::{Postgres, check_address};
pub(crate) use snapshot::Snapshot;
#[cfg(test)]
pub(crate) use snapshot::SnapshotBuilder;
pub(crate) use sqlite::Sqlite;

/// The number of a cache in the index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct CacheId(pub(crate) i64);

/// A cache as recorded in the index.
#[derive(Debug, Clone)]
pub(crate) struct CacheRecord {
    pub(crate) id: CacheId,
    pub(crate) name: CacheName,
    /// JSON.
    pub(crate) settings: String,
}

/// One stored format of a NAR: there is one file for each NarHash and compression.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NarRecord {
    pub(crate) nar_hash: NarHash,
    pub(crate) nar_size: u64,
    pub(crate) compression: Compression,
    pub(crate) file_hash: Sha256,
    pub(crate) file_size: u64,
    /// Bytes of its listing, if there is one.
    pub(crate) listing_size: Option<u64>,
    /// Hash parts that the scan for references found in its contents.
    pub(crate) found: Vec<HashPart>,
}

/// A path of a cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PathRecord {
    pub(crate) hash_part: HashPart,
    /// Base name.
    pub(crate) path: String,
    pub(crate) nar_hash: NarHash,
    /// The file of its NAR, below `nar/`.
    pub(crate) file: String,
    /// The text of the narinfo that is served.
    pub(crate) narinfo: Vec<u8>,
    /// Hash parts of its references, without itself.
    pub(crate) references: Vec<HashPart>,
    /// Bytes of its listing.
    pub(crate) listing_size: Option<u64>,
    /// Incremented with every change of the row; 0 for a new one.
    pub(crate) version: i64,
}

/// The result of a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Commit {
    /// All of it is visible, and durable.
    Done,
    /// Another writer has changed one of these paths meanwhile: nothing was done.
    Changed,
}

/// A token as recorded in the index.
#[derive(Debug, Clone)]
pub(crate) struct TokenRecord {
    pub(crate) id: String,
    /// SHA-256 of the whole token.
    pub(crate) hash: [u8; 32],
    pub(crate) label: String,
    /// Names of scopes, separated by commas.
    pub(crate) scopes: String,
    /// Patterns, separated by blanks.
    pub(crate) caches: String,
    pub(crate) created: u64,
    pub(crate) expires: Option<u64>,
    pub(crate) last_used: Option<u64>,
    pub(crate) revoked: Option<u64>,
}

/// The totals of a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Paths with a narinfo.
    pub paths: u64,
    /// Names of NARs, including aliases.
    pub files: u64,
    /// Bytes of NARs as they are stored, and of their listings, each counted once.
    pub bytes: u64,
    /// Bytes of logs, realisations, debug information and files of unknown kinds. They are not in the index, which returns 0 here.
    pub small_bytes: u64,
}

/// A path as lists show it.
#[derive(Debug, Clone)]
pub(crate) struct ListedPath {
    pub(crate) hash_part: HashPart,
    /// Base name.
    pub(crate) path: String,
    pub(crate) used: u64,
    /// The size of its stored NAR.
    pub(crate) file_size: u64,
}

/// A pin as recorded in the index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PinRecord {
    pub(crate) name: String,
    pub(crate) hash_part: HashPart,
    /// Base name.
    pub(crate) path: String,
    pub(crate) created: u64,
    pub(crate) until: Option<u64>,
    pub(crate) keep: Option<u32>,
}

/// Records that a path, or all paths with this NAR, were requested.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Used {
    pub(crate) cache: CacheId,
    pub(crate) path: Option<HashPart>,
    pub(crate) file: Option<String>,
    pub(crate) time: u64,
}

/// Which NARs without a path are old enough to be removed: all conditions must hold. In seconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cutoff {
    /// No narinfo has named it since then.
    pub(crate) orphaned: u64,
    /// It was not uploaded or requested since then.
    pub(crate) used: u64,
    /// It has been doomed since then. `None`: it need not be doomed.
    pub(crate) doomed: Option<u64>,
}

/// The number of a lease for collections: greater than those of all leases before it. A transaction with a number that is no longer
/// the latest fails ([`IndexError::Superseded`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Fence(pub(crate) i64);

/// How long a collection may take between two of its transactions. Then another process may take over. Half of it is for clocks that differ:
/// by up to a minute.
pub(crate) fn collection_lease() -> Duration {
    // Tests with real time wait for its end.
    Duration::from_secs(if cfg!(test) && clock::has_threads() { 20 } else { 120 })
}

/// The lease of collections.
const COLLECTION: &str = "collection";

/// NARs whose bytes are to be removed. Nobody can use their names until [`Index::forget`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Condemned {
    /// Names below `nar/`, and the bytes of the NARs.
    pub(crate) names: Vec<(String, u64)>,
    /// Stored NARs without another name.
    pub(crate) blobs: Vec<(NarHash, Compression)>,
}

/// What becomes of the names of a NAR's file that another one replaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Replaced {
    /// They are removed: the file is lost.
    Removed,
    /// A collection removes them.
    Kept,
}

/// How it is known that a file below `nar/` is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lost {
    /// Nobody else can have stored it: the storage is locked.
    Certainly,
    /// It was not there after [`Index::note_pending`] had made this pending entry. It is lost if this is its only entry. Its paths are
    /// remembered ([`Index::lost`]), in case the storage was wrong.
    Doubted(i64),
    /// As [`Doubted`](Self::Doubted), but it is there with other contents.
    Damaged(i64),
    /// It was not there, and this is the pending entry of its upload. It is lost if that is the last entry and no narinfo names the file.
    Unplaced(i64),
}

impl Lost {
    /// The pending entry, and whether narinfos may name the file; `None` if nothing has to be checked.
    fn entry(self) -> Option<(i64, bool)> {
        match self {
            Self::Certainly => None,
            _ if !holds(Rule::Doubted) => None,
            Self::Doubted(entry) | Self::Damaged(entry) => Some((entry, true)),
            Self::Unplaced(entry) => Some((entry, false)),
        }
    }
}

/// A path that was removed because its NAR was not there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LostPath {
    pub(crate) hash_part: HashPart,
    pub(crate) narinfo: Vec<u8>,
    /// The file of its NAR, below `nar/`.
    pub(crate) file: String,
    pub(crate) nar: NarRecord,
}

/// How long a path is remembered whose NAR was not there, in seconds: a day.
pub(crate) const LOST_FOR: u64 = 24 * 60 * 60;

/// The most of them that are returned at a time.
pub(crate) const LOST_MAX: u32 = 1000;

/// A change in the index that the files may not reflect yet, if a process was killed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Pending {
    /// The narinfo and the listing of this hash part.
    Path(HashPart),
    /// The file of this name below `nar/`.
    File(String),
    /// The file of a NAR, and its listing, which may belong to no cache any more.
    Blob(NarHash, Compression),
}

impl Pending {
    /// The path that it is of.
    pub(crate) fn path(&self) -> Option<&HashPart> {
        match self {
            Self::Path(part) => Some(part),
            _ => None,
        }
    }

    /// Its kind and name in a table.
    fn row(&self) -> (&'static str, String) {
        match self {
            Self::Path(part) => ("path", part.to_string()),
            Self::File(name) => ("file", name.clone()),
            Self::Blob(nar_hash, compression) => ("blob", format!("{nar_hash} {}", compression.name())),
        }
    }
}

/// Whether the file of a name below `nar/` is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Placing {
    /// Nothing is pending.
    Done,
    /// This process has stored it; the entry with this number is still pending.
    #[cfg_attr(not(feature = "postgres"), expect(dead_code, reason = "SQLite's entries are removed at once"))]
    Stored(i64),
    /// It may be on its way. The number of the oldest entry.
    Pending(i64),
}

/// A file below `nar/` that was looked for and found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Placed {
    pub(crate) name: String,
    /// The number of its oldest pending entry then; 0 if none was pending. A collection removes all entries of a name that it condemns,
    /// so if only later ones are there, the file may be gone.
    pub(crate) entry: i64,
}

/// How long ago a writer may have said that it is alive, in seconds, when it stores something: what it has stored later is not looked for when
/// it is dead.
pub(crate) const WRITER_FRESH_FOR: u64 = 90 * 60;

/// A process that stores objects of a cache before it records their names.
#[derive(Clone)]
pub(crate) struct NarWriter {
    pub(crate) number: i64,
    /// Authenticates its receipts.
    pub(crate) key: ReceiptKey,
    /// How long ago it has begun.
    pub(crate) begun: Duration,
    /// How long ago it has last said that it is alive.
    pub(crate) seen: Duration,
}

/// Whether NARs may be stored before their names are recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MayStore {
    /// The number of the last collection; `None` while one is at work.
    pub(crate) epoch: Option<Fence>,
    /// Whether the writer is known, and has said lately that it is alive ([`WRITER_FRESH_FOR`]).
    pub(crate) has_writer: bool,
    /// For each NAR, whether the index has nothing that is in the way.
    pub(crate) are_new: Vec<bool>,
}

/// The index. Times are seconds since 1970.
pub(crate) trait Index: Send + Sync {
    /// Asks something that changes nothing, by statements that both databases run.
    fn ask(&self, how: Reading, work: &mut dyn FnMut(&mut dyn Tx) -> Result<(), TxError>) -> Result<(), IndexError>;
    /// Does a transaction of such statements.
    fn change(&self, how: How, work: Work) -> Result<(), IndexError>;

    /// Makes this process one of the nodes that share disk caches, at this address: from now on, `members` is kept up to date. Returns the
    /// secret of the nodes; `None` if no other process can use this index.
    fn join(&self, _members: &Arc<Members>, _url: &str) -> Result<Option<PeerSecret>, IndexError> {
        Ok(None)
    }
    /// Ends what [`join`](Self::join) has begun.
    fn leave(&self) {}

    /// Empties the index, which nobody else can use until [`end_rebuild`](Self::end_rebuild). Returns `false` if it has contents, and they are
    /// not those of a rebuild that was interrupted.
    fn begin_rebuild(&self) -> Result<bool, IndexError> {
        Ok(false)
    }
    /// Lets others use it.
    fn end_rebuild(&self) -> Result<(), IndexError> {
        Ok(())
    }

    /// Whether the audit log is kept here; otherwise it is a file.
    fn keeps_audit(&self) -> bool {
        false
    }

    /// A number that changes with every change that a reader can see: at once for changes by this process, within
    /// [`Index::noticed_after`] for others. It does not change while the index cannot be reached.
    fn stamp(&self) -> u64;
    /// How long it takes until other processes notice a change by this one.
    fn noticed_after(&self) -> Duration;
    /// The time by which leases are measured: it also passes while the process is paused.
    fn clock(&self) -> Duration {
        clock::elapsed()
    }
    /// The time by which paths are kept and collected, and tokens expire, in seconds since 1970: that of the index, so that no node's clock decides.
    fn now(&self) -> u64 {
        clock::now()
    }
    /// What the index is set up to lose in a crash, for operators.
    fn doubts(&self) -> Result<Vec<String>, IndexError> {
        Ok(Vec::new())
    }
    /// Whether other processes may add paths at any time, so that an absence must be looked up again.
    fn is_shared(&self) -> bool;

    /// The stored NAR that a name below `nar/` refers to in a cache. If it is doomed, it no longer is.
    fn file(&self, cache: CacheId, name: &str) -> Result<Option<NarRecord>, IndexError>;
    /// As [`file`](Self::file), for each of these names.
    fn files_named(&self, cache: CacheId, names: &[&str]) -> Result<Vec<Option<NarRecord>>, IndexError> {
        names.iter().map(|name| self.file(cache, name)).collect()
    }
    /// Adds a name for a stored NAR, and a pending entry, whose number is returned. It is durable with the next commit. Waits while the
    /// bytes of one with this name are removed.
    fn add_file(&self, cache: CacheId, name: &str, nar: &NarRecord, now: u64) -> Result<i64, IndexError>;
    /// As [`add_file`](Self::add_file), in a bucket. If another file of the NAR is recorded and in use, nothing is added, and the result is
    /// `None`. If it is not in use, this one takes its place: its names stay, without paths, until a collection has removed the objects
    /// that they may have.
    fn add_object(&self, cache: CacheId, name: &str, nar: &NarRecord, now: u64) -> Result<Option<i64>, IndexError>;
    /// Removes a name below `nar/` whose file is lost, and the paths that are served from it. Returns whether it is.
    fn remove_file(&self, cache: CacheId, name: &str, lost: Lost) -> Result<bool, IndexError>;

    /// Paths that [`remove_file`](Self::remove_file) has removed within the last day because their NARs were not there, the oldest first, and at
    /// most a limited number of them.
    fn lost(&self, cache: CacheId) -> Result<Vec<LostPath>, IndexError>;
    /// Forgets such paths, and all that are too old.
    fn forget_lost(&self, cache: CacheId, hash_parts: &[HashPart]) -> Result<(), IndexError>;

    /// Makes paths visible, durably, and either all or none: each must still have the version of its record, the paths in
    /// `needed` must be there, and the files in `placed` must not have been removed and recorded again since they were looked for.
    /// Returns the greatest number of their pending entries; `None` if another writer has changed something meanwhile.
    fn commit_numbered(
        &self,
        cache: CacheId,
        paths: Vec<PathRecord>,
        needed: &[HashPart],
        placed: &[Placed],
        now: u64,
    ) -> Result<Option<i64>, IndexError>;
    /// As [`commit_numbered`](Self::commit_numbered).
    fn commit(
        &self,
        cache: CacheId,
        paths: Vec<PathRecord>,
        needed: &[HashPart],
        placed: &[Placed],
        now: u64,
    ) -> Result<Commit, IndexError> {
        let number = self.commit_numbered(cache, paths, needed, placed, now)?;
        Ok(number.map_or(Commit::Changed, |_| Commit::Done))
    }
    /// Points paths to another file of their NAR, durably, and either all or none: each must still have the version of its record.
    /// This does not count as a use. Nothing names the old file afterwards, and it counts as orphaned since `orphaned`.
    /// Returns the same as [`commit_numbered`](Self::commit_numbered).
    fn rename(
        &self,
        cache: CacheId,
        paths: Vec<PathRecord>,
        old: &str,
        orphaned: u64,
    ) -> Result<Option<i64>, IndexError>;
    /// Protects those of these paths that are there from garbage collection until then, and returns them.
    fn lease(&self, cache: CacheId, hash_parts: &[HashPart], until: u64) -> Result<Vec<HashPart>, IndexError>;

    /// Records when paths were last used.
    fn used(&self, used: &[Used]) -> Result<(), IndexError>;
    /// Counts at most this many paths, sorted by hash part, after the given one, and returns the last of them. A path counts as unsigned if its
    /// narinfo lacks one of these lines.
    fn count(
        &self,
        cache: CacheId,
        lines: &[Vec<u8>],
        after: &str,
        max: usize,
    ) -> Result<Option<(Counted, String)>, IndexError>;
    /// Takes the lease for collections; `None` while another process has it. Each transaction with its number renews it for
    /// [`collection_lease`].
    fn begin_collection(&self) -> Result<Option<Fence>, IndexError>;
    /// Takes the lease for collections from whoever has it, if a collection has left condemned names or those of deleted paths in a
    /// cache. Only for a caller with the folder's lock, which shows that the collection has been interrupted.
    fn take_over_collection(&self, cache: CacheId) -> Result<Option<Fence>, IndexError>;
    /// Who has the lease for collections, in words for a message.
    fn collector(&self) -> Result<Option<String>, IndexError>;
    /// Renews the lease for collections.
    fn continue_collection(&self, fence: Fence) -> Result<(), IndexError>;
    /// Ends the lease for collections. With `collected`, that cache has been collected completely.
    fn end_collection(&self, fence: Fence, collected: Option<CacheId>) -> Result<(), IndexError>;
    /// How long ago a cache was last collected completely, by whichever process.
    fn collected(&self, cache: CacheId) -> Result<Option<Duration>, IndexError>;
    /// Hides paths, in the given order, that were not used later than given and that no other path, pin or lease holds.
    /// Returns those that were hidden. Their NARs are kept.
    fn hide(
        &self,
        fence: Fence,
        cache: CacheId,
        paths: &[(HashPart, u64)],
        now: u64,
    ) -> Result<Vec<HashPart>, IndexError>;
    /// Removes paths, their pins and leases, unless another path refers to one of them. The names of their NARs that no other path has
    /// are gone, too, and can be condemned at once.
    fn delete(&self, cache: CacheId, paths: &[HashPart], now: u64) -> Result<Commit, IndexError>;
    /// Dooms a limited number of names of NARs that no path has; also removes expired leases and pins. Returns how many. A commit, an
    /// upload or a request of a NAR ends its doom.
    fn doom(&self, fence: Fence, cache: CacheId, cutoff: Cutoff, max: usize, now: u64) -> Result<usize, IndexError>;
    /// Condemns a limited number of names of NARs that no path has: those of deleted paths, those that an interrupted collection has
    /// left, and those for which the cutoff holds. From now on they are absent for everybody. Their pending entries are removed.
    fn condemn(
        &self,
        fence: Fence,
        cache: CacheId,
        cutoff: Option<Cutoff>,
        max: usize,
    ) -> Result<Condemned, IndexError>;
    /// Removes the rows of names that this collection has condemned. Their bytes are gone.
    fn forget(&self, fence: Fence, cache: CacheId, names: &[(String, u64)]) -> Result<(), IndexError>;

    /// Pending entries with a greater number than this, the oldest first.
    fn pending(&self, after: i64) -> Result<Vec<(i64, CacheId, Pending)>, IndexError>;
    /// As [`add_object`](Self::add_object), for several names and NARs, all different, in one transaction. Returns the numbers of their
    /// pending entries; `None` for those of which something is in the way: they have to be added one by one.
    fn add_objects(
        &self,
        cache: CacheId,
        objects: &[(String, NarRecord)],
        now: u64,
    ) -> Result<Vec<Option<i64>>, IndexError>;
    /// As [`add_objects`](Self::add_objects), for objects that were stored when `epoch` was the number of the last collection, and that
    /// nobody was at work. They count as placed. Returns which were added: none if a collection has begun since, durably.
    fn add_stored(
        &self,
        cache: CacheId,
        objects: &[(String, NarRecord)],
        epoch: Fence,
        now: u64,
    ) -> Result<Vec<bool>, IndexError>;
    /// Whether these NARs may be stored under their names before those are recorded, by the writer with this number.
    fn may_store(&self, cache: CacheId, writer: i64, objects: &[(String, NarRecord)]) -> Result<MayStore, IndexError>;
    /// Which of these names below `nar/` have a row, of whatever kind.
    fn have_rows(&self, cache: CacheId, names: &[&str]) -> Result<Vec<bool>, IndexError>;
    /// Notes, durably, that this process stores objects before it records their names. Returns its number.
    fn begin_writer(&self, cache: CacheId, key: &ReceiptKey) -> Result<i64, IndexError>;
    /// Notes that a writer is alive. Returns `false` if it is not known any more.
    fn renew_writer(&self, number: i64) -> Result<bool, IndexError>;
    /// Forgets a writer: all names of its objects are recorded.
    fn end_writer(&self, number: i64) -> Result<(), IndexError>;
    /// The writers of a cache.
    fn writers(&self, cache: CacheId) -> Result<Vec<NarWriter>, IndexError>;
    /// Condemns names below `nar/` that have no row. Returns them. They can be removed then, as those of [`condemn`](Self::condemn).
    fn condemn_strays(
        &self,
        fence: Fence,
        cache: CacheId,
        strays: &[NarFileName],
        now: u64,
    ) -> Result<Vec<String>, IndexError>;
    /// Adds a pending entry for a file that may not be as the index says: of a narinfo, or of a name below `nar/`. Returns its number.
    fn note_pending(&self, cache: CacheId, pending: &Pending) -> Result<i64, IndexError>;
    /// Gives pending entries of narinfos new numbers, durably, and one for all of the same narinfo. Returns them. Those that are gone, or
    /// that another process has taken over meanwhile, are left out.
    fn take_over(&self, numbers: &[i64]) -> Result<Vec<(i64, CacheId, HashPart)>, IndexError>;
    /// Removes pending entries up to this number: their files are durable.
    fn settle(&self, up_to: i64) -> Result<(), IndexError>;
    /// Removes these pending entries, unless there is another one for the same narinfo: others are changing the same path.
    fn settle_these(&self, numbers: &[i64]) -> Result<(), IndexError>;
    /// Removes the pending entries of these narinfos, which are published, up to this number. Keeps those of paths that have more than one:
    /// others are changing the same path.
    fn settle_alone(&self, cache: CacheId, hash_parts: &[HashPart], up_to: i64) -> Result<(), IndexError>;
    /// Removes the pending entries of a name below `nar/`, whose file is stored. Returns `false` and removes none if the one with this
    /// number is gone: then the name may have been condemned since, and its file removed.
    fn settle_file(&self, cache: CacheId, name: &str, number: i64) -> Result<bool, IndexError>;
    /// As [`settle_file`](Self::settle_file). Here, it has taken effect when this returns; for other processes, with the next commit or
    /// [`settle_stored_files`](Self::settle_stored_files).
    fn settle_file_soon(&self, cache: CacheId, name: &str, number: i64) -> Result<bool, IndexError> {
        self.settle_file(cache, name, number)
    }
    /// As [`settle_file_soon`](Self::settle_file_soon), for several names with their numbers.
    fn settle_files_soon(&self, cache: CacheId, files: &[(String, i64)]) -> Result<Vec<bool>, IndexError> {
        files.iter().map(|(name, number)| self.settle_file_soon(cache, name, *number)).collect()
    }
    /// Carries out what [`settle_file_soon`](Self::settle_file_soon) has left.
    fn settle_stored_files(&self) -> Result<(), IndexError> {
        Ok(())
    }
    /// Whether there is such an entry, other than one whose file this process has stored.
    fn is_unplaced(&self, cache: CacheId, name: &str) -> Result<bool, IndexError>;
    /// As [`is_unplaced`](Self::is_unplaced), for the names of a commit: what this process remembers may be out of date, and
    /// [`commit`](Self::commit) finds that out.
    fn placings(&self, cache: CacheId, names: &[&str]) -> Result<Vec<Placing>, IndexError>;
    /// The greatest number of a pending entry.
    fn pending_max(&self) -> Result<Option<i64>, IndexError>;
}
