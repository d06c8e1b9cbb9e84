//! A bucket: each cache has the standard layout, so Nix, a CDN and Narval can read it while no server runs.
//!
//! ```text
//! PREFIX/nix-cache-info  PREFIX/<hash part>.narinfo  PREFIX/nar/<FileHash>.nar[.ext]   the cache at /
//! PREFIX/<name>/…                                                                     the others
//! PREFIX/_narval/index.id                                                             the id of its index
//! PREFIX/_narval/claims/<random>                                                      servers that are about to write it
//! DIR/nar/  DIR/incoming/                                                             the disk cache, and uploads, on this machine
//! ```
//! A NAR is one object for each cache and compression, named by the hash of its file. Uploads of the same NAR in another encoding get
//! names in the index only, and narinfos refer to the object. Listings are not stored; they are made from the NAR on request.
//!
//! An upload is recorded before its object appears, and marked as placed afterwards. So a collection knows every object that may
//! appear. Requests that remove or replace an object are signed for a short time only ([`TAKEOVER`](super::TAKEOVER)): those of a server that was
//! paused do not take effect after another one has taken over.

mod cache;
mod fetches;
mod shared;
mod source;

use std::fs;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use narval_client::Url;
use narval_files::{TemporaryFile, is_temporary_name, remove_leftovers};
use narval_nix::nix32;

use self::cache::CacheInBucket;
use self::fetches::BucketFetches;
use self::shared::{ID, Shared};
use super::{CACHE_FOLDERS, CacheStorage, Room, Storage, StorageLock, TEMPORARY, VALID_FOR};
use crate::name::CacheName;
use crate::nodes::Peers;
use narval_client::clock;
use narval_files::DiskCache;
use narval_s3::{BucketError, Object, Objects};

/// The objects of servers that are about to write [`ID`].
const CLAIMS: &str = "_narval/claims/";

/// How long a server tries to do so while others do: longer than the claim of one that was killed is valid. And how long it waits between two attempts.
const CLAIMING_MAX: Duration = Duration::from_secs(2 * VALID_FOR.as_secs() + 10);
const CLAIM_AGAIN: Duration = Duration::from_millis(300);

/// The object that [`check_writable`](Storage::check_writable) writes.
const CHECKED: &str = "_narval/writable";

/// The address of a bucket, and its disk cache on this machine.
pub(crate) struct BucketOptions<'a> {
    pub(crate) url: &'a Url,
    /// The local folder.
    pub(crate) folder: &'a Path,
    /// The size of the disk cache in bytes; `None` for processes that are not servers. Only one process at a time can have one.
    pub(crate) cache_size: Option<u64>,
}

/// A bucket.
pub(crate) struct Bucket {
    place: PathBuf,
    local: PathBuf,
    shared: Arc<Shared>,
}

impl Bucket {
    /// Opens a bucket. Nothing is requested yet.
    pub(crate) fn open(options: &BucketOptions<'_>) -> io::Result<Self> {
        let invalid = |error: BucketError| io::Error::new(ErrorKind::InvalidInput, error);
        let objects = Arc::new(Objects::new(options.url).map_err(invalid)?);
        fs::create_dir_all(options.folder.join("incoming"))?;
        let kept = options.cache_size.map(|size| DiskCache::open(options.folder, size)).transpose()?;
        let place = PathBuf::from(options.url.to_string());
        Ok(Self::with(objects, kept, place, options.folder))
    }

    /// The bucket with these objects; `local` has the folder `incoming`.
    pub(crate) fn with(objects: Arc<Objects>, kept: Option<DiskCache>, place: PathBuf, local: &Path) -> Self {
        let incoming = local.join("incoming");
        let fetches = Arc::new(BucketFetches::new(Arc::clone(&objects), kept, incoming.clone()));
        let shared = Arc::new(Shared { id: OnceLock::new(), objects, fetches, incoming });
        Self { place, local: local.to_owned(), shared }
    }

    /// The id of this bucket's index, if it has one.
    pub(crate) fn id(&self) -> io::Result<Option<String>> {
        self.shared.stored_id()
    }

    /// From now on, no object counts as absent unless the bucket has this id.
    pub(crate) fn is_of(&self, id: &str) {
        // A bucket is opened once.
        let _ = self.shared.id.set(id.to_owned());
    }

    /// Gives this bucket's index an id, if it has none; fails if it has another one. If several servers do so at the same time, one of them
    /// succeeds.
    ///
    /// Not every object store has conditional requests. So each server first writes a claim, and then lists all: whoever sees another one
    /// withdraws its own, and tries again. A claim ends when the id is there, or when no request of its server can take effect any more.
    pub(crate) fn set_id(&self, id: &str) -> io::Result<()> {
        let objects = &self.shared.objects;
        let give_up = clock::instant() + CLAIMING_MAX;
        let is_mine = |found: &str| match found == id {
            true => Ok(()),
            false => Err(io::Error::other(
                "another server has just created an index for the same bucket: give both the same database, or stop one",
            )),
        };
        if let Some(found) = self.id()? {
            return is_mine(&found);
        }
        loop {
            let until = clock::instant() + VALID_FOR;
            let mut random = [0; 10];
            getrandom::fill(&mut random).map_err(io::Error::other)?;
            let ([jitter, ..], own) = (random, format!("{CLAIMS}{}", nix32::encode(&random)));
            objects.put_until(&own, "text/plain", b"", until).map_err(io::Error::other)?;
            let set = || -> io::Result<bool> {
                let mut claims = Vec::new();
                objects.list(CLAIMS, false, &mut |claim| claims.push(claim)).map_err(io::Error::other)?;
                // By the clock of the store.
                let now = claims.iter().find(|claim| claim.key == own).and_then(|claim| claim.modified);
                let is_alive = |claim: &Object| match (claim.modified, now) {
                    (Some(modified), Some(now)) => now.saturating_sub(modified) <= 2 * VALID_FOR.as_secs(),
                    _ => true,
                };
                if claims.iter().any(|claim| claim.key != own && is_alive(claim)) {
                    return Ok(false);
                }
                if self.id()?.is_none() {
                    let text = format!("{id}\n");
                    objects.put_until(ID, "text/plain", text.as_bytes(), until).map_err(io::Error::other)?;
                }
                Ok(true)
            };
            let is_set = set();
            // One that stays ends by itself.
            let removed = objects.remove_until(&own, clock::instant() + VALID_FOR);
            removed.unwrap_or_else(|error| tracing::warn!("'{own}' stays in the bucket: {error}"));
            match (is_set?, self.id()?) {
                (_, Some(found)) => return is_mine(&found),
                (_, None) if clock::instant() >= give_up => {
                    let reason = "other servers are creating an index for the same bucket; try again in two minutes";
                    return Err(io::Error::other(reason));
                }
                (_, None) => clock::sleep(CLAIM_AGAIN.mul_f64(1.0 + f64::from(jitter) / 255.0)),
            }
        }
    }

    /// The local folder.
    pub(crate) fn local(&self) -> &Path {
        &self.local
    }

    /// From now on, other nodes are asked for the NARs that they keep.
    pub(crate) fn set_peers(&self, peers: Arc<Peers>) {
        self.shared.fetches.set_peers(peers);
    }
}

impl Storage for Bucket {
    fn place(&self) -> &Path {
        &self.place
    }

    fn clear_up(&self) -> io::Result<()> {
        remove_leftovers(&self.shared.incoming, |name| is_temporary_name(name, TEMPORARY))
    }

    fn open_cache(&self, name: &CacheName) -> io::Result<Box<dyn CacheStorage>> {
        if CACHE_FOLDERS.contains(&name.as_str()) {
            let reason = format!("in a bucket, a cache cannot be named '{name}': the cache at / has such a folder");
            return Err(io::Error::new(ErrorKind::InvalidInput, reason));
        }
        Ok(Box::new(CacheInBucket::new(Arc::clone(&self.shared), &self.place, name)))
    }

    fn caches(&self) -> io::Result<Vec<CacheName>> {
        let objects = &self.shared.objects;
        let (mut names, mut has_info) = (Vec::new(), false);
        let folders = objects.list("", true, &mut |object| has_info |= object.key == "nix-cache-info");
        names.extend(has_info.then(CacheName::default));
        for folder in folders.map_err(io::Error::other)? {
            let Ok(name) = CacheName::parse(&folder) else { continue };
            if objects.len(&format!("{name}/nix-cache-info")).map_err(io::Error::other)?.is_some() {
                names.push(name);
            }
        }
        Ok(names)
    }

    /// No lock: the index orders changes.
    fn lock_shared(&self) -> io::Result<StorageLock> {
        Ok(StorageLock { _file: None })
    }

    fn lock_exclusive(&self) -> io::Result<StorageLock> {
        Ok(StorageLock { _file: None })
    }

    fn incoming(&self) -> io::Result<TemporaryFile> {
        self.shared.incoming()
    }

    /// Writes a small object, and a small file.
    fn make_disk_room(&self, bytes: u64) {
        self.shared.fetches.make_disk_room(bytes);
    }

    fn check_writable(&self) -> io::Result<()> {
        self.incoming()?.file().write_all(b"x")?;
        let until = clock::instant() + VALID_FOR;
        self.shared.objects.put_until(CHECKED, "text/plain", b"", until).map_err(io::Error::other)
    }

    fn room(&self) -> Option<Room> {
        None
    }

    fn publishes_later(&self) -> bool {
        true
    }

    fn end_unfinished(&self, before: u64) -> io::Result<usize> {
        let mut ended = 0;
        for unfinished in self.shared.objects.unfinished().map_err(io::Error::other)? {
            if unfinished.begun.is_some_and(|begun| begun < before) {
                self.shared.objects.abort(&unfinished).map_err(io::Error::other)?;
                ended += 1;
            }
        }
        Ok(ended)
    }

    /// Nothing to do: an object is durable when the store has answered.
    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn peers(&self) -> Option<&Arc<Peers>> {
        self.shared.fetches.peers()
    }
}
