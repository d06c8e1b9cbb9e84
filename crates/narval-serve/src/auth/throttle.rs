//! Throttles addresses that guess tokens.
//!
//! After [`FREE`] wrong tokens, one token per [`PAUSE`] is checked for an address. Others are refused without being checked, so a guess reveals
//! nothing. Tokens that were recently valid are exempt: one client with a wrong token must not lock out the others behind the same address. No
//! thread waits.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use narval_nix::Sha256;

/// Wrong tokens from one address before it is throttled.
const FREE: u32 = 10;
/// Afterwards, one token is checked in this time.
const PAUSE: Duration = Duration::from_secs(2);
/// An address without wrong tokens for this long is forgotten.
const FORGET_AFTER: Duration = Duration::from_secs(600);
/// The most addresses in the table. When it is full, the one whose last wrong token is oldest is dropped.
const ADDRESSES_MAX: usize = 4096;
/// The most valid tokens that are remembered for one address.
const RIGHT_MAX: usize = 64;

/// See the module's description.
#[derive(Debug, Default)]
pub(super) struct Throttle {
    addresses: Mutex<HashMap<IpAddr, Attempts>>,
}

#[derive(Debug)]
struct Attempts {
    wrong: u32,
    last_wrong: Instant,
    next_try: Instant,
    /// SHA-256 of valid tokens.
    right: Vec<Sha256>,
}

impl Throttle {
    /// Whether a token may be checked. Clients on unix sockets are not throttled.
    pub(super) fn may_try(&self, address: Option<IpAddr>, token: &[u8]) -> bool {
        let Some(address) = address.map(network) else { return true };
        let mut addresses = self.lock();
        let Some(attempts) = addresses.get_mut(&address) else { return true };
        if attempts.wrong < FREE || attempts.right.contains(&Sha256::of(token)) {
            return true;
        }
        let now = Instant::now();
        let may = now >= attempts.next_try;
        if may {
            attempts.next_try = now + PAUSE;
        }
        may
    }

    /// Records a valid token, but only for addresses that have sent wrong ones.
    pub(super) fn succeeded(&self, address: Option<IpAddr>, token: &[u8]) {
        let Some(address) = address.map(network) else { return };
        if let Some(attempts) = self.lock().get_mut(&address) {
            let hash = Sha256::of(token);
            if !attempts.right.contains(&hash) {
                if attempts.right.len() >= RIGHT_MAX {
                    attempts.right.remove(0);
                }
                attempts.right.push(hash);
            }
        }
    }

    /// Records a wrong token.
    pub(super) fn failed(&self, address: Option<IpAddr>) {
        let Some(address) = address.map(network) else { return };
        let now = Instant::now();
        let mut addresses = self.lock();
        if addresses.len() >= ADDRESSES_MAX && !addresses.contains_key(&address) {
            addresses.retain(|_, attempts| now.duration_since(attempts.last_wrong) < FORGET_AFTER);
            if addresses.len() >= ADDRESSES_MAX
                && let Some(oldest) = addresses.iter().min_by_key(|(_, attempts)| attempts.last_wrong)
            {
                let oldest = *oldest.0;
                addresses.remove(&oldest);
            }
        }
        let attempts = addresses.entry(address).or_insert(Attempts {
            wrong: 0,
            last_wrong: now,
            next_try: now,
            right: Vec::new(),
        });
        if now.duration_since(attempts.last_wrong) >= FORGET_AFTER {
            attempts.wrong = 0;
        }
        attempts.wrong = attempts.wrong.saturating_add(1);
        attempts.last_wrong = now;
        attempts.next_try = now + PAUSE;
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<IpAddr, Attempts>> {
        self.addresses.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What counts as one address. For IPv6, a /64 network: one customer usually has at least that.
fn network(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(v6) => IpAddr::V6((v6.to_bits() & !u128::from(u64::MAX)).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> Option<IpAddr> {
        text.parse().ok()
    }

    #[test]
    fn a_throttled_address_may_try_only_tokens_that_worked() {
        let throttle = Throttle::default();
        for _ in 0..FREE {
            assert!(throttle.may_try(ip("192.0.2.1"), b"guess"));
            throttle.failed(ip("192.0.2.1"));
        }
        assert!(!throttle.may_try(ip("192.0.2.1"), b"guess"));
        assert!(throttle.may_try(ip("192.0.2.2"), b"guess"), "another address");
        assert!(throttle.may_try(None, b"guess"), "a unix socket");
        throttle.succeeded(ip("192.0.2.1"), b"right");
        assert!(throttle.may_try(ip("192.0.2.1"), b"right"));
        assert!(!throttle.may_try(ip("192.0.2.1"), b"guess"));
    }

    #[test]
    fn networks_of_ipv6_count_as_one() {
        let throttle = Throttle::default();
        (0..FREE).for_each(|_| throttle.failed(ip("2001:db8::1")));
        assert!(!throttle.may_try(ip("2001:db8::ffff"), b"guess"));
        assert!(throttle.may_try(ip("2001:db8:0:1::1"), b"guess"));
    }

    #[test]
    fn the_table_is_bounded() {
        let throttle = Throttle::default();
        for number in 0..u32::try_from(ADDRESSES_MAX).unwrap() + 10 {
            throttle.failed(Some(IpAddr::V4(number.into())));
        }
        assert_eq!(throttle.lock().len(), ADDRESSES_MAX);
        assert!(!throttle.lock().contains_key(&IpAddr::V4(0.into())), "the oldest was dropped");
    }
}
