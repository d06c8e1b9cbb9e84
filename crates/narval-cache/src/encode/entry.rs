//! The NAR of a source's path, as a file of a cache.

use std::io::{self, ErrorKind, Read, Write};

use narval_nix::{NarInfo, SecretKey};
use narval_store::{Source, TransferError};

use super::{EncodeError, Encoding};

/// Bytes of a NAR read at once.
const BUFFER_LEN: usize = 256 * 1024;

/// Writes the NAR of a path to `to`: the file as the source keeps it, or else in this encoding and signed with `key`. Returns
/// its narinfo, which lacks what only the file tells: `URL`, and of a NAR that was encoded `FileHash` and `FileSize`.
///
/// # Errors
/// If the NAR cannot be read, is not the registered one, or cannot be written.
pub fn write_nar<S: Source>(
    source: &S,
    entry: &S::Entry,
    (encoding, key): (Encoding, Option<&SecretKey>),
    to: &mut (dyn Write + Send),
) -> Result<NarInfo, TransferError<S::Error, io::Error>> {
    if let Some(kept) = source.narinfo(entry) {
        let nar = source.nar(entry, Some(to)).map_err(TransferError::Source)?;
        read_to_end(nar).map_err(TransferError::Nar)?;
        return Ok(kept.clone());
    }
    let info = source.info(entry);
    let mut nar = source.nar(entry, None).map_err(TransferError::Source)?;
    let encoded = encoding.encode(&mut nar, info.nar_size, info.nar_hash, &mut |bytes| to.write_all(bytes));
    encoded.map_err(|error| match error {
        EncodeError::Corrupt => TransferError::Changed,
        EncodeError::Nar(error) if error.kind() == ErrorKind::UnexpectedEof => TransferError::Changed,
        EncodeError::Nar(error) => TransferError::Nar(error),
        EncodeError::Sink(error) => TransferError::Sink(error),
    })?;
    let mut made = NarInfo::new(info, "", encoding.compression());
    made.signatures.extend(key.map(|key| key.sign(info.fingerprint(source.store_dir()).as_bytes())));
    Ok(made)
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
