//! The files of a folder that are worth compressing.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::files::mime;

/// Smaller files gain nothing: head and framing outweigh the savings.
const FILE_BYTES_MIN: u64 = 256;
/// The deepest folder that is visited.
pub(super) const DEPTH_MAX: usize = 64;

/// A file to compress.
pub(super) struct Source {
    /// Relative to the root.
    pub(super) path: PathBuf,
    pub(super) size: u64,
    pub(super) modified: SystemTime,
    pub(super) mode: u32,
}

/// Finds the compressible files below a folder.
pub(super) fn collect(root: &Path, below: &Path, depth: usize, sources: &mut Vec<Source>) -> io::Result<()> {
    let folder = root.join(below);
    let named = |error: io::Error| named("cannot read", &folder, &error);
    for entry in fs::read_dir(&folder).map_err(named)? {
        let entry = entry.map_err(named)?;
        let path = below.join(entry.file_name());
        // Of the entry itself: links are not followed, so nothing outside is read and there are no loops.
        let meta = match entry.metadata() {
            // Other processes rename and remove files here: their unfinished encodings, for one.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            meta => meta.map_err(named)?,
        };
        if meta.is_dir() && depth > 0 {
            collect(root, &path, depth - 1, sources)?;
        }
        let compressible = mime::of(&path).to_str().is_ok_and(mime::is_compressible);
        if meta.is_file() && meta.len() >= FILE_BYTES_MIN && compressible {
            sources.push(Source {
                path,
                size: meta.len(),
                modified: meta.modified()?,
                mode: meta.permissions().mode() & 0o777,
            });
        }
    }
    Ok(())
}

/// An I/O error that names its file.
pub(super) fn named(what: &str, path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{what} '{}': {error}", path.display()))
}
