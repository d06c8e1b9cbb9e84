//! The NAR of a cache, requested and decoded. Whoever reads a [`VerifiedNar`] gets its last bytes only when every check has
//! passed.

use std::io::{Read, Write};

use narval_cache::decode::{Decoder, OUTPUT_LEN};
use narval_cache::{CacheError, Found};
use narval_client::ResumingBody;
use narval_nix::StoreDir;
use narval_nix::nar::{Decoder as NarDecoder, Event, NarError};
use narval_store::Hashes;

use super::check::{check_file, check_hashes, damaged, hashes_file, mismatch};
use super::input::{Alone, Input, Surroundings};
use crate::trace::{Span, Trace};
use crate::{Error, Progress};

/// Asks the cache for the file of a NAR.
///
/// # Errors
/// [`CacheError::NarGone`] if the cache does not have it, and the failures of the request.
pub(crate) fn request(found: &Found) -> Result<ResumingBody, Error> {
    let (info, cache) = (&found.info, &found.cache);
    let url = cache.nar_url(info)?;
    let opened = ResumingBody::open(cache.client(), &url);
    let body = opened.map_err(|error| cache.fetch_error(info.path.base_name(), error))?;
    let gone = || CacheError::NarGone { cache: cache.url().to_string(), path: info.path.clone(), url: url.to_string() };
    Ok(body.ok_or_else(gone)?)
}

/// Decodes the file of a NAR as it comes, on up to `threads` threads, and writes the file to `copy_to`. The caller holds a
/// core.
///
/// # Errors
/// [`CacheError::Decoder`] for a compression without a decoder.
pub(crate) fn decode<'a>(
    found: &Found,
    body: ResumingBody,
    around: &Surroundings<'a>,
    threads: usize,
    copy_to: Option<&'a mut (dyn Write + Send)>,
) -> Result<Decoder<Input<'a>>, Error> {
    let info = &found.info;
    let mut input = Input::new(body, hashes_file(info), info.nar_size, around);
    input.copy_to(copy_to);
    let decoder = Decoder::new(&info.compression, input, threads).map_err(|source| CacheError::Decoder {
        cache: found.cache.url().to_string(),
        path: info.path.clone(),
        source,
    })?;
    Ok(decoder)
}

/// Reads a NAR of a cache to its end, checked as if it were installed. `take` gets each event, and the offset after
/// it.
///
/// # Errors
/// Whatever is wrong with the NAR, and the errors of `take`.
pub(crate) fn read_nar(
    found: &Found,
    store_dir: &StoreDir,
    take: &mut dyn FnMut(Event<'_>, u64) -> Result<(), Error>,
) -> Result<(), Error> {
    let invalid = |error: NarError| damaged(found, format!("it is no valid NAR: {error}"));
    let alone = Alone::default();
    let around = alone.surroundings();
    let mut nar = VerifiedNar::open(found, store_dir, &around, None)?;
    let (mut parser, mut offset) = (NarDecoder::with_nar_size(found.info.nar_size), 0);
    let mut buffer = vec![0; OUTPUT_LEN];
    loop {
        let len = nar.next(&mut buffer)?;
        let mut bytes = buffer.get(..len).unwrap_or_default();
        if bytes.is_empty() {
            break;
        }
        loop {
            let (used, event) = parser.next(bytes).map_err(invalid)?;
            offset += used as u64;
            let Some(event) = event else { break };
            take(event, offset)?;
            bytes = bytes.get(used..).unwrap_or_default();
        }
    }
    parser.finish().map_err(invalid)
}

/// A NAR on its way from a cache.
pub(crate) struct VerifiedNar<'a> {
    found: &'a Found,
    decoder: Decoder<Input<'a>>,
    hashes: Option<Hashes>,
    len: u64,
    progress: &'a Progress,
    trace: &'a Trace,
}

impl<'a> VerifiedNar<'a> {
    /// Asks the cache for it. The file is written to `copy_to` as it comes.
    pub(crate) fn open(
        found: &'a Found,
        store_dir: &StoreDir,
        around: &Surroundings<'a>,
        copy_to: Option<&'a mut (dyn Write + Send)>,
    ) -> Result<Self, Error> {
        let body = request(found)?;
        around.progress.started(&found.info.path);
        let decoder = decode(found, body, around, 1, copy_to)?;
        let hashes = Some(Hashes::of(&found.info.path_info(0), store_dir));
        Ok(Self { found, decoder, hashes, len: 0, progress: around.progress, trace: around.trace })
    }

    /// The next bytes of the NAR; 0 after exactly NarSize bytes.
    ///
    /// # Errors
    /// For whatever is not as the narinfo says, before the last bytes are given out.
    pub(crate) fn next(&mut self, buffer: &mut [u8]) -> Result<usize, Error> {
        if buffer.is_empty() || self.hashes.is_none() {
            return Ok(0);
        }
        if self.progress.is_interrupted() {
            return Err(Error::Interrupted);
        }
        let (found, info) = (self.found, &self.found.info);
        let span = self.trace.begin();
        let len = self.decoder.read(buffer).map_err(|error| match self.decoder.source_mut().take_failure() {
            Some(failure) => failure.about(found),
            None => damaged(found, error.to_string()),
        })?;
        self.trace.end(span, Span::Decompress);
        self.len += len as u64;
        if self.len > info.nar_size {
            return Err(mismatch(found, "NarSize", "more", info.nar_size));
        }
        if let Some(hashes) = &mut self.hashes {
            hashes.update(buffer.get(..len).unwrap_or_default());
        }
        self.progress.unpacked(len as u64);
        if self.len == info.nar_size
            && let Some(hashes) = self.hashes.take()
        {
            let hashed = hashes.finish();
            check_hashes(found, &hashed)?;
            if self.decoder.read(&mut [0]).is_ok_and(|more| more > 0) {
                return Err(mismatch(found, "NarSize", "more", info.nar_size));
            }
            check_file(found, self.decoder.source_mut(), hashed.nar)?;
            self.progress.ended(&info.path, Some(info.nar_size));
        } else if len == 0 {
            return Err(mismatch(found, "NarSize", self.len, info.nar_size));
        }
        Ok(len)
    }
}
