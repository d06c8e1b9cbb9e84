//! The secret by which nodes recognise each other. It is in the database, so a node is whoever can read that.

use narval_nix::Sha256;
use zeroize::Zeroizing;

/// The secret of all nodes.
pub(crate) struct PeerSecret(Zeroizing<String>);

impl PeerSecret {
    #[cfg_attr(
        not(feature = "postgres"),
        allow(dead_code, reason = "the database has the secret; tests make some without it")
    )]
    pub(crate) fn new(text: String) -> Self {
        Self(Zeroizing::new(text))
    }

    /// The value of the field `Authorization`.
    pub(crate) fn authorization(&self) -> Zeroizing<String> {
        Zeroizing::new(format!("Bearer {}", self.0.as_str()))
    }

    /// Whether this is the value of the field `Authorization` of another node. Takes the same time for all values of one length.
    pub(crate) fn is_proven(&self, authorization: &[u8]) -> bool {
        let presented = authorization.strip_prefix(b"Bearer ").unwrap_or_default();
        let (one, other) = (Sha256::of(presented), Sha256::of(self.0.as_bytes()));
        let both = one.as_bytes().iter().zip(other.as_bytes());
        let difference = both.fold(0, |difference, (one, other)| difference | (one ^ other));
        !self.0.is_empty() && std::hint::black_box(difference) == 0
    }
}

impl std::fmt::Debug for PeerSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PeerSecret(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_secret_itself_proves_a_node() {
        let secret = PeerSecret::new("0123456789".to_owned());
        assert!(secret.is_proven(secret.authorization().as_bytes()));
        for wrong in ["", "Bearer ", "Bearer 0123456788", "Bearer 01234567890", "0123456789", "Basic 0123456789"] {
            assert!(!secret.is_proven(wrong.as_bytes()), "{wrong}");
        }
        assert!(!PeerSecret::new(String::new()).is_proven(b"Bearer "));
        assert!(!format!("{secret:?}").contains('0'));
    }
}
