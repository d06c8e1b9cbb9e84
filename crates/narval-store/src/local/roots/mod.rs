//! The roots of a store: links, processes, temporary roots, and the server that keeps a collector and those who add paths apart.

pub(in crate::local) mod process_roots;
pub(in crate::local) mod root;
pub(in crate::local) mod root_finder;
pub(in crate::local) mod root_server;
pub(in crate::local) mod temporary_roots;
