//! 600 bytes, answered inline at `/` and by a worker everywhere else.
//!
//! `cargo run --release -p narval-bench --example small_answer -- --port 8080 [--driver auto|epoll] [--workers N] [--shards N]`

#[path = "../../crates/narval-http/examples/arguments/mod.rs"]
mod arguments;

use std::error::Error;

use narval_http::{Bytes, Handler, HeadRef, HeaderValue, Prepared, Request, Response, StatusCode, header};

struct SmallAnswer {
    answer: &'static Prepared,
}

impl Handler for SmallAnswer {
    fn inline(&self, head: &HeadRef<'_>) -> Option<Response> {
        (head.path() == "/").then(|| self.answer.into())
    }

    fn handle(&self, _request: Request) -> Response {
        self.answer.into()
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let text = HeaderValue::from_static("text/plain");
    let answer = Prepared::new(StatusCode::OK, &[(header::CONTENT_TYPE, text)], Bytes::from("x".repeat(600)));
    arguments::serve(SmallAnswer { answer: Box::leak(Box::new(answer)) })
}
