//! Custom responses for paths that are not found, methods that are not allowed, and errors.
//!
//! `cargo run -p narval-http --example error_pages -- --port 8080`, then
//! `curl -i http://localhost:8080/nowhere`

#[path = "arguments/mod.rs"]
mod arguments;

use std::error::Error;

use narval_http::{Body, HeadRef, Response, Router, StatusCode};

fn page(status: StatusCode, text: &str) -> Response {
    let body = format!("<!doctype html><title>{status}</title><h1>{status}</h1><p>{text}\n");
    Response::new(status).header("content-type", "text/html; charset=utf-8").body(Body::bytes(body))
}

/// The details go to the log; the client only learns that something went wrong.
fn went_wrong(head: &HeadRef<'_>, error: &(dyn Error + 'static)) -> Response {
    eprintln!("{} {}: {error}", head.method(), head.path());
    page(StatusCode::INTERNAL_SERVER_ERROR, "Something went wrong. The error has been logged.")
}

fn main() -> Result<(), Box<dyn Error>> {
    let app = Router::new()
        .get("/", || "hello\n")
        .get("/broken", || std::fs::read_to_string("/does/not/exist"))
        .get("/panics", || -> StatusCode { unreachable!("a handler's bug") })
        .not_found(|| page(StatusCode::NOT_FOUND, "There is nothing here."))
        .method_not_allowed(|| page(StatusCode::METHOD_NOT_ALLOWED, "This method is not allowed here."))
        .on_error(went_wrong)
        .build()?;
    arguments::serve(app)
}
