//! System and library calls without safe bindings.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use nix::libc;

const SIOCOUTQ: rustix::ioctl::Opcode = 0x5411;

/// The number of bytes sent on a socket that the peer's kernel has not acknowledged, the FIN included (tcp(7),
/// `SIOCOUTQ`).
pub(crate) fn bytes_in_flight(fd: BorrowedFd<'_>) -> io::Result<usize> {
    // SAFETY: this request only stores an int.
    let bytes = unsafe { rustix::ioctl::ioctl(fd, rustix::ioctl::Getter::<SIOCOUTQ, i32>::new()) }?;
    Ok(usize::try_from(bytes).unwrap_or(0))
}

/// Limits the bytes that a TCP socket takes before they are sent (`TCP_NOTSENT_LOWAT`). Bytes in flight do not count.
pub(crate) fn limit_unsent(fd: BorrowedFd<'_>, bytes: u32) -> io::Result<()> {
    let size = size_of_val(&bytes) as libc::socklen_t;
    // SAFETY: the kernel only reads an integer of this size.
    let result = unsafe {
        libc::setsockopt(fd.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, (&raw const bytes).cast(), size)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Makes glibc return freed blocks of a megabyte and more to the system. By default, glibc raises this threshold up to
/// 32 MiB when the first large block is freed. Later blocks come from its arenas, which hardly ever shrink: after a
/// burst of large messages a server kept four fifths of the memory that it had needed. Call this at the start of a
/// program. It does nothing with other C libraries. docs/performance.md has the measurement.
pub fn give_back_large_blocks() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    for (parameter, bytes) in [
        (libc::M_MMAP_THRESHOLD, 1024 * 1024),
        // Setting one threshold also stops the other from adjusting, which would return memory that the next response
        // needs.
        (libc::M_TRIM_THRESHOLD, 4 * 1024 * 1024),
    ] {
        // SAFETY: it takes the allocator's lock and sets a number.
        unsafe { libc::mallopt(parameter, bytes) };
    }
}

/// Gives back to the system what glibc's arenas hold of freed memory: they keep blocks below the threshold of
/// [`give_back_large_blocks`]. Takes some milliseconds for each 100 MiB. It does nothing with other C libraries.
pub(crate) fn give_back_freed() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: it takes the locks of the arenas one after another, and only unmaps what is free.
    unsafe {
        libc::malloc_trim(0)
    };
}
