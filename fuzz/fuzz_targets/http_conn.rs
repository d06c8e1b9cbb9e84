//! A single HTTP/1 connection: the first eight bytes choose the events, the rest is what the client sends.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Some((seed, input)) = data.split_first_chunk() else { return };
    narval_http::sim::connection(u64::from_le_bytes(*seed), input);
});
