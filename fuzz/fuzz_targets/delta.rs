//! A delta ends, in the NAR or in an error, without more memory than the window; what is made of the input comes back.
#![no_main]

use std::io::Read;

use libfuzzer_sys::fuzz_target;
use narval_codec::decode::DeltaDecoder;
use narval_codec::encode::{is_delta_of, make_delta};
use narval_nix::Sha256;

/// No input of the fuzzer has more contents than this in a frame that is worth decoding to its end.
const CONTENTS_MAX: u64 = 64 << 20;

fuzz_target!(|input: &[u8]| {
    let base: Vec<u8> = (0..40_000u32).flat_map(|number| number.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    let hash = Sha256::of(&base);
    // As it is, and behind a valid header.
    let header = [&[0x5e, 0x2a, 0x4d, 0x18, 0x20, 0, 0, 0][..], hash.as_bytes()].concat();
    for delta in [input.to_vec(), [&header[..], input].concat()] {
        if let Ok(decoder) = DeltaDecoder::new(&delta[..], base.clone(), &hash) {
            let mut nar = Vec::new();
            let read = decoder.take(CONTENTS_MAX).read_to_end(&mut nar);
            assert!(read.is_err() || nar.len() as u64 <= CONTENTS_MAX);
        }
        let _ = is_delta_of(&delta, &base, input).expect("the context can be created");
    }
    let cut = input.len() * 100 % base.len();
    let nar = [&base[cut..], input, &base[..cut]].concat();
    let delta = make_delta((&base, &hash), &nar, nar.len()).expect("zstd works").expect("it is smaller");
    let mut undone = Vec::new();
    DeltaDecoder::new(&delta[..], base, &hash).expect("a header").read_to_end(&mut undone).expect("a delta");
    assert_eq!(undone, nar);
});
