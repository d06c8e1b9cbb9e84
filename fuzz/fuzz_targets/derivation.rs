//! The outputs of a derivation are bounded in number and have distinct names.
#![no_main]

use std::collections::BTreeSet;

use libfuzzer_sys::fuzz_target;
use narval_nix::{StoreDir, derivation};

fuzz_target!(|text: &[u8]| {
    if let Ok(outputs) = derivation::parse_outputs(text, &StoreDir::default()) {
        let names: BTreeSet<_> = outputs.iter().map(|output| &output.name).collect();
        assert!(!outputs.is_empty() && names.len() == outputs.len() && outputs.len() <= derivation::OUTPUTS_MAX);
    }
});
