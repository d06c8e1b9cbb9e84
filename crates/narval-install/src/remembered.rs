//! What commands remember between their runs: files of JSON, each of which is replaced as a whole.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::Path;

use narval_files::TemporaryFile;
use serde::Serialize;
use serde::de::DeserializeOwned;

use narval_transfer::Error;

/// The beginning of temporary names beside the files.
const TEMPORARY: &str = ".narval-tmp-";

/// Reads a file of at most `len_max` bytes; without one, nothing is known yet. `advice` is for one that cannot be read.
pub(crate) fn read<T: DeserializeOwned + Default>(path: &Path, len_max: u64, advice: &str) -> Result<T, Error> {
    let fail = |error| Error::file("read", path, error);
    let len = match fs::metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(T::default()),
        found => found.map_err(fail)?.len(),
    };
    let damaged = |why: String| Error::Unresolved(format!("'{}' cannot be read ({why}){advice}", path.display()));
    if len > len_max {
        return Err(damaged(format!("more than {len_max} bytes")));
    }
    serde_json::from_slice(&fs::read(path).map_err(fail)?).map_err(|error| damaged(error.to_string()))
}

/// Replaces a file. It survives a power failure from then on.
pub(crate) fn write(path: &Path, value: &impl Serialize, mode: u32) -> Result<(), Error> {
    let folder = path.parent().unwrap_or(Path::new("/"));
    let text = serde_json::to_vec_pretty(value).map_err(|error| Error::file("write", path, error.into()))?;
    let written = TemporaryFile::create(folder, TEMPORARY, mode).and_then(|temporary| {
        temporary.file().write_all(&text)?;
        temporary.file().sync_all()?;
        temporary.persist(path)?;
        File::open(folder)?.sync_all()
    });
    written.map_err(|error| Error::file("write", path, error))
}
