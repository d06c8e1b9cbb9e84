//! Path parameters.
//!
//! `cargo run -p narval-http --example path_params -- --port 8080`, then
//! `curl http://localhost:8080/people/ada/letters/7`

#[path = "arguments/mod.rs"]
mod arguments;

use std::error::Error;

use narval_http::{Reject, Request, Router, route};

fn letter(request: Request) -> Result<String, Reject> {
    let number: u32 = request.params().parse("number")?;
    let name: String = request.params().parse("name")?;
    Ok(format!("letter {number} of {name}\n"))
}

fn main() -> Result<(), Box<dyn Error>> {
    arguments::serve(Router::new().get(route!("/people/@name/letters/@number"), letter).build()?)
}
