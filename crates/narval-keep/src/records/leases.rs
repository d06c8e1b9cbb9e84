//! Leases of collections, and what keeps NARs from them.

use std::time::Duration;

use narval_client::clock;

/// The number of a lease for collections: greater than those of all leases before it. A transaction with a number that is no longer
/// the latest fails ([`IndexError::Superseded`](crate::index::IndexError::Superseded)).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Fence(pub(crate) i64);

/// How long a collection may take between two of its transactions. Then another process may take over. Half of it is for clocks that differ:
/// by up to a minute.
pub(crate) fn collection_lease() -> Duration {
    // Tests with real time wait for its end.
    Duration::from_secs(if cfg!(test) && clock::has_threads() { 20 } else { 120 })
}

/// What a backup has so that no collection removes its NARs.
#[derive(Debug, Clone)]
pub(crate) struct Held {
    pub(crate) name: String,
    /// When it began, in seconds since 1970.
    pub(crate) fence: i64,
}

/// The lease of collections.
pub(crate) const COLLECTION: &str = "collection";
