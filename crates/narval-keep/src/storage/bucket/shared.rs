//! What the caches of a bucket share.

use std::fs;
use std::io::{self, Read};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use narval_client::{HttpError, Payload};
use narval_files::TemporaryFile;
use narval_nix::Sha256;
use narval_s3::Objects;

use super::fetches::BucketFetches;
use crate::rule::holds;
use crate::storage::TEMPORARY;
use narval_store::hash_of;

/// The object that holds the id of the index.
pub(super) const ID: &str = "_narval/index.id";

/// The maximum length of an id.
const ID_LEN_MAX: u64 = 256;

/// The folder for files of unknown kinds. It is below [`APART`], because a cache may have the same name.
pub(super) const OTHER: &str = "other/";

/// The prefix of objects outside the standard layout.
pub(super) const APART: &str = "_narval/";

/// Shared by the caches of a bucket.
pub(super) struct Shared {
    /// The id of its index, once that is known.
    pub(super) id: OnceLock<String>,
    pub(super) objects: Arc<Objects>,
    pub(super) fetches: Arc<BucketFetches>,
    pub(super) incoming: PathBuf,
}

impl Shared {
    pub(super) fn stored_id(&self) -> io::Result<Option<String>> {
        let id = self.objects.read(ID, ID_LEN_MAX).map_err(io::Error::other)?;
        Ok(id.map(|id| String::from_utf8_lossy(&id).trim_end().to_owned()))
    }

    /// To be asked after an object was not found, and before anything is removed for that: an address can lead to another bucket for a
    /// while, or to an empty one.
    pub(super) fn is_the_right_one(&self) -> io::Result<()> {
        let Some(own) = self.id.get().filter(|_| holds!(Control)) else { return Ok(()) };
        if self.stored_id()?.as_ref() == Some(own) {
            return Ok(());
        }
        let message = format!("'{ID}' is missing, or is that of another cache: the bucket is empty, or another one");
        Err(io::Error::other(HttpError::Bucket { status: 404, message, retry_after: None, is_retryable: false }))
    }

    pub(super) fn incoming(&self) -> io::Result<TemporaryFile> {
        // What is in the disk cache can be fetched again.
        self.fetches.make_disk_room(0);
        TemporaryFile::create(&self.incoming, TEMPORARY, 0o644)
    }

    /// Stores a local file.
    pub(super) fn put_file(&self, key: &str, file: &TemporaryFile, hash: Option<Sha256>) -> io::Result<()> {
        let len = file.file().metadata()?.len();
        let hash = match hash {
            Some(hash) => hash,
            None => hash_of(&mut fs::File::open(file.path())?)?,
        };
        self.objects.put(key, content_type(key), Payload::File(file.file(), len), hash)
    }
}

pub(super) fn content_type(key: &str) -> &'static str {
    match key {
        _ if key.ends_with(".narinfo") => "text/x-nix-narinfo",
        _ if key.ends_with("nix-cache-info") => "text/x-nix-cache-info",
        _ if key.contains("nar/") => "application/x-nix-nar",
        _ if key.contains("log/") => "text/plain; charset=utf-8",
        _ => "application/octet-stream",
    }
}

/// Reads an object with [`Read`].
pub(super) struct ObjectReader(pub(super) narval_client::ResumingBody);

impl Read for ObjectReader {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        self.0.read_some(out).map_err(|error: HttpError| io::Error::other(error))
    }
}
