//! `nix-serve`: the drop-in for nix-serve and nix-serve-ng.

pub mod options;

use std::io::Write;
use std::os::unix::fs::chown;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use narval_http::tls::{self, TlsAcceptor, TlsConfig};
use narval_http::{Limits, Server};
use narval_serve::{Config, Dialect, Service};
use nix::unistd::{Gid, Group, Uid, User, daemon, initgroups, setgid, setuid};

use crate::args::secret_key::read_secret_key;
use crate::config::{BoxedLog, open_access_log};
use crate::server;
use crate::ui::failure::Failure;
use crate::ui::log;
use options::{Command, Options, TlsFiles};

/// Runs `nix-serve` with the arguments and the environment of this process.
pub fn main() -> ExitCode {
    let args = std::env::args_os().skip(1);
    let result = match options::parse(args, &|name| std::env::var_os(name)) {
        Ok(Command::Help) => print(HELP),
        Ok(Command::Version) => print(concat!("nix-serve (narval ", env!("CARGO_PKG_VERSION"), ")\n")),
        Ok(Command::Serve(options)) => serve(&options),
        Err(error) => Err(Failure::usage(error)),
    };
    log::finish();
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report("nix-serve"),
    }
}

const HELP: &str = "\
nix-serve: serve this machine's Nix store as a binary cache

Usage: nix-serve [OPTIONS]

  -l, --listen WHERE        HOST:PORT, :PORT, [IPV6]:PORT or the path of a unix socket; may be
                            given several times (default: port 5000 on all addresses)
      --host H --port N     the same in two parts; H may be *, !4 (IPv4 only), !6
  -S, --socket PATH         a unix socket
      --store URI           the store (default: $NIX_REMOTE, or this machine's)
      --ssl-cert FILE --ssl-key FILE
                            speak HTTPS on all TCP ports (PEM); SIGHUP reads them again
      --no-http2            do not offer HTTP/2 to HTTPS clients
      --trusted-proxy ADDR  believe this proxy (address, network, unix) who its clients are;
                            may be given several times
      --proxy-protocol      trusted proxies speak the PROXY protocol
      --priority N          rank among caches, lower is asked first (default: 30)
      --access-log FILE     log each request to a file, in Apache's combined form
      --log-format FORM     log to standard output: quiet, default, real-ip, verbose
      --error-log FILE      errors and notes, instead of standard error
      --user U --group G    become these after the sockets are open
      --pid FILE, -D        write the process id; go to the background
      --keepalive-timeout S, --read-timeout S, --timeout S, --disable-keepalive
      --path /PREFIX        serve everything below this path
      --version, --help

Environment: NIX_SECRET_KEY_FILE (file of the key to sign with), NIX_REMOTE, NIX_STORE_DIR,
NIX_STATE_DIR, NIX_LOG_DIR.

All other options of nix-serve (starman, plackup) and nix-serve-ng are accepted; those that mean
nothing here are named in the log. The same store with richer answers: 'narval serve'.

Example:
  NIX_SECRET_KEY_FILE=cache.sec nix-serve --listen 0.0.0.0:5000
";

fn print(text: &str) -> Result<(), Failure> {
    std::io::stdout()
        .lock()
        .write_all(text.as_bytes())
        .map_err(|error| Failure::runtime(format!("cannot write: {error}")))
}

fn serve(options: &Options) -> Result<(), Failure> {
    let sign_keys = match &options.secret_key_file {
        Some(path) => vec![read_secret_key(path)?],
        None => Vec::new(),
    };
    let store = server::open_store(options.store.as_deref())?;
    let access_log = access_log(options)?;
    let config = Config {
        priority: options.priority,
        sign_keys,
        prefix: options.prefix.clone(),
        ..Config::new(Dialect::NixServe)
    };
    server::raise_descriptors();
    let service = Service::new(config, store).map_err(Failure::runtime)?;
    let limits = server::within_descriptors(limits(options), service.kept_files_max());
    let mut builder = Server::builder(service).limits(limits).http2(!options.no_http2);
    builder = builder.trusted_proxies(options.trusted_proxies.iter().copied()).proxy_protocol(options.proxy_protocol);
    for listen in server::listen_or_default(&options.listen)? {
        builder = builder.listen(listen);
    }
    // Loaded before privileges are dropped: the key is often readable only by root.
    let tls = options.tls.as_ref().map(tls_acceptor).transpose()?;
    if let Some(tls) = &tls {
        builder = builder.tls(tls.clone());
    }
    let identity = Identity::find(options)?;
    // Threads do not survive the fork, so it must come before the first of them.
    if options.daemonize {
        daemon(true, options.error_log.is_none())
            .map_err(|error| Failure::runtime(format!("option --daemonize: cannot run in the background: {error}")))?;
    }
    log::start(options.error_log.as_deref())?;
    for note in &options.notes {
        tracing::warn!("{note}");
    }
    if let Some(log) = access_log {
        builder = builder.access_log(log);
    }
    let server = builder.build().map_err(Failure::usage)?;
    if let Some(path) = &options.pid_file {
        std::fs::write(path, format!("{}\n", std::process::id()))
            .map_err(|error| Failure::usage(format!("option --pid: cannot write '{}': {error}", path.display())))?;
    }
    identity.become_it(options.error_log.as_deref())?;
    server::run(server, tls)
}

fn tls_acceptor(files: &TlsFiles) -> Result<Arc<TlsAcceptor>, Failure> {
    let identity = tls::Identity { cert: files.cert.clone(), key: files.key.clone(), ocsp: None };
    let config = TlsConfig { identities: vec![identity], ..TlsConfig::default() };
    TlsAcceptor::new(config).map(Arc::new).map_err(|error| Failure::usage(format!("option --ssl-cert: {error}")))
}

fn limits(options: &Options) -> Limits {
    let mut limits = Limits { backlog: options.backlog, ..Limits::default() };
    if let Some(keep_alive) = options.keep_alive {
        limits.keep_alive_timeout = keep_alive;
    }
    if let Some(read_timeout) = options.read_timeout {
        limits.head_timeout = read_timeout.max(SHORTEST_TIMEOUT);
    }
    if let Some(timeout) = options.timeout {
        limits.write_stall_timeout = timeout.max(SHORTEST_TIMEOUT);
    }
    limits
}

/// A timeout of zero would reject everybody.
const SHORTEST_TIMEOUT: Duration = Duration::from_millis(100);

fn access_log(options: &Options) -> Result<Option<BoxedLog>, Failure> {
    let file = options.access_log.file.as_deref().unwrap_or(Path::new("-"));
    options.access_log.format.map(|format| open_access_log(format, file)).transpose()
}

/// The user and group to switch to once the sockets are open.
struct Identity {
    user: Option<User>,
    group: Option<Gid>,
}

impl Identity {
    /// Finds the user and group by name or number.
    fn find(options: &Options) -> Result<Self, Failure> {
        let no_such = |option: &str, name: &str| Failure::usage(format!("option {option}: there is no '{name}'"));
        let user = match &options.user {
            None => None,
            Some(name) => {
                let found = match name.parse() {
                    Ok(number) => User::from_uid(Uid::from_raw(number)),
                    Err(_) => User::from_name(name),
                };
                Some(found.ok().flatten().ok_or_else(|| no_such("--user", name))?)
            }
        };
        let group = match &options.group {
            None => user.as_ref().map(|user| user.gid),
            Some(name) => {
                let found = match name.parse() {
                    Ok(number) => Group::from_gid(Gid::from_raw(number)),
                    Err(_) => Group::from_name(name),
                };
                Some(found.ok().flatten().ok_or_else(|| no_such("--group", name))?.gid)
            }
        };
        Ok(Self { user, group })
    }

    /// Drops all other privileges.
    fn become_it(&self, error_log: Option<&Path>) -> Result<(), Failure> {
        let failed = |what: &str, error: nix::errno::Errno| Failure::usage(format!("option {what}: {error}"));
        if let (Some(user), Some(path)) = (&self.user, error_log) {
            // The file is open; ownership only helps log rotation.
            let _ = chown(path, Some(user.uid.as_raw()), None);
        }
        if let (Some(user), Some(group)) = (&self.user, self.group) {
            let name = std::ffi::CString::new(user.name.as_str()).map_err(|error| Failure::usage(error.to_string()))?;
            initgroups(&name, group).map_err(|error| failed("--user", error))?;
        }
        if let Some(group) = self.group {
            setgid(group).map_err(|error| failed("--group", error))?;
        }
        if let Some(user) = &self.user {
            setuid(user.uid).map_err(|error| failed("--user", error))?;
        }
        Ok(())
    }
}
