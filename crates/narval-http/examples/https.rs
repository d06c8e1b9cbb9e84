//! HTTPS, with HTTP/2 if the client supports it: `GET /` returns the version of the request, `POST /` returns its body,
//! `PUT /count` the number of its bytes, `GET /bytes/N` returns N bytes.
//!
//! ```text
//! openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=localhost -addext subjectAltName=DNS:localhost \
//!   -keyout key.pem -out cert.pem
//! cargo run -p narval-http --example https -- --port 8443 --certificate cert.pem --key key.pem
//! curl --cacert cert.pem https://localhost:8443/
//! curl --cacert cert.pem --http1.1 https://localhost:8443/
//! ```

#[path = "arguments/mod.rs"]
mod arguments;

use std::error::Error;
use std::io::{self, Read};
use std::sync::Arc;

use narval_http::tls::{Identity, TlsAcceptor, TlsConfig};
use narval_http::{Body, BodySource, Fill, Limits, Request, Response, Router, SegmentBuf, StatusCode};

use arguments::Arguments;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments = Arguments::read(&["--certificate", "--key"])?;
    let (Some(cert), Some(key)) = (arguments.get("--certificate"), arguments.get("--key")) else {
        return Err("--certificate and --key are required: PEM files".into());
    };
    let identities = vec![Identity { cert: cert.into(), key: key.into(), ocsp: None }];
    let acceptor = Arc::new(TlsAcceptor::new(TlsConfig { identities, ..TlsConfig::default() })?);
    let app = Router::new().get("/", greet).post("/", echo).put("/count", count).get("/bytes/@count", bytes).build()?;
    let limits = Limits { body_max: 1 << 40, ..Limits::default() };
    arguments.serve(app, |builder| builder.tls(acceptor).http2(true).limits(limits))
}

fn greet(request: Request) -> String {
    format!("Hello over {:?}!\n", request.version())
}

fn echo(mut request: Request) -> io::Result<Response> {
    let mut body = Vec::new();
    request.body().read_to_end(&mut body)?;
    Ok(Response::new(StatusCode::OK).body(Body::bytes(body)))
}

fn count(mut request: Request) -> io::Result<String> {
    Ok(io::copy(request.body(), &mut io::sink())?.to_string())
}

fn bytes(request: Request) -> Response {
    match request.params().get("count").and_then(|count| count.parse().ok()) {
        Some(count) => Response::new(StatusCode::OK).body(Body::source(Zeros(count), Some(count))),
        None => Response::text(StatusCode::BAD_REQUEST, "not a number\n"),
    }
}

/// Produces zeros, piece by piece, as fast as the client reads them.
struct Zeros(u64);

impl BodySource for Zeros {
    fn fill(&mut self, out: &mut SegmentBuf) -> io::Result<Fill> {
        let piece = self.0.min(out.room() as u64);
        self.0 -= piece;
        let length = out.memory().len() + usize::try_from(piece).unwrap_or_default();
        out.memory().resize(length, 0);
        Ok(if self.0 == 0 { Fill::Done } else { Fill::More })
    }

    fn never_blocks(&self) -> bool {
        true
    }
}
