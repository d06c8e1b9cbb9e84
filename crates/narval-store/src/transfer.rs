//! Where store paths come from and where they go: sources and sinks. Copying and pushing are a source, a sink, and a walk
//! between them.

use std::collections::HashSet;
use std::io::{self, Read, Write};

use narval_nix::{NarInfo, PathInfo, StoreDir, StorePath};
use thiserror::Error;

/// A place that store paths are taken from: a store, or binary caches. Shared by threads.
pub trait Source: Sync {
    /// A path of this source: what is known of it, and where its NAR is.
    type Entry: Send + Sync;
    /// Why the source failed.
    type Error: Send;

    /// The logical store directory.
    fn store_dir(&self) -> &StoreDir;

    /// What is known of a path.
    fn info<'a>(&self, entry: &'a Self::Entry) -> &'a PathInfo;

    /// The narinfo of a path whose NAR the source keeps in a file; `None` if the NAR is made when it is read.
    fn narinfo<'a>(&self, entry: &'a Self::Entry) -> Option<&'a NarInfo>;

    /// Reads the NAR, uncompressed. `file` receives the file in which the source keeps it, byte for byte.
    ///
    /// A source that keeps NARs in files verifies them: the reader returns the last bytes only if every check has passed.
    /// Of another source the reader of the NAR checks the hash.
    ///
    /// # Errors
    /// If the source does not have the NAR any more, or cannot be asked. Later failures are errors of the reader.
    fn nar<'a>(
        &'a self,
        entry: &'a Self::Entry,
        file: Option<&'a mut (dyn Write + Send)>,
    ) -> Result<Box<dyn Read + Send + 'a>, Self::Error>;
}

/// When the paths that a [`Sink`] takes become visible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Visible {
    /// As soon as they are put, and so they are put one after the other, each after what it refers to.
    WhenPut,
    /// When they are committed, each as soon as all that it refers to is visible.
    OnceReferencesAre,
    /// By one commit of all of them.
    AtTheEnd,
}

/// A place that store paths are copied to: a store, its daemon, or a binary cache. Shared by threads.
pub trait Sink: Sync {
    /// A path whose NAR the sink has and that is not visible yet.
    type Put: Send;
    /// Why the sink failed.
    type Error: Send;

    /// When paths become visible.
    const VISIBLE: Visible;

    /// Which of these paths the sink does not have.
    ///
    /// # Errors
    /// If the sink cannot be asked.
    fn missing(&self, paths: &[&PathInfo]) -> Result<HashSet<StorePath>, Self::Error>;

    /// Takes the NAR of one path, verified against `NarHash` and `NarSize`.
    ///
    /// # Errors
    /// If the NAR cannot be read, is not what the source has registered, or cannot be written.
    fn put<S: Source>(&self, source: &S, entry: &S::Entry) -> Result<Self::Put, TransferError<S::Error, Self::Error>>;

    /// Takes the NARs of several paths, each of which comes after what it refers to: for [`Visible::WhenPut`].
    ///
    /// # Errors
    /// As [`Sink::put`], for the first path that fails. Those before it may be visible.
    fn put_in_order<S: Source>(
        &self,
        source: &S,
        entries: &[S::Entry],
    ) -> Result<(), TransferError<S::Error, Self::Error>> {
        entries.iter().try_for_each(|entry| self.put(source, entry).map(drop))
    }

    /// Makes paths visible. Those that are committed together come in an order in which each follows what it refers to.
    ///
    /// # Errors
    /// If the sink cannot be written to, or a path refers to one that it does not have.
    fn commit(&self, put: Vec<Self::Put>) -> Result<(), Self::Error>;
}

/// Why a path did not get from a source to a sink.
#[derive(Debug, Error)]
pub enum TransferError<S, K> {
    /// The source failed.
    #[error(transparent)]
    Source(S),
    /// Reading the NAR failed.
    #[error("cannot read the NAR: {0}")]
    Nar(io::Error),
    /// The NAR does not have the hash or the size that is registered for it.
    #[error("the NAR is not the registered one")]
    Changed,
    /// The sink failed.
    #[error(transparent)]
    Sink(K),
}

impl<S, K> TransferError<S, K> {
    /// The same with another error of the sink.
    pub fn map_sink<L>(self, map: impl FnOnce(K) -> L) -> TransferError<S, L> {
        match self {
            Self::Source(error) => TransferError::Source(error),
            Self::Nar(error) => TransferError::Nar(error),
            Self::Changed => TransferError::Changed,
            Self::Sink(error) => TransferError::Sink(map(error)),
        }
    }
}
