//! Lines for the journal of systemd.

use std::io;

use tracing::Level;

/// Whether the journal of systemd records standard error. A program that a service starts has the variable, too, and may have another standard error.
pub(super) fn is_journal() -> bool {
    let Some(stream) = std::env::var("JOURNAL_STREAM").ok() else { return false };
    let Ok(found) = rustix::fs::fstat(io::stderr()) else { return false };
    stream == format!("{}:{}", found.st_dev, found.st_ino)
}

/// What sd-daemon(3) has before a line for its priority, if the journal records standard error.
pub(super) fn priority(level: Level) -> &'static str {
    if is_journal() { prefix(level) } else { "" }
}

pub(super) const fn prefix(level: Level) -> &'static str {
    match level {
        Level::ERROR => "<3>",
        Level::WARN => "<4>",
        Level::INFO => "<6>",
        _ => "<7>",
    }
}
