//! Sends every WebSocket message back: what the Autobahn suite drives, see `tools/autobahn`.
//!
//! `cargo run --release -p narval-http --example websocket_echo -- --port 9001 [--driver auto|epoll|uring]
//! [--context-takeover yes|no]`

use std::error::Error;
use std::net::Ipv4Addr;
use std::sync::Arc;

use narval_http::ws::{Options, Upgrade, UpgradeError, WebSocket, WsCompression, WsEvent, WsLimits};
use narval_http::{Listen, Request, Response, Server};

/// The suite's largest message has 16 MiB.
const MESSAGE_BYTES_MAX: usize = 64 << 20;

fn main() -> Result<(), Box<dyn Error>> {
    let (mut port, mut driver, mut context_takeover) = (0, "auto".to_owned(), false);
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        let value = arguments.next().ok_or_else(|| format!("{name} needs a value"))?;
        match name.as_str() {
            "--port" => port = value.parse()?,
            "--driver" => driver = value,
            "--context-takeover" => context_takeover = value == "yes",
            _ => return Err(format!("unknown option {name}").into()),
        }
    }
    // Everything is compressed that may be: the suite is to see it.
    let compression = WsCompression { bytes_min: 0, context_takeover, ..WsCompression::default() };
    let options = Options {
        limits: WsLimits { message_bytes_max: MESSAGE_BYTES_MAX },
        send_hard_bytes: 2 * MESSAGE_BYTES_MAX,
        ..Options::default()
    };
    narval_http::give_back_large_blocks();
    let server = Server::builder(move |request: Request| echo(&request, compression, options))
        .listen(Listen::Tcp((Ipv4Addr::LOCALHOST, port).into()))
        .driver(driver.parse()?)
        .build()?;
    for address in server.addresses() {
        println!("listening on {address}");
    }
    server.run()?;
    Ok(())
}

fn echo(request: &Request, compression: WsCompression, options: Options) -> Result<Response, UpgradeError> {
    let upgrade = Upgrade::new(request)?.compress(compression)?.options(options);
    Ok(upgrade.accept(Arc::new(on_event)).0)
}

fn on_event(socket: &WebSocket, event: WsEvent) {
    if let WsEvent::Message(message) = event {
        socket.send(message);
    }
}
