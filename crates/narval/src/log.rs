//! The log of errors and notes: standard error, or a file.

use std::fs::OpenOptions;
use std::path::Path;

use tracing_subscriber::EnvFilter;

use crate::Failure;

/// Starts the log. `NARVAL_LOG` sets what it shows (`error`, `warn`, `info`, `debug`; `info` without).
///
/// # Errors
/// The file can't be opened.
pub fn start(file: Option<&Path>) -> Result<(), Failure> {
    let filter = EnvFilter::try_from_env("NARVAL_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_target(false);
    match file {
        Some(path) => {
            let file = OpenOptions::new().append(true).create(true).open(path).map_err(|error| {
                Failure::usage(format!("option --error-log: cannot write '{}': {error}", path.display()))
            })?;
            builder.with_ansi(false).with_writer(file).init();
        }
        // The journal writes times of its own.
        None if std::env::var_os("JOURNAL_STREAM").is_some() => {
            builder.with_ansi(false).without_time().with_writer(std::io::stderr).init();
        }
        None => {
            let ansi = std::io::IsTerminal::is_terminal(&std::io::stderr());
            builder.with_ansi(ansi).with_writer(std::io::stderr).init();
        }
    }
    Ok(())
}
