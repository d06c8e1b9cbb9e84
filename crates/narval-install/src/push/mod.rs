//! Pushes paths of a store to a writable cache: over HTTP, in a folder or in a bucket.

mod administration;
mod narval;
mod plain;
mod server;
mod small;
mod spool;

pub use administration::{Administered, Exchanged};

use std::sync::Arc;
use std::time::{Duration, Instant};

use narval_cache::CacheFolder;
use narval_client::{Client, Scheme, Url};
use narval_codec::encode::Encoding;
use narval_nix::{PathInfo, SecretKey, StoreDir};
use narval_store::Source;

use crate::transfer::transfer;
use crate::{Destination, Error, Progress};
use narval::NarvalCache;
use plain::PlainCache;
use server::{Protocol, Server};
use small::SmallNars;

/// The maximum number of NARs sent at the same time.
pub const UPLOADS_MAX: usize = 16;

/// An open cache to push to.
pub struct Target {
    url: Url,
    kind: Kind,
}

enum Kind {
    Folder(Box<CacheFolder>),
    /// With the protocol that Nix uses.
    Plain(Server),
    /// With Narval's protocol.
    Narval(Server, Protocol),
}

/// Options of a push.
pub struct PushOptions {
    /// How NARs are compressed.
    pub encoding: Encoding,
    /// Signs each narinfo, in addition to the signatures in the store.
    pub key: Option<SecretKey>,
    /// The number of NARs compressed and sent at the same time, at most [`UPLOADS_MAX`].
    pub uploads: usize,
}

/// The result of a push.
#[derive(Clone, Debug)]
pub struct Pushed {
    /// The cache.
    pub to: String,
    /// The number of pushed paths.
    pub pushed: usize,
    /// The number of paths that it had already.
    pub already: usize,
    /// Of the pushed paths, those that have no signature of the cache although it signs: the token may not have it sign.
    pub unsigned: usize,
    /// Bytes sent, or written to a folder.
    pub sent: u64,
    /// Requests sent.
    pub requests: u64,
    /// How long it took.
    pub elapsed: Duration,
}

impl Target {
    /// Opens a cache for writing: a `file` URL names a folder, which is created if it does not exist. Reads a server's
    /// `nix-cache-info`, and uploads one if it has none.
    ///
    /// # Errors
    /// If the cache cannot be reached, is for another store directory, or denies access.
    pub fn open(url: &Url, client: &Arc<Client>, store_dir: &StoreDir) -> Result<Self, Error> {
        let kind = if url.scheme() == Scheme::File {
            Kind::Folder(Box::new(CacheFolder::create(&url.file_path(), store_dir.clone())?))
        } else {
            let server = Server::new(url.clone(), Arc::clone(client), store_dir.clone());
            match server.open()? {
                Some(protocol) => Kind::Narval(server, protocol),
                None => Kind::Plain(server),
            }
        };
        Ok(Self { url: url.clone(), kind })
    }

    /// Its address, without secrets.
    pub const fn url(&self) -> &Url {
        &self.url
    }

    /// Whether it is a folder.
    pub(crate) const fn is_folder(&self) -> bool {
        matches!(self.kind, Kind::Folder(_))
    }

    /// Whether the cache supports Narval's protocol.
    pub const fn is_narval(&self) -> bool {
        matches!(self.kind, Kind::Narval(..))
    }
}

/// Pushes the paths of a store that the cache does not have. `infos` must be closed: every reference of a path is among
/// them, or in the cache. `progress` counts NARs as they are compressed, and bytes as they are sent.
///
/// # Errors
/// The first failure. Paths that were complete before are kept, and not sent again.
pub fn push(
    from: &Destination,
    infos: Vec<PathInfo>,
    to: &Target,
    options: &PushOptions,
    progress: &Progress,
) -> Result<Pushed, Error> {
    let (start, total) = (Instant::now(), infos.len());
    let (source, sent_before) = (from.store(), progress.snapshot().file_bytes_done);
    let requests = || match &to.kind {
        Kind::Folder(_) => 0,
        Kind::Plain(server) | Kind::Narval(server, _) => server.requests(),
    };
    let requests_before = requests();
    let pushed = send(source, infos, to, options, progress)?;
    Ok(Pushed {
        to: to.url.to_string(),
        pushed,
        already: total - pushed,
        unsigned: match &to.kind {
            Kind::Narval(server, _) => server.unsigned(),
            Kind::Folder(_) | Kind::Plain(_) => 0,
        },
        sent: progress.snapshot().file_bytes_done - sent_before,
        requests: requests() - requests_before,
        elapsed: start.elapsed(),
    })
}

/// Sends the paths that a cache does not have. Returns their number.
pub(crate) fn send<S: Source>(
    source: &S,
    entries: Vec<S::Entry>,
    to: &Target,
    options: &PushOptions,
    progress: &Progress,
) -> Result<usize, Error>
where
    S::Error: Into<Error>,
{
    let (uploads, key) = (options.uploads.clamp(1, UPLOADS_MAX), options.key.as_ref());
    match &to.kind {
        Kind::Folder(folder) => {
            let count = |len| progress.downloaded(len);
            let sink = folder.sink(options.encoding, key).counted_by(&count);
            transfer(source, entries, &sink, uploads, progress)
        }
        Kind::Plain(server) => {
            let sink = PlainCache::new(server, options.encoding, key, progress);
            transfer(source, entries, &sink, uploads, progress)
        }
        Kind::Narval(server, protocol) => {
            let small = protocol.takes_nars.then(SmallNars::default);
            let sink =
                NarvalCache { server, protocol: &protocol.url, small, encoding: options.encoding, key, progress };
            transfer(source, entries, &sink, uploads, progress)
        }
    }
}
