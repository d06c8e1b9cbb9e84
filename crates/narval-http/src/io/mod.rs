//! Sockets, listeners, and the drivers that wait for them: epoll, io_uring, or a simulated kernel.

pub(crate) mod driver;
pub(crate) mod listen;
#[cfg(any(test, feature = "sim"))]
pub mod sim;
pub(crate) mod socket;
