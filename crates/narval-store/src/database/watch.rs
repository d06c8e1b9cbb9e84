//! Detects changes of a Nix database in a tenth of a microsecond, without SQLite.
//!
//! In WAL mode a commit becomes visible when the writer has copied a new header into the first 48 bytes of the `-shm`
//! file (the wal-index header, <https://www.sqlite.org/walformat.html#the_wal_index_header>: change counter, number of
//! frames, checksum of the frames, salts), and `nix-store --add` returns after that. Readers use that same header. So
//! two equal headers mean equal contents, and reading the header through the page cache is as reliable as asking SQLite
//! (`PRAGMA data_version` reads it too, but takes and releases locks around it).
//!
//! A [`Stamp`] must be taken *before* the database is read: cached results of that read are valid as long as the stamp
//! stays the same. A half-written header compares unequal later, which only costs another read.
//!
//! Without a readable header (Nix 2.8 removes the WAL files), the contents are those of `db.sqlite` alone as long as
//! `-wal` is absent or empty. Then its size, inode and times identify the contents, unless they are so recent that a
//! second change could have the same time. In that case, and whenever there is doubt, there is no stamp.
//!
//! Reading the state costs 1.7 µs, an eighth of answering a narinfo. So a state stays valid as long as the kernel
//! reports no [`Events`], provided it was read in this order:
//!
//! 1. all events so far were taken;
//! 2. nobody holds SQLite's writer lock;
//! 3. the stamp is taken, from a header whose two copies are equal (a writer killed between them leaves a header that a
//!    reader repairs, without an event).
//!
//! A commit that is not in the stamp takes the writer lock after step 2, then writes its frames to `-wal`, and only
//! then changes the header: the event of that write comes before the change, and was not taken in step 1. Everything
//! else that could change the contents (recovery when the first process opens the database, a change of the journal
//! mode, another file in its place) starts with an event as well.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use parking_lot::{Mutex, RwLock};
use rustix::fs::{AtFlags, Mode, OFlags, Stat, StatxFlags};
use rustix::io::Errno;

use super::events::{Events, Happened};

/// Size of the wal-index header in bytes. There are two copies at the start of `-shm`, and the first is written last.
const WAL_INDEX_HEADER_LEN: usize = 48;

/// Offset of `isInit` in the wal-index header.
const IS_INIT_AT: usize = 12;

/// Offset of the number of valid frames (`mxFrame`) in the wal-index header.
const MAX_FRAME_AT: usize = 16;

/// A file that changed more recently than this could change again without a change of its time: kernels before 6.13
/// stamp files with the time of the last timer tick, 4 to 10 ms.
const FRESH: Duration = Duration::from_millis(25);

/// Offset of the byte in `-shm` that SQLite locks for the writer (`WAL_WRITE_LOCK` at `UNIX_SHM_BASE`, os_unix.c).
const WRITER_LOCK_AT: libc::off_t = 120;

/// The minimum time between two attempts to start watching, which takes about sixty system calls.
const WATCH_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// The most `-shm` files that one process holds open, see [`hold_open`].
const HELD_FILES_MAX: usize = 4096;

/// Identifies the state of a database at one moment. If two stamps of one store are equal, nothing was committed in
/// between.
///
/// A number: each new state gets the next one, even a state that was seen before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Stamp(u64);

/// Identifies the contents of a database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DatabaseState {
    database: FileState,
    log: FileState,
    header: [u8; WAL_INDEX_HEADER_LEN],
}

/// Identifies a file's contents by its `stat`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct FileState {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
}

impl FileState {
    #[allow(clippy::unnecessary_cast, reason = "the fields' types differ between architectures")]
    fn of_open(stat: &Stat) -> Self {
        let modified = (stat.st_mtime as i64, stat.st_mtime_nsec as i64);
        Self { device: stat.st_dev as u64, inode: stat.st_ino as u64, size: stat.st_size as u64, modified }
    }

    /// The current state of the file at a path. A network file system asks its server (`AT_STATX_FORCE_SYNC`): its
    /// cache may be seconds old, and Nix on another machine may have written meanwhile.
    #[allow(clippy::unnecessary_cast, reason = "the fields' types differ between architectures")]
    fn of(path: &Path) -> Result<Self, Errno> {
        let wanted = StatxFlags::MTIME | StatxFlags::SIZE | StatxFlags::INO;
        match rustix::fs::statx(rustix::fs::CWD, path, AtFlags::STATX_FORCE_SYNC, wanted) {
            Ok(found) => Ok(Self {
                device: rustix::fs::makedev(found.stx_dev_major, found.stx_dev_minor) as u64,
                inode: found.stx_ino,
                size: found.stx_size,
                modified: (found.stx_mtime.tv_sec, i64::from(found.stx_mtime.tv_nsec)),
            }),
            // Older kernels, and containers with seccomp rules older than this call.
            Err(Errno::NOSYS | Errno::PERM) => Ok(Self::of_open(&rustix::fs::stat(path)?)),
            Err(error) => Err(error),
        }
    }

    /// The state, if the next change of the file must give it another one.
    pub(super) fn unless_fresh(self) -> Option<Self> {
        if self.is_fresh() { None } else { Some(self) }
    }

    fn identity(&self) -> Identity {
        Identity(self.device, self.inode)
    }

    fn is_fresh(&self) -> bool {
        let modified = UNIX_EPOCH
            .checked_add(Duration::from_secs(self.modified.0.max(0).unsigned_abs()))
            .and_then(|time| time.checked_add(Duration::from_nanos(self.modified.1.max(0).unsigned_abs())));
        // A time in the future counts as fresh: it says nothing about the order of events.
        modified.and_then(|time| SystemTime::now().duration_since(time).ok()).is_none_or(|age| age < FRESH)
    }
}

/// Identifies a file: the numbers of its device and its inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Identity(u64, u64);

/// The files that a database consists of: changes when one of them is replaced, removed or created. New files cannot
/// have the inode numbers of files that a connection still has open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Files {
    database: Identity,
    log: Option<Identity>,
    shared: Option<Identity>,
}

/// Watches one database. Shared by threads.
#[derive(Debug)]
pub(super) struct Watch {
    database: PathBuf,
    log: PathBuf,
    shared: PathBuf,
    journal: PathBuf,
    /// The `-shm` file in use.
    open: RwLock<Option<(Identity, Arc<File>)>>,
    settled: RwLock<Settled>,
    /// The last state seen, and its number.
    last: Mutex<(Option<DatabaseState>, u64)>,
}

/// The last state, while it is valid.
#[derive(Debug, Default)]
struct Settled {
    stamp: Option<Stamp>,
    events: Option<Events>,
    /// When watching was last started.
    begun: Option<Instant>,
}

/// The two copies of the wal-index header.
type Headers = [[u8; WAL_INDEX_HEADER_LEN]; 2];

impl Watch {
    /// Watches the database at this path, which need not exist yet.
    pub(super) fn new(database: &Path) -> Self {
        let beside = |suffix: &str| {
            let mut name = database.as_os_str().to_owned();
            name.push(suffix);
            PathBuf::from(name)
        };
        Self {
            database: database.to_owned(),
            log: beside("-wal"),
            shared: beside("-shm"),
            journal: beside("-journal"),
            open: RwLock::default(),
            settled: RwLock::default(),
            last: Mutex::default(),
        }
    }

    /// The current state; `None` if it is unknown, in which case cached results must not be used. Takes one system call
    /// while nothing changes, and never waits.
    #[inline(always)]
    pub(super) fn stamp(&self) -> Option<Stamp> {
        if let Some(settled) = self.settled.try_read()
            && let Some(stamp) = settled.stamp
            && settled.events.as_ref().is_some_and(Events::none)
        {
            return Some(stamp);
        }
        self.settle()
    }

    /// Reads the state such that it stays valid until an event; the steps are those of the module's documentation.
    #[cold]
    fn settle(&self) -> Option<Stamp> {
        // Another thread is doing this: its result may be older than this call.
        let Some(mut settled) = self.settled.try_write() else { return Some(self.look()?.0) };
        settled.stamp = None;
        let watching = settled.events.as_ref().is_some_and(|events| match events.take() {
            Happened::Written => true,
            Happened::Files => events.watch_files(),
            Happened::Path => false,
        });
        if !watching {
            settled.events = None;
            if settled.begun.is_none_or(|begun| begun.elapsed() >= WATCH_AGAIN_AFTER) {
                settled.begun = Some(Instant::now());
                settled.events = Events::watch(&self.database, &self.log, &self.shared);
            }
        }
        if settled.events.is_none() {
            return Some(self.look()?.0);
        }
        let nobody_writes = self.shared_file().is_some_and(|file| !has_writer(&file));
        let (stamp, headers) = self.look()?;
        let is_sound = headers.is_some_and(|[first, second]| first == second && first.get(IS_INIT_AT) == Some(&1));
        if nobody_writes && is_sound {
            settled.stamp = Some(stamp);
        }
        Some(stamp)
    }

    /// Reads the current state with three or four system calls.
    fn look(&self) -> Option<(Stamp, Option<Headers>)> {
        let (state, headers) = self.look_at_files()?;
        Some((self.stamp_of(state), headers))
    }

    fn stamp_of(&self, state: DatabaseState) -> Stamp {
        let mut last = self.last.lock();
        if last.0 != Some(state) {
            *last = (Some(state), last.1 + 1);
        }
        Stamp(last.1)
    }

    fn look_at_files(&self) -> Option<(DatabaseState, Option<Headers>)> {
        let database = FileState::of(&self.database).ok()?;
        let Some(headers) = self.shared_file().and_then(|file| read_headers(&file)) else {
            return Some((self.quiet_state(database)?, None));
        };
        let [header, _] = headers;
        // Without frames in the log, the contents are those of the database file alone, and the header may be one that
        // recovery writes each time: then only the file's time identifies them.
        let no_frames = header.get(MAX_FRAME_AT..MAX_FRAME_AT + 4) == Some(&[0; 4]);
        if no_frames && database.is_fresh() {
            return None;
        }
        Some((DatabaseState { database, log: FileState::default(), header }, Some(headers)))
    }

    /// The state of a database whose log and journal are empty, as an `immutable` connection requires.
    pub(super) fn quiet(&self) -> Option<DatabaseState> {
        let state = self.quiet_state(FileState::of(&self.database).ok()?)?;
        // Pages in the journal may be partly overwritten in the database.
        empty_or_absent(&self.journal)?;
        Some(state)
    }

    fn quiet_state(&self, database: FileState) -> Option<DatabaseState> {
        let log = empty_or_absent(&self.log)?;
        if database.is_fresh() { None } else { Some(DatabaseState { database, log, header: [0; _] }) }
    }

    /// The files that the database consists of now, and the state of the first of them.
    pub(super) fn files(&self) -> Result<(Files, FileState), Errno> {
        let beside = |path| match FileState::of(path) {
            Ok(state) => Ok(Some(state.identity())),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error),
        };
        let contents = FileState::of(&self.database)?;
        let files = Files { database: contents.identity(), log: beside(&self.log)?, shared: beside(&self.shared)? };
        Ok((files, contents))
    }

    /// Whether the write-ahead log has contents: somebody is writing, or was killed.
    pub(super) fn has_frames(&self) -> bool {
        FileState::of(&self.log).is_ok_and(|log| log.size > 0)
    }

    /// Whether there is a write-ahead log.
    pub(super) fn has_log(&self) -> bool {
        self.files().is_ok_and(|(files, _)| files.log.is_some())
    }

    /// The current `-shm` file beside the database.
    fn shared_file(&self) -> Option<Arc<File>> {
        let state = FileState::of(&self.shared).ok()?;
        let now = Identity(state.device, state.inode);
        {
            let open = self.open.read();
            // It is held open, so no other file can have its inode number.
            if let Some((identity, file)) = open.as_ref()
                && *identity == now
            {
                return Some(file.clone());
            }
        }
        let (identity, file) = hold_open(&self.shared)?;
        *self.open.write() = Some((identity, file.clone()));
        Some(file)
    }
}

/// The state of an empty or absent file; `None` if it has contents, or if that is unknown.
fn empty_or_absent(path: &Path) -> Option<FileState> {
    match FileState::of(path) {
        Ok(state) if state.size == 0 => Some(state),
        Ok(_) => None,
        Err(Errno::NOENT) => Some(FileState::default()),
        Err(_) => None,
    }
}

fn read_headers(file: &File) -> Option<Headers> {
    let mut bytes = [0; 2 * WAL_INDEX_HEADER_LEN];
    let read = rustix::io::pread(file.as_fd(), &mut bytes[..], 0).ok()?;
    let (first, second) = bytes.split_at(WAL_INDEX_HEADER_LEN);
    (read == bytes.len()).then_some([first.try_into().ok()?, second.try_into().ok()?])
}

/// Whether any process, including this one, has a write transaction open.
fn has_writer(shared: &File) -> bool {
    // Tested as an open file description lock: otherwise a lock of this process would not be reported.
    let mut lock = libc::flock {
        l_type: libc::F_RDLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: WRITER_LOCK_AT,
        l_len: 1,
        l_pid: 0,
    };
    let asked = fcntl(shared, FcntlArg::F_OFD_GETLK(&mut lock));
    asked.is_err() || lock.l_type != libc::F_UNLCK as libc::c_short
}

/// Opens a file and never closes it: POSIX drops all locks that a process has on a file, those of SQLite's connections
/// among them, when it closes *any* descriptor of that file (`fcntl(2)`, "Record locks"). One descriptor per file is
/// kept for the life of the process, for every database that was ever open.
fn hold_open(path: &Path) -> Option<(Identity, Arc<File>)> {
    static HELD: Mutex<Vec<(Identity, Arc<File>)>> = Mutex::new(Vec::new());
    let state = FileState::of(path).ok()?;
    let mut held = HELD.lock();
    if let Some(known) = held.iter().find(|(identity, _)| *identity == Identity(state.device, state.inode)) {
        return Some(known.clone());
    }
    if held.len() >= HELD_FILES_MAX {
        return None;
    }
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = Arc::new(File::from(rustix::fs::open(path, flags, Mode::empty()).ok()?));
    let state = FileState::of_open(&rustix::fs::fstat(&*file).ok()?);
    let identity = Identity(state.device, state.inode);
    held.push((identity, file.clone()));
    Some((identity, file))
}

/// Where the header of a database says whether it has a write-ahead log: 2 for writing and for reading, otherwise 1
/// (<https://www.sqlite.org/fileformat.html#file_format_version_numbers>).
const FORMAT_VERSIONS_AT: u64 = 18;

/// Whether a database has a write-ahead log rather than a rollback journal. `None` if it is empty or does not exist.
pub(crate) fn has_write_ahead_log(database: &Path) -> std::io::Result<Option<bool>> {
    match std::fs::symlink_metadata(database) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        found => {
            if found?.len() == 0 {
                return Ok(None);
            }
        }
    }
    // Not opened by its path: closing it would drop the locks of this process's other connections.
    let (_, file) = hold_open(database).ok_or(std::io::ErrorKind::PermissionDenied)?;
    let mut versions = [0; 2];
    let read = rustix::io::pread(file.as_fd(), &mut versions[..], FORMAT_VERSIONS_AT)?;
    Ok((read == versions.len()).then_some(versions != [1, 1]))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    use rusqlite::Connection;

    use super::*;

    const COMMITS: u64 = 2_000;

    fn database(path: &Path) -> Connection {
        let connection = Connection::open(path).unwrap();
        connection.pragma_update(None, "journal_mode", "wal").unwrap();
        connection.pragma_update(None, "synchronous", "off").unwrap();
        connection.execute_batch("create table if not exists t (n); delete from t; insert into t values (0)").unwrap();
        connection
    }

    fn number(connection: &Connection) -> u64 {
        connection.query_row("select n from t", (), |row| row.get::<_, i64>(0)).unwrap().try_into().unwrap()
    }

    /// Threads that cache results by their stamp never return less than what was committed before they asked.
    #[test]
    fn remembered_answers_are_never_older_than_the_last_commit() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("db.sqlite");
        let writer = database(&path);
        let watch = Watch::new(&path);
        let (committed, done, hits) = (AtomicU64::new(0), AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let reader = Connection::open(&path).unwrap();
                    let mut memo: Option<(Stamp, u64)> = None;
                    while !done.load(Ordering::SeqCst) {
                        let at_least = committed.load(Ordering::SeqCst);
                        let stamp = watch.stamp();
                        let told = match memo {
                            Some((then, number)) if stamp == Some(then) => {
                                hits.fetch_add(1, Ordering::Relaxed);
                                number
                            }
                            _ => {
                                let number = number(&reader);
                                memo = stamp.map(|stamp| (stamp, number));
                                number
                            }
                        };
                        assert!(told >= at_least, "{told} told after {at_least} was committed");
                    }
                });
            }
            let mut spill = writer.prepare("insert into t select randomblob(20000) from t limit 1").unwrap();
            for number in 1..=COMMITS {
                match number % 100 {
                    0 => writer.execute_batch("pragma wal_checkpoint(truncate)").unwrap(),
                    // A transaction that wrote to the log and was rolled back.
                    50 => {
                        writer.execute_batch("begin; pragma cache_size = 2").unwrap();
                        spill.execute(()).unwrap();
                        writer.execute_batch("rollback").unwrap();
                    }
                    _ => {}
                }
                writer.execute("update t set n = ?1", [i64::try_from(number).unwrap()]).unwrap();
                committed.store(number, Ordering::SeqCst);
                // So that readers get to use their cached results now and then.
                if number % 16 == 0 {
                    let before = hits.load(Ordering::Relaxed);
                    let until = Instant::now() + Duration::from_secs(1);
                    while hits.load(Ordering::Relaxed) < before + 10 && Instant::now() < until {
                        std::thread::yield_now();
                    }
                }
            }
            done.store(true, Ordering::SeqCst);
        });
        assert!(hits.into_inner() > COMMITS / 16, "the cached results were never used");
    }

    /// While there is a writer, a state is only valid for that moment.
    #[test]
    fn a_stamp_is_not_final_while_there_is_a_writer() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("db.sqlite");
        let writer = database(&path);
        let watch = Watch::new(&path);
        let is_settled = || {
            watch.stamp().unwrap();
            watch.settled.read().stamp.is_some()
        };
        // The first commit was a moment ago.
        let until = Instant::now() + Duration::from_secs(60);
        while !is_settled() && Instant::now() < until {
            std::thread::yield_now();
        }
        assert!(is_settled());
        writer.execute_batch("begin immediate; update t set n = 1").unwrap();
        assert!(is_settled(), "nothing is written to the log yet");
        writer.execute_batch("pragma cache_size = 1; insert into t select randomblob(100000)").unwrap();
        writer.execute_batch("insert into t select randomblob(100000)").unwrap();
        assert!(!is_settled(), "its pages were written to the log before the commit");
        let before = watch.stamp();
        writer.execute_batch("commit").unwrap();
        assert_ne!(watch.stamp(), before);
        assert!(is_settled());
    }
}
