//! A realisation that parses is written as a text that parses to the same value.
#![no_main]

use libfuzzer_sys::fuzz_target;
use narval_nix::realisation::{BuildTrace, BuildTraceKey, DrvOutput, Realisation};

fuzz_target!(|input: &[u8]| {
    if let Ok(trace) = BuildTrace::parse(input) {
        assert_eq!(BuildTrace::parse(trace.to_json().as_bytes()), Ok(trace));
    }
    if let Ok(realisation) = Realisation::parse(input) {
        let _ = realisation.signed_text();
        assert_eq!(Realisation::parse(realisation.to_json().as_bytes()), Ok(realisation));
    }
    if let Ok(text) = std::str::from_utf8(input) {
        if let Ok(key) = text.parse::<BuildTraceKey>() {
            assert_eq!(key.to_string(), text);
        }
        if let Ok(id) = text.parse::<DrvOutput>() {
            assert_eq!(id.to_string().parse(), Ok(id));
        }
    }
});
