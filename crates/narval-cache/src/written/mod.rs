//! The cache that is written.

pub mod oidc;
