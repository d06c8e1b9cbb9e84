//! The opening handshake (RFC 6455 section 4.2; over HTTP/2, RFC 8441 section 5).

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderValue, Method, StatusCode, Version, header};

use super::codec::extension::{self, Agreement, MalformedExtensions};
use crate::http1::head_parts::{HeadRef, lists};
use crate::message::response::Response;
use crate::message::upgrade_error::UpgradeError;

/// The GUID that the key is hashed with (RFC 6455 section 1.3).
const GUID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
/// The only version.
const VERSION: &[u8] = b"13";
/// How many subprotocols of a client are considered.
const PROTOCOLS_MAX: usize = 64;

impl From<MalformedExtensions> for UpgradeError {
    fn from(_: MalformedExtensions) -> Self {
        Self::Extensions
    }
}

/// A valid handshake, and the parts of the answer that it determines.
#[derive(Clone, Debug)]
pub(crate) struct Handshake {
    /// The answer to the client's key; HTTP/2 has none.
    accept: Option<HeaderValue>,
    protocol: Option<HeaderValue>,
}

impl Handshake {
    /// Checks the request (RFC 6455 section 4.2.1). The engine gives an extended CONNECT the fields that HTTP/1.1 has for it.
    pub(crate) fn check(head: &HeadRef<'_>) -> Result<Self, UpgradeError> {
        let has = |name, token| head.header_all(name).any(|value| lists(value, token));
        if !has("upgrade", "websocket") || !has("connection", "upgrade") {
            return Err(UpgradeError::NotAnUpgrade);
        }
        let has_body = head.header_bytes("transfer-encoding").is_some()
            || head.header_all("content-length").any(|length| length.iter().any(|&digit| digit != b'0'));
        let is_stream = head.version() == Version::HTTP_2;
        if *head.method() != Method::GET || !(is_stream || head.version() == Version::HTTP_11) || has_body {
            return Err(UpgradeError::NotAGet);
        }
        if head.header_once("sec-websocket-version") != Some(VERSION) {
            return Err(UpgradeError::Version);
        }
        if is_stream {
            return Ok(Self { accept: None, protocol: None });
        }
        let accept = head.header_once("sec-websocket-key").and_then(accept).ok_or(UpgradeError::Key)?;
        Ok(Self { accept: Some(accept), protocol: None })
    }

    /// Chooses the first of `supported` that the client offers.
    pub(crate) fn choose_protocol(&mut self, head: &HeadRef<'_>, supported: &[&str]) -> Result<(), UpgradeError> {
        let mut offered = Vec::new();
        for value in head.header_all("sec-websocket-protocol") {
            let value = std::str::from_utf8(value).map_err(|_| UpgradeError::Protocols)?;
            for token in value.split(',').map(|token| token.trim_matches([' ', '\t'])) {
                if token.is_empty() || !token.chars().all(extension::is_token_char) || offered.len() == PROTOCOLS_MAX {
                    return Err(UpgradeError::Protocols);
                }
                offered.push(token);
            }
        }
        // Subprotocol names are case-sensitive (RFC 6455 section 11.5).
        let chosen = supported.iter().find(|name| offered.contains(name));
        self.protocol = chosen.and_then(|name| HeaderValue::from_str(name).ok());
        Ok(())
    }

    /// The subprotocol that was chosen.
    pub(crate) fn protocol(&self) -> Option<&str> {
        self.protocol.as_ref().and_then(|name| name.to_str().ok())
    }

    /// The 101 response, or the 200 of HTTP/2.
    pub(crate) fn response(&self, compression: Option<Agreement>) -> Response {
        let mut response = match &self.accept {
            Some(accept) => Response::new(StatusCode::SWITCHING_PROTOCOLS)
                .header(header::UPGRADE, HeaderValue::from_static("websocket"))
                .header(header::CONNECTION, HeaderValue::from_static("Upgrade"))
                .header(header::SEC_WEBSOCKET_ACCEPT, accept.clone()),
            None => Response::new(StatusCode::OK),
        };
        if let Some(protocol) = &self.protocol {
            response = response.header(header::SEC_WEBSOCKET_PROTOCOL, protocol.clone());
        }
        match compression.and_then(|agreed| HeaderValue::try_from(agreed.to_string()).ok()) {
            Some(agreed) => response.header(header::SEC_WEBSOCKET_EXTENSIONS, agreed),
            None => response,
        }
    }
}

/// Negotiates compression from the request's extension offers.
pub(crate) fn negotiate(head: &HeadRef<'_>, context_takeover: bool) -> Result<Option<Agreement>, UpgradeError> {
    let values: Result<Vec<&str>, _> = head.header_all("sec-websocket-extensions").map(std::str::from_utf8).collect();
    Ok(extension::negotiate(values.map_err(|_| UpgradeError::Extensions)?, context_takeover)?)
}

/// Refuses a request whose `Origin` has another host than `Host`. Programs other than browsers send no `Origin`.
pub(crate) fn check_same_origin(head: &HeadRef<'_>) -> Result<(), UpgradeError> {
    let Some(origin) = head.header_bytes("origin") else { return Ok(()) };
    let host = head.host().ok_or(UpgradeError::Origin)?;
    let of_origin = origin.strip_prefix(b"https://").or_else(|| origin.strip_prefix(b"http://"));
    if of_origin.is_some_and(|of_origin| of_origin.eq_ignore_ascii_case(host.as_bytes())) {
        Ok(())
    } else {
        Err(UpgradeError::Origin)
    }
}

/// The value of `Sec-WebSocket-Accept` for a key; `None` if the key is invalid.
fn accept(key: &[u8]) -> Option<HeaderValue> {
    if STANDARD.decode(key).ok()?.len() != 16 {
        return None;
    }
    let mut hash = sha1_smol::Sha1::new();
    hash.update(key);
    hash.update(GUID);
    HeaderValue::try_from(STANDARD.encode(hash.digest().bytes())).ok()
}

#[cfg(test)]
pub(crate) mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::http1::head_parts::{HandedOver, HeadParts, Span};
    use crate::message::request::{Request, RequestBody};
    use crate::peer::Peer;

    /// A request with these field lines.
    pub(crate) fn request(method: Method, fields: &[(&str, &str)]) -> Request {
        let mut buf = Vec::new();
        let mut push = |text: &str| {
            let start = buf.len() as u32;
            buf.extend_from_slice(text.as_bytes());
            Span { start, end: buf.len() as u32 }
        };
        let target = push("/socket");
        let host = fields.iter().find(|(name, _)| *name == "Host").map(|(_, value)| push(value));
        let fields = fields.iter().map(|(name, value)| (push(name), push(value))).collect();
        let parts = HeadParts {
            method,
            version: Version::HTTP_11,
            target,
            path: target,
            query: None,
            host,
            fields,
            handed_over: HandedOver::default(),
        };
        Request::new(Bytes::from(buf), parts, Peer::Unix, RequestBody::default())
    }

    pub(crate) const VALID: [(&str, &str); 5] = [
        ("Host", "server.example.com"),
        ("Upgrade", "WebSocket"),
        ("Connection", "keep-alive, Upgrade"),
        ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
        ("Sec-WebSocket-Version", "13"),
    ];

    fn with(changed: &[(&'static str, &'static str)]) -> Request {
        let kept = VALID.into_iter().filter(|(name, _)| !changed.iter().any(|(other, _)| name == other));
        let fields: Vec<_> = kept.chain(changed.iter().copied()).filter(|(_, value)| *value != "-").collect();
        request(Method::GET, &fields)
    }

    fn check(changed: &[(&'static str, &'static str)]) -> Result<Handshake, UpgradeError> {
        Handshake::check(&with(changed).head())
    }

    #[test]
    fn rfc_6455_1_3_example_key() {
        assert_eq!(check(&[]).unwrap().accept.unwrap(), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    }

    #[test]
    fn rfc_6455_4_2_1_what_a_handshake_must_have() {
        for (changed, error) in [
            (("Upgrade", "-"), UpgradeError::NotAnUpgrade),
            (("Upgrade", "h2c"), UpgradeError::NotAnUpgrade),
            (("Connection", "keep-alive"), UpgradeError::NotAnUpgrade),
            (("Content-Length", "5"), UpgradeError::NotAGet),
            (("Transfer-Encoding", "chunked"), UpgradeError::NotAGet),
            (("Sec-WebSocket-Version", "-"), UpgradeError::Version),
            (("Sec-WebSocket-Version", "8"), UpgradeError::Version),
            (("Sec-WebSocket-Key", "-"), UpgradeError::Key),
            (("Sec-WebSocket-Key", "dGhlIHNhbXBsZQ=="), UpgradeError::Key),
            (("Sec-WebSocket-Key", "not base64 at all, you"), UpgradeError::Key),
        ] {
            assert_eq!(check(&[changed]).unwrap_err(), error, "{changed:?}");
        }
        assert!(check(&[("Content-Length", "0")]).is_ok());
        assert_eq!(Handshake::check(&request(Method::POST, &VALID).head()).unwrap_err(), UpgradeError::NotAGet);
        let twice: Vec<_> = VALID.iter().chain(&VALID[3..4]).copied().collect();
        assert_eq!(Handshake::check(&request(Method::GET, &twice).head()).unwrap_err(), UpgradeError::Key);
    }

    #[test]
    fn rfc_6455_4_2_2_subprotocols() {
        let choose = |offered: &'static str, supported: &[&str]| {
            let request = with(&[("Sec-WebSocket-Protocol", offered)]);
            let mut handshake = check(&[]).unwrap();
            handshake.choose_protocol(&request.head(), supported).map(|()| handshake.protocol().map(str::to_owned))
        };
        assert_eq!(choose("chat, superchat", &["superchat", "chat"]), Ok(Some("superchat".to_owned())));
        assert_eq!(choose("chat", &["other"]), Ok(None));
        assert_eq!(choose("Chat", &["chat"]), Ok(None));
        assert_eq!(choose("chat,,x", &["chat"]), Err(UpgradeError::Protocols));
        assert_eq!(choose("ch at", &["chat"]), Err(UpgradeError::Protocols));
    }

    #[test]
    fn rfc_6455_10_2_origin() {
        let origin = |origin| check_same_origin(&with(&[("Origin", origin)]).head());
        assert_eq!(origin("-"), Ok(()));
        assert_eq!(origin("https://server.example.com"), Ok(()));
        assert_eq!(origin("https://evil.example.com"), Err(UpgradeError::Origin));
        assert_eq!(origin("null"), Err(UpgradeError::Origin));
    }

    #[test]
    fn errors_say_what_to_speak() {
        assert_eq!(Response::from(UpgradeError::Version).status(), StatusCode::UPGRADE_REQUIRED);
        assert_eq!(Response::from(UpgradeError::Key).status(), StatusCode::BAD_REQUEST);
        assert_eq!(Response::from(UpgradeError::Origin).status(), StatusCode::FORBIDDEN);
    }
}
