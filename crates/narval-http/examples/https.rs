//! HTTPS, with HTTP/2 where the client speaks it: `GET /` says which version it came by, `POST /` sends the body back.
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
use narval_http::{Body, Request, Response, Router, StatusCode};

use arguments::Arguments;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments = Arguments::read(&["--certificate", "--key"])?;
    let (Some(cert), Some(key)) = (arguments.get("--certificate"), arguments.get("--key")) else {
        return Err("--certificate and --key are needed: PEM files".into());
    };
    let identities = vec![Identity { cert: cert.into(), key: key.into(), ocsp: None }];
    let acceptor = Arc::new(TlsAcceptor::new(TlsConfig { identities, ..TlsConfig::default() })?);
    let app = Router::new().get("/", greet).post("/", echo).build()?;
    arguments.serve(app, |builder| builder.tls(acceptor))
}

fn greet(request: Request) -> String {
    format!("Hello over {:?}!\n", request.version())
}

fn echo(mut request: Request) -> io::Result<Response> {
    let mut body = Vec::new();
    request.body().read_to_end(&mut body)?;
    Ok(Response::new(StatusCode::OK).body(Body::bytes(body)))
}
