//! System and library calls for which the bindings have no safe form.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::BorrowedFd;

const SIOCOUTQ: rustix::ioctl::Opcode = 0x5411;

/// Bytes that were sent on a socket and have not arrived at the peer's kernel (tcp(7), `SIOCOUTQ`), its end included.
pub(crate) fn bytes_in_flight(fd: BorrowedFd<'_>) -> io::Result<usize> {
    // SAFETY: this request stores an int, and does nothing else.
    let bytes = unsafe { rustix::ioctl::ioctl(fd, rustix::ioctl::Getter::<SIOCOUTQ, i32>::new()) }?;
    Ok(usize::try_from(bytes).unwrap_or(0))
}

/// Has the C library give blocks of memory of a megabyte and more back to the system when they are freed. By itself, glibc takes the first
/// large block that is freed for a sign that more are to come, keeps blocks of up to 32 MiB in its arenas from then on, and hardly ever
/// gives those back: after a burst of large messages a server kept four fifths of the memory that it had needed. For the start of a
/// program; it does nothing where the C library is another. See docs/performance.md for the measurement.
pub fn give_back_large_blocks() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    for (parameter, bytes) in [
        (nix::libc::M_MMAP_THRESHOLD, 1024 * 1024),
        // Setting the one ends the other's adjusting itself, too, which would give back what the next answer needs again.
        (nix::libc::M_TRIM_THRESHOLD, 4 * 1024 * 1024),
    ] {
        // SAFETY: it takes the allocator's own lock, and sets a number.
        unsafe { nix::libc::mallopt(parameter, bytes) };
    }
}
