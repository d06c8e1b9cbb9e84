//! Request headers: what the client says about itself.
//!
//! `cargo run -p narval-http --example client_headers -- --port 8080`, then
//! `curl http://localhost:8080/`

#[path = "arguments/mod.rs"]
mod arguments;

use std::error::Error;

use narval_http::{Request, Router};

fn show(request: Request) -> String {
    let head = request.head();
    let mut text = format!("{:?} asks {:?} for {}\n", head.peer(), head.host().unwrap_or_default(), head.target());
    for (name, value) in head.headers() {
        text += &format!("{name}: {}\n", String::from_utf8_lossy(value));
    }
    text
}

fn main() -> Result<(), Box<dyn Error>> {
    arguments::serve(Router::new().get("/**", show).build()?)
}
