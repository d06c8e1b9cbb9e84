//! The context of a trace, as requests carry it (W3C Trace Context, <https://www.w3.org/TR/trace-context/>).

use std::fmt;

/// The length of a `traceparent` of version 00.
const PARENT_LEN: usize = 55;

/// Where in a trace a thread is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Context {
    /// The trace.
    pub trace: u128,
    /// The current span; 0 before the first of a trace.
    pub span: u64,
    /// Whether its spans are collected.
    pub is_sampled: bool,
}

impl Context {
    /// Parses a `traceparent`. Of later versions, what follows the flags is ignored.
    ///
    /// ```
    /// use narval_client::trace::Context;
    ///
    /// let given = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    /// assert_eq!(Context::parse(given.as_bytes()).map(|context| context.to_string()).as_deref(), Some(given));
    /// assert_eq!(Context::parse(b"00-00000000000000000000000000000000-00f067aa0ba902b7-01"), None);
    /// ```
    pub fn parse(text: &[u8]) -> Option<Self> {
        let is_hex = |part: &&str| part.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte));
        let (text, rest) = text.split_at_checked(PARENT_LEN)?;
        let mut parts = std::str::from_utf8(text).ok()?.split('-');
        let mut next = |len| parts.next().filter(|part| part.len() == len).filter(is_hex);
        let (version, trace, span, flags) = (next(2)?, next(32)?, next(16)?, next(2)?);
        let is_known = match version {
            "00" => rest.is_empty(),
            "ff" => false,
            _ => rest.first().is_none_or(|byte| *byte == b'-'),
        };
        let (trace, span) = (u128::from_str_radix(trace, 16).ok()?, u64::from_str_radix(span, 16).ok()?);
        let is_sampled = u8::from_str_radix(flags, 16).ok()? & 1 == 1;
        (is_known && trace != 0 && span != 0).then_some(Self { trace, span, is_sampled })
    }
}

/// The `traceparent`.
impl fmt::Display for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{:032x}-{:016x}-{:02x}", self.trace, self.span, u8::from(self.is_sampled))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_valid_contexts_are_taken() {
        let right = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00";
        assert_eq!(Context::parse(right.as_bytes()).map(|context| context.is_sampled), Some(false));
        let later = format!("cc{}-what-the-future-has", right.strip_prefix("00").unwrap());
        assert!(Context::parse(later.as_bytes()).is_some());
        for wrong in [
            String::new(),
            right.to_uppercase(),
            format!("{right}-more"),
            format!("ff{}", right.strip_prefix("00").unwrap()),
            right.replace("00f067aa0ba902b7", "0000000000000000"),
            right.replace("4bf92f35", "4bf9+f35"),
            right.replace("-00f0", "--0f0"),
            right.get(..54).unwrap().to_owned(),
            "\u{e9}".repeat(28),
        ] {
            assert_eq!(Context::parse(wrong.as_bytes()), None, "{wrong:?}");
        }
    }
}
