//! The files of a `file://` cache, answered as a server would.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

use super::HttpError;
use super::body::Body;
use super::client::{Method, Request, Response};
use super::head::Head;
use super::url::Url;

/// Opens a file below a folder for reading. It must not block on a FIFO, and must refuse a path that leaves the folder,
/// also through a symlink. The client checks that the result is a regular file.
pub type OpenFile = fn(folder: &Path, below: &CStr) -> io::Result<File>;

/// Answers a request for a `file` URL: 200 or 206 with the file, 404 without one. What is no regular file is an error,
/// and never waited for: opening a FIFO would block until somebody writes to it.
pub(super) fn answer(request: &Request<'_>, open_file: Option<OpenFile>) -> Result<Response, HttpError> {
    let path = request.url.file_path();
    let named = |source| HttpError::File { path: path.display().to_string(), source };
    let mut file = match open(request.url, open_file) {
        Ok(file) => file,
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(Response { head: Head::local(404), body: Body::empty() });
        }
        Err(error) => return Err(named(error)),
    };
    let metadata = file.metadata().map_err(named)?;
    if !metadata.is_file() {
        return Err(named(io::Error::other("it is not a regular file")));
    }
    file.seek(SeekFrom::Start(request.from)).map_err(named)?;
    let left = if request.method == Method::Head { 0 } else { metadata.len().saturating_sub(request.from) };
    let head = Head::local(if request.from > 0 { 206 } else { 200 });
    Ok(Response { head, body: Body::file(file, path.display().to_string(), left) })
}

fn open(url: &Url, open_file: Option<OpenFile>) -> io::Result<File> {
    let open_file = open_file.ok_or(io::ErrorKind::Unsupported)?;
    let (folder, below) = url.folder_and_below();
    // A URL that was given as a whole: the folder is the one that holds the file.
    let (folder, below) = match (folder.parent(), folder.file_name()) {
        (Some(parent), Some(name)) if below.as_os_str().is_empty() => (parent.to_owned(), name.into()),
        _ => (folder, below),
    };
    let below = CString::new(below.into_os_string().into_vec()).map_err(|_| io::ErrorKind::InvalidInput)?;
    open_file(&folder, &below)
}
