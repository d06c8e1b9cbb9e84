//! Pushes: narinfos are committed, which makes their paths visible, and published in the standard layout.

pub(crate) mod batch;
pub(crate) mod commit;
pub(crate) mod pending;
pub(crate) mod publish;
pub(crate) mod reconcile;
pub(crate) mod trust;

pub use batch::{NARS_MAX, read_commit, read_nars};
pub use commit::{COMMIT_MAX, Committed, Outcome};
