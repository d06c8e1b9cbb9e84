use bytes::{Buf, Bytes};

/// Bytes to be sent: some that were put together for it, then a shared body.
#[derive(Debug, Default)]
pub(crate) struct OutBuf {
    /// Heads, and small bodies.
    pub(crate) memory: Vec<u8>,
    /// A large body behind them.
    pub(crate) tail: Bytes,
    /// How much of `memory` has been sent.
    pub(crate) sent: usize,
    /// Nothing follows but the connection's end: what fills no packet waits for it, so that the two are one packet.
    pub(crate) ends: bool,
}

impl OutBuf {
    /// What is left of `memory`.
    pub(crate) fn rest(&self) -> &[u8] {
        self.memory.get(self.sent..).unwrap_or_default()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.sent >= self.memory.len() && self.tail.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.rest().len() + self.tail.len()
    }

    /// Takes off `n` bytes that were sent.
    pub(crate) fn advance(&mut self, n: usize) {
        let of_memory = n.min(self.rest().len());
        self.sent += of_memory;
        self.tail.advance((n - of_memory).min(self.tail.len()));
    }

    /// Makes it empty, and keeps the allocation.
    pub(crate) fn clear(&mut self) {
        self.memory.clear();
        self.sent = 0;
        self.tail = Bytes::new();
        self.ends = false;
    }
}
