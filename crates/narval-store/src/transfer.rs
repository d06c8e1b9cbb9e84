//! Sources and sinks of store paths. Installing, copying and pushing each use a source, a sink, and one walk between
//! them.

use std::collections::HashSet;
use std::fmt::Display;
use std::io::{self, Read, Write};

use narval_nix::nar::{Decoder, Event, NarError};
use narval_nix::{HashPart, NarInfo, PathInfo, StoreDir, StorePath};
use thiserror::Error;

use crate::hashes::{Hashed, Hashes};

/// Size of the buffer for NARs.
const BUFFER_LEN: usize = 256 * 1024;

/// A source of store paths: a store, or binary caches. Can be shared between threads.
pub trait Source: Sync {
    /// A path of this source: its metadata, and where its NAR is.
    type Entry: Send + Sync;
    /// Why the source failed.
    type Error: Send;

    /// The logical store directory.
    fn store_dir(&self) -> &StoreDir;

    /// The path with this hash part, or `None` if the source does not have it.
    ///
    /// # Errors
    /// If the source cannot be queried, or its answer is not acceptable.
    fn find(&self, hash_part: &HashPart) -> Result<Option<Self::Entry>, Self::Error>;

    /// The metadata of a path.
    fn info<'a>(&self, entry: &'a Self::Entry) -> &'a PathInfo;

    /// The narinfo of a path whose NAR the source stores as a file; `None` if the NAR is generated when it is read.
    fn narinfo<'a>(&self, entry: &'a Self::Entry) -> Option<&'a NarInfo>;

    /// Opens the NAR of a path.
    ///
    /// # Errors
    /// If the source no longer has the NAR, or cannot be queried.
    fn nar<'a>(
        &'a self,
        entry: &'a Self::Entry,
        how: NarOptions<'a>,
    ) -> Result<Box<dyn NarInput<Error = Self::Error> + 'a>, Self::Error>;

    /// Whether this source bounds the memory that decoding this path takes: it waits for memory where it needs some.
    fn limits_decoder_memory(&self, _entry: &Self::Entry) -> bool {
        false
    }

    /// The same path from elsewhere in this source, after `entry` failed; `None` if there is no other copy.
    fn fallback(&self, _entry: &Self::Entry, _error: &Self::Error) -> Option<Self::Entry> {
        None
    }
}

/// Options for reading a NAR.
pub struct NarOptions<'a> {
    /// The number of threads that may decompress it; at least one.
    pub threads: usize,
    /// Receives the file in which the source stores the NAR, byte for byte, as it is read. A source without
    /// [`narinfo`](Source::narinfo) writes nothing to it.
    pub file: Option<&'a mut (dyn Write + Send)>,
}

impl Default for NarOptions<'_> {
    fn default() -> Self {
        Self { threads: 1, file: None }
    }
}

/// A NAR that is being read, uncompressed. The reader must compute its hashes and call [`check`](Self::check): no byte
/// is verified before. [`VerifiedNar`] does both.
pub trait NarInput: Send {
    /// Why it cannot be read.
    type Error;

    /// Reads the next bytes; 0 at the end.
    ///
    /// # Errors
    /// If the source fails, or returns more bytes than the path's `NarSize`.
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize, Self::Error>;

    /// Checks a NAR that was read to its end: its length in bytes, its hashes, and the file it came from.
    ///
    /// # Errors
    /// If any of them does not match the path's metadata.
    fn check(&mut self, nar_len: u64, hashed: &Hashed) -> Result<(), Self::Error>;

    /// The error for a NAR that is invalid for another reason, such as a violation of the format.
    fn invalid(&self, reason: &dyn Display) -> Self::Error;
}

/// A NAR as a plain reader that returns the last bytes only if every check has passed.
pub struct VerifiedNar<'a, E> {
    nar: Box<dyn NarInput<Error = E> + 'a>,
    /// `None` once they are checked.
    hashes: Option<Hashes>,
    nar_size: u64,
    len: u64,
    failure: Option<&'a mut Option<E>>,
}

impl<'a, E> VerifiedNar<'a, E> {
    /// Reads the NAR of `info`. If a read fails, the error is stored in `failure`.
    pub fn new(
        nar: Box<dyn NarInput<Error = E> + 'a>,
        info: &PathInfo,
        store_dir: &StoreDir,
        failure: &'a mut Option<E>,
    ) -> Self {
        Self { failure: Some(failure), ..Self::begin(nar, info, store_dir) }
    }

    /// Reads the NAR of `info` to its end, and checks that it is valid. `take` gets each event, and the offset after
    /// it.
    ///
    /// # Errors
    /// If the NAR is invalid, and the errors of `take`.
    pub fn read_events(
        nar: Box<dyn NarInput<Error = E> + 'a>,
        info: &PathInfo,
        store_dir: &StoreDir,
        take: &mut dyn FnMut(Event<'_>, u64) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut nar = Self::begin(nar, info, store_dir);
        let invalid = |nar: &Self, error: NarError| nar.nar.invalid(&format_args!("it is not a valid NAR: {error}"));
        let (mut decoder, mut offset) = (Decoder::with_nar_size(info.nar_size), 0);
        let mut buffer = vec![0; BUFFER_LEN];
        loop {
            let len = nar.next(&mut buffer)?;
            let mut bytes = buffer.get(..len).unwrap_or_default();
            if bytes.is_empty() {
                return decoder.finish().map_err(|error| invalid(&nar, error));
            }
            loop {
                let (used, event) = decoder.next(bytes).map_err(|error| invalid(&nar, error))?;
                offset += used as u64;
                let Some(event) = event else { break };
                take(event, offset)?;
                bytes = bytes.get(used..).unwrap_or_default();
            }
        }
    }

    fn begin(nar: Box<dyn NarInput<Error = E> + 'a>, info: &PathInfo, store_dir: &StoreDir) -> Self {
        Self { nar, hashes: Some(Hashes::of(info, store_dir)), nar_size: info.nar_size, len: 0, failure: None }
    }

    fn next(&mut self, buffer: &mut [u8]) -> Result<usize, E> {
        let Some(hashes) = &mut self.hashes else { return Ok(0) };
        let len = self.nar.read(buffer)?;
        self.len += len as u64;
        hashes.update(buffer.get(..len).unwrap_or_default());
        if (len == 0 || self.len >= self.nar_size)
            && let Some(hashes) = self.hashes.take()
        {
            // A NAR that is too long only shows when reading past its last byte.
            let more = if len == 0 { 0 } else { self.nar.read(&mut [0])? };
            self.nar.check(self.len + more as u64, &hashes.finish())?;
        }
        Ok(len)
    }
}

impl<E> Read for VerifiedNar<'_, E> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        self.next(buffer).map_err(|error| {
            if let Some(failure) = &mut self.failure {
                **failure = Some(error);
            }
            io::Error::other("the source failed")
        })
    }
}

/// When the paths that are put into a [`Sink`] become visible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Visible {
    /// As soon as they are put, so they are put one after the other, each after its references.
    WhenPut,
    /// When they are committed, each as soon as its references are visible.
    OnceReferencesAre,
    /// With one commit of all of them.
    AtTheEnd,
}

/// A destination of store paths: a store, its daemon, or a binary cache. Can be shared between threads.
pub trait Sink: Sync {
    /// A path whose NAR the sink has, but which is not visible yet.
    type Put: Send;
    /// Why the sink failed.
    type Error: Send;

    /// When paths become visible.
    const VISIBLE: Visible;

    /// Returns those of the paths that the sink does not have.
    ///
    /// # Errors
    /// If the sink cannot be queried.
    fn missing(&self, paths: &[&StorePath]) -> Result<HashSet<StorePath>, Self::Error>;

    /// Stores the NAR of one path after verifying it, on up to `threads` threads.
    ///
    /// # Errors
    /// If the NAR cannot be read, does not match its metadata, or cannot be written.
    fn put<S: Source>(
        &self,
        source: &S,
        entry: &S::Entry,
        threads: usize,
    ) -> Result<Self::Put, TransferError<S::Error, Self::Error>>;

    /// Stores the NARs of several paths, each after its references, and makes each visible immediately.
    ///
    /// # Errors
    /// For the first path that fails. Those before it may be visible.
    fn put_in_order<S: Source>(
        &self,
        source: &S,
        entries: &[S::Entry],
    ) -> Result<(), InOrderError<S::Error, Self::Error>> {
        for (at, entry) in entries.iter().enumerate() {
            let failed = |error| InOrderError { at: Some(at), error };
            let put = self.put(source, entry, 1).map_err(failed)?;
            self.commit(vec![put]).map_err(|error| failed(TransferError::Sink(error)))?;
        }
        Ok(())
    }

    /// Makes paths visible. Within one commit, each path must follow its references.
    ///
    /// Returns the paths that are not visible because another process changed them after they were put, in the same
    /// order; [put them in order](Sink::put_in_order).
    ///
    /// # Errors
    /// If the sink cannot be written to, or a path refers to one that it does not have.
    fn commit(&self, put: Vec<Self::Put>) -> Result<Vec<StorePath>, Self::Error>;
}

/// Why a path could not be copied from a source to a sink.
#[derive(Debug, Error)]
pub enum TransferError<S, K> {
    /// The source failed, or returned invalid data.
    #[error(transparent)]
    Source(S),
    /// The sink failed.
    #[error(transparent)]
    Sink(K),
}

impl<S, K> TransferError<S, K> {
    /// The same with another error of the sink.
    pub fn map_sink<L>(self, map: impl FnOnce(K) -> L) -> TransferError<S, L> {
        match self {
            Self::Source(error) => TransferError::Source(error),
            Self::Sink(error) => TransferError::Sink(map(error)),
        }
    }
}

/// Why not all paths could be put in order.
#[derive(Debug)]
pub struct InOrderError<S, K> {
    /// The index of the path that failed, if it is known.
    pub at: Option<usize>,
    /// Why.
    pub error: TransferError<S, K>,
}
