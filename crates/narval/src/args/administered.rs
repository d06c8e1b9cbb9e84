//! Where a command administers: the data of a server on this machine, or a server at a URL. Either is asked by the same requests (`docs/api.md`), so a command
//! exists once.

use std::sync::Arc;

use narval_client::{Client, Url};
use narval_http::Method;
use narval_install::Error;
use narval_install::names::{self, Candidate};
use narval_keep::{Cache, CacheName, Data, RejectionKind};
use narval_nix::{HashPart, StoreDir, StorePath};
use narval_push::Administered;
use narval_serve::{ApiRequest, ask_api};
use serde_json::Value;

use crate::args::client::parse_cache;
use crate::args::data::{DataArgs, administrator, cache_of};
use crate::args::logins::Logins;
use crate::args::names::{may_be_name, only_one};
use crate::args::paths::hash_part;
use crate::args::push::TokenArgs;
use crate::ui::failure::Failure;
pub(crate) use narval_client::escaped;

/// A server at a URL.
#[derive(Clone, Debug, clap::Args)]
pub struct AtArgs {
    /// Server to administer over HTTP: the URL of a cache of it, or the name of one that 'narval login' has saved. No data folder is used
    #[arg(long, alias = "to", value_name = "URL|NAME")]
    at: Option<String>,
    /// The token.
    #[command(flatten)]
    token: TokenArgs,
}

/// The data of a server on this machine, or a server at a URL.
#[derive(Clone, Debug, clap::Args)]
pub struct AdminTargetArgs {
    /// The data.
    #[command(flatten)]
    pub data: DataArgs,
    /// The server.
    #[command(flatten)]
    pub at: AtArgs,
}

/// The same, and one of its caches.
#[derive(Clone, Debug, clap::Args)]
pub struct AdministeredArgs {
    /// Where.
    #[command(flatten)]
    pub place: AdminTargetArgs,
    /// Name of the cache [default: `default`, or the one at the URL]
    #[arg(long, value_name = "NAME")]
    pub cache: Option<CacheName>,
}

/// Where a command administers, opened.
pub(crate) enum AdminTarget {
    Local(Data),
    Remote(RemoteServer),
}

/// A server at a URL.
pub(crate) struct RemoteServer {
    cache: Administered,
    client: Arc<Client>,
}

/// One cache of a place.
pub(crate) struct AdministeredCache {
    pub(crate) place: AdminTarget,
    pub(crate) name: CacheName,
}

impl AtArgs {
    /// The server, if one is given.
    ///
    /// # Errors
    /// The URL or the token cannot be used.
    pub(crate) fn open(&self) -> Result<Option<RemoteServer>, Failure> {
        let Some(at) = &self.at else { return Ok(None) };
        let logins = match &self.token.token_file {
            None => Logins::load_renewed(at, &self.token.requests)?,
            Some(_) => Logins::load()?,
        };
        let login = logins.find(at);
        if let Some(login) = login.filter(|login| login.has_expired() && self.token.token_file.is_none()) {
            let name = &login.name;
            return Err(Failure::usage(format!(
                "the token of '{name}' has expired: 'narval login {name}' gets another one"
            )));
        }
        let url: Url = parse_cache(login.map_or(at, |login| &login.url))?;
        let client = self.token.client_with(std::slice::from_ref(&url), login.map(|login| &**login.token))?;
        Ok(Some(RemoteServer { cache: Administered::new(url, Arc::clone(&client)), client }))
    }
}

impl AdminTargetArgs {
    /// Opens it.
    ///
    /// # Errors
    /// The data folder, the URL or the token cannot be used.
    pub(crate) fn open(&self) -> Result<AdminTarget, Failure> {
        self.open_with(DataArgs::open)
    }

    /// The same; a data folder that does not exist is created.
    ///
    /// # Errors
    /// See [`open`](Self::open).
    pub(crate) fn create(&self) -> Result<AdminTarget, Failure> {
        self.open_with(DataArgs::create)
    }

    fn open_with(&self, open: impl FnOnce(&DataArgs) -> Result<Data, Failure>) -> Result<AdminTarget, Failure> {
        Ok(match self.at.open()? {
            Some(server) => AdminTarget::Remote(server),
            None => AdminTarget::Local(open(&self.data)?),
        })
    }
}

impl AdministeredArgs {
    /// Opens it.
    ///
    /// # Errors
    /// The data folder, the URL or the token cannot be used, or there is no cache at that address.
    pub(crate) fn open(&self) -> Result<AdministeredCache, Failure> {
        let place = self.place.open()?;
        let name = match (&self.cache, &place) {
            (Some(name), _) => name.clone(),
            (None, AdminTarget::Local(_)) => CacheName::default(),
            (None, AdminTarget::Remote(server)) => {
                let here = place.ask(&Method::GET, "", None)?;
                let name = here.get("cache").and_then(Value::as_str);
                let unknown = || {
                    Failure::usage(format!(
                        "there is no cache at {} that this token is for: give --cache NAME",
                        server.cache.url()
                    ))
                };
                name.and_then(|name| name.parse().ok()).ok_or_else(unknown)?
            }
        };
        Ok(AdministeredCache { place, name })
    }
}

impl AdminTarget {
    /// Asks the API. `path`: with its query.
    ///
    /// # Errors
    /// The place refuses, or cannot be asked.
    pub(crate) fn ask(&self, method: &Method, path: &str, body: Option<&Value>) -> Result<Value, Failure> {
        match self {
            Self::Local(data) => {
                let (path, query) = path.split_once('?').map_or((path, None), |(path, query)| (path, Some(query)));
                let body = body.map(ToString::to_string).unwrap_or_default();
                let request = ApiRequest { method, path, query, body: body.as_bytes(), key: None };
                let answer = ask_api(data, &administrator(), &request).map_err(|rejection| match rejection.kind {
                    RejectionKind::Malformed | RejectionKind::NotFound => Failure::usage(rejection),
                    _ => Failure::runtime(rejection),
                })?;
                if *method != Method::GET {
                    data.wait_until_noticed();
                }
                Ok(answer)
            }
            Self::Remote(server) => {
                let method = match *method {
                    Method::PUT => narval_client::Method::Put,
                    Method::POST => narval_client::Method::Post,
                    Method::PATCH => narval_client::Method::Patch,
                    Method::DELETE => narval_client::Method::Delete,
                    _ => narval_client::Method::Get,
                };
                server.cache.ask(method, path, body).map_err(|error| match error {
                    Error::Refused { status: 400 | 404, .. } => Failure::usage(error),
                    error => error.into(),
                })
            }
        }
    }

    /// Each entry of a list, page by page.
    ///
    /// # Errors
    /// See [`ask`](Self::ask).
    pub(crate) fn each(&self, list: &str, mut take: impl FnMut(Value) -> Result<(), Failure>) -> Result<u64, Failure> {
        let (mut count, mut after) = (0, None::<String>);
        let mark = if list.contains('?') { '&' } else { '?' };
        loop {
            let from = after.as_deref().map(|after| format!("{mark}after={}", escaped(after))).unwrap_or_default();
            let mut page = self.ask(&Method::GET, &format!("{list}{from}"), None)?;
            let Some(Value::Array(items)) = page.get_mut("items").map(Value::take) else { return Ok(count) };
            for item in items {
                count += 1;
                take(item)?;
            }
            let next = page.get("next").and_then(Value::as_str).map(ToOwned::to_owned);
            // A server that says the same again would never end.
            if next.is_none() || next == after {
                return Ok(count);
            }
            after = next;
        }
    }
}

impl AdministeredCache {
    /// Asks for something of the cache: [`AdminTarget::ask`] below its own path.
    ///
    /// # Errors
    /// See [`AdminTarget::ask`].
    pub(crate) fn ask(&self, method: &Method, below: &str, body: Option<&Value>) -> Result<Value, Failure> {
        self.place.ask(method, &self.path(below), body)
    }

    /// Each entry of a list of the cache: as [`AdminTarget::each`].
    ///
    /// # Errors
    /// See [`AdminTarget::ask`].
    pub(crate) fn each(&self, list: &str, take: impl FnMut(Value) -> Result<(), Failure>) -> Result<u64, Failure> {
        self.place.each(&self.path(list), take)
    }

    fn path(&self, below: &str) -> String {
        format!("caches/{}/{below}", self.name)
    }

    /// What messages call it.
    pub(crate) fn shown(&self) -> String {
        match &self.place {
            AdminTarget::Local(_) => self.name.to_string(),
            AdminTarget::Remote(server) => server.cache.url().to_string(),
        }
    }

    /// The path that an argument names: a store path, or the name of one path of the cache.
    ///
    /// # Errors
    /// Wrong usage, with the candidates if the name is that of several paths.
    pub(crate) fn find(&self, text: &str) -> Result<HashPart, Failure> {
        match &self.place {
            AdminTarget::Local(data) => path_of(&self.of(data)?, text),
            AdminTarget::Remote(server) => match hash_part(text, &StoreDir::default()) {
                Err(unknown) if may_be_name(text) => {
                    let found = names::find(&[server.cache.url().clone()], &server.client, text)?;
                    only_one(text, &found.candidates, unknown)
                }
                result => result,
            },
        }
    }

    /// The cache in the data of this machine.
    ///
    /// # Errors
    /// RemoteServer is none with its name.
    pub(crate) fn of(&self, data: &Data) -> Result<Cache, Failure> {
        cache_of(data, &self.name)
    }
}

/// A field of an answer that is a text; control characters are left out, because what a server says may be anything.
pub(crate) fn text(of: &Value, name: &str) -> String {
    let text = of.get(name).and_then(Value::as_str).unwrap_or_default();
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// A field of an answer that is a number.
pub(crate) fn number(of: &Value, name: &str) -> Option<u64> {
    of.get(name).and_then(Value::as_u64)
}

/// The path of a cache of this machine that an argument names.
///
/// # Errors
/// See [`AdministeredCache::find`].
pub(crate) fn path_of(cache: &Cache, text: &str) -> Result<HashPart, Failure> {
    match hash_part(text, &cache.settings().store_dir) {
        Err(unknown) if may_be_name(text) => {
            let listed = cache.list().map_err(Failure::runtime)?;
            let candidate = |listed: narval_keep::Listed| {
                let path = StorePath::parse(listed.path.rsplit('/').next()?).ok()?;
                let (size, time, cache) = (listed.file_size, listed.used, String::new());
                Some(Candidate { path, size, time, unsigned: false, cache })
            };
            let mut candidates: Vec<_> = listed.into_iter().filter_map(candidate).collect();
            names::sort(&mut candidates);
            only_one(text, &candidates, unknown)
        }
        result => result,
    }
}
