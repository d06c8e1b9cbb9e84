//! Narinfos: looked up in the sources, rendered and signed, and remembered.

pub(crate) mod memo;
pub(crate) mod render;
pub(crate) mod sources;
pub(crate) mod upstream;
pub(crate) mod writable;
