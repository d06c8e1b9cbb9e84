//! Names that nobody else makes: not another thread, and not a process of the same number in another PID namespace.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

/// A number that nobody can foresee: the standard library takes its keys from the kernel.
pub(crate) fn random() -> u64 {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    RandomState::new().hash_one(NUMBER.fetch_add(1, Ordering::Relaxed))
}

/// A suffix for a temporary name.
pub(crate) fn suffix() -> String {
    format!("{:016x}", random())
}
