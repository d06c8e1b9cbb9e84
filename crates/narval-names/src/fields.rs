//! Values in tables: lengths and bytes, one after another.

use crate::error::NamesError;

/// Appends a number, seven bits per byte.
pub(crate) fn put_number(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Appends bytes with their length.
pub(crate) fn put(out: &mut Vec<u8>, bytes: &[u8]) {
    put_number(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Reads what [`put`] has written.
pub(crate) struct Fields<'a>(pub(crate) &'a [u8]);

impl<'a> Fields<'a> {
    pub(crate) fn number(&mut self) -> Result<u64, NamesError> {
        let mut number = 0_u64;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = self.0.split_first().ok_or(NamesError::Damaged("a number is truncated"))?;
            self.0 = rest;
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(NamesError::Damaged("a number is too long"))
    }

    pub(crate) fn length(&mut self) -> Result<usize, NamesError> {
        usize::try_from(self.number()?).map_err(|_| NamesError::Damaged("a length is too large"))
    }

    pub(crate) fn take(&mut self, len: usize) -> Result<&'a [u8], NamesError> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or(NamesError::Damaged("a field is truncated"))?;
        self.0 = rest;
        Ok(taken)
    }

    pub(crate) fn bytes(&mut self) -> Result<&'a [u8], NamesError> {
        let len = self.length()?;
        self.take(len)
    }

    pub(crate) fn text(&mut self) -> Result<String, NamesError> {
        let bytes = self.bytes()?;
        std::str::from_utf8(bytes).map(str::to_owned).map_err(|_| NamesError::Damaged("a text is not UTF-8"))
    }

    pub(crate) fn texts(&mut self) -> Result<Vec<String>, NamesError> {
        let count = self.length()?;
        // A count that lies ends with the first missing field.
        (0..count).map(|_| self.text()).collect()
    }
}
