//! Stores as source and sink.

use std::collections::HashSet;
use std::io::{self, ErrorKind, Read, Write};

use narval_nix::{NarInfo, PathInfo, StoreDir, StorePath};

use super::{LocalStore, LocalStoreError, Prepared};
use crate::hashes::Hashes;
use crate::nar::NarReader;
use crate::transfer::{Sink, Source, TransferError, Visible};
use crate::{Store, StoreError};

/// Bytes of a NAR read at once.
const BUFFER_LEN: usize = 256 * 1024;

impl Source for Store {
    type Entry = PathInfo;
    type Error = StoreError;

    fn store_dir(&self) -> &StoreDir {
        Self::store_dir(self)
    }

    fn info<'a>(&self, entry: &'a PathInfo) -> &'a PathInfo {
        entry
    }

    fn narinfo<'a>(&self, _: &'a PathInfo) -> Option<&'a NarInfo> {
        None
    }

    fn nar<'a>(
        &'a self,
        entry: &'a PathInfo,
        _: Option<&'a mut (dyn Write + Send)>,
    ) -> Result<Box<dyn Read + Send + 'a>, StoreError> {
        let path = self.real_path(&entry.path);
        let nar = NarReader::open(&path);
        Ok(Box::new(nar.map_err(|error| StoreError::io("read", &path, io::Error::from(error)))?))
    }
}

/// A path is valid as soon as it has been put.
impl Sink for LocalStore {
    type Put = ();
    type Error = LocalStoreError;

    const VISIBLE: Visible = Visible::WhenPut;

    fn missing(&self, paths: &[&PathInfo]) -> Result<HashSet<StorePath>, LocalStoreError> {
        let mut missing = HashSet::new();
        for info in paths {
            // Also those that are there: they must not be collected before what refers to them is valid.
            self.keep(&info.path)?;
            if !self.reader.is_valid(&info.path)? {
                missing.insert(info.path.clone());
            }
        }
        Ok(missing)
    }

    fn put<S: Source>(&self, source: &S, entry: &S::Entry) -> Result<(), TransferError<S::Error, LocalStoreError>> {
        let info = source.info(entry);
        let Prepared::Missing(mut incoming) = self.prepare_to_register(info).map_err(TransferError::Sink)? else {
            return Ok(());
        };
        let mut nar = source.nar(entry, None).map_err(TransferError::Source)?;
        let (mut hashes, mut buffer) = (Hashes::of(info, source.store_dir()), vec![0; BUFFER_LEN]);
        loop {
            let len = match nar.read(&mut buffer) {
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                read => read.map_err(TransferError::Nar)?,
            };
            let bytes = buffer.get(..len).unwrap_or_default();
            if bytes.is_empty() {
                break;
            }
            hashes.update(bytes);
            incoming.write_unhashed(bytes).map_err(TransferError::Sink)?;
        }
        let hashed = hashes.finish();
        if hashed.nar != info.nar_hash || !hashed.fits_the_name() {
            return Err(TransferError::Changed);
        }
        incoming.commit_hashed(hashed.nar).map_err(TransferError::Sink)?;
        Ok(())
    }

    fn commit(&self, _: Vec<()>) -> Result<(), LocalStoreError> {
        Ok(())
    }
}
