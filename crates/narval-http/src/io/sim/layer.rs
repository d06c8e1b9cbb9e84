use super::network::Wire;

/// What turns bytes into those on the wire, and back.
pub(super) trait Layer {
    /// Takes what the client says.
    fn send(&mut self, bytes: &[u8]);

    /// Takes what has arrived, and sends what is to be sent.
    fn exchange(&mut self, wire: &mut Wire);

    /// All that the server has said.
    fn received(&self) -> &[u8];

    /// The server has said that this is all.
    fn has_ended(&self) -> bool;
}
