//! Credentials: netrc, `user:password@` in the address, and extra fields (`--header`). All of them are only sent to the
//! origin they were given for: a redirect or an absolute `URL:` elsewhere gets none.
//!
//! A netrc names hosts, without scheme or port. Its entries apply to the caches that the user has configured: their
//! scheme, host and port. The entry of a host also applies to that host's `https` on the default port, where a cache
//! may store its NARs. The `default` entry only applies to the configured caches, and if an `https` cache is configured
//! for a host, its password is never sent over `http`.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::{fs, io};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::url::{Origin, Scheme, Url};

/// The maximum size of a netrc file.
const NETRC_LEN_MAX: u64 = 1024 * 1024;

/// `machine`, `login` and `password` of a netrc file.
#[derive(Default, Clone)]
pub struct Netrc {
    machines: HashMap<String, (String, String)>,
    default: Option<(String, String)>,
}

impl Netrc {
    /// Parses a netrc file. `account` is skipped, and `macdef` up to its empty line.
    ///
    /// ```
    /// let netrc = narval_client::Netrc::parse("machine cache.example.org login me password secret");
    /// assert_eq!(netrc.login("cache.example.org"), Some(("me", "secret")));
    /// ```
    pub fn parse(text: &str) -> Self {
        let mut netrc = Self::default();
        let mut current: Option<Option<String>> = None;
        let (mut login, mut password) = (String::new(), String::new());
        let mut words = words(text).into_iter();
        while let Some(word) = words.next() {
            match word.as_str() {
                "machine" | "default" => {
                    netrc.store(current.take(), &mut login, &mut password);
                    current = Some(if word == "machine" { words.next() } else { None });
                }
                "login" => login = words.next().unwrap_or_default(),
                "password" => password = words.next().unwrap_or_default(),
                _ => {}
            }
        }
        netrc.store(current, &mut login, &mut password);
        netrc
    }

    fn store(&mut self, machine: Option<Option<String>>, login: &mut String, password: &mut String) {
        let pair = (std::mem::take(login), std::mem::take(password));
        match machine {
            Some(Some(host)) => drop(self.machines.entry(host.to_ascii_lowercase()).or_insert(pair)),
            Some(None) => self.default = self.default.take().or(Some(pair)),
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
        self.machine(host).or_else(|| self.default.as_ref().map(|(login, password)| (&**login, &**password)))
    }

    /// Login and password from the entry with the name of a host.
    fn machine(&self, host: &str) -> Option<(&str, &str)> {
        self.machines.get(host).map(|(login, password)| (&**login, &**password))
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
    Ok(Netrc::parse(&fs::read_to_string(path).map_err(named)?))
}

/// The words of a netrc file without comments and macros.
fn words(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut in_macro = false;
    for line in text.lines() {
        if line.trim().is_empty() {
            in_macro = false;
        }
        for word in line.split_whitespace() {
            if in_macro || word.starts_with('#') && words.last().is_none_or(|last| last != "password") {
                break;
            }
            if word == "macdef" {
                in_macro = true;
                break;
            }
            words.push(word.trim_matches('"').to_owned());
        }
    }
    words
}

/// The credentials for requests, and the origins that get them.
#[derive(Default, Clone)]
pub struct Credentials {
    netrc: Netrc,
    /// `Name: value` lines for the origins of the caches.
    headers: Vec<(String, String)>,
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
        Self { netrc, headers: Vec::new(), origins, basic, only_caches: false }
    }

    /// Uses the netrc for the caches alone. Otherwise whoever answers for a cache could make the client use logins that were meant for other
    /// hosts.
    #[must_use]
    pub fn only_for_caches(self) -> Self {
        Self { only_caches: true, ..self }
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
        }
        if lines.iter().any(|(name, _)| name.eq_ignore_ascii_case("authorization")) {
            return lines;
        }
        if let Some(basic) = self.basic.get(origin) {
            lines.push(("Authorization".to_owned(), basic.clone()));
        } else if let Some((login, password)) = self.netrc_login(origin) {
            let basic = STANDARD.encode(format!("{login}:{password}"));
            lines.push(("Authorization".to_owned(), format!("Basic {basic}")));
        }
        lines
    }

    /// Whether requests to `origin` have credentials.
    pub(crate) fn has_for(&self, origin: &Origin) -> bool {
        !self.lines_for(origin).is_empty()
    }

    fn netrc_login(&self, origin: &Origin) -> Option<(&str, &str)> {
        let given_for_https =
            || self.origins.iter().any(|named| named.scheme == Scheme::Https && named.host == origin.host);
        match (self.origins.contains(origin), origin.scheme) {
            (true, Scheme::Http) if given_for_https() => None,
            (true, _) => self.netrc.login(&origin.host),
            (false, Scheme::Https) if origin.has_usual_port() && !self.only_caches => self.netrc.machine(&origin.host),
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
