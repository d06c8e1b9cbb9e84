//! A single HTTP/2 connection: the first eight bytes choose the events, the rest is what the client sends after its
//! preface.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Some((seed, input)) = data.split_first_chunk() else { return };
    narval_http::sim::http2_connection(u64::from_le_bytes(*seed), input);
});
