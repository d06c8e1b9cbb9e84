//! One NAR: fetched, decompressed, hashed, unpacked, verified, moved to its place.

use std::io::Read;
use std::sync::Arc;

use narval_nix::PathInfo;
use narval_store::{Hashed, Hashes, Incoming, LocalStoreError, Prepared, UnpackError};

use narval_cache::decode::{Decoder, OUTPUT_LEN};
use narval_cache::{Cache, Found};
use narval_client::ResumingBody;

use super::Pipeline;
use crate::fetch::{Input, Surroundings, check_file, check_hashes, damaged, decode, mismatch, request};
use crate::trace::Span;
use crate::{Error, Wanted, now};

/// NARs of this size and more may be worked on by several threads.
pub(super) const SPLIT_LEN: u64 = 64 * 1024 * 1024;

/// The work on one path.
pub(crate) struct Job<'a> {
    pub(super) pipeline: &'a Pipeline<'a>,
    pub(super) number: u64,
    /// Threads it may use.
    pub(super) threads: usize,
    /// Whether the path becomes valid by itself, rather than together with the others.
    pub(super) register: bool,
}

impl Job<'_> {
    /// Does it, from the cache found or from the others when that one fails.
    pub(super) fn run(&self, found: Found) -> Result<PathInfo, Error> {
        let wanted = Wanted::Path(found.info.path.clone());
        let mut failed: Vec<Arc<Cache>> = Vec::new();
        let mut first_error = None;
        let mut next = Some(found);
        while let Some(found) = next.take() {
            match self.run_from(&found) {
                Ok(()) => return Ok(found.info.path_info(now())),
                Err(error) if error.is_the_caches_fault() && !self.pipeline.progress.is_interrupted() => {
                    tracing::debug!(%error, "trying the next cache");
                    failed.push(found.cache);
                    first_error.get_or_insert(error);
                    if failed.len() < self.pipeline.caches.list().len() {
                        next = self.pipeline.caches.find_except(&wanted, &failed).ok();
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Err(first_error.unwrap_or(Error::Interrupted))
    }

    fn run_from(&self, found: &Found) -> Result<(), Error> {
        let (info, pipeline) = (&found.info, self.pipeline);
        // An earlier install may have completed it and then been killed: its bytes are hashed, not fetched again.
        let (store, path_info) = (pipeline.store, info.path_info(now()));
        let prepared = if self.register { store.prepare_to_register(&path_info) } else { store.prepare(&path_info) };
        let Prepared::Missing(incoming) = prepared? else {
            pipeline.progress.unpacked(info.nar_size);
            return Ok(());
        };
        self.fetch(found, *incoming)
    }

    /// As a valid path is exchanged that is broken. Its hash is the registered one, whatever the cache says.
    pub(super) fn repair(&self, found: &Found, info: &PathInfo) -> Result<(), Error> {
        if found.info.nar_hash != info.nar_hash {
            return Err(mismatch(found, "NarHash", found.info.nar_hash, info.nar_hash));
        }
        self.fetch(found, self.pipeline.store.prepare_repair(info)?)
    }

    fn fetch(&self, found: &Found, incoming: Incoming<'_>) -> Result<(), Error> {
        let (info, pipeline) = (&found.info, self.pipeline);
        let body = request(found)?;
        let span = pipeline.trace.begin();
        pipeline.cores.take(info.nar_size, self.number);
        pipeline.trace.end(span, Span::Wait);
        let result = self.unpack(found, body, incoming);
        pipeline.cores.give_back();
        result
    }

    /// With a core of its own: everything after the answer's head.
    fn unpack(&self, found: &Found, body: ResumingBody, mut incoming: Incoming<'_>) -> Result<(), Error> {
        let (info, pipeline) = (&found.info, self.pipeline);
        let around = Surroundings {
            cores: &pipeline.cores,
            progress: pipeline.progress,
            trace: pipeline.trace,
            size: info.nar_size,
            number: self.number,
        };
        let mut decoder = decode(found, body, &around, self.threads, None)?;
        let (nar_len, hashed) = self.pump(found, &mut decoder, &mut incoming)?;
        if nar_len != info.nar_size {
            return Err(mismatch(found, "NarSize", nar_len, info.nar_size));
        }
        check_file(found, decoder.source_mut(), hashed.nar)?;
        check_hashes(found, &hashed)?;
        incoming.commit_hashed(hashed.nar).map_err(|error| store_error(found, error))?;
        Ok(())
    }

    /// Decodes, hashes and unpacks until the end: bytes and hashes of the NAR.
    fn pump(
        &self,
        found: &Found,
        decoder: &mut Decoder<Input<'_>>,
        incoming: &mut Incoming<'_>,
    ) -> Result<(u64, Hashed), Error> {
        if self.threads > 1 {
            return self.pump_in_stages(found, decoder, incoming);
        }
        let (mut hashes, mut total) = (self.hashes(found), 0);
        let mut buffer = vec![0; OUTPUT_LEN];
        loop {
            let len = self.decode(found, decoder, &mut buffer, &mut total)?;
            if len == 0 {
                return Ok((total, hashes.finish()));
            }
            let bytes = buffer.get(..len).unwrap_or_default();
            let span = self.pipeline.trace.begin();
            hashes.update(bytes);
            self.pipeline.trace.end(span, Span::Hash);
            self.write(found, incoming, bytes)?;
        }
    }

    /// What is to be computed of its NAR.
    pub(super) fn hashes(&self, found: &Found) -> Hashes {
        Hashes::of(&found.info.path_info(0), self.pipeline.store.store_dir())
    }

    /// Decodes the next bytes; 0 at the end.
    pub(super) fn decode(
        &self,
        found: &Found,
        decoder: &mut Decoder<Input<'_>>,
        buffer: &mut [u8],
        total: &mut u64,
    ) -> Result<usize, Error> {
        if self.pipeline.progress.is_interrupted() {
            return Err(Error::Interrupted);
        }
        let span = self.pipeline.trace.begin();
        let len = decoder.read(buffer).map_err(|error| match decoder.source_mut().take_failure() {
            Some(failure) => failure.about(found),
            None => damaged(found, error.to_string()),
        })?;
        self.pipeline.trace.end(span, Span::Decompress);
        *total += len as u64;
        // A bomb ends here: not one byte more than NarSize is looked at.
        if *total > found.info.nar_size {
            return Err(mismatch(found, "NarSize", "more", found.info.nar_size));
        }
        Ok(len)
    }

    /// Unpacks the next bytes.
    pub(super) fn write(&self, found: &Found, incoming: &mut Incoming<'_>, bytes: &[u8]) -> Result<(), Error> {
        let span = self.pipeline.trace.begin();
        incoming.write_unhashed(bytes).map_err(|error| store_error(found, error))?;
        self.pipeline.trace.end(span, Span::Write);
        self.pipeline.progress.unpacked(bytes.len() as u64);
        Ok(())
    }
}

/// What is wrong with the NAR is the cache's fault; the rest is the store's.
fn store_error(found: &Found, error: LocalStoreError) -> Error {
    match error {
        LocalStoreError::Unpack { source: UnpackError::Nar(error), .. } => {
            damaged(found, format!("it is no valid NAR: {error}"))
        }
        LocalStoreError::Unpack { source: error @ UnpackError::PathTooLong, .. } => damaged(found, error.to_string()),
        LocalStoreError::Hash { expected, found: actual, .. } => mismatch(found, "NarHash", actual, expected),
        other => other.into(),
    }
}
