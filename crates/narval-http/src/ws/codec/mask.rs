//! Masking of payloads (RFC 6455 section 5.3).

/// The number of bytes per step: two vector registers of AVX2, or four of SSE2 or NEON.
const STEP: usize = 64;

/// XORs `payload` with the masking key, whose first byte to use is `key[offset % 4]`. Masking twice gives the original.
///
/// The loop has a fixed step over a repeated key, which the compiler vectorises.
pub fn apply(payload: &mut [u8], key: [u8; 4], offset: usize) {
    if key == [0; 4] {
        return;
    }
    let key = rotated(key, offset);
    let mut wide = [0; STEP];
    for (at, byte) in wide.iter_mut().enumerate() {
        *byte = key[at % 4];
    }
    let (steps, rest) = payload.as_chunks_mut::<STEP>();
    for step in steps {
        for (byte, mask) in step.iter_mut().zip(&wide) {
            *byte ^= mask;
        }
    }
    for (byte, mask) in rest.iter_mut().zip(&wide) {
        *byte ^= mask;
    }
}

fn rotated(key: [u8; 4], offset: usize) -> [u8; 4] {
    u32::from_le_bytes(key).rotate_right(8 * (offset % 4) as u32).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn equals_the_octet_wise_definition(payload: Vec<u8>, key: [u8; 4], offset in 0..9usize) {
            let expected: Vec<u8> = payload.iter().enumerate().map(|(i, byte)| byte ^ key[(i + offset) % 4]).collect();
            let mut masked = payload;
            apply(&mut masked, key, offset);
            prop_assert_eq!(masked, expected);
        }

        #[test]
        fn pieces_equal_the_whole(payload: Vec<u8>, key: [u8; 4], cut: prop::sample::Index) {
            let mut whole = payload.clone();
            apply(&mut whole, key, 0);
            let cut = cut.index(payload.len() + 1);
            let mut pieces = payload;
            let (first, second) = pieces.split_at_mut(cut);
            apply(first, key, 0);
            apply(second, key, cut);
            prop_assert_eq!(pieces, whole);
        }
    }
}
