//! The files of a cache by their URLs: over HTTP, or in a folder (`file://`) that no name or symlink can leave.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use narval_client::{Client, HttpError, METADATA_LEN_MAX, OwnCodings, Request, ResumingBody, Scheme, Url};
use narval_store::open_in_folder;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// A file of a cache that is being read.
pub struct CacheFile(Kind);

enum Kind {
    /// Resumed if the connection breaks.
    Http(Box<ResumingBody>),
    Folder(FolderFile),
}

/// A file of a folder, with the length that it had when it was opened.
struct FolderFile {
    file: File,
    name: String,
    len: u64,
    position: u64,
}

impl CacheFile {
    /// Opens a file; `None` if the cache does not have it.
    ///
    /// # Errors
    /// If the server fails, or the file cannot be read or is not a regular file.
    pub fn open(client: &Arc<Client>, url: &Url) -> Result<Option<Self>, HttpError> {
        Self::open_coded(client, url, OwnCodings::default(), false)
    }

    /// Like [`open`](Self::open), but over HTTP the caller decodes these codings: see [`coding`](Self::coding). `hasty`: a server
    /// that is away is not waited for, because another one may have the file.
    ///
    /// # Errors
    /// See [`open`](Self::open).
    pub fn open_coded(
        client: &Arc<Client>,
        url: &Url,
        own: OwnCodings,
        hasty: bool,
    ) -> Result<Option<Self>, HttpError> {
        Ok(match url.scheme() {
            Scheme::File => FolderFile::open(url)?.map(|file| Self(Kind::Folder(file))),
            _ => ResumingBody::open_coded(client, url, own, hasty)?.map(|body| Self(Kind::Http(Box::new(body)))),
        })
    }

    /// Like [`open`](Self::open), with one attempt: another cache may have the file.
    ///
    /// # Errors
    /// See [`open`](Self::open).
    pub fn open_once(client: &Arc<Client>, url: &Url) -> Result<Option<Self>, HttpError> {
        match url.scheme() {
            Scheme::File => Self::open(client, url),
            _ => Ok(ResumingBody::open_once(client, url)?.map(|body| Self(Kind::Http(Box::new(body))))),
        }
    }

    /// The rest of a file of a known length, whose first bytes came from elsewhere; `None` if the folder does not have it. There is one
    /// attempt.
    ///
    /// # Errors
    /// See [`open`](Self::open).
    pub fn rest(client: &Arc<Client>, url: &Url, position: u64, len: u64) -> Result<Option<Self>, HttpError> {
        if url.scheme() != Scheme::File {
            let mut body = ResumingBody::rest(client, url, position, len);
            body.begin()?;
            return Ok(Some(Self(Kind::Http(Box::new(body)))));
        }
        let Some(mut file) = FolderFile::open(url)?.filter(|file| file.len == len) else { return Ok(None) };
        let sought = file.file.seek(SeekFrom::Start(position));
        sought.map_err(|source| HttpError::File { path: file.name.clone(), source })?;
        file.position = position;
        Ok(Some(Self(Kind::Folder(file))))
    }

    /// The coding of the bytes that are read, if it is one of those that the caller decodes.
    pub fn coding(&self) -> Option<&str> {
        match &self.0 {
            Kind::Http(body) => body.coding(),
            Kind::Folder(_) => None,
        }
    }

    /// The file's entity tag, if a server has sent a strong one.
    pub fn etag(&self) -> Option<&str> {
        match &self.0 {
            Kind::Http(body) => body.etag(),
            Kind::Folder(_) => None,
        }
    }

    /// The file's length in bytes, if it is known.
    pub fn total_len(&self) -> Option<u64> {
        match &self.0 {
            Kind::Http(body) => body.total_len(),
            Kind::Folder(file) => Some(file.len),
        }
    }

    /// Whether a read would not block.
    pub fn is_readable(&self) -> bool {
        match &self.0 {
            Kind::Http(body) => body.is_readable(),
            Kind::Folder(_) => true,
        }
    }

    /// Waits until there is something to read, or the end; returns whether there is. `true` if that cannot be told.
    pub fn wait_for_data(&mut self, within: Duration) -> bool {
        match &mut self.0 {
            Kind::Http(body) => body.wait_for_data(within),
            Kind::Folder(_) => true,
        }
    }

    /// Like [`read_some`](Self::read_some), but resumes nothing itself: after an error, the next read does.
    ///
    /// # Errors
    /// If the download fails, or the file cannot be read or is shorter than it was.
    pub fn read_once(&mut self, out: &mut [u8]) -> Result<usize, HttpError> {
        match &mut self.0 {
            Kind::Http(body) => body.read_once(out),
            Kind::Folder(file) => file.read_some(out),
        }
    }

    /// Ends a connection that is too slow: the next read resumes, as after other failures.
    ///
    /// # Errors
    /// The error, if it has failed too often, or cannot be resumed.
    pub fn abort(&mut self, error: HttpError) -> Result<(), HttpError> {
        match &mut self.0 {
            Kind::Http(body) => body.abort(error),
            Kind::Folder(_) => Err(error),
        }
    }

    /// Reads some bytes; returns 0 at the file's end.
    ///
    /// # Errors
    /// If the download fails and cannot be resumed, or the file cannot be read or is shorter than it was.
    pub fn read_some(&mut self, out: &mut [u8]) -> Result<usize, HttpError> {
        match &mut self.0 {
            Kind::Http(body) => body.read_some(out),
            Kind::Folder(file) => file.read_some(out),
        }
    }
}

impl FolderFile {
    fn open(url: &Url) -> Result<Option<Self>, HttpError> {
        let name = url.file_path().display().to_string();
        let (folder, below) = url.folder_and_below();
        // A URL that was given as a whole: the folder is that of the file.
        let (folder, below) = match (folder.parent(), folder.file_name()) {
            (Some(parent), Some(name)) if below.as_os_str().is_empty() => (parent.to_owned(), name.into()),
            _ => (folder, below),
        };
        let opened = open_below(&folder, &below).and_then(|file| match file {
            Some(file) => Ok(Some((file.metadata()?.len(), file))),
            None => Ok(None),
        });
        match opened {
            Ok(opened) => Ok(opened.map(|(len, file)| Self { file, name, len, position: 0 })),
            Err(source) => Err(HttpError::File { path: name, source }),
        }
    }

    fn read_some(&mut self, out: &mut [u8]) -> Result<usize, HttpError> {
        let left = usize::try_from(self.len - self.position).unwrap_or(usize::MAX).min(out.len());
        let read = loop {
            match self.file.read(out.get_mut(..left).unwrap_or_default()) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                read => break read.map_err(|source| HttpError::File { path: self.name.clone(), source })?,
            }
        };
        if read == 0 && left > 0 {
            return Err(HttpError::Truncated { received: self.position, expected: Some(self.len) });
        }
        self.position += read as u64;
        Ok(read)
    }
}

impl Read for FolderFile {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        self.read_some(out).map_err(io::Error::other)
    }
}

/// Reads a small file (narinfo, listing, `nix-cache-info`) whole: `None` if the cache does not have it. Failed requests
/// are retried according to the client's policy.
///
/// # Errors
/// See [`CacheFile::open`]; [`HttpError::TooLarge`] if the file has more than `len_max` bytes.
pub fn read_small(client: &Client, url: &Url, len_max: u64) -> Result<Option<Vec<u8>>, HttpError> {
    client.retrying(url, || read_small_once(client, url, len_max))
}

/// Like [`read_small`], with one attempt.
///
/// # Errors
/// See [`read_small`].
pub fn read_small_once(client: &Client, url: &Url, len_max: u64) -> Result<Option<Vec<u8>>, HttpError> {
    if url.scheme() != Scheme::File {
        return client.metadata_once(url, len_max);
    }
    let (Some(mut file), limit) = (FolderFile::open(url)?, len_max.min(METADATA_LEN_MAX)) else { return Ok(None) };
    if file.len > limit {
        return Err(HttpError::TooLarge { limit });
    }
    let mut bytes = vec![0; usize::try_from(file.len).unwrap_or_default()];
    let mut filled = 0;
    while filled < bytes.len() {
        filled += file.read_some(bytes.get_mut(filled..).unwrap_or_default())?;
    }
    Ok(Some(bytes))
}

/// Opens a small file as a stream, with its content coding decoded: `None` if the cache does not have it. There is one
/// attempt, and a broken download is not resumed.
///
/// # Errors
/// See [`CacheFile::open`].
pub fn open_small_once(client: &Client, url: &Url) -> Result<Option<Box<dyn Read + Send>>, HttpError> {
    if url.scheme() != Scheme::File {
        return client.metadata_reader(url);
    }
    Ok(FolderFile::open(url)?.map(|file| Box::new(file) as Box<dyn Read + Send>))
}

/// The bytes of a file from an offset on; `None` if the cache does not have it, or does not support ranges. A broken
/// download is not resumed.
///
/// # Errors
/// See [`CacheFile::open`].
pub fn read_from(client: &Client, url: &Url, offset: u64) -> Result<Option<Box<dyn Read>>, HttpError> {
    if url.scheme() != Scheme::File {
        let response = client.send(&Request { from: offset, ..Request::get(url) })?;
        return Ok((response.head.status == 206).then(|| Box::new(response.body) as Box<dyn Read>));
    }
    let Some(FolderFile { mut file, name, .. }) = FolderFile::open(url)? else { return Ok(None) };
    file.seek(SeekFrom::Start(offset)).map_err(|source| HttpError::File { path: name, source })?;
    Ok(Some(Box::new(file)))
}

/// Opens a regular file below a folder; `None` if there is none. Does not block on a FIFO.
///
/// # Errors
/// If it cannot be opened, is not a regular file, or is outside the folder.
pub(crate) fn open_below(folder: &Path, below: &Path) -> io::Result<Option<File>> {
    let below = CString::new(below.as_os_str().as_bytes()).map_err(|_| io::ErrorKind::InvalidInput)?;
    // Not for reading: the folder may be accessible without being listable.
    let flags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
    let opened =
        rustix::fs::open(folder, flags, Mode::empty()).and_then(|folder| open_in_folder(folder.as_fd(), &below));
    match opened.map(File::from) {
        Ok(file) if file.metadata()?.is_file() => Ok(Some(file)),
        // A socket cannot be opened.
        Ok(_) | Err(Errno::NXIO) => Err(io::Error::other("it is not a regular file")),
        Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
        Err(Errno::XDEV | Errno::LOOP) => Err(io::Error::other("it is outside the folder of the cache")),
        Err(error) => Err(error.into()),
    }
}
