//! Redirects: for now, for good, and after a form.
//!
//! `cargo run -p narval-http --example redirect -- --port 8080`, then
//! `curl -iL http://localhost:8080/old`

#[path = "arguments/mod.rs"]
mod arguments;

use std::error::Error;

use narval_http::{Request, Response, Router};

fn main() -> Result<(), Box<dyn Error>> {
    let app = Router::new()
        .get("/new", |_: Request| "here it is\n")
        .get("/old", |_: Request| Response::redirect_permanent("/new"))
        .get("/today", |_: Request| Response::redirect("/new?when=today"))
        .post("/order", |_: Request| Response::see_other("/new?thanks"))
        .build()?;
    arguments::serve(app)
}
