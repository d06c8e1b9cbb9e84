//! The socket on which a running garbage collection is told of new temporary roots, `gc-socket/socket`.
//!
//! As in Nix's `LocalStore::collectGarbage` (`libstore/gc.cc`): a process that cannot get `gc.lock` sends the path as a
//! line, and waits for a byte. It is sent once the path is spared, or deleted. Nix 2.8 does not wait at all if the
//! socket's file does not exist, so there is one before `gc.lock` is taken: one that nobody listens on, which makes
//! every version of Nix try again. As the collector of a Nix that holds the lock may be listening, it is only replaced
//! under the lock. It is left behind, as Nix leaves its own.

use std::collections::HashSet;
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

use narval_nix::{HashPart, StorePath};
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fs::{AtFlags, FileType, Mode};
use rustix::io::Errno;

use crate::config::StoreConfig;
use crate::local::error::LocalStoreError;
use crate::local::schema::make;

/// The directory of the socket, and its name there.
const DIRECTORY: &str = "gc-socket";
const SOCKET: &str = "socket";

/// The name of the socket before it listens. Only the holder of `gc.lock` uses it.
const NEW_SOCKET: &str = "socket.new";

/// The mode of the socket: everybody who may use the store may protect paths, as with Nix.
const SOCKET_MODE: u32 = 0o666;

/// Processes that are served at once; others wait until one of them has ended.
const CLIENTS_MAX: usize = 512;

/// The maximum length of a line: a store directory and a base name.
const LINE_LEN_MAX: usize = 4096 + 256;

/// The maximum number of roots that are accepted during a collection; then clients are disconnected, and wait for its
/// end.
const ROOTS_MAX: usize = 1 << 20;

/// The maximum length of a path that a socket can have directly (`sun_path`).
const SOCKET_PATH_MAX: usize = 107;

/// The socket's location for `bind` and `connect`: a long one is reached through the handle of its directory, which must
/// stay open meanwhile.
fn reachable(directory: &File, path: &Path) -> PathBuf {
    if path.as_os_str().as_bytes().len() <= SOCKET_PATH_MAX {
        return path.to_owned();
    }
    let name = path.file_name().unwrap_or_default();
    Path::new("/proc/self/fd").join(directory.as_raw_fd().to_string()).join(name)
}

/// Connects to the running collection of the store with this state directory.
pub(in crate::local) fn connect(state_dir: &Path) -> std::io::Result<UnixStream> {
    let directory = state_dir.join(DIRECTORY);
    UnixStream::connect(reachable(&File::open(&directory)?, &directory.join(SOCKET)))
}

/// Makes sure that the socket's file exists. To be called before `gc.lock` is taken.
pub(in crate::local) fn prepare(config: &StoreConfig) -> Result<(), LocalStoreError> {
    let path = config.state_dir.join(DIRECTORY);
    make(&path)?;
    let fail = |error: std::io::Error| LocalStoreError::io("create a socket in", &path, error);
    let directory = File::open(&path).map_err(fail)?;
    let mode = Mode::from_raw_mode(SOCKET_MODE);
    match rustix::fs::mknodat(&directory, SOCKET, FileType::Socket, mode, 0) {
        Err(Errno::EXIST) => Ok(()),
        // The process's umask applies to a new file. Another collector may have replaced it: also with this mode.
        made => made
            .and_then(|()| rustix::fs::chmodat(&directory, SOCKET, mode, AtFlags::empty()))
            .map_err(|error| fail(error.into())),
    }
}

/// Receives temporary roots until it is dropped.
#[derive(Debug)]
pub(in crate::local) struct RootServer {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    received: Mutex<Received>,
    /// Wakes the thread up.
    wake: OwnedFd,
}

#[derive(Debug, Default)]
struct Received {
    roots: HashSet<HashPart>,
    /// The hash part of the path that is being deleted.
    pending: Option<HashPart>,
    is_over: bool,
}

/// A path that is being deleted: whoever sends it as a root waits until this is dropped.
#[derive(Debug)]
pub(in crate::local) struct Deleting<'a>(&'a Shared);

impl RootServer {
    /// Starts to listen. The caller holds `gc.lock`.
    pub(in crate::local) fn start(config: &StoreConfig) -> Result<Self, LocalStoreError> {
        let path = config.state_dir.join(DIRECTORY);
        let start = || {
            let listener = listen(&path)?;
            let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
            let shared = Arc::new(Shared { received: Mutex::default(), wake });
            let of_thread = Arc::clone(&shared);
            let thread = std::thread::Builder::new().name("gc roots".to_owned());
            let thread = Some(thread.spawn(move || serve(&listener, &of_thread))?);
            Ok(Self { shared, thread })
        };
        start().map_err(|error: std::io::Error| LocalStoreError::io("listen in", &path, error))
    }

    /// Begins the deletion of paths with this hash part; `None` if a process needs one of them.
    pub(in crate::local) fn delete(&self, hash_part: HashPart) -> Option<Deleting<'_>> {
        let mut received = self.shared.received.lock();
        if received.roots.contains(&hash_part) {
            return None;
        }
        received.pending = Some(hash_part);
        Some(Deleting(&self.shared))
    }
}

impl Drop for RootServer {
    fn drop(&mut self) {
        self.shared.received.lock().is_over = true;
        self.shared.wake_up();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::debug!("the thread of the collection's socket panicked");
        }
    }
}

impl Drop for Deleting<'_> {
    fn drop(&mut self) {
        self.0.received.lock().pending = None;
        self.0.wake_up();
    }
}

impl Shared {
    fn wake_up(&self) {
        // It can only fail if it is already to be woken up 2^64 times.
        rustix::io::write(&self.wake, &1_u64.to_ne_bytes()).ok();
    }
}

/// Puts a socket that listens in the place of the one that is there, which is never missing meanwhile.
fn listen(path: &Path) -> std::io::Result<UnixListener> {
    let directory = File::open(path)?;
    match rustix::fs::unlinkat(&directory, NEW_SOCKET, AtFlags::empty()) {
        Err(error) if error != Errno::NOENT => return Err(error.into()),
        _ => {}
    }
    let listener = UnixListener::bind(reachable(&directory, &path.join(NEW_SOCKET)))?;
    listener.set_nonblocking(true)?;
    rustix::fs::chmodat(&directory, NEW_SOCKET, Mode::from_raw_mode(SOCKET_MODE), AtFlags::empty())?;
    rustix::fs::renameat(&directory, NEW_SOCKET, &directory, SOCKET)?;
    Ok(listener)
}

/// A process that sends roots.
struct Client {
    stream: UnixStream,
    /// What was received and not answered.
    received: Vec<u8>,
    /// The root whose deletion it waits for.
    waits_for: Option<HashPart>,
}

fn serve(listener: &UnixListener, shared: &Shared) {
    let mut clients: Vec<Client> = Vec::new();
    loop {
        let mut fds = vec![PollFd::new(&shared.wake, PollFlags::IN)];
        let of_listener = if clients.len() < CLIENTS_MAX { PollFlags::IN } else { PollFlags::empty() };
        fds.push(PollFd::from_borrowed_fd(listener.as_fd(), of_listener));
        fds.extend(clients.iter().map(|client| {
            let events = if client.waits_for.is_some() { PollFlags::empty() } else { PollFlags::IN };
            PollFd::from_borrowed_fd(client.stream.as_fd(), events)
        }));
        match poll(&mut fds, None) {
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            Err(error) => {
                tracing::warn!("temporary roots are not received any more: {error}");
                return;
            }
        }
        let ready: Vec<PollFlags> = fds.iter().map(PollFd::revents).collect();
        drop(fds);
        let is_ready = |at: usize| ready.get(at).is_some_and(|events| !events.is_empty());
        if is_ready(0) {
            // Nothing to read only means that it was read before.
            rustix::io::read(&shared.wake, &mut [0; 8]).ok();
        }
        if shared.received.lock().is_over {
            return;
        }
        let mut at = 1;
        clients.retain_mut(|client| {
            at += 1;
            // A client that waits only has events if it is gone.
            match (client.waits_for.is_some(), is_ready(at)) {
                (true, true) => false,
                (false, false) => true,
                (true, false) => client.answer(shared).is_ok(),
                (false, true) => client.receive().and_then(|()| client.answer(shared)).is_ok(),
            }
        });
        while is_ready(1)
            && clients.len() < CLIENTS_MAX
            && let Ok((stream, _)) = listener.accept()
        {
            if stream.set_nonblocking(true).is_ok() {
                clients.push(Client { stream, received: Vec::new(), waits_for: None });
            }
        }
    }
}

impl Client {
    fn receive(&mut self) -> std::io::Result<()> {
        let mut buffer = [0; LINE_LEN_MAX];
        match self.stream.read(&mut buffer) {
            Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
            Ok(read) => {
                self.received.extend_from_slice(buffer.get(..read).unwrap_or_default());
                Ok(())
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Accepts every root that was received, and answers unless it is being deleted.
    fn answer(&mut self, shared: &Shared) -> std::io::Result<()> {
        loop {
            let hash_part = match self.waits_for.take() {
                Some(hash_part) => Some(hash_part),
                None => match self.next_root()? {
                    Some(root) => root,
                    None => return Ok(()),
                },
            };
            if let Some(hash_part) = hash_part {
                let mut received = shared.received.lock();
                if received.roots.len() >= ROOTS_MAX {
                    return Err(ErrorKind::QuotaExceeded.into());
                }
                received.roots.insert(hash_part);
                if received.pending == Some(hash_part) {
                    self.waits_for = Some(hash_part);
                    return Ok(());
                }
            }
            self.stream.write_all(b"1")?;
        }
    }

    /// Takes the next complete line. What is not a store path is answered and ignored, as by Nix.
    #[allow(clippy::option_option, reason = "no line, and a line without a root")]
    fn next_root(&mut self) -> std::io::Result<Option<Option<HashPart>>> {
        let Some(end) = self.received.iter().position(|byte| *byte == b'\n') else {
            let is_line = self.received.len() < LINE_LEN_MAX;
            return if is_line { Ok(None) } else { Err(ErrorKind::InvalidData.into()) };
        };
        let line: Vec<u8> = self.received.drain(..=end).collect();
        let name = line.strip_suffix(b"\n").unwrap_or(&line).rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        Ok(Some(StorePath::parse_bytes(name).ok().map(|path| path.hash_part())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const PATH: &str = "/nix/store/00bgd045z0d4icpbc2yyz4gx48ak44la-hello-1.0";

    fn hash_part() -> HashPart {
        HashPart::parse(b"00bgd045z0d4icpbc2yyz4gx48ak44la").unwrap()
    }

    fn ask(stream: &mut UnixStream, line: &str) -> std::io::Result<u8> {
        stream.write_all(line.as_bytes())?;
        let mut answer = [0];
        stream.read_exact(&mut answer).map(|()| answer[0])
    }

    /// A path that was sent is not deleted; one that is being deleted is answered afterwards. The socket's path may be
    /// longer than `sun_path`.
    #[test]
    fn roots_are_received_while_paths_are_deleted() {
        let dir = tempfile::tempdir().unwrap();
        for root in [dir.path().to_owned(), dir.path().join("x".repeat(200))] {
            let config = StoreConfig::for_root(&root).unwrap();
            make(&config.state_dir).unwrap();
            prepare(&config).unwrap();
            // Nobody listens: every version of Nix tries again then.
            assert_eq!(connect(&config.state_dir).unwrap_err().kind(), ErrorKind::ConnectionRefused);
            let server = RootServer::start(&config).unwrap();
            prepare(&config).unwrap();
            let mut client = connect(&config.state_dir).unwrap();
            assert_eq!(ask(&mut client, "garbage\n").unwrap(), b'1');
            let deleting = server.delete(hash_part()).unwrap();
            client.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
            assert!(ask(&mut client, &format!("{PATH}\n")).is_err(), "it is being deleted");
            // Others are served meanwhile, and a line may arrive in pieces.
            let mut other = connect(&config.state_dir).unwrap();
            other.write_all(b"/nix/store/10bgd045z0d4icpbc2yyz4gx48ak44la-").unwrap();
            assert_eq!(ask(&mut other, "other\n").unwrap(), b'1');
            drop(deleting);
            client.set_read_timeout(None).unwrap();
            let mut answer = [0];
            client.read_exact(&mut answer).unwrap();
            assert!(server.delete(hash_part()).is_none(), "it is a root now");
            // An endless line ends the connection, not the server.
            other.write_all(&vec![b'x'; 2 * LINE_LEN_MAX]).ok();
            assert!(ask(&mut other, "x").is_err());
            drop(server);
            assert!(ask(&mut client, &format!("{PATH}\n")).is_err());
            assert_eq!(connect(&config.state_dir).unwrap_err().kind(), ErrorKind::ConnectionRefused);
        }
    }
}
