//! The access log options.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use narval_http::LogWriter;

use crate::Failure;
use crate::config::AccessLogSection;
use crate::values::log_form::LogForm;

/// Options for the access log
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Access log")]
pub struct AccessLogArgs {
    /// Access log file; `-` is standard output
    #[arg(long, value_name = "FILE")]
    access_log: Option<PathBuf>,
    /// Format of the access log [default: combined]
    #[arg(long = "access-log-format", alias = "access-log-form", value_name = "FORMAT")]
    access_log_form: Option<LogForm>,
    /// Use the X-Request-Id that a client sends as the id of its request. Only behind a proxy that sets it
    #[arg(long)]
    trust_request_ids: bool,
}

impl AccessLogArgs {
    /// Opens the log that the options select.
    ///
    /// # Errors
    /// As [`open`].
    pub fn open(&self) -> Result<Option<BoxedLog>, Failure> {
        let (form, path) = self.over(&AccessLogSection::default());
        path.map(|path| open(form, &path)).transpose()
    }

    /// Whether ids of requests that clients send are used.
    pub fn trusts_request_ids(&self, file: &AccessLogSection) -> bool {
        self.trust_request_ids || file.trust_request_ids == Some(true)
    }

    /// The format and the file, from the options or else from a configuration file.
    pub fn over(&self, file: &AccessLogSection) -> (LogForm, Option<PathBuf>) {
        let path = self.access_log.clone().or_else(|| Some(file.file.as_ref()?.value.clone()));
        (self.access_log_form.or(file.format).unwrap_or_default(), path)
    }
}

/// An access log with a destination chosen by an option.
pub type BoxedLog = LogWriter<Box<dyn Write + Send>>;

/// Appends to the file of --access-log; `-` is standard output.
///
/// # Errors
/// It cannot be opened.
pub fn open(form: LogForm, path: &Path) -> Result<BoxedLog, Failure> {
    if path.as_os_str() == "-" {
        return Ok(to_stdout(form));
    }
    let opened = OpenOptions::new().append(true).create(true).open(path);
    let file =
        opened.map_err(|error| Failure::usage(format!("access log: cannot write '{}': {error}", path.display())))?;
    Ok(LogWriter::new(form.into(), Box::new(file)))
}

/// Writes to standard output.
pub fn to_stdout(form: LogForm) -> BoxedLog {
    LogWriter::new(form.into(), Box::new(io::stdout()))
}
