//! Servers over one bucket that share their disk caches: each NAR is kept by one of them, and the others read it from there.
//!
//! A node that takes part has a row in the database, with its id and the address at which the others reach it. [`Members`] is what this
//! node has last read of these rows; [`rendezvous`] says who of them keeps a NAR. [`Peers`] asks the other nodes, and knows the secret by
//! which they recognise each other.
//!
//! Nothing depends on the nodes agreeing: whoever is asked by another node never asks a third one, and whoever gets no NAR from another
//! node reads it from the bucket. At worst, a NAR is read from the bucket twice.

mod members;
mod peers;
mod rendezvous;
mod secret;

use narval_client::{Scheme, Url};

pub(crate) use members::{Holder, Member, Members};
#[cfg(feature = "postgres")]
pub(crate) use members::{MEMBERS_MAX, NodeRow};
pub(crate) use peers::Peers;
pub use peers::{PEER_PATH, PeerStats};
pub(crate) use secret::PeerSecret;

/// Why other nodes cannot be asked at an address.
pub(crate) fn refused(url: &Url) -> Option<&'static str> {
    match url.scheme() {
        Scheme::Http | Scheme::Https if url.userinfo().is_some() => Some("must not contain a password"),
        Scheme::Http | Scheme::Https => None,
        Scheme::File | Scheme::S3 => Some("must begin with http:// or https://"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_for_other_nodes() {
        let refused = |text: &str| refused(&Url::parse(text).unwrap());
        assert_eq!((refused("http://10.0.0.3:5000"), refused("https://node-1.example.org/cache")), (None, None));
        assert!(refused("http://user:password@10.0.0.3").is_some() && refused("s3://bucket").is_some());
    }
}
