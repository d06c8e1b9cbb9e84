//! What is uploaded, by which protocol, and of what size.

pub(super) mod committing;
pub(super) mod hostile;
pub(super) mod many_paths;
pub(super) mod oversized;
pub(super) mod receiving;
pub(super) mod tenants;
