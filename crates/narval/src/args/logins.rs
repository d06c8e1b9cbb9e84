//! The servers that this user has signed in to: `$XDG_CONFIG_HOME/narval/logins.json`, which only its owner can read.

use std::fmt;
use std::io::{self, ErrorKind, Read};
use std::path::PathBuf;

use narval_client::clock;
use narval_files::TemporaryFile;
use serde_json::{Map, Value, json};
use zeroize::Zeroizing;

use crate::Failure;
use crate::args::user_folder;

/// The longest file, in bytes, and the most servers in it.
const FILE_LEN_MAX: u64 = 1024 * 1024;
const LOGINS_MAX: usize = 1024;

/// A server, and the token for it.
pub(crate) struct Login {
    pub(crate) name: String,
    pub(crate) url: String,
    pub(crate) token: Zeroizing<String>,
    /// When the token ends, in seconds since 1970.
    pub(crate) expires: Option<u64>,
    /// With which issuer its owner has signed in, if they did: nobody else has the token then.
    pub(crate) issuer: Option<String>,
}

impl Login {
    /// Whether the token can be used no more.
    pub(crate) fn has_expired(&self) -> bool {
        self.expires.is_some_and(|expires| expires <= clock::now())
    }
}

impl fmt::Debug for Login {
    /// Without the token.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name, self.url)
    }
}

/// All of them.
#[derive(Debug)]
pub(crate) struct Logins {
    file: PathBuf,
    pub(crate) all: Vec<Login>,
}

impl Logins {
    /// Reads the file, if there is one.
    ///
    /// # Errors
    /// It cannot be read, or is none.
    pub(crate) fn load() -> Result<Self, Failure> {
        let folder = user_folder("XDG_CONFIG_HOME", ".config");
        let Some(file) = folder.map(|folder| folder.join("narval/logins.json")) else {
            return Ok(Self { file: PathBuf::new(), all: Vec::new() });
        };
        let mut text = Zeroizing::new(String::new());
        let read = std::fs::File::open(&file).and_then(|opened| opened.take(FILE_LEN_MAX).read_to_string(&mut text));
        match read {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Self { file, all: Vec::new() }),
            Err(error) => return Err(Failure::of_file(&file.display().to_string(), &error)),
        }
        // The message of the parser would show a line of it.
        let table: Map<String, Value> = serde_json::from_str(&text)
            .map_err(|_| Failure::usage(format!("'{}' is not JSON: remove it, and sign in again", file.display())))?;
        let login = |(name, login): (&String, &Value)| {
            let text = |key: &str| login.get(key)?.as_str().map(ToOwned::to_owned);
            let expires = login.get("expires").and_then(Value::as_u64);
            Some(Login {
                name: name.clone(),
                url: text("url")?,
                token: text("token")?.into(),
                expires,
                issuer: text("issuer"),
            })
        };
        let all = table.iter().filter_map(login).take(LOGINS_MAX).collect();
        Ok(Self { file, all })
    }

    /// Where the one of this name is, or the one at this URL.
    pub(crate) fn position(&self, at: &str) -> Option<usize> {
        let is_url = |login: &Login| login.url.trim_end_matches('/') == at.trim_end_matches('/');
        self.all.iter().position(|login| login.name == at).or_else(|| self.all.iter().position(is_url))
    }

    /// That one.
    pub(crate) fn find(&self, at: &str) -> Option<&Login> {
        self.all.get(self.position(at)?)
    }

    /// Saves them. Where the file is.
    ///
    /// # Errors
    /// It cannot be written.
    pub(crate) fn save(&self) -> Result<String, Failure> {
        let shown = self.file.display().to_string();
        let folder = self.file.parent().filter(|_| !shown.is_empty());
        let folder =
            folder.ok_or_else(|| Failure::usage("neither XDG_CONFIG_HOME nor HOME is set: use --token-file"))?;
        let of = |login: &Login| {
            let Login { name, url, token, expires, issuer } = login;
            (name.clone(), json!({"url": url, "token": token.as_str(), "expires": expires, "issuer": issuer}))
        };
        let text = Zeroizing::new(Value::from(self.all.iter().map(of).collect::<Map<_, _>>()).to_string());
        let write = || -> io::Result<()> {
            std::fs::create_dir_all(folder)?;
            let file = TemporaryFile::create(folder, ".logins", 0o600)?;
            io::Write::write_all(&mut file.file(), text.as_bytes())?;
            file.persist(&self.file)
        };
        write().map_err(|error| Failure::of_file(&shown, &error))?;
        Ok(shown)
    }
}
