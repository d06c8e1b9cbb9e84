//! The key with which a server authenticates its [receipts](super::receipt), and whoever reads the index verifies them.

use aws_lc_rs::hmac;
use zeroize::Zeroizing;

/// The length of a key in bytes.
pub(crate) const RECEIPT_KEY_LEN: usize = 32;

/// The key of a writer.
#[derive(Clone)]
pub(crate) struct ReceiptKey(Zeroizing<[u8; RECEIPT_KEY_LEN]>);

impl ReceiptKey {
    pub(crate) fn new(bytes: [u8; RECEIPT_KEY_LEN]) -> Self {
        Self(Zeroizing::new(bytes))
    }

    /// A new one.
    pub(crate) fn random() -> Result<Self, getrandom::Error> {
        let mut bytes = Zeroizing::new([0; RECEIPT_KEY_LEN]);
        getrandom::fill(&mut *bytes)?;
        Ok(Self(bytes))
    }

    pub(crate) fn bytes(&self) -> &[u8; RECEIPT_KEY_LEN] {
        &self.0
    }

    /// For authenticating receipts.
    pub(crate) fn hmac(&self) -> hmac::Key {
        hmac::Key::new(hmac::HMAC_SHA256, &*self.0)
    }
}
