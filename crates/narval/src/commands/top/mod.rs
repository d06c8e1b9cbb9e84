//! `narval top`: the live figures of a server, in a terminal.

mod metrics;
#[cfg(feature = "top")]
mod screen;
mod source;
mod text;
mod upstreams;

#[cfg(feature = "top")]
use std::io::{IsTerminal, stdin, stdout};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};

use narval_client::{RetryPolicy, Scheme};

use self::source::{EVERY, Reading, read_every_second};
use crate::args::client::{RequestArgs, parse_cache};
use crate::ui::failure::Failure;
use crate::ui::json;
use crate::ui::output::{self, note, out};
use crate::ui::signals::Interrupt;

/// Show a server's live figures
///
/// Reads /metrics once a second: requests, bytes, waiting and failing ones, hit rates, and how long requests take. Fills a
/// terminal (q quits); otherwise prints one line per second. A private cache needs a token in the netrc file.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  narval top http://localhost:5000\n  narval top --once --json https://cache.example.org"
)]
pub struct Args {
    /// Server: an http:// or https:// URL
    #[arg(value_name = "URL")]
    server: String,
    /// Print the figures of one second, and exit
    #[arg(long)]
    once: bool,
    /// Print lines even to a terminal
    #[arg(long)]
    plain: bool,
    /// Print one JSON object per second
    #[arg(long, help_heading = "Output")]
    json: bool,
    #[command(flatten)]
    requests: RequestArgs,
}

/// Runs `narval top`.
///
/// # Errors
/// The server cannot be read at the start. Later it is tried again, every second.
pub fn run(args: &Args) -> Result<(), Failure> {
    let url = parse_cache(&args.server)?;
    if !matches!(url.scheme(), Scheme::Http | Scheme::Https) {
        return Err(Failure::usage(format!("'{}': must be an http:// or https:// URL", args.server)));
    }
    let mut options = args.requests.options(std::slice::from_ref(&url))?;
    options.retry = RetryPolicy { attempts: 1, ..options.retry };
    let client = Arc::new(narval_s3::client(options));
    let metrics = url.child("metrics").map_err(Failure::usage)?;
    let interrupt = Interrupt::on_signal();
    let readings = read_every_second(client, metrics)
        .map_err(|error| Failure::runtime(format!("cannot start a thread: {error}")))?;
    // If the first reading fails, the address is probably wrong.
    if let Ok(Reading::Failed(trouble)) = readings.recv() {
        return Err(Failure::runtime(trouble));
    }
    #[cfg(feature = "top")]
    if !(args.once || args.plain || args.json) && stdin().is_terminal() && stdout().is_terminal() {
        return screen::run(&url.to_string(), &readings, &interrupt);
    }
    print(args, &readings, &interrupt)
}

/// Prints a line for each reading.
fn print(args: &Args, readings: &Receiver<Reading>, interrupt: &Interrupt) -> Result<(), Failure> {
    let mut reported = String::new();
    while interrupt.check().is_ok() && !output::has_failed() {
        match readings.recv_timeout(EVERY) {
            Ok(Reading::Stats(stats)) => {
                reported.clear();
                if args.json && args.once {
                    json::summary(stats.json());
                } else if args.json {
                    json::event("figures", stats.json());
                } else {
                    out!("{}", text::line(&stats));
                }
                if args.once {
                    return Ok(());
                }
            }
            Ok(Reading::First) => reported.clear(),
            Ok(Reading::Failed(trouble)) if args.once => return Err(Failure::runtime(trouble)),
            // One message per outage.
            Ok(Reading::Failed(trouble)) if trouble != reported => {
                note!("narval: {trouble}; trying again every second");
                reported = trouble;
            }
            Ok(Reading::Failed(_)) | Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                return Err(Failure::runtime("the thread that reads the server has ended"));
            }
        }
    }
    Ok(())
}
