//! Echoes every WebSocket message; the server that `tools/autobahn` tests.
//!
//! `cargo run --release -p narval-http --example websocket_echo -- --port 9001 [--driver auto|epoll|uring]
//! [--context-takeover yes|no]`

#[path = "arguments/mod.rs"]
mod arguments;

use std::error::Error;

use narval_http::ws::{CloseCode, Options, Upgrade, UpgradeError, WebSocket, WsCompression, WsEvent, WsLimits};
use narval_http::{Request, Response};

/// The largest message of the Autobahn suite is 16 MiB.
const MESSAGE_BYTES_MAX: usize = 64 << 20;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments = arguments::Arguments::read(&["--context-takeover"])?;
    let context_takeover = arguments.get("--context-takeover") == Some("yes");
    // Compress even the smallest messages: the suite tests that. It does not test how well, and sends gigabytes.
    let compression = WsCompression { level: 1, bytes_min: 0, context_takeover };
    let options = Options {
        limits: WsLimits { message_bytes_max: MESSAGE_BYTES_MAX },
        send_hard_bytes: 2 * MESSAGE_BYTES_MAX,
        ..Options::default()
    };
    arguments.serve(move |request: Request| echo(&request, compression, options), |builder| builder)
}

fn echo(request: &Request, compression: WsCompression, options: Options) -> Result<Response, UpgradeError> {
    let upgrade = Upgrade::new(request)?.compress(compression)?.options(options);
    Ok(upgrade.accept(on_event))
}

fn on_event(socket: &WebSocket, event: WsEvent) {
    if let WsEvent::Message(message) = event
        && !socket.send(message).is_accepted()
    {
        socket.close(CloseCode::POLICY_VIOLATION, "too slow");
    }
}
