//! The files of a folder in which others write at the same time.

use std::ffi::OsString;
use std::fs::{self, Metadata};
use std::io::{self, ErrorKind};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use narval_http::files::{content_type, is_compressible};

/// Smaller files gain nothing: head and framing outweigh the savings.
const FILE_BYTES_MIN: u64 = 256;
/// The deepest folder that is visited.
const DEPTH_MAX: usize = 64;

/// A file to compress.
pub(super) struct Source {
    /// Relative to the root.
    pub(super) path: PathBuf,
    pub(super) size: u64,
    pub(super) modified: SystemTime,
    pub(super) mode: u32,
}

/// Finds the compressible files below a folder.
pub(super) fn compressible(root: &Path) -> io::Result<Vec<Source>> {
    let mut sources = Vec::new();
    walk(root, &mut |path, meta| {
        let (size, mode) = (meta.len(), meta.permissions().mode() & 0o777);
        if size >= FILE_BYTES_MIN && content_type(&path).to_str().is_ok_and(is_compressible) {
            sources.push(Source { path, size, modified: meta.modified()?, mode });
        }
        Ok(())
    })?;
    Ok(sources)
}

/// Calls `visit` for each file below a folder, with its path relative to that.
pub(super) fn walk(root: &Path, visit: &mut dyn FnMut(PathBuf, &Metadata) -> io::Result<()>) -> io::Result<()> {
    walk_below(root, Path::new(""), DEPTH_MAX, visit)
}

fn walk_below(
    root: &Path,
    below: &Path,
    depth: usize,
    visit: &mut dyn FnMut(PathBuf, &Metadata) -> io::Result<()>,
) -> io::Result<()> {
    let folder = root.join(below);
    let named = |error: io::Error| named("cannot read", &folder, &error);
    for entry in fs::read_dir(&folder).map_err(named)? {
        let entry = entry.map_err(named)?;
        let path = below.join(entry.file_name());
        // Of the entry itself: links are not followed, so nothing outside is read and there are no loops.
        let meta = match entry.metadata() {
            // Other processes rename and remove files here: their unfinished encodings, for one.
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            meta => meta.map_err(named)?,
        };
        if meta.is_dir() && depth > 0 {
            walk_below(root, &path, depth - 1, visit)?;
        } else if meta.is_file() {
            visit(path, &meta)?;
        }
    }
    Ok(())
}

/// Whether a file has this modification time, as the encodings of the contents of that time do.
pub(super) fn is_of_time(path: &Path, modified: SystemTime) -> bool {
    fs::metadata(path).and_then(|meta| meta.modified()).is_ok_and(|time| time == modified)
}

pub(super) fn with_ending(path: &Path, ending: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(ending);
    name.into()
}

/// An I/O error that names its file.
pub(super) fn named(what: &str, path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{what} '{}': {error}", path.display()))
}
