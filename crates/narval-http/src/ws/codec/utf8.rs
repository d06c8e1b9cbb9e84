//! UTF-8 validated as it arrives, so that a text message fails at the octet that makes it invalid.

use simdutf8::compat;

/// The state between two pieces of a text message: the octets of an incomplete character.
#[derive(Clone, Copy, Debug, Default)]
pub struct Utf8Check {
    partial: [u8; 4],
    partial_len: u8,
}

/// The text is not UTF-8.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("text that is not UTF-8")]
pub struct InvalidUtf8;

impl Utf8Check {
    /// Validates the next piece.
    ///
    /// # Errors
    /// [`InvalidUtf8`] as soon as no continuation could make the text valid.
    pub fn feed(&mut self, mut piece: &[u8]) -> Result<(), InvalidUtf8> {
        while self.partial_len > 0 {
            let Some((&byte, rest)) = piece.split_first() else { return Ok(()) };
            piece = rest;
            self.extend_partial(byte)?;
        }
        match compat::from_utf8(piece) {
            Ok(_) => Ok(()),
            Err(error) if error.error_len().is_some() => Err(InvalidUtf8),
            Err(error) => {
                piece.get(error.valid_up_to()..).unwrap_or_default().iter().try_for_each(|&byte| self.push(byte))
            }
        }
    }

    /// Checks that the text ends with a complete character.
    ///
    /// # Errors
    /// [`InvalidUtf8`] if the last character is incomplete.
    pub fn finish(self) -> Result<(), InvalidUtf8> {
        if self.partial_len == 0 { Ok(()) } else { Err(InvalidUtf8) }
    }

    fn extend_partial(&mut self, byte: u8) -> Result<(), InvalidUtf8> {
        self.push(byte)?;
        match std::str::from_utf8(self.partial.get(..usize::from(self.partial_len)).unwrap_or_default()) {
            Ok(_) => self.partial_len = 0,
            Err(error) if error.error_len().is_some() => return Err(InvalidUtf8),
            Err(_) => {}
        }
        Ok(())
    }

    fn push(&mut self, byte: u8) -> Result<(), InvalidUtf8> {
        let slot = self.partial.get_mut(usize::from(self.partial_len)).ok_or(InvalidUtf8)?;
        *slot = byte;
        self.partial_len += 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check(pieces: &[&[u8]]) -> Result<(), InvalidUtf8> {
        let mut check = Utf8Check::default();
        pieces.iter().try_for_each(|piece| check.feed(piece))?;
        check.finish()
    }

    /// Octets that are almost UTF-8 more often than random ones are.
    fn nearly_text() -> impl Strategy<Value = Vec<u8>> {
        let octet = prop_oneof![
            Just(0xe2u8),
            Just(0x82),
            Just(0xac),
            Just(0xf0),
            Just(0x9f),
            Just(0xed),
            Just(0xa0),
            Just(0xf4),
            Just(0x90),
            any::<u8>()
        ];
        prop_oneof![prop::collection::vec(octet, 0..12), any::<String>().prop_map(String::into_bytes)]
    }

    proptest! {
        #[test]
        fn agrees_with_std_however_cut(text in nearly_text(), cut: prop::sample::Index, again: prop::sample::Index) {
            let (first, rest) = text.split_at(cut.index(text.len() + 1));
            let (second, third) = rest.split_at(again.index(rest.len() + 1));
            prop_assert_eq!(check(&[first, second, third]).is_ok(), std::str::from_utf8(&text).is_ok());
        }
    }

    #[test]
    fn fails_with_the_first_impossible_octet() {
        let mut check = Utf8Check::default();
        assert_eq!(check.feed(b"ok \xf4"), Ok(()));
        assert_eq!(check.feed(b"\x90"), Err(InvalidUtf8));
    }
}
