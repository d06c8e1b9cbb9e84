//! Nix's variant of base 32: an alphabet without `e o u t`, least significant five bits last.
//!
//! Format: Nix `libutil/base-nix-32.cc`.

use thiserror::Error;

/// The 32 digits in the order of their values.
pub const ALPHABET: &[u8; 32] = b"0123456789abcdfghijklmnpqrsvwxyz";

/// Marks a byte in [`VALUES`] that is not a digit.
const NO_DIGIT: u8 = 0xff;

/// The value of each byte's digit, or [`NO_DIGIT`].
const VALUES: [u8; 256] = {
    let mut values = [NO_DIGIT; 256];
    let mut value = 0;
    while value < ALPHABET.len() {
        values[ALPHABET[value] as usize] = value as u8;
        value += 1;
    }
    values
};

/// Why text could not be decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Nix32Error {
    /// The text has the wrong length.
    #[error("expected {expected} nix32 characters, found {found}")]
    Length {
        /// The expected number of characters.
        expected: usize,
        /// Characters found.
        found: usize,
    },
    /// A character outside the alphabet (`e`, `o`, `t`, `u` and upper case are outside).
    #[error("character {index} is not in the nix32 alphabet")]
    Character {
        /// The position of the character, starting at 0.
        index: usize,
    },
    /// The first character has bits beyond the last byte.
    #[error("the first character has bits beyond the last byte")]
    Overflow,
}

/// The length of `bytes` bytes in nix32.
pub const fn encoded_len(bytes: usize) -> usize {
    (bytes * 8).div_ceil(5)
}

/// Whether a byte is a nix32 digit.
pub const fn is_digit(byte: u8) -> bool {
    VALUES[byte as usize] != NO_DIGIT
}

/// Encodes `bytes` in nix32.
///
/// ```
/// assert_eq!(narval_nix::nix32::encode(&[0xff, 0x00]), "007z");
/// ```
pub fn encode(bytes: &[u8]) -> String {
    let len = encoded_len(bytes.len());
    let mut text = String::with_capacity(len);
    for group in (0..len).rev() {
        let (index, shift) = (group * 5 / 8, group * 5 % 8);
        let low = bytes[index] >> shift;
        let high = match bytes.get(index + 1) {
            Some(next) if shift > 3 => next << (8 - shift),
            _ => 0,
        };
        text.push(char::from(ALPHABET[usize::from((low | high) & 31)]));
    }
    text
}

/// Whether all characters are nix32 digits.
#[inline]
pub fn has_digits_only(text: &[u8]) -> bool {
    text.iter().all(|&byte| VALUES[usize::from(byte)] != NO_DIGIT)
}

/// Decodes `text` into exactly `out.len()` bytes. Only the canonical encoding is accepted.
pub fn decode_into(text: &[u8], out: &mut [u8]) -> Result<(), Nix32Error> {
    let expected = encoded_len(out.len());
    if text.len() != expected {
        return Err(Nix32Error::Length { expected, found: text.len() });
    }
    out.fill(0);
    for (group, (position, &byte)) in text.iter().enumerate().rev().enumerate() {
        let digit = VALUES[usize::from(byte)];
        if digit == NO_DIGIT {
            return Err(Nix32Error::Character { index: position });
        }
        let (index, shift) = (group * 5 / 8, group * 5 % 8);
        let wide = u16::from(digit) << shift;
        let [low, carry] = wide.to_le_bytes();
        out[index] |= low;
        match out.get_mut(index + 1) {
            Some(next) => *next |= carry,
            None if carry != 0 => return Err(Nix32Error::Overflow),
            None => {}
        }
    }
    Ok(())
}

/// Decodes `text` into `N` bytes. Only the canonical encoding is accepted.
pub fn decode<const N: usize>(text: &[u8]) -> Result<[u8; N], Nix32Error> {
    let mut out = [0; N];
    decode_into(text, &mut out)?;
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn known_lengths() {
        assert_eq!([16, 20, 32, 64].map(encoded_len), [26, 32, 52, 103]);
    }

    #[test]
    fn letters_outside_the_alphabet() {
        for byte in *b"eotuEA-_ /\0\xff" {
            assert!(!is_digit(byte));
            assert_eq!(decode::<1>(&[b'0', byte]), Err(Nix32Error::Character { index: 1 }));
        }
    }

    #[test]
    fn bits_beyond_the_last_byte() {
        assert_eq!(decode::<1>(b"7z"), Ok([0xff]));
        assert_eq!(decode::<1>(b"8z"), Err(Nix32Error::Overflow));
        assert_eq!(decode::<1>(b"zz"), Err(Nix32Error::Overflow));
    }

    #[test]
    fn wrong_length() {
        assert_eq!(decode::<1>(b"0"), Err(Nix32Error::Length { expected: 2, found: 1 }));
        assert_eq!(decode::<0>(b""), Ok([]));
    }

    proptest! {
        #[test]
        fn round_trip(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let text = encode(&bytes);
            prop_assert_eq!(text.len(), encoded_len(bytes.len()));
            let mut back = vec![0; bytes.len()];
            decode_into(text.as_bytes(), &mut back).unwrap();
            prop_assert_eq!(back, bytes);
        }

        #[test]
        fn decoding_is_injective(text in "[0-9a-z]{52}") {
            if let Ok(bytes) = decode::<32>(text.as_bytes()) {
                prop_assert_eq!(encode(&bytes), text);
            }
        }
    }
}
