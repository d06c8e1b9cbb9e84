//! `narval-bench`: what to measure, on which servers or clients, and how.

use std::collections::HashMap;
use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command as Program;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

use crate::cache_rows::{self, Folders, ZSTD_PREFIX};
use crate::client::Request;
use crate::fixture::{self, Fixture};
use crate::install::{self, Client};
use crate::load::Load;
use crate::proxy::{Proxy, ProxyOptions};
use crate::report::{Report, write_json};
use crate::rows::{Placement, Row, Run, Settings};
use crate::server::{Server, free_port};
use crate::static_rows::{self, FileSets};
use crate::tls::Certificate;
use crate::{Context, Result, echo, failure, http2_rows, https_rows, ktls, nginx, push, websocket};

const HELLO_REQUESTS: usize = 20_000;
const OPEN_FILES: usize = 16 * 1024;

#[derive(Parser)]
#[command(
    name = "narval-bench",
    version,
    about,
    long_about = "Measures HTTP servers, binary caches and installing \
clients side by side in one run: medians, and ratios to a loopback echo and to nginx. docs/performance.md explains the rows."
)]
struct Cli {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Binary caches: narinfos, NARs, whole closures, trees of small files
    Cache {
        #[command(flatten)]
        common: Common,
        /// Top-level store path of the closure (tools/make-closure makes one)
        #[arg(long, value_name = "PATH")]
        closure: String,
        /// The store that holds it, in the syntax of `nix --store` [default: the system's]
        #[arg(long, value_name = "STORE")]
        store: Option<String>,
    },
    /// The engine alone: 600 bytes from memory, against nginx's `return 200`
    Hello {
        #[command(flatten)]
        common: Common,
        /// Request target below the peers' base URLs
        #[arg(long, default_value = "/", value_name = "TARGET")]
        target: String,
    },
    /// Static files; in --start, {dir} is the folder to serve
    Static {
        #[command(flatten)]
        common: Common,
    },
    /// HTTPS: handshakes, and static files; in --start, {dir} is the folder to serve, {cert} and {key} are files
    Https {
        #[command(flatten)]
        common: Common,
        /// Use kernel TLS in nginx (ssl_conf_command Options KTLS)
        #[arg(long)]
        ktls: bool,
        /// Send only one in N requests, for a slow (emulated) machine
        #[arg(long, default_value_t = 1, value_name = "N")]
        one_of: usize,
    },
    /// HTTP/2 over TLS, with h2load and curl: static files, or with --closure a binary cache; {dir}, {cert}, {key} as for https
    Http2 {
        #[command(flatten)]
        common: Common,
        /// Top-level store path of the closure that the started servers serve
        #[arg(long, value_name = "PATH")]
        closure: Option<String>,
    },
    Tls(ktls::TlsArgs),
    /// Installing clients, given as commands, from nginx over flat files
    Install(InstallArgs),
    /// One message to many WebSockets, on a server that broadcasts what one client sends
    Broadcast {
        #[command(flatten)]
        common: Common,
        /// How many WebSockets are connected
        #[arg(long, default_value_t = 10_000)]
        connections: usize,
        /// Length of the message, in bytes
        #[arg(long, default_value_t = 1024)]
        bytes: usize,
        /// How many messages are sent, one after the other
        #[arg(long, default_value_t = 20)]
        rounds: usize,
    },
    /// Memory of idle WebSockets
    Websocket {
        #[command(flatten)]
        common: Common,
        /// How many WebSockets are opened
        #[arg(long, default_value_t = 10_000)]
        connections: usize,
    },
    /// Pushing to a binary cache: the cost for servers, by replaying a recorded push of real Nix
    PushServer(push::ServerArgs),
    /// Pushing to a binary cache: the cost for clients, given as commands
    PushClient(push::ClientArgs),
    /// A server that only receives, hashes, decodes and writes pushes: a baseline to start from push-server
    PushBare(push::bare::BareArgs),
    /// A TCP proxy that delays and cuts connections
    Proxy {
        /// Address to listen on
        #[arg(long, default_value = "127.0.0.1:0")]
        listen: SocketAddr,
        /// Address to forward connections to
        #[arg(long)]
        to: SocketAddr,
        /// Round-trip delay in milliseconds
        #[arg(long, default_value_t = 0)]
        round_trip_ms: u64,
        /// Cut each connection after this many bytes of responses
        #[arg(long)]
        cut_after_bytes: Option<u64>,
    },
    /// The echo server (the harness starts it)
    #[command(hide = true)]
    Echo {
        port: u16,
        sizes: PathBuf,
    },
}

#[derive(Args)]
struct Common {
    /// A server that is already running (its process is found by its port)
    #[arg(long, value_name = "NAME=URL[,pid=N]")]
    peer: Vec<String>,
    /// A server to start; {port} is replaced by its port, and requests go below PATH
    #[arg(long, value_name = "NAME[/PATH]=COMMAND")]
    start: Vec<String>,
    /// Work folder of the harness
    #[arg(long, default_value = "target/bench-work", value_name = "DIR")]
    work: PathBuf,
    /// How often each row is run on each server
    #[arg(long, default_value_t = 5)]
    repetitions: usize,
    /// Only rows with this text in their title (repeatable)
    #[arg(long, value_name = "TEXT")]
    only: Vec<String>,
    /// The servers' processor
    #[arg(long, default_value_t = 0)]
    server_cpu: usize,
    /// The client's processor, in rows where it is not the server's
    #[arg(long, default_value_t = 1)]
    client_cpu: usize,
    /// Write all figures, including every sample, to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(Args)]
struct InstallArgs {
    /// A client: a shell command line with {url} of the cache, {path} to install, {key} to trust,
    /// {flat} as the cache's folder, {dest} as an empty folder
    #[arg(long = "client", value_name = "NAME=COMMAND", required = true)]
    clients: Vec<Client>,
    /// Top-level store path of the closure
    #[arg(long, value_name = "PATH")]
    closure: String,
    /// Compression of the cache: none, zstd, xz, …
    #[arg(long, default_value = "xz")]
    compression: String,
    /// Round trip to the cache in milliseconds, added by the delaying proxy
    #[arg(long, default_value_t = 0)]
    round_trip_ms: u64,
    /// Folder for the destinations
    #[arg(long, default_value = "/dev/shm", value_name = "DIR")]
    scratch: PathBuf,
    /// Processors of the client (repeatable) [default: all]
    #[arg(long = "cpu", value_name = "N")]
    cpus: Vec<usize>,
    /// Work folder of the harness
    #[arg(long, default_value = "target/bench-work", value_name = "DIR")]
    work: PathBuf,
    /// How often each client runs
    #[arg(long, default_value_t = 3)]
    repetitions: usize,
    /// Write all figures to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Parses the command line and runs the measurement.
///
/// # Errors
/// If something cannot be measured.
pub fn run() -> Result<()> {
    match Cli::parse().what {
        What::Cache { common, closure, store } => cache(&common, &closure, store.as_deref()),
        What::Hello { common, target } => hello(&common, &target),
        What::Static { common } => static_files(&common),
        What::Https { common, ktls, one_of } => https(&common, ktls, one_of.max(1)),
        What::Http2 { common, closure } => http2(&common, closure.as_deref()),
        What::Tls(arguments) => ktls::compare(&arguments),
        What::Install(arguments) => install(&arguments),
        What::Broadcast { common, connections, bytes, rounds } => {
            websocket::raise_file_limit(connections + 100)?;
            peers(&common)?.iter().try_for_each(|server| websocket::broadcast(server, connections, bytes, rounds))
        }
        What::Websocket { common, connections } => {
            websocket::raise_file_limit(connections + 100)?;
            peers(&common)?.iter().try_for_each(|server| websocket::run(server, connections))
        }
        What::PushServer(arguments) => push::server_rows::run(&arguments),
        What::PushBare(arguments) => push::bare::serve(&arguments),
        What::PushClient(arguments) => push::client_rows::run(&arguments),
        What::Proxy { listen, to, round_trip_ms, cut_after_bytes } => proxy(ProxyOptions {
            listen,
            round_trip: Duration::from_millis(round_trip_ms),
            cut_after_bytes,
            ..ProxyOptions::to(to)
        }),
        What::Echo { port, sizes } => {
            let text = fs::read(&sizes).context(|| format!("cannot read {}", sizes.display()))?;
            let sizes = serde_json::from_slice(&text).context(|| format!("{}", sizes.display()))?;
            let listener =
                TcpListener::bind(("127.0.0.1", port)).context(|| format!("cannot listen on port {port}"))?;
            echo::serve(&listener, sizes)
        }
    }
}

fn cache(common: &Common, closure: &str, store: Option<&str>) -> Result<()> {
    let fixture = Fixture::prepare(&common.work, closure, store)?;
    let folders = Folders { plain: fixture.flat("none")?, zstd: fixture.flat("zstd")? };
    let mut sizes = HashMap::new();
    fixture::sizes("/", &folders.plain, &mut sizes)?;
    fixture::sizes(ZSTD_PREFIX, &folders.zstd, &mut sizes)?;
    let mut servers = vec![
        start_echo(&common.work, &sizes)?,
        nginx::start(&[("/", &folders.plain), (ZSTD_PREFIX, &folders.zstd)], &common.work)?,
    ];
    servers.extend(peers(common)?);
    measure(common, &servers, |run| cache_rows::run(run, &fixture, &folders))
}

fn hello(common: &Common, target: &str) -> Result<()> {
    fs::create_dir_all(&common.work).context(|| format!("cannot make {}", common.work.display()))?;
    let sizes = HashMap::from([("/hello".to_owned(), nginx::HELLO_BYTES as u64)]);
    let mut servers = vec![start_echo(&common.work, &sizes)?, nginx::start(&[], &common.work)?];
    servers.extend(peers(common)?);
    let rows = [
        (1, Placement::Together),
        (1, Placement::Apart),
        (64, Placement::Apart),
        (128, Placement::Apart),
        (256, Placement::Apart),
    ];
    measure(common, &servers, |run| {
        rows.iter().try_for_each(|&(connections, placement)| {
            let processors = if placement == Placement::Together { "one processor" } else { "two processors" };
            run.row(&Row {
                title: format!("hello, {connections} connections, {processors}"),
                load: Load { connections, passes: HELLO_REQUESTS, close: false },
                placement,
                warm: false,
                requests: Box::new(|server, _| {
                    vec![Request::get(&server.base, if server.flat { "/hello" } else { target }, "", 200)]
                }),
            })
        })
    })
}

fn static_files(common: &Common) -> Result<()> {
    fs::create_dir_all(&common.work).context(|| format!("cannot make {}", common.work.display()))?;
    let work = fs::canonicalize(&common.work).context(|| format!("cannot use {}", common.work.display()))?;
    let sets = FileSets::prepare(&work)?;
    websocket::raise_file_limit(OPEN_FILES)?;
    let mut sizes = HashMap::new();
    fixture::sizes("/", &sets.folder, &mut sizes)?;
    let mut servers = vec![start_echo(&work, &sizes)?, nginx::start(&[("/", &sets.folder)], &work)?];
    let folder = sets.folder.display().to_string();
    for text in &common.start {
        servers.push(Server::start(&text.replace("{dir}", &folder), &work)?);
    }
    for text in &common.peer {
        servers.push(Server::peer(text)?);
    }
    measure(common, &servers, |run| static_rows::run(run, &sets))
}

fn https(common: &Common, ktls: bool, one_of: usize) -> Result<()> {
    fs::create_dir_all(&common.work).context(|| format!("cannot make {}", common.work.display()))?;
    let work = fs::canonicalize(&common.work).context(|| format!("cannot use {}", common.work.display()))?;
    let sets = FileSets::prepare(&work)?;
    let certificate = Certificate::prepare(&work)?;
    websocket::raise_file_limit(OPEN_FILES)?;
    let mut servers = vec![nginx::start_https(&[("/", &sets.folder)], &work, &certificate, ktls)?];
    servers.extend(secure_peers(common, &work, &sets.folder, &certificate)?);
    measure(common, &servers, |run| https_rows::run(run, &sets, one_of))
}

fn http2(common: &Common, closure: Option<&str>) -> Result<()> {
    fs::create_dir_all(&common.work).context(|| format!("cannot make {}", common.work.display()))?;
    let work = fs::canonicalize(&common.work).context(|| format!("cannot use {}", common.work.display()))?;
    let certificate = Certificate::prepare(&work)?;
    if let Some(closure) = closure {
        let fixture = Fixture::prepare(&work, closure, None)?;
        let flat = fixture.flat("none")?;
        let mut servers = vec![nginx::start_http2(&[("/", &flat)], &work, &certificate)?];
        servers.extend(secure_peers(common, &work, &flat, &certificate)?);
        return measure(common, &servers, |run| http2_rows::run_cache(run, &fixture, &work));
    }
    let sets = FileSets::prepare(&work)?;
    let mut servers = vec![nginx::start_http2(&[("/", &sets.folder)], &work, &certificate)?];
    servers.extend(secure_peers(common, &work, &sets.folder, &certificate)?);
    measure(common, &servers, |run| http2_rows::run_static(run, &sets, &work))
}

/// The servers given by `--start` and `--peer`, with TLS.
fn secure_peers(common: &Common, work: &Path, folder: &PathBuf, certificate: &Certificate) -> Result<Vec<Server>> {
    let values = [("{dir}", folder), ("{cert}", &certificate.cert), ("{key}", &certificate.key)];
    let mut servers = Vec::new();
    for text in &common.start {
        let filled = |text: String, (name, path): &(&str, &PathBuf)| text.replace(name, &path.display().to_string());
        let mut server = Server::start(&values.iter().fold(text.clone(), filled), work)?;
        server.base.secure = true;
        servers.push(server);
    }
    for text in &common.peer {
        servers.push(Server::peer(text)?);
    }
    Ok(servers)
}

fn install(arguments: &InstallArgs) -> Result<()> {
    let fixture = Fixture::prepare(&arguments.work, &arguments.closure, None)?;
    let flat = fixture.flat_closure(&arguments.compression)?;
    let nginx = nginx::start(&[("/", &flat)], &arguments.work)?;
    let options = ProxyOptions {
        round_trip: Duration::from_millis(arguments.round_trip_ms),
        ..ProxyOptions::to(nginx.base.address)
    };
    let far = (arguments.round_trip_ms > 0).then(|| Proxy::start(options)).transpose();
    let far = far.context(|| "cannot start the proxy".to_owned())?;
    let address = far.as_ref().map_or(nginx.base.address, Proxy::address);
    let values = [
        ("url", format!("http://{address}")),
        ("path", fixture.top.clone()),
        ("key", fixture.public_key.clone()),
        ("flat", flat.display().to_string()),
    ];
    println!("installing the closure, {}, round trip {} ms", arguments.compression, arguments.round_trip_ms);
    let rows = install::run(&arguments.clients, &values, &arguments.scratch, arguments.repetitions, &arguments.cpus)?;
    write_json(arguments.json.as_deref(), &rows)
}

fn proxy(options: ProxyOptions) -> Result<()> {
    let target = options.target;
    let proxy = Proxy::start(options).context(|| "cannot start the proxy".to_owned())?;
    println!("listening on {}, passing on to {target}", proxy.address());
    loop {
        std::thread::park();
    }
}

/// The servers given by `--start` and `--peer`.
fn peers(common: &Common) -> Result<Vec<Server>> {
    fs::create_dir_all(&common.work).context(|| format!("cannot make {}", common.work.display()))?;
    let started = common.start.iter().map(|text| Server::start(text, &common.work));
    started.chain(common.peer.iter().map(|text| Server::peer(text))).collect()
}

fn start_echo(work: &Path, sizes: &echo::Sizes) -> Result<Server> {
    let file = work.join("echo-sizes.json");
    let text = serde_json::to_vec(sizes).context(|| "echo-sizes.json".to_owned())?;
    fs::write(&file, text).context(|| format!("cannot write {}", file.display()))?;
    let port = free_port()?;
    let mut command = Program::new(std::env::current_exe().context(|| "own executable".to_owned())?);
    command.arg("echo").arg(port.to_string()).arg(&file);
    let mut server = Server::spawn("echo", command, port, work)?;
    server.flat = true;
    Ok(server)
}

fn measure(common: &Common, servers: &[Server], rows: impl FnOnce(&mut Run<'_>) -> Result<()>) -> Result<()> {
    // It sends by timers, at rates that it estimates: of the same bytes over loopback, a sample takes 0.5 to 2 times the median.
    if fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control").is_ok_and(|name| name.trim() == "bbr") {
        eprintln!(
            "narval-bench: TCP's congestion control is bbr: for rows of large bodies, run this in a network namespace with cubic (docs/performance.md)"
        );
    }
    let Common { repetitions, only, server_cpu, client_cpu, .. } = common;
    if *repetitions == 0 {
        return Err(failure!("--repetitions 0: nothing would be measured"));
    }
    let settings =
        Settings { repetitions: *repetitions, only: only.clone(), server_cpu: *server_cpu, client_cpu: *client_cpu };
    let mut run = Run { servers, settings, report: Report::default() };
    rows(&mut run)?;
    run.memory();
    write_json(common.json.as_deref(), &run.report)
}
