//! The input of a decoder: the download, counted and hashed. The core is returned while it waits for the network.

use std::io::{self, BufRead, Read, Write};
use std::time::{Duration, Instant};

use narval_nix::Sha256;
use narval_nix::hash::Sha256Hasher;

use crate::delta::Download;
use narval_cache::{CacheFile, TrustedNarInfo};
use narval_client::HttpError;
use narval_codec::decode::INPUT_LEN;
use narval_transfer::Core;
use narval_transfer::{Error, Progress, TIMELINE};
use tracing::trace_span;

/// How many bytes of a file are read beyond twice the size of its NAR. No compression doubles its input, and an endless
/// file without output (empty frames) must be stopped. `FileSize` cannot be the limit: no signature covers it.
const OVERHEAD_LEN_MAX: u64 = 64 * 1024 * 1024;

/// Why an [`Input`] ended too early.
pub(crate) enum Failure {
    /// The download failed.
    Http(HttpError),
    /// The copy of the file cannot be written.
    Copy(io::Error),
}

impl Failure {
    pub(crate) fn about(self, found: &TrustedNarInfo) -> Error {
        match self {
            Self::Http(error) => found.cache.fetch_error(found.info.path.base_name(), error).into(),
            Self::Copy(source) => Error::Copy { path: found.info.path.clone(), source },
        }
    }
}

pub(crate) struct Input<'a> {
    body: CacheFile,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// `None` if the file's hash is not needed.
    hasher: Option<Sha256Hasher>,
    received: u64,
    /// The limit of received bytes.
    limit: u64,
    copy_to: Option<&'a mut (dyn Write + Send)>,
    pace: Option<Download<'a>>,
    core: Core<'a>,
    progress: &'a Progress,
    failure: Option<Failure>,
}

impl<'a> Input<'a> {
    /// The bytes of `body`, limited to what a NAR of `nar_size` bytes may take. `hashes`: whether to hash them.
    pub(crate) fn new(body: CacheFile, hashes: bool, nar_size: u64, core: Core<'a>, progress: &'a Progress) -> Self {
        let hasher = hashes.then(Sha256Hasher::new);
        let buffer = vec![0; INPUT_LEN];
        Self {
            body,
            buffer,
            start: 0,
            end: 0,
            hasher,
            received: 0,
            limit: nar_size.saturating_mul(2).saturating_add(OVERHEAD_LEN_MAX),
            copy_to: None,
            pace: None,
            core,
            progress,
            failure: None,
        }
    }

    /// Also writes all further bytes to `to`.
    pub(crate) fn copy_to(&mut self, to: Option<&'a mut (dyn Write + Send)>) {
        self.copy_to = to;
    }

    /// Also measures how fast the bytes arrive.
    pub(crate) fn measure(&mut self, download: Option<Download<'a>>) {
        self.pace = download;
    }

    pub(crate) const fn received_len(&self) -> u64 {
        self.received
    }

    /// The cause of the `io::Error` that a decoder passed on, if it came from here.
    pub(crate) const fn take_failure(&mut self) -> Option<Failure> {
        self.failure.take()
    }

    /// Whether bytes follow those that the decoder consumed. Reads at most one buffer.
    pub(crate) fn has_more(&mut self) -> io::Result<bool> {
        Ok(!self.fill_buf()?.is_empty())
    }

    pub(crate) fn file_hash(&mut self) -> Option<Sha256> {
        self.hasher.take().map(Sha256Hasher::finish)
    }

    fn receive(&mut self) -> io::Result<usize> {
        let fetching = trace_span!(target: TIMELINE, "fetch").entered();
        let mut waited = Duration::ZERO;
        let read = if self.body.is_readable() {
            self.body.read_some(&mut self.buffer)
        } else {
            self.core.lend(|| {
                let begun = Instant::now();
                let read = self.body.read_some(&mut self.buffer);
                waited = begun.elapsed();
                read
            })
        };
        drop(fetching);
        if let (Some(pace), Ok(len)) = (&mut self.pace, &read) {
            pace.received(*len, waited);
        }
        read.map_err(|error| {
            let passed_on = io::Error::other(error.to_string());
            self.failure = Some(Failure::Http(error));
            passed_on
        })
    }
}

impl BufRead for Input<'_> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.start == self.end {
            let len = self.receive()?;
            (self.start, self.end) = (0, len);
            self.received += len as u64;
            self.progress.downloaded(len as u64);
            if self.received > self.limit {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "the file is much longer than its NAR"));
            }
            if let Some(to) = &mut self.copy_to
                && let Err(error) = to.write_all(self.buffer.get(..len).unwrap_or_default())
            {
                let passed_on = io::Error::new(error.kind(), error.to_string());
                self.failure = Some(Failure::Copy(error));
                return Err(passed_on);
            }
            if let Some(hasher) = &mut self.hasher {
                hasher.update(self.buffer.get(..len).unwrap_or_default());
            }
        }
        Ok(self.buffer.get(self.start..self.end).unwrap_or_default())
    }

    fn consume(&mut self, len: usize) {
        self.start = (self.start + len).min(self.end);
    }
}

impl Read for Input<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let available = self.fill_buf()?;
        let len = available.len().min(out.len());
        if let (Some(to), Some(from)) = (out.get_mut(..len), available.get(..len)) {
            to.copy_from_slice(from);
        }
        self.consume(len);
        Ok(len)
    }
}
