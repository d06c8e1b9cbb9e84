//! A server over TLS, and what it serves.

use std::io::{self, Read};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::time::Duration;

use narval_http::tls::{Identity, TlsAcceptor, TlsConfig};
use narval_http::{
    Body, BodySource, BodyWaker, Builder, DriverChoice, Fill, Handler, Limits, Request, Response, SegmentBuf,
    StatusCode,
};
use rustls::pki_types::CertificateDer;

use crate::harness::{PATIENCE, TestServer};

/// The certificate of all servers of this program.
pub(crate) struct Certificate {
    folder: tempfile::TempDir,
    pub(crate) der: CertificateDer<'static>,
}

impl Certificate {
    pub(crate) fn paths(&self) -> [std::path::PathBuf; 2] {
        ["cert.pem", "key.pem"].map(|name| self.folder.path().join(name))
    }
}

pub(crate) fn certificate() -> &'static Certificate {
    static CERTIFICATE: OnceLock<Certificate> = OnceLock::new();
    CERTIFICATE.get_or_init(|| {
        let made = rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
        let certificate = Certificate { folder: tempfile::tempdir().unwrap(), der: made.cert.der().clone() };
        let [cert, key] = certificate.paths();
        std::fs::write(cert, made.cert.pem()).unwrap();
        std::fs::write(key, made.signing_key.serialize_pem()).unwrap();
        certificate
    })
}

pub(crate) fn serve(driver: DriverChoice, limits: Limits, handler: impl Handler) -> TestServer {
    serve_with(driver, limits, handler, |builder| builder)
}

pub(crate) fn serve_with(
    driver: DriverChoice,
    limits: Limits,
    handler: impl Handler,
    set: impl FnOnce(Builder) -> Builder,
) -> TestServer {
    let [cert, key] = certificate().paths();
    let identities = vec![Identity { cert, key, ocsp: None }];
    let acceptor = TlsAcceptor::new(TlsConfig { identities, ..TlsConfig::default() }).unwrap();
    TestServer::with(driver, handler, limits, |builder| set(builder.tls(Arc::new(acceptor)).http2(true)))
}

/// The state of a server's handlers.
#[derive(Default)]
pub(crate) struct Site {
    gate: Mutex<bool>,
    opened: Condvar,
    /// Requests that reached the handler.
    pub(crate) requests: AtomicUsize,
    /// Running handlers, and their maximum.
    pub(crate) running: AtomicUsize,
    pub(crate) running_max: AtomicUsize,
}

impl Site {
    /// A server of this site.
    pub(crate) fn start(driver: DriverChoice, limits: Limits) -> (Arc<Self>, TestServer) {
        let site = Arc::new(Self::default());
        let handled = site.clone();
        (site, serve(driver, limits, move |request: Request| handled.handle(request)))
    }

    /// Lets the handlers of `/wait` and `/later` continue, including later ones.
    pub(crate) fn open_gate(&self) {
        *self.gate.lock().unwrap() = true;
        self.opened.notify_all();
    }

    fn wait_for_gate(&self) {
        let closed = self.gate.lock().unwrap();
        drop(self.opened.wait_timeout_while(closed, PATIENCE, |is_open| !*is_open).unwrap());
    }

    pub(crate) fn handled(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }

    fn handle(&self, request: Request) -> Response {
        self.requests.fetch_add(1, Ordering::SeqCst);
        let running = self.running.fetch_add(1, Ordering::SeqCst) + 1;
        self.running_max.fetch_max(running, Ordering::SeqCst);
        let response =
            self.answer(request).unwrap_or_else(|error| Response::text(StatusCode::BAD_REQUEST, error.to_string()));
        self.running.fetch_sub(1, Ordering::SeqCst);
        response
    }

    fn answer(&self, mut request: Request) -> io::Result<Response> {
        let body = match request.path() {
            "/" => Body::bytes("hello\n"),
            "/cookie" => Body::bytes(request.header("cookie").unwrap_or("none").to_owned()),
            "/large" => Body::source(Numbers { at: 0, end: LARGE }, Some(LARGE)),
            // does not end before the client ends it
            "/endless" => Body::source(Numbers { at: 0, end: u64::MAX }, None),
            // never has data, and is polled every 20 ms
            "/ticks" => Body::source(Ticks, None),
            "/wait" => {
                self.wait_for_gate();
                Body::bytes("waited\n")
            }
            // reads its body when it may
            "/later" => {
                self.wait_for_gate();
                Body::bytes(read(&mut request)?.len().to_string())
            }
            "/trailers" => {
                read(&mut request)?;
                let trailers = request.body().trailers();
                Body::bytes(trailers.keys().map(|name| name.as_str()).collect::<Vec<_>>().join(" "))
            }
            // does not need the body
            "/refuse" => return Ok(Response::text(StatusCode::METHOD_NOT_ALLOWED, "no\n")),
            "/length" => Body::bytes(read(&mut request)?.len().to_string()),
            "/echo" => Body::bytes(read(&mut request)?),
            _ => return Ok(Response::text(StatusCode::NOT_FOUND, "no\n")),
        };
        Ok(Response::new(StatusCode::OK).body(body))
    }
}

fn read(request: &mut Request) -> io::Result<Vec<u8>> {
    let mut body = Vec::new();
    request.body().read_to_end(&mut body)?;
    Ok(body)
}

/// Bytes of `/large`.
pub(crate) const LARGE: u64 = 3_000_000;

struct Ticks;

impl BodySource for Ticks {
    fn fill(&mut self, _: &mut SegmentBuf) -> io::Result<Fill> {
        Ok(Fill::Wait)
    }

    fn wait(&mut self, _: BodyWaker) -> Duration {
        Duration::from_millis(20)
    }

    fn never_blocks(&self) -> bool {
        true
    }
}

/// Octets that depend on their offset.
struct Numbers {
    at: u64,
    end: u64,
}

/// The octet of `/large` at this offset.
pub(crate) fn octet(at: u64) -> u8 {
    (at.wrapping_mul(2_654_435_761) >> 24) as u8
}

impl BodySource for Numbers {
    fn fill(&mut self, out: &mut SegmentBuf) -> io::Result<Fill> {
        let until = self.end.min(self.at + out.room() as u64);
        out.memory().extend((self.at..until).map(octet));
        self.at = until;
        Ok(if self.at == self.end { Fill::Done } else { Fill::More })
    }

    fn never_blocks(&self) -> bool {
        true
    }
}
