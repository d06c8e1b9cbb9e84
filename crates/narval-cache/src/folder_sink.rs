//! A cache folder as a sink.

use std::collections::HashSet;
use std::io::{self, ErrorKind, Read, Write};

use narval_nix::{NarInfo, PathInfo, SecretKey, StorePath};
use narval_store::{Sink, Source, TransferError, Visible};

use crate::encode::{EncodeError, Encoding};
use crate::{CacheFolder, CacheFolderError};

/// Bytes of a NAR read at once.
const BUFFER_LEN: usize = 256 * 1024;

/// A [`CacheFolder`] that is written to. Made by [`CacheFolder::sink`].
#[derive(Clone, Copy)]
pub struct FolderSink<'a> {
    pub(crate) folder: &'a CacheFolder,
    pub(crate) encoding: Encoding,
    pub(crate) key: Option<&'a SecretKey>,
}

impl Sink for FolderSink<'_> {
    type Put = NarInfo;
    type Error = CacheFolderError;

    const VISIBLE: Visible = Visible::OnceReferencesAre;

    fn missing(&self, paths: &[&PathInfo]) -> Result<HashSet<StorePath>, CacheFolderError> {
        let mut missing = HashSet::new();
        for info in paths {
            let found = self.folder.narinfo(&info.path.hash_part())?;
            if found.is_none_or(|found| found.path != info.path) {
                missing.insert(info.path.clone());
            }
        }
        Ok(missing)
    }

    fn put<S: Source>(
        &self,
        source: &S,
        entry: &S::Entry,
    ) -> Result<NarInfo, TransferError<S::Error, CacheFolderError>> {
        let mut file = self.folder.write_nar().map_err(TransferError::Sink)?;
        let mut narinfo = match source.narinfo(entry) {
            Some(kept) => {
                let nar = source.nar(entry, Some(&mut file)).map_err(TransferError::Source)?;
                read_to_end(nar).map_err(TransferError::Nar)?;
                kept.clone()
            }
            None => {
                let info = source.info(entry);
                let mut nar = source.nar(entry, None).map_err(TransferError::Source)?;
                let mut write = |bytes: &[u8]| file.write_all(bytes);
                let encoded = self.encoding.encode(&mut nar, info.nar_size, info.nar_hash, &mut write);
                encoded.map_err(|error| match error {
                    EncodeError::Corrupt => TransferError::Changed,
                    EncodeError::Nar(error) if error.kind() == ErrorKind::UnexpectedEof => TransferError::Changed,
                    EncodeError::Nar(error) => TransferError::Nar(error),
                    EncodeError::Sink(error) => TransferError::Sink(self.folder.write_error(error)),
                })?;
                let mut made = NarInfo::new(info, "", self.encoding.compression());
                let fingerprint = info.fingerprint(source.store_dir());
                made.signatures.extend(self.key.map(|key| key.sign(fingerprint.as_bytes())));
                made
            }
        };
        let written = file.commit(narinfo.compression).map_err(TransferError::Sink)?;
        narinfo.url = written.url;
        (narinfo.file_hash, narinfo.file_size) = (Some(written.file_hash.into()), Some(written.file_size));
        Ok(narinfo)
    }

    fn commit(&self, put: Vec<NarInfo>) -> Result<(), CacheFolderError> {
        put.iter().try_for_each(|info| self.folder.write_narinfo(info))
    }
}

/// Reads a NAR that its source verifies, for the sake of its file.
fn read_to_end(mut nar: impl Read) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER_LEN];
    loop {
        match nar.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Err(error) if error.kind() != ErrorKind::Interrupted => return Err(error),
            _ => {}
        }
    }
}
