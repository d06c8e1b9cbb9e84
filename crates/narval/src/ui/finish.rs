//! The end of a command: its exit code, and whether all of its output was written.

use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;

use super::output::FAILED;
use crate::ui::failure::Failure;

/// The exit code of a command that has succeeded, except perhaps for its output. A reader that has closed the pipe is
/// not a failure.
pub(crate) fn finish(program: &str) -> ExitCode {
    let flushed = io::stdout().lock().flush();
    FAILED.get().or(flushed.as_ref().err()).map_or(ExitCode::SUCCESS, |error| unwritten(program, error))
}

/// The exit code of a command whose output could not be written.
pub(crate) fn unwritten(program: &str, error: &io::Error) -> ExitCode {
    if error.kind() == ErrorKind::BrokenPipe {
        return ExitCode::SUCCESS;
    }
    Failure::runtime(format!("cannot write to standard output: {error}")).report(program)
}
