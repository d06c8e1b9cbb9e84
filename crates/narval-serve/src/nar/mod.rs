//! NARs: planned and sent from a store's files, or from where they are kept: in memory, packed into one file, or compressed.

pub(crate) mod damaged;
pub(crate) mod file;
pub(crate) mod memory;
pub(crate) mod packed;
pub(crate) mod plan;
pub(crate) mod representation;
pub(crate) mod sources;
pub(crate) mod zstd;
