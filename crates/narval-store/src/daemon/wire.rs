//! The primitives of the worker protocol: 64-bit little-endian numbers, and strings with a length prefix, padded with
//! zeros to a multiple of eight bytes.
//!
//! Format: Nix `libutil/serialise.cc`, `libstore/worker-protocol.cc`.

use std::io::{self, Read};

use thiserror::Error;

/// The maximum length of a string, such as an error message with traces or a long list of signatures.
pub(super) const STRING_LEN_MAX: u64 = 4 << 20;

/// The maximum number of items in a list or set, such as all valid paths of a store.
pub(super) const ITEMS_MAX: u64 = 16 << 20;

/// Why data from a daemon was rejected.
#[derive(Debug, Error)]
pub enum WireError {
    /// The connection failed or ended.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// A length or count exceeds its limit.
    #[error("{what} of {found} exceeds the limit of {limit}")]
    TooLarge {
        /// What was counted.
        what: &'static str,
        /// The declared value.
        found: u64,
        /// The limit.
        limit: u64,
    },
    /// The padding is not zero.
    #[error("padding that is not zero")]
    Padding,
    /// A string is not UTF-8.
    #[error("a string that is not UTF-8")]
    NotText,
    /// An invalid value.
    #[error("{what}: {found}")]
    Value {
        /// What was expected.
        what: &'static str,
        /// What was there.
        found: String,
    },
}

/// Reads primitives. The input should be buffered, because numbers are read one by one.
pub(super) struct WireReader<R> {
    pub(super) input: R,
}

impl<R: Read> WireReader<R> {
    pub(super) fn number(&mut self) -> Result<u64, WireError> {
        let mut bytes = [0; 8];
        self.input.read_exact(&mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    pub(super) fn boolean(&mut self) -> Result<bool, WireError> {
        Ok(self.number()? != 0)
    }

    pub(super) fn count(&mut self) -> Result<u64, WireError> {
        let found = self.number()?;
        if found > ITEMS_MAX {
            return Err(WireError::TooLarge { what: "a list", found, limit: ITEMS_MAX });
        }
        Ok(found)
    }

    pub(super) fn bytes(&mut self) -> Result<Vec<u8>, WireError> {
        let found = self.number()?;
        if found > STRING_LEN_MAX {
            return Err(WireError::TooLarge { what: "a string", found, limit: STRING_LEN_MAX });
        }
        let mut bytes = Vec::new();
        // Grows with the data received: a declared length alone allocates nothing.
        (&mut self.input).take(found).read_to_end(&mut bytes)?;
        if bytes.len() as u64 != found {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        let mut padding = [0; 8];
        let padding = padding.get_mut(..padding_len(found)).unwrap_or_default();
        self.input.read_exact(padding)?;
        if padding.iter().any(|byte| *byte != 0) {
            return Err(WireError::Padding);
        }
        Ok(bytes)
    }

    pub(super) fn text(&mut self) -> Result<String, WireError> {
        String::from_utf8(self.bytes()?).map_err(|_| WireError::NotText)
    }

    /// A list or set. The declared count alone allocates nothing.
    pub(super) fn list<T>(
        &mut self,
        mut item: impl FnMut(&mut Self) -> Result<T, WireError>,
    ) -> Result<Vec<T>, WireError> {
        let count = self.count()?;
        let mut items = Vec::new();
        for _ in 0..count {
            items.push(item(self)?);
        }
        Ok(items)
    }
}

/// The length of the padding after a string of this length.
fn padding_len(len: u64) -> usize {
    ((8 - len % 8) % 8) as usize
}

/// A request under construction.
#[derive(Debug, Default)]
pub(super) struct Request {
    bytes: Vec<u8>,
}

impl Request {
    pub(super) fn number(mut self, number: u64) -> Self {
        self.bytes.extend_from_slice(&number.to_le_bytes());
        self
    }

    pub(super) fn boolean(self, value: bool) -> Self {
        self.number(value.into())
    }

    pub(super) fn string(mut self, string: impl AsRef<[u8]>) -> Self {
        let string = string.as_ref();
        self = self.number(string.len() as u64);
        self.bytes.extend_from_slice(string);
        self.bytes.resize(self.bytes.len() + padding_len(string.len() as u64), 0);
        self
    }

    pub(super) fn list<T: AsRef<[u8]>>(self, items: impl ExactSizeIterator<Item = T>) -> Self {
        let counted = self.number(items.len() as u64);
        items.fold(counted, Self::string)
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn reader(bytes: &[u8]) -> WireReader<&[u8]> {
        WireReader { input: bytes }
    }

    proptest! {
        #[test]
        fn round_trip(number in any::<u64>(), strings in prop::collection::vec(".{0,40}", 0..8)) {
            let request = Request::default().number(number).list(strings.iter()).string("end");
            prop_assert_eq!(request.as_bytes().len() % 8, 0);
            let mut reader = reader(request.as_bytes());
            prop_assert_eq!(reader.number().unwrap(), number);
            prop_assert_eq!(reader.list(WireReader::text).unwrap(), strings);
            prop_assert_eq!(reader.bytes().unwrap(), b"end");
            prop_assert!(reader.input.is_empty());
        }
    }

    #[test]
    fn lengths_are_checked_before_anything_is_allocated() {
        let absurd = u64::MAX.to_le_bytes();
        assert!(matches!(reader(&absurd).bytes(), Err(WireError::TooLarge { .. })));
        assert!(matches!(reader(&absurd).list(WireReader::number), Err(WireError::TooLarge { .. })));
        let long = (STRING_LEN_MAX).to_le_bytes();
        assert!(matches!(reader(&long).bytes(), Err(WireError::Io(_))));
    }

    #[test]
    fn padding_is_zero() {
        let mut bytes = Request::default().string("abc").as_bytes().to_vec();
        assert_eq!(reader(&bytes).text().unwrap(), "abc");
        bytes[15] = 1;
        assert!(matches!(reader(&bytes).text(), Err(WireError::Padding)));
        assert!(matches!(reader(&bytes[..12]).text(), Err(WireError::Io(_))));
    }
}
