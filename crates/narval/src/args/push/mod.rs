//! The destination and the options of a push.

mod filter;
mod listed;

pub(crate) use filter::{FilterArgs, quick};
pub(crate) use listed::read_paths;

use std::fs::File;
use std::io::{Read, stdin};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use narval_client::{Client, Url};
use narval_codec::encode::Encoding;
use narval_push::{PushOptions, UPLOADS_MAX};
use narval_store::{Environment, StoreConfig};
use zeroize::Zeroizing;

use crate::args::client::{LockArgs, RequestArgs, StoreArgs, parse_cache};
use crate::args::secret_key::read_secret_key;
use crate::ui::failure::Failure;

/// The most that is read of a token file, in bytes.
const TOKEN_LEN_MAX: u64 = 64 * 1024;

/// A token, and how requests are sent.
#[derive(Clone, Debug, clap::Args)]
pub struct TokenArgs {
    /// File with a token, sent as `Authorization: Bearer`
    #[arg(long, value_name = "FILE", env = "NARVAL_TOKEN_FILE", hide_env_values = true, help_heading = "Caches")]
    pub token_file: Option<PathBuf>,
    /// How requests are sent.
    #[command(flatten)]
    pub requests: RequestArgs,
}

impl TokenArgs {
    /// The client for requests to these caches.
    ///
    /// # Errors
    /// If a file with credentials cannot be used.
    pub fn client(&self, urls: &[Url]) -> Result<Arc<Client>, Failure> {
        self.client_with(urls, None)
    }

    /// The same with a token that is used if no file is named.
    ///
    /// # Errors
    /// As [`client`](Self::client).
    pub(crate) fn client_with(&self, urls: &[Url], token: Option<&str>) -> Result<Arc<Client>, Failure> {
        let mut options = self.requests.options(urls)?;
        let of_file = self.token_file.as_deref().map(read_token).transpose()?;
        if let Some(token) = of_file.as_ref().map(|token| token.as_str()).or(token) {
            let from = self
                .token_file
                .as_ref()
                .map_or_else(|| "the login".into(), |file| format!("--token-file {}", file.display()));
            let unfit = |_| Failure::usage(format!("{from}: it does not contain a token"));
            options.credentials.add_header(&format!("Authorization: Bearer {token}")).map_err(unfit)?;
        }
        Ok(Arc::new(narval_s3::client(options)))
    }
}

/// The destination and the options of the commands that push.
#[derive(Clone, Debug, clap::Args)]
pub struct PushArgs {
    /// Cache to push to: an http://, https://, s3:// or file:// URL. Repeatable
    #[arg(long, value_name = "URL", required = true)]
    pub to: Vec<String>,
    /// How paths are sent.
    #[command(flatten)]
    pub how: SendArgs,
}

impl PushArgs {
    /// The URLs of the caches.
    ///
    /// # Errors
    /// For an invalid URL.
    pub fn urls(&self) -> Result<Vec<Url>, Failure> {
        self.to.iter().map(|text| parse_cache(text)).collect()
    }

    /// The client for sending.
    ///
    /// # Errors
    /// If a file with credentials cannot be used.
    pub fn client(&self) -> Result<Arc<Client>, Failure> {
        self.how.token.client(&self.urls()?)
    }
}

/// How paths are sent.
#[derive(Clone, Debug, clap::Args)]
pub struct SendArgs {
    /// The token.
    #[command(flatten)]
    pub token: TokenArgs,
    /// Secret key to sign with, in addition to the signatures in the store
    #[arg(long, value_name = "FILE", help_heading = "Caches")]
    pub sign_key: Option<PathBuf>,
    /// zstd compression level
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(i32).range(1..=19), help_heading = "Caches")]
    pub level: i32,
    /// Do not compress NARs
    #[arg(long, conflicts_with = "level", help_heading = "Caches")]
    pub no_compression: bool,
    /// Number of NARs sent at the same time
    #[arg(long, value_name = "N", default_value_t = default_uploads(), help_heading = "Caches")]
    pub uploads: NonZeroUsize,
}

fn default_uploads() -> NonZeroUsize {
    NonZeroUsize::new(UPLOADS_MAX / 2).unwrap_or(NonZeroUsize::MIN)
}

impl SendArgs {
    /// The options of the push.
    ///
    /// # Errors
    /// If the secret key cannot be read.
    pub fn options(&self) -> Result<PushOptions, Failure> {
        Ok(PushOptions {
            encoding: if self.no_compression { Encoding::None } else { Encoding::Zstd(self.level) },
            key: self.sign_key.as_deref().map(read_secret_key).transpose()?,
            uploads: self.uploads.get(),
            build_seconds: None,
        })
    }
}

/// The token in a file, or of standard input for `-`: one word.
///
/// # Errors
/// It cannot be read, or is none.
pub(crate) fn read_token(file: &Path) -> Result<Zeroizing<String>, Failure> {
    let shown = format!("--token-file {}", file.display());
    let mut text = Zeroizing::new(String::new());
    let read = match file == Path::new("-") {
        true => stdin().lock().take(TOKEN_LEN_MAX).read_to_string(&mut text),
        false => File::open(file).and_then(|file| file.take(TOKEN_LEN_MAX).read_to_string(&mut text)),
    };
    read.map_err(|error| Failure::of_file(&shown, &error))?;
    let mut words = text.split_whitespace();
    match (words.next(), words.next()) {
        (Some(token), None) => Ok(Zeroizing::new(token.to_owned())),
        (None, _) => Err(Failure::usage(format!("{shown}: it is empty"))),
        (Some(_), Some(_)) => Err(Failure::usage(format!("{shown}: it has more than a token"))),
    }
}

/// The store to push from.
#[derive(Clone, Debug, clap::Args)]
pub struct SourceArgs {
    /// Store to push from: `auto` (/nix/store, through its daemon if its database cannot be read), a folder (which
    /// holds nix/store and nix/var/nix), or another Nix store URI [default: auto if this machine has a store, else
    /// ~/.local/share/narval]
    #[arg(long, value_name = "DIR", env = "NARVAL_STORE", hide_env_values = true, help_heading = "Store")]
    pub store: Option<String>,
    /// How long to wait for other processes.
    #[command(flatten)]
    pub lock: LockArgs,
}

impl SourceArgs {
    /// The given store; by default this machine's if there is one, else this user's.
    ///
    /// # Errors
    /// If it is not a store.
    pub fn config(&self) -> Result<StoreConfig, Failure> {
        let named = StoreArgs { store: self.store.clone(), lock: self.lock };
        if named.store.is_none() {
            let machine = StoreConfig::parse("auto", &Environment::of_process()).map_err(Failure::usage)?;
            // It may be unreadable to this user.
            if machine.database().try_exists().unwrap_or(true) {
                return Ok(StoreConfig { lock_timeout: self.lock.timeout(), ..machine });
            }
        }
        named.config()
    }
}
