//! The cache that a command administers: one of a data folder on this machine, or one at a URL.

use std::sync::Arc;

use narval_client::{Client, Url};
use narval_install::Administered;
use narval_install::names::{self, Candidate};
use narval_keep::{Cache, Data};
use narval_nix::{HashPart, StoreDir, StorePath};

use crate::Failure;
use crate::args::client::parse_cache;
use crate::args::data::CacheArgs;
use crate::args::names::{may_be_name, only_one};
use crate::args::paths::hash_part;
use crate::args::push::TokenArgs;

/// The cache at a URL.
#[derive(Clone, Debug, clap::Args)]
pub struct ToArgs {
    /// URL of the cache: it is administered over HTTP, with a token that has the scope for that, and no data folder is used
    #[arg(long, value_name = "URL")]
    to: Option<String>,
    /// The token.
    #[command(flatten)]
    token: TokenArgs,
}

/// A cache of a data folder, or one at a URL.
#[derive(Clone, Debug, clap::Args)]
pub struct AdministeredArgs {
    /// The cache of a data folder.
    #[command(flatten)]
    pub cache: CacheArgs,
    /// The one at a URL.
    #[command(flatten)]
    pub to: ToArgs,
}

/// The cache, opened.
pub(crate) enum Place {
    Here(Data, Cache),
    There(There),
}

/// A cache at a URL.
pub(crate) struct There {
    pub(crate) cache: Administered,
    client: Arc<Client>,
}

impl ToArgs {
    /// The cache at the URL, if one is given.
    ///
    /// # Errors
    /// The URL or the token cannot be used.
    pub(crate) fn open(&self) -> Result<Option<There>, Failure> {
        let Some(to) = &self.to else { return Ok(None) };
        let url: Url = parse_cache(to)?;
        let client = self.token.client(std::slice::from_ref(&url))?;
        Ok(Some(There { cache: Administered::new(url, Arc::clone(&client)), client }))
    }
}

impl AdministeredArgs {
    /// Opens it.
    ///
    /// # Errors
    /// The data folder, the URL or the token cannot be used.
    pub(crate) fn open(&self) -> Result<Place, Failure> {
        if let Some(there) = self.to.open()? {
            return Ok(Place::There(there));
        }
        let (data, cache) = self.cache.open()?;
        Ok(Place::Here(data, cache))
    }
}

impl Place {
    /// The path that an argument names: a store path, or the name of one path of the cache.
    ///
    /// # Errors
    /// Wrong usage, with the candidates if the name is that of several paths.
    pub(crate) fn path(&self, text: &str) -> Result<HashPart, Failure> {
        match self {
            Self::Here(_, cache) => path_of(cache, text),
            Self::There(there) => match hash_part(text, &StoreDir::default()) {
                Err(unknown) if may_be_name(text) => {
                    let found = names::find(&[there.cache.url().clone()], &there.client, text)?;
                    only_one(text, &found.candidates, unknown)
                }
                result => result,
            },
        }
    }
}

/// The path of a cache of this machine that an argument names.
///
/// # Errors
/// See [`Place::path`].
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
