//! Custom responses for everything that goes wrong: pages for people, and problems (RFC 9457) for programs.
//!
//! `cargo run -p narval-http --example error_pages -- --port 8080`, then
//! `curl -i http://localhost:8080/nowhere` and `curl -i http://localhost:8080/api/nowhere`

#[path = "arguments/mod.rs"]
mod arguments;

use std::error::Error;

use narval_http::{Failure, Problems, Reject, Request, Response, Router, StatusCode};

/// The details go to the log; the client only learns what it may know.
fn page(failure: &Failure<'_>) -> Response {
    let status = failure.status();
    if status.is_server_error() {
        eprintln!("{:?}: {}", failure.head().map(|head| head.target()), failure.error());
    }
    let reason = failure.reason();
    Response::html(status, format!("<!doctype html><title>{status}</title><h1>{status}</h1><p>{reason}\n"))
}

fn square(request: Request) -> Result<String, Reject> {
    let number: u32 = request.params().parse("number")?;
    let square = number.checked_mul(number).ok_or(Reject::new(StatusCode::BAD_REQUEST, "the square is too large"))?;
    Ok(format!("{square}\n"))
}

fn main() -> Result<(), Box<dyn Error>> {
    let api = Router::new().get("/squares/@number", square).errors(Problems::json());
    let app = Router::new()
        .get("/", || "hello\n")
        .get("/broken", || std::fs::read_to_string("/does/not/exist"))
        .get("/panics", || -> StatusCode { unreachable!("a handler's bug") })
        .nest("/api", api)
        .errors(page)
        .build()?;
    arguments::serve(app)
}
