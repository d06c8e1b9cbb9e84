//! Redirects: temporary, permanent, and after a form.
//!
//! `cargo run -p narval-http --example redirect -- --port 8080`, then
//! `curl -iL http://localhost:8080/old`

#[path = "arguments/mod.rs"]
mod arguments;

use std::error::Error;

use narval_http::{Response, Router};

fn main() -> Result<(), Box<dyn Error>> {
    let app = Router::new()
        .get("/new", || "here it is\n")
        .get("/old", || Response::redirect_permanent("/new"))
        .get("/today", || Response::redirect("/new?when=today"))
        .post("/order", || Response::see_other("/new?thanks"))
        .build()?;
    arguments::serve(app)
}
