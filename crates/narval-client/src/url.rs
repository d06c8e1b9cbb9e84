//! Addresses of caches and of what lies in them: `http://`, `https://` and `file://`, and relative references as
//! narinfo `URL:` fields and `Location:` headers hold them (RFC 3986 section 5, without fragments).

use std::fmt;
use std::path::PathBuf;

/// How a cache is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// Plain HTTP.
    Http,
    /// HTTP over TLS.
    Https,
    /// A folder of this machine.
    File,
}

impl Scheme {
    /// The name before `://`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
            Self::File => "file",
        }
    }

    const fn default_port(self) -> u16 {
        match self {
            Self::Https => 443,
            _ => 80,
        }
    }
}

/// Scheme, host and port: what a credential is bound to, and what a connection can be reused for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Origin {
    /// The scheme.
    pub scheme: Scheme,
    /// The host, lower case; an IPv6 address without its brackets. Empty for `file`.
    pub host: String,
    /// The port.
    pub port: u16,
}

impl Origin {
    /// Whether the port is the scheme's own.
    pub(crate) const fn has_usual_port(&self) -> bool {
        self.port == self.scheme.default_port()
    }

    /// The `Host` field: the port only where it is not the scheme's own.
    pub fn host_field(&self) -> String {
        let host = if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        if self.has_usual_port() { host } else { format!("{host}:{}", self.port) }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.scheme.name(), self.host_field())
    }
}

/// A URL. Its [`Display`](fmt::Display) never shows user, password or query: both hold secrets too often to be printed.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Url {
    origin: Origin,
    /// `user:password`, percent-decoded.
    userinfo: Option<String>,
    /// Starts with `/`. That of a `file` URL is as it was written: what `..` means after a symlink, only the kernel knows.
    path: String,
    /// Of a `file` URL: the bytes of the path that name the folder. What follows lies below that folder.
    folder_len: usize,
    query: Option<String>,
}

/// Why a text is not a URL we can use.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum UrlError {
    /// Another scheme, or none.
    #[error("'{0}' is not a cache address: use http://, https:// or file://")]
    Scheme(String),
    /// No host where one is needed, or an impossible one.
    #[error("'{0}' has no valid host")]
    Host(String),
    /// The port is not a number below 65536.
    #[error("'{0}' has no valid port")]
    Port(String),
    /// Control characters or blanks.
    #[error("the address holds a blank or a control character")]
    Character,
    /// What came over the network names a file of this machine.
    #[error("'{0}' names a local file, and only http:// and https:// may be named over the network")]
    Local(String),
    /// What lies in a folder names something elsewhere.
    #[error("'{0}' does not name a file below the folder of the cache")]
    Outside(String),
    /// Longer than [`URL_LEN_MAX`].
    #[error("the address is longer than {URL_LEN_MAX} bytes")]
    TooLong,
}

/// The longest URL accepted: presigned object-storage links stay below 2 KiB.
pub const URL_LEN_MAX: usize = 8 * 1024;

impl Url {
    /// Parses an absolute URL. A path that starts with `/` or `./` is taken as a folder.
    ///
    /// ```
    /// use narval_client::Url;
    /// let cache = Url::parse("https://cache.example.org/a?priority=3").unwrap();
    /// assert_eq!(cache.to_string(), "https://cache.example.org/a");
    /// assert_eq!(cache.join("nar/x+y.nar.xz").unwrap().target(), "/nar/x+y.nar.xz");
    /// assert_eq!(cache.child("nar/x+y.nar.xz").unwrap().target(), "/a/nar/x+y.nar.xz");
    /// ```
    pub fn parse(text: &str) -> Result<Self, UrlError> {
        check_characters(text)?;
        let (scheme, rest) = match text.split_once("://") {
            Some(("http", rest)) => (Scheme::Http, rest),
            Some(("https", rest)) => (Scheme::Https, rest),
            Some(("file", rest)) => (Scheme::File, rest),
            _ => return Err(UrlError::Scheme(redacted(text))),
        };
        let rest = rest.split('#').next().unwrap_or_default();
        let split = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, tail) = rest.split_at(split);
        let (userinfo, hostport) = match authority.rsplit_once('@') {
            Some((user, host)) => (Some(percent_decoded(user)), host),
            None => (None, authority),
        };
        let (host, port) = split_host(hostport, scheme).ok_or_else(|| UrlError::Port(redacted(text)))?;
        let valid = |b: u8| b.is_ascii_alphanumeric() || b"-._~:%".contains(&b);
        if scheme == Scheme::File {
            if !(host.is_empty() || host == "localhost") {
                return Err(UrlError::Host(redacted(text)));
            }
        } else if host.is_empty() || !host.bytes().all(valid) {
            return Err(UrlError::Host(redacted(text)));
        }
        let origin = Origin { scheme, host: host.to_ascii_lowercase(), port };
        let (path, query) = split_query(tail);
        let path = match scheme {
            Scheme::File if path.is_empty() => "/".to_owned(),
            Scheme::File => path.to_owned(),
            _ => normal_path(path),
        };
        Ok(Self { origin, userinfo, folder_len: path.len(), path, query })
    }

    /// The URL of a folder of this machine.
    pub fn from_folder(folder: &std::path::Path) -> Result<Self, UrlError> {
        let text = folder.to_str().ok_or(UrlError::Character)?;
        let escaped = text.replace('%', "%25").replace('?', "%3F").replace('#', "%23").replace(' ', "%20");
        Self::parse(&format!("file://{escaped}"))
    }

    /// Resolves a reference against this URL as RFC 3986 does: relative to the folder that holds it.
    ///
    /// # Errors
    /// [`UrlError::Local`] when a reference that came over the network leads to a `file` URL, and [`UrlError::Outside`] when
    /// one that lies in a folder is anything but a relative path. That such a path stays below the folder, symlinks
    /// included, is checked when it is opened.
    pub fn join(&self, reference: &str) -> Result<Self, UrlError> {
        check_characters(reference)?;
        if self.origin.scheme == Scheme::File {
            return self.join_file(reference);
        }
        let scheme_len =
            reference.find("://").filter(|end| reference.bytes().take(*end).all(|b| b.is_ascii_alphanumeric()));
        if scheme_len.is_some() {
            let absolute = Self::parse(reference)?;
            let local = absolute.origin.scheme == Scheme::File;
            return if local { Err(UrlError::Local(redacted(reference))) } else { Ok(absolute) };
        }
        if let Some(rest) = reference.strip_prefix("//") {
            return Self::parse(&format!("{}://{rest}", self.origin.scheme.name()));
        }
        let (path, query) = split_query(reference.split('#').next().unwrap_or_default());
        let path = if path.starts_with('/') {
            normal_path(path)
        } else if path.is_empty() {
            self.path.clone()
        } else {
            let folder = self.path.rfind('/').map_or("/", |slash| &self.path[..=slash]);
            normal_path(&format!("{folder}{path}"))
        };
        Ok(Self { path, query, ..self.clone() })
    }

    fn join_file(&self, reference: &str) -> Result<Self, UrlError> {
        let (below, query) = split_query(reference.split('#').next().unwrap_or_default());
        if below.starts_with('/') || below.contains("://") {
            return Err(UrlError::Outside(redacted(reference)));
        }
        let folder = self.path.rfind('/').map_or("/", |slash| &self.path[..=slash]);
        Ok(Self { path: format!("{folder}{below}"), query, ..self.clone() })
    }

    /// What lies below this URL taken as a cache's base, which may lack its final slash. The base's own query (`?priority=`) is dropped.
    pub fn child(&self, reference: &str) -> Result<Self, UrlError> {
        let mut base = self.clone();
        base.query = None;
        if !base.path.ends_with('/') {
            base.path.push('/');
        }
        base.folder_len = base.path.len();
        base.join(reference)
    }

    /// Scheme, host and port.
    pub const fn origin(&self) -> &Origin {
        &self.origin
    }

    /// The scheme.
    pub const fn scheme(&self) -> Scheme {
        self.origin.scheme
    }

    /// Path and query as they go into a request line.
    pub fn target(&self) -> String {
        match &self.query {
            Some(query) => format!("{}?{query}", self.path),
            None => self.path.clone(),
        }
    }

    /// The value of a query parameter.
    pub fn query_value(&self, name: &str) -> Option<String> {
        let pairs = self.query.as_deref()?.split('&');
        let mut values = pairs.filter_map(|pair| pair.split_once('=').filter(|(key, _)| *key == name));
        values.next().map(|(_, value)| percent_decoded(value))
    }

    /// `user:password` from before the `@`.
    pub fn userinfo(&self) -> Option<&str> {
        self.userinfo.as_deref()
    }

    /// The folder or file of a `file://` URL.
    pub fn file_path(&self) -> PathBuf {
        percent_decoded(&self.path).into()
    }

    /// The folder of a `file://` URL that is a [`child`](Self::child), and the path of the file below it. Of another one,
    /// the file itself, and nothing below it.
    pub(crate) fn folder_and_below(&self) -> (PathBuf, String) {
        let (folder, below) = self.path.split_at_checked(self.folder_len).unwrap_or((&self.path, ""));
        (percent_decoded(folder).into(), percent_decoded(below))
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.origin.scheme {
            Scheme::File => write!(f, "file://{}", self.path),
            _ if self.path == "/" => write!(f, "{}", self.origin),
            _ => write!(f, "{}{}", self.origin, self.path),
        }
    }
}

impl fmt::Debug for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Url({self})")
    }
}

fn check_characters(text: &str) -> Result<(), UrlError> {
    if text.len() > URL_LEN_MAX {
        return Err(UrlError::TooLong);
    }
    if text.bytes().any(|b| b <= b' ' || b == 0x7f) { Err(UrlError::Character) } else { Ok(()) }
}

/// The text without what stands before an `@`, for messages.
fn redacted(text: &str) -> String {
    match text.split_once("://") {
        Some((scheme, rest)) => format!("{scheme}://{}", rest.rsplit_once('@').map_or(rest, |(_, host)| host)),
        None => text.to_owned(),
    }
}

fn split_host(text: &str, scheme: Scheme) -> Option<(&str, u16)> {
    if let Some(rest) = text.strip_prefix('[') {
        let (host, tail) = rest.split_once(']')?;
        return match tail.strip_prefix(':') {
            Some(port) => Some((host, port.parse().ok()?)),
            None if tail.is_empty() => Some((host, scheme.default_port())),
            None => None,
        };
    }
    match text.split_once(':') {
        Some((host, "")) => Some((host, scheme.default_port())),
        Some((host, port)) => Some((host, port.parse().ok()?)),
        None => Some((text, scheme.default_port())),
    }
}

fn split_query(tail: &str) -> (&str, Option<String>) {
    match tail.split_once('?') {
        Some((path, query)) => (path, Some(query.to_owned())),
        None => (tail, None),
    }
}

/// The path without `.` and `..` segments (RFC 3986 section 5.2.4): nothing resolves to above the root.
fn normal_path(path: &str) -> String {
    let mut kept: Vec<&str> = Vec::new();
    let mut ends_in_folder = false;
    for segment in path.split('/').skip(usize::from(path.starts_with('/'))) {
        ends_in_folder = matches!(segment, "." | "..");
        match segment {
            "." => {}
            ".." => drop(kept.pop()),
            other => kept.push(other),
        }
    }
    let mut normal = format!("/{}", kept.join("/"));
    if ends_in_folder && !normal.ends_with('/') {
        normal.push('/');
    }
    normal
}

/// Replaces `%XX`; what is not valid UTF-8 then is replaced by U+FFFD.
fn percent_decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let hex = |b: &u8| (*b as char).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
        match (first, tail) {
            (b'%', [high, low, after @ ..]) if hex(high).is_some() && hex(low).is_some() => {
                bytes.push(hex(high).unwrap_or_default() << 4 | hex(low).unwrap_or_default());
                rest = after;
            }
            _ => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_resolve_as_the_rfc_says() {
        let base = Url::parse("http://h/a/b/c?q").unwrap();
        for (reference, target) in [
            ("d", "/a/b/d"),
            ("./d", "/a/b/d"),
            ("../d", "/a/d"),
            ("../../../../d", "/d"),
            ("/d?x=y", "/d?x=y"),
            ("..", "/a/"),
            ("", "/a/b/c"),
        ] {
            assert_eq!(base.join(reference).unwrap().target(), target, "{reference}");
        }
        assert_eq!(base.join("//other:81/x").unwrap().origin().to_string(), "http://other:81");
        assert_eq!(base.join("https://s/x").unwrap().origin().scheme, Scheme::Https);
    }

    #[test]
    fn secrets_are_never_shown() {
        let url = Url::parse("https://me:p%40ss@h:444/x?token=secret").unwrap();
        assert_eq!(url.to_string(), "https://h:444/x");
        assert_eq!(format!("{url:?}"), "Url(https://h:444/x)");
        assert_eq!(url.userinfo(), Some("me:p@ss"));
        assert_eq!(url.query_value("token").as_deref(), Some("secret"));
        let message = Url::parse("ftp://me:secret@h/").unwrap_err().to_string();
        assert!(!message.contains("secret"), "{message}");
    }

    #[test]
    fn hosts_and_ports() {
        assert_eq!(Url::parse("http://[::1]:8080/").unwrap().origin().host_field(), "[::1]:8080");
        assert_eq!(Url::parse("HTTP://x/").unwrap_err(), UrlError::Scheme("HTTP://x/".into()));
        assert!(matches!(Url::parse("http://h:70000/"), Err(UrlError::Port(_))));
        assert!(matches!(Url::parse("http:///x"), Err(UrlError::Host(_))));
        assert!(matches!(Url::parse("http://h/a b"), Err(UrlError::Character)));
        assert_eq!(Url::parse("file:///a%20b/c+d").unwrap().file_path(), std::path::Path::new("/a b/c+d"));
        assert!(matches!(Url::parse("file://elsewhere/a"), Err(UrlError::Host(_))));
    }

    #[test]
    fn references_stay_with_their_kind() {
        let remote = Url::parse("https://h/cache").unwrap();
        for local in ["file:///etc/passwd", "file://localhost/etc/passwd"] {
            assert!(matches!(remote.child(local), Err(UrlError::Local(_))), "{local}");
        }
        assert!(matches!(remote.child("ftp://h/x"), Err(UrlError::Scheme(_))));
        assert_eq!(remote.child("http://other/x").unwrap().origin().scheme, Scheme::Http);
        let folder = Url::parse("file:///a/link/../cache?priority=1").unwrap();
        for outside in ["file:///etc/passwd", "http://h/x", "/etc/passwd", "//h/x"] {
            assert!(matches!(folder.child(outside), Err(UrlError::Outside(_))), "{outside}");
        }
        let nar = folder.child("nar/x%2Bz.nar").unwrap();
        assert_eq!(nar.folder_and_below(), ("/a/link/../cache/".into(), "nar/x+z.nar".to_owned()));
    }
}
