//! Integers with an N-bit prefix (RFC 7541 §5.1).

use super::HpackError;

/// Octets after the prefix. Four carry 28 bits, more than any permitted length or index.
const CONTINUATION_MAX: usize = 4;

/// Parses an integer with `first` as its first octet; further octets are taken from `rest`.
pub(super) fn decode(first: u8, prefix_bits: u32, rest: &mut &[u8]) -> Result<usize, HpackError> {
    let prefix_max = prefix_max(prefix_bits);
    let mut value = usize::from(first) & prefix_max;
    if value < prefix_max {
        return Ok(value);
    }
    for position in 0..CONTINUATION_MAX {
        let (&octet, after) = rest.split_first().ok_or(HpackError::Truncated)?;
        *rest = after;
        value += usize::from(octet & 0x7f) << (7 * position);
        if octet & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(HpackError::Integer)
}

/// Appends `value`, with `flags` in the bits above the prefix.
pub(super) fn encode(value: usize, prefix_bits: u32, flags: u8, out: &mut Vec<u8>) {
    let prefix_max = prefix_max(prefix_bits);
    if value < prefix_max {
        out.push(flags | low_octet(value));
        return;
    }
    out.push(flags | low_octet(prefix_max));
    let mut rest = value - prefix_max;
    while rest >= 0x80 {
        out.push(low_octet(rest & 0x7f) | 0x80);
        rest >>= 7;
    }
    out.push(low_octet(rest));
}

const fn prefix_max(prefix_bits: u32) -> usize {
    (1 << prefix_bits) - 1
}

fn low_octet(value: usize) -> u8 {
    (value & 0xff) as u8
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn encoded(value: usize, prefix_bits: u32) -> Vec<u8> {
        let mut out = Vec::new();
        encode(value, prefix_bits, 0, &mut out);
        out
    }

    #[test]
    fn examples_of_the_rfc() {
        assert_eq!(encoded(10, 5), [0b01010]);
        assert_eq!(encoded(1337, 5), [0b11111, 0b1001_1010, 0b1010]);
        assert_eq!(encoded(42, 8), [42]);
    }

    #[test]
    fn long_and_truncated_integers_are_refused() {
        assert_eq!(decode(0x7f, 7, &mut &[0xff, 0xff, 0xff, 0x7f][..]), Ok(127 + (1 << 28) - 1));
        assert_eq!(decode(0x7f, 7, &mut &[0xff, 0xff, 0xff, 0xff, 0x01][..]), Err(HpackError::Integer));
        assert_eq!(decode(0x7f, 7, &mut &[0x80, 0x80, 0x80, 0x80, 0x00][..]), Err(HpackError::Integer));
        assert_eq!(decode(0x7f, 7, &mut &[0xff, 0xff][..]), Err(HpackError::Truncated));
    }

    proptest! {
        #[test]
        fn what_is_encoded_decodes(value in 0..1usize << 28, prefix_bits in 4..=8u32) {
            let out = encoded(value, prefix_bits);
            let (first, mut rest) = out.split_first().unwrap();
            prop_assert_eq!(decode(*first, prefix_bits, &mut rest), Ok(value));
            prop_assert!(rest.is_empty());
        }
    }
}
