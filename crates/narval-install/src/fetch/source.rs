//! Caches as a source: NARs requested and decoded as they are read.

use std::fmt::Display;
use std::io::Read;
use std::sync::Arc;

use narval_cache::decode::Decoder;
use narval_cache::{Cache, CacheError, CacheFile, Caches, Found, Wanted};
use narval_nix::{HashPart, NarInfo, PathInfo, StoreDir};
use narval_store::{Hashed, NarInput, NarOptions, Source};

use super::check::{check_file, check_hashes, damaged, hashes_file, mismatch};
use super::cores::Cores;
use super::input::Input;
use crate::trace::{Span, Trace};
use crate::{Error, Progress, now};

/// The caches of a run.
pub(crate) struct FromCaches<'a> {
    pub(crate) caches: &'a Caches,
    /// A NAR uses one of them while it is read.
    pub(crate) cores: &'a Cores,
    pub(crate) progress: &'a Progress,
    pub(crate) trace: &'a Trace,
}

/// A path of a cache.
pub(crate) struct CacheEntry {
    found: Found,
    info: PathInfo,
    /// The caches that failed for it.
    failed: Vec<Arc<Cache>>,
}

impl From<Found> for CacheEntry {
    fn from(found: Found) -> Self {
        Self { info: found.info.path_info(now()), found, failed: Vec::new() }
    }
}

impl Source for FromCaches<'_> {
    type Entry = CacheEntry;
    type Error = Error;

    fn store_dir(&self) -> &StoreDir {
        self.caches.store_dir()
    }

    fn find(&self, hash_part: &HashPart) -> Result<Option<CacheEntry>, Error> {
        match self.caches.find(&Wanted::HashPart(*hash_part)) {
            Ok(found) => Ok(Some(found.into())),
            Err(CacheError::NotFound { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn info<'a>(&self, entry: &'a CacheEntry) -> &'a PathInfo {
        &entry.info
    }

    fn narinfo<'a>(&self, entry: &'a CacheEntry) -> Option<&'a NarInfo> {
        Some(&entry.found.info)
    }

    fn nar<'a>(
        &'a self,
        entry: &'a CacheEntry,
        how: NarOptions<'a>,
    ) -> Result<Box<dyn NarInput<Error = Error> + 'a>, Error> {
        let (found, info) = (&entry.found, &entry.found.info);
        let body = request(found)?;
        let span = self.trace.begin();
        let core = self.cores.take(info.nar_size, Trace::thread_number());
        self.trace.end(span, Span::Wait);
        let mut input = Input::new(body, hashes_file(info), info.nar_size, core, (self.progress, self.trace));
        input.copy_to(how.file);
        let decoder = Decoder::new(&info.compression, input, how.threads).map_err(|source| CacheError::Decoder {
            cache: found.cache.url().to_string(),
            path: info.path.clone(),
            source,
        })?;
        Ok(Box::new(CacheNar { found, decoder, len: 0, progress: self.progress, trace: self.trace }))
    }

    /// The same path from the next cache.
    fn instead_of(&self, entry: &CacheEntry, error: &Error) -> Option<CacheEntry> {
        if !error.is_the_caches_fault() || self.progress.is_interrupted() {
            return None;
        }
        tracing::debug!(%error, "trying the next cache");
        let mut failed = entry.failed.clone();
        failed.push(Arc::clone(&entry.found.cache));
        if failed.len() >= self.caches.list().len() {
            return None;
        }
        let found = self.caches.find_except(&Wanted::Path(entry.info.path.clone()), &failed).ok()?;
        Some(CacheEntry { failed, ..found.into() })
    }
}

/// Requests the file of a NAR from the cache.
fn request(found: &Found) -> Result<CacheFile, Error> {
    let (info, cache) = (&found.info, &found.cache);
    let url = cache.nar_url(info)?;
    let opened = CacheFile::open(cache.client(), &url);
    let body = opened.map_err(|error| cache.fetch_error(info.path.base_name(), error))?;
    let gone = || CacheError::NarGone { cache: cache.url().to_string(), path: info.path.clone(), url: url.to_string() };
    Ok(body.ok_or_else(gone)?)
}

/// A NAR being read from a cache.
struct CacheNar<'a> {
    found: &'a Found,
    decoder: Decoder<Input<'a>>,
    len: u64,
    progress: &'a Progress,
    trace: &'a Trace,
}

impl NarInput for CacheNar<'_> {
    type Error = Error;

    fn read(&mut self, buffer: &mut [u8]) -> Result<usize, Error> {
        if self.progress.is_interrupted() {
            return Err(Error::Interrupted);
        }
        let span = self.trace.begin();
        let len = self.decoder.read(buffer).map_err(|error| match self.decoder.source_mut().take_failure() {
            Some(failure) => failure.about(self.found),
            None => damaged(self.found, error.to_string()),
        })?;
        self.trace.end(span, Span::Decompress);
        self.len += len as u64;
        // A decompression bomb ends here: nothing is used beyond NarSize.
        if self.len > self.found.info.nar_size {
            return Err(mismatch(self.found, "NarSize", "more", self.found.info.nar_size));
        }
        Ok(len)
    }

    fn check(&mut self, nar_len: u64, hashed: &Hashed) -> Result<(), Error> {
        if nar_len != self.found.info.nar_size {
            return Err(mismatch(self.found, "NarSize", nar_len, self.found.info.nar_size));
        }
        check_file(self.found, self.decoder.source_mut(), hashed.nar)?;
        check_hashes(self.found, hashed)
    }

    fn invalid(&self, reason: &dyn Display) -> Error {
        damaged(self.found, reason.to_string())
    }
}
