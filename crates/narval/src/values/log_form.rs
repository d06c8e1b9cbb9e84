//! The formats of an access log's lines.

use narval_http::LogFormat;

/// The format of a line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum LogForm {
    /// Apache's combined format
    #[default]
    Combined,
    /// The same, with the address from X-Real-IP or X-Forwarded-For. Only behind a proxy that sets them
    RealIp,
    /// Address, request, status, bytes and time, human-readable
    Verbose,
    /// One JSON object per line
    Json,
    /// The same as pairs, KEY=VALUE
    Logfmt,
}

impl From<LogForm> for LogFormat {
    fn from(form: LogForm) -> Self {
        match form {
            LogForm::Combined => Self::Combined,
            LogForm::RealIp => Self::RealIp,
            LogForm::Verbose => Self::Verbose,
            LogForm::Json => Self::Json,
            LogForm::Logfmt => Self::Logfmt,
        }
    }
}
