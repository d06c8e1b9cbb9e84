//! A NAR of a cache as it is decoded: its last bytes are given out only when every check has passed.

use std::io::{Read, Write};

use narval_nix::StoreDir;

use super::hashes::Hashes;
use super::input::{Input, Surroundings};
use super::one::{check_file, check_hashes, damaged, hashes_file, mismatch};
use super::progress::Progress;
use crate::Error;
use crate::trace::{Span, Trace};
use narval_cache::decode::Decoder;
use narval_cache::{CacheError, Found};
use narval_client::ResumingBody;

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
        let (info, cache) = (&found.info, &found.cache);
        let url = cache.nar_url(info)?;
        let opened = ResumingBody::open(cache.client(), &url);
        let body = opened.map_err(|error| cache.fetch_error(info.path.base_name(), error))?;
        let gone =
            || CacheError::NarGone { cache: cache.url().to_string(), path: info.path.clone(), url: url.to_string() };
        let body = body.ok_or_else(gone)?;
        around.progress.started(&info.path);
        let mut input = Input::new(body, hashes_file(info), info.nar_size, around);
        input.copy_to(copy_to);
        let decoder = Decoder::new(&info.compression, input, 1).map_err(|source| CacheError::Decoder {
            cache: cache.url().to_string(),
            path: info.path.clone(),
            source,
        })?;
        let hashes = Some(Hashes::of(&info.path_info(0), store_dir));
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
