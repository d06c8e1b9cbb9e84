//! Signatures and keys that parse are written the same way again, and are usable.
#![no_main]

use libfuzzer_sys::fuzz_target;
use narval_nix::{PublicKey, SecretKey, Signature, TrustedKeys};

fuzz_target!(|text: &str| {
    if let Ok(signature) = text.parse::<Signature>() {
        assert_eq!(signature.to_string(), text);
    }
    if let Ok(key) = text.parse::<PublicKey>() {
        assert_eq!(key.to_string(), text);
        let signature = Signature::new(key.name(), [7; 64]).expect("the name of a key is one");
        assert!(!key.verify(b"message", &signature));
    }
    if let Ok(key) = SecretKey::parse_file(text) {
        assert_eq!(key.to_file_text().unwrap().as_str(), text.trim());
        assert!(key.public_key().verify(b"message", &key.sign(b"message").unwrap()));
    }
    let _ = TrustedKeys::parse_list(text);
});
