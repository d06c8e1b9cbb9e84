//! The whole server on the simulated kernel: the first eight bytes are the seed, the rest is what clients send.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Some((seed, input)) = data.split_first_chunk() else { return };
    narval_http::sim::garbage(u64::from_le_bytes(*seed), input).expect("a memory file");
});
