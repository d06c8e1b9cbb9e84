//! Counts wrong tokens by address.
//!
//! Tokens are checked whatever came from their address before: their secrets have 256 random bits, which nobody guesses, and behind one address
//! there may be a whole company. What becomes less after [`FREE`] wrong tokens is what the logs say about them.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Wrong tokens from one address that are noted.
const FREE: u32 = 10;
/// An address without wrong tokens for this long is forgotten.
const FORGET_AFTER: Duration = Duration::from_secs(600);
/// The most addresses in the table. When it is full, the one whose last wrong token is oldest is dropped.
const ADDRESSES_MAX: usize = 4096;

/// See the module's description.
#[derive(Debug, Default)]
pub(super) struct Throttle {
    addresses: Mutex<HashMap<IpAddr, Attempts>>,
}

#[derive(Debug)]
struct Attempts {
    wrong: u32,
    last_wrong: Instant,
}

impl Throttle {
    /// Records a wrong token of a client (a network of IPv6 is one). Returns whether there were too many. Clients on unix sockets are not counted.
    pub(super) fn failed(&self, address: Option<IpAddr>) -> bool {
        let Some(address) = address else { return false };
        let now = Instant::now();
        let mut addresses = self.addresses.lock();
        if addresses.len() >= ADDRESSES_MAX && !addresses.contains_key(&address) {
            addresses.retain(|_, attempts| now.duration_since(attempts.last_wrong) < FORGET_AFTER);
            if addresses.len() >= ADDRESSES_MAX
                && let Some(oldest) = addresses.iter().min_by_key(|(_, attempts)| attempts.last_wrong)
            {
                let oldest = *oldest.0;
                addresses.remove(&oldest);
            }
        }
        let attempts = addresses.entry(address).or_insert(Attempts { wrong: 0, last_wrong: now });
        if now.duration_since(attempts.last_wrong) >= FORGET_AFTER {
            attempts.wrong = 0;
        }
        attempts.wrong = attempts.wrong.saturating_add(1);
        attempts.last_wrong = now;
        attempts.wrong > FREE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> Option<IpAddr> {
        text.parse().ok()
    }

    #[test]
    fn an_address_has_sent_too_many_after_a_few() {
        let throttle = Throttle::default();
        assert!((0..FREE).all(|_| !throttle.failed(ip("192.0.2.1"))));
        assert!(throttle.failed(ip("192.0.2.1")));
        assert!(!throttle.failed(ip("192.0.2.2")), "another address");
        assert!((0..2 * FREE).all(|_| !throttle.failed(None)), "a unix socket");
    }

    #[test]
    fn the_table_is_bounded() {
        let throttle = Throttle::default();
        for number in 0..u32::try_from(ADDRESSES_MAX).unwrap() + 10 {
            throttle.failed(Some(IpAddr::V4(number.into())));
        }
        assert_eq!(throttle.addresses.lock().len(), ADDRESSES_MAX);
        assert!(!throttle.addresses.lock().contains_key(&IpAddr::V4(0.into())), "the oldest was dropped");
    }
}
