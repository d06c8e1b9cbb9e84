//! The settings of Nix that make it use a cache: `nix.conf` and netrc, as text, and their files.
//!
//! The texts are changed by pure functions: what is not theirs stays byte for byte.

pub mod diff;
mod file;
mod netrc;
mod nix_conf;
mod trust;

pub use file::{Settled, replace};
pub use netrc::NetrcEntry;
pub use nix_conf::{CacheBlock, NixConfError};
pub use trust::{UserTrust, user_trust};
