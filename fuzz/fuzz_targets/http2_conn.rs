//! An HTTP/2 connection alone: the first eight bytes choose what happens to it, the rest is what its client sends behind its
//! preface.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Some((seed, input)) = data.split_first_chunk() else { return };
    narval_http::sim::http2_connection(u64::from_le_bytes(*seed), input);
});
