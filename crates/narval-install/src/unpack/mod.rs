//! Unpacking: a local store as a sink. A path is unpacked under a temporary name, renamed once every check has passed,
//! and becomes valid at the end with all the others.

mod stages;

use std::collections::HashSet;

use narval_nix::{PathInfo, StorePath};
use narval_store::{
    Hashed, Hashes, InOrderError, Incoming, LocalStore, LocalStoreError, NarInput, NarOptions, Prepared, Sink, Source,
    TransferError, UnpackError, Visible,
};
use tracing::trace_span;

use narval_transfer::{Error, TIMELINE};

/// The maximum number of NARs fetched at the same time: half of the connections to an origin.
pub const DOWNLOADS_MAX: usize = 32;

/// Size of the buffer for NARs.
const BUFFER_LEN: usize = narval_codec::decode::OUTPUT_LEN;

/// A local store that is written to.
pub(crate) struct ToStore<'a> {
    pub(crate) store: &'a LocalStore,
    /// Whether everything is synced to disk before it becomes valid.
    pub(crate) durable: bool,
}

type PutError<S> = TransferError<<S as Source>::Error, Error>;

impl Sink for ToStore<'_> {
    type Put = PathInfo;
    type Error = Error;

    const VISIBLE: Visible = Visible::AtTheEnd;

    fn missing(&self, paths: &[&StorePath]) -> Result<HashSet<StorePath>, Error> {
        let mut missing = HashSet::new();
        for path in paths {
            // Also existing ones: they must not be collected before the paths that refer to them are valid.
            self.store.keep(path)?;
            if !self.store.database().is_valid(path)? {
                missing.insert((*path).clone());
            }
        }
        Ok(missing)
    }

    fn put<S: Source>(&self, source: &S, entry: &S::Entry, threads: usize) -> Result<PathInfo, PutError<S>> {
        let info = source.info(entry);
        // An earlier run may have completed it and then been killed: it is hashed, not fetched again.
        if let Prepared::Missing(incoming) = self.store.prepare(info).map_err(sink_error)? {
            self.receive(source, entry, *incoming, threads)?;
        }
        Ok(info.clone())
    }

    fn put_in_order<S: Source>(&self, source: &S, entries: &[S::Entry]) -> Result<(), InOrderError<S::Error, Error>> {
        for (at, entry) in entries.iter().enumerate() {
            let failed = |error| InOrderError { at: Some(at), error };
            let prepared = self.store.prepare_to_register(source.info(entry));
            if let Prepared::Missing(incoming) = prepared.map_err(|error| failed(sink_error(error)))? {
                self.receive(source, entry, *incoming, 1).map_err(failed)?;
            }
        }
        Ok(())
    }

    fn commit(&self, put: Vec<PathInfo>) -> Result<Vec<StorePath>, Error> {
        if self.durable {
            self.store.sync()?;
        }
        Ok(self.store.register_unchanged(&put)?.into_iter().map(|left| left.info.path).collect())
    }
}

impl ToStore<'_> {
    /// Fetches a valid path that is damaged, and replaces it.
    pub(crate) fn repair<S: Source>(&self, source: &S, entry: &S::Entry) -> Result<(), PutError<S>> {
        let incoming = self.store.prepare_repair(source.info(entry)).map_err(sink_error)?;
        self.receive(source, entry, incoming, 1)
    }

    /// Reads, hashes, unpacks and checks a NAR, and renames the path.
    fn receive<S: Source>(
        &self,
        source: &S,
        entry: &S::Entry,
        mut incoming: Incoming<'_>,
        threads: usize,
    ) -> Result<(), PutError<S>> {
        let mut nar = source.nar(entry, NarOptions { threads, file: None }).map_err(TransferError::Source)?;
        let hashes = Hashes::of(source.info(entry), source.store_dir());
        let pumped = match threads {
            ..=1 => self.pump(&mut *nar, hashes, &mut incoming),
            _ => self.pump_in_stages(&mut *nar, hashes, &mut incoming),
        };
        let (nar_len, hashed) = pumped.map_err(|error| error.about(&*nar))?;
        nar.check(nar_len, &hashed).map_err(TransferError::Source)?;
        incoming.commit_hashed(hashed.nar).map_err(|error| Failure::Store(error).about(&*nar))?;
        Ok(())
    }

    /// Reads, hashes and unpacks a NAR to its end. Returns its size and hashes.
    fn pump<E>(
        &self,
        nar: &mut dyn NarInput<Error = E>,
        mut hashes: Hashes,
        incoming: &mut Incoming<'_>,
    ) -> Result<(u64, Hashed), Failure<E>> {
        let (mut buffer, mut total) = (vec![0; BUFFER_LEN], 0);
        loop {
            let len = nar.read(&mut buffer).map_err(Failure::Source)?;
            if len == 0 {
                return Ok((total, hashes.finish()));
            }
            total += len as u64;
            let bytes = buffer.get(..len).unwrap_or_default();
            hash(&mut hashes, bytes);
            write(incoming, bytes).map_err(Failure::Store)?;
        }
    }
}

fn hash(hashes: &mut Hashes, bytes: &[u8]) {
    let _hashing = trace_span!(target: TIMELINE, "hash").entered();
    hashes.update(bytes);
}

fn write(incoming: &mut Incoming<'_>, bytes: &[u8]) -> Result<(), LocalStoreError> {
    let _writing = trace_span!(target: TIMELINE, "write").entered();
    incoming.write_unhashed(bytes)
}

/// Why a NAR was not unpacked.
enum Failure<E> {
    Source(E),
    Store(LocalStoreError),
    /// A thread has panicked.
    Died,
}

impl<E> Failure<E> {
    /// Errors in the NAR are the source's; others are the store's.
    fn about(self, nar: &dyn NarInput<Error = E>) -> TransferError<E, Error> {
        match self {
            Self::Source(error) => TransferError::Source(error),
            Self::Store(LocalStoreError::Unpack { source: UnpackError::Nar(error), .. }) => {
                TransferError::Source(nar.invalid(&format_args!("it is not a valid NAR: {error}")))
            }
            Self::Store(LocalStoreError::Unpack { source: error @ UnpackError::PathTooLong, .. }) => {
                TransferError::Source(nar.invalid(&error))
            }
            Self::Store(error) => sink_error(error),
            Self::Died => TransferError::Sink(Error::Died),
        }
    }
}

fn sink_error<S>(error: LocalStoreError) -> TransferError<S, Error> {
    TransferError::Sink(error.into())
}
