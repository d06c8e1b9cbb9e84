//! A handler that takes 10 ms, as one that asks a database would.
//!
//! `cargo run --release -p narval-bench --example sleep -- --port 8080 --workers 100 [--ms 10] [--driver auto|epoll]`

#[path = "../../crates/narval-http/examples/arguments/mod.rs"]
mod arguments;

use std::error::Error;
use std::thread;
use std::time::Duration;

use narval_http::StatusCode;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments = arguments::Arguments::read(&["--ms"])?;
    let sleep_ms = arguments.get("--ms").map_or(Ok(10), str::parse)?;
    let handler = move || {
        if sleep_ms > 0 {
            thread::sleep(Duration::from_millis(sleep_ms));
        }
        StatusCode::OK
    };
    arguments.serve(handler, |builder| builder)
}
