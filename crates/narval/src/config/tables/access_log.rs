//! `[access-log]`.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use narval_http::{LogFormat, LogWriter};

use crate::config::field::table;
use crate::config::key::At;
use crate::config::kinds::{boolean, choice, path_unless};
use crate::ui::failure::Failure;

const FORMATS: [(&str, &str, LogFormat); 5] = [
    ("combined", "Apache's combined format", LogFormat::Combined),
    (
        "real-ip",
        "The same, with the address from X-Real-IP or X-Forwarded-For. Only behind a proxy that sets them",
        LogFormat::RealIp,
    ),
    ("verbose", "Address, request, status, bytes and time, human-readable", LogFormat::Verbose),
    ("json", "One JSON object per line", LogFormat::Json),
    ("logfmt", "The same as pairs, KEY=VALUE", LogFormat::Logfmt),
];

table! {
    /// The access log.
    AccessLog {
        /// Access log file; `-` is standard output
        file: Option<At<PathBuf>> = path_unless(|text| text == "-").option("access-log", "FILE").nix("logFile"),
        /// Format of the access log
        format: LogFormat = choice(&FORMATS).or("combined").option("access-log-format", "FORMAT").with(|arg| arg.alias("access-log-form")),
        /// Whether the X-Request-Id that a client sends is the id of its request. Only behind a proxy that sets it
        trust_request_ids: bool = boolean().or("false").restart().flag("trust-request-ids", "true", |arg| arg.help("Use the X-Request-Id that a client sends as the id of its request. Only behind a proxy that sets it")),
    }
}

/// An access log with a destination chosen by a setting.
pub type BoxedLog = LogWriter<Box<dyn Write + Send>>;

impl AccessLog {
    /// Opens the log, if there is one.
    ///
    /// # Errors
    /// As [`open`].
    pub fn open(&self) -> Result<Option<BoxedLog>, Failure> {
        self.file.as_ref().map(|file| open(self.format, &file.value)).transpose()
    }
}

/// Appends to a file; `-` is standard output.
///
/// # Errors
/// It cannot be opened.
pub fn open(format: LogFormat, path: &Path) -> Result<BoxedLog, Failure> {
    if path.as_os_str() == "-" {
        return Ok(LogWriter::new(format, Box::new(io::stdout())));
    }
    let opened = OpenOptions::new().append(true).create(true).open(path);
    let file =
        opened.map_err(|error| Failure::usage(format!("access log: cannot write '{}': {error}", path.display())))?;
    Ok(LogWriter::new(format, Box::new(file)))
}
