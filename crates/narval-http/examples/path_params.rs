//! Path parameters.
//!
//! `cargo run -p narval-http --example path_params -- --port 8080`, then
//! `curl http://localhost:8080/people/ada/letters/7`

#[path = "arguments/mod.rs"]
mod arguments;

use std::error::Error;

use narval_http::{Request, Response, Router, StatusCode, route};

fn letter(request: Request) -> Response {
    let parameter = |name| request.params().get(name).unwrap_or_default();
    match parameter("number").parse::<u32>() {
        Ok(number) => Response::text(StatusCode::OK, format!("letter {number} of {}\n", parameter("name"))),
        Err(_) => Response::text(StatusCode::NOT_FOUND, "the letter must be a number\n"),
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    arguments::serve(Router::new().get(route!("/people/@name/letters/@number"), letter).build()?)
}
