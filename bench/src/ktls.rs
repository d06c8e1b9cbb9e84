//! `narval-bench tls`: compares the two ways of encrypting, in user space and in the kernel, on this machine.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use narval_http::tls::{PemPair, TlsAcceptor, TlsConfig, probe};
use narval_http::{Body, FileRange, Listen, ListenAddress, Request, Response, Server, ServerHandle, StatusCode};
use rustix::net::RecvFlags;
use rustix::time::{ClockId, clock_gettime};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore};
use serde_json::json;

use crate::{Context, Result, failure};

const EXAMPLES: &str = "\
Examples:
  narval-bench tls
  narval-bench tls --size-mb 64 --downloads 100
  narval-bench tls --json | jq .suggestion";

/// Compare encryption in user space and in the kernel, to choose --ktls
///
/// Serves a file to itself over loopback, alternating between the two, and measures the processor time of the serving threads.
/// Network cards that encrypt are not measured.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct TlsArgs {
    /// Size of the file in MB; the kernel never encrypts files below 1 MB
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=SIZE_MB_MAX))]
    size_mb: u32,
    /// Number of downloads each way
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=DOWNLOADS_MAX))]
    downloads: u32,
    /// Print one line of JSON
    #[arg(long)]
    json: bool,
}

/// The largest file in MB: it must fit into the page cache.
const SIZE_MB_MAX: i64 = 65_536;
/// Each download is a sample in memory.
const DOWNLOADS_MAX: i64 = 1_000_000;
/// kTLS is suggested if it saves this factor of processor time.
const WORTH_IT: f64 = 1.05;
/// A server that is silent for this long has failed.
const SILENCE_MAX: Duration = Duration::from_secs(60);

/// The result of one way of encrypting.
#[derive(Clone, Copy, Debug)]
struct Measured {
    bytes_per_cpu_second: f64,
    bytes_per_second: f64,
}

/// Compares them, and prints what is better.
///
/// # Errors
/// The server cannot be started, or the file cannot be written.
pub fn compare(args: &TlsArgs) -> Result<()> {
    let bytes = u64::from(args.size_mb) * 1_000_000;
    let file = noise(bytes).context(|| format!("cannot write a file of {} MB to TMPDIR", args.size_mb))?;
    let file = Arc::new(file);
    let kernel = probe();
    let pair = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()])
        .context(|| "cannot create a certificate".to_owned())?;
    let ways: &[bool] = if kernel.is_ok() { &[false, true] } else { &[false] };
    let mut runs = Vec::new();
    for &ktls in ways {
        let pem = PemPair { cert: pair.cert.pem(), key: pair.signing_key.serialize_pem().into() };
        let (server, address) = serve(file.clone(), bytes, pem, ktls)?;
        runs.push((server, address, Vec::new()));
    }
    let client = client(pair.cert.der()).context(|| "cannot use TLS".to_owned())?;
    let mut suite = None;
    // Alternating, so that other load affects both; the first of each only warms up.
    for turn in 0..=args.downloads {
        for (_, address, samples) in &mut runs {
            let download =
                download(*address, &client, bytes).context(|| "cannot download from ourselves".to_owned())?;
            suite = suite.or(download.suite);
            if turn > 0 {
                samples.push((download.server_cpu, download.wall));
            }
        }
    }
    for (server, ..) in &runs {
        server.shutdown(Duration::from_secs(1));
    }
    let mut measured = runs.iter().map(|(.., samples)| Measured::of(bytes, samples));
    let (user, by_kernel) = (measured.next(), measured.next());
    let ratio = by_kernel.zip(user).map(|(kernel, user)| kernel.bytes_per_cpu_second / user.bytes_per_cpu_second);
    let suggestion = if ratio.is_some_and(|ratio| ratio >= WORTH_IT) { "auto" } else { "off" };
    let suite = suite.map(|suite| format!("{suite:?}")).unwrap_or_default();
    if args.json {
        let figures = |measured: Option<Measured>| {
            measured.map(
                |m| json!({"bytes_per_cpu_second": m.bytes_per_cpu_second, "bytes_per_second": m.bytes_per_second}),
            )
        };
        let reason = kernel.err().map(|error| error.to_string());
        println!(
            "{}",
            json!({"file_bytes": bytes, "downloads": args.downloads, "suite": suite, "user": figures(user),
                "kernel": figures(by_kernel), "kernel_error": reason, "kernel_to_user": ratio, "suggestion": suggestion})
        );
        return Ok(());
    }
    println!("a file of {} MB, {} downloads each way, {suite}", args.size_mb, args.downloads);
    let line = |name: &str, m: Measured| {
        let per_gb = 1e12 / m.bytes_per_cpu_second;
        let gb = m.bytes_per_cpu_second / 1e9;
        println!("  {name:<12} {gb:>6.2} GB per second of processor time, {per_gb:>6.0} ms for each GB");
    };
    if let Some(user) = user {
        line("user space", user);
    }
    match (by_kernel, ratio, kernel) {
        (Some(by_kernel), Some(ratio), _) => {
            line("kernel", by_kernel);
            println!("the kernel sends {ratio:.2} times as much with the same processor time: use --ktls {suggestion}");
        }
        (.., Err(error)) => println!(
            "  kernel       none: this kernel has no TLS ({error}); where it is a module, 'modprobe tls' loads it\n\
             there is nothing to choose: --ktls off"
        ),
        _ => {}
    }
    Ok(())
}

impl Measured {
    fn of(bytes: u64, samples: &[(Duration, Duration)]) -> Self {
        let rate = |of: fn(&(Duration, Duration)) -> Duration| {
            let mut times: Vec<_> = samples.iter().map(of).collect();
            times.sort();
            let middle = times.get(times.len() / 2).copied().unwrap_or_default();
            bytes as f64 / middle.as_secs_f64().max(1e-9)
        };
        Self { bytes_per_cpu_second: rate(|(cpu, _)| *cpu), bytes_per_second: rate(|(_, wall)| *wall) }
    }
}

/// An unnamed file of incompressible bytes (xorshift64), in the page cache.
fn noise(bytes: u64) -> io::Result<File> {
    let mut file = tempfile::tempfile()?;
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut block = Vec::with_capacity(1 << 20);
    let mut left = usize::try_from(bytes).map_err(io::Error::other)?;
    while left > 0 {
        block.clear();
        while block.len() < (1 << 20) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            block.extend_from_slice(&state.to_le_bytes());
        }
        let now = left.min(block.len());
        file.write_all(block.get(..now).unwrap_or_default())?;
        left -= now;
    }
    Ok(file)
}

fn serve(file: Arc<File>, bytes: u64, pair: PemPair, ktls: bool) -> Result<(ServerHandle, SocketAddr)> {
    let tls = TlsAcceptor::new(TlsConfig { pairs: vec![pair], ktls, ..TlsConfig::default() });
    let tls = tls.context(|| "TLS".to_owned())?;
    let handler = move |_: Request| {
        let range = FileRange { file: file.clone(), offset: 0, length: bytes };
        Response::new(StatusCode::OK).body(Body::file(range))
    };
    let server = Server::builder(handler)
        .listen(Listen::Tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))))
        .tls(Arc::new(tls))
        .shards(1)
        .workers(1)
        .build()
        .context(|| "cannot listen".to_owned())?;
    let address = server.addresses().into_iter().find_map(|address| match address {
        ListenAddress::Tcp(address) => Some(address),
        ListenAddress::Unix(_) => None,
    });
    let address = address.ok_or_else(|| failure!("cannot listen on the loopback interface"))?;
    Ok((server.spawn().context(|| "cannot start".to_owned())?, address))
}

fn client(cert: &CertificateDer<'static>) -> std::result::Result<Arc<ClientConfig>, rustls::Error> {
    let mut roots = RootCertStore::empty();
    roots.add(cert.clone())?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    Ok(Arc::new(builder.with_root_certificates(roots).with_no_client_auth()))
}

struct Download {
    /// Of all threads of this process except the client's.
    server_cpu: Duration,
    wall: Duration,
    suite: Option<rustls::CipherSuite>,
}

/// One download, on a thread whose processor time is subtracted. Everything after the first record is discarded
/// undecrypted: decrypting it would only disturb the measurement.
fn download(address: SocketAddr, config: &Arc<ClientConfig>, bytes: u64) -> io::Result<Download> {
    let started = Instant::now();
    let all_before = cpu(ClockId::ProcessCPUTime);
    let client = thread::scope(|scope| {
        let thread = scope.spawn(|| fetch(address, config, bytes).map(|suite| (suite, cpu(ClockId::ThreadCPUTime))));
        thread.join().unwrap_or_else(|_| Err(io::Error::other("the client's thread ended")))
    });
    let (suite, client_cpu) = client?;
    let all = cpu(ClockId::ProcessCPUTime).saturating_sub(all_before);
    Ok(Download { server_cpu: all.saturating_sub(client_cpu), wall: started.elapsed(), suite })
}

fn cpu(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

fn fetch(address: SocketAddr, config: &Arc<ClientConfig>, bytes: u64) -> io::Result<Option<rustls::CipherSuite>> {
    let name = ServerName::try_from("localhost").map_err(io::Error::other)?;
    let mut tls = ClientConnection::new(config.clone(), name).map_err(io::Error::other)?;
    let mut socket = TcpStream::connect(address)?;
    socket.set_nodelay(true)?;
    socket.set_read_timeout(Some(SILENCE_MAX))?;
    while tls.is_handshaking() {
        tls.complete_io(&mut socket)?;
    }
    tls.writer().write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
    while tls.wants_write() {
        tls.write_tls(&mut socket)?;
    }
    let mut head = [0; 12];
    let mut received = 0;
    loop {
        received += tls.read_tls(&mut socket)?;
        let state = tls.process_new_packets().map_err(io::Error::other)?;
        if state.plaintext_bytes_to_read() >= head.len() {
            tls.reader().read_exact(&mut head)?;
            break;
        }
        if state.peer_has_closed() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    if !head.ends_with(b" 200") {
        return Err(io::Error::other(format!("answered {}", String::from_utf8_lossy(&head))));
    }
    let mut buffer = vec![0; 256 * 1024];
    loop {
        let (_, count) = rustix::net::recv(&socket, buffer.as_mut_slice(), RecvFlags::TRUNC)?;
        if count == 0 {
            break;
        }
        received += count;
    }
    if (received as u64) < bytes {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(tls.negotiated_cipher_suite().map(|suite| suite.suite()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_download_is_counted_for_the_server() {
        let pair = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        let pem = PemPair { cert: pair.cert.pem(), key: pair.signing_key.serialize_pem().into() };
        let bytes = 3_000_000;
        let (server, address) = serve(Arc::new(noise(bytes).unwrap()), bytes, pem, false).unwrap();
        let done = download(address, &client(pair.cert.der()).unwrap(), bytes).unwrap();
        assert!(done.server_cpu > Duration::ZERO && done.suite.is_some());
        assert!(download(address, &client(pair.cert.der()).unwrap(), bytes + 1_000_000).is_err(), "a short file");
        server.shutdown(Duration::from_secs(1));
    }

    #[test]
    fn the_middle_sample_counts() {
        let ms = Duration::from_millis;
        let measured = Measured::of(1000, &[(ms(10), ms(40)), (ms(30), ms(60)), (ms(20), ms(50))]);
        assert_eq!((measured.bytes_per_cpu_second, measured.bytes_per_second), (50_000.0, 20_000.0));
    }
}
