//! `narval serve`: a Nix store as a binary cache, with all it can say.

use std::path::PathBuf;
use std::time::Duration;

use narval_http::{Limits, Server};
use narval_serve::{Config, Face, Service};

use crate::args::access_log::{self, LogForm};
use crate::args::listen::Listen;
use crate::args::nar_cache::NarCacheArgs;
use crate::args::tls::TlsArgs;
use crate::commands::key;
use crate::ui::log;
use crate::{Failure, server};

/// Serve a Nix store as a binary cache
///
/// Anything that speaks to a Nix binary cache can use it: nix itself, `narval install`, a browser.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Where to listen: HOST:PORT, :PORT, [IPV6]:PORT or the path of a unix socket; may be given several times
    ///
    /// Without it: the sockets that systemd hands over, else port 5000 on all addresses.
    #[arg(long, short, value_name = "WHERE")]
    listen: Vec<Listen>,
    /// The store: `auto`, `daemon`, a folder with a store in it, or another store URI of Nix's
    ///
    /// Without it, NIX_REMOTE and the other variables of Nix decide; the rule is this machine's store.
    #[arg(long, value_name = "URI")]
    store: Option<String>,
    /// File of a secret key to sign with; may be given several times
    ///
    /// `narval key generate` makes one. Signatures that are stored with the paths are served beside ours.
    #[arg(long, short = 'k', value_name = "FILE")]
    sign_key: Vec<PathBuf>,
    /// Rank among caches: clients ask the one with the lowest number first (cache.nixos.org has 40)
    #[arg(long, value_name = "N", default_value_t = 30)]
    priority: u32,
    #[command(flatten)]
    nar_cache: NarCacheArgs,
    /// Hash every NAR while it is sent, and break off before its end when it is not what the database says
    #[arg(long)]
    verify_nars: bool,
    /// Disconnect a client that takes nothing of an answer for this long
    ///
    /// Long, for Nix stops reading while its disk is slow, and can't resume a NAR that it gets with `Content-Encoding`.
    #[arg(long, value_name = "SECONDS", default_value_t = 3600, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    stall_timeout: u64,
    #[command(flatten)]
    tls: TlsArgs,
    /// File for the access log; `-` is standard output
    #[arg(long, value_name = "FILE")]
    access_log: Option<PathBuf>,
    /// Form of the access log
    #[arg(long, value_name = "FORM", default_value = "combined")]
    access_log_form: LogForm,
}

const EXAMPLES: &str = "\
Examples:
  narval serve                                   this machine's store, on port 5000
  narval serve --sign-key cache.sec --listen 127.0.0.1:8080
  narval serve --store ~/.local/share/narval     a store that `narval install` made

Then, on a client:
  nix copy --from http://HOST:5000 PATH --option trusted-public-keys \"$(narval key public cache.sec)\"";

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
    if let Some(path) = args.access_log {
        builder = builder.access_log(access_log::open(args.access_log_form, &path)?);
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
