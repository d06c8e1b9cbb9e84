//! Pushes paths of a store to a writable cache: over HTTP, in a folder or in a bucket.

mod administration;
mod filter;
mod narval;
mod other_caches;
mod plain;
mod select;
mod server;
mod small;
mod spool;

pub use administration::{Administered, Exchanged};
pub use filter::{Excluded, Filter};
pub use other_caches::OtherCaches;
pub use select::{Missing, Selection};

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use narval_cache::CacheFolder;
use narval_client::{Client, Scheme, Url};
use narval_codec::encode::Encoding;
use narval_nix::{PathInfo, SecretKey, StoreDir, StorePath};
use narval_store::{Sink, Source};

use narval::{BuildSeconds, NarvalCache};
use narval_transfer::{Destination, Error, Progress, transfer};
use plain::PlainCache;
use server::{Protocol, Server};
use small::SmallNars;

/// The maximum number of NARs sent at the same time.
pub const UPLOADS_MAX: usize = 16;

/// An open cache to push to.
pub struct Target {
    url: Url,
    kind: Kind,
    /// Whether it has refused a path whose references it lacks.
    is_strict: AtomicBool,
}

enum Kind {
    Folder(Box<CacheFolder>),
    /// That would be created.
    NoFolder,
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
    /// Says of a derivation how many seconds it took to build, if that is known. Only caches with Narval's protocol are told.
    pub build_seconds: Option<BuildSeconds>,
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
    /// The number of paths that it lacks and other caches have.
    pub elsewhere: usize,
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
        Self::open_for(url, client, store_dir, true)
    }

    /// Opens a cache to ask it [what it lacks](Selection::missing). Nothing is created or uploaded.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn look(url: &Url, client: &Arc<Client>, store_dir: &StoreDir) -> Result<Self, Error> {
        Self::open_for(url, client, store_dir, false)
    }

    fn open_for(url: &Url, client: &Arc<Client>, store_dir: &StoreDir, is_written: bool) -> Result<Self, Error> {
        let kind = match url.scheme() {
            Scheme::File if is_written => {
                Kind::Folder(Box::new(CacheFolder::create(&url.file_path(), store_dir.clone())?))
            }
            Scheme::File if url.file_path().exists() => {
                Kind::Folder(Box::new(CacheFolder::open(&url.file_path(), store_dir.clone())?))
            }
            Scheme::File => Kind::NoFolder,
            _ => {
                let server = Server::new(url.clone(), Arc::clone(client), store_dir.clone());
                match server.open(is_written)? {
                    Some(protocol) => Kind::Narval(server, protocol),
                    None => Kind::Plain(server),
                }
            }
        };
        Ok(Self { url: url.clone(), kind, is_strict: AtomicBool::new(false) })
    }

    /// Its address, without secrets.
    pub const fn url(&self) -> &Url {
        &self.url
    }

    /// Whether it is a folder.
    pub const fn is_folder(&self) -> bool {
        matches!(self.kind, Kind::Folder(_) | Kind::NoFolder)
    }

    /// Whether it gets complete closures, whatever other caches have: folders, and what has said so.
    fn takes_closures_alone(&self) -> bool {
        self.is_folder() || self.is_strict.load(Ordering::Relaxed)
    }

    /// Records that it has refused a path whose references it lacks.
    fn takes_closures_alone_now(&self) {
        self.is_strict.store(true, Ordering::Relaxed);
    }

    /// Which of these paths it does not have.
    fn missing(&self, paths: &[&StorePath], progress: &Progress) -> Result<HashSet<StorePath>, Error> {
        match &self.kind {
            Kind::Folder(folder) => Ok(folder.sink(Encoding::None, None).missing(paths)?),
            Kind::NoFolder => Ok(paths.iter().map(|path| (*path).clone()).collect()),
            Kind::Plain(server) => PlainCache::new(server, Encoding::None, None, progress).missing(paths),
            Kind::Narval(server, protocol) => {
                let (protocol, encoding) = (&protocol.url, Encoding::None);
                let build_seconds = None;
                NarvalCache { server, protocol, small: None, encoding, key: None, build_seconds, progress }
                    .missing(paths)
            }
        }
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
        Kind::Folder(_) | Kind::NoFolder => 0,
        Kind::Plain(server) | Kind::Narval(server, _) => server.requests(),
    };
    let requests_before = requests();
    let pushed = send(source, infos, to, options, progress)?;
    Ok(Pushed {
        to: to.url.to_string(),
        pushed,
        already: total - pushed,
        elsewhere: 0,
        unsigned: match &to.kind {
            Kind::Narval(server, _) => server.unsigned(),
            Kind::Folder(_) | Kind::NoFolder | Kind::Plain(_) => 0,
        },
        sent: progress.snapshot().file_bytes_done - sent_before,
        requests: requests() - requests_before,
        elapsed: start.elapsed(),
    })
}

/// Sends the paths that a cache does not have. Returns their number.
pub fn send<S: Source>(
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
        Kind::NoFolder => Err(Error::Usage(format!("{}: it was opened for questions only", to.url))),
        Kind::Plain(server) => {
            let sink = PlainCache::new(server, options.encoding, key, progress);
            transfer(source, entries, &sink, uploads, progress)
        }
        Kind::Narval(server, protocol) => {
            let small = protocol.takes_nars.then(SmallNars::default);
            let (encoding, build_seconds) = (options.encoding, options.build_seconds.as_ref());
            let sink = NarvalCache { server, protocol: &protocol.url, small, encoding, key, build_seconds, progress };
            transfer(source, entries, &sink, uploads, progress)
        }
    }
}
