//! A text that decodes is the only encoding of its bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use narval_nix::nix32;

fuzz_target!(|text: &[u8]| {
    let mut bytes = vec![0; text.len() * 5 / 8];
    if nix32::decode_into(text, &mut bytes).is_ok() {
        assert_eq!(nix32::encode(&bytes).as_bytes(), text);
    }
});
