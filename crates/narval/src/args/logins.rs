//! The servers that this user has signed in to: `$XDG_CONFIG_HOME/narval/logins.json`, which only its owner can read.

use std::fmt;
use std::fs::OpenOptions;
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::Arc;

use narval_client::clock;
use narval_files::TemporaryFile;
use narval_oidc::{SignIn, SignedIn};
use narval_push::{Administered, Exchanged};
use rustix::fs::{FlockOperation, flock};
use serde_json::{Map, Value, json};
use zeroize::Zeroizing;

use crate::args::client::{RequestArgs, parse_cache};
use crate::ui::failure::Failure;
use crate::values::folders::user_folder;

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
    /// What gets another token when this one has ended.
    pub(crate) renewal: Option<Renewal>,
}

/// What somebody signed in with, and what the issuer gave them for the next time.
pub(crate) struct Renewal {
    pub(crate) how: SignIn,
    pub(crate) refresh: Zeroizing<String>,
}

impl Renewal {
    fn of(value: &Value) -> Option<Self> {
        let refresh = value.get("refresh_token")?.as_str()?.to_owned().into();
        Some(Self { how: SignIn::from_json(value)?, refresh })
    }

    fn to_json(&self) -> Value {
        let mut value = self.how.to_json();
        value["refresh_token"] = self.refresh.as_str().into();
        value
    }
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
                renewal: login.get("renewal").and_then(Renewal::of),
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

    /// The servers, of which the one at `at` has another token if its own has ended: its owner signs in again without a browser, if they asked for that with
    /// `offline_access`. One process does it at a time, because an issuer may take a refresh token that comes twice for a stolen one.
    ///
    /// # Errors
    /// The issuer or the server refuses, or cannot be asked; or the file cannot be written.
    pub(crate) fn load_renewed(at: &str, requests: &RequestArgs) -> Result<Self, Failure> {
        let is_due =
            |logins: &Self| logins.find(at).is_some_and(|login| login.has_expired() && login.renewal.is_some());
        let found = Self::load()?;
        if !is_due(&found) {
            return Ok(found);
        }
        let lock = found.file.with_extension("lock");
        let failed = |error: io::Error| Failure::of_file(&lock.display().to_string(), &error);
        let locked =
            OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&lock).map_err(failed)?;
        flock(&locked, FlockOperation::LockExclusive).map_err(|error| failed(error.into()))?;
        let mut logins = Self::load()?;
        if is_due(&logins) {
            logins.renew(at, requests)?;
        }
        Ok(logins)
    }

    fn renew(&mut self, at: &str, requests: &RequestArgs) -> Result<(), Failure> {
        let ended = |name: &str, error: &dyn fmt::Display| {
            Failure::usage(format!(
                "the token of '{name}' has expired, and there is no other ({error}): 'narval login {name}' signs you in again"
            ))
        };
        let Some(index) = self.position(at) else { return Ok(()) };
        let Some(login) = self.all.get_mut(index) else { return Ok(()) };
        let (url, Some(renewal)) = (parse_cache(&login.url)?, &mut login.renewal) else { return Ok(()) };
        let signed_in = narval_oidc::renew(&url, &renewal.how, &renewal.refresh);
        let SignedIn { identity, refresh } = signed_in.map_err(|error| ended(&login.name, &error))?;
        if let Some(refresh) = refresh {
            // The one of before may count for nothing by now, whatever comes of the rest.
            renewal.refresh = refresh;
            self.save()?;
        }
        let client = Arc::new(narval_s3::client(requests.options(std::slice::from_ref(&url))?));
        let exchanged = Administered::new(url, client).exchange(&identity);
        if let Some(login) = self.all.get_mut(index) {
            let Exchanged { token, lifetime } = exchanged.map_err(|error| ended(&login.name, &error))?;
            (login.token, login.expires) = (token, Some(clock::now().saturating_add(lifetime.as_secs())));
        }
        self.save().map(drop)
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
            let Login { name, url, token, expires, issuer, renewal } = login;
            let renewal = renewal.as_ref().map(Renewal::to_json);
            let value =
                json!({"url": url, "token": token.as_str(), "expires": expires, "issuer": issuer, "renewal": renewal});
            (name.clone(), value)
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
