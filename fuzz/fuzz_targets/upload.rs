//! Uploads of NARs in any compression are verified or refused, without a panic and in bounded memory.
#![no_main]

use libfuzzer_sys::fuzz_target;
use narval_keep::verify_anything;
use narval_nix::nar::Decoder;
use narval_nix::{Compression, Sha256};

fn is_nar(bytes: &[u8]) -> bool {
    let (mut decoder, mut rest) = (Decoder::new(), bytes);
    loop {
        match decoder.next(rest) {
            Ok((used, Some(_))) => rest = &rest[used..],
            Ok((_, None)) => return decoder.finish().is_ok(),
            Err(_) => return false,
        }
    }
}

fuzz_target!(|input: &[u8]| {
    let Some((first, bytes)) = input.split_first() else { return };
    let compression = Compression::ALL[usize::from(*first) % Compression::ALL.len()];
    let verified = verify_anything(bytes, Some(compression));
    if compression == Compression::None {
        // Without an extension, the contents tell the compression.
        if bytes.starts_with(b"\x0d\0\0\0\0\0\0\0nix-archive-1") {
            assert_eq!(verified.is_ok(), is_nar(bytes));
        }
        if let Ok((hash, size)) = verified
            && size == bytes.len() as u64
        {
            assert_eq!(hash, Sha256::of(bytes));
        }
    }
});
