//! Any reply of a daemon gives a result or an error: no panic, and no allocation for a length that is only announced.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| narval_store::read_anything(bytes));
