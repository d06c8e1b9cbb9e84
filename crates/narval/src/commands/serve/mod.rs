//! `narval serve`: serves a Nix store as a binary cache.

mod args;
mod caches;
#[cfg(feature = "neighbours")]
mod neighbours;
mod reload;
mod settings;

use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::time::Duration;

use narval_cache::upstream::WAITING_MAX;
use narval_http::{ListenAddress, Server, ServerHandle};
use parking_lot::Mutex;
use rustix::fs::Mode;

use crate::args::data::create_private_files;
use crate::config::tables::tls;
use crate::ui::failure::Failure;
use crate::ui::log;
use crate::values::listen::Listen;
use crate::{otlp, server};

pub use args::Args;
use caches::{Opened, Services};
use reload::{CurrentLog, CurrentService, Running, follow_caches};
use settings::Settings;

/// Says so if tokens for uploads cross a network unencrypted. A trusted proxy is taken to speak HTTPS.
fn warn_of_plain_uploads(settings: &Settings, addresses: &[ListenAddress]) {
    let config = &settings.config;
    if config.data.is_none() || settings.tls.is_some() || !config.proxies.trusted_proxies.is_empty() {
        return;
    }
    let open = addresses.iter().find_map(|address| match address {
        ListenAddress::Tcp(address) if !address.ip().is_loopback() => Some(address),
        _ => None,
    });
    if let Some(address) = open {
        tracing::warn!(
            "uploads come over plain HTTP to {address}: whoever sees the traffic can read their tokens. Set 'tls', or listen on 127.0.0.1 behind a \
             proxy with HTTPS"
        );
    }
}

/// Runs `narval serve` until a signal ends it.
///
/// # Errors
/// An invalid option or configuration file (before anything listens), or a server that cannot start.
pub fn run(args: Args) -> Result<(), Failure> {
    log::start(None)?;
    server::raise_descriptors();
    let (started, signals) = start(args, server::CaughtSignals::catch)?;
    let Started { handle, running, grace } = started;
    let (tls, data) = (running.tls.clone(), running.opened.data.clone());
    let running = Arc::new(Mutex::new(running));
    follow_caches(&running)?;
    let ended = server::run_reloading(handle, signals, grace, tls, move || running.lock().reload());
    // The thread for reloads keeps it open.
    if let Some(data) = data {
        data.end();
    }
    ended
}

/// A server that runs.
pub(crate) struct Started {
    /// The engine.
    pub(crate) handle: ServerHandle,
    running: Running,
    /// How long requests may take once it is told to end.
    grace: Duration,
}

impl Started {
    /// Reads the settings again, and the files that they name.
    ///
    /// # Errors
    /// Something is wrong with them; then nothing has changed.
    pub(crate) fn reload(&mut self) -> Result<String, Failure> {
        self.running.reload()
    }

    /// Ends it, with the requests that are under way.
    pub(crate) fn end(self) {
        self.handle.shutdown(Duration::ZERO);
        if let Some(data) = &self.running.opened.data {
            data.end();
        }
    }
}

/// Starts the server. `before` is called when everything is open, and before the first answer.
///
/// # Errors
/// As [`run`].
pub(crate) fn start<T>(args: Args, before: impl FnOnce() -> Result<T, Failure>) -> Result<(Started, T), Failure> {
    let settings = Settings::read(&args)?;
    let config = &settings.config;
    if let Some(collector) = &config.tracing.otlp {
        otlp::start(&collector.0, config.tracing.share.fraction())?;
    }
    let umask = (!config.share_data).then(create_private_files);
    let mut opened = Opened::new(&settings, args.unsafe_no_verify)?;
    let mut services = Services::prepare(&settings, &mut opened, None)?;
    let limits = server::within_descriptors(settings.limits.clone(), services.kept_files_max());
    let current = CurrentService::new(services.take_effect()?);
    let mut builder = Server::builder(current.clone()).limits(limits);
    // A reload may add upstreams.
    if services.have_upstreams() || config.is_in_bucket() || (args.config.is_some() && config.data.is_some()) {
        // Workers that wait for upstreams or a bucket must not be missing for local files.
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let waiting = if config.is_in_bucket() { 2 * WAITING_MAX } else { WAITING_MAX };
        builder = builder.workers((4 * processors).max(16) + waiting);
    }
    for listen in server::listen_or_default(&config.listen)? {
        builder = builder.listen(listen);
    }
    let log = config.access_log.open()?.map(CurrentLog::new);
    if let Some(log) = &log {
        builder = builder.access_log(log.clone());
    }
    builder = builder.trust_request_ids(config.access_log.trust_request_ids).checks(["/health", "/ready"]);
    builder = config.proxies.apply(builder);
    let tls = settings.tls.clone().map(|config| tls::accept(config, "HTTPS")).transpose()?;
    if let Some(tls) = &tls {
        builder = builder.tls(tls.clone());
    }
    let server = builder.build().map_err(Failure::usage)?;
    let done = before()?;
    let handle = server.spawn().map_err(Failure::runtime)?;
    if let Some(umask) = umask {
        open_sockets(&config.listen, umask)?;
    }
    warn_of_plain_uploads(&settings, handle.addresses());
    #[cfg(feature = "neighbours")]
    if settings.config.neighbours.neighbours.value
        && let Some((upstreams, store_dir)) = opened.upstreams_at_root()
    {
        neighbours::start(&settings.config.neighbours, upstreams, store_dir)?;
    }
    opened.state.show_engine(handle.counter_source());
    if let Some(tls) = &tls {
        let tls = tls.clone();
        opened.state.show_certificates(move || tls.ends());
    }
    let grace = settings.config.limits.shutdown_grace;
    let running = Running { args, keys: settings.keys.clone(), opened, services, settings, current, log, tls };
    Ok((Started { handle, running, grace }, done))
}

/// Gives unix sockets the mode that the umask of before allows: private files are no reason to refuse a proxy.
fn open_sockets(places: &[Listen], umask: Mode) -> Result<(), Failure> {
    for place in places {
        if let Listen::Unix(path) = place {
            let mode = PermissionsExt::from_mode(0o777 & !umask.as_raw_mode());
            std::fs::set_permissions(path, mode)
                .map_err(|error| Failure::of_file(&path.display().to_string(), &error))?;
        }
    }
    Ok(())
}
