//! Narinfos: rendered and signed from path infos, and remembered.

pub(crate) mod memo;
pub(crate) mod render;
