//! Two log files: a line per request, and the program's own messages.
//!
//! `cargo run -p narval-http --example file_logging -- --port 8080 [--access access.log] [--format combined|json] [--log program.log]`,
//! then `curl http://localhost:8080/divide/7/0; cat access.log program.log`

#[path = "arguments/mod.rs"]
mod arguments;

use std::error::Error;
use std::fs::{File, OpenOptions};
use std::io;
use std::sync::Mutex;

use narval_http::{LogFormat, LogWriter, Request, Response, Router, StatusCode};

fn divide(request: Request) -> Response {
    let number = |name| request.params().get(name).and_then(|digits| digits.parse::<i64>().ok());
    let (Some(dividend), Some(divisor)) = (number("dividend"), number("divisor")) else {
        return Response::text(StatusCode::BAD_REQUEST, "two numbers are required\n");
    };
    match dividend.checked_div(divisor) {
        Some(quotient) => Response::text(StatusCode::OK, format!("{quotient}\n")),
        None => {
            tracing::warn!(dividend, divisor, "division by zero");
            Response::text(StatusCode::UNPROCESSABLE_ENTITY, "division by zero\n")
        }
    }
}

fn append(path: &str) -> io::Result<File> {
    let opened = OpenOptions::new().append(true).create(true).open(path);
    opened.map_err(|error| io::Error::new(error.kind(), format!("cannot write '{path}': {error}")))
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments = arguments::Arguments::read(&["--access", "--format", "--log"])?;
    // Written immediately, line by line: the last lines before a crash matter most.
    let log = append(arguments.get("--log").unwrap_or("program.log"))?;
    tracing_subscriber::fmt().with_ansi(false).with_writer(Mutex::new(log)).init();
    let format = match arguments.get("--format") {
        None | Some("combined") => LogFormat::Combined,
        Some("json") => LogFormat::Json,
        Some(other) => return Err(format!("unknown format {other}: one of combined, json").into()),
    };
    // Written by its own thread, in batches: no request waits for the disk.
    let access = LogWriter::new(format, append(arguments.get("--access").unwrap_or("access.log"))?);
    let app = Router::new().get("/divide/@dividend/@divisor", divide).build()?;
    tracing::info!("starting");
    arguments.serve(app, |builder| builder.access_log(access))
}
