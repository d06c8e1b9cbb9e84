//! The server, with a single client that speaks HTTP/1: the first eight bytes are the seed, the rest is what it sends.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Some((seed, input)) = data.split_first_chunk() else { return };
    narval_http::sim::http1_connection(u64::from_le_bytes(*seed), input).expect("a memory file");
});
