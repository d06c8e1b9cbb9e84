//! Where the bytes of caches are: in a folder ([`Folder`]) or in a bucket ([`Bucket`]).
//!
//! [`Storage`] is the whole, [`CacheStorage`] the files of one cache. No file belongs to two. Names of files are those of the standard layout,
//! relative to the cache: `nar/<hash>-<random>.nar.xz`, `<hash part>.narinfo`, `log/…`. The name of a NAR is never used again. The index decides what is visible; a storage
//! decides in which order bytes and rows are written.

mod bucket;
mod folder;
mod room;
mod threads;

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use narval_files::TemporaryFile;
use narval_nix::HashPart;

use crate::name::{CacheName, NarFileName};
use crate::nodes::Peers;
use crate::records::paths::{NarRecord, PathRecord};
use crate::rejection::Rejection;

use narval_files::GrowingFile;
use narval_s3::ObjectWriter;

pub(crate) use bucket::{Bucket, BucketOptions};
pub(crate) use folder::Folder;
pub(crate) use room::Room;
pub(crate) use threads::several;

/// The prefix of the names of files that are being written.
pub(crate) const TEMPORARY: &str = ".tmp-";

/// Folders in each cache: those of the standard layout.
const CACHE_FOLDERS: [&str; 5] = ["nar", "log", "realisations", "build-trace-v2", "debuginfo"];

/// A lock between processes: shared while files are added, exclusive while they are removed. Released when dropped.
pub(crate) struct StorageLock {
    _file: Option<File>,
}

/// The bytes of all caches.
pub(crate) trait Storage: Send + Sync {
    /// Where it is, for messages.
    fn place(&self) -> &Path;
    /// Removes partial uploads of killed processes.
    fn clear_up(&self) -> io::Result<()>;
    /// The files of a cache, which need not have any yet.
    fn open_cache(&self, name: &CacheName) -> io::Result<Box<dyn CacheStorage>>;
    /// The caches that have files.
    fn caches(&self) -> io::Result<Vec<CacheName>>;
    /// Waits for processes that remove files, and keeps others from starting.
    fn lock_shared(&self) -> io::Result<StorageLock>;
    /// Waits for processes that add files, and keeps others from starting.
    fn lock_exclusive(&self) -> io::Result<StorageLock>;
    /// A local file for something that is being received.
    fn incoming(&self) -> io::Result<TemporaryFile>;
    /// Frees so much space on the local disk, if something is there that can be fetched again.
    fn make_disk_room(&self, _bytes: u64) {}
    /// Whether uploads can be stored now.
    fn check_writable(&self) -> io::Result<()>;
    /// The room on the disk; `None` if there is no limit.
    fn room(&self) -> Option<Room>;
    /// Whether narinfos are published after their commit, one by one, so that they may lag behind the index.
    fn publishes_later(&self) -> bool;
    /// Aborts uploads in parts that were begun before this time, in seconds since 1970. Returns their number.
    fn end_unfinished(&self, before: u64) -> io::Result<usize>;
    /// Makes all previous writes durable.
    fn sync(&self) -> io::Result<()>;
    /// The other nodes, if this one shares its disk cache with them.
    fn peers(&self) -> Option<&Arc<Peers>> {
        None
    }
}

/// A file of a cache.
pub(crate) struct StoredFile {
    /// Relative to the cache.
    pub(crate) name: String,
    pub(crate) len: u64,
    pub(crate) modified: Option<SystemTime>,
}

/// Which files of a cache to list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Below<'a> {
    /// Those that are in no folder.
    Root,
    /// All in this folder, which may be absent, and its folders.
    Folder(&'a str),
}

/// A narinfo that was written, but does not have its name yet.
pub(crate) struct WrittenNarinfo(Option<TemporaryFile>);

/// An upload in progress. Dropping it removes what was written.
pub(crate) enum Incoming {
    /// A local file.
    File(TemporaryFile),
    /// An object that is being stored.
    Object(Box<ObjectWriter>),
}

impl Write for Incoming {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::File(file) => file.file().write(bytes),
            Self::Object(object) => object.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The bytes of a NAR's file.
#[derive(Debug)]
pub enum NarBytes {
    /// All of them.
    File(File),
    /// A file that is still being fetched. Its last byte is withheld until all of it is verified.
    Growing(Arc<GrowingFile>),
    /// A presigned URL, which is a secret. It is valid for five minutes.
    Redirect(String),
}

/// Who asks for a NAR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asker {
    /// A client, or this process: another node may have to be asked.
    Client,
    /// Another node, for which this one keeps the NAR.
    Peer,
}

/// Whether clients are redirected to the object store for large NARs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Redirect {
    /// Never.
    #[default]
    Off,
    /// Only for the first request of a NAR that is not in the disk cache. The second request fetches it into the disk cache.
    Auto,
    /// Always.
    On,
}

/// Smaller NARs are never redirected: the second request would cost more than it saves.
pub(crate) const REDIRECT_LEN_MIN: u64 = 8 << 20;

/// How long a client may take to follow a redirect.
pub(crate) const REDIRECT_VALID_FOR: Duration = Duration::from_secs(300);

/// After this time, any server may carry out a change of a narinfo that another one has committed. Requests for such a change are
/// signed for at most half of this time, so none of them takes effect later, even if clocks differ by a minute.
pub(crate) const TAKEOVER: Duration = Duration::from_secs(120);

/// How long a request is valid that removes or replaces an object, from before the index was read.
pub(crate) const VALID_FOR: Duration = Duration::from_secs(TAKEOVER.as_secs() / 2);

/// The files of one cache.
pub(crate) trait CacheStorage: Send + Sync {
    /// Where it is, for messages.
    fn place(&self) -> &Path;

    /// Opens a file and returns its length; `None` if there is none, or its name leads elsewhere.
    fn open(&self, name: &str) -> io::Result<Option<(File, u64)>>;
    /// The length of a file; `None` if there is none.
    fn len(&self, name: &str) -> io::Result<Option<u64>>;
    /// Gives a received file its name, replacing any file that has it.
    fn write(&self, name: &str, file: TemporaryFile) -> io::Result<()>;
    /// Removes a file if it exists.
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Lists files.
    fn list(&self, below: Below<'_>) -> io::Result<Vec<StoredFile>>;

    /// Whether the file of a NAR exists with its recorded length. A bucket trusts the index here.
    fn has_nar(&self, name: &str, file_size: u64) -> io::Result<bool>;
    /// Like [`has_nar`](Self::has_nar), but a bucket is asked.
    fn check_nar(&self, name: &str, nar: &NarRecord) -> io::Result<bool>;
    /// Opens the file of a NAR; `None` if it does not exist as recorded.
    fn nar(&self, name: &str, nar: &NarRecord, asker: Asker) -> io::Result<Option<NarBytes>>;
    /// The address to redirect a client to, if it is to be redirected.
    fn redirect_url(&self, name: &str, nar: &NarRecord, redirect: Redirect) -> Option<String>;
    /// Like [`nar`](Self::nar) for a client, but waits for the complete file.
    fn open_nar(&self, name: &str, nar: &NarRecord) -> io::Result<Option<File>>;
    /// Reads a file from the storage itself, bypassing the disk cache; `None` if there is none.
    fn read(&self, name: &str) -> io::Result<Option<Box<dyn Read>>>;
    /// Where the bytes of an upload go that is to be stored under this name below `nar/`.
    fn receive(&self, name: &str, len_max: u64) -> io::Result<Incoming>;
    /// Where the listing of an upload goes, if listings are stored.
    fn listing(&self) -> io::Result<Option<TemporaryFile>>;
    /// Stores a verified NAR under this name. The index does not know it yet.
    fn store(&self, received: Incoming, name: &str, nar: &NarRecord, listing: Option<TemporaryFile>) -> io::Result<()>;
    /// As [`store`](Self::store), for several NARs that are in memory. Only in a bucket.
    fn store_all(&self, _nars: &[(&str, &NarRecord, &[u8])]) -> Result<(), Rejection> {
        Err(Rejection::of_file("store", "NARs", &io::ErrorKind::Unsupported.into()))
    }
    /// Visits the files below `nar/` one by one, in the order of their names if it is a bucket.
    fn each_nar(&self, visit: &mut dyn FnMut(StoredFile)) -> io::Result<()> {
        self.list(Below::Folder("nar"))?.into_iter().for_each(visit);
        Ok(())
    }
    /// Stores the listing of a NAR. Only in a folder.
    fn keep_listing(&self, _name: &str, _listing: TemporaryFile) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
    /// Removes a name below `nar/`, with its listing, if it exists; in a bucket, not after `until`.
    fn unlink_nar(&self, name: &str, until: Instant) -> io::Result<()>;
    /// Makes all names added below `nar/` durable.
    fn sync_nars(&self) -> io::Result<()>;

    /// Writes a narinfo ahead of its commit.
    fn write_narinfo(&self, text: &[u8]) -> io::Result<WrittenNarinfo>;
    /// Makes a path's narinfo and listing visible in the standard layout. `written` is the narinfo if it was written ahead. In a bucket,
    /// it does not take effect after `until`: then it may be another server's work.
    fn publish(&self, record: &PathRecord, written: Option<WrittenNarinfo>, until: Instant) -> io::Result<()>;
    /// Removes the narinfo and the listing of a path; in a bucket, not after `until`.
    fn withdraw(&self, part: &HashPart, until: Instant) -> io::Result<()>;
}

/// The name of a NAR by its contents, as clients and backups have it.
pub(crate) fn object_name(nar: &NarRecord) -> String {
    NarFileName::new(nar.file_hash, nar.compression).to_string()
}
