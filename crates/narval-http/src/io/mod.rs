//! Sockets, listeners, and the drivers that wait for them: epoll, io_uring, or a simulated kernel.

pub(crate) mod clock;
pub(crate) mod doorbell;
pub(crate) mod driver;
pub(crate) mod listen;
pub(crate) mod out_buf;
pub(crate) mod output_memory;
pub(crate) mod over;
pub(crate) mod progress;
#[cfg(any(test, feature = "sim"))]
pub(crate) mod sim;
pub(crate) mod socket;
pub(crate) mod sync;
pub(crate) mod unsafe_calls;
pub(crate) mod wake_queue;
