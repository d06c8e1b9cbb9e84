//! The protocol that every writable cache supports: what `nix copy --to` sends (`binary-cache-store.cc`).

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use narval_client::{Payload, Scheme};
use narval_codec::encode::{Encoding, write_nar};
use narval_nix::narinfo::NARINFO_LEN_MAX;
use narval_nix::{NarInfo, SecretKey, Sha256, StorePath};
use narval_s3::find_listed;
use narval_store::{Sink, Source, TransferError, Visible};
use parking_lot::Mutex;

use super::server::Server;
use super::spool::Spool;
use narval_transfer::{Error, Progress};

/// The maximum number of concurrent narinfo requests.
const LOOKUPS_MAX: usize = 32;

/// The minimum number of wanted paths for which a bucket is listed, rather than asked for each.
const LISTED_PATHS_MIN: usize = 12;
/// How many pages of 1000 objects are listed in any case: with `nix-cache-info`, five requests that are not uploads.
const PAGES_MIN: usize = 3;
/// One more page is listed for each so many wanted paths. S3 charges a page like 12 GETs, and pages come one after the other.
const PATHS_PER_PAGE: usize = 100;
/// Smaller files are sent to a bucket without asking whether it has them: as the name is the hash, nothing changes.
const ASKED_LEN_MIN: u64 = 8 * 1024 * 1024;

/// A cache, as a sink.
pub(super) struct PlainCache<'a> {
    server: &'a Server,
    encoding: Encoding,
    key: Option<&'a SecretKey>,
    progress: &'a Progress,
    /// By the hash of its file, whether the cache has it. Locked while it is being sent.
    files: Mutex<HashMap<Sha256, Arc<Mutex<bool>>>>,
}

impl<'a> PlainCache<'a> {
    pub(super) fn new(
        server: &'a Server,
        encoding: Encoding,
        key: Option<&'a SecretKey>,
        progress: &'a Progress,
    ) -> Self {
        Self { server, encoding, key, progress, files: Mutex::default() }
    }
}

impl Sink for PlainCache<'_> {
    type Put = NarInfo;
    type Error = Error;

    const VISIBLE: Visible = Visible::OnceReferencesAre;

    /// Requests each narinfo, as Nix does, except those that are not in the list of a bucket.
    fn missing(&self, paths: &[&StorePath]) -> Result<HashSet<StorePath>, Error> {
        let listed = self.listed(paths)?;
        let is_listed = |path: &StorePath| listed.as_ref().is_none_or(|keys| keys.contains(&narinfo_key(path)));
        let (paths, absent): (Vec<&StorePath>, Vec<_>) = paths.iter().partition(|path| is_listed(path));
        let absent = absent.into_iter().cloned().collect::<HashSet<_>>();
        let (next, missing) = (AtomicUsize::new(0), Mutex::new(Ok(absent)));
        let ask = || {
            while let Some(path) = paths.get(next.fetch_add(1, Ordering::Relaxed)) {
                if self.progress.is_interrupted() {
                    return Err(Error::Interrupted);
                }
                if !self.has(path)?
                    && let Ok(missing) = &mut *missing.lock()
                {
                    missing.insert((*path).clone());
                }
            }
            Ok(())
        };
        std::thread::scope(|scope| {
            for _ in 0..LOOKUPS_MAX.min(paths.len()) {
                scope.spawn(|| {
                    if let Err(error) = ask() {
                        // The other threads need not continue.
                        next.store(paths.len(), Ordering::Relaxed);
                        let mut missing = missing.lock();
                        if missing.is_ok() {
                            *missing = Err(error);
                        }
                    }
                });
            }
        });
        missing.into_inner()
    }

    fn put<S: Source>(
        &self,
        source: &S,
        entry: &S::Entry,
        _threads: usize,
    ) -> Result<NarInfo, TransferError<S::Error, Error>> {
        let path = &source.info(entry).path;
        let mut spool = Spool::default();
        let written = write_nar(source, entry, (self.encoding, self.key), &mut spool);
        let mut narinfo =
            written.map_err(|error| error.map_sink(|source| Error::Copy { path: path.clone(), source }))?;
        let (file_hash, file_size) = spool.finish();
        narinfo.url = format!("nar/{}.nar{}", file_hash.to_nix32(), narinfo.compression.file_extension());
        (narinfo.file_hash, narinfo.file_size) = (Some(file_hash.into()), Some(file_size));
        let sent = self.send(&narinfo, (spool.payload(), file_hash));
        sent.map(|()| narinfo).map_err(TransferError::Sink)
    }

    fn commit(&self, put: Vec<NarInfo>) -> Result<Vec<StorePath>, Error> {
        for narinfo in put {
            let url = self.server.url.child(&narinfo_key(&narinfo.path))?;
            let text = narinfo.render(&self.server.store_dir);
            self.server.put_text(&url, "text/x-nix-narinfo", &text)?;
        }
        Ok(Vec::new())
    }
}

fn narinfo_key(path: &StorePath) -> String {
    format!("{}.narinfo", path.hash_part())
}

impl PlainCache<'_> {
    /// The narinfos of these paths that a bucket lists; `None` if they have to be requested.
    fn listed(&self, paths: &[&StorePath]) -> Result<Option<HashSet<String>>, Error> {
        let server = self.server;
        if server.url.scheme() != Scheme::S3 || paths.len() < LISTED_PATHS_MIN {
            return Ok(None);
        }
        let (keys, pages_max) =
            (paths.iter().map(|path| narinfo_key(path)).collect(), PAGES_MIN + paths.len() / PATHS_PER_PAGE);
        let listed = find_listed(&server.client, &server.url, &keys, pages_max);
        listed.map_err(|error| server.failed("the list of its narinfos", error))
    }

    fn has(&self, path: &StorePath) -> Result<bool, Error> {
        let (hash_part, server) = (path.hash_part(), self.server);
        let url = server.url.child(&narinfo_key(path))?;
        let answer = server.small(&url, NARINFO_LEN_MAX as u64);
        let text = answer.map_err(|error| server.failed(hash_part.as_str(), error))?;
        // One that does not parse is replaced.
        Ok(text.is_some_and(|text| NarInfo::parse(&text, &server.store_dir).is_ok_and(|found| found.path == *path)))
    }

    /// Sends the file, unless the cache has it.
    fn send(&self, narinfo: &NarInfo, (payload, hash): (Payload<'_>, Sha256)) -> Result<(), Error> {
        let url = self.server.url.child(&narinfo.url)?;
        let file = Arc::clone(self.files.lock().entry(hash).or_default());
        let mut exists = file.lock();
        let is_asked = url.scheme() != Scheme::S3 || payload.len() >= ASKED_LEN_MIN;
        if !(*exists || is_asked && self.server.has(&url)?) {
            let on_sent = |len| self.progress.downloaded(len);
            self.server.put(&url, "application/x-nix-nar", (payload, hash), &on_sent)?;
        }
        *exists = true;
        Ok(())
    }
}
