//! The NAR of a source's path, as a file of a cache.

use std::io::{self, ErrorKind, Read, Write};

use narval_nix::{NarInfo, SecretKey};
use narval_store::{NarInput, NarOptions, Source, TransferError, VerifiedNar};

use super::{EncodeError, Encoding};

/// Writes the NAR of a path to `to`: the source's own file, if it has one, or else in this encoding and signed with
/// `key`. Returns its narinfo without the fields that depend on the file: `URL`, and for an encoded NAR also `FileHash`
/// and `FileSize`.
///
/// # Errors
/// If the NAR cannot be read, does not match its metadata, or cannot be written.
pub fn write_nar<S: Source>(
    source: &S,
    entry: &S::Entry,
    (encoding, key): (Encoding, Option<&SecretKey>),
    to: &mut (dyn Write + Send),
) -> Result<NarInfo, TransferError<S::Error, io::Error>> {
    let info = source.info(entry);
    if let Some(kept) = source.narinfo(entry) {
        let nar = source.nar(entry, NarOptions { threads: 1, file: Some(to) }).map_err(TransferError::Source)?;
        let read = VerifiedNar::read_events(nar, info, source.store_dir(), &mut |_, _| Ok(()));
        return read.map(|()| kept.clone()).map_err(TransferError::Source);
    }
    let nar = source.nar(entry, NarOptions::default()).map_err(TransferError::Source)?;
    let mut nar = Plain { nar, failure: None };
    let encoded = encoding.encode(&mut nar, info.nar_size, info.nar_hash, &mut |bytes| to.write_all(bytes));
    if let Err(error) = encoded {
        return Err(match (nar.failure.take(), error) {
            (Some(error), _) => TransferError::Source(error),
            (None, EncodeError::Corrupt) => TransferError::Source(nar.nar.invalid(&"it has another hash")),
            (None, EncodeError::Nar(error)) if error.kind() == ErrorKind::UnexpectedEof => {
                TransferError::Source(nar.nar.invalid(&"it is truncated"))
            }
            (None, EncodeError::Nar(error) | EncodeError::Sink(error)) => TransferError::Sink(error),
        });
    }
    let mut made = NarInfo::new(info, "", encoding.compression());
    let signed = key.map(|key| key.sign(info.fingerprint(source.store_dir()).as_bytes())).transpose();
    made.signatures.extend(signed.map_err(|error| TransferError::Sink(io::Error::other(error)))?);
    Ok(made)
}

/// A NAR as a plain reader. Its hash is checked by the encoder.
struct Plain<'a, E> {
    nar: Box<dyn NarInput<Error = E> + 'a>,
    failure: Option<E>,
}

impl<E> Read for Plain<'_, E> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.nar.read(buffer).map_err(|error| {
            self.failure = Some(error);
            io::Error::other("the source failed")
        })
    }
}
