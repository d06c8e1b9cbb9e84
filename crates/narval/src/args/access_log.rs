//! The access log as the command line names it.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::Path;

use narval_http::{LogFormat, LogWriter};

use crate::Failure;

/// The format of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum LogForm {
    /// Apache's combined format
    Combined,
    /// The same, with the address from X-Real-IP or X-Forwarded-For. Only behind a proxy that sets them
    RealIp,
    /// Address, request, status, bytes and time, for people
    Verbose,
    /// One JSON object per line
    Json,
}

impl From<LogForm> for LogFormat {
    fn from(form: LogForm) -> Self {
        match form {
            LogForm::Combined => Self::Combined,
            LogForm::RealIp => Self::RealIp,
            LogForm::Verbose => Self::Verbose,
            LogForm::Json => Self::Json,
        }
    }
}

/// An access log that goes where an option says.
pub type BoxedLog = LogWriter<Box<dyn Write + Send>>;

/// Appends to the file that the option --access-log names; `-` is standard output.
///
/// # Errors
/// It can't be opened.
pub fn open(form: LogForm, path: &Path) -> Result<BoxedLog, Failure> {
    if path.as_os_str() == "-" {
        return Ok(to_stdout(form));
    }
    let opened = OpenOptions::new().append(true).create(true).open(path);
    let file = opened
        .map_err(|error| Failure::usage(format!("option --access-log: cannot write '{}': {error}", path.display())))?;
    Ok(LogWriter::new(form.into(), Box::new(file)))
}

/// Writes to standard output.
pub fn to_stdout(form: LogForm) -> BoxedLog {
    LogWriter::new(form.into(), Box::new(io::stdout()))
}
