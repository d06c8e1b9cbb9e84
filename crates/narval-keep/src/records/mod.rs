//! What the index stores: the plain types of its records, without what is done with them.

pub(crate) mod audit;
pub(crate) mod jobs;
pub(crate) mod leases;
pub(crate) mod machines;
pub(crate) mod paths;
pub(crate) mod pins;
pub(crate) mod releases;
pub(crate) mod tokens;
