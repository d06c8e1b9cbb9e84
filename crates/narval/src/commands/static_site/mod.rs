//! `narval static`: serves the files of a folder over HTTP and HTTPS.

mod compress;

use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use clap::ValueEnum;
use narval_http::files::{CacheRule, PathGlob, Site, SiteOptions};
use narval_http::semantics::accept::Coding;
use narval_http::tls::PemPair;
use narval_http::{Compression, Cors, DriverChoice, Handler, HeadRef, Limits, Method, Request, Response, Server, wrap};

use self::compress::{PREVIOUS_MAX, Summary};
use crate::config::tables::tls;
use crate::config::{AccessLog, Nested, Options, Proxies, Tls, saturated, size, table};
use crate::server;
use crate::ui::failure::Failure;
use crate::ui::log;
use crate::ui::output::out;
use crate::ui::output_args::OutputArgs;
use crate::ui::progress::watched;
use crate::values::listen::Listen;

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
  narval static public
  narval static public --listing --tls-self-signed
  narval static compress public && narval static public
  narval static dist --spa index.html \\
    --cache-control 'assets/**=public, max-age=31536000, immutable'
  narval static compress dist --previous dist.old && \\
    narval static dist --dictionary '*.js' --tls-cert cert.pem --tls-key key.pem";

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Compress the files of a site in advance
    ///
    /// `narval static` then serves the smallest encoding that a client accepts. Files that did not change are not compressed
    /// again. (To serve a folder named 'compress', write ./compress.)
    #[command(after_help = COMPRESS_EXAMPLES)]
    Compress(CompressArgs),
}

const COMPRESS_EXAMPLES: &str = "\
Examples:
  narval static compress public --into /var/cache/public
  narval static compress dist --previous releases/41 --previous releases/40";

#[derive(Debug, clap::Args)]
struct CompressArgs {
    /// Folder to compress
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    /// Write the results to a separate folder, for `narval static --sidecars-in`
    #[arg(long, value_name = "DIR")]
    into: Option<PathBuf>,
    /// Encodings to make
    #[arg(
        long = "encodings",
        alias = "forms",
        value_name = "ENCODING",
        value_delimiter = ',',
        default_value = "zstd,br,gzip"
    )]
    forms: Vec<Form>,
    /// Folder of a previous release. Repeatable, up to 8 times
    ///
    /// For each file that differs from its version there, a delta is made if it is smaller than 0.8 of the smallest encoding:
    /// FILE.SHA-256.dcz, named after the hash of the old version. The old version has the same name, or one that
    /// differs in its hash (app.3f2a.js). `narval static --dictionary` serves deltas. Those from releases that are not named
    /// are removed.
    #[arg(long, value_name = "DIR")]
    previous: Vec<PathBuf>,
    /// Number of files compressed at once [default: number of processors]
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
    /// Folder to serve
    #[arg(value_name = "DIR", required = true)]
    folder: Option<PathBuf>,
    /// Address to listen on: HOST:PORT, :PORT, [IPV6]:PORT or the path of a unix socket. Repeatable [default: the sockets
    /// passed by systemd, else :8080]
    #[arg(long, short, value_name = "WHERE")]
    listen: Vec<Listen>,
    /// File served for a folder. Repeatable; the first that exists is served
    #[arg(long, value_name = "NAME", default_value = "index.html")]
    index: Vec<String>,
    /// List folders without an index file (`?format=json` for JSON)
    #[arg(long)]
    listing: bool,
    /// Serve files whose names start with a dot
    #[arg(long)]
    hidden: bool,
    /// Do not look for compressed files (FILE.zst, FILE.br, FILE.gz)
    #[arg(long)]
    no_sidecars: bool,
    /// Look for compressed files in this folder instead
    #[arg(long, value_name = "DIR", conflicts_with = "no_sidecars")]
    sidecars_in: Option<PathBuf>,
    /// Compress text on the fly for clients that accept it
    #[arg(long)]
    compress: bool,
    /// File served with status 200 in place of a 404, for single-page applications
    #[arg(long, value_name = "FILE")]
    spa: Option<String>,
    /// File served as the body of a 404
    #[arg(long, value_name = "FILE")]
    not_found: Option<String>,
    /// Cache-Control of paths that match a glob, as 'GLOB=VALUE'. Repeatable; the first match wins
    #[arg(long, value_name = "RULE", value_parser = |text: &str| CacheRule::parse(text))]
    cache_control: Vec<CacheRule>,
    /// Send deltas of paths that match a glob to browsers that have a previous version (RFC 9842). Repeatable
    ///
    /// Browsers keep these files as dictionaries for their later versions. The deltas are made by `narval static compress
    /// --previous`. Only over HTTPS, and to clients on this machine.
    #[arg(long, value_name = "GLOB", value_parser = |text: &str| PathGlob::parse(text), conflicts_with = "no_sidecars")]
    dictionary: Vec<PathGlob>,
    /// Origin allowed to read responses (CORS), or '*'. Repeatable
    #[arg(long, value_name = "ORIGIN")]
    cors: Vec<String>,
    /// Milliseconds after which a file's metadata is checked again; 0 checks on every request
    #[arg(long, alias = "believe", value_name = "MS", default_value_t = 1000)]
    revalidate_after: u64,
    #[command(flatten)]
    settings: Options<StaticConfig>,
    /// Use a self-signed certificate made for this run; browsers will warn
    #[arg(long, help_heading = "HTTPS", conflicts_with = "tls-cert")]
    tls_self_signed: bool,
    /// Number of threads that multiplex connections [default: chosen by the number of processors]
    #[arg(long, value_name = "N", help_heading = "Tuning")]
    shards: Option<NonZero<usize>>,
    /// Number of threads that read files [default: chosen by the number of processors]
    #[arg(long, value_name = "N", help_heading = "Tuning")]
    workers: Option<NonZero<usize>>,
    /// Kernel interface: auto, epoll or uring
    #[arg(long, value_name = "NAME", default_value = "auto", help_heading = "Tuning")]
    driver: DriverChoice,
}

table! {
    /// The settings that it has in common with `narval serve`.
    StaticConfig {
        /// HTTPS.
        tls: Tls = Nested::Table(Some("HTTPS")),
        /// The access log.
        access_log: AccessLog = Nested::Table(Some("Access log")),
        /// Memory for answers that clients have yet to read, and for messages of WebSockets
        ///
        /// Beyond it, larger answers from memory are refused with 503, and the connections that hold most are closed. Files are read as
        /// their clients take them, and hardly count.
        output_memory: u64 = size().or("256M").option("output-memory", "SIZE"),
        /// The proxies in front.
        proxies: Proxies = Nested::Here(Some("Behind a proxy")),
    }
}

/// Runs `narval static`.
///
/// # Errors
/// An invalid option, a server that cannot start, or a file that cannot be compressed.
pub fn run(args: Args) -> Result<(), Failure> {
    match args.command {
        Some(Command::Compress(args)) => run_compress(args),
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
    let pairs = if args.tls_self_signed { vec![self_signed()?] } else { Vec::new() };
    let settings = args.settings.over(None).map_err(Failure::usage)?.settings;
    settings.proxies.check().map_err(Failure::usage)?;
    let tls = settings.tls.config(pairs).map_err(Failure::usage)?;
    let tls = tls.map(|config| tls::accept(config, "option --tls-cert")).transpose()?;
    let options = SiteOptions {
        index: args.index,
        listing: args.listing,
        hidden: args.hidden,
        sidecars: !args.no_sidecars,
        sidecar_folder: args.sidecars_in,
        fallback: args.spa,
        not_found: args.not_found,
        cache_control: args.cache_control,
        dictionaries: args.dictionary,
        is_secure: tls.is_some(),
        revalidate_after: Duration::from_millis(args.revalidate_after),
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
    let limits = Limits { output_memory_max: saturated(settings.output_memory), ..Limits::default() };
    let mut builder = Server::builder(Boxed(handler)).driver(args.driver).limits(limits);
    if let Some(shards) = args.shards {
        builder = builder.shards(shards.get());
    }
    if let Some(workers) = args.workers {
        builder = builder.workers(workers.get());
    }
    for listen in server::listen_or(&args.listen, PORT_DEFAULT)? {
        builder = builder.listen(listen);
    }
    builder = settings.proxies.apply(builder).trust_request_ids(settings.access_log.trust_request_ids);
    if let Some(log) = settings.access_log.open()? {
        builder = builder.access_log(log);
    }
    if let Some(tls) = &tls {
        builder = builder.tls(tls.clone());
    }
    let server = builder.build().map_err(Failure::usage)?;
    if args.tls_self_signed {
        tracing::info!("using a self-signed certificate for this run: browsers warn, curl needs --insecure");
    }
    server::run(server, tls)
}

/// The default port.
const PORT_DEFAULT: u16 = 8080;

/// A handler with layers chosen by options.
struct Boxed(Box<dyn Handler>);

impl Handler for Boxed {
    fn inline(&self, head: &HeadRef<'_>) -> Option<Response> {
        self.0.inline(head)
    }

    fn handle(&self, request: Request) -> Response {
        self.0.handle(request)
    }

    fn accepts_websockets(&self) -> bool {
        self.0.accepts_websockets()
    }
}

/// A self-signed certificate for the names of this machine.
fn self_signed() -> Result<PemPair, Failure> {
    let mut names = vec!["localhost".to_owned(), "127.0.0.1".to_owned(), "::1".to_owned()];
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    if !host.is_empty() && !names.contains(&host) {
        names.push(host);
    }
    let failed = |error| Failure::runtime(format!("option --tls-self-signed: cannot create a certificate: {error}"));
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
/// The longest validity that browsers accept (CA/Browser Forum, ballot SC-31), minus that day; a restart creates a new
/// certificate.
const SELF_SIGNED_FOR: Duration = Duration::from_secs(396 * 24 * 3600);

fn run_compress(args: CompressArgs) -> Result<(), Failure> {
    if args.previous.len() > PREVIOUS_MAX {
        return Err(Failure::usage(format!("option --previous: at most {PREVIOUS_MAX} previous releases")));
    }
    let codings = args.forms.iter().map(|form| match form {
        Form::Zstd => Coding::Zstd,
        Form::Br => Coding::Brotli,
        Form::Gzip => Coding::Gzip,
    });
    let site = compress::Site {
        root: args.folder,
        into: args.into,
        codings: codings.collect(),
        threads: args.jobs.or_else(|| std::thread::available_parallelism().ok()).unwrap_or(NonZero::<usize>::MIN),
        previous: args.previous,
    };
    let output = OutputArgs { quiet: false, json: false };
    let (done, ended) = watched(output, ("files that are complete are kept", "continues"), |work| {
        compress::compress(&site, work).map_err(Failure::runtime)
    })?;
    ended?;
    print_summary(&site.root, !site.previous.is_empty(), &done);
    Ok(())
}

fn print_summary(folder: &Path, has_previous: bool, done: &Summary) {
    out!(
        "{}: {} compressible files ({:.1} MB): {} encodings written ({:.1} MB), {} up to date, {} would not be smaller",
        folder.display(),
        done.files,
        done.file_bytes as f64 / 1e6,
        done.made,
        done.made_bytes as f64 / 1e6,
        done.fresh,
        done.larger,
    );
    if has_previous {
        let megabytes = done.delta_bytes as f64 / 1e6;
        out!("deltas from previous releases: {} written ({megabytes:.3} MB)", done.deltas);
    }
}
