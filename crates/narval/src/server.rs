//! From a service and options to a running server: shared by `nix-serve`, `narval serve` and `narval demo`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::Duration;

use narval_http::tls::TlsAcceptor;
use narval_http::{Limits, ListenAddress, Server, ServerHandle, StopSignals};
use narval_store::{Access, Environment, Store, StoreConfig};
use rustix::net::{AddressFamily, SocketType};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use sd_notify::NotifyState;
use signal_hook::consts::{SIGHUP, SIGTTIN, SIGTTOU};
use signal_hook::iterator::Signals;

use crate::ui::failure::Failure;
use crate::values::listen::{Host, Listen};

/// How long running requests may take after a SIGTERM.
pub const GRACE: Duration = Duration::from_secs(30);
/// The answer to a SIGHUP of a server without certificates or a configuration file.
pub const NOTHING_TO_RELOAD: &str = "there is nothing to reload";
/// The port of nix-serve.
pub const PORT_DEFAULT: u16 = 5000;
/// How often certificate and key files are checked.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// The sockets for a place to listen on.
///
/// # Errors
/// A name that cannot be resolved.
pub fn sockets(listen: &Listen) -> Result<Vec<narval_http::Listen>, Failure> {
    let (host, port) = match listen {
        Listen::Unix(path) => return Ok(vec![narval_http::Listen::Unix(path.clone())]),
        Listen::Tcp { host, port } => (host, *port),
    };
    let v4 = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
    let v6 = IpAddr::V6(Ipv6Addr::UNSPECIFIED);
    let addresses = match host {
        // Two sockets cannot choose the same free port.
        Host::Any if port == 0 || !has_ipv6() => vec![v4],
        Host::Any => vec![v4, v6],
        Host::AnyV4 => vec![v4],
        Host::AnyV6 => vec![v6],
        Host::Named(name) => look_up(name, port)?,
    };
    Ok(addresses.into_iter().map(|address| narval_http::Listen::Tcp(SocketAddr::new(address, port))).collect())
}

fn look_up(name: &str, port: u16) -> Result<Vec<IpAddr>, Failure> {
    if let Ok(address) = name.parse() {
        return Ok(vec![address]);
    }
    let found = (name, port)
        .to_socket_addrs()
        .map_err(|error| Failure::usage(format!("cannot listen on '{name}': no such host ({error})")))?;
    let mut addresses: Vec<_> = found.map(|address| address.ip()).collect();
    addresses.sort();
    addresses.dedup();
    if port == 0 {
        addresses.truncate(1);
    }
    if addresses.is_empty() {
        return Err(Failure::usage(format!("cannot listen on '{name}': it has no address")));
    }
    Ok(addresses)
}

/// Whether there is IPv6, which containers often lack. `/proc/net` cannot tell, because it is missing if `/proc` only
/// shows processes (`ProcSubset=pid`).
fn has_ipv6() -> bool {
    rustix::net::socket(AddressFamily::INET6, SocketType::STREAM, None).is_ok()
}

/// The sockets passed by systemd (or a compatible parent), if any.
fn inherited() -> Option<narval_http::Listen> {
    let pid = std::env::var("LISTEN_PID").ok()?.parse::<u32>().ok()?;
    let ours = pid == std::process::id() && std::env::var_os("LISTEN_FDS").is_some();
    ours.then_some(narval_http::Listen::Inherited)
}

/// The sockets for these places; without any, the inherited ones, else nix-serve's port.
///
/// # Errors
/// A name that cannot be resolved.
pub fn listen_or_default(places: &[Listen]) -> Result<Vec<narval_http::Listen>, Failure> {
    listen_or(places, PORT_DEFAULT)
}

/// The sockets for these places; without any, the inherited ones, else this port.
///
/// # Errors
/// A name that cannot be resolved.
pub fn listen_or(places: &[Listen], port: u16) -> Result<Vec<narval_http::Listen>, Failure> {
    let mut all: Vec<_> = inherited().into_iter().collect();
    for place in places {
        all.extend(sockets(place)?);
    }
    if all.is_empty() {
        all = sockets(&Listen::Tcp { host: Host::Any, port })?;
    }
    Ok(all)
}

/// Opens the store of `--store`, or else of the environment.
///
/// # Errors
/// The URI or variable does not name a readable store.
pub fn open_store(uri: Option<&str>) -> Result<Store, Failure> {
    let environment = Environment::of_process();
    let config = match uri {
        Some(uri) => {
            StoreConfig::parse(uri, &environment).map_err(|error| Failure::usage(format!("option --store: {error}")))?
        }
        None => StoreConfig::from_environment(&environment).map_err(Failure::usage)?,
    };
    for warning in &config.warnings {
        tracing::warn!("store: {warning}");
    }
    // A named store must exist: otherwise a misspelt folder would be served as an empty store.
    if uri.is_some() && config.access == Access::Database && matches!(config.database().try_exists(), Ok(false)) {
        return Err(Failure::usage(format!(
            "option --store: there is no store in '{}' (no {}); 'nix-store --store DIR --init' or 'narval install' creates one",
            config.real_store_dir.display(),
            config.database().display()
        )));
    }
    Ok(Store::new(config))
}

/// Descriptors reserved for the database, listeners and threads; as in the engine.
const DESCRIPTORS_RESERVED: u64 = 256;
/// The part of the file limit that is reserved for files being sent: one in this many connections sends one.
const FILES_SENT: u64 = 8;

/// Raises the limit of open files to the hard limit: the usual 1024 is for programs that use select(2).
pub fn raise_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        // On failure, nothing changes: the limits below follow the actual value.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    }
}

/// Limits the connections to the descriptors that the services themselves leave.
pub fn within_descriptors(mut limits: Limits, kept_files_max: usize) -> Limits {
    if let Some(all) = getrlimit(Resource::Nofile).current {
        let others = (kept_files_max as u64).saturating_add(all / FILES_SENT);
        let reserved = DESCRIPTORS_RESERVED.min(all / 4);
        let most = all.saturating_sub(others).saturating_sub(reserved).max(1);
        limits.connections_max = limits.connections_max.min(usize::try_from(most).unwrap_or(usize::MAX));
    }
    limits
}

/// The signals that a server handles, caught: from before it answers, so that none of them ends it at once.
pub struct CaughtSignals {
    stop: StopSignals,
    hangup: Signals,
}

impl CaughtSignals {
    /// Catches them.
    ///
    /// # Errors
    /// The handlers cannot be installed.
    pub fn catch() -> Result<Self, Failure> {
        let uncaught = |error: std::io::Error| Failure::runtime(format!("cannot catch signals: {error}"));
        // Signals with which starman controls its workers must not end a server that has none (by default they would).
        for signal in [SIGTTIN, SIGTTOU] {
            signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false))).map_err(uncaught)?;
        }
        let hangup = Signals::new([SIGHUP]).map_err(uncaught)?;
        Ok(Self { stop: StopSignals::catch().map_err(uncaught)?, hangup })
    }
}

/// Starts the server and serves until a signal ends it, as [`run_reloading`]. SIGHUP reloads certificates.
///
/// # Errors
/// The server cannot be started, signals cannot be handled, or the server ended by itself.
pub fn run(server: Server, tls: Option<Arc<TlsAcceptor>>) -> Result<(), Failure> {
    let signals = CaughtSignals::catch()?;
    let handle = server.spawn().map_err(Failure::runtime)?;
    let certificates = tls.clone();
    run_reloading(handle, signals, GRACE, tls, move || match &certificates {
        None => Ok(NOTHING_TO_RELOAD.to_owned()),
        Some(tls) => match tls.reload() {
            Ok(()) => Ok("certificates reloaded".to_owned()),
            Err(error) => Err(Failure::runtime(format!("{error}; the old certificates stay in use"))),
        },
    })
}

/// Reports that the server is up, to the log and to systemd; then serves until a signal ends it. `reload` runs at each
/// SIGHUP, and returns a line for the log.
///
/// # Errors
/// Threads cannot be started, or the server ended by itself.
pub fn run_reloading(
    handle: ServerHandle,
    signals: CaughtSignals,
    grace: Duration,
    tls: Option<Arc<TlsAcceptor>>,
    reload: impl FnMut() -> Result<String, Failure> + Send + 'static,
) -> Result<(), Failure> {
    let unstarted = |error: std::io::Error| Failure::runtime(format!("cannot wait for signals: {error}"));
    let scheme = if tls.is_some() { "https" } else { "http" };
    if let Some(tls) = tls {
        keep_fresh(tls)?;
    }
    on_hangup(signals.hangup, reload).map_err(unstarted)?;
    handle.stop_on(signals.stop, grace).map_err(unstarted)?;
    for address in handle.addresses() {
        match address {
            ListenAddress::Tcp(address) => tracing::info!("listening on {scheme}://{address}"),
            ListenAddress::Unix(path) => tracing::info!("listening on unix socket {}", path.display()),
        }
    }
    notify_systemd(&[NotifyState::Ready]);
    handle.wait().map_err(Failure::runtime)
}

/// Reloads certificates and keys when their files change. If that fails, the old ones stay in use.
///
/// # Errors
/// The thread cannot be started.
fn keep_fresh(tls: Arc<TlsAcceptor>) -> Result<(), Failure> {
    let failed = |error: std::io::Error| Failure::runtime(format!("cannot watch the certificates: {error}"));
    thread::Builder::new()
        .name("certificates".into())
        .spawn(move || {
            let mut reported = String::new();
            loop {
                thread::sleep(LOOK_EVERY);
                match tls.reload_if_changed() {
                    Ok(true) => tracing::info!("the certificates have changed and were reloaded"),
                    Ok(false) => {}
                    // The files of a pair are often replaced one by one: an error is reported once.
                    Err(error) if error.to_string() != reported => {
                        reported = error.to_string();
                        tracing::error!("{reported}; the old certificates stay in use");
                    }
                    Err(_) => {}
                }
            }
        })
        .map_err(failed)?;
    Ok(())
}

/// Runs `reload` at each SIGHUP, on its own thread, and notifies systemd (`Type=notify-reload`).
fn on_hangup(
    mut signals: Signals,
    mut reload: impl FnMut() -> Result<String, Failure> + Send + 'static,
) -> std::io::Result<()> {
    thread::Builder::new().name("sighup".into()).spawn(move || {
        for _ in signals.forever() {
            match NotifyState::monotonic_usec_now() {
                Ok(now) => notify_systemd(&[NotifyState::Reloading, now]),
                Err(error) => tracing::warn!("cannot notify systemd: {error}"),
            }
            // `systemctl status` shows it; systemd has no other way to learn that a reload failed.
            let status = match reload() {
                Ok(done) => {
                    tracing::info!("SIGHUP: {done}");
                    done
                }
                Err(failure) => {
                    tracing::error!("SIGHUP: {failure}");
                    format!("last reload failed: {failure}")
                }
            };
            let line = status.lines().next().unwrap_or_default();
            notify_systemd(&[NotifyState::Status(line), NotifyState::Ready]);
        }
    })?;
    Ok(())
}

/// Without systemd, nothing is notified.
pub(crate) fn notify_systemd(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::warn!("cannot notify systemd: {error}");
    }
}
