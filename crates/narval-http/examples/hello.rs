//! 600 bytes, answered inline at `/` and by a worker everywhere else.
//!
//! `cargo run --release -p narval-http --example hello -- --port 8080 [--driver auto|epoll] [--workers N] [--shards N]
//! [--inherited yes]`

use std::error::Error;
use std::net::Ipv4Addr;

use narval_http::{
    Bytes, Handler, HeadRef, HeaderValue, Listen, Prepared, Request, Response, Server, StatusCode, header,
};

struct Hello {
    answer: &'static Prepared,
}

impl Handler for Hello {
    fn inline(&self, head: &HeadRef<'_>) -> Option<Response> {
        (head.path() == "/").then(|| self.answer.into())
    }

    fn handle(&self, _request: Request) -> Response {
        self.answer.into()
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let (mut port, mut driver, mut workers, mut shards, mut inherited) = (0, "auto".to_owned(), None, None, false);
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        let value = arguments.next().ok_or_else(|| format!("{name} needs a value"))?;
        match name.as_str() {
            "--port" => port = value.parse()?,
            "--driver" => driver = value,
            "--workers" => workers = Some(value.parse()?),
            "--inherited" => inherited = value == "yes",
            "--shards" => shards = Some(value.parse()?),
            _ => return Err(format!("unknown option {name}").into()),
        }
    }
    let text = HeaderValue::from_static("text/plain");
    let answer = Prepared::new(StatusCode::OK, &[(header::CONTENT_TYPE, text)], Bytes::from("x".repeat(600)));
    let mut server = Server::builder(Hello { answer: Box::leak(Box::new(answer)) })
        .listen(if inherited { Listen::Inherited } else { Listen::Tcp((Ipv4Addr::LOCALHOST, port).into()) })
        .driver(driver.parse()?);
    if let Some(workers) = workers {
        server = server.workers(workers);
    }
    if let Some(shards) = shards {
        server = server.shards(shards);
    }
    let server = server.build()?;
    for address in server.addresses() {
        println!("listening on {address}");
    }
    server.run()?;
    Ok(())
}
