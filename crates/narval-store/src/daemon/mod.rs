//! A client of the Nix daemon's worker protocol (versions 1.32 to 1.38: Nix 2.4 and newer, Lix).
//!
//! Protocol: Nix `libstore/worker-protocol*.cc`, `daemon.cc`, `remote-store.cc`.

mod connection;
mod error;
mod operation;
mod upload;
mod wire;

use std::collections::BTreeSet;
use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use narval_nix::{HashPart, PathInfo, StoreDir, StorePath};
use parking_lot::Mutex;

use self::connection::Connection;
pub use self::connection::Trust;
#[doc(hidden)]
pub use self::connection::read_anything;
pub use self::error::DaemonError;
use self::operation::Operation;
use self::wire::Request;
pub use self::wire::WireError;

/// The maximum number of idle connections. Each occupies a process of the daemon.
const IDLE_CONNECTIONS_MAX: usize = 8;

/// How long the daemon may be silent before a query fails. Operations that write have no such limit: the daemon may be
/// waiting for another process's lock, or for a disk.
const REPLY_TIMEOUT: Duration = Duration::from_secs(60);

type DaemonConnection = Connection<UnixStream>;

/// A daemon, with a small pool of idle connections. Can be shared between threads.
#[derive(Debug)]
pub struct Daemon {
    socket: PathBuf,
    store_dir: StoreDir,
    idle: Mutex<Vec<DaemonConnection>>,
    reply_timeout: Duration,
}

/// The result of a garbage collection by the daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Collected {
    /// Full paths that were deleted, or would be.
    pub paths: Vec<String>,
    /// The number of bytes freed.
    pub bytes_freed: u64,
}

impl std::fmt::Debug for DaemonConnection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection").field("version", &self.version).field("trust", &self.trust).finish_non_exhaustive()
    }
}

impl Daemon {
    /// The daemon at this socket. The first request opens a connection.
    pub fn new(socket: &Path, store_dir: StoreDir) -> Self {
        Self { socket: socket.to_owned(), store_dir, idle: Mutex::new(Vec::new()), reply_timeout: REPLY_TIMEOUT }
    }

    /// Sets how long to wait for a reply before a request fails (default: 60 s).
    #[must_use]
    pub fn with_reply_timeout(mut self, reply_timeout: Duration) -> Self {
        self.reply_timeout = reply_timeout;
        self
    }

    /// The socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// The daemon's version (empty before Nix 2.9) and whether it trusts us.
    ///
    /// # Errors
    /// [`DaemonError`] if it cannot be reached.
    pub fn hello(&self) -> Result<(String, Trust), DaemonError> {
        self.ask(|connection| Ok((connection.daemon_version.clone(), connection.trust)))
    }

    /// Returns the valid path with this hash part.
    ///
    /// # Errors
    /// [`DaemonError`]. An absent path is not an error.
    pub fn path_from_hash_part(&self, hash_part: &HashPart) -> Result<Option<StorePath>, DaemonError> {
        self.ask(|connection| {
            let arguments = Request::default().string(hash_part.as_bytes());
            connection.call(Operation::QueryPathFromHashPart, arguments)?;
            connection.optional_path()
        })
    }

    /// Returns the metadata of a valid path.
    ///
    /// # Errors
    /// See [`Daemon::path_from_hash_part`].
    pub fn path_info(&self, path: &StorePath) -> Result<Option<PathInfo>, DaemonError> {
        self.ask(|connection| {
            let arguments = Request::default().string(connection.full(path));
            connection.call(Operation::QueryPathInfo, arguments)?;
            if connection.boolean()? { connection.path_info(path.clone()).map(Some) } else { Ok(None) }
        })
    }

    /// Whether a path is valid.
    ///
    /// # Errors
    /// See [`Daemon::path_from_hash_part`].
    pub fn is_valid(&self, path: &StorePath) -> Result<bool, DaemonError> {
        self.ask(|connection| {
            connection.call(Operation::IsValidPath, Request::default().string(connection.full(path)))?;
            connection.boolean()
        })
    }

    /// Returns those of the paths that are valid. Nothing is substituted.
    ///
    /// # Errors
    /// See [`Daemon::path_from_hash_part`].
    pub fn valid_paths(&self, paths: &[StorePath]) -> Result<Vec<StorePath>, DaemonError> {
        self.ask(|connection| {
            let full = paths.iter().map(|path| connection.full(path));
            let arguments = Request::default().list(full).boolean(false);
            connection.call(Operation::QueryValidPaths, arguments)?;
            connection.paths()
        })
    }

    /// Returns all valid paths.
    ///
    /// # Errors
    /// See [`Daemon::path_from_hash_part`].
    pub fn all_valid_paths(&self) -> Result<Vec<StorePath>, DaemonError> {
        self.ask(|connection| {
            connection.call(Operation::QueryAllValidPaths, Request::default())?;
            connection.paths()
        })
    }

    /// Returns the valid paths that refer to a path.
    ///
    /// # Errors
    /// See [`Daemon::path_from_hash_part`].
    pub fn referrers(&self, path: &StorePath) -> Result<Vec<StorePath>, DaemonError> {
        self.ask(|connection| {
            connection.call(Operation::QueryReferrers, Request::default().string(connection.full(path)))?;
            connection.paths()
        })
    }

    /// Protects paths, whether valid or not yet, from garbage collection until the returned value is dropped.
    ///
    /// # Errors
    /// See [`Daemon::path_from_hash_part`].
    pub fn keep(&self, paths: &[StorePath]) -> Result<TemporaryRoots, DaemonError> {
        self.ask_once(|connection| {
            let mut roots = TemporaryRoots { connection, kept: BTreeSet::new() };
            roots.keep(paths)?;
            Ok(roots)
        })
    }

    /// Makes the daemon collect garbage, or return what it would collect.
    ///
    /// # Errors
    /// See [`Daemon::path_from_hash_part`].
    pub fn collect_garbage(&self, dry_run: bool) -> Result<Collected, DaemonError> {
        // `GCOptions::GCAction`: return dead paths, delete dead paths.
        let action = if dry_run { 1 } else { 2 };
        self.ask_once(|mut connection| {
            let arguments = Request::default().number(action).list(std::iter::empty::<&str>()).boolean(false);
            // No limit on the bytes to free, and three obsolete numbers.
            let arguments = [u64::MAX, 0, 0, 0].into_iter().fold(arguments, Request::number);
            connection.call(Operation::CollectGarbage, arguments)?;
            let paths = connection.texts()?;
            let bytes_freed = connection.number()?;
            connection.number()?;
            Ok(Collected { paths, bytes_freed })
        })
    }

    /// Registers a symlink to a store path, anywhere on disk, as a root.
    ///
    /// # Errors
    /// See [`Daemon::path_from_hash_part`].
    pub fn add_indirect_root(&self, link: &Path) -> Result<(), DaemonError> {
        use std::os::unix::ffi::OsStrExt;
        self.ask(|connection| {
            let arguments = Request::default().string(link.as_os_str().as_bytes());
            connection.call(Operation::AddIndirectRoot, arguments)?;
            connection.number().map(drop)
        })
    }

    /// Sends a request on a pooled connection. If a restarted daemon has closed that, the request is retried once on a
    /// new connection.
    fn ask<T>(&self, request: impl Fn(&mut DaemonConnection) -> Result<T, DaemonError>) -> Result<T, DaemonError> {
        let kept = self.idle.lock().pop();
        if let Some(mut connection) = kept {
            match request(&mut connection) {
                Err(DaemonError::Wire(WireError::Io(error))) if is_closed(&error) => {
                    // All pooled connections are from before the restart.
                    self.idle.lock().clear();
                }
                outcome => return self.put_back(connection, outcome),
            }
        }
        let mut connection = self.connect()?;
        let outcome = request(&mut connection);
        self.put_back(connection, outcome)
    }

    /// Sends a request on a new connection that is not reused, and that waits for a busy daemon.
    fn ask_once<T>(&self, request: impl FnOnce(DaemonConnection) -> Result<T, DaemonError>) -> Result<T, DaemonError> {
        let mut connection = self.connect()?;
        let patient = set_timeout(connection.output(), None);
        patient.map_err(|source| DaemonError::Connect { socket: self.socket.clone(), source })?;
        request(connection)
    }

    fn put_back<T>(&self, connection: DaemonConnection, outcome: Result<T, DaemonError>) -> Result<T, DaemonError> {
        // After an error reply the connection is in sync; after any other error it is not.
        if matches!(outcome, Ok(_) | Err(DaemonError::Refused { .. })) {
            let mut idle = self.idle.lock();
            if idle.len() < IDLE_CONNECTIONS_MAX {
                idle.push(connection);
            }
        }
        outcome
    }

    fn connect(&self) -> Result<DaemonConnection, DaemonError> {
        let fail = |source| DaemonError::Connect { socket: self.socket.clone(), source };
        let stream = UnixStream::connect(&self.socket).map_err(fail)?;
        set_timeout(&stream, Some(self.reply_timeout)).map_err(fail)?;
        let input = stream.try_clone().map_err(fail)?;
        let mut connection = Connection::greet(input, stream, self.store_dir.clone())?;
        connection.call(Operation::SetOptions, options())?;
        Ok(connection)
    }
}

/// Applies to both handles of a stream: it is a property of the socket.
fn set_timeout(stream: &UnixStream, timeout: Option<Duration>) -> io::Result<()> {
    stream.set_read_timeout(timeout)?;
    stream.set_write_timeout(timeout)
}

/// Options for a reader: quiet, no building, no substituting. Numbers in the order of `SetOptions`.
fn options() -> Request {
    let (keep_failed, keep_going, try_fallback, verbosity) = (0, 0, 0, 0);
    let (build_jobs, silent_time, build_hook, verbose_build) = (1, 0, 1, 0);
    let (log_type, print_trace, build_cores, substitute, overrides) = (0, 0, 1, 0, 0);
    [
        keep_failed,
        keep_going,
        try_fallback,
        verbosity,
        build_jobs,
        silent_time,
        build_hook,
        verbose_build,
        log_type,
        print_trace,
        build_cores,
        substitute,
        overrides,
    ]
    .into_iter()
    .fold(Request::default(), Request::number)
}

fn is_closed(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, NotConnected, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionAborted | ConnectionReset | NotConnected | UnexpectedEof)
}

/// Paths that the daemon protects from garbage collection while this connection is open.
#[derive(Debug)]
pub struct TemporaryRoots {
    connection: DaemonConnection,
    kept: BTreeSet<StorePath>,
}

impl TemporaryRoots {
    /// Protects further paths.
    ///
    /// # Errors
    /// See [`Daemon::keep`].
    pub fn keep(&mut self, paths: &[StorePath]) -> Result<(), DaemonError> {
        for path in paths {
            if !self.kept.contains(path) {
                let arguments = Request::default().string(self.connection.full(path));
                self.connection.call(Operation::AddTempRoot, arguments)?;
                self.connection.number()?;
                self.kept.insert(path.clone());
            }
        }
        Ok(())
    }
}
