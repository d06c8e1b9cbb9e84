//! Nix's settings for using a cache: the texts of `nix.conf` and netrc, and their files.
//!
//! Pure functions change the texts: everything else in them stays unchanged, byte for byte.

pub mod diff;
mod file;
mod netrc;
mod nix_conf;
mod trust;

pub use file::{Settled, replace};
pub use netrc::NetrcEntry;
pub use nix_conf::{CacheBlock, NearBlock, NixConfError};
pub use trust::{UserTrust, user_trust};
