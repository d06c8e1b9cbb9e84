//! A handler that takes 10 ms, as one that asks a database would.
//!
//! `cargo run --release -p narval-http --example sleep -- --port 8080 [--workers 100] [--driver auto|epoll]`

use std::error::Error;
use std::net::Ipv4Addr;
use std::thread;
use std::time::Duration;

use narval_http::{Listen, Request, Response, Server, StatusCode};

fn main() -> Result<(), Box<dyn Error>> {
    let (mut port, mut driver, mut workers, mut sleep_ms) = (0, "auto".to_owned(), 100, 10);
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        let value = arguments.next().ok_or_else(|| format!("{name} needs a value"))?;
        match name.as_str() {
            "--port" => port = value.parse()?,
            "--driver" => driver = value,
            "--workers" => workers = value.parse()?,
            "--ms" => sleep_ms = value.parse()?,
            _ => return Err(format!("unknown option {name}").into()),
        }
    }
    let handler = move |_: Request| {
        if sleep_ms > 0 {
            thread::sleep(Duration::from_millis(sleep_ms));
        }
        Response::new(StatusCode::OK)
    };
    let listen = Listen::Tcp((Ipv4Addr::LOCALHOST, port).into());
    let server = Server::builder(handler).workers(workers).listen(listen).driver(driver.parse()?).build()?;
    for address in server.addresses() {
        println!("listening on {address}");
    }
    server.run()?;
    Ok(())
}
