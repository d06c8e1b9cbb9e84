//! What the commands print, to standard output and to standard error, whatever becomes of those.
//!
//! `println!` panics where nobody reads any more (`narval ls … | head`) or the disk is full. Here the work goes on, and at the
//! end [`finish`] says what was lost.

use std::fmt;
use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;
use std::sync::OnceLock;

use crate::Failure;

/// Why standard output takes no more.
static FAILED: OnceLock<io::Error> = OnceLock::new();

/// Prints a line to standard output.
macro_rules! out {
    ($($line:tt)*) => { $crate::ui::output::to_stdout(format_args!($($line)*)) };
}

/// Prints a line to standard error.
macro_rules! note {
    ($($line:tt)*) => { $crate::ui::output::to_stderr(format_args!("{}\n", format_args!($($line)*))) };
}

pub(crate) use {note, out};

/// Prints a line to standard output.
pub(crate) fn to_stdout(line: fmt::Arguments<'_>) {
    if FAILED.get().is_none()
        && let Err(error) = writeln!(io::stdout().lock(), "{line}")
    {
        // Only the first reason counts.
        let _ = FAILED.set(error);
    }
}

/// Prints to standard error; where that takes nothing there is nobody left to tell.
pub(crate) fn to_stderr(text: fmt::Arguments<'_>) {
    let _ = io::stderr().lock().write_fmt(text);
}

/// The exit code of a command that has succeeded but for its output. A reader that wanted no more is no failure.
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
