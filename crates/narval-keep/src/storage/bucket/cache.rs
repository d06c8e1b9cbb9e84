//! One cache in a bucket.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Seek};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, UNIX_EPOCH};

use narval_client::Payload;
use narval_files::TemporaryFile;
use narval_nix::HashPart;

use super::fetches::NarRequest;
use super::shared::{APART, OTHER, ObjectReader, Shared, content_type};
use crate::name::CacheName;
use crate::records::paths::{NarRecord, PathRecord};
use crate::rejection::Rejection;
use crate::storage::{
    Asker, Below, CacheStorage, Incoming, NarBytes, REDIRECT_LEN_MIN, REDIRECT_VALID_FOR, Redirect, StoredFile,
    VALID_FOR, WrittenNarinfo, several,
};
use narval_client::clock;
use narval_s3::{Object, ObjectWriter};

/// Threads that store the NARs of one request.
const THREADS_MAX: usize = 16;

/// The largest small file: build logs.
const SMALL_LEN_MAX: u64 = 256 << 20;

pub(super) struct CacheInBucket {
    shared: Arc<Shared>,
    name: CacheName,
    place: PathBuf,
    /// The prefix of its keys.
    prefix: String,
}

impl CacheInBucket {
    pub(super) fn new(shared: Arc<Shared>, bucket: &Path, name: &CacheName) -> Self {
        if *name == CacheName::default() {
            return Self { shared, name: name.clone(), place: bucket.to_owned(), prefix: String::new() };
        }
        Self { shared, name: name.clone(), place: bucket.join(name.as_str()), prefix: format!("{name}/") }
    }

    fn key(&self, name: &str) -> String {
        // No cache's name can begin with this.
        let apart = if name.starts_with(OTHER) { APART } else { "" };
        format!("{}{apart}{name}", self.prefix)
    }

    fn nar_key(&self, name: &str) -> String {
        self.key(&format!("nar/{name}"))
    }

    /// Visits objects: all below a prefix, or only those directly in it.
    fn visit(&self, (prefix, is_flat): (&str, bool), visit: &mut dyn FnMut(StoredFile)) -> io::Result<()> {
        let mut visit = |Object { key, len, modified }| {
            if let Some(name) = key.strip_prefix(&self.prefix) {
                let name = name.strip_prefix(APART).unwrap_or(name);
                let modified = modified.map(|seconds| UNIX_EPOCH + Duration::from_secs(seconds));
                visit(StoredFile { name: name.to_owned(), len, modified });
            }
        };
        self.shared.objects.list(prefix, is_flat, &mut visit).map_err(io::Error::other).map(drop)
    }

    fn store_bytes(&self, name: &str, nar: &NarRecord, file: &[u8]) -> Result<(), Rejection> {
        let payload = Payload::Bytes(file);
        let put = self.shared.objects.put(&self.nar_key(name), "application/x-nix-nar", payload, nar.file_hash);
        put.map_err(|error| Rejection::of_file("store", name, &error))
    }
}

impl CacheStorage for CacheInBucket {
    fn place(&self) -> &Path {
        &self.place
    }

    fn open(&self, name: &str) -> io::Result<Option<(File, u64)>> {
        #[cfg(test)]
        if self.shared.objects.simulated.is_some() {
            let bytes = self.shared.objects.read(&self.key(name), SMALL_LEN_MAX).map_err(io::Error::other)?;
            return bytes.map(|bytes| Ok((in_file(&bytes)?, bytes.len() as u64))).transpose();
        }
        let Some(body) = self.shared.objects.get(&self.key(name)).map_err(io::Error::other)? else { return Ok(None) };
        let local = self.shared.incoming()?;
        let len = io::copy(&mut ObjectReader(body).take(SMALL_LEN_MAX + 1), &mut local.file())?;
        if len > SMALL_LEN_MAX {
            return Err(ErrorKind::FileTooLarge.into());
        }
        let mut file = local.file().try_clone()?;
        file.rewind()?;
        Ok(Some((file, len)))
    }

    fn len(&self, name: &str) -> io::Result<Option<u64>> {
        self.shared.objects.len(&self.key(name)).map_err(io::Error::other)
    }

    fn write(&self, name: &str, file: TemporaryFile) -> io::Result<()> {
        self.shared.put_file(&self.key(name), &file, None)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.shared.objects.remove_until(&self.key(name), clock::instant() + VALID_FOR).map_err(io::Error::other)
    }

    fn list(&self, below: Below<'_>) -> io::Result<Vec<StoredFile>> {
        let (folder, is_flat) = match below {
            Below::Root => (self.prefix.clone(), true),
            Below::Folder(folder) => (self.key(&format!("{folder}/")), false),
        };
        let mut files = Vec::new();
        self.visit((&folder, is_flat), &mut |file| files.push(file))?;
        Ok(files)
    }

    fn each_nar(&self, visit: &mut dyn FnMut(StoredFile)) -> io::Result<()> {
        self.visit((&self.key("nar/"), false), visit)
    }

    /// Trusts the index, because asking the bucket takes a request.
    fn has_nar(&self, _: &str, _: u64) -> io::Result<bool> {
        Ok(true)
    }

    fn check_nar(&self, name: &str, nar: &NarRecord) -> io::Result<bool> {
        let len = self.shared.objects.len(&self.nar_key(name)).map_err(io::Error::other)?;
        if len != Some(nar.file_size) {
            self.shared.is_the_right_one()?;
        }
        Ok(len == Some(nar.file_size))
    }

    fn nar(&self, name: &str, nar: &NarRecord, asker: Asker) -> io::Result<Option<NarBytes>> {
        let request = NarRequest { cache: &self.name, key: &self.nar_key(name), name, nar, asker };
        self.shared.fetches.nar(&request)
    }

    /// Signing fails with the credentials: what is on the disk can be served without them.
    fn redirect_url(&self, name: &str, nar: &NarRecord, redirect: Redirect) -> Option<String> {
        let redirects = match redirect {
            Redirect::Off => false,
            Redirect::Auto => self.shared.fetches.is_first(&self.name, name, nar),
            Redirect::On => true,
        };
        if !redirects || nar.file_size < REDIRECT_LEN_MIN {
            return None;
        }
        let address = self.shared.objects.presign(&self.nar_key(name), REDIRECT_VALID_FOR);
        address.inspect_err(|error| tracing::debug!("no redirect to '{name}': {error}")).ok()
    }

    fn open_nar(&self, name: &str, nar: &NarRecord) -> io::Result<Option<File>> {
        let asker = Asker::Client;
        self.shared.fetches.whole(&NarRequest { cache: &self.name, key: &self.nar_key(name), name, nar, asker })
    }

    fn read(&self, name: &str) -> io::Result<Option<Box<dyn Read>>> {
        let body = self.shared.objects.get(&self.key(name)).map_err(io::Error::other)?;
        Ok(body.map(|body| Box::new(ObjectReader(body)) as Box<dyn Read>))
    }

    /// It is sent to the bucket while it arrives.
    fn receive(&self, name: &str, len_max: u64) -> io::Result<Incoming> {
        let writer = ObjectWriter::new(&self.shared.objects, self.nar_key(name), len_max)?;
        Ok(Incoming::Object(Box::new(writer)))
    }

    fn listing(&self) -> io::Result<Option<TemporaryFile>> {
        Ok(None)
    }

    fn store(&self, received: Incoming, name: &str, nar: &NarRecord, _: Option<TemporaryFile>) -> io::Result<()> {
        match received {
            Incoming::Object(writer) => writer.finish(nar.file_hash),
            Incoming::File(file) => self.shared.put_file(&self.nar_key(name), &file, Some(nar.file_hash)),
        }
    }

    fn store_all(&self, nars: &[(&str, &NarRecord, &[u8])]) -> Result<(), Rejection> {
        several(THREADS_MAX, nars, |(name, nar, file)| self.store_bytes(name, nar, file)).map(drop)
    }

    fn unlink_nar(&self, name: &str, until: Instant) -> io::Result<()> {
        self.shared.objects.remove_until(&self.nar_key(name), until).map_err(io::Error::other)
    }

    fn sync_nars(&self) -> io::Result<()> {
        Ok(())
    }

    fn write_narinfo(&self, _: &[u8]) -> io::Result<WrittenNarinfo> {
        Ok(WrittenNarinfo(None))
    }

    fn publish(&self, record: &PathRecord, _: Option<WrittenNarinfo>, until: Instant) -> io::Result<()> {
        let key = self.key(&format!("{}.narinfo", record.hash_part));
        let put = self.shared.objects.put_until(&key, content_type(&key), &record.narinfo, until);
        put.map_err(io::Error::other)
    }

    fn withdraw(&self, part: &HashPart, until: Instant) -> io::Result<()> {
        self.shared.objects.remove_until(&self.key(&format!("{part}.narinfo")), until).map_err(io::Error::other)
    }
}

#[cfg(test)]
fn in_file(bytes: &[u8]) -> io::Result<File> {
    let mut file = tempfile::tempfile()?;
    io::Write::write_all(&mut file, bytes)?;
    file.rewind()?;
    Ok(file)
}
