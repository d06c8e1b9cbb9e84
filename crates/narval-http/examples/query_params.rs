//! Query parameters.
//!
//! `cargo run -p narval-http --example query_params -- --port 8080`, then
//! `curl 'http://localhost:8080/search?q=two+words&tag=a&tag=b'`

#[path = "arguments/mod.rs"]
mod arguments;

use std::error::Error;

use narval_http::{Request, Router};

fn search(request: Request) -> String {
    let words = request.query_value("q").unwrap_or_default();
    let tags: Vec<_> = request.query_pairs().filter(|(name, _)| name == "tag").map(|(_, value)| value).collect();
    format!("searching for '{words}', tagged {tags:?}\n")
}

fn main() -> Result<(), Box<dyn Error>> {
    arguments::serve(Router::new().get("/search", search).build()?)
}
