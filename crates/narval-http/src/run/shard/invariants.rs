//! What holds for each connection after each event, whatever its client sent. Checked in tests and by fuzzing.

use super::Shard;
use super::slots::{Protocol, Slot};
use crate::io::clock::Millis;
use crate::io::driver::Driver;
use crate::limits::{HANDSHAKE_INPUT_MAX, HTTP2_HELD_MAX, HTTP2_QUANTUM, HTTP2_STREAMS_MAX, RECEIVE_BUFFER};
use crate::run::connection::Connection;

/// The upper bound of a connection's deadlines: longer than every timeout.
const WAIT_MAX: Millis = 24 * 3_600_000;

impl<D: Driver<Connection>> Shard<D> {
    /// `wants_read`: more is received from its client.
    pub(super) fn check(&self, slot: &Slot, wants_read: bool) {
        assert!(!wants_read || !slot.has_ended, "receiving after the client's end: {}", slot.describe());
        let is_soon = slot.deadline > 0 && slot.due() <= self.local.now + WAIT_MAX;
        match &slot.protocol {
            Protocol::Http1(conn) => {
                assert!(is_soon, "a connection without a deadline: {}", slot.describe());
                let held_max = self.local.server.limits.head.bytes_max + 2 * RECEIVE_BUFFER;
                assert!(slot.input.len() <= held_max, "{} bytes are kept", slot.input.len());
                let reads_more = wants_read && !conn.is_idle() && !slot.input.is_empty();
                assert!(!reads_more || conn.reads_body(), "receiving more while input is waiting: {}", slot.describe());
            }
            Protocol::Http2(http2) => {
                let conn = &http2.conn;
                assert!(is_soon || conn.is_ending(), "nobody looks at it again: {}", slot.describe());
                assert!(conn.streams_len() <= HTTP2_STREAMS_MAX);
                assert!(conn.streams_len() > 0 || conn.in_memory() == 0, "bodies that are gone are counted");
                let held_max = HTTP2_HELD_MAX + HTTP2_QUANTUM + HTTP2_STREAMS_MAX * 16 * 1024;
                conn.check_turns();
                assert!(conn.held() <= held_max, "{} bytes are held", conn.held());
            }
            Protocol::Handshake => assert!(is_soon && slot.input.len() <= HANDSHAKE_INPUT_MAX + RECEIVE_BUFFER),
            Protocol::ProxyHeader | Protocol::WebSocket(_) | Protocol::Closing(_) => {
                assert!(is_soon, "nobody looks at it again: {}", slot.describe());
            }
        }
    }
}
