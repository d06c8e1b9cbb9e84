//! Fetching: the NAR of a path from its cache, decoded and verified as it comes.

mod check;
mod cores;
mod input;
mod nar;

pub(crate) use check::{check_file, check_hashes, damaged, mismatch};
pub(crate) use cores::Cores;
pub(crate) use input::{Alone, Input, Surroundings};
pub(crate) use nar::{VerifiedNar, decode, read_nar, request};
