//! Selects a store and locates its parts, from store URIs and Nix's environment variables.
//!
//! Rules: Nix `libstore/store-reference.cc`, `local-fs-store.hh`, `globals.cc`.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use narval_nix::store_path::StoreDirError;
use narval_nix::{StoreDir, StorePath};
use percent_encoding::percent_decode_str;
use thiserror::Error;

/// The maximum length of a store URI, in bytes.
pub(crate) const STORE_URI_LEN_MAX: usize = 8192;

/// The maximum number of parameters of a store URI.
pub(crate) const STORE_URI_PARAMETERS_MAX: usize = 64;

/// Valid parameters of Nix without a meaning for a reader of the store.
const PARAMETERS_IGNORED: &[&str] = &[
    "build-dir",
    "ignore-gc-delete-failure",
    "max-connection-age",
    "max-connections",
    "path-info-cache-size",
    "priority",
    "read-only",
    "require-sigs",
    "system-features",
    "trusted",
    "use-roots-daemon",
    "want-mass-query",
];

/// Why a store URI or the environment was rejected.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ConfigError {
    /// The URI is too long or has too many parameters.
    #[error("the store URI is too long: at most {STORE_URI_LEN_MAX} bytes and {STORE_URI_PARAMETERS_MAX} parameters")]
    TooLong,
    /// A type of store that is not supported here.
    #[error(
        "store '{uri}' is of a type that is not supported: use 'auto', 'daemon', 'local', 'unix:///path/to/socket', a \
         directory, or 'local?root=DIR'"
    )]
    Unsupported {
        /// The URI as given.
        uri: String,
    },
    /// A path is not absolute.
    #[error("{what} '{path}' must be an absolute path")]
    NotAbsolute {
        /// The parameter or variable.
        what: String,
        /// Its value.
        path: String,
    },
    /// The logical store directory is not valid.
    #[error("{what} '{path}': {source}")]
    StoreDir {
        /// The parameter or variable.
        what: String,
        /// Its value.
        path: String,
        /// The reason.
        source: StoreDirError,
    },
}

/// How the metadata of a store is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// From the database, or from the daemon if the database cannot be read.
    Auto,
    /// Only from the database.
    Database,
    /// Only from the daemon.
    Daemon,
}

/// The environment variables of Nix that determine where a store is.
#[derive(Debug, Clone, Default)]
pub struct Environment {
    variables: BTreeMap<String, OsString>,
}

impl Environment {
    const NAMES: [&'static str; 6] =
        ["NIX_REMOTE", "NIX_STORE_DIR", "NIX_STORE", "NIX_STATE_DIR", "NIX_LOG_DIR", "NIX_DAEMON_SOCKET_PATH"];

    /// The environment of this process.
    pub fn of_process() -> Self {
        let variables = Self::NAMES.iter().filter_map(|name| Some(((*name).to_owned(), std::env::var_os(name)?)));
        Self { variables: variables.collect() }
    }

    /// An environment with only these variables.
    pub fn of(variables: &[(&str, &str)]) -> Self {
        Self { variables: variables.iter().map(|(name, value)| ((*name).to_owned(), value.into())).collect() }
    }

    fn get(&self, name: &str) -> Option<&OsString> {
        self.variables.get(name)
    }

    fn path(&self, name: &str) -> Result<Option<PathBuf>, ConfigError> {
        match self.get(name) {
            Some(value) if !value.is_empty() => absolute(name, Path::new(value)).map(Some),
            _ => Ok(None),
        }
    }
}

/// Where a store is and how it is read.
///
/// ```
/// use narval_store::{Environment, StoreConfig};
/// let config = StoreConfig::parse("/srv/root", &Environment::default()).unwrap();
/// assert_eq!(config.real_store_dir.to_str(), Some("/srv/root/nix/store"));
/// assert_eq!(config.store_dir.as_str(), "/nix/store");
/// assert_eq!(config.database().to_str(), Some("/srv/root/nix/var/nix/db/db.sqlite"));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreConfig {
    /// How metadata is read.
    pub access: Access,
    /// The logical store directory, as in hashes, narinfos and the database.
    pub store_dir: StoreDir,
    /// Where the files of the store are.
    pub real_store_dir: PathBuf,
    /// Where the database, the roots and the locks are (`/nix/var/nix`).
    pub state_dir: PathBuf,
    /// Where build logs are (`/nix/var/log/nix`).
    pub log_dir: PathBuf,
    /// The daemon's socket.
    pub daemon_socket: PathBuf,
    /// How long a writer waits for another process's lock.
    pub lock_timeout: Duration,
    /// Warnings about ignored parts of the URI, one line each.
    pub warnings: Vec<String>,
}

/// The same as Nix's timeout for a busy database.
const LOCK_TIMEOUT: Duration = Duration::from_secs(3600);

impl StoreConfig {
    /// The store of the environment: `NIX_REMOTE`, or `auto`.
    ///
    /// `NIX_REMOTE=daemon`, which NixOS sets for all users, is treated as `auto`, because the database has the same
    /// information. Only an explicit `--store daemon` uses the daemon first.
    ///
    /// # Errors
    /// See [`StoreConfig::parse`].
    pub fn from_environment(environment: &Environment) -> Result<Self, ConfigError> {
        let uri = environment.get("NIX_REMOTE").map(|uri| uri.to_string_lossy()).unwrap_or_default();
        let mut config = Self::parse(&uri, environment)?;
        if uri.split('?').next() == Some("daemon") {
            config.access = Access::Auto;
        }
        Ok(config)
    }

    /// Parses a store URI: `auto` (or nothing), `daemon`, `local`, `unix:///path/to/socket`, a directory (a store root:
    /// `DIR/nix/store`, `DIR/nix/var/nix`, logical `/nix/store`), each with parameters `root`, `real`, `state`, `log`,
    /// `store`, percent-encoded. Unknown parameters are ignored with a line in [`StoreConfig::warnings`].
    ///
    /// # Errors
    /// [`ConfigError`] for other types of store, and for paths that are not absolute.
    pub fn parse(uri: &str, environment: &Environment) -> Result<Self, ConfigError> {
        if uri.len() > STORE_URI_LEN_MAX {
            return Err(ConfigError::TooLong);
        }
        let (base, query) = uri.split_once('?').unwrap_or((uri, ""));
        let mut parameters = Parameters::parse(query)?;
        let mut socket = None;
        let access = match base {
            "" | "auto" => Access::Auto,
            "daemon" | "unix" | "unix://" => Access::Daemon,
            "local" | "local://" => Access::Database,
            path if is_path(path) => {
                let root = std::path::absolute(path).unwrap_or_else(|_| path.into());
                parameters.paths.entry("root").or_insert(root);
                Access::Database
            }
            other => {
                let (scheme, path) = other.split_once("://").unwrap_or((other, ""));
                let decoded = PathBuf::from(OsString::from_vec(percent_decode_str(path).collect()));
                match scheme {
                    "unix" => {
                        socket = Some(absolute("socket", &decoded)?);
                        Access::Daemon
                    }
                    "local" if !path.is_empty() => {
                        parameters.paths.entry("root").or_insert(decoded);
                        Access::Database
                    }
                    _ => return Err(ConfigError::Unsupported { uri: uri.to_owned() }),
                }
            }
        };
        Self::resolve(access, socket, parameters, environment)
    }

    fn resolve(
        access: Access,
        socket: Option<PathBuf>,
        mut parameters: Parameters,
        environment: &Environment,
    ) -> Result<Self, ConfigError> {
        let mut take = |name| match parameters.paths.remove(name) {
            Some(path) => absolute(name, &path).map(Some),
            None => Ok(None),
        };
        let (root, state, log, real, store) =
            (take("root")?, take("state")?, take("log")?, take("real")?, take("store")?);
        let store_dir = match (store, environment.path("NIX_STORE_DIR")?, environment.path("NIX_STORE")?) {
            (Some(path), ..) => store_dir("store", &path)?,
            (None, Some(path), _) => store_dir("NIX_STORE_DIR", &path)?,
            (None, None, Some(path)) => store_dir("NIX_STORE", &path)?,
            (None, None, None) => StoreDir::default(),
        };
        let global_state = environment.path("NIX_STATE_DIR")?.unwrap_or_else(|| "/nix/var/nix".into());
        let global_log = environment.path("NIX_LOG_DIR")?.unwrap_or_else(|| "/nix/var/log/nix".into());
        // A root relocates everything, and overrides the environment (`local-fs-store.hh`).
        let below = |path: &str| root.as_ref().map(|root| root.join(path));
        let real_store_dir = real.or_else(|| below("nix/store")).unwrap_or_else(|| store_dir.as_str().into());
        let state_dir = state.or_else(|| below("nix/var/nix")).unwrap_or_else(|| global_state.clone());
        let log_dir = log.or_else(|| below("nix/var/log/nix")).unwrap_or(global_log);
        let daemon_socket = match socket {
            Some(socket) => socket,
            None => environment.path("NIX_DAEMON_SOCKET_PATH")?.unwrap_or_else(|| {
                if root.is_some() { &state_dir } else { &global_state }.join("daemon-socket/socket")
            }),
        };
        let warnings = parameters.warnings;
        let lock_timeout = LOCK_TIMEOUT;
        Ok(Self { access, store_dir, real_store_dir, state_dir, log_dir, daemon_socket, lock_timeout, warnings })
    }

    /// A store root, as `nix --store DIR` creates and uses it.
    ///
    /// # Errors
    /// [`ConfigError::NotAbsolute`] when `root` is empty.
    pub fn for_root(root: &Path) -> Result<Self, ConfigError> {
        let root = std::path::absolute(root)
            .map_err(|_| ConfigError::NotAbsolute { what: "root".into(), path: root.display().to_string() })?;
        let parameters = Parameters { paths: BTreeMap::from([("root", root)]), warnings: Vec::new() };
        Self::resolve(Access::Database, None, parameters, &Environment::default())
    }

    /// The database file.
    pub fn database(&self) -> PathBuf {
        self.state_dir.join("db/db.sqlite")
    }

    /// Whether there is a store.
    pub fn exists(&self) -> bool {
        // Written last: a store that is being created has a database, but not its tables yet.
        // Where this user may not look, there may be one: its daemon tells.
        self.database().with_file_name("schema").try_exists().unwrap_or(true)
    }

    /// The store path that this path is, or is in, by its logical or its real location.
    pub(crate) fn store_path_of(&self, path: &OsStr) -> Option<StorePath> {
        let bytes = path.as_bytes();
        [self.store_dir.as_str().as_bytes(), self.real_store_dir.as_os_str().as_bytes()].into_iter().find_map(
            |directory| {
                let below = bytes.strip_prefix(directory)?.strip_prefix(b"/")?;
                StorePath::parse_bytes(below.split(|byte| *byte == b'/').next()?).ok()
            },
        )
    }
}

#[derive(Default)]
struct Parameters {
    paths: BTreeMap<&'static str, PathBuf>,
    warnings: Vec<String>,
}

impl Parameters {
    const PATHS: [&'static str; 5] = ["root", "state", "log", "real", "store"];

    fn parse(query: &str) -> Result<Self, ConfigError> {
        let mut parsed = Self::default();
        for (index, parameter) in query.split('&').filter(|parameter| !parameter.is_empty()).enumerate() {
            if index >= STORE_URI_PARAMETERS_MAX {
                return Err(ConfigError::TooLong);
            }
            let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            let name = percent_decode_str(name).decode_utf8_lossy();
            let value = OsString::from_vec(percent_decode_str(value).collect());
            match Self::PATHS.iter().find(|known| **known == name) {
                Some(_) if value.is_empty() => {}
                Some(known) => drop(parsed.paths.insert(known, value.into())),
                None if PARAMETERS_IGNORED.contains(&&*name) => {}
                None => parsed.warnings.push(format!("unknown store parameter '{}' is ignored", name.escape_debug())),
            }
        }
        Ok(parsed)
    }
}

/// Whether this is a path rather than a type of store. As in `store-reference.cc`: it has a slash and no colon.
fn is_path(base: &str) -> bool {
    base.contains('/') && !base.contains(':')
}

/// Normalises a path like Nix's `canonPath`: `.`, `..` and repeated slashes are resolved lexically.
fn absolute(what: &str, path: &Path) -> Result<PathBuf, ConfigError> {
    let bad = || ConfigError::NotAbsolute { what: what.to_owned(), path: path.display().to_string() };
    if !path.is_absolute() || path.as_os_str().as_bytes().contains(&0) {
        return Err(bad());
    }
    let mut simple = PathBuf::from("/");
    for component in path.components() {
        match component {
            Component::Normal(name) => simple.push(name),
            Component::ParentDir => drop(simple.pop()),
            _ => {}
        }
    }
    Ok(simple)
}

fn store_dir(what: &str, path: &Path) -> Result<StoreDir, ConfigError> {
    let fail = |source| ConfigError::StoreDir { what: what.to_owned(), path: path.display().to_string(), source };
    StoreDir::parse_dir(path.to_str().ok_or_else(|| fail(StoreDirError::Control))?).map_err(fail)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(uri: &str) -> StoreConfig {
        StoreConfig::parse(uri, &Environment::default()).unwrap()
    }

    fn path(text: &str) -> PathBuf {
        PathBuf::from(text)
    }

    #[test]
    fn the_default_store() {
        for (uri, access) in [
            ("", Access::Auto),
            ("auto", Access::Auto),
            ("daemon", Access::Daemon),
            ("local", Access::Database),
            ("unix://", Access::Daemon),
            ("auto?path-info-cache-size=0", Access::Auto),
        ] {
            let config = parse(uri);
            assert_eq!(config.access, access, "{uri}");
            assert_eq!(config.store_dir.as_str(), "/nix/store");
            assert_eq!(config.real_store_dir, path("/nix/store"));
            assert_eq!(config.database(), path("/nix/var/nix/db/db.sqlite"));
            assert_eq!(config.log_dir, path("/nix/var/log/nix"));
            assert_eq!(config.daemon_socket, path("/nix/var/nix/daemon-socket/socket"));
            assert_eq!(config.warnings, Vec::<String>::new());
        }
    }

    #[test]
    fn roots() {
        for uri in [
            "/some/root",
            "local?root=/some/root",
            "/some//x/../root/",
            "local?root=%2fsome%2Froot",
            "local:///some/root",
        ] {
            let config = parse(uri);
            assert_eq!(config.access, Access::Database, "{uri}");
            assert_eq!(config.store_dir.as_str(), "/nix/store");
            assert_eq!(config.real_store_dir, path("/some/root/nix/store"), "{uri}");
            assert_eq!(config.state_dir, path("/some/root/nix/var/nix"));
            assert_eq!(config.log_dir, path("/some/root/nix/var/log/nix"));
        }
        assert_eq!(StoreConfig::for_root(Path::new("/some/root")).unwrap(), parse("/some/root"));
        assert!(parse("./here").real_store_dir.ends_with("here/nix/store"));
    }

    #[test]
    fn every_part_by_itself() {
        let config = parse("local?real=/a&state=/b&store=/gnu/store&log=/d%20e&frob=1&frob2");
        assert_eq!((config.real_store_dir, config.state_dir, config.log_dir), (path("/a"), path("/b"), path("/d e")));
        assert_eq!(config.store_dir.as_str(), "/gnu/store");
        assert_eq!(config.warnings.len(), 2);
        let config = parse("unix:///run/x%2by/socket?root=/r");
        assert_eq!(config.daemon_socket, path("/run/x+y/socket"));
        assert_eq!(config.real_store_dir, path("/r/nix/store"));
        let config = parse("local?root=/r&real=/elsewhere");
        assert_eq!((config.real_store_dir, config.state_dir), (path("/elsewhere"), path("/r/nix/var/nix")));
    }

    #[test]
    fn environment() {
        let environment = Environment::of(&[
            ("NIX_STORE_DIR", "/gnu/store"),
            ("NIX_STATE_DIR", "/gnu/var"),
            ("NIX_LOG_DIR", "/gnu/log"),
            ("NIX_REMOTE", "daemon"),
        ]);
        let config = StoreConfig::from_environment(&environment).unwrap();
        assert_eq!(config.access, Access::Auto);
        assert_eq!(config.store_dir.as_str(), "/gnu/store");
        assert_eq!(config.real_store_dir, path("/gnu/store"));
        assert_eq!(config.state_dir, path("/gnu/var"));
        assert_eq!(config.log_dir, path("/gnu/log"));
        assert_eq!(config.daemon_socket, path("/gnu/var/daemon-socket/socket"));
        let rooted = StoreConfig::parse("/r", &environment).unwrap();
        assert_eq!(rooted.state_dir, path("/r/nix/var/nix"));
        assert_eq!(rooted.store_dir.as_str(), "/gnu/store");
        let moved = Environment::of(&[("NIX_DAEMON_SOCKET_PATH", "/run/s"), ("NIX_STORE", "/s"), ("NIX_REMOTE", "")]);
        let config = StoreConfig::from_environment(&moved).unwrap();
        assert_eq!((config.daemon_socket, config.store_dir.as_str()), (path("/run/s"), "/s"));
    }

    #[test]
    fn refused() {
        for uri in [
            "http://cache.nixos.org",
            "ssh-ng://host",
            "s3://bucket",
            "bogus",
            "unix://relative",
            "local?root=relative",
            "local?store=/",
        ] {
            assert!(StoreConfig::parse(uri, &Environment::default()).is_err(), "{uri}");
        }
        assert_eq!(StoreConfig::parse(&"x".repeat(9000), &Environment::default()), Err(ConfigError::TooLong));
        assert_eq!(
            StoreConfig::parse(&format!("local?{}", "a&".repeat(65)), &Environment::default()),
            Err(ConfigError::TooLong)
        );
    }
}
