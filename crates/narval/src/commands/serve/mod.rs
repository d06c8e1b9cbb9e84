//! `narval serve`: serves a Nix store as a binary cache.

mod caches;
pub(crate) mod oidc;
mod reload;
mod settings;

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use narval_cache::upstream::WAITING_MAX;
use narval_client::Url;
use narval_http::{ListenAddress, Server};
use rustix::fs::Mode;

use crate::args::access_log::{self, AccessLogArgs};
use crate::args::data::create_private_files;
use crate::args::nar_cache::NarCacheArgs;
use crate::args::proxies::ProxyArgs;
use crate::args::tls::{self, TlsArgs};
use crate::args::upstream::UpstreamArgs;
use crate::ui::log;
use crate::values::delta_choice::DeltaChoice;
use crate::values::listen::Listen;
use crate::values::redirect_choice::RedirectChoice;
use crate::values::size::parse_size;
use crate::{Failure, server};

use caches::{Opened, Services};
use reload::{CurrentLog, CurrentService, Running};
pub(crate) use settings::Settings;

/// Serve a Nix store as a binary cache
///
/// Works with every client of binary caches: nix, `narval install`, a browser.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Configuration file (TOML); command-line options take precedence. Reloaded on SIGHUP
    ///
    /// docs/configuration.md describes its keys; `narval config check FILE` checks a file.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Address to listen on: HOST:PORT, :PORT, [IPV6]:PORT or the path of a unix socket. Repeatable [default: the sockets
    /// passed by systemd, else :5000]
    #[arg(long, short, value_name = "WHERE")]
    listen: Vec<Listen>,
    /// Store to serve: `auto`, `daemon`, a folder that contains a store, or another Nix store URI [default:
    /// $NIX_REMOTE, else this machine's store]
    #[arg(long, value_name = "URI")]
    store: Option<String>,
    /// Data folder of a cache that accepts uploads (`nix copy --to`); created if it does not exist
    ///
    /// Uploads need a token: create one with `narval token create`. Without --store, only this cache is served.
    /// The caches can also be in a bucket of an object store, `s3://BUCKET/PREFIX?region=…&endpoint=…`; see docs/scale-out.md.
    #[arg(long, value_name = "DIR|URL")]
    data: Option<PathBuf>,
    /// With --data in a bucket: folder on this machine for the disk cache, and for the index unless --database has it
    #[arg(long, value_name = "DIR", env = "NARVAL_CACHE_DIR", hide_env_values = true)]
    cache_dir: Option<PathBuf>,
    /// With --data in a bucket: maximum size of the disk cache; the least recently used NARs are removed first [default: 20G]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    cache_size: Option<u64>,
    /// With --data in a bucket: when clients get NARs of 8 MiB and more from the object store itself [default: off]
    ///
    /// They are sent there by a redirect to an address that is valid for five minutes.
    #[arg(long, value_name = "WHEN")]
    redirect: Option<RedirectChoice>,
    /// With --data in a bucket and --database: address at which other servers over the same bucket reach this one, to share disk caches
    ///
    /// Each NAR is then kept by one of the servers that have this option, and the others read it from there: `http://10.0.0.3:5000`.
    #[arg(long, value_name = "URL", alias = "peer-address", env = "NARVAL_PEER_URL", hide_env_values = true)]
    peer_url: Option<Url>,
    /// PostgreSQL database with the index of the data folder: `postgres://USER@HOST/DATABASE`
    ///
    /// Several servers can then share the folder. The password is better given by PGPASSWORD, or by the configuration file: everybody
    /// on the machine can read command lines.
    #[arg(long, value_name = "URL", env = "NARVAL_DATABASE", hide_env_values = true)]
    database: Option<String>,
    /// Require a token for reading, too
    #[arg(long, requires = "data")]
    private: bool,
    /// Only for measurements: do not verify uncompressed uploads, and do not sync them
    #[arg(long, hide = true, requires = "data")]
    unsafe_no_verify: bool,
    /// Secret key to sign with. Repeatable
    ///
    /// Create one with `narval key generate`. Signatures stored with the paths are served as well.
    #[arg(long, short = 'k', value_name = "FILE")]
    sign_key: Vec<PathBuf>,
    /// Priority; clients query the cache with the lowest number first (cache.nixos.org: 40) [default: 30]
    #[arg(long, value_name = "N")]
    priority: Option<u32>,
    #[command(flatten)]
    nar_cache: NarCacheArgs,
    /// Whether clients that have another version of a path get the difference; made differences are kept with the compressed
    /// NARs [default: on]
    #[arg(long, value_name = "WHEN")]
    deltas: Option<DeltaChoice>,
    /// Hash every NAR while it is sent, and abort the connection if it does not match the database
    #[arg(long)]
    verify_nars: bool,
    /// Do not serve the web page at /
    #[arg(long)]
    no_web: bool,
    /// Seconds after which a client that does not read is disconnected [default: 3600]
    ///
    /// The default is long because Nix stops reading while its disk is slow, and cannot resume a NAR sent with
    /// `Content-Encoding`.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    stall_timeout: Option<u64>,
    /// Memory for answers that clients have yet to read, and for messages of WebSockets [default: 256M]
    ///
    /// Beyond it, larger answers from memory are refused with 503, and the connections that hold most are closed. Files and NARs
    /// are read as their clients take them, and hardly count.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    output_memory: Option<u64>,
    #[command(flatten)]
    tls: TlsArgs,
    #[command(flatten)]
    upstream: UpstreamArgs,
    #[command(flatten)]
    access_log: AccessLogArgs,
    #[command(flatten)]
    proxies: ProxyArgs,
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
    if settings.data.is_none() || settings.tls.is_some() || !settings.proxies.trusted.is_empty() {
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
    let umask = (!settings.share_data).then(create_private_files);
    let mut opened = Opened::new(&settings, args.unsafe_no_verify)?;
    let mut services = Services::prepare(&settings, &mut opened, None)?;
    let limits = server::within_descriptors(settings.limits.clone(), services.kept_files_max());
    let current = CurrentService::new(services.take_effect()?);
    let mut builder = Server::builder(current.clone()).limits(limits);
    // A reload may add upstreams.
    if services.have_upstreams() || settings.is_in_bucket() || (args.config.is_some() && settings.data.is_some()) {
        // Workers that wait for upstreams or a bucket must not be missing for local files.
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let waiting = if settings.is_in_bucket() { 2 * WAITING_MAX } else { WAITING_MAX };
        builder = builder.workers((4 * processors).max(16) + waiting);
    }
    for listen in server::listen_or_default(&settings.listen)? {
        builder = builder.listen(listen);
    }
    let log = match &settings.access_log {
        (form, Some(path)) => Some(CurrentLog::new(access_log::open(*form, path)?)),
        (_, None) => None,
    };
    if let Some(log) = &log {
        builder = builder.access_log(log.clone());
    }
    builder =
        settings.proxies.apply(builder.trust_request_ids(settings.trust_request_ids)).checks(["/health", "/ready"]);
    let tls = settings.tls.clone().map(|config| tls::accept(config, "HTTPS")).transpose()?;
    if let Some(tls) = &tls {
        builder = builder.tls(tls.clone());
    }
    let server = builder.build().map_err(Failure::usage)?;
    let signals = server::CaughtSignals::catch()?;
    let handle = server.spawn().map_err(Failure::runtime)?;
    if let Some(umask) = umask {
        open_sockets(&settings.listen, umask)?;
    }
    warn_of_plain_uploads(&settings, handle.addresses());
    opened.state.show_engine(handle.counter_source());
    if let Some(tls) = &tls {
        let tls = tls.clone();
        opened.state.show_certificates(move || tls.ends());
    }
    let data = opened.data.clone();
    let mut running = Running { args, settings, opened, services, current, log, tls: tls.clone() };
    let ended = server::run_reloading(handle, signals, tls, move || running.reload());
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
