use crate::io::sim::Wire;

/// Translates between plaintext and the bytes on the wire.
pub(super) trait Layer {
    /// Adds plaintext from the client.
    fn send(&mut self, bytes: &[u8]);

    /// Consumes what has arrived, and sends what is pending.
    fn exchange(&mut self, wire: &mut Wire);

    /// All plaintext from the server.
    fn received(&self) -> &[u8];

    /// Whether the server has ended its side.
    fn has_ended(&self) -> bool;
}
