//! Failures of commands: a one-line message and an exit code.

use std::fmt::{self, Display};
use std::io;
use std::process::ExitCode;

use tracing::Level;

use crate::ui::journal::priority;
use crate::ui::output::note;

/// Why a command failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// Wrong usage: an option, a value, a file named on the command line. Exit code 2.
    Usage(String),
    /// The operation failed. Exit code 1.
    Runtime(String),
    /// The operation failed, and the exit code says why: see the table of `narval install`.
    Coded(u8, String),
}

impl Failure {
    /// Wrong usage.
    pub fn usage(message: impl Display) -> Self {
        Self::Usage(message.to_string())
    }

    /// A failed operation.
    pub fn runtime(message: impl Display) -> Self {
        Self::Runtime(message.to_string())
    }

    /// A file named on the command line cannot be used: wrong usage, unless the disk is full or failing.
    pub fn of_file(what: &str, error: &io::Error) -> Self {
        use io::ErrorKind::{
            AlreadyExists, InvalidFilename, InvalidInput, IsADirectory, NotADirectory, NotFound, PermissionDenied,
            ReadOnlyFilesystem,
        };
        let message = format!("{what}: {error}");
        match error.kind() {
            AlreadyExists | InvalidFilename | InvalidInput | IsADirectory | NotADirectory | NotFound
            | PermissionDenied | ReadOnlyFilesystem => Self::Usage(message),
            _ => Self::Runtime(message),
        }
    }

    /// The exit code.
    pub const fn code(&self) -> u8 {
        match self {
            Self::Usage(_) => 2,
            Self::Runtime(_) => 1,
            Self::Coded(code, _) => *code,
        }
    }

    /// Prints `program: message` to standard error, for each line of the message, with its priority for the journal, and returns the exit code.
    pub fn report(&self, program: &str) -> ExitCode {
        let priority = priority(Level::ERROR);
        for line in self.to_string().lines() {
            note!("{priority}{program}: {line}");
        }
        ExitCode::from(self.code())
    }
}

impl Display for Failure {
    /// The message.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usage(message) | Self::Runtime(message) | Self::Coded(_, message) => f.write_str(message),
        }
    }
}
