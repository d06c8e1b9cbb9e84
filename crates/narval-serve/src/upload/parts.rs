//! NARs that are uploaded in parts. An interrupted upload can be resumed.
//!
//! The received parts of a NAR are in a temporary file of the data folder, which is removed when the server stops. A part counts once it was received
//! completely.

use std::collections::HashMap;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use narval_cache::written::Refusal;
use narval_store::TemporaryFile;

/// The largest part, in bytes. Proxies limit the size of bodies; most of them accept 32 MiB.
pub(super) const PART_BYTES_MAX: u64 = 32 * 1024 * 1024;
/// An upload that receives no part for this long is dropped.
const DROP_AFTER: Duration = Duration::from_secs(24 * 3600);
/// The most uploads in parts. Each has an open file.
const UPLOADS_MAX: usize = 256;
/// The most uploads in parts of one token.
const UPLOADS_OF_ONE_MAX: usize = 64;

/// The token of an upload, and its cache and name.
pub(super) type Key = (String, String);

/// The uploads in parts.
#[derive(Debug, Default)]
pub(super) struct Parts {
    uploads: Mutex<HashMap<Key, Arc<Mutex<Upload>>>>,
}

/// The received parts of one NAR.
#[derive(Debug)]
pub(super) struct Upload {
    file: TemporaryFile,
    length: u64,
    last_part: Instant,
}

/// Why a part was refused.
#[derive(Debug)]
pub(super) enum PartError {
    /// It does not start where the last one ended. This many bytes were received.
    Offset(u64),
    /// Too many concurrent uploads.
    TooMany,
    /// It is larger than [`PART_BYTES_MAX`].
    TooLarge,
    /// The body cannot be read completely.
    Body(io::Error),
    /// The file cannot be written.
    File(io::Error),
    /// The file cannot be created.
    Refused(Refusal),
}

impl Parts {
    /// The number of bytes of a NAR received so far.
    pub(super) fn received(&self, key: &Key) -> Option<u64> {
        let upload = Arc::clone(self.lock().get(key)?);
        let length = lock(&upload).length;
        Some(length)
    }

    /// Appends a part that begins at `offset`, and returns the number of bytes received so far. `create` creates the file for the first part.
    pub(super) fn append(
        &self,
        key: &Key,
        offset: u64,
        body: &mut dyn Read,
        create: impl FnOnce() -> Result<TemporaryFile, Refusal>,
    ) -> Result<u64, PartError> {
        let upload = self.upload(key, offset, create)?;
        let mut upload = lock(&upload);
        if upload.length != offset {
            return Err(PartError::Offset(upload.length));
        }
        upload.append(body)
    }

    /// Drops uploads that have received no part for this long.
    pub(super) fn drop_idle(&self, after: Duration) {
        let is_kept =
            |upload: &Arc<Mutex<Upload>>| upload.try_lock().map_or(true, |upload| upload.last_part.elapsed() < after);
        self.lock().retain(|_, upload| is_kept(upload));
    }

    /// Ends an upload in parts, and returns its file and length. Returns `None` if there is none, or if another request is appending to it.
    pub(super) fn finish(&self, key: &Key) -> Option<(TemporaryFile, u64)> {
        let upload = self.lock().remove(key)?;
        let upload = Arc::into_inner(upload)?.into_inner().unwrap_or_else(PoisonError::into_inner);
        Some((upload.file, upload.length))
    }

    fn upload(
        &self,
        key: &Key,
        offset: u64,
        create: impl FnOnce() -> Result<TemporaryFile, Refusal>,
    ) -> Result<Arc<Mutex<Upload>>, PartError> {
        self.drop_idle(DROP_AFTER);
        let mut uploads = self.lock();
        if offset > 0 {
            return uploads.get(key).cloned().ok_or(PartError::Offset(0));
        }
        let of_one = uploads.keys().filter(|(token, _)| *token == key.0).count();
        if !uploads.contains_key(key) && (uploads.len() >= UPLOADS_MAX || of_one >= UPLOADS_OF_ONE_MAX) {
            return Err(PartError::TooMany);
        }
        let file = create().map_err(PartError::Refused)?;
        let upload = Upload { file, length: 0, last_part: Instant::now() };
        let upload = Arc::new(Mutex::new(upload));
        uploads.insert(key.clone(), Arc::clone(&upload));
        Ok(upload)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Arc<Mutex<Upload>>>> {
        self.uploads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Upload {
    /// Appends a whole part, or nothing.
    fn append(&mut self, body: &mut dyn Read) -> Result<u64, PartError> {
        let mut at = self.length;
        let mut piece = vec![0; 256 * 1024];
        // The rest of an interrupted part is overwritten or truncated.
        self.file.file().set_len(at).map_err(PartError::File)?;
        self.file.file().seek(SeekFrom::Start(at)).map_err(PartError::File)?;
        loop {
            let got = match body.read(&mut piece) {
                Ok(0) => break,
                Ok(got) => got,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(PartError::Body(error)),
            };
            let got = piece.get(..got).unwrap_or_default();
            at += got.len() as u64;
            if at - self.length > PART_BYTES_MAX {
                return Err(PartError::TooLarge);
            }
            self.file.file().write_all(got).map_err(PartError::File)?;
        }
        (self.length, self.last_part) = (at, Instant::now());
        Ok(at)
    }
}

fn lock(upload: &Mutex<Upload>) -> MutexGuard<'_, Upload> {
    upload.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails may say so")]

    use super::*;

    /// A body that ends early with an error.
    struct Broken<'a>(&'a [u8]);

    impl Read for Broken<'_> {
        fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
            match self.0.read(out)? {
                0 => Err(io::ErrorKind::ConnectionReset.into()),
                got => Ok(got),
            }
        }
    }

    fn create(folder: &tempfile::TempDir) -> Result<TemporaryFile, Refusal> {
        Ok(TemporaryFile::create(folder.path(), "part", 0o600).unwrap())
    }

    #[test]
    fn parts_resume_where_they_were_interrupted() {
        let folder = tempfile::tempdir().unwrap();
        let parts = Parts::default();
        let key = ("token".to_owned(), "name".to_owned());
        let append = |offset, body: &mut dyn Read| parts.append(&key, offset, body, || create(&folder));
        assert!(matches!(append(5, &mut &b"x"[..]), Err(PartError::Offset(0))));
        assert_eq!(append(0, &mut &b"hello"[..]).unwrap(), 5);
        assert!(matches!(append(5, &mut Broken(b" wor and much more")), Err(PartError::Body(_))));
        assert_eq!(parts.received(&key), Some(5));
        assert!(matches!(append(4, &mut &b"x"[..]), Err(PartError::Offset(5))));
        assert_eq!(append(5, &mut &b" world"[..]).unwrap(), 11);
        assert_eq!(parts.received(&("other".to_owned(), "name".to_owned())), None);
        let (file, length) = parts.finish(&key).unwrap();
        assert_eq!((std::fs::read(file.path()).unwrap().as_slice(), length), (&b"hello world"[..], 11));
        assert_eq!(parts.received(&key), None);
        drop(file);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn idle_uploads_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let parts = Parts::default();
        let key = ("token".to_owned(), "name".to_owned());
        parts.append(&key, 0, &mut &b"hello"[..], || create(&folder)).unwrap();
        parts.drop_idle(DROP_AFTER);
        assert_eq!(parts.received(&key), Some(5));
        parts.drop_idle(Duration::ZERO);
        assert_eq!((parts.received(&key), std::fs::read_dir(folder.path()).unwrap().count()), (None, 0));
    }

    #[test]
    fn the_uploads_of_one_token_are_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let parts = Parts::default();
        let key = |number: usize| ("token".to_owned(), number.to_string());
        let append = |number, body: &mut dyn Read| parts.append(&key(number), 0, body, || create(&folder));
        for number in 0..UPLOADS_OF_ONE_MAX {
            append(number, &mut &b"x"[..]).unwrap();
        }
        assert!(matches!(append(UPLOADS_OF_ONE_MAX, &mut &b"x"[..]), Err(PartError::TooMany)));
        // Starting over does not count as a new upload.
        assert_eq!(append(0, &mut &b"xy"[..]).unwrap(), 2);
    }
}
