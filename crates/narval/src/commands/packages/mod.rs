//! Packages by name: finding one, what is known of it, the index that names are looked up in.

pub mod info;
pub mod lock;
pub mod names;
pub mod search;
pub mod update;
pub mod which_package;
