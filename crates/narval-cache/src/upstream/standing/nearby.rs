//! What is particular to an upstream that is a neighbour.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};

/// A neighbour among the upstreams.
#[derive(Debug)]
pub(in crate::upstream) struct Nearby {
    pub(in crate::upstream) host: IpAddr,
    /// Whether it has failed.
    gone: AtomicBool,
    /// Whether it has not answered in time, and not yet since.
    owes: AtomicBool,
    /// Whether a NAR that it sent was right.
    is_proven: AtomicBool,
}

impl Nearby {
    pub(in crate::upstream) const fn at(host: IpAddr) -> Self {
        Self { host, gone: AtomicBool::new(false), owes: AtomicBool::new(false), is_proven: AtomicBool::new(false) }
    }

    /// It has failed.
    pub(in crate::upstream) fn goes(&self) {
        self.gone.store(true, Ordering::Release);
    }

    pub(in crate::upstream) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    /// Records whether it has answered, or not in time.
    pub(in crate::upstream) fn owes(&self, owes: bool) {
        self.owes.store(owes, Ordering::Release);
    }

    /// A NAR that it sent was right.
    pub(in crate::upstream) fn proves(&self) {
        self.is_proven.store(true, Ordering::Release);
    }

    pub(in crate::upstream) fn is_proven(&self) -> bool {
        self.is_proven.load(Ordering::Acquire)
    }

    pub(in crate::upstream) fn is_ready(&self) -> bool {
        !self.is_gone() && !self.owes.load(Ordering::Acquire)
    }
}
