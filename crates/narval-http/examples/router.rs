//! Routes: methods, wildcards, a group under a prefix.
//!
//! `cargo run -p narval-http --example router -- --port 8080`, then
//! `curl http://localhost:8080/styles/site.css`

#[path = "arguments/mod.rs"]
mod arguments;

use std::error::Error;

use narval_http::{Body, Request, Response, Router, StatusCode, route};

fn stylesheet() -> Response {
    Response::new(StatusCode::OK).header("content-type", "text/css").body(Body::bytes("body { margin: 2em }\n"))
}

fn main() -> Result<(), Box<dyn Error>> {
    let api = Router::new()
        .get("/status", || "all is well\n")
        .post("/jobs", || StatusCode::ACCEPTED)
        .delete("/jobs/@id", || StatusCode::NO_CONTENT);
    let app = Router::new()
        .get("/", || "hello\n")
        .get(route!("/styles/*.css"), stylesheet)
        .get(route!("/files/**/readme.txt"), |request: Request| format!("what {} is about\n", request.path()))
        .nest("/api", api)
        .build()?;
    arguments::serve(app)
}
