//! A hash that parses is written the same way again, with lower-case hex.
#![no_main]

use libfuzzer_sys::fuzz_target;
use narval_nix::hash::{Encoding, Hash};

fuzz_target!(|text: &str| {
    if let Ok((hash, encoding)) = Hash::parse(text) {
        let again = hash.render(encoding);
        if encoding == Encoding::Hex {
            assert_eq!(again, text.to_ascii_lowercase());
        } else {
            assert_eq!(again, text);
        }
    }
});
