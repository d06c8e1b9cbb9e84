//! Printing to standard output and standard error that survives failures of both.
//!
//! `println!` panics if the reader is gone (`narval ls … | head`) or the disk is full. Here the command continues, and
//! [`finish`](super::finish::finish) reports the loss at the end.

use std::fmt;
use std::io::{self, Write};
use std::sync::OnceLock;

/// The first failure of standard output.
pub(super) static FAILED: OnceLock<io::Error> = OnceLock::new();

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
