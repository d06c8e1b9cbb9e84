//! Whatever a daemon sends: an answer or an error, no panic, no memory for lengths that are only announced.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| narval_store::read_anything(bytes));
