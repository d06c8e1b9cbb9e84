//! `narval serve`: serves a Nix store as a binary cache.

mod caches;
mod reload;
mod settings;

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use narval_cache::upstream::WAITING_MAX;
use narval_http::{ListenAddress, Server};
use rustix::fs::Mode;

use crate::args::data::create_private_files;
use crate::config::tables::tls;
use crate::config::{Options, ServeConfig};
use crate::ui::log;
use crate::values::listen::Listen;
use crate::{Failure, server};

use caches::{Opened, Services};
use reload::{CurrentLog, CurrentService, Running};
use settings::Settings;

/// Serve a Nix store as a binary cache
///
/// Works with every client of binary caches: nix, `narval install`, a browser.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Configuration file (TOML); command-line options take precedence. Reloaded on SIGHUP
    ///
    /// docs/configuration.md describes it; `narval config check FILE` checks a file.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Only for measurements: do not verify uncompressed uploads, and do not sync them
    #[arg(long, hide = true, requires = "data")]
    unsafe_no_verify: bool,
    #[command(flatten)]
    settings: Options<ServeConfig>,
}

const EXAMPLES: &str = "\
Examples:
  narval serve
  narval serve --sign-key cache.sec --listen 127.0.0.1:8080
  narval serve --store ~/.local/share/narval
  narval serve --data /var/lib/narval
  narval serve --data 's3://cache?region=eu-central-1' \\
    --cache-dir /var/lib/narval --cache-size 2T --redirect auto
  narval serve --data 's3://cache?region=eu-central-1' \\
    --database postgres://db.example.org/narval --cache-size 2T \\
    --cache-dir /var/cache/narval --peer-url http://10.0.0.3:5000
  narval serve --config /etc/narval.toml

Then, on a client:
  nix copy --from http://HOST:5000 PATH \\
    --option trusted-public-keys \"$(narval key public cache.sec)\"";

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
    let settings = Settings::read(&args)?;
    server::raise_descriptors();
    let config = &settings.config;
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
    let signals = server::CaughtSignals::catch()?;
    let handle = server.spawn().map_err(Failure::runtime)?;
    if let Some(umask) = umask {
        open_sockets(&config.listen, umask)?;
    }
    warn_of_plain_uploads(&settings, handle.addresses());
    opened.state.show_engine(handle.counter_source());
    if let Some(tls) = &tls {
        let tls = tls.clone();
        opened.state.show_certificates(move || tls.ends());
    }
    let data = opened.data.clone();
    let grace = settings.config.limits.shutdown_grace;
    let mut running = Running { args, keys: settings.keys, opened, services, current, log, tls: tls.clone() };
    let ended = server::run_reloading(handle, signals, grace, tls, move || running.reload());
    // The thread for reloads keeps it open.
    if let Some(data) = data {
        data.end();
    }
    ended
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
