//! The atomics of the lease and the doorbell: those of `std`, or those of `loom` when they are model-checked
//! (`RUSTFLAGS="--cfg loom" cargo test -p narval-http --release --lib loom`). The code that ships is the code that is checked.

#[cfg(all(loom, test))]
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU8, Ordering, fence};
#[cfg(not(all(loom, test)))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU8, Ordering, fence};
