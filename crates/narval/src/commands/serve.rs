//! `narval serve`: a Nix store as a binary cache, with all it can say.

use std::path::PathBuf;
use std::time::Duration;

use narval_http::{Limits, Server};
use narval_serve::{Config, Face, Service};

use crate::args::access_log::AccessLogArgs;
use crate::args::listen::Listen;
use crate::args::nar_cache::NarCacheArgs;
use crate::args::tls::TlsArgs;
use crate::commands::key;
use crate::ui::log;
use crate::{Failure, server};

/// Serve a Nix store as a binary cache
///
/// For every client of binary caches: nix, `narval install`, a browser.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Address to listen on: HOST:PORT, :PORT, [IPV6]:PORT or the path of a unix socket. Repeatable [default: the sockets
    /// passed by systemd, else :5000]
    #[arg(long, short, value_name = "WHERE")]
    listen: Vec<Listen>,
    /// Store to serve: `auto`, `daemon`, a folder that holds a store, or another Nix store URI [default: $NIX_REMOTE, else
    /// this machine's store]
    #[arg(long, value_name = "URI")]
    store: Option<String>,
    /// Secret key to sign with. Repeatable
    ///
    /// `narval key generate` makes one. Signatures stored with the paths are served as well.
    #[arg(long, short = 'k', value_name = "FILE")]
    sign_key: Vec<PathBuf>,
    /// Priority; clients ask the cache with the lowest number first (cache.nixos.org: 40)
    #[arg(long, value_name = "N", default_value_t = 30)]
    priority: u32,
    #[command(flatten)]
    nar_cache: NarCacheArgs,
    /// Hash every NAR while it is sent, and abort the connection if it does not match the database
    #[arg(long)]
    verify_nars: bool,
    /// Seconds after which a client that reads nothing is disconnected
    ///
    /// The default is long because Nix stops reading while its disk is slow, and cannot resume a NAR sent with
    /// `Content-Encoding`.
    #[arg(long, value_name = "SECONDS", default_value_t = 3600, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    stall_timeout: u64,
    #[command(flatten)]
    tls: TlsArgs,
    #[command(flatten)]
    access_log: AccessLogArgs,
}

const EXAMPLES: &str = "\
Examples:
  narval serve
  narval serve --sign-key cache.sec --listen 127.0.0.1:8080
  narval serve --store ~/.local/share/narval

Then, on a client:
  nix copy --from http://HOST:5000 PATH \\
    --option trusted-public-keys \"$(narval key public cache.sec)\"";

/// Runs `narval serve` until a signal ends it.
///
/// # Errors
/// An option that can't be followed (before anything listens), or a server that can't start.
pub fn run(args: Args) -> Result<(), Failure> {
    log::start(None)?;
    let sign_keys = args.sign_key.iter().map(|path| key::read_secret_key(path)).collect::<Result<Vec<_>, _>>()?;
    let store = server::open_store(args.store.as_deref())?;
    let defaults = Config::new(Face::Narval);
    let nar_cache = args.nar_cache.config();
    let config = Config {
        priority: args.priority,
        sign_keys,
        scratch: nar_cache.as_ref().map(|cache| cache.folder.clone()).or_else(|| defaults.scratch.clone()),
        nar_cache,
        verify_nars: args.verify_nars,
        ..defaults
    };
    server::raise_descriptors();
    let service = Service::new(config, store).map_err(Failure::usage)?;
    let limits = Limits { write_stall_timeout: Duration::from_secs(args.stall_timeout), ..Limits::default() };
    let limits = server::within_descriptors(limits, &service);
    let mut builder = Server::builder(service.clone()).limits(limits);
    for listen in server::listen_or_default(&args.listen)? {
        builder = builder.listen(listen);
    }
    if let Some(log) = args.access_log.open()? {
        builder = builder.access_log(log);
    }
    let tls = args.tls.acceptor()?;
    if let Some(tls) = &tls {
        builder = builder.tls(tls.clone());
    }
    let server = builder.build().map_err(Failure::usage)?;
    let handle = server.spawn().map_err(Failure::runtime)?;
    service.show_engine(handle.counter_source());
    server::run(handle, tls)
}
