//! Measures any HTTP server by its base URL and any installing client by its command, side by side
//! in one run, and prints medians and ratios. `docs/performance.md` describes the method.
//!
//! A server or client under measurement is a URL or a command, and the workspace's own get no special treatment. Only
//! [`push::floor`] uses the workspace's crates.
//! [`proxy`], a TCP proxy that delays and cuts connections, is for tests too.

pub mod cache_rows;
pub mod client;
pub mod command;
pub mod echo;
pub mod fixture;
pub mod handshakes;
pub mod http2_rows;
pub mod https_rows;
pub mod install;
pub mod ktls;
pub mod load;
pub mod nginx;
pub mod process;
pub mod proxy;
pub mod push;
pub mod report;
pub mod response;
pub mod rows;
pub mod server;
pub mod static_rows;
pub mod tls;
pub mod websocket;

/// Why a measurement stopped: one line for the user.
#[derive(Debug)]
pub struct Failure(pub String);

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Failure {}

/// The result of every fallible function here.
pub type Result<T> = std::result::Result<T, Failure>;

/// Makes a [`Failure`] from the arguments of `format!`.
#[macro_export]
macro_rules! failure {
    ($($part:tt)*) => { $crate::Failure(format!($($part)*)) };
}

/// Adds context to errors.
pub trait Context<T> {
    /// Turns the error into a [`Failure`] that begins with `doing`.
    ///
    /// # Errors
    /// The same error, as one line.
    fn context(self, doing: impl FnOnce() -> String) -> Result<T>;
}

impl<T, E: std::fmt::Display> Context<T> for std::result::Result<T, E> {
    fn context(self, doing: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|error| Failure(format!("{}: {error}", doing())))
    }
}
