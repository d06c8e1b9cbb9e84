//! A form with files of any size: at most 64 KiB of it are in memory.
//!
//! `cargo run -p narval-http --example multipart -- --port 8080`, then
//! `curl -F note=hi -F file=@/etc/services http://localhost:8080/upload`

#[path = "arguments/mod.rs"]
mod arguments;

use std::error::Error;
use std::io::{self, copy, sink};

use narval_http::{Limits, Request, Router};

fn upload(mut request: Request) -> io::Result<String> {
    let mut form = request.multipart()?;
    let mut answer = String::new();
    while let Some(mut part) = form.next_part()? {
        let (name, filename) = (part.head().name.clone(), part.head().filename.clone());
        // A real handler would write the data to a file, under a name that it chooses itself.
        let bytes = copy(&mut part, &mut sink())?;
        answer += &format!("{name} ({}): {bytes} bytes\n", filename.as_deref().unwrap_or("no file"));
    }
    Ok(answer)
}

fn main() -> Result<(), Box<dyn Error>> {
    let limits = Limits { body_max: 16 << 30, ..Limits::default() };
    println!("forms of up to {} bytes are accepted", limits.body_max);
    let app = Router::new().post("/upload", upload).build()?;
    arguments::Arguments::read(&[])?.serve(app, |builder| builder.limits(limits))
}
