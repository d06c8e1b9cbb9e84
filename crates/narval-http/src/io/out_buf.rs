use bytes::{Buf, Bytes};

/// Bytes to send: a buffer of its own, followed by a shared body.
#[derive(Debug, Default)]
pub(crate) struct OutBuf {
    /// Heads and small bodies.
    pub(crate) memory: Vec<u8>,
    /// A large body after them.
    pub(crate) tail: Bytes,
    /// The number of bytes of `memory` that have been sent.
    pub(crate) sent: usize,
    /// Only the connection's end follows. A partial packet is held back, so that it is sent together with the FIN.
    pub(crate) ends: bool,
}

impl OutBuf {
    /// The rest of `memory`.
    pub(crate) fn rest(&self) -> &[u8] {
        self.memory.get(self.sent..).unwrap_or_default()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.sent >= self.memory.len() && self.tail.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.rest().len() + self.tail.len()
    }

    /// Removes `n` bytes that were sent.
    pub(crate) fn advance(&mut self, n: usize) {
        let of_memory = n.min(self.rest().len());
        self.sent += of_memory;
        self.tail.advance((n - of_memory).min(self.tail.len()));
    }

    /// Clears it and keeps the allocation.
    pub(crate) fn clear(&mut self) {
        self.memory.clear();
        self.sent = 0;
        self.tail = Bytes::new();
        self.ends = false;
    }
}
