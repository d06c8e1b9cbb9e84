//! Ports for programs that cannot be told to take any free one.

#![allow(unreachable_pub, clippy::expect_used, reason = "of tests")]

use std::net::{Ipv4Addr, Ipv6Addr, TcpListener};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// Below the ports that the kernel gives to connections and to listeners of port 0 (`net.ipv4.ip_local_port_range`): until the program
/// listens, and while it is stopped, no other test gets it by chance.
const PORTS: std::ops::Range<u16> = 10_000..32_000;

/// A port on which nobody listens.
pub fn free_port() -> u16 {
    static CALLS: AtomicU64 = AtomicU64::new(0);
    let nanos = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| u64::from(time.subsec_nanos()));
    // Other processes are asking, too, and so are other threads of this one.
    let first = nanos ^ (u64::from(std::process::id()) << 20) ^ (CALLS.fetch_add(1, Ordering::Relaxed) << 40);
    let start = PORTS.start + u16::try_from(first % (PORTS.len() as u64)).unwrap_or_default();
    let is_free = |port: &u16| {
        // The first one is also for all addresses of IPv4, unless there is no IPv6.
        TcpListener::bind((Ipv6Addr::UNSPECIFIED, *port)).is_ok()
            || TcpListener::bind((Ipv4Addr::UNSPECIFIED, *port)).is_ok()
    };
    (start..PORTS.end).chain(PORTS.start..start).find(is_free).expect("a free port")
}
