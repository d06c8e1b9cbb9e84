//! Cookies (RFC 6265): read from requests, set by responses, signed.

use std::fmt::Write;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit, Mac};
use http::header::SET_COOKIE;
use sha2::Sha256;

use crate::http1::head_parts::HeadRef;
use crate::message::request::Request;
use crate::message::response::Response;

impl<'a> HeadRef<'a> {
    /// The value of the first cookie with this name.
    pub fn cookie(&self, name: &str) -> Option<&'a str> {
        let lines = self.header_all("cookie").filter_map(|line| std::str::from_utf8(line).ok());
        let mut pairs = lines.flat_map(|line| line.split(';')).filter_map(|pair| pair.trim().split_once('='));
        let value = pairs.find(|(have, _)| *have == name)?.1;
        Some(value.strip_prefix('"').and_then(|value| value.strip_suffix('"')).unwrap_or(value))
    }
}

impl Request {
    /// The value of the first cookie with this name. Anybody can send any value: see [`SignedCookies`].
    pub fn cookie(&self, name: &str) -> Option<&str> {
        self.head().cookie(name)
    }
}

impl Response {
    /// Sets a cookie. Characters that it cannot have turn the response into a 500, as with [`header`](Self::header).
    #[must_use]
    #[track_caller]
    pub fn cookie(self, cookie: Cookie) -> Self {
        // No field value has a line feed: an invalid cookie is an invalid field.
        self.header(SET_COOKIE, cookie.encode().unwrap_or_else(|| "\n".to_owned()))
    }
}

/// A cookie to be [set](Response::cookie). Unless told otherwise, scripts cannot read it, other sites' forms and frames do not
/// send it, it is sent back over TLS only (browsers make an exception for `localhost`), for all paths, and until the browser is
/// closed.
///
/// ```
/// use std::time::Duration;
///
/// use narval_http::{Cookie, Response, StatusCode};
///
/// let cookie = Cookie::new("session", "4711").max_age(Duration::from_secs(3600));
/// let response = Response::new(StatusCode::NO_CONTENT).cookie(cookie);
/// let expected = "session=4711; Path=/; Max-Age=3600; HttpOnly; Secure; SameSite=Lax";
/// assert_eq!(response.header_value(&narval_http::header::SET_COOKIE).unwrap(), expected);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cookie {
    name: String,
    value: String,
    path: String,
    domain: Option<String>,
    max_age: Option<Duration>,
    is_http_only: bool,
    is_secure: bool,
    same_site: SameSite,
}

/// Whether a cookie is sent with requests that other sites cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SameSite {
    /// Never.
    Strict,
    /// Only if the user follows a link.
    #[default]
    Lax,
    /// Always. Browsers want such a cookie to be secure.
    None,
}

impl Cookie {
    /// A cookie with this name and value.
    pub fn new(name: impl Into<String>, value: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            value: value.into(),
            path: "/".to_owned(),
            domain: None,
            max_age: None,
            is_http_only: true,
            is_secure: true,
            same_site: SameSite::Lax,
        }
    }

    /// Makes the browser forget a cookie. Path and domain must be those that it was set with.
    pub fn removed(name: impl Into<String>) -> Self {
        Self::new(name, "").max_age(Duration::ZERO)
    }

    /// Sets after which time the browser forgets it.
    #[must_use]
    pub fn max_age(mut self, max_age: Duration) -> Self {
        self.max_age = Some(max_age);
        self
    }

    /// Sets below which path it is sent.
    #[must_use]
    pub fn path(mut self, path: impl Into<String>) -> Self {
        self.path = path.into();
        self
    }

    /// Has it sent to a domain and all below it. Default: to this host only.
    #[must_use]
    pub fn domain(mut self, domain: impl Into<String>) -> Self {
        self.domain = Some(domain.into());
        self
    }

    /// Sets whether it is hidden from scripts.
    #[must_use]
    pub fn http_only(mut self, http_only: bool) -> Self {
        self.is_http_only = http_only;
        self
    }

    /// Sets whether it is sent over TLS only. A server that is also reached without passes `request.scheme() == "https"`.
    #[must_use]
    pub fn secure(mut self, secure: bool) -> Self {
        self.is_secure = secure;
        self
    }

    /// Sets whether other sites' requests have it.
    #[must_use]
    pub fn same_site(mut self, same_site: SameSite) -> Self {
        self.same_site = same_site;
        self
    }

    /// The value of `Set-Cookie`. `None` if it cannot be one.
    fn encode(&self) -> Option<String> {
        let is_token = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
        let is_octet = |c: char| c.is_ascii_graphic() && !"\",;\\".contains(c);
        let is_attribute = |text: &str| text.chars().all(|c| (c.is_ascii_graphic() || c == ' ') && c != ';');
        let is_valid = !self.name.is_empty()
            && self.name.chars().all(is_token)
            && self.value.chars().all(is_octet)
            && is_attribute(&self.path)
            && self.domain.as_deref().is_none_or(is_attribute);
        if !is_valid {
            return None;
        }
        let mut text = format!("{}={}; Path={}", self.name, self.value, self.path);
        if let Some(domain) = &self.domain {
            write!(text, "; Domain={domain}").ok()?;
        }
        if let Some(max_age) = self.max_age {
            write!(text, "; Max-Age={}", max_age.as_secs()).ok()?;
        }
        if self.is_http_only {
            text += "; HttpOnly";
        }
        if self.is_secure {
            text += "; Secure";
        }
        text += match self.same_site {
            SameSite::Strict => "; SameSite=Strict",
            SameSite::Lax => "; SameSite=Lax",
            SameSite::None => "; SameSite=None",
        };
        Some(text)
    }
}

/// Signs cookies (HMAC-SHA-256), so that clients can read them but not make them up. A signed cookie is good for as long as its key:
/// if it must end earlier, its value says when.
///
/// ```
/// use narval_http::{Bytes, Cookie, Request, SignedCookies};
///
/// let (new, old) = ([1; 32], [2; 32]); // random, and kept in a file
/// let cookies = SignedCookies::new(&new).also_accept(&old);
/// let cookie: Cookie = cookies.sign("user", "ada");
/// # let forged = Request::parse("GET / HTTP/1.1\r\nHost: h\r\nCookie: user=ada\r\n\r\n", Bytes::new())?;
/// assert_eq!(cookies.verify(&forged.head(), "user"), None);
/// # Ok::<(), narval_http::Reject>(())
/// ```
#[derive(Clone)]
pub struct SignedCookies {
    /// The first one signs.
    keys: Vec<[u8; 32]>,
}

impl SignedCookies {
    /// Signs and accepts with this key: 32 random bytes.
    pub fn new(key: &[u8; 32]) -> Self {
        Self { keys: vec![*key] }
    }

    /// Accepts what another key has signed: the one that was replaced.
    #[must_use]
    pub fn also_accept(mut self, key: &[u8; 32]) -> Self {
        self.keys.push(*key);
        self
    }

    /// A cookie whose value is signed together with its name.
    pub fn sign(&self, name: impl Into<String>, value: impl Into<String>) -> Cookie {
        let (name, value) = (name.into(), value.into());
        let mac = self.keys.first().and_then(|key| mac(key, &name, &value));
        let tag = mac.map(|mac| URL_SAFE_NO_PAD.encode(mac.finalize().into_bytes())).unwrap_or_default();
        Cookie::new(name, format!("{value}.{tag}"))
    }

    /// The value of a cookie that one of the keys has signed.
    pub fn verify<'a>(&self, head: &HeadRef<'a>, name: &str) -> Option<&'a str> {
        let (value, tag) = head.cookie(name)?.rsplit_once('.')?;
        let tag = URL_SAFE_NO_PAD.decode(tag).ok()?;
        let is_signed = |key| mac(key, name, value).is_some_and(|mac| mac.verify_slice(&tag).is_ok());
        self.keys.iter().any(is_signed).then_some(value)
    }
}

impl std::fmt::Debug for SignedCookies {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SignedCookies").finish_non_exhaustive()
    }
}

/// `None` never: a key of HMAC may have any length.
fn mac(key: &[u8; 32], name: &str, value: &str) -> Option<Hmac<Sha256>> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).ok()?;
    mac.update(name.as_bytes());
    mac.update(b"=");
    mac.update(value.as_bytes());
    Some(mac)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http::StatusCode;

    use super::*;

    fn with_cookies(lines: &str) -> Request {
        Request::parse(format!("GET / HTTP/1.1\r\nHost: h\r\n{lines}\r\n"), Bytes::new()).expect("well-formed")
    }

    #[test]
    fn cookies_of_requests() {
        let request = with_cookies("Cookie: a=1; b=\"two\";c=x=y; a=3\r\nCookie: d=4\r\n");
        let cookie = |name| request.cookie(name);
        assert_eq!(
            (cookie("a"), cookie("b"), cookie("c"), cookie("d")),
            (Some("1"), Some("two"), Some("x=y"), Some("4"))
        );
        assert_eq!((cookie("e"), cookie("A")), (None, None));
        assert_eq!(with_cookies("").cookie("a"), None);
    }

    fn set(cookie: Cookie) -> Result<String, StatusCode> {
        let response = Response::new(StatusCode::OK).cookie(cookie);
        let value = response.header_value(&SET_COOKIE).ok_or(response.status())?;
        Ok(value.to_str().expect("ASCII").to_owned())
    }

    #[test]
    fn cookies_of_responses() {
        let cookie = Cookie::new("a", "b").path("/x").domain("example.org").http_only(false).secure(false);
        assert_eq!(
            set(cookie.same_site(SameSite::Strict)).expect("valid"),
            "a=b; Path=/x; Domain=example.org; SameSite=Strict"
        );
        assert_eq!(set(Cookie::removed("a")).expect("valid"), "a=; Path=/; Max-Age=0; HttpOnly; Secure; SameSite=Lax");
        for (name, value) in
            [("", "x"), ("a b", "x"), ("a=", "x"), ("a", "x;y"), ("a", "x y"), ("a", "\r\n"), ("a", "ä")]
        {
            assert_eq!(set(Cookie::new(name, value)), Err(StatusCode::INTERNAL_SERVER_ERROR), "{name:?} {value:?}");
        }
        assert_eq!(set(Cookie::new("a", "b").path("/; Secure=")), Err(StatusCode::INTERNAL_SERVER_ERROR));
    }

    #[test]
    fn signed_cookies_are_good_with_their_name_and_a_known_key() {
        let (old, new, other) = (SignedCookies::new(&[1; 32]), [2; 32], SignedCookies::new(&[3; 32]));
        let rotated = SignedCookies::new(&new).also_accept(&[1; 32]);
        let sent = |cookie: &Cookie| with_cookies(&format!("Cookie: {}={}\r\n", cookie.name, cookie.value));
        let cookie = old.sign("user", "ada.l");
        assert_eq!(old.verify(&sent(&cookie).head(), "user"), Some("ada.l"));
        assert_eq!(rotated.verify(&sent(&cookie).head(), "user"), Some("ada.l"));
        assert_eq!(other.verify(&sent(&cookie).head(), "user"), None);
        assert_eq!(old.verify(&sent(&rotated.sign("user", "ada")).head(), "user"), None);
        let renamed = Cookie { name: "admin".to_owned(), ..cookie.clone() };
        assert_eq!(old.verify(&sent(&renamed).head(), "admin"), None);
        let changed = Cookie { value: cookie.value.replace("ada", "bob"), ..cookie };
        assert_eq!(old.verify(&sent(&changed).head(), "user"), None);
    }
}
