//! NARs that are uploaded in parts. An interrupted upload can be resumed.
//!
//! The received parts of a NAR are in a temporary file of the data folder, which is removed when the server stops. A part counts once it was received
//! completely. No lock is held while a body is read: how much was received can always be asked. A part that begins where one that is still being
//! received began replaces it, because a client that resumes has given up the connection that the other came from.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use narval_files::TemporaryFile;
use narval_keep::Rejection;
use parking_lot::{Mutex, MutexGuard};

/// The largest part, in bytes. Proxies limit the size of bodies; most of them accept 32 MiB.
pub(super) const PART_BYTES_MAX: u64 = 32 * 1024 * 1024;
/// An upload that receives nothing for this long is dropped.
const DROP_AFTER: Duration = Duration::from_secs(24 * 3600);
/// The most uploads in parts. Each has an open file.
const UPLOADS_MAX: usize = 256;
/// The most uploads in parts of one token.
const UPLOADS_OF_ONE_MAX: usize = 64;
/// How much of a body is read at a time, in bytes.
const PIECE_LEN: usize = 256 * 1024;

/// The token of an upload, and its cache and name.
pub(super) type Key = (String, String);

type Uploads = HashMap<Key, Arc<Upload>>;

/// The uploads in parts.
#[derive(Debug, Default)]
pub(super) struct Parts {
    uploads: Mutex<Uploads>,
}

/// The received parts of one NAR.
#[derive(Debug)]
struct Upload {
    /// The length of the complete parts. Changed only while `writing` is locked, which is held while a piece is written to the disk.
    length: AtomicU64,
    writing: Mutex<Writing>,
}

#[derive(Debug)]
struct Writing {
    /// `None` once the upload has ended.
    file: Option<TemporaryFile>,
    /// Counts the parts that were begun: only the last one may write.
    part: u64,
    last_used: Instant,
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
    /// Another request has sent the part again, or the upload was dropped.
    Replaced,
    /// The body cannot be read completely.
    Body(io::Error),
    /// The file cannot be written.
    File(io::Error),
    /// The file cannot be created.
    Rejected(Rejection),
}

impl Parts {
    /// The number of bytes of a NAR received so far. Does not wait for a part that is being received.
    pub(super) fn received(&self, key: &Key) -> Option<u64> {
        self.lock().get(key).map(|upload| upload.length.load(Ordering::Acquire))
    }

    /// Appends a part that begins at `offset`, and returns the number of bytes received so far. `create` creates the file for the first part.
    pub(super) fn append(
        &self,
        key: &Key,
        offset: u64,
        body: &mut dyn Read,
        create: impl FnOnce() -> Result<TemporaryFile, Rejection>,
    ) -> Result<u64, PartError> {
        self.drop_idle(DROP_AFTER);
        let upload = match offset {
            0 => self.start(key, create)?,
            _ => self.lock().get(key).cloned().ok_or(PartError::Offset(0))?,
        };
        upload.append(offset, body)
    }

    /// Drops uploads that have received nothing for this long.
    pub(super) fn drop_idle(&self, after: Duration) {
        // One that is being written to is not idle.
        let is_idle = |upload: &Upload| upload.writing.try_lock().is_some_and(|of| of.last_used.elapsed() >= after);
        let idle: Vec<_> = self.lock().extract_if(|_, upload| is_idle(upload)).collect();
        // Their files are removed after the lock was released.
        idle.iter().for_each(|(_, upload)| drop(upload.end()));
    }

    /// Ends an upload in parts, and returns its file and length. Returns `None` if there is none.
    pub(super) fn finish(&self, key: &Key) -> Option<(TemporaryFile, u64)> {
        let upload = self.lock().remove(key)?;
        upload.end()
    }

    /// Starts an upload, or starts it over.
    fn start(
        &self,
        key: &Key,
        create: impl FnOnce() -> Result<TemporaryFile, Rejection>,
    ) -> Result<Arc<Upload>, PartError> {
        if !has_room(&self.lock(), key) {
            return Err(PartError::TooMany);
        }
        let file = Some(create().map_err(PartError::Rejected)?);
        let writing = Mutex::new(Writing { file, part: 0, last_used: Instant::now() });
        let upload = Arc::new(Upload { length: AtomicU64::new(0), writing });
        let mut uploads = self.lock();
        // Others may have started meanwhile.
        if !has_room(&uploads, key) {
            return Err(PartError::TooMany);
        }
        let replaced = uploads.insert(key.clone(), Arc::clone(&upload));
        drop(uploads);
        drop(replaced.map(|upload| upload.end()));
        Ok(upload)
    }

    fn lock(&self) -> MutexGuard<'_, Uploads> {
        self.uploads.lock()
    }
}

/// Whether this upload may be started.
fn has_room(uploads: &Uploads, key: &Key) -> bool {
    let of_one = uploads.keys().filter(|(token, _)| *token == key.0).count();
    uploads.contains_key(key) || (uploads.len() < UPLOADS_MAX && of_one < UPLOADS_OF_ONE_MAX)
}

impl Upload {
    /// Takes the file. A part that is still being received fails.
    fn end(&self) -> Option<(TemporaryFile, u64)> {
        let file = self.lock().file.take()?;
        Some((file, self.length.load(Ordering::Acquire)))
    }

    /// Appends a whole part, or nothing.
    fn append(&self, offset: u64, body: &mut dyn Read) -> Result<u64, PartError> {
        let (file, part) = self.begin(offset)?;
        let mut at = offset;
        let mut piece = vec![0; PIECE_LEN];
        loop {
            let got = match body.read(&mut piece) {
                Ok(0) => break,
                Ok(got) => got,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(PartError::Body(error)),
            };
            let got = piece.get(..got).unwrap_or_default();
            if at + got.len() as u64 - offset > PART_BYTES_MAX {
                return Err(PartError::TooLarge);
            }
            // Locked while it writes: a part that was replaced must not write over its successor.
            let _writing = self.writing(part)?;
            file.write_all_at(got, at).map_err(PartError::File)?;
            at += got.len() as u64;
        }
        let _writing = self.writing(part)?;
        // Removes the rest of a longer part that was interrupted.
        file.set_len(at).map_err(PartError::File)?;
        self.length.store(at, Ordering::Release);
        Ok(at)
    }

    /// Begins a part. Returns the file, and the part's number.
    fn begin(&self, offset: u64) -> Result<(File, u64), PartError> {
        let mut writing = self.lock();
        let length = self.length.load(Ordering::Acquire);
        if length != offset {
            return Err(PartError::Offset(length));
        }
        let file = writing.file.as_ref().ok_or(PartError::Replaced)?;
        let file = file.file().try_clone().map_err(PartError::File)?;
        writing.part += 1;
        Ok((file, writing.part))
    }

    /// The lock for writing, unless another request has replaced the part.
    fn writing(&self, part: u64) -> Result<MutexGuard<'_, Writing>, PartError> {
        let mut writing = self.lock();
        if writing.part != part || writing.file.is_none() {
            return Err(PartError::Replaced);
        }
        writing.last_used = Instant::now();
        Ok(writing)
    }

    fn lock(&self) -> MutexGuard<'_, Writing> {
        self.writing.lock()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails may say so")]

    use std::sync::mpsc;

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

    fn create(folder: &tempfile::TempDir) -> Result<TemporaryFile, Rejection> {
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

    /// A body of which one more byte arrives with each message.
    struct Trickling(mpsc::Receiver<()>);

    impl Read for Trickling {
        fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
            out[0] = b'x';
            Ok(self.0.recv().map_or(0, |()| 1))
        }
    }

    #[test]
    fn a_part_that_trickles_holds_nobody_up() {
        let folder = tempfile::tempdir().unwrap();
        let (parts, key) = (Arc::new(Parts::default()), ("token".to_owned(), "name".to_owned()));
        parts.append(&key, 0, &mut &b"hello"[..], || create(&folder)).unwrap();
        let (send, receive) = mpsc::channel();
        let trickling = {
            let (parts, key) = (Arc::clone(&parts), key.clone());
            std::thread::spawn(move || {
                let none = || -> Result<TemporaryFile, Rejection> { panic!("it exists") };
                parts.append(&key, 5, &mut Trickling(receive), none)
            })
        };
        send.send(()).unwrap();
        while std::fs::metadata(std::fs::read_dir(folder.path()).unwrap().next().unwrap().unwrap().path())
            .unwrap()
            .len()
            < 6
        {
            std::thread::yield_now();
        }
        // While it is being received: the length, another upload, and the same part again, which replaces it.
        (0..1000).for_each(|_| assert_eq!(parts.received(&key), Some(5)));
        parts.append(&("token".to_owned(), "other".to_owned()), 0, &mut &b"y"[..], || create(&folder)).unwrap();
        assert_eq!(parts.append(&key, 5, &mut &b" world"[..], || create(&folder)).unwrap(), 11);
        send.send(()).unwrap();
        assert!(matches!(trickling.join().unwrap(), Err(PartError::Replaced)));
        let (file, length) = parts.finish(&key).unwrap();
        assert_eq!((std::fs::read(file.path()).unwrap().as_slice(), length), (&b"hello world"[..], 11));
    }

    #[test]
    fn an_upload_that_is_dropped_ends_the_part_that_is_being_received() {
        let folder = tempfile::tempdir().unwrap();
        let (parts, key) = (Parts::default(), ("token".to_owned(), "name".to_owned()));
        parts.append(&key, 0, &mut &b"hello"[..], || create(&folder)).unwrap();
        struct Dropping<'a>(&'a Parts, bool);
        impl Read for Dropping<'_> {
            fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
                self.0.drop_idle(Duration::ZERO);
                out[0] = b'x';
                Ok(usize::from(!std::mem::replace(&mut self.1, true)))
            }
        }
        let part = parts.append(&key, 5, &mut Dropping(&parts, false), || create(&folder));
        assert!(matches!(part, Err(PartError::Replaced)));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
