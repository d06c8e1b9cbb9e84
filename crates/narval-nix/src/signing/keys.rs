//! Ed25519 keys in Nix's text form, signing, and the check against trusted keys.
//!
//! Format: Nix `libutil/signature/local-keys.cc`: public `<name>:<base64 of 32 bytes>`, secret
//! `<name>:<base64 of 64 bytes>`, the seed followed by the public key (libsodium's layout).

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use base64::{Engine, engine::general_purpose::STANDARD};
use ed25519_dalek::{Signer, SigningKey, VerifyingKey};
use thiserror::Error;
use zeroize::Zeroizing;

use crate::signing::signature::{KeyTextError, Signature, check_key_name, parse_named};

/// A public key and its name.
///
/// ```
/// use narval_nix::PublicKey;
/// let text = "cache.nixos.org-1:6NCHdD59X431o0gWypbMrAURkbJ16ZPMQFGspcDShjY=";
/// assert_eq!(text.parse::<PublicKey>().unwrap().to_string(), text);
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct PublicKey {
    name: Box<str>,
    key: VerifyingKey,
}

impl PublicKey {
    /// The name of the key.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns whether `signature` is this key's signature of `message`. Key names must match, too.
    pub fn verify(&self, message: &[u8], signature: &Signature) -> bool {
        let bytes = ed25519_dalek::Signature::from_bytes(signature.bytes());
        *self.name == *signature.key_name() && self.key.verify_strict(message, &bytes).is_ok()
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.name, STANDARD.encode(self.key.as_bytes()))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for PublicKey {
    type Err = KeyTextError;

    fn from_str(text: &str) -> Result<Self, KeyTextError> {
        let mut bytes = [0; 32];
        let name = parse_named(text, &mut bytes)?.into();
        let key = VerifyingKey::from_bytes(&bytes).map_err(|_| KeyTextError::PublicKey)?;
        Ok(Self { name, key })
    }
}

/// The operating system's random number generator failed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("cannot generate a key: no random numbers from the system ({reason})")]
pub struct RandomError {
    reason: String,
}

/// Why a key could not be generated.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum GenerateError {
    /// The name is not a valid key name.
    #[error(transparent)]
    Name(#[from] KeyTextError),
    /// The operating system's random number generator failed.
    #[error(transparent)]
    Random(#[from] RandomError),
}

/// Asks for a signature of a message, as `<key name>:<base64>`, or says why there is none.
pub type Ask = dyn Fn(&[u8]) -> Result<String, String> + Send + Sync;

/// Why a key did not sign.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("the key '{key}' does not sign: {reason}")]
pub struct SignError {
    key: Box<str>,
    reason: String,
}

/// A key that signs, and its name: the secret is here, or somewhere else, where it is asked for signatures. Zeroed in memory when dropped;
/// `Debug` prints only the name.
#[derive(Clone)]
pub struct SecretKey {
    name: Box<str>,
    key: Secret,
}

#[derive(Clone)]
enum Secret {
    Here(Box<SigningKey>),
    Elsewhere(Box<PublicKey>, Arc<Ask>),
}

impl SecretKey {
    /// Generates a key with this name (by convention a host name and a number, such as `cache.example.org-1`).
    pub fn generate(name: &str) -> Result<Self, GenerateError> {
        check_key_name(name)?;
        let mut seed = Zeroizing::new([0; 32]);
        getrandom::fill(seed.as_mut_slice()).map_err(|error| RandomError { reason: error.to_string() })?;
        Ok(Self { name: name.into(), key: Secret::Here(SigningKey::from_bytes(&seed).into()) })
    }

    /// Parses the contents of a key file, ignoring surrounding white space.
    pub fn parse_file(contents: &str) -> Result<Self, KeyTextError> {
        let mut bytes = Zeroizing::new([0; 64]);
        let name = parse_named(contents.trim(), bytes.as_mut_slice())?.into();
        let key = SigningKey::from_keypair_bytes(&bytes).map_err(|_| KeyTextError::SecretKey)?;
        Ok(Self { name, key: Secret::Here(key.into()) })
    }

    /// A key whose secret is elsewhere. Signatures that this public key does not verify are not used.
    pub fn elsewhere(public_key: PublicKey, ask: Arc<Ask>) -> Self {
        Self { name: public_key.name.clone(), key: Secret::Elsewhere(public_key.into(), ask) }
    }

    /// The contents of a key file as Nix writes it, without a newline; `None` if the secret is elsewhere.
    pub fn to_file_text(&self) -> Option<Zeroizing<String>> {
        let Secret::Here(key) = &self.key else { return None };
        let pair = Zeroizing::new(key.to_keypair_bytes());
        let base64 = Zeroizing::new(STANDARD.encode(pair.as_slice()));
        Some(Zeroizing::new(format!("{}:{}", self.name, base64.as_str())))
    }

    /// The name of the key.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The corresponding public key.
    pub fn public_key(&self) -> PublicKey {
        match &self.key {
            Secret::Here(key) => PublicKey { name: self.name.clone(), key: key.verifying_key() },
            Secret::Elsewhere(public_key, _) => PublicKey::clone(public_key),
        }
    }

    /// Whether the secret is elsewhere: then signing takes time, and can fail.
    pub const fn is_elsewhere(&self) -> bool {
        matches!(self.key, Secret::Elsewhere(..))
    }

    /// Whether it signs in the same way as another one: the same secret, or the same command to ask.
    pub fn is_same(&self, other: &Self) -> bool {
        let asks_the_same = match (&self.key, &other.key) {
            (Secret::Here(_), Secret::Here(_)) => true,
            (Secret::Elsewhere(_, ask), Secret::Elsewhere(_, other)) => Arc::ptr_eq(ask, other),
            _ => false,
        };
        asks_the_same && self.public_key() == other.public_key()
    }

    /// Signs a message, such as a [`fingerprint`](crate::signing::signature::fingerprint).
    ///
    /// # Errors
    /// The secret is elsewhere, and there is no valid signature from there.
    pub fn sign(&self, message: &[u8]) -> Result<Signature, SignError> {
        match &self.key {
            // The name was checked when the key was created.
            Secret::Here(key) => Ok(Signature::from_checked(&self.name, key.sign(message).to_bytes())),
            Secret::Elsewhere(public_key, ask) => {
                let failed = |reason: String| SignError { key: self.name.clone(), reason };
                let text = ask(message).map_err(failed)?;
                let signature: Signature =
                    text.trim().parse().map_err(|error| failed(format!("no signature came back: {error}")))?;
                match public_key.verify(message, &signature) {
                    true => Ok(signature),
                    false => Err(failed("what came back is not its signature of this text".to_owned())),
                }
            }
        }
    }
}

impl fmt::Debug for SecretKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SecretKey({}:…)", self.name)
    }
}

/// A set of trusted public keys. Several keys may have the same name.
#[derive(Debug, Clone, Default)]
pub struct TrustedKeys {
    by_name: HashMap<Box<str>, Vec<PublicKey>>,
}

impl TrustedKeys {
    /// An empty set: no signature verifies.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a key.
    pub fn add(&mut self, key: PublicKey) {
        self.by_name.entry(key.name.clone()).or_default().push(key);
    }

    /// Parses keys separated by white space, as in Nix's `trusted-public-keys`.
    pub fn parse_list(text: &str) -> Result<Self, KeyTextError> {
        text.split_whitespace().map(PublicKey::from_str).collect()
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    /// Whether this very key is trusted.
    pub fn contains(&self, key: &PublicKey) -> bool {
        self.by_name.get(&key.name).is_some_and(|keys| keys.contains(key))
    }

    /// Whether a key of this name is trusted.
    pub fn has_name(&self, name: &str) -> bool {
        self.by_name.contains_key(name)
    }

    /// Returns the first of `signatures` that is a trusted key's signature of `message`.
    pub fn find_valid<'a>(
        &self,
        message: &[u8],
        signatures: impl IntoIterator<Item = &'a Signature>,
    ) -> Option<&'a Signature> {
        signatures.into_iter().find(|signature| {
            let keys = self.by_name.get(signature.key_name()).map_or(&[][..], Vec::as_slice);
            keys.iter().any(|key| key.verify(message, signature))
        })
    }
}

impl FromIterator<PublicKey> for TrustedKeys {
    fn from_iter<I: IntoIterator<Item = PublicKey>>(keys: I) -> Self {
        let mut trusted = Self::new();
        keys.into_iter().for_each(|key| trusted.add(key));
        trusted
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::NarHash;
    use crate::signing::signature::fingerprint;
    use crate::store_path::{StoreDir, StorePath};
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    const KEY: &str = "cache.nixos.org-1:6NCHdD59X431o0gWypbMrAURkbJ16ZPMQFGspcDShjY=";
    const SIG: &str =
        "cache.nixos.org-1:sn5s/RrqEI+YG6/PjwdbPjcAC7rcta7sJU4mFOawGvJBLsWkyLtBrT2EuFt/LJjWkTZ+ZWOI9NTtjo/woMdvAg==";
    const FINGERPRINT: &str = "1;/nix/store/00bgd045z0d4icpbc2yyz4gx48ak44la-net-tools-1.60_p20170221182432;\
        sha256:0lxjvvpr59c2mdram7ympy5ay741f180kv3349hvfc3f8nrmbqf6;464152;\
        /nix/store/7gx4kiv5m0i7d7qkixq2cwzbr10lvxwc-glibc-2.27";

    #[test]
    fn signature_of_cache_nixos_org() {
        let path: StorePath = "00bgd045z0d4icpbc2yyz4gx48ak44la-net-tools-1.60_p20170221182432".parse().unwrap();
        let hash: NarHash = "sha256:0lxjvvpr59c2mdram7ympy5ay741f180kv3349hvfc3f8nrmbqf6".parse().unwrap();
        let references = BTreeSet::from(["7gx4kiv5m0i7d7qkixq2cwzbr10lvxwc-glibc-2.27".parse().unwrap()]);
        let text = fingerprint(&StoreDir::default(), &path, &hash, 464_152, &references);
        assert_eq!(text, FINGERPRINT);
        let (key, signature): (PublicKey, Signature) = (KEY.parse().unwrap(), SIG.parse().unwrap());
        assert!(key.verify(text.as_bytes(), &signature));
        assert!(!key.verify(&text.as_bytes()[1..], &signature));
        let trusted: TrustedKeys = [key].into_iter().collect();
        assert_eq!(trusted.find_valid(text.as_bytes(), [&signature]), Some(&signature));
        let renamed = Signature::new("other-1", *signature.bytes()).unwrap();
        assert_eq!(trusted.find_valid(text.as_bytes(), [&renamed]), None);
        assert_eq!(TrustedKeys::new().find_valid(text.as_bytes(), [&signature]), None);
    }

    #[test]
    fn own_keys() {
        let secret = SecretKey::generate("host-1").unwrap();
        let again = SecretKey::parse_file(&format!(" {}\n", secret.to_file_text().unwrap().as_str())).unwrap();
        let signature = again.sign(b"message").unwrap();
        assert_eq!(signature.key_name(), "host-1");
        assert!(secret.public_key().verify(b"message", &signature));
        let other = SecretKey::generate("host-1").unwrap();
        assert!(!other.public_key().verify(b"message", &signature));
        // Two keys with the same name: either may have signed.
        let trusted: TrustedKeys = [other.public_key(), secret.public_key()].into_iter().collect();
        assert!(trusted.find_valid(b"message", [&signature]).is_some());
    }

    #[test]
    fn debug_hides_the_secret() {
        let secret = SecretKey::generate("host-1").unwrap();
        assert_eq!(format!("{secret:?}"), "SecretKey(host-1:…)");
    }

    #[test]
    fn halves_that_do_not_belong_together() {
        let (one, two) = (SecretKey::generate("a").unwrap(), SecretKey::generate("a").unwrap());
        let text = one.to_file_text().unwrap();
        let mut bytes = STANDARD.decode(text.strip_prefix("a:").unwrap()).unwrap();
        bytes[32..].copy_from_slice(two.public_key().key.as_bytes());
        let text = format!("a:{}", STANDARD.encode(bytes));
        assert_eq!(SecretKey::parse_file(&text).unwrap_err(), KeyTextError::SecretKey);
    }

    #[test]
    fn refused() {
        assert_eq!("name".parse::<PublicKey>(), Err(KeyTextError::NoColon));
        assert_eq!(":AAAA".parse::<PublicKey>(), Err(KeyTextError::Name));
        assert_eq!("a b:AAAA".parse::<Signature>(), Err(KeyTextError::Name));
        assert_eq!("a\n:AAAA".parse::<Signature>(), Err(KeyTextError::Name));
        assert_eq!("a:AAAA".parse::<Signature>(), Err(KeyTextError::Base64 { expected: 64 }));
        assert_eq!("a:".parse::<PublicKey>(), Err(KeyTextError::Base64 { expected: 32 }));
        assert_eq!(SIG.replace("==", "").parse::<Signature>(), Err(KeyTextError::Base64 { expected: 64 }));
        assert!(matches!(SecretKey::generate("a:b"), Err(GenerateError::Name(_))));
        assert!(TrustedKeys::parse_list(&format!("{KEY} {SIG}")).is_err());
        assert!(!TrustedKeys::parse_list(&format!(" {KEY}\n")).unwrap().is_empty());
    }

    proptest! {
        #[test]
        fn signature_round_trip(name in "[a-z][a-z0-9.-]{0,30}", half in any::<[u8; 32]>(), other in any::<[u8; 32]>()) {
            let mut bytes = [0; 64];
            bytes[..32].copy_from_slice(&half);
            bytes[32..].copy_from_slice(&other);
            let signature = Signature::new(&name, bytes).unwrap();
            prop_assert_eq!(signature.to_string().parse(), Ok(signature));
        }
    }
}
