//! `narval static`: the files of a folder over HTTP and HTTPS.

use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use clap::ValueEnum;
use narval_http::files::{CacheRule, PrecompressOptions, Site, SiteOptions, precompress};
use narval_http::proto::accept::Coding;
use narval_http::tls::PemPair;
use narval_http::{Compression, Cors, DriverChoice, Handler, HeadRef, Method, Request, Response, Server, wrap};

use crate::args::access_log::{self, LogForm};
use crate::args::count::Count;
use crate::args::listen::Listen;
use crate::args::tls::TlsArgs;
use crate::ui::log;
use crate::ui::output::out;
use crate::{Failure, server};

/// Serve the files of a folder over HTTP or HTTPS
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    serve: ServeArgs,
}

const EXAMPLES: &str = "\
Examples:
  narval static public                                 the folder 'public' on port 8080
  narval static public --listing --tls-self-signed     with lists of folders, over HTTPS
  narval static compress public && narval static public
  narval static dist --spa index.html --cache-control 'assets/**=public, max-age=31536000, immutable'";

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Compress a site's files beforehand, where that makes them smaller
    ///
    /// `narval static` serves the smallest form that a client accepts. A file that has not changed since is not compressed
    /// again. (A folder that is called 'compress' is served as ./compress.)
    #[command(after_help = "Example:\n  narval static compress public --into /var/cache/public")]
    Compress(CompressArgs),
}

#[derive(Debug, clap::Args)]
struct CompressArgs {
    /// The folder
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    /// Put the results into a folder of their own, for `narval static --sidecars-in`
    #[arg(long, value_name = "DIR")]
    into: Option<PathBuf>,
    /// Forms to make
    #[arg(long, value_name = "FORM", value_delimiter = ',', default_value = "zstd,br,gzip")]
    forms: Vec<Form>,
    /// Files compressed at once; as many as there are processors without
    #[arg(long, short, value_name = "N")]
    jobs: Option<NonZero<usize>>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Form {
    Zstd,
    Br,
    Gzip,
}

#[derive(Debug, clap::Args)]
struct ServeArgs {
    /// The folder
    #[arg(value_name = "DIR", required = true)]
    folder: Option<PathBuf>,
    /// Where to listen: HOST:PORT, :PORT, [IPV6]:PORT or the path of a unix socket; may be given several times
    ///
    /// Without it: the sockets that systemd hands over, else port 8080 on all addresses.
    #[arg(long, short, value_name = "WHERE")]
    listen: Vec<Listen>,
    /// File that answers for a folder; may be given several times, the first that is there counts
    #[arg(long, value_name = "NAME", default_value = "index.html")]
    index: Vec<String>,
    /// List folders that have no index file (as JSON for `?format=json`)
    #[arg(long)]
    listing: bool,
    /// Serve names that start with a dot
    #[arg(long)]
    hidden: bool,
    /// Do not look for compressed forms of files (FILE.zst, FILE.br, FILE.gz)
    #[arg(long)]
    no_sidecars: bool,
    /// Look for them in this folder instead of beside the files
    #[arg(long, value_name = "DIR", conflicts_with = "no_sidecars")]
    sidecars_in: Option<PathBuf>,
    /// Compress text for clients that accept it while it is sent
    #[arg(long)]
    compress: bool,
    /// File that answers for pages that are not there, with status 200: for single-page applications
    #[arg(long, value_name = "FILE")]
    spa: Option<String>,
    /// File that is the body of a 404
    #[arg(long, value_name = "FILE")]
    not_found: Option<String>,
    /// Cache-Control for the paths that fit a glob, as 'GLOB=VALUE'; may be given several times, the first that fits counts
    #[arg(long, value_name = "RULE", value_parser = |text: &str| CacheRule::parse(text))]
    cache_control: Vec<CacheRule>,
    /// Origin whose pages may read the answers (CORS), or '*'; may be given several times
    #[arg(long, value_name = "ORIGIN")]
    cors: Vec<String>,
    /// Milliseconds for which what was found out about a file is believed; 0 looks at each request
    #[arg(long, value_name = "MS", default_value_t = 1000)]
    believe: u64,
    #[command(flatten)]
    tls: TlsArgs,
    /// Make a certificate for this run, for a first try of HTTPS: browsers will warn
    #[arg(long, help_heading = "HTTPS", conflicts_with = "tls_cert")]
    tls_self_signed: bool,
    /// Threads that multiplex connections
    #[arg(long, value_name = "N", help_heading = "Tuning")]
    shards: Option<NonZero<usize>>,
    /// Threads that read files and shake hands
    #[arg(long, value_name = "N", help_heading = "Tuning")]
    workers: Option<NonZero<usize>>,
    /// Kernel interface: auto, epoll or uring
    #[arg(long, value_name = "NAME", default_value = "auto", help_heading = "Tuning")]
    driver: DriverChoice,
    /// File for the access log; `-` is standard output
    #[arg(long, value_name = "FILE")]
    access_log: Option<PathBuf>,
    /// Form of the access log
    #[arg(long, value_name = "FORM", default_value = "combined")]
    access_log_form: LogForm,
}

/// Runs `narval static`.
///
/// # Errors
/// An option that can't be followed, or a server that can't start; a file that can't be compressed.
pub fn run(args: Args) -> Result<(), Failure> {
    match args.command {
        Some(Command::Compress(args)) => compress(&args),
        None => serve(args.serve),
    }
}

fn serve(args: ServeArgs) -> Result<(), Failure> {
    log::start(None)?;
    let folder = args.folder.ok_or_else(|| Failure::usage("which folder? narval static DIR"))?;
    for (option, page) in [("--spa", &args.spa), ("--not-found", &args.not_found)] {
        if let Some(page) = page.as_deref().filter(|page| !folder.join(page).is_file()) {
            tracing::warn!("option {option}: there is no file '{page}' in '{}' yet", folder.display());
        }
    }
    let options = SiteOptions {
        index: args.index,
        listing: args.listing,
        hidden: args.hidden,
        sidecars: !args.no_sidecars,
        sidecar_folder: args.sidecars_in,
        fallback: args.spa,
        not_found: args.not_found,
        cache_control: args.cache_control,
        believed: Duration::from_millis(args.believe),
        ..SiteOptions::default()
    };
    let mut handler: Box<dyn Handler> = Box::new(Site::open(&folder, options).map_err(Failure::usage)?);
    if args.compress {
        handler = Box::new(wrap(Compression::default(), Boxed(handler)));
    }
    if !args.cors.is_empty() {
        let any = args.cors.iter().any(|origin| origin == "*");
        let cors = if any { Cors::any_origin() } else { Cors::origins(args.cors) };
        handler = Box::new(wrap(cors.methods(&[Method::GET, Method::HEAD]), Boxed(handler)));
    }
    let mut builder = Server::builder(Boxed(handler)).driver(args.driver);
    if let Some(shards) = args.shards {
        builder = builder.shards(shards.get());
    }
    if let Some(workers) = args.workers {
        builder = builder.workers(workers.get());
    }
    for listen in server::listen_or(&args.listen, PORT_DEFAULT)? {
        builder = builder.listen(listen);
    }
    if let Some(path) = args.access_log {
        builder = builder.access_log(access_log::open(args.access_log_form, &path)?);
    }
    let pairs = if args.tls_self_signed { vec![self_signed()?] } else { Vec::new() };
    let tls = args.tls.acceptor_with(pairs)?;
    if let Some(tls) = &tls {
        builder = builder.tls(tls.clone());
    }
    let server = builder.build().map_err(Failure::usage)?;
    if args.tls_self_signed {
        tracing::info!("a certificate that nobody has signed, made for this run: browsers warn, curl wants --insecure");
    }
    server::run(server.spawn().map_err(Failure::runtime)?, tls)
}

/// The port where no other is named.
const PORT_DEFAULT: u16 = 8080;

/// A handler whose layers were chosen by options.
struct Boxed(Box<dyn Handler>);

impl Handler for Boxed {
    fn inline(&self, head: &HeadRef<'_>) -> Option<Response> {
        self.0.inline(head)
    }

    fn handle(&self, request: Request) -> Response {
        self.0.handle(request)
    }
}

/// A certificate for the names this machine goes by, that nobody but us has signed.
fn self_signed() -> Result<PemPair, Failure> {
    let mut names = vec!["localhost".to_owned(), "127.0.0.1".to_owned(), "::1".to_owned()];
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    if !host.is_empty() && !names.contains(&host) {
        names.push(host);
    }
    let failed = |error| Failure::runtime(format!("option --tls-self-signed: cannot make a certificate: {error}"));
    let mut params = rcgen::CertificateParams::new(names).map_err(failed)?;
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(rcgen::DnType::CommonName, "narval static, self-signed");
    let now = SystemTime::now();
    params.not_before = (now - SELF_SIGNED_SINCE).into();
    params.not_after = (now + SELF_SIGNED_FOR).into();
    let key = rcgen::KeyPair::generate().map_err(failed)?;
    let cert = params.self_signed(&key).map_err(failed)?;
    Ok(PemPair { cert: cert.pem(), key: key.serialize_pem().into() })
}

/// For clients whose clocks are behind.
const SELF_SIGNED_SINCE: Duration = Duration::from_secs(24 * 3600);
/// The longest that browsers take (CA/Browser Forum, ballot SC-31), less that day; a restart makes a new one.
const SELF_SIGNED_FOR: Duration = Duration::from_secs(396 * 24 * 3600);

fn compress(args: &CompressArgs) -> Result<(), Failure> {
    let threads = args.jobs.or_else(|| std::thread::available_parallelism().ok()).unwrap_or(NonZero::<usize>::MIN);
    let codings = args.forms.iter().map(|form| match form {
        Form::Zstd => Coding::Zstd,
        Form::Br => Coding::Brotli,
        Form::Gzip => Coding::Gzip,
    });
    let options = PrecompressOptions { into: args.into.clone(), codings: codings.collect(), threads };
    let progress = Count::new("compressing", "files");
    let done = precompress(&args.folder, &options, |done, total| progress.show(done, total));
    progress.end();
    let done = done.map_err(Failure::runtime)?;
    print_summary(&args.folder, &done);
    Ok(())
}

fn print_summary(folder: &Path, done: &narval_http::files::Precompressed) {
    let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    out!(
        "{}: {} compressible files ({:.1} MB): {} forms made ({:.1} MB), {} were there, {} would not be smaller",
        folder.display(),
        get(&done.files),
        get(&done.file_bytes) as f64 / 1e6,
        get(&done.made),
        get(&done.made_bytes) as f64 / 1e6,
        get(&done.fresh),
        get(&done.larger),
    );
}
