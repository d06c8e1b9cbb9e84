//! Shared state, extra arguments for handlers, and a middleware around all of them.
//!
//! `cargo run -p narval-http --example shared_state -- --port 8080`, then
//! `curl -H 'Authorization: Bearer sesame' http://localhost:8080/count`

#[path = "arguments/mod.rs"]
mod arguments;

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use narval_http::{Compression, Cors, Handler, Next, Request, Response, Router, StatusCode};

#[derive(Default)]
struct State {
    visits: AtomicU64,
}

/// The authenticated user.
struct User(String);

/// Makes a handler of a function that takes the state, the user and the request.
fn for_users<F>(state: &Arc<State>, handler: F) -> impl Handler + use<F>
where
    F: Fn(&State, User, Request) -> Response + Send + Sync + 'static,
{
    let state = state.clone();
    move |request: Request| match request.header("authorization") {
        Some("Bearer sesame") => handler(&state, User("Ali".to_owned()), request),
        _ => Response::text(StatusCode::UNAUTHORIZED, "who are you?\n").header("www-authenticate", "Bearer"),
    }
}

fn count(state: &State, user: User, _: Request) -> Response {
    let visits = state.visits.fetch_add(1, Ordering::Relaxed) + 1;
    Response::text(StatusCode::OK, format!("{}, you are visitor {visits}\n", user.0))
}

/// A middleware that adds the time taken.
fn timed(request: Request, next: Next<'_>) -> Response {
    let started = Instant::now();
    let response = next.run(request);
    let milliseconds = format!("app;dur={:.3}", started.elapsed().as_secs_f64() * 1000.0);
    response.header("server-timing", milliseconds)
}

fn main() -> Result<(), Box<dyn Error>> {
    let state = Arc::new(State::default());
    let app = Router::new()
        .layer(timed)
        .layer(Cors::any_origin())
        .layer(Compression::default())
        .get("/count", for_users(&state, count))
        .build()?;
    arguments::serve(app)
}
