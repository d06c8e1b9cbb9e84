//! Keys and the signatures made with them.

pub mod keys;
pub mod signature;
