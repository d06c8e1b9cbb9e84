//! Routes: methods, wildcards, a group under a prefix.
//!
//! `cargo run -p narval-http --example router -- --port 8080`, then
//! `curl http://localhost:8080/styles/site.css`

#[path = "arguments/mod.rs"]
mod arguments;

use std::error::Error;

use narval_http::{Body, HeaderValue, Request, Response, Router, StatusCode, header, route};

fn stylesheet(_: Request) -> Response {
    Response::new(StatusCode::OK)
        .header(header::CONTENT_TYPE, HeaderValue::from_static("text/css"))
        .body(Body::bytes("body { margin: 2em }\n"))
}

fn main() -> Result<(), Box<dyn Error>> {
    let api = Router::new()
        .get("/status", |_: Request| "all is well\n")
        .post("/jobs", |_: Request| StatusCode::ACCEPTED)
        .delete("/jobs/@id", |_: Request| StatusCode::NO_CONTENT);
    let app = Router::new()
        .get("/", |_: Request| "hello\n")
        .get(route!("/styles/*.css"), stylesheet)
        .get(route!("/files/**/readme.txt"), |request: Request| format!("what {} is about\n", request.path()))
        .nest("/api", api)
        .build()?;
    arguments::serve(app)
}
