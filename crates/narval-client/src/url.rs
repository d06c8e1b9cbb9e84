//! URLs of caches and their files: `http://`, `https://`, `s3://` and `file://`, and relative references as in narinfo
//! `URL:` fields and `Location:` headers (RFC 3986 section 5, without fragments).

use std::borrow::Cow;
use std::ffi::OsString;
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use percent_encoding::{AsciiSet, CONTROLS, NON_ALPHANUMERIC, percent_decode_str, percent_encode};
use url::Host;

/// The type of a URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// Plain HTTP.
    Http,
    /// HTTP over TLS.
    Https,
    /// A local folder.
    File,
    /// A bucket of an object store. The query says how to access it, and also applies to URLs below.
    S3,
}

impl Scheme {
    /// The name before `://`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
            Self::File => "file",
            Self::S3 => "s3",
        }
    }

    /// Schemes are case-insensitive.
    fn from_name(name: &str) -> Option<Self> {
        [Self::Http, Self::Https, Self::File, Self::S3]
            .into_iter()
            .find(|scheme| name.eq_ignore_ascii_case(scheme.name()))
    }

    const fn default_port(self) -> u16 {
        match self {
            Self::Https => 443,
            _ => 80,
        }
    }
}

/// Scheme, host and port. Credentials are bound to it, and connections are reused for it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Origin {
    /// The scheme.
    pub scheme: Scheme,
    /// The host in lower case; an IPv6 address without its brackets. Empty for `file`.
    pub host: String,
    /// The port.
    pub port: u16,
}

impl Origin {
    /// Whether the port is the scheme's default.
    pub(crate) const fn has_usual_port(&self) -> bool {
        self.port == self.scheme.default_port()
    }

    /// The `Host` field, with the port if it is not the scheme's default.
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

/// A URL. Its [`Display`](fmt::Display) never shows user, password or query, which often contain secrets.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Url {
    origin: Origin,
    place: Place,
}

#[derive(Clone, PartialEq, Eq, Hash)]
enum Place {
    /// Without a fragment.
    Network(url::Url),
    Folder(Folder),
}

/// The part of a `file` URL after the host. The `url` crate would resolve `..` in it.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Folder {
    /// As written, percent-encoded: only the kernel can resolve `..` after a symlink.
    path: String,
    /// The length of the part that names the folder. The rest is below that folder.
    len: usize,
    query: Option<String>,
}

/// Why a URL is not usable.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum UrlError {
    /// Another scheme, or none.
    #[error("'{0}' is not a cache address: use http://, https://, s3:// or file://")]
    Scheme(String),
    /// The host is missing or invalid.
    #[error("'{0}' has no valid host")]
    Host(String),
    /// The port is not a number below 65536.
    #[error("'{0}' has no valid port")]
    Port(String),
    /// It contains control characters or blanks.
    #[error("the address contains a blank or a control character")]
    Character,
    /// A reference from the network names a local file, or a bucket that would be read with this machine's credentials.
    #[error("'{0}' names a local file or a bucket, and only http:// and https:// may be named over the network")]
    Local(String),
    /// A reference in a folder or bucket points outside of it.
    #[error("'{0}' does not name a file below the folder of the cache")]
    Outside(String),
    /// Longer than [`URL_LEN_MAX`].
    #[error("the address is longer than {URL_LEN_MAX} bytes")]
    TooLong,
}

/// The maximum length of a URL: presigned object-storage links stay below 2 KiB.
pub const URL_LEN_MAX: usize = 8 * 1024;

const NOT_UNRESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// A text as one segment of a URL's path, or as a value in its query.
///
/// ```
/// assert_eq!(narval_client::escaped("gtk+3 ä&x"), "gtk%2B3%20%C3%A4%26x");
/// ```
pub fn escaped(text: &str) -> String {
    percent_encode(text.as_bytes(), NOT_UNRESERVED).to_string()
}

/// The characters that are encoded in the path of a folder.
const FOLDER_PATH: &AsciiSet = &CONTROLS.add(b' ').add(b'#').add(b'%').add(b'?');

impl Url {
    /// Parses an absolute URL according to the URL Standard.
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
        let split = text.split_once("://").and_then(|(name, rest)| Some((Scheme::from_name(name)?, rest)));
        match split.ok_or_else(|| UrlError::Scheme(redacted(text)))? {
            (Scheme::File, rest) => Self::parse_folder(rest).ok_or_else(|| UrlError::Host(redacted(text))),
            // The URL Standard ignores further slashes, like browsers, and would take the host from the path.
            (_, rest) if rest.starts_with(['/', '\\']) => Err(UrlError::Host(redacted(text))),
            _ => Self::from_network(url::Url::parse(text).map_err(|error| network_error(error, text))?, text),
        }
    }

    /// Parses the part of a `file` URL after `file://`; `None` for a host other than this one.
    fn parse_folder(rest: &str) -> Option<Self> {
        let rest = rest.split('#').next().unwrap_or_default();
        let (host, tail) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
        if !(host.is_empty() || host.eq_ignore_ascii_case("localhost")) {
            return None;
        }
        let (path, query) = split_query(tail);
        let path = if path.is_empty() { "/" } else { path }.to_owned();
        let origin =
            Origin { scheme: Scheme::File, host: host.to_ascii_lowercase(), port: Scheme::File.default_port() };
        Some(Self { origin, place: Place::Folder(Folder { len: path.len(), path, query }) })
    }

    /// `text` is what the URL was parsed from.
    fn from_network(mut url: url::Url, text: &str) -> Result<Self, UrlError> {
        let scheme = match Scheme::from_name(url.scheme()) {
            Some(Scheme::File) => return Err(UrlError::Local(redacted(text))),
            // The port of a bucket belongs into `endpoint=`.
            Some(Scheme::S3) if url.port().is_some() => return Err(UrlError::Port(redacted(text))),
            Some(scheme) => scheme,
            None => return Err(UrlError::Scheme(redacted(text))),
        };
        let host = match url.host() {
            Some(Host::Domain(name)) => name.to_owned(),
            Some(Host::Ipv4(address)) => address.to_string(),
            Some(Host::Ipv6(address)) => address.to_string(),
            None => return Err(UrlError::Host(redacted(text))),
        };
        let origin = Origin { scheme, host, port: url.port().unwrap_or(scheme.default_port()) };
        url.set_fragment(None);
        Ok(Self { origin, place: Place::Network(url) })
    }

    /// The URL of a local folder.
    pub fn from_folder(folder: &Path) -> Result<Self, UrlError> {
        let path = percent_encode(folder.as_os_str().as_bytes(), FOLDER_PATH);
        Self::parse(&format!("file://{path}"))
    }

    /// Resolves a reference against this URL according to RFC 3986, relative to its folder.
    ///
    /// # Errors
    /// [`UrlError::Local`] if a reference from the network leads to a `file` or `s3` URL, and
    /// [`UrlError::Outside`] if one from a folder or a bucket is anything but a relative path. Opening such a path
    /// checks that it stays below the folder, symlinks included.
    pub fn join(&self, reference: &str) -> Result<Self, UrlError> {
        check_characters(reference)?;
        match &self.place {
            Place::Folder(folder) => {
                let folder = folder.join(reference).ok_or_else(|| UrlError::Outside(redacted(reference)))?;
                Ok(Self { origin: self.origin.clone(), place: Place::Folder(folder) })
            }
            Place::Network(url) if self.scheme() == Scheme::S3 => {
                let joined = join_in_bucket(url, reference).ok_or_else(|| UrlError::Outside(redacted(reference)))?;
                Ok(Self { origin: self.origin.clone(), place: Place::Network(joined) })
            }
            Place::Network(url) => {
                let mut base = url.clone();
                base.set_query(None);
                let joined = base.join(reference).map_err(|error| network_error(error, reference))?;
                match Self::from_network(joined, reference)? {
                    bucket if bucket.scheme() == Scheme::S3 => Err(UrlError::Local(redacted(reference))),
                    url => Ok(url),
                }
            }
        }
    }

    /// The URL of a file of the cache whose base is this URL, with or without its final slash. The base's own query
    /// (`?priority=`) is dropped.
    pub fn child(&self, reference: &str) -> Result<Self, UrlError> {
        let mut base = self.clone();
        match &mut base.place {
            Place::Network(url) if !url.path().ends_with('/') => url.set_path(&format!("{}/", url.path())),
            Place::Network(_) => {}
            Place::Folder(folder) => {
                if !folder.path.ends_with('/') {
                    folder.path.push('/');
                }
                folder.len = folder.path.len();
            }
        }
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

    /// The bucket of an `s3` URL, and the key of the object in it, decoded.
    pub fn bucket_and_key(&self) -> (&str, Cow<'_, str>) {
        let key = self.path().strip_prefix('/').unwrap_or_default();
        (&self.origin.host, percent_decode_str(key).decode_utf8_lossy())
    }

    /// The URL of the bucket itself, with the parameters that say how to reach it.
    #[must_use]
    pub fn bucket(&self) -> Self {
        let mut bucket = self.clone();
        if let Place::Network(url) = &mut bucket.place {
            url.set_path("");
        }
        bucket
    }

    /// The path, percent-encoded. Starts with `/`; that of a bucket may be empty.
    fn path(&self) -> &str {
        match &self.place {
            Place::Network(url) => url.path(),
            Place::Folder(folder) => &folder.path,
        }
    }

    fn query(&self) -> Option<&str> {
        match &self.place {
            Place::Network(url) => url.query(),
            Place::Folder(folder) => folder.query.as_deref(),
        }
    }

    /// Path and query for a request line.
    pub fn target(&self) -> String {
        match self.query() {
            Some(query) => format!("{}?{query}", self.path()),
            None => self.path().to_owned(),
        }
    }

    /// The value of a query parameter.
    pub fn query_value(&self, name: &str) -> Option<String> {
        let mut pairs = url::form_urlencoded::parse(self.query()?.as_bytes());
        pairs.find(|(key, _)| key == name).map(|(_, value)| value.into_owned())
    }

    /// `user:password` before the `@`, decoded. Without a password it ends with the colon (RFC 7617 section 2).
    pub fn userinfo(&self) -> Option<String> {
        let Place::Network(url) = &self.place else { return None };
        if url.username().is_empty() && url.password().is_none() {
            return None;
        }
        let decoded = |text| percent_decode_str(text).decode_utf8_lossy();
        Some(format!("{}:{}", decoded(url.username()), decoded(url.password().unwrap_or_default())))
    }

    /// The folder or file of a `file://` URL.
    pub fn file_path(&self) -> PathBuf {
        decoded_path(self.path())
    }

    /// The folder of a `file://` URL made by [`child`](Self::child), and the path of the file below it. For other URLs,
    /// the file itself and an empty path.
    pub fn folder_and_below(&self) -> (PathBuf, PathBuf) {
        let len = match &self.place {
            Place::Network(_) => self.path().len(),
            Place::Folder(folder) => folder.len,
        };
        let (folder, below) = self.path().split_at_checked(len).unwrap_or((self.path(), ""));
        (decoded_path(folder), decoded_path(below))
    }
}

impl Folder {
    /// `None` for a reference that is not a relative path.
    fn join(&self, reference: &str) -> Option<Self> {
        let (below, query) = split_query(reference.split('#').next().unwrap_or_default());
        if below.starts_with('/') || below.contains("://") {
            return None;
        }
        let folder = self.path.rfind('/').map_or("/", |slash| &self.path[..=slash]);
        Some(Self { path: format!("{folder}{below}"), len: self.len, query })
    }
}

impl std::str::FromStr for Url {
    type Err = UrlError;

    /// See [`Url::parse`].
    fn from_str(text: &str) -> Result<Self, UrlError> {
        Self::parse(text)
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.scheme(), self.path()) {
            (Scheme::File, path) => write!(f, "file://{path}"),
            (_, "/") => write!(f, "{}", self.origin),
            (_, path) => write!(f, "{}{path}", self.origin),
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

fn network_error(error: url::ParseError, text: &str) -> UrlError {
    match error {
        url::ParseError::InvalidPort => UrlError::Port(redacted(text)),
        _ => UrlError::Host(redacted(text)),
    }
}

/// Resolves a relative reference below the folder of `base`, in the same bucket. The base's query says how to access
/// the bucket, and is kept.
fn join_in_bucket(base: &url::Url, reference: &str) -> Option<url::Url> {
    if reference.starts_with('/') {
        return None;
    }
    let mut joined = base.join(reference).ok()?;
    let folder = base.path().rfind('/').map_or("/", |slash| &base.path()[..=slash]);
    let same_bucket = (joined.scheme(), joined.host(), joined.port()) == (base.scheme(), base.host(), base.port());
    if !same_bucket || !joined.path().starts_with(folder) {
        return None;
    }
    joined.set_query(base.query());
    joined.set_fragment(None);
    Some(joined)
}

/// The text without its query and user information, for messages.
fn redacted(text: &str) -> String {
    let text = text.split(['?', '#']).next().unwrap_or_default();
    let host = |rest: &str| rest.rsplit_once('@').map_or(rest, |(_, host)| host).to_owned();
    match text.split_once("://") {
        Some((scheme, rest)) => format!("{scheme}://{}", host(rest)),
        None => host(text),
    }
}

fn split_query(tail: &str) -> (&str, Option<String>) {
    match tail.split_once('?') {
        Some((path, query)) => (path, Some(query.to_owned())),
        None => (tail, None),
    }
}

fn decoded_path(text: &str) -> PathBuf {
    OsString::from_vec(percent_decode_str(text).collect()).into()
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
        assert_eq!(url.userinfo().as_deref(), Some("me:p@ss"));
        assert_eq!(Url::parse("https://token@h").unwrap().userinfo().as_deref(), Some("token:"));
        assert_eq!(Url::parse("https://h/@").unwrap().userinfo(), None);
        assert_eq!(url.query_value("token").as_deref(), Some("secret"));
        let remote = Url::parse("https://h").unwrap();
        for text in [
            "ftp://me:secret@h/",
            "me:secret@h",
            "http://h:x/?token=secret",
            "http://me:secret@h:x",
            "http:///@?secret",
        ] {
            let message = Url::parse(text).unwrap_err().to_string();
            assert!(!message.contains("secret"), "{message}");
        }
        for reference in ["//me:secret@h:x", "file://me:secret@h/", "ftp:me:secret@h"] {
            let message = remote.join(reference).unwrap_err().to_string();
            assert!(!message.contains("secret"), "{message}");
        }
    }

    #[test]
    fn hosts_and_ports() {
        assert_eq!(Url::parse("http://[::1]:8080/").unwrap().origin().host_field(), "[::1]:8080");
        for (text, origin) in [
            ("HTTP://X/", "http://x"),
            ("Https://x:443/", "https://x"),
            ("http://h:", "http://h"),
            ("http://[0:0::1]", "http://[::1]"),
            ("http://xn--mnchen-3ya.example", "http://xn--mnchen-3ya.example"),
            ("http://a_b.example", "http://a_b.example"),
        ] {
            assert_eq!(Url::parse(text).unwrap().origin().to_string(), origin, "{text}");
        }
        assert_eq!(Url::parse("FILE://LocalHost/a").unwrap().file_path(), Path::new("/a"));
        for text in ["HTTP:x", "http:/x", "x", "/x", "://x", "gopher://x"] {
            assert!(matches!(Url::parse(text), Err(UrlError::Scheme(_))), "{text}");
        }
        for text in [
            "http://",
            "http://?x",
            "http://me@/x",
            "http:///x",
            "http://\\x",
            "http://a|b",
            "http://[::1",
            "http://[x]",
        ] {
            assert!(matches!(Url::parse(text), Err(UrlError::Host(_))), "{text}");
        }
        assert!(matches!(Url::parse("http://h:70000/"), Err(UrlError::Port(_))));
        assert!(matches!(Url::parse("http://h/a b"), Err(UrlError::Character)));
        assert_eq!(Url::parse("file:///a%20b/c+d").unwrap().file_path(), Path::new("/a b/c+d"));
        assert!(matches!(Url::parse("file://elsewhere/a"), Err(UrlError::Host(_))));
    }

    #[test]
    fn references_stay_with_their_kind() {
        let remote = Url::parse("https://h/cache").unwrap();
        for local in ["file:///etc/passwd", "file://localhost/etc/passwd", "FILE:///etc/passwd", "file:/etc/passwd"] {
            assert!(matches!(remote.child(local), Err(UrlError::Local(_))), "{local}");
        }
        assert!(matches!(remote.child("ftp://h/x"), Err(UrlError::Scheme(_))));
        assert_eq!(remote.child("http://other/x").unwrap().origin().scheme, Scheme::Http);
        let folder = Url::parse("file:///a/link/../cache?priority=1").unwrap();
        for outside in ["file:///etc/passwd", "http://h/x", "/etc/passwd", "//h/x"] {
            assert!(matches!(folder.child(outside), Err(UrlError::Outside(_))), "{outside}");
        }
        let nar = folder.child("nar/x%2Bz.nar").unwrap();
        assert_eq!(nar.folder_and_below(), ("/a/link/../cache/".into(), "nar/x+z.nar".into()));
    }

    #[test]
    fn references_do_not_leave_a_bucket() {
        let bucket = Url::parse("s3://cache/a%20b?region=x&endpoint=y").unwrap();
        assert_eq!(bucket.to_string(), "s3://cache/a%20b");
        let nar = bucket.child("nar/x.nar?q#f").unwrap();
        assert_eq!(nar.bucket_and_key(), ("cache", "a b/nar/x.nar".into()));
        assert_eq!(nar.query_value("endpoint").as_deref(), Some("y"));
        for outside in ["s3://other/x", "https://h/x", "/x", "//other/x", "../x", "..", "file:///x"] {
            assert_eq!(bucket.child(outside), Err(UrlError::Outside(outside.to_owned())), "{outside}");
        }
        assert_eq!(Url::parse("s3://cache").unwrap().child("x").unwrap().bucket_and_key(), ("cache", "x".into()));
        assert!(matches!(Url::parse("s3:///x"), Err(UrlError::Host(_))));
        let remote = Url::parse("https://h").unwrap();
        assert!(matches!(remote.child("s3://cache/x"), Err(UrlError::Local(_))));
    }

    #[test]
    fn folders_are_named_by_their_bytes() {
        use std::ffi::OsStr;
        for bytes in [&b"/a b/%20#?"[..], b"/\xff/\n", "/ü".as_bytes(), b"/a/../b/./c"] {
            let folder = Path::new(OsStr::from_bytes(bytes));
            assert_eq!(Url::from_folder(folder).unwrap().file_path().as_os_str().as_bytes(), bytes);
        }
    }
}
