use std::sync::atomic::{AtomicU64, Ordering};

use narval_nix::nix32;

/// What changes of this process are marked with: it counts those itself.
pub(super) struct Node {
    pub(super) id: String,
    /// Another name after a change of which nobody knows whether it took effect: it is noticed as others' are.
    pub(super) generation: AtomicU64,
    /// Whether it rebuilds the index.
    pub(super) is_rebuild: bool,
}

impl Node {
    pub(super) fn new(is_rebuild: bool) -> Result<Self, getrandom::Error> {
        let mut id = [0; 10];
        getrandom::fill(&mut id)?;
        Ok(Self { id: nix32::encode(&id), generation: AtomicU64::new(0), is_rebuild })
    }

    pub(super) fn name(&self) -> String {
        format!("{}.{}", self.id, self.generation.load(Ordering::Acquire))
    }
}

/// This process, for messages on other machines.
pub(super) fn this_process() -> String {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    format!("process {} on {host}", std::process::id())
}
