//! Building, starting and stopping a server.

mod error;
mod handle;
pub(crate) mod state;

use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

pub use self::error::ServerError;
use self::handle::{Ended, Running};
pub use self::handle::{ServerHandle, StopSignals};
use crate::io::clock::Clock;
use crate::io::driver::Driver;
use crate::io::driver::epoll::EpollDriver;
use crate::io::driver::uring::{self, UringDriver};
use crate::io::listen::{self, Listen, ListenAddress, Listener};
use crate::io::socket::Socket;
use crate::limits::Limits;
use crate::message::handler::{Handler, IntoHandler};
use crate::observe::access_log::{AccessLog, LogQueue};
use crate::peer::{InvalidProxy, Proxies, TrustedProxy};
use crate::run::connection::Connection;
use crate::run::mailbox::{Mailbox, Message};
use crate::run::server::state::ServerState;
use crate::run::shard::Shard;
use crate::run::worker::{Kind, Worker};
use crate::tls::Acceptor;

/// The maximum number of worker threads.
const WORKERS_MAX: usize = 4096;
/// The maximum number of shards.
const SHARDS_MAX: usize = 64;
/// File descriptors reserved for handlers when the connection limit is lowered to fit the limit of open files.
const DESCRIPTORS_RESERVED: u64 = 256;

/// The kernel interface for network I/O.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum DriverChoice {
    /// The best one that works here.
    #[default]
    Auto,
    /// epoll: works everywhere.
    Epoll,
    /// io_uring: Linux 6.1 and later, if it is permitted.
    Uring,
}

impl DriverChoice {
    /// The drivers that work here, without [`Auto`](Self::Auto).
    pub fn working() -> Vec<Self> {
        let uring = uring::probe().is_ok().then_some(Self::Uring);
        [Self::Epoll].into_iter().chain(uring).collect()
    }
}

impl DriverChoice {
    /// Resolves `Auto` by trying what works.
    fn settle(self) -> Result<Self, ServerError> {
        match self {
            Self::Epoll => Ok(Self::Epoll),
            Self::Uring => match uring::probe() {
                Ok(()) => Ok(Self::Uring),
                Err(reason) => Err(ServerError::Driver { driver: "uring", reason }),
            },
            Self::Auto => {
                tracing::info!("driver: epoll (as fast as io_uring here, and works everywhere)");
                Ok(Self::Epoll)
            }
        }
    }
}

impl std::str::FromStr for DriverChoice {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "auto" => Ok(Self::Auto),
            "epoll" => Ok(Self::Epoll),
            "uring" => Ok(Self::Uring),
            _ => Err(format!("unknown driver '{name}': one of auto, epoll, uring")),
        }
    }
}

/// Configures a server; see [`Server::builder`].
pub struct Builder {
    handler: Arc<dyn Handler>,
    listen: Vec<Listen>,
    workers: Option<usize>,
    shards: Option<usize>,
    limits: Limits,
    driver: DriverChoice,
    log: Option<Box<dyn AccessLog>>,
    request_ids_from_proxy: bool,
    acceptor: Option<Acceptor>,
    http2: bool,
    check_paths: Vec<String>,
    proxies: Proxies,
    invalid_proxy: Option<InvalidProxy>,
}

impl Builder {
    /// Adds an address to listen on.
    #[must_use]
    pub fn listen(mut self, listen: Listen) -> Self {
        self.listen.push(listen);
        self
    }

    /// Sets the number of worker threads (default: four per processor, at least 16).
    #[must_use]
    pub fn workers(mut self, workers: usize) -> Self {
        self.workers = Some(workers);
        self
    }

    /// Sets the number of shards, the threads that multiplex connections (default: one per two processors, at most 8).
    #[must_use]
    pub fn shards(mut self, shards: usize) -> Self {
        self.shards = Some(shards);
        self
    }

    /// Sets limits and timeouts.
    #[must_use]
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Chooses the kernel interface.
    #[must_use]
    pub fn driver(mut self, driver: DriverChoice) -> Self {
        self.driver = driver;
        self
    }

    /// Uses the `X-Request-Id` that a client sends as the [id](crate::RequestId) of its request. Only behind a proxy that
    /// sets it: otherwise clients could choose the id of another request.
    #[must_use]
    pub fn trust_request_ids(mut self, trust: bool) -> Self {
        self.request_ids_from_proxy = trust;
        self
    }

    /// Writes an access log.
    #[must_use]
    pub fn access_log(mut self, log: impl AccessLog) -> Self {
        self.log = Some(Box::new(log));
        self
    }

    /// Speaks TLS on all TCP listeners; unix sockets stay plain. Keep a clone of `tls` to
    /// [reload](crate::tls::TlsAcceptor::reload) its certificates.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn tls(mut self, tls: Arc<crate::tls::TlsAcceptor>) -> Self {
        self.acceptor = Some(Acceptor(tls));
        self
    }

    /// Whether HTTP/2 is offered to TLS clients (default: yes). A single TLS configuration can [disable
    /// it](crate::tls::TlsConfig::http1_only).
    #[must_use]
    pub fn http2(mut self, http2: bool) -> Self {
        self.http2 = http2;
        self
    }

    /// Paths of requests that ask how the server is, such as `/health`: the [handler](Handler::handle) runs on a thread that answers no
    /// other requests, so that they are answered while all workers are busy. Request bodies do not change that, unless they are
    /// streamed.
    #[must_use]
    pub fn checks<P: Into<String>>(mut self, paths: impl IntoIterator<Item = P>) -> Self {
        self.check_paths.extend(paths.into_iter().map(Into::into));
        self
    }

    /// Adds proxies that are believed what they say about their clients: addresses, networks such as `10.0.0.0/8`, or `unix` for
    /// all unix sockets. From them, `X-Forwarded-For` or `Forwarded` gives [`Request::client_ip`](crate::Request::client_ip), and
    /// `X-Forwarded-Proto` and `-Host` the [scheme](crate::Request::scheme) and the [host](crate::Request::host). From other peers
    /// these fields are ignored. Name only proxies that set or remove each of them.
    #[must_use]
    pub fn trusted_proxies<P>(mut self, proxies: impl IntoIterator<Item = P>) -> Self
    where
        P: TryInto<TrustedProxy>,
        InvalidProxy: From<P::Error>,
    {
        for proxy in proxies {
            match proxy.try_into() {
                Ok(proxy) => self.proxies.networks.push(proxy),
                Err(error) => self.invalid_proxy = self.invalid_proxy.or(Some(error.into())),
            }
        }
        self
    }

    /// Whether connections of [trusted proxies](Self::trusted_proxies) begin with a header of the PROXY protocol, version 1 or 2,
    /// before TLS (default: no). The address in it becomes the [peer](crate::Request::peer). Other peers connect without one.
    #[must_use]
    pub fn proxy_protocol(mut self, expected: bool) -> Self {
        self.proxies.send_proxy_header = expected;
        self
    }

    /// Opens the sockets. Clients can connect immediately, and are served once the server is started.
    ///
    /// # Errors
    /// Listening on an address failed, no address was given, or a trusted proxy is invalid.
    pub fn build(mut self) -> Result<Server, ServerError> {
        if let Some(error) = self.invalid_proxy {
            return Err(error.into());
        }
        if self.proxies.send_proxy_header && self.proxies.networks.is_empty() {
            return Err(ServerError::NoTrustedProxies);
        }
        let mut listeners = Vec::new();
        for what in &self.listen {
            let opened = listen::open(what, self.limits.backlog)
                .map_err(|error| ServerError::Listen { what: what.clone(), error })?;
            listeners.extend(opened);
        }
        if listeners.is_empty() {
            return Err(ServerError::NothingToListenOn);
        }
        let processors = thread::available_parallelism().map_or(1, usize::from);
        if let Some(files) = rustix::process::getrlimit(rustix::process::Resource::Nofile).current {
            let most = usize::try_from(files.saturating_sub(DESCRIPTORS_RESERVED).max(files / 2)).unwrap_or(usize::MAX);
            self.limits.connections_max = self.limits.connections_max.min(most);
        }
        let (log, log_thread) = match self.log {
            Some(log) => {
                let (queue, thread) = LogQueue::start(log)?;
                (Some(queue), Some(thread))
            }
            None => (None, None),
        };
        Ok(Server {
            workers: self.workers.unwrap_or((4 * processors).max(16)).clamp(1, WORKERS_MAX),
            shards: self.shards.unwrap_or(processors / 2).clamp(1, self.shards.map_or(8, |_| SHARDS_MAX)),
            server: Arc::new(ServerState {
                log,
                request_ids_from_proxy: self.request_ids_from_proxy,
                acceptor: self.acceptor,
                http2: self.http2,
                check_paths: self.check_paths,
                proxies: (!self.proxies.networks.is_empty()).then(|| Arc::new(self.proxies)),
                ..ServerState::new(self.handler, self.limits, Clock::monotonic())
            }),
            listeners,
            driver: self.driver,
            log_thread,
        })
    }
}

/// A server that is ready to start.
pub struct Server {
    server: Arc<ServerState>,
    listeners: Vec<Listener>,
    workers: usize,
    shards: usize,
    driver: DriverChoice,
    log_thread: Option<JoinHandle<()>>,
}

impl Server {
    /// A server that answers with `handler`.
    ///
    /// ```no_run
    /// use narval_http::{Listen, Request, Response, Server, StatusCode};
    ///
    /// let hello = |request: Request| Response::text(StatusCode::OK, format!("{} it is\n", request.path()));
    /// let server = Server::builder(hello).listen(Listen::Tcp("127.0.0.1:8080".parse().unwrap())).build().unwrap();
    /// server.run().unwrap();
    /// ```
    pub fn builder<Form>(handler: impl IntoHandler<Form>) -> Builder {
        Builder {
            handler: Arc::new(handler.into_handler(Arc::new(()))),
            listen: Vec::new(),
            workers: None,
            shards: None,
            limits: Limits::default(),
            driver: DriverChoice::default(),
            log: None,
            request_ids_from_proxy: false,
            acceptor: None,
            http2: true,
            check_paths: Vec::new(),
            proxies: Proxies::default(),
            invalid_proxy: None,
        }
    }

    /// The addresses it listens on.
    pub fn addresses(&self) -> Vec<ListenAddress> {
        self.listeners.iter().map(|listener| listener.address.clone()).collect()
    }

    /// Serves until a SIGTERM, SIGINT or SIGQUIT, then lets running requests finish (30 s at most).
    ///
    /// # Errors
    /// The server cannot be started, or one of its threads ended.
    pub fn run(self) -> Result<(), ServerError> {
        let signals = StopSignals::catch()?;
        let handle = self.spawn()?;
        handle.stop_on(signals, Duration::from_secs(30))?;
        handle.wait()
    }

    /// Starts the server's threads. It answers before this returns: signals that must not be missed are caught before,
    /// see [`StopSignals`].
    ///
    /// # Errors
    /// Threads or event queues cannot be created.
    pub fn spawn(self) -> Result<ServerHandle, ServerError> {
        let addresses = self.addresses();
        let paths = self.listeners.iter().filter_map(|listener| listener.owned_path.clone()).collect();
        let mut sockets: Vec<Arc<Socket>> =
            self.listeners.into_iter().map(|listener| Arc::new(listener.socket)).collect();
        let mailboxes = (0..self.shards).map(|_| Mailbox::new()).collect::<io::Result<Vec<_>>>()?;
        let ended = Arc::new(Ended::new(self.shards));
        // One worker is enough for the first answers.
        Worker::start(&self.server, Kind::Jobs, 0)?;
        self.server.streams.first_thread();
        Worker::start(&self.server, Kind::Streams, 0)?;
        if self.server.acceptor.is_some() {
            let processors = thread::available_parallelism().map_or(1, usize::from);
            (0..processors).try_for_each(|at| Worker::start(&self.server, Kind::Handshakes, at))?;
        }
        let driver = self.driver.settle()?;
        for (at, mailbox) in mailboxes.iter().enumerate() {
            let parts = ShardParts {
                server: self.server.clone(),
                mailbox: mailbox.clone(),
                mailboxes: mailboxes.clone(),
                listeners: std::mem::take(&mut sockets),
            };
            match driver {
                DriverChoice::Uring => start_shard(at, parts, ended.clone(), UringDriver::new)?,
                DriverChoice::Auto | DriverChoice::Epoll => start_shard(at, parts, ended.clone(), EpollDriver::new)?,
            }
        }
        // The others start while the shards serve already.
        let checks = if self.server.check_paths.is_empty() { 0 } else { 1 };
        let others = (0..checks)
            .try_for_each(|at| Worker::start(&self.server, Kind::Checks, at))
            .and_then(|()| (1..self.workers).try_for_each(|at| Worker::start(&self.server, Kind::Jobs, at)));
        others.inspect_err(|_| mailboxes.iter().for_each(|mailbox| mailbox.post(Message::Stop)))?;
        Ok(ServerHandle {
            inner: Arc::new(Running { server: self.server, mailboxes, ended, addresses, workers: self.workers, paths }),
            log_thread: self.log_thread,
        })
    }
}

struct ShardParts {
    server: Arc<ServerState>,
    mailbox: Arc<Mailbox>,
    mailboxes: Vec<Arc<Mailbox>>,
    listeners: Vec<Arc<Socket>>,
}

/// Starts a shard's thread, and returns once its driver exists. The driver is created on that thread, which it is bound
/// to.
fn start_shard<D: Driver<Connection>>(
    at: usize,
    parts: ShardParts,
    ended: Arc<Ended>,
    driver: impl FnOnce(Arc<Mailbox>) -> io::Result<D> + Send + 'static,
) -> io::Result<()> {
    let (started, starts) = std::sync::mpsc::sync_channel(1);
    let mailboxes = parts.mailboxes.clone();
    thread::Builder::new().name(format!("shard-{at}")).spawn(move || {
        let made = driver(parts.mailbox.clone()).and_then(|driver| {
            let mut shard = Shard::new(parts.server, driver, parts.mailbox, parts.mailboxes);
            shard.listen(parts.listeners)?;
            Ok(shard)
        });
        let (result, shard) = match made {
            Ok(shard) => (Ok(()), Some(shard)),
            Err(error) => (Err(error), None),
        };
        // The receiver waits for this message.
        drop(started.send(result));
        let failure = shard.and_then(|shard| shard.run().err());
        if let Some(error) = &failure {
            tracing::error!(%error, "a shard ended: the server stops");
            // Its connections are no longer served, and new ones would still be assigned to it.
            mailboxes.iter().for_each(|mailbox| mailbox.post(Message::Stop));
        }
        ended.one(failure.map(|error| error.to_string()));
    })?;
    starts.recv().unwrap_or_else(|_| Err(io::Error::other("the shard's thread ended at once")))
}
