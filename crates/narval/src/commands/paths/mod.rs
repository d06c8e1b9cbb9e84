//! Store paths: looking at them and into them.

pub mod cat;
pub mod diff;
pub mod ls;
pub mod nar;
pub mod path_info;
pub mod tree;
pub mod verify;
pub mod why;
pub mod why_slow;
