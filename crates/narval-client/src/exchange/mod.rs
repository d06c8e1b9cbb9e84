//! One request and its response: the client, bodies in both directions, and the probe of an address.

pub(crate) mod body;
pub(crate) mod client;
pub(crate) mod probe;
pub(crate) mod request;
pub(crate) mod upload;
