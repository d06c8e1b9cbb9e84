//! Deltas of NARs: the content coding `dcz` (RFC 9842, section 5), which is zstd with another NAR as its dictionary.
//!
//! A delta is a header, which names the dictionary by its SHA-256, followed by zstd frames. The SHA-256 of a NAR is its
//! NarHash, so both sides know it without reading the NAR. [`make_delta`](crate::encode::make_delta) makes one,
//! [`DeltaDecoder`](crate::decode::DeltaDecoder) undoes it.

mod memory;

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use narval_client::OwnCodings;
use narval_nix::{HashPart, NarHash};

pub use memory::{DELTA_MEMORY_MAX, DeltaMemory, Reserved};

/// The length of the header: a magic number and the SHA-256 of the dictionary.
pub const DELTA_HEADER_LEN: usize = 40;
/// The smallest NAR for which a delta is worth a request of its own.
pub const DELTA_NAR_BYTES_MIN: u64 = 16 * 1024;
/// The largest window of a delta, and so the largest NAR: RFC 9842 allows 128 MB.
pub const DELTA_WINDOW_MAX: u64 = 128 * 1000 * 1000;
/// The largest base. It is held in memory as a whole.
pub const DELTA_BASE_BYTES_MAX: u64 = 128 * 1024 * 1024;

/// The window that every receiver must accept, whatever the size of the dictionary: 8 MB.
const WINDOW_MIN: u64 = 8 * 1000 * 1000;
/// A skippable frame of 32 bytes.
const MAGIC: [u8; 8] = [0x5e, 0x2a, 0x4d, 0x18, 0x20, 0, 0, 0];

/// The largest window that a receiver with a dictionary of this size (in bytes) must accept: 1.25 times the dictionary,
/// but at least 8 MB and at most 128 MB.
pub(crate) const fn window_max(base_size: u64) -> u64 {
    let window = base_size.saturating_add(base_size / 4);
    if window < WINDOW_MIN {
        WINDOW_MIN
    } else if window > DELTA_WINDOW_MAX {
        DELTA_WINDOW_MAX
    } else {
        window
    }
}

/// The binary logarithm of the window that a decoder allocates at most.
pub(crate) const fn window_log_max(base_size: u64) -> u32 {
    window_max(base_size).next_power_of_two().ilog2()
}

/// The memory in bytes that undoing a delta takes at most: the dictionary and the window.
pub const fn delta_memory(base_size: u64) -> u64 {
    base_size.saturating_add(1 << window_log_max(base_size))
}

/// Whether there can be a delta from a base of this size to a NAR of that size (in bytes): within the window, all of the
/// base can be referred to; beyond it, none.
pub const fn delta_fits(base_size: u64, nar_size: u64) -> bool {
    base_size <= DELTA_BASE_BYTES_MAX && nar_size >= DELTA_NAR_BYTES_MIN && nar_size <= window_max(base_size)
}

/// What a request for a delta from this base says: its NarHash is the SHA-256 of the dictionary, and the hash part of its
/// path the name by which the server finds it. `others` are more codings that the caller decodes; `wait` is how long the server may
/// take for a delta that it has yet to make (RFC 7240, section 4.3), in full seconds.
pub fn delta_codings(base: &HashPart, base_hash: &NarHash, others: &[&str], wait: Option<Duration>) -> OwnCodings {
    let mut fields = vec![
        ("available-dictionary", format!(":{}:", STANDARD.encode(base_hash.as_bytes()))),
        ("dictionary-id", format!("\"{base}\"")),
    ];
    fields.extend(wait.map(|wait| ("prefer", format!("wait={}", wait.as_secs()))));
    OwnCodings { accepted: [&["dcz"], others].concat().join(", "), fields }
}

/// The header of a delta from this base.
pub fn delta_header(base: &NarHash) -> [u8; DELTA_HEADER_LEN] {
    let mut header = [0; DELTA_HEADER_LEN];
    let (magic, hash) = header.split_at_mut(MAGIC.len());
    magic.copy_from_slice(&MAGIC);
    hash.copy_from_slice(base.as_bytes());
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_follows_the_rule_of_rfc_9842() {
        assert_eq!(window_max(0), 8_000_000);
        assert_eq!(window_max(40_000_000), 50_000_000);
        assert_eq!(window_max(u64::MAX), 128_000_000);
        assert_eq!([window_log_max(0), window_log_max(40_000_000), window_log_max(u64::MAX)], [23, 26, 27]);
        assert!(delta_fits(40_000_000, 50_000_000) && !delta_fits(40_000_000, 50_000_001));
        assert!(delta_fits(1, 8_000_000) && !delta_fits(DELTA_BASE_BYTES_MAX + 1, 8_000_000));
        assert!(delta_memory(DELTA_BASE_BYTES_MAX) <= DELTA_MEMORY_MAX);
    }
}
