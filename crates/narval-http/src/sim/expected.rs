//! What a simulated client expects.

/// An expected response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Expected {
    pub(crate) status: u16,
    pub(crate) body: Vec<u8>,
    pub(crate) is_head: bool,
}

/// How many streams a client that uploads over HTTP/2 has at most.
#[cfg(test)]
pub(super) const UPLOADS_MAX: usize = 3;
