//! Shared state, and middlewares: one hands the user on to the handlers.
//!
//! `cargo run -p narval-http --example shared_state -- --port 8080`, then
//! `curl -H 'Authorization: Bearer sesame' http://localhost:8080/count`

#[path = "arguments/mod.rs"]
mod arguments;

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use narval_http::{Compression, Cors, Next, Request, Response, Router, StatusCode};

#[derive(Default)]
struct State {
    visits: AtomicU64,
}

/// The authenticated user.
#[derive(Clone)]
struct User(String);

/// A middleware that lets users pass, and tells the handlers who it is.
fn sign_in(mut request: Request, next: Next<'_>) -> Response {
    if request.header("authorization") != Some("Bearer sesame") {
        return Response::text(StatusCode::UNAUTHORIZED, "who are you?\n").header("www-authenticate", "Bearer");
    }
    request.extensions_mut().insert(User("Ali".to_owned()));
    next.run(request)
}

fn count(state: &State, request: Request) -> Option<String> {
    let user = request.extension::<User>()?;
    let visits = state.visits.fetch_add(1, Ordering::Relaxed) + 1;
    Some(format!("{}, you are visitor {visits}\n", user.0))
}

/// A middleware that adds the time taken.
fn timed(request: Request, next: Next<'_>) -> Response {
    let started = Instant::now();
    let response = next.run(request);
    let milliseconds = format!("app;dur={:.3}", started.elapsed().as_secs_f64() * 1000.0);
    response.header("server-timing", milliseconds)
}

fn main() -> Result<(), Box<dyn Error>> {
    let app = Router::new()
        .with(Arc::new(State::default()))
        .layer(timed)
        .layer(Cors::any_origin())
        .layer(Compression::default())
        .layer(sign_in)
        .get("/count", count)
        .build()?;
    arguments::serve(app)
}
