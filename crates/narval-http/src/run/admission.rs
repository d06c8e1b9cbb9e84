//! Admission control: whether to accept a connection, and whether to process its TLS handshake.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::io::sync::Mutex;
use crate::limits::{CLIENT_CONNECTIONS_MIN, CLIENT_CONNECTIONS_PART, CONNECTIONS_CROWDED, Limits};
use crate::peer::Remote;

/// The limits on connections and handshakes.
#[derive(Debug)]
pub(crate) struct Admission {
    open: AtomicUsize,
    open_max: usize,
    of_client_max: usize,
    of_clients: Mutex<HashMap<IpAddr, usize>>,
    handshakes: AtomicUsize,
    handshakes_max: usize,
}

/// The limit that a new connection would exceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Full {
    /// There are too many connections of all clients.
    Server,
    /// Its client has too many.
    Client,
}

impl Admission {
    pub(crate) fn new(limits: &Limits) -> Self {
        Self {
            open: AtomicUsize::new(0),
            open_max: limits.connections_max,
            of_client_max: limits
                .connections_per_ip_max
                .unwrap_or((limits.connections_max / CLIENT_CONNECTIONS_PART).max(CLIENT_CONNECTIONS_MIN)),
            of_clients: Mutex::default(),
            handshakes: AtomicUsize::new(0),
            handshakes_max: limits.handshakes_max,
        }
    }

    /// Counts a new connection, unless a limit is reached.
    pub(crate) fn enter(&self, remote: &Remote) -> Result<(), Full> {
        if !self.count(remote) {
            return Err(Full::Client);
        }
        if self.open.fetch_add(1, Ordering::Relaxed) < self.open_max {
            return Ok(());
        }
        self.leave(remote);
        Err(Full::Server)
    }

    /// Counts a connection of its client; `false` if the client has too many.
    pub(crate) fn count(&self, remote: &Remote) -> bool {
        let Some(client) = remote.counted() else { return true };
        let mut of_clients = self.of_clients.lock();
        let count = of_clients.entry(client).or_default();
        let has_room = *count < self.of_client_max;
        *count += usize::from(has_room);
        has_room
    }

    /// Whether there are so many connections that each should use little of the kernel's memory.
    pub(crate) fn is_crowded(&self) -> bool {
        self.open.load(Ordering::Relaxed) > CONNECTIONS_CROWDED
    }

    /// The connections and handshakes counted now.
    pub(crate) fn in_use(&self) -> (usize, usize) {
        (self.open.load(Ordering::Relaxed), self.handshakes.load(Ordering::Relaxed))
    }

    /// Stops counting a connection.
    pub(crate) fn leave(&self, remote: &Remote) {
        self.open.fetch_sub(1, Ordering::Relaxed);
        let Some(client) = remote.counted() else { return };
        let mut of_clients = self.of_clients.lock();
        if let Some(count) = of_clients.get_mut(&client) {
            *count -= 1;
            if *count == 0 {
                of_clients.remove(&client);
            }
        }
    }
}

/// A step of a TLS handshake that is queued or running. It counts until it is dropped, even if the job never runs.
#[derive(Debug)]
pub(crate) struct HandshakePermit {
    admission: Arc<Admission>,
}

impl HandshakePermit {
    /// Takes a permit; `None` if the limit is reached.
    pub(crate) fn get(admission: &Arc<Admission>) -> Option<Self> {
        let Admission { handshakes, handshakes_max, .. } = &**admission;
        if handshakes.fetch_add(1, Ordering::Relaxed) >= *handshakes_max {
            handshakes.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        Some(Self { admission: admission.clone() })
    }
}

impl Drop for HandshakePermit {
    fn drop(&mut self) {
        self.admission.handshakes.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;
    use crate::run::job::Job;

    #[test]
    fn a_handshake_that_panics_gives_its_place_back() {
        let limits = Limits { handshakes_max: 1, ..Limits::default() };
        let admission = Arc::new(Admission::new(&limits));
        for _ in 0..3 {
            let permit = HandshakePermit::get(&admission).expect("there is room");
            assert!(HandshakePermit::get(&admission).is_none(), "for one");
            let worked = catch_unwind(AssertUnwindSafe(|| {
                let _permit = permit;
                panic!("a bug in the TLS library");
            }));
            assert!(worked.is_err());
        }
        // Nor is a permit lost if no thread takes the job.
        let permit = HandshakePermit::get(&admission).expect("there is room");
        drop(Job::Handshake { lease: crate::run::reply::Reply::none(), received: Vec::new(), permit });
        assert!(HandshakePermit::get(&admission).is_some());
    }
}
