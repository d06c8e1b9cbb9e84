//! Credentials: netrc, `user:password@` in the address, and extra fields (`--header`). All of them are only sent to the
//! origin they were given for: a redirect or an absolute `URL:` elsewhere gets none.
//!
//! A netrc names hosts, without scheme or port. Its entries apply to the caches that the user has configured: their
//! scheme, host and port. The entry of a host also applies to that host's `https` on the default port, where a cache
//! may store its NARs. The `default` entry only applies to the configured caches, and if an `https` cache is configured
//! for a host, its password is never sent over `http`.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fs, io};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use parking_lot::Mutex;
use zeroize::Zeroizing;

use crate::url::{Origin, Scheme, Url};

/// The maximum size of a netrc file.
const NETRC_LEN_MAX: u64 = 1024 * 1024;

/// `machine`, `login` and `password` of a netrc file.
#[derive(Default, Clone)]
pub struct Netrc {
    machines: HashMap<String, Login>,
    default: Option<Login>,
}

/// An entry of a netrc file.
#[derive(Clone)]
struct Login {
    login: String,
    password: String,
    /// The file, if it is known, and the line.
    from: String,
}

impl Netrc {
    /// Parses a netrc file. `account` is skipped, and `macdef` up to its empty line.
    ///
    /// ```
    /// let netrc = narval_client::Netrc::parse("machine cache.example.org login me password secret");
    /// assert_eq!(netrc.login("cache.example.org"), Some(("me", "secret")));
    /// ```
    pub fn parse(text: &str) -> Self {
        Self::of(text, Path::new("netrc"))
    }

    /// The entries of a file.
    fn of(text: &str, file: &Path) -> Self {
        let mut netrc = Self::default();
        // The host of the entry that is read, `None` for the default one, with what is known of it.
        let mut current: Option<(Option<String>, Login)> = None;
        let mut words = words(text).into_iter();
        while let Some((word, line)) = words.next() {
            let mut value = || words.next().map(|(word, _)| word);
            match (word.as_str(), &mut current) {
                ("machine" | "default", _) => {
                    netrc.store(current.take());
                    let from = format!("{}:{line}", file.display());
                    let host = if word == "machine" { value() } else { None };
                    current = Some((host, Login { login: String::new(), password: String::new(), from }));
                }
                ("login", Some((_, entry))) => entry.login = value().unwrap_or_default(),
                ("password", Some((_, entry))) => entry.password = value().unwrap_or_default(),
                _ => {}
            }
        }
        netrc.store(current);
        netrc
    }

    fn store(&mut self, entry: Option<(Option<String>, Login)>) {
        match entry {
            Some((Some(host), login)) => drop(self.machines.entry(host.to_ascii_lowercase()).or_insert(login)),
            Some((None, login)) => self.default = self.default.take().or(Some(login)),
            None => {}
        }
    }

    /// Reads only the file `named`, which must exist. Without it: `$NETRC`, `~/.netrc`, Nix's `netrc-file` and
    /// `/etc/nix/netrc`, if they can be read; the first entry for a host applies.
    ///
    /// # Errors
    /// If a file cannot be read, is too large or is not text.
    pub fn load(named: Option<&Path>, of_nix: Option<&Path>) -> io::Result<Self> {
        if let Some(path) = named {
            return read(path);
        }
        let home = std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".netrc"));
        let of_nix = of_nix.map(Path::to_owned);
        let usual = [std::env::var_os("NETRC").map(PathBuf::from), home, of_nix, Some("/etc/nix/netrc".into())];
        let mut all = Self::default();
        for path in usual.into_iter().flatten() {
            match read(&path) {
                Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied) => {}
                netrc => all = all.or(netrc?),
            }
        }
        Ok(all)
    }

    /// Adds the entries of another netrc for hosts that this one does not have.
    #[must_use]
    pub fn or(mut self, other: Self) -> Self {
        for (host, login) in other.machines {
            self.machines.entry(host).or_insert(login);
        }
        self.default = self.default.or(other.default);
        self
    }

    /// Login and password for a host, from the entry with its name or from the default entry.
    pub fn login(&self, host: &str) -> Option<(&str, &str)> {
        self.entry(host).map(|entry| (&*entry.login, &*entry.password))
    }

    fn entry(&self, host: &str) -> Option<&Login> {
        self.machines.get(host).or(self.default.as_ref())
    }
}

fn read(path: &Path) -> io::Result<Netrc> {
    let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
    let len = fs::metadata(path).map_err(named)?.len();
    if len > NETRC_LEN_MAX {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("{} is too large for a netrc file", path.display()),
        ));
    }
    Ok(Netrc::of(&fs::read_to_string(path).map_err(named)?, path))
}

/// The words of a netrc file without comments and macros, with their lines.
fn words(text: &str) -> Vec<(String, usize)> {
    let mut words: Vec<(String, usize)> = Vec::new();
    let mut in_macro = false;
    for (number, line) in std::iter::zip(1.., text.lines()) {
        if line.trim().is_empty() {
            in_macro = false;
        }
        for word in line.split_whitespace() {
            if in_macro || word.starts_with('#') && words.last().is_none_or(|(last, _)| last != "password") {
                break;
            }
            if word == "macdef" {
                in_macro = true;
                break;
            }
            words.push((word.trim_matches('"').to_owned(), number));
        }
    }
    words
}

/// A token that is replaced while the client is in use, sent as `Authorization: Bearer`. Clones share it.
#[derive(Clone, Default)]
pub struct Bearer(Arc<Mutex<Option<Zeroizing<String>>>>);

impl Bearer {
    /// Requests from now on have this token. Returns whether it can be one: it has printable ASCII alone.
    pub fn set(&self, token: &str) -> bool {
        let is_token = !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic());
        if is_token {
            *self.0.lock() = Some(token.to_owned().into());
        }
        is_token
    }

    /// The token, if there is one.
    pub fn token(&self) -> Option<Zeroizing<String>> {
        self.0.lock().clone()
    }
}

/// The credentials for requests, and the origins that get them.
#[derive(Default, Clone)]
pub struct Credentials {
    netrc: Netrc,
    /// `Name: value` lines for the origins of the caches.
    headers: Vec<(String, String)>,
    /// A token for the origins of the caches.
    bearer: Bearer,
    /// The origins of the configured caches.
    origins: Vec<Origin>,
    basic: HashMap<Origin, String>,
    /// Whether the entries of a netrc for other hosts are not used.
    only_caches: bool,
}

impl Credentials {
    /// Credentials from a netrc, and from the addresses of the caches themselves.
    pub fn new(netrc: Netrc, caches: &[Url]) -> Self {
        let mut basic = HashMap::new();
        for cache in caches {
            if let Some(userinfo) = cache.userinfo() {
                basic.insert(cache.origin().clone(), format!("Basic {}", STANDARD.encode(userinfo)));
            }
        }
        let origins = caches.iter().map(|url| url.origin().clone()).collect();
        Self { netrc, headers: Vec::new(), bearer: Bearer::default(), origins, basic, only_caches: false }
    }

    /// Uses the netrc for the caches alone. Otherwise whoever answers for a cache could make the client use logins that were meant for other
    /// hosts.
    #[must_use]
    pub fn only_for_caches(self) -> Self {
        Self { only_caches: true, ..self }
    }

    /// Uses this token for the caches, once it is set.
    #[must_use]
    pub fn with_bearer(self, bearer: Bearer) -> Self {
        Self { bearer, ..self }
    }

    /// Adds a `Name: value` line to every request to the caches.
    pub fn add_header(&mut self, line: &str) -> Result<(), String> {
        let (name, value) =
            line.split_once(':').ok_or_else(|| format!("--header '{line}': write it as 'Name: value'"))?;
        let token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
        let value = value.trim();
        if name.is_empty() || !name.bytes().all(token) || value.bytes().any(|b| b < b' ' && b != b'\t' || b == 0x7f) {
            return Err(format!("--header '{name}': a character that HTTP does not allow"));
        }
        self.headers.push((name.to_owned(), value.to_owned()));
        Ok(())
    }

    /// The field lines for a request to `origin`.
    pub(crate) fn lines_for(&self, origin: &Origin) -> Vec<(String, String)> {
        let mut lines = Vec::new();
        if self.origins.contains(origin) {
            lines.extend(self.headers.iter().cloned());
            let token = self.bearer.token();
            lines.extend(token.map(|token| ("Authorization".to_owned(), format!("Bearer {}", &*token))));
        }
        if lines.iter().any(|(name, _)| name.eq_ignore_ascii_case("authorization")) {
            return lines;
        }
        if let Some(basic) = self.basic.get(origin) {
            lines.push(("Authorization".to_owned(), basic.clone()));
        } else if let Some(Login { login, password, .. }) = self.netrc_login(origin) {
            let basic = STANDARD.encode(format!("{login}:{password}"));
            lines.push(("Authorization".to_owned(), format!("Basic {basic}")));
        }
        lines
    }

    /// Whether requests to `origin` have credentials.
    pub(crate) fn has_for(&self, origin: &Origin) -> bool {
        !self.lines_for(origin).is_empty()
    }

    /// Where the credentials for requests to `origin` come from, in words for a message.
    pub(crate) fn source_for(&self, origin: &Origin) -> Option<String> {
        let names_them = |(name, _): &(String, String)| name.eq_ignore_ascii_case("authorization");
        if self.origins.contains(origin) && self.headers.iter().any(names_them) {
            return Some("--header".to_owned());
        }
        match self.basic.contains_key(origin) {
            true => Some("the address".to_owned()),
            false => self.netrc_login(origin).map(|entry| entry.from.clone()),
        }
    }

    fn netrc_login(&self, origin: &Origin) -> Option<&Login> {
        let given_for_https =
            || self.origins.iter().any(|named| named.scheme == Scheme::Https && named.host == origin.host);
        match (self.origins.contains(origin), origin.scheme) {
            (true, Scheme::Http) if given_for_https() => None,
            (true, _) => self.netrc.entry(&origin.host),
            (false, Scheme::Https) if origin.has_usual_port() && !self.only_caches => {
                self.netrc.machines.get(&origin.host)
            }
            (false, _) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn netrc_files_as_people_write_them() {
        let netrc = Netrc::parse(
            "# mine\nmachine a login x\n password \"p q\n\nmacdef init\nmachine evil\n\nmachine B login y password #z\ndefault login d password e",
        );
        assert_eq!(netrc.login("b"), Some(("y", "#z")));
        assert_eq!(netrc.login("other"), Some(("d", "e")));
        assert_eq!(netrc.login("a").unwrap().0, "x");
        assert!(!netrc.machines.contains_key("evil"));
    }

    #[test]
    fn credentials_know_where_they_come_from() {
        let netrc = Netrc::of("machine a login x\n\n# no\nmachine cache login y\n password z", Path::new("/etc/netrc"));
        let cache = Url::parse("http://cache:81").unwrap();
        let mut credentials = Credentials::new(netrc, std::slice::from_ref(&cache));
        assert_eq!(credentials.source_for(cache.origin()).as_deref(), Some("/etc/netrc:4"));
        credentials.add_header("authorization: Bearer x").unwrap();
        assert_eq!(credentials.source_for(cache.origin()).as_deref(), Some("--header"));
        assert_eq!(credentials.source_for(Url::parse("http://other").unwrap().origin()), None);
    }

    #[test]
    fn the_first_netrc_counts_and_others_add_to_it() {
        let first = Netrc::parse("machine a login one password x");
        let both =
            first.or(Netrc::parse("machine a login two password x\nmachine b login two password x\ndefault login d"));
        assert_eq!(["a", "b", "c"].map(|host| both.login(host).unwrap().0), ["one", "two", "d"]);
    }

    #[test]
    fn netrc_entries_go_where_they_were_given_for() {
        let netrc = Netrc::parse(
            "machine cache login a password b\nmachine cdn login c password d\ndefault login e password f",
        );
        let named = ["https://cache/x", "http://lan:81", "http://both", "https://both:444"];
        let caches: Vec<_> = named.iter().map(|url| Url::parse(url).unwrap()).collect();
        let credentials = Credentials::new(netrc, &caches);
        let login = |url: &str| {
            let line = credentials.lines_for(Url::parse(url).unwrap().origin()).pop()?;
            let basic = line.1.strip_prefix("Basic ").unwrap().to_owned();
            Some(String::from_utf8(STANDARD.decode(basic).unwrap()).unwrap())
        };
        for (url, expected) in [
            ("https://cache/nar/x", Some("a:b")),
            // A redirect or URL of the same host, unencrypted or to another user's port.
            ("http://cache/nar/x", None),
            ("https://cache:8443/", None),
            ("https://cdn/nar/x", Some("c:d")),
            ("http://cdn/nar/x", None),
            ("https://cdn:8443/nar/x", None),
            ("http://lan:81/", Some("e:f")),
            ("http://lan/", None),
            ("https://lan/", None),
            ("https://evil/", None),
            ("http://both/", None),
            ("https://both:444/", Some("e:f")),
        ] {
            assert_eq!(login(url).as_deref(), expected, "{url}");
        }
    }

    #[test]
    fn a_netrc_can_be_for_the_caches_alone() {
        let netrc = Netrc::parse("machine cache login a password b\nmachine cdn login c password d");
        let credentials = Credentials::new(netrc, &[Url::parse("https://cache").unwrap()]);
        let lines =
            |credentials: &Credentials, url: &str| credentials.lines_for(Url::parse(url).unwrap().origin()).len();
        assert_eq!(["https://cache", "https://cdn"].map(|url| lines(&credentials, url)), [1, 1]);
        let credentials = credentials.only_for_caches();
        assert_eq!(["https://cache", "https://cdn"].map(|url| lines(&credentials, url)), [1, 0]);
    }

    #[test]
    fn credentials_stay_with_their_origin() {
        let cache = Url::parse("https://me:pw@cache:444/x").unwrap();
        let mut credentials = Credentials::new(Netrc::default(), std::slice::from_ref(&cache));
        credentials.add_header("X-Token: t").unwrap();
        assert_eq!(credentials.lines_for(cache.origin()).len(), 2);
        let elsewhere = Url::parse("http://cache:444/x").unwrap();
        assert!(credentials.lines_for(elsewhere.origin()).is_empty());
        assert!(credentials.add_header("bad\r\nname: x").is_err());
        assert!(credentials.add_header("X: a\r\nEvil: b").is_err());
    }
}
