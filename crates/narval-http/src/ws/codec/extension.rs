//! Negotiation of `permessage-deflate` (RFC 7692 sections 5 and 7.1), over the extension lists of RFC 6455 section 9.1.

use std::fmt;

const NAME: &str = "permessage-deflate";
/// How many extensions, and how many parameters of each, are parsed; more make the header invalid.
const OFFERS_MAX: usize = 16;
const PARAMETERS_MAX: usize = 8;
/// The smallest window that zlib compresses with. Offers that require 8 are declined.
const WINDOW_BITS_MIN: u8 = 9;
const WINDOW_BITS_MAX: u8 = 15;

/// The negotiated parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreement {
    /// The server compresses each message separately.
    pub server_no_context_takeover: bool,
    /// The client compresses each message separately.
    pub client_no_context_takeover: bool,
    /// The server's window, if the client limited it.
    pub server_max_window_bits: Option<u8>,
}

impl Agreement {
    /// The largest window that the server may compress with, as a power of two.
    pub fn server_window_bits(self) -> u8 {
        self.server_max_window_bits.unwrap_or(WINDOW_BITS_MAX)
    }
}

/// The value of `Sec-WebSocket-Extensions` in the response.
impl fmt::Display for Agreement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(NAME)?;
        if self.server_no_context_takeover {
            f.write_str("; server_no_context_takeover")?;
        }
        if self.client_no_context_takeover {
            f.write_str("; client_no_context_takeover")?;
        }
        match self.server_max_window_bits {
            Some(bits) => write!(f, "; server_max_window_bits={bits}"),
            None => Ok(()),
        }
    }
}

/// The header is not an extension list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed Sec-WebSocket-Extensions")]
pub struct MalformedExtensions;

/// Accepts the first acceptable offer in the values of `Sec-WebSocket-Extensions`, or none. Unless `context_takeover`,
/// both sides compress each message separately.
///
/// ```
/// use narval_http::codecs::ws::extension::negotiate;
///
/// let agreed = negotiate(["permessage-deflate; client_max_window_bits"], false)?;
/// let answer = agreed.map(|agreed| agreed.to_string());
/// assert_eq!(answer.as_deref(), Some("permessage-deflate; server_no_context_takeover; client_no_context_takeover"));
/// # Ok::<(), narval_http::codecs::ws::extension::MalformedExtensions>(())
/// ```
///
/// # Errors
/// [`MalformedExtensions`]: the handshake must be refused.
pub fn negotiate<'a>(
    values: impl IntoIterator<Item = &'a str>,
    context_takeover: bool,
) -> Result<Option<Agreement>, MalformedExtensions> {
    let mut agreed = None;
    let mut offers = 0;
    for value in values {
        let mut parser = Parser { rest: value };
        loop {
            let offer = parser.offer()?;
            offers += 1;
            if offers > OFFERS_MAX {
                return Err(MalformedExtensions);
            }
            // Malformed offers after the chosen one still count: the header as a whole must be valid.
            agreed = agreed.or_else(|| agree(&offer, context_takeover));
            if parser.end() {
                break;
            }
            parser.expect(',')?;
        }
    }
    Ok(agreed)
}

struct Offer<'a> {
    name: &'a str,
    parameters: Vec<(&'a str, Option<String>)>,
}

/// The answer to an offer; `None` declines it.
fn agree(offer: &Offer<'_>, context_takeover: bool) -> Option<Agreement> {
    if !offer.name.eq_ignore_ascii_case(NAME) {
        return None;
    }
    let (mut server_no_takeover, mut client_no_takeover, mut server_bits, mut client_bits) = (None, None, None, None);
    for (name, value) in &offer.parameters {
        let slot = match *name {
            "server_no_context_takeover" => &mut server_no_takeover,
            "client_no_context_takeover" => &mut client_no_takeover,
            "server_max_window_bits" => &mut server_bits,
            "client_max_window_bits" => &mut client_bits,
            _ => return None,
        };
        if slot.replace(value.as_deref()).is_some() {
            return None;
        }
    }
    let is_flag = |parameter: Option<Option<&str>>| match parameter {
        None => Some(false),
        Some(None) => Some(true),
        Some(Some(_)) => None,
    };
    // Any window of the client is within ours, so its limit needs no answer; it must be valid nonetheless.
    if let Some(Some(bits)) = client_bits {
        window_bits(bits)?;
    }
    let server_max_window_bits = match server_bits {
        None => None,
        Some(bits) => Some(window_bits(bits?).filter(|bits| *bits >= WINDOW_BITS_MIN)?),
    };
    Some(Agreement {
        server_no_context_takeover: is_flag(server_no_takeover)? || !context_takeover,
        client_no_context_takeover: is_flag(client_no_takeover)? || !context_takeover,
        server_max_window_bits,
    })
}

/// 8 to 15 without leading zeros (RFC 7692 section 7.1.2).
fn window_bits(value: &str) -> Option<u8> {
    match value {
        "8" => Some(8),
        "9" => Some(9),
        _ if value.len() == 2 && value.starts_with('1') => value.parse().ok().filter(|bits| *bits <= WINDOW_BITS_MAX),
        _ => None,
    }
}

struct Parser<'a> {
    rest: &'a str,
}

impl<'a> Parser<'a> {
    fn offer(&mut self) -> Result<Offer<'a>, MalformedExtensions> {
        let name = self.token()?;
        let mut parameters = Vec::new();
        while self.take(';') {
            let name = self.token()?;
            let value = if self.take('=') { Some(self.value()?) } else { None };
            parameters.push((name, value));
            if parameters.len() > PARAMETERS_MAX {
                return Err(MalformedExtensions);
            }
        }
        Ok(Offer { name, parameters })
    }

    fn end(&mut self) -> bool {
        self.skip_space();
        self.rest.is_empty()
    }

    fn expect(&mut self, wanted: char) -> Result<(), MalformedExtensions> {
        if self.take(wanted) { Ok(()) } else { Err(MalformedExtensions) }
    }

    fn take(&mut self, wanted: char) -> bool {
        self.skip_space();
        match self.rest.strip_prefix(wanted) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn skip_space(&mut self) {
        self.rest = self.rest.trim_start_matches([' ', '\t']);
    }

    fn token(&mut self) -> Result<&'a str, MalformedExtensions> {
        self.skip_space();
        let end = self.rest.find(|c| !is_token_char(c)).unwrap_or(self.rest.len());
        let (token, rest) = self.rest.split_at(end);
        self.rest = rest;
        if token.is_empty() { Err(MalformedExtensions) } else { Ok(token) }
    }

    /// A token, or a quoted string whose content is one (RFC 6455 section 9.1).
    fn value(&mut self) -> Result<String, MalformedExtensions> {
        if !self.take('"') {
            return self.token().map(str::to_owned);
        }
        let mut value = String::new();
        let mut chars = self.rest.chars();
        loop {
            match chars.next().ok_or(MalformedExtensions)? {
                '"' => break,
                '\\' => value.push(chars.next().ok_or(MalformedExtensions)?),
                other => value.push(other),
            }
        }
        self.rest = chars.as_str();
        if !value.is_empty() && value.chars().all(is_token_char) { Ok(value) } else { Err(MalformedExtensions) }
    }
}

/// `tchar` of RFC 9110 section 5.6.2.
pub(crate) fn is_token_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn answer(value: &str, context_takeover: bool) -> Option<String> {
        negotiate([value], context_takeover).unwrap().map(|agreed| agreed.to_string())
    }

    const BOTH: &str = "permessage-deflate; server_no_context_takeover; client_no_context_takeover";

    #[test]
    fn rfc_7692_7_1_answers() {
        assert_eq!(answer("permessage-deflate", false).as_deref(), Some(BOTH));
        assert_eq!(answer("permessage-deflate", true).as_deref(), Some("permessage-deflate"));
        assert_eq!(
            answer("permessage-deflate; client_no_context_takeover", true).as_deref(),
            Some("permessage-deflate; client_no_context_takeover")
        );
        assert_eq!(
            answer("permessage-deflate;server_max_window_bits=\"10\" ; client_max_window_bits", true).as_deref(),
            Some("permessage-deflate; server_max_window_bits=10")
        );
        assert_eq!(answer("foo, bar; baz=1", false), None);
    }

    #[test]
    fn rfc_7692_7_1_invalid_parameters_decline_the_offer_and_the_next_is_tried() {
        for bad in [
            "server_no_context_takeover=1",
            "client_no_context_takeover; client_no_context_takeover",
            "server_max_window_bits",
            "server_max_window_bits=8",
            "server_max_window_bits=16",
            "server_max_window_bits=09",
            "server_max_window_bits=+9",
            "client_max_window_bits=7",
            "unknown",
        ] {
            let offer = format!("permessage-deflate; {bad}");
            assert_eq!(answer(&offer, true), None, "{bad}");
            assert_eq!(answer(&format!("{offer}, permessage-deflate"), false).as_deref(), Some(BOTH), "{bad}");
        }
    }

    #[test]
    fn rfc_6455_9_1_malformed_lists_are_refused() {
        for bad in ["", ",", "a,", "a;", "a;=", "a;b=", "a;b=\"", "a;b=\"\"", "a;b=\"c d\"", "a b", "a;b=c d", "ä"] {
            assert_eq!(negotiate([bad], false), Err(MalformedExtensions), "{bad:?}");
        }
        let many = ["x"; OFFERS_MAX + 1].join(",");
        assert_eq!(negotiate([many.as_str()], false), Err(MalformedExtensions));
    }

    proptest! {
        #[test]
        fn whatever_is_answered_is_a_valid_offer(value in "[ ;,=\"a-z_0-9-]{0,80}") {
            if let Ok(Some(agreed)) = negotiate([value.as_str()], false) {
                prop_assert_eq!(negotiate([agreed.to_string().as_str()], false), Ok(Some(agreed)));
            }
        }
    }
}
