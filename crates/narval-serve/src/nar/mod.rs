//! NARs: path_nar and sent from a store's files, or from memory, a packed file or a compressed file.

pub(crate) mod damaged;
pub(crate) mod delta_mode;
pub(crate) mod deltas;
pub(crate) mod file;
pub(crate) mod growing;
pub(crate) mod memory;
pub(crate) mod packed;
pub(crate) mod plan;
pub(crate) mod representation;
pub(crate) mod sources;
pub(crate) mod zstd;
