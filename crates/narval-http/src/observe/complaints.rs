use std::collections::VecDeque;
use std::net::IpAddr;

use crate::io::clock::{Millis, millis};
use crate::io::sync::Mutex;
use crate::limits::{COMPLAINTS_EVERY, COMPLAINTS_MAX};
use crate::peer::Remote;

/// The clients about which the log has complained lately: one line for each in a while, so that no client can fill it.
#[derive(Debug, Default)]
pub(crate) struct Complaints(Mutex<VecDeque<(Option<IpAddr>, Millis)>>);

impl Complaints {
    /// Whether to complain about a client now.
    pub(crate) fn may_name(&self, remote: &Remote, now: Millis) -> bool {
        let client = remote.network();
        let mut named = self.0.lock();
        while named.front().is_some_and(|(_, at)| at + millis(COMPLAINTS_EVERY) <= now) {
            named.pop_front();
        }
        let may = named.len() < COMPLAINTS_MAX && named.iter().all(|(other, _)| *other != client);
        if may {
            named.push_back((client, now));
        }
        may
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};

    use super::*;
    use crate::peer::Peer;

    #[test]
    fn each_client_is_named_once_in_a_while() {
        let complaints = Complaints::default();
        let every = millis(COMPLAINTS_EVERY);
        let may = |number: u32, now| {
            let address = SocketAddr::new(Ipv4Addr::from_bits(number).into(), 1);
            complaints.may_name(&Peer::Tcp(address).into(), now)
        };
        assert!(may(1, 0) && !may(1, every - 1) && may(2, every - 1));
        assert!(may(1, every) && !may(2, every));
        assert_eq!((10..10_000).filter(|number| may(*number, every)).count(), COMPLAINTS_MAX - 2);
        assert!(may(3, 3 * every));
    }
}
