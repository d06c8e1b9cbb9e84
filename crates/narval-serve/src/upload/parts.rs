//! NARs that come in parts, and resume where they were interrupted.
//!
//! What has come of a NAR is in an unnamed file in the data folder: nothing is left of it when the server ends. A part is appended once
//! all of it was received.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use narval_nix::{Sha256, Sha256Hasher};

/// The largest part, in bytes. Proxies limit the size of bodies; 32 MiB pass most of them.
pub(super) const PART_BYTES_MAX: u64 = 32 * 1024 * 1024;
/// An upload for which no part came for this long is dropped.
const DROP_AFTER: Duration = Duration::from_secs(24 * 3600);
/// The most uploads in parts. Each has an open file.
const UPLOADS_MAX: usize = 256;
/// The most of one token.
const UPLOADS_OF_ONE_MAX: usize = 64;

/// The token and the name of an upload.
pub(super) type Key = (String, String);

/// The uploads in parts.
#[derive(Debug)]
pub(super) struct Parts {
    folder: PathBuf,
    uploads: Mutex<HashMap<Key, Arc<Mutex<Upload>>>>,
}

/// What has come of one NAR.
#[derive(Debug)]
pub(super) struct Upload {
    file: File,
    length: u64,
    hasher: Sha256Hasher,
    last_part: Instant,
}

/// Why a part was not taken.
#[derive(Debug)]
pub(super) enum PartError {
    /// It does not continue what was received: this many bytes are here.
    Offset(u64),
    /// Too many uploads at the same time.
    TooMany,
    /// It is larger than [`PART_BYTES_MAX`].
    TooLarge,
    /// The body cannot be read to its end.
    Body(io::Error),
    /// The file cannot be written.
    File(io::Error),
}

impl Parts {
    pub(super) fn new(folder: PathBuf) -> Self {
        Self { folder, uploads: Mutex::default() }
    }

    /// How much of a NAR has come.
    pub(super) fn received(&self, key: &Key) -> Option<u64> {
        let upload = Arc::clone(self.lock().get(key)?);
        let length = lock(&upload).length;
        Some(length)
    }

    /// Appends a part that begins at `offset`; returns how much has come.
    pub(super) fn append(&self, key: &Key, offset: u64, body: &mut dyn Read) -> Result<u64, PartError> {
        let upload = self.upload(key, offset)?;
        let mut upload = lock(&upload);
        if upload.length != offset {
            return Err(PartError::Offset(upload.length));
        }
        upload.append(body)
    }

    /// Ends an upload in parts: its file, from the beginning, its length, and its hash.
    pub(super) fn finish(&self, key: &Key) -> io::Result<Option<(File, u64, Sha256)>> {
        let Some(upload) = self.lock().remove(key) else { return Ok(None) };
        let mut upload = lock(&upload);
        upload.file.seek(SeekFrom::Start(0))?;
        let hash = std::mem::take(&mut upload.hasher).finish();
        Ok(Some((upload.file.try_clone()?, upload.length, hash)))
    }

    fn upload(&self, key: &Key, offset: u64) -> Result<Arc<Mutex<Upload>>, PartError> {
        let mut uploads = self.lock();
        uploads.retain(|_, upload| upload.try_lock().map_or(true, |upload| upload.last_part.elapsed() < DROP_AFTER));
        if offset > 0 {
            return uploads.get(key).cloned().ok_or(PartError::Offset(0));
        }
        let of_one = uploads.keys().filter(|(token, _)| *token == key.0).count();
        if !uploads.contains_key(key) && (uploads.len() >= UPLOADS_MAX || of_one >= UPLOADS_OF_ONE_MAX) {
            return Err(PartError::TooMany);
        }
        let file = tempfile::tempfile_in(&self.folder).map_err(PartError::File)?;
        let upload = Upload { file, length: 0, hasher: Sha256Hasher::new(), last_part: Instant::now() };
        let upload = Arc::new(Mutex::new(upload));
        uploads.insert(key.clone(), Arc::clone(&upload));
        Ok(upload)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Arc<Mutex<Upload>>>> {
        self.uploads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Upload {
    /// Appends all of a part, or nothing.
    fn append(&mut self, body: &mut dyn Read) -> Result<u64, PartError> {
        let (mut at, mut hasher) = (self.length, self.hasher.clone());
        let mut piece = vec![0; 256 * 1024];
        self.file.seek(SeekFrom::Start(at)).map_err(PartError::File)?;
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
            hasher.update(got);
            self.file.write_all(got).map_err(PartError::File)?;
        }
        (self.length, self.hasher, self.last_part) = (at, hasher, Instant::now());
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

    /// A body that breaks off.
    struct Broken<'a>(&'a [u8]);

    impl Read for Broken<'_> {
        fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
            match self.0.read(out)? {
                0 => Err(io::ErrorKind::ConnectionReset.into()),
                got => Ok(got),
            }
        }
    }

    #[test]
    fn parts_resume_where_they_were_interrupted() {
        let folder = tempfile::tempdir().unwrap();
        let parts = Parts::new(folder.path().to_owned());
        let key = ("token".to_owned(), "name".to_owned());
        assert!(matches!(parts.append(&key, 5, &mut &b"x"[..]), Err(PartError::Offset(0))));
        assert_eq!(parts.append(&key, 0, &mut &b"hello"[..]).unwrap(), 5);
        assert!(matches!(parts.append(&key, 5, &mut Broken(b" wor")), Err(PartError::Body(_))));
        assert_eq!(parts.received(&key), Some(5));
        assert!(matches!(parts.append(&key, 4, &mut &b"x"[..]), Err(PartError::Offset(5))));
        assert_eq!(parts.append(&key, 5, &mut &b" world"[..]).unwrap(), 11);
        assert_eq!(parts.received(&("other".to_owned(), "name".to_owned())), None);
        let (mut file, length, hash) = parts.finish(&key).unwrap().unwrap();
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        assert_eq!((text.as_str(), length, hash), ("hello world", 11, Sha256::of(b"hello world")));
        assert_eq!(parts.received(&key), None);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn the_uploads_of_one_token_are_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let parts = Parts::new(folder.path().to_owned());
        let key = |number: usize| ("token".to_owned(), number.to_string());
        for number in 0..UPLOADS_OF_ONE_MAX {
            parts.append(&key(number), 0, &mut &b"x"[..]).unwrap();
        }
        assert!(matches!(parts.append(&key(UPLOADS_OF_ONE_MAX), 0, &mut &b"x"[..]), Err(PartError::TooMany)));
        // Starting over is no new upload.
        assert_eq!(parts.append(&key(0), 0, &mut &b"xy"[..]).unwrap(), 2);
    }
}
