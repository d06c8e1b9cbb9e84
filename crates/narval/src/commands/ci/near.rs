//! The cache as the job's Nix sees it: a server of this process on loopback, with the real one as its upstream.
//!
//! Nix alone would wait for a cache that hangs, fail with one that dies, and need the token. Behind this one, a cache that does not answer is one
//! that has nothing, tokens are renewed without Nix, and every question is counted. Other users of the machine can connect to it, too: a private cache
//! is below a name that only this job knows.

use std::path::{Path, PathBuf};

use clap::{Args as _, FromArgMatches};
use narval_client::{Scheme, Url};
use narval_http::ListenAddress;
use narval_install::settings::{Settled, replace};
use narval_nix::StoreDir;
use serde_json::json;

use crate::commands::serve::{self, Started};
use crate::ui::failure::Failure;

/// The maximum size of the fetched files that it keeps.
const SIZE: &str = "2G";
/// How long it waits for the cache. A path that is not fetched is built, which takes longer than what others are kept waiting for.
const ABSENT_AFTER: &str = "4s";
/// The login of a token.
const LOGIN: &str = "narval";

/// The running server.
pub(super) struct Near {
    started: Started,
    url: String,
    name: String,
    folder: PathBuf,
    of: Upstream,
}

/// The cache behind it.
#[derive(Clone)]
pub(super) struct Upstream {
    pub(super) url: Url,
    pub(super) keys: Vec<String>,
    pub(super) store_dir: StoreDir,
}

/// The bytes of the name that only this job knows.
const NAME_LEN: usize = 16;

impl Near {
    /// Starts it, with its files in this folder.
    ///
    /// # Errors
    /// The folder cannot be written, or no server can be started.
    pub(super) fn start(folder: &Path, of: &Upstream, token: Option<&str>) -> Result<Self, Failure> {
        let mut random = [0_u8; NAME_LEN];
        getrandom::fill(&mut random).map_err(|error| Failure::runtime(format!("no random numbers: {error}")))?;
        let name: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
        write_settings(folder, of, &name, token)?;
        let matches = serve::Args::augment_args(clap::Command::new("serve")).try_get_matches_from([
            "serve".as_ref(),
            "--config".as_ref(),
            folder.join("near.toml").as_os_str(),
        ]);
        let args = matches.and_then(|matches| serve::Args::from_arg_matches(&matches)).map_err(Failure::runtime)?;
        let (started, ()) = serve::start(args, || Ok(()))?;
        let address = started.handle.addresses().iter().find_map(|address| match address {
            ListenAddress::Tcp(address) => Some(*address),
            ListenAddress::Unix(_) => None,
        });
        let address = address.ok_or_else(|| Failure::runtime("the server has no address"))?;
        let (url, folder) = (format!("http://{address}/{name}"), folder.to_owned());
        Ok(Self { started, url, name, folder, of: of.clone() })
    }

    /// Its address.
    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// Asks the cache with another token from now on.
    ///
    /// # Errors
    /// Its files cannot be written.
    pub(super) fn renew(&mut self, token: &str) -> Result<(), Failure> {
        write_settings(&self.folder, &self.of, &self.name, Some(token))?;
        self.started.reload().map(drop)
    }

    /// Ends it. What it was asked is in the file [`access_log`].
    pub(super) fn end(self) {
        self.started.end();
    }
}

/// Where it writes what it is asked.
pub(super) fn access_log(folder: &Path) -> PathBuf {
    folder.join("near.log")
}

fn write_settings(folder: &Path, of: &Upstream, name: &str, token: Option<&str>) -> Result<(), Failure> {
    let Upstream { url, keys, store_dir } = of;
    let netrc = folder.join("near.netrc");
    let needs_token = token.filter(|_| matches!(url.scheme(), Scheme::Http | Scheme::Https));
    if let Some(token) = needs_token {
        write_private(&netrc, &format!("machine {} login {LOGIN} password {token}\n", url.origin().host))?;
    }
    // Strings of JSON are strings of TOML.
    let path = |path: &Path| json!(path.to_string_lossy()).to_string();
    let mut text = format!(
        "listen = '127.0.0.1:0'\ndata = {}\nshare-data = true\nweb = false\npublic = false\nupstream-absent-after = '{ABSENT_AFTER}'\n\n[access-log]\nfile = {}\nformat = 'json'\n\n\
         [[cache]]\nname = '{name}'\npublic = true\nupstream-size = '{SIZE}'\nstore-dir = {}\n\n[[cache.upstream]]\nurl = {}\nkeys = {}\n",
        path(&folder.join("near")),
        path(&access_log(folder)),
        json!(store_dir.as_str()),
        json!(url.to_string()),
        json!(keys)
    );
    if needs_token.is_some() {
        text.push_str(&format!("netrc-file = {}\n", path(&netrc)));
    }
    write_private(&folder.join("near.toml"), &text)
}

/// Writes a file that this user alone may read, in one step.
pub(super) fn write_private(path: &Path, text: &str) -> Result<(), Failure> {
    Ok(replace(&Settled::read(path)?, text, 0o600)?)
}
