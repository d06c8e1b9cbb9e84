use std::sync::Arc;

use aws_lc_rs::{aead, hkdf};
use ktls_core::{AeadKey, ConnectionTrafficSecrets};
use rustls::{CipherSuite, KeyLog};
use zeroize::Zeroizing;

use crate::io::sync::Mutex;

/// Captures the server's traffic secret (TLS 1.3). The kernel's keys are derived from it, and with each KeyUpdate the
/// next ones (RFC 8446 section 7.2). rustls only exposes it through the key log.
#[derive(Default)]
pub(super) struct SecretCatcher {
    server: Mutex<Option<Zeroizing<Vec<u8>>>>,
}

const SERVER_SECRET: &str = "SERVER_TRAFFIC_SECRET_0";

impl SecretCatcher {
    pub(super) fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Takes the secret. Returns `None` before the handshake has completed, and with TLS 1.2.
    pub(super) fn take(&self) -> Option<Zeroizing<Vec<u8>>> {
        self.server.lock().take()
    }
}

impl std::fmt::Debug for SecretCatcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SecretCatcher(..)")
    }
}

impl KeyLog for SecretCatcher {
    fn log(&self, label: &str, _client_random: &[u8], secret: &[u8]) {
        if label == SERVER_SECRET {
            *self.server.lock() = Some(Zeroizing::new(secret.to_vec()));
        }
    }

    fn will_log(&self, label: &str) -> bool {
        label == SERVER_SECRET
    }
}

/// The traffic secret of one direction of a TLS 1.3 connection.
#[derive(Clone)]
pub(super) struct TrafficSecret {
    suite: Suite,
    secret: Zeroizing<Vec<u8>>,
}

/// The suites of TLS 1.3 that the kernel supports.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Suite {
    Aes128Gcm,
    Aes256Gcm,
    Chacha20Poly1305,
}

impl TrafficSecret {
    /// Returns `None` if the kernel does not support the suite.
    pub(super) fn new(suite: CipherSuite, secret: Zeroizing<Vec<u8>>) -> Option<Self> {
        let suite = match suite {
            CipherSuite::TLS13_AES_128_GCM_SHA256 => Suite::Aes128Gcm,
            CipherSuite::TLS13_AES_256_GCM_SHA384 => Suite::Aes256Gcm,
            CipherSuite::TLS13_CHACHA20_POLY1305_SHA256 => Suite::Chacha20Poly1305,
            _ => return None,
        };
        Some(Self { suite, secret })
    }

    /// The maximum number of records for one key (RFC 8446 section 5.5; not reachable for ChaCha20).
    pub(super) fn records_max(&self) -> u64 {
        match self.suite {
            Suite::Aes128Gcm | Suite::Aes256Gcm => 1 << 24,
            Suite::Chacha20Poly1305 => u64::MAX,
        }
    }

    /// Derives the secret of the next generation, as a KeyUpdate does.
    pub(super) fn update(&mut self) -> Option<()> {
        let length = self.secret.len();
        self.secret = self.expand(b"traffic upd", length)?;
        Some(())
    }

    /// Key and IV in the kernel's format: the first four bytes of an AES-GCM IV are its "salt".
    pub(super) fn keys(&self) -> Option<ConnectionTrafficSecrets> {
        let iv = self.expand(b"iv", 12)?;
        let (salt, rest) = iv.split_at_checked(4)?;
        let (salt, rest) = (salt.try_into().ok()?, rest.try_into().ok()?);
        Some(match self.suite {
            Suite::Aes128Gcm => {
                ConnectionTrafficSecrets::Aes128Gcm { key: AeadKey::new(self.key::<16>()?), iv: rest, salt }
            }
            Suite::Aes256Gcm => {
                ConnectionTrafficSecrets::Aes256Gcm { key: AeadKey::new(self.key::<32>()?), iv: rest, salt }
            }
            Suite::Chacha20Poly1305 => ConnectionTrafficSecrets::Chacha20Poly1305 {
                key: AeadKey::new(self.key::<32>()?),
                iv: iv.as_slice().try_into().ok()?,
                salt: [],
            },
        })
    }

    /// Key and IV for encryption in user space.
    pub(super) fn aead(&self) -> Option<(aead::LessSafeKey, [u8; aead::NONCE_LEN])> {
        let algorithm = match self.suite {
            Suite::Aes128Gcm => &aead::AES_128_GCM,
            Suite::Aes256Gcm => &aead::AES_256_GCM,
            Suite::Chacha20Poly1305 => &aead::CHACHA20_POLY1305,
        };
        let iv = self.expand(b"iv", aead::NONCE_LEN)?.as_slice().try_into().ok()?;
        let key = aead::UnboundKey::new(algorithm, &self.expand(b"key", algorithm.key_len())?).ok()?;
        Some((aead::LessSafeKey::new(key), iv))
    }

    fn key<const N: usize>(&self) -> Option<[u8; N]> {
        self.expand(b"key", N)?.as_slice().try_into().ok()
    }

    /// HKDF-Expand-Label with an empty context (RFC 8446 section 7.1).
    fn expand(&self, label: &[u8], length: usize) -> Option<Zeroizing<Vec<u8>>> {
        struct Length(usize);
        impl hkdf::KeyType for Length {
            fn len(&self) -> usize {
                self.0
            }
        }
        let hash = match self.suite {
            Suite::Aes256Gcm => hkdf::HKDF_SHA384,
            Suite::Aes128Gcm | Suite::Chacha20Poly1305 => hkdf::HKDF_SHA256,
        };
        let length_16 = u16::try_from(length).ok()?.to_be_bytes();
        let label_length = [u8::try_from(b"tls13 ".len() + label.len()).ok()?];
        let info: [&[u8]; 5] = [&length_16, &label_length, b"tls13 ", label, &[0]];
        let prk = hkdf::Prk::new_less_safe(hash, &self.secret);
        let mut out = Zeroizing::new(vec![0; length]);
        prk.expand(&info, Length(length)).ok()?.fill(&mut out).ok()?;
        Some(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc_8448_section_3_application_keys() {
        let hex = |s: &str| -> Vec<u8> {
            (0..s.len()).step_by(2).map(|i| u8::from_str_radix(&s[i..i + 2], 16).unwrap()).collect()
        };
        // RFC 8448 section 3: server_application_traffic_secret_0 and the write key and IV derived from it.
        let secret = hex("a11af9f05531f856ad47116b45a950328204b4f44bfb6b3a4b4f1f3fcb631643");
        let secret = TrafficSecret::new(CipherSuite::TLS13_AES_128_GCM_SHA256, Zeroizing::new(secret)).unwrap();
        assert_eq!(secret.key::<16>().unwrap().to_vec(), hex("9f02283b6c9c07efc26bb9f2ac92e356"));
        assert_eq!(secret.expand(b"iv", 12).unwrap().to_vec(), hex("cf782b88dd83549aadf1e984"));
    }
}
