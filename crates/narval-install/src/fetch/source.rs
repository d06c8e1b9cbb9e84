//! Caches as a source: NARs requested and decoded as they are read.

use std::fmt::Display;
use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use narval_cache::{BinaryCache, BinaryCaches, CacheError, CacheFile, TrustedNarInfo, Wanted};
use narval_client::{HttpError, OwnCodings};
use narval_codec::decode::{DecodeError, Decoder, DeltaDecoder};
use narval_codec::delta::{Reserved, delta_codings};
use narval_nix::{Compression, HashPart, NarInfo, PathInfo, StoreDir};
use narval_store::{Hashed, NarInput, NarOptions, Source};
use tracing::trace_span;

use super::check::{check_end, check_file, check_hashes, damaged, hashes_file, mismatch};
use super::input::Input;
use crate::delta::{Base, Deltas};
use narval_client::clock::now;
use narval_transfer::{Cores, decoder_memory};
use narval_transfer::{Error, Progress, TIMELINE};

/// How often a path is fetched anew from a cache that was away, or whose file has changed, as after a restart of the server. Over a slow line, one
/// path may be under way through many restarts.
const AGAIN_MAX: u32 = 16;

/// The caches of a run.
pub(crate) struct FromCaches<'a> {
    pub(crate) caches: &'a BinaryCaches,
    /// A NAR uses one of them while it is read.
    pub(crate) cores: &'a Cores,
    pub(crate) progress: &'a Progress,
    /// Where a path may be fetched as the difference to one that the destination has.
    pub(crate) deltas: Option<&'a Deltas<'a>>,
}

/// A path of a cache.
pub(crate) struct CacheEntry {
    found: TrustedNarInfo,
    info: PathInfo,
    /// The caches that failed for it.
    failed: Vec<Arc<BinaryCache>>,
    /// Whether it was requested as a delta.
    was_delta: AtomicBool,
    /// Whether a delta of it has failed.
    whole: bool,
    /// From a cache that may return, which is asked again if no other has the path.
    away: Option<TrustedNarInfo>,
    /// How often such a cache was asked again: it is waited for.
    again: u32,
    /// Whether the memory of its decoder counts as that of deltas: many are asked for at once, and wait for the server.
    limits_decoder_memory: AtomicBool,
}

impl From<TrustedNarInfo> for CacheEntry {
    fn from(found: TrustedNarInfo) -> Self {
        let (failed, whole, away, again) = (Vec::new(), false, None, 0);
        let (was_delta, limits_decoder_memory) = (AtomicBool::new(false), AtomicBool::new(false));
        Self { info: found.info.path_info(now()), found, failed, was_delta, whole, away, again, limits_decoder_memory }
    }
}

impl CacheEntry {
    /// The same path for another attempt, whose memory counts in the same way.
    fn again(&self, found: TrustedNarInfo) -> Self {
        let limits_decoder_memory = AtomicBool::new(self.limits_decoder_memory.load(Ordering::Relaxed));
        Self { limits_decoder_memory, ..found.into() }
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

    fn limits_decoder_memory(&self, entry: &CacheEntry) -> bool {
        let bounds = self.deltas.is_some_and(|deltas| deltas.may_ask(&entry.found));
        entry.limits_decoder_memory.store(bounds, Ordering::Relaxed);
        bounds
    }

    fn nar<'a>(
        &'a self,
        entry: &'a CacheEntry,
        how: NarOptions<'a>,
    ) -> Result<Box<dyn NarInput<Error = Error> + 'a>, Error> {
        let (found, info) = (&entry.found, &entry.found.info);
        let deltas = self.deltas.filter(|_| !entry.whole && how.file.is_none());
        if let Some(base) = deltas.and_then(|deltas| deltas.begin(found)) {
            entry.was_delta.store(true, Ordering::Relaxed);
            if let Some(nar) = self.coded(entry, base, how.threads)? {
                return Ok(nar);
            }
        }
        let codings = if how.file.is_none() { self.codings(found) } else { OwnCodings::default() };
        let body = self.request(entry, codings)?;
        let is_coded = body.coding().is_some();
        let memory = self.decoder_memory(entry);
        let core = self.cores.take(info.nar_size);
        let hashes = !is_coded && hashes_file(info);
        let mut input = Input::new(body, hashes, info.nar_size, core, self.progress);
        input.copy_to(how.file);
        input.measure(self.deltas.map(|deltas| deltas.download(found)));
        let reading = if is_coded {
            Reading::Coded(decoder(found, &Compression::Zstd, input, how.threads)?)
        } else {
            Reading::File(decoder(found, &info.compression, input, how.threads)?)
        };
        Ok(Box::new(self.nar_of(found, reading, memory)))
    }

    /// The same path from the next cache.
    fn fallback(&self, entry: &CacheEntry, error: &Error) -> Option<CacheEntry> {
        if !error.is_the_caches_fault() || self.progress.is_interrupted() {
            return None;
        }
        if entry.was_delta.load(Ordering::Relaxed) {
            tracing::debug!(%error, "fetching the whole NAR instead of a delta");
            let failed = entry.failed.clone();
            return Some(CacheEntry { failed, whole: true, ..entry.again(entry.found.clone()) });
        }
        tracing::debug!(%error, "trying the next cache");
        let mut failed = entry.failed.clone();
        failed.push(Arc::clone(&entry.found.cache));
        let away = entry.away.clone().or_else(|| may_return(error).then(|| entry.found.clone()));
        let (away, whole, again) = (away.filter(|_| entry.again < AGAIN_MAX), entry.whole, entry.again);
        if failed.len() < self.caches.list().len()
            && let Ok(found) = self.caches.find_except(&Wanted::Path(entry.info.path.clone()), &failed)
        {
            return Some(CacheEntry { failed, whole, away, again, ..entry.again(found) });
        }
        away.map(|found| CacheEntry { failed, whole, again: again + 1, ..entry.again(found) })
    }
}

impl<'a> FromCaches<'a> {
    /// The codings that are accepted for a whole file: over a slow line, a file that is not compressed takes several times the bytes of its zstd.
    fn codings(&self, found: &TrustedNarInfo) -> OwnCodings {
        let is_slow = |deltas: &Deltas<'_>| deltas.pace.is_slow(found.cache.opened_in());
        if found.info.compression != Compression::None || !self.deltas.is_some_and(is_slow) {
            return OwnCodings::default();
        }
        OwnCodings { accepted: "zstd".to_owned(), fields: Vec::new() }
    }

    /// Requests the file of a NAR from the cache, or its bytes with one of these codings.
    fn request(&self, entry: &CacheEntry, codings: OwnCodings) -> Result<CacheFile, Error> {
        let (info, cache) = (&entry.found.info, &entry.found.cache);
        let url = cache.nar_url(info)?;
        let hasty = entry.again == 0 && self.caches.list().len() > 1;
        let opened = CacheFile::open_coded(cache.client(), &url, codings, hasty);
        let body = opened.map_err(|error| cache.fetch_error(info.path.base_name(), error))?;
        let gone =
            || CacheError::NarGone { cache: cache.url().to_string(), path: info.path.clone(), url: url.to_string() };
        Ok(body.ok_or_else(gone)?)
    }

    /// Requests a NAR as the delta from a base; the server may also send its file, or its bytes with another coding. `None` if the
    /// base cannot be used after all.
    fn coded(
        &'a self,
        entry: &'a CacheEntry,
        base: Base<'a>,
        threads: usize,
    ) -> Result<Option<Box<dyn NarInput<Error = Error> + 'a>>, Error> {
        let (found, info) = (&entry.found, &entry.found.info);
        // A compressed file is as small as its bytes with that coding.
        let others: &[&str] = if info.compression == Compression::None { &["zstd"] } else { &[] };
        let wait = self.deltas.map(|deltas| deltas.patience(found));
        let codings = delta_codings(&base.info.path.hash_part(), &base.info.nar_hash, others, wait);
        let pending = self.deltas.map(|deltas| deltas.pending(found));
        let body = self.request(entry, codings)?;
        drop(pending);
        let coding = body.coding().map(str::to_owned);
        let (base, memory) = if coding.as_deref() == Some("dcz") {
            let Some((base, of, memory)) = base.finish() else { return Ok(None) };
            (Some((base, of)), Some(memory))
        } else {
            base.abandon();
            (None, self.decoder_memory(entry))
        };
        let core = self.cores.take(info.nar_size);
        let hashes = coding.is_none() && hashes_file(info);
        let len = body.total_len();
        let mut input = Input::new(body, hashes, info.nar_size, core, self.progress);
        input.measure(self.deltas.map(|deltas| match base {
            Some(_) => deltas.download_delta(found, len),
            None => deltas.download(found),
        }));
        let reading = match (base, coding) {
            (Some((base, of)), _) => {
                let decoder = DeltaDecoder::new(input, base, &of.nar_hash);
                Reading::Delta(Box::new(decoder.map_err(|error| cannot_decode(found, error))?))
            }
            (None, Some(_)) => Reading::Coded(decoder(found, &Compression::Zstd, input, threads)?),
            (None, None) => Reading::File(decoder(found, &info.compression, input, threads)?),
        };
        Ok(Some(Box::new(self.nar_of(found, reading, memory))))
    }

    /// Waits for the memory of the decoder of a whole NAR, if nobody else has counted it.
    fn decoder_memory(&self, entry: &CacheEntry) -> Option<Reserved<'_>> {
        let deltas = self.deltas.filter(|_| entry.limits_decoder_memory.load(Ordering::Relaxed))?;
        deltas.decoder_memory(decoder_memory(entry.info.nar_size))
    }

    fn nar_of(&'a self, found: &'a TrustedNarInfo, reading: Reading<'a>, memory: Option<Reserved<'a>>) -> CacheNar<'a> {
        CacheNar { found, reading, len: 0, progress: self.progress, _memory: memory }
    }
}

fn decoder<'a>(
    found: &TrustedNarInfo,
    compression: &Compression,
    input: Input<'a>,
    threads: usize,
) -> Result<Decoder<Input<'a>>, Error> {
    Decoder::new(compression, input, threads).map_err(|error| cannot_decode(found, error))
}

fn cannot_decode(found: &TrustedNarInfo, source: DecodeError) -> Error {
    let (cache, path) = (found.cache.url().to_string(), found.info.path.clone());
    CacheError::Decoder { cache, path, source }.into()
}

/// Whether the cache that failed may have the path later: it is away, or has made the file anew, as a server may that has restarted.
const fn may_return(error: &Error) -> bool {
    match error {
        Error::Cache(CacheError::Fetch { source: HttpError::Changed, .. }) => true,
        Error::Cache(error) => error.is_outage(),
        _ => false,
    }
}

/// A NAR being read from a cache.
struct CacheNar<'a> {
    found: &'a TrustedNarInfo,
    reading: Reading<'a>,
    len: u64,
    progress: &'a Progress,
    /// Held while it is decoded.
    _memory: Option<Reserved<'a>>,
}

/// What is received.
enum Reading<'a> {
    /// The file that the narinfo names.
    File(Decoder<Input<'a>>),
    /// The NAR with another coding than the file's.
    Coded(Decoder<Input<'a>>),
    /// The difference to another NAR.
    Delta(Box<DeltaDecoder<Input<'a>>>),
}

impl<'a> Reading<'a> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::File(decoder) | Self::Coded(decoder) => decoder.read(out),
            Self::Delta(decoder) => decoder.read(out),
        }
    }

    fn source_mut(&mut self) -> &mut Input<'a> {
        match self {
            Self::File(decoder) | Self::Coded(decoder) => decoder.source_mut(),
            Self::Delta(decoder) => decoder.source_mut(),
        }
    }
}

impl NarInput for CacheNar<'_> {
    type Error = Error;

    fn read(&mut self, buffer: &mut [u8]) -> Result<usize, Error> {
        if self.progress.is_interrupted() {
            return Err(Error::Interrupted);
        }
        let decompressing = trace_span!(target: TIMELINE, "decompress").entered();
        let len = self.reading.read(buffer).map_err(|error| match self.reading.source_mut().take_failure() {
            Some(failure) => failure.about(self.found),
            None => damaged(self.found, error.to_string()),
        })?;
        drop(decompressing);
        self.len += len as u64;
        // A decompression bomb ends here: nothing is used beyond NarSize.
        if self.len > self.found.info.nar_size {
            let nar_size = self.found.info.nar_size;
            return Err(damaged(self.found, format!("the NAR has more bytes than its NarSize, {nar_size}")));
        }
        Ok(len)
    }

    fn check(&mut self, nar_len: u64, hashed: &Hashed) -> Result<(), Error> {
        let info = &self.found.info;
        if nar_len != info.nar_size {
            return Err(mismatch(self.found, "NarSize", nar_len, info.nar_size));
        }
        let input = self.reading.source_mut();
        check_end(self.found, input)?;
        let received = input.received_len();
        if let Reading::File(decoder) = &mut self.reading {
            check_file(self.found, decoder.source_mut(), hashed.nar);
        }
        check_hashes(self.found, hashed)?;
        if let Reading::Delta(_) = &self.reading {
            self.progress.saved(info.file_size.unwrap_or(info.nar_size), received);
        }
        Ok(())
    }

    fn invalid(&self, reason: &dyn Display) -> Error {
        damaged(self.found, reason.to_string())
    }
}
