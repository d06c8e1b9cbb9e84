//! A cache folder as a sink.

use std::collections::HashSet;

use narval_nix::{NarInfo, SecretKey, StorePath};
use narval_store::{Sink, Source, TransferError, Visible};

use crate::folder::{CacheFolder, CacheFolderError};
use narval_codec::encode::{Encoding, write_nar};

/// Writes to a [`CacheFolder`]; see [`CacheFolder::sink`].
#[derive(Clone, Copy)]
pub struct FolderSink<'a> {
    folder: &'a CacheFolder,
    encoding: Encoding,
    key: Option<&'a SecretKey>,
    on_written: Option<&'a (dyn Fn(u64) + Sync)>,
}

impl CacheFolder {
    /// A sink that writes NARs of a store in this encoding, and signs with `key`. NARs that a source stores as files
    /// are copied unchanged.
    pub const fn sink<'a>(&'a self, encoding: Encoding, key: Option<&'a SecretKey>) -> FolderSink<'a> {
        FolderSink { folder: self, encoding, key, on_written: None }
    }
}

impl<'a> FolderSink<'a> {
    /// Calls this function with the length of each written file, in bytes.
    pub const fn counted_by(self, on_written: &'a (dyn Fn(u64) + Sync)) -> Self {
        Self { on_written: Some(on_written), ..self }
    }
}

impl Sink for FolderSink<'_> {
    type Put = NarInfo;
    type Error = CacheFolderError;

    const VISIBLE: Visible = Visible::OnceReferencesAre;

    fn missing(&self, paths: &[&StorePath]) -> Result<HashSet<StorePath>, CacheFolderError> {
        let mut missing = HashSet::new();
        for path in paths {
            let found = self.folder.narinfo(&path.hash_part())?;
            if found.is_none_or(|found| found.path != **path) {
                missing.insert((*path).clone());
            }
        }
        Ok(missing)
    }

    fn put<S: Source>(
        &self,
        source: &S,
        entry: &S::Entry,
        _threads: usize,
    ) -> Result<NarInfo, TransferError<S::Error, CacheFolderError>> {
        let mut file = self.folder.write_nar().map_err(TransferError::Sink)?;
        let written = write_nar(source, entry, (self.encoding, self.key), &mut file);
        let mut narinfo = written.map_err(|error| error.map_sink(|error| self.folder.write_error(error)))?;
        let written = file.commit(narinfo.compression).map_err(TransferError::Sink)?;
        if let Some(on_written) = self.on_written {
            on_written(written.file_size);
        }
        narinfo.url = written.url;
        (narinfo.file_hash, narinfo.file_size) = (Some(written.file_hash.into()), Some(written.file_size));
        Ok(narinfo)
    }

    fn commit(&self, put: Vec<NarInfo>) -> Result<Vec<StorePath>, CacheFolderError> {
        put.iter().try_for_each(|info| self.folder.write_narinfo(info))?;
        Ok(Vec::new())
    }
}
