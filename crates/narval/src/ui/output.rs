//! Printing to standard output and standard error that survives failures of both.
//!
//! `println!` panics if the reader is gone (`narval ls … | head`) or the disk is full. Here the command continues, and
//! [`finish`] reports the loss at the end.

use std::fmt;
use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;
use std::sync::OnceLock;

use crate::Failure;

/// The first failure of standard output.
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

/// A number of paths, in words: `1 path`, `2 paths`.
pub(crate) fn paths<N: fmt::Display + From<u8> + PartialEq>(count: N) -> String {
    counted(count, "path")
}

/// A number of things, in words.
pub(crate) fn counted<N: fmt::Display + From<u8> + PartialEq>(count: N, thing: &str) -> String {
    if count == N::from(1) { format!("1 {thing}") } else { format!("{count} {thing}s") }
}

/// Prints a line to standard output.
pub(crate) fn to_stdout(line: fmt::Arguments<'_>) {
    if FAILED.get().is_none()
        && let Err(error) = writeln!(io::stdout().lock(), "{line}")
    {
        // Only the first failure is kept.
        let _ = FAILED.set(error);
    }
}

/// Whether standard output can no longer be written: for commands that would go on for nobody.
pub(crate) fn has_failed() -> bool {
    FAILED.get().is_some()
}

/// Prints to standard error; a failure of that cannot be reported.
pub(crate) fn to_stderr(text: fmt::Arguments<'_>) {
    let _ = io::stderr().lock().write_fmt(text);
}

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
