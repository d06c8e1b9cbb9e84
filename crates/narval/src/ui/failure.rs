//! How a command fails: one line to the user and an exit code.

use std::fmt::{self, Display};
use std::io;
use std::process::ExitCode;

use crate::ui::output::note;

/// Why a command ended without doing what was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// What was asked can't be: an option, a value, a file named on the command line. Exit code 2.
    Usage(String),
    /// It was tried and did not work. Exit code 1.
    Runtime(String),
    /// It did not work, and the exit code says why: `narval install` has a table of them.
    Coded(u8, String),
}

impl Failure {
    /// A failure of what was asked.
    pub fn usage(message: impl Display) -> Self {
        Self::Usage(message.to_string())
    }

    /// A failure while doing it.
    pub fn runtime(message: impl Display) -> Self {
        Self::Runtime(message.to_string())
    }

    /// A file named on the command line can't be used: the name was wrong, unless there is no room for it or the disk fails.
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

    /// Prints `program: message` to standard error, for each line of the message, and gives the exit code.
    pub fn report(&self, program: &str) -> ExitCode {
        let code = match self {
            Self::Usage(_) => 2,
            Self::Runtime(_) => 1,
            Self::Coded(code, _) => *code,
        };
        for line in self.to_string().lines() {
            note!("{program}: {line}");
        }
        ExitCode::from(code)
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
