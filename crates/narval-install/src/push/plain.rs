//! The protocol that every writable cache supports: what `nix copy --to` sends (`binary-cache-store.cc`).

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use narval_cache::encode::{Encoding, write_nar};
use narval_client::Payload;
use narval_nix::narinfo::NARINFO_LEN_MAX;
use narval_nix::{NarInfo, SecretKey, Sha256, StorePath};
use narval_store::{Sink, Source, TransferError, Visible};

use super::server::Server;
use super::spool::Spool;
use crate::{Error, Progress};

/// The maximum number of concurrent narinfo requests.
const LOOKUPS_MAX: usize = 32;

/// A cache, as a sink.
pub(super) struct PlainCache<'a> {
    pub(super) server: &'a Server,
    pub(super) encoding: Encoding,
    pub(super) key: Option<&'a SecretKey>,
    pub(super) progress: &'a Progress,
}

impl Sink for PlainCache<'_> {
    type Put = NarInfo;
    type Error = Error;

    const VISIBLE: Visible = Visible::OnceReferencesAre;

    /// Requests each narinfo, as Nix does: there is no other way to find out what a plain cache has.
    fn missing(&self, paths: &[&StorePath]) -> Result<HashSet<StorePath>, Error> {
        let (next, missing) = (AtomicUsize::new(0), Mutex::new(Ok(HashSet::new())));
        let ask = || {
            while let Some(path) = paths.get(next.fetch_add(1, Ordering::Relaxed)) {
                if self.progress.is_interrupted() {
                    return Err(Error::Interrupted);
                }
                if !self.has(path)?
                    && let Ok(missing) = &mut *missing.lock().unwrap_or_else(PoisonError::into_inner)
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
                        let mut missing = missing.lock().unwrap_or_else(PoisonError::into_inner);
                        if missing.is_ok() {
                            *missing = Err(error);
                        }
                    }
                });
            }
        });
        missing.into_inner().unwrap_or_else(PoisonError::into_inner)
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
            let url = self.server.url.child(&format!("{}.narinfo", narinfo.path.hash_part()))?;
            let text = narinfo.render(&self.server.store_dir);
            self.server.put_text(&url, "text/x-nix-narinfo", &text)?;
        }
        Ok(Vec::new())
    }
}

impl PlainCache<'_> {
    fn has(&self, path: &StorePath) -> Result<bool, Error> {
        let (hash_part, server) = (path.hash_part(), self.server);
        let url = server.url.child(&format!("{hash_part}.narinfo"))?;
        let answer = server.client.metadata(&url, NARINFO_LEN_MAX as u64);
        let text = answer.map_err(|error| server.failed(hash_part.as_str(), error))?;
        // One that does not parse is replaced.
        Ok(text.is_some_and(|text| NarInfo::parse(&text, &server.store_dir).is_ok_and(|found| found.path == *path)))
    }

    /// Sends the file, unless the cache has it.
    fn send(&self, narinfo: &NarInfo, payload: (Payload<'_>, Sha256)) -> Result<(), Error> {
        let url = self.server.url.child(&narinfo.url)?;
        if self.server.has(&url)? {
            return Ok(());
        }
        self.server.put(&url, "application/x-nix-nar", payload, &|len| self.progress.downloaded(len))
    }
}
