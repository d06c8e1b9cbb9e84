//! A `nix-cache-info` that parses is written as a text that parses to the same value.
#![no_main]

use libfuzzer_sys::fuzz_target;
use narval_nix::CacheInfo;

fuzz_target!(|text: &[u8]| {
    if let Ok(info) = CacheInfo::parse(text) {
        assert_eq!(CacheInfo::parse(info.to_string().as_bytes()), Ok(info));
    }
});
