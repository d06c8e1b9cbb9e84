//! Puts open data together from its parts: a storage, an index, and a place among the nodes.

pub(crate) mod database;
mod join;
pub(crate) mod parts;
