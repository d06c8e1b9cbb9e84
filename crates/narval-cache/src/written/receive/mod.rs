//! Receiving NARs.
//!
//! An upload is written to its own file while one pass verifies it: SHA-256 of the file, a bounded decoder, the NAR's
//! grammar, SHA-256 of the NAR, its listing, the store paths that it mentions. A valid upload is made durable, recorded
//! and linked to its names, in this order; an invalid one leaves nothing. The thread with the body does all of this.

mod listing;
mod pass;
mod scan;
mod tee;

use std::fs::File;
use std::io::{Read, Seek};
use std::path::Path;
use std::sync::PoisonError;

use narval_nix::{Compression, NarHash, Sha256};
use narval_store::TemporaryFile;

use self::pass::{Claims, Verified, verify};
use super::index::NarRecord;
use super::storage::{self, file_len};
use super::{Cache, Grant, NarFileName, NarTarget, Refusal, RefusalKind, Scope};

/// The result of starting an upload.
#[derive(Debug)]
pub enum Begin {
    /// The cache has this NAR: nothing needs to be sent.
    Known(Stored),
    /// It must be sent.
    Receive(Box<Upload>),
}

/// An accepted upload.
#[derive(Debug)]
pub struct Upload {
    cache: Cache,
    target: NarTarget,
    length: Option<u64>,
    grant: Grant,
}

/// A stored NAR.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// The name of its file, below `nar/`.
    pub name: NarFileName,
    /// SHA-256 of the NAR.
    pub nar_hash: NarHash,
    /// The size of the NAR in bytes.
    pub nar_size: u64,
    /// How its file is compressed.
    pub compression: Compression,
    /// SHA-256 of the stored file, which is another one if the cache already had this NAR.
    pub file_hash: Sha256,
    /// The size of the stored file in bytes.
    pub file_size: u64,
}

impl Stored {
    fn new(name: NarFileName, nar: &NarRecord) -> Self {
        let NarRecord { nar_hash, nar_size, compression, file_hash, file_size, .. } = *nar;
        Self { name, nar_hash, nar_size, compression, file_hash, file_size }
    }
}

impl Cache {
    /// Starts the upload of a NAR of this length, named by its file's hash as below `nar/`. Call this before reading
    /// the body.
    ///
    /// # Errors
    /// If the name is invalid, the token may not push, or the file is too large or does not fit on the disk.
    pub fn begin_nar(&self, name: &str, length: Option<u64>, grant: &Grant) -> Result<Begin, Refusal> {
        grant.require(self.name(), Scope::Push)?;
        let parsed = NarFileName::parse(name);
        let name = parsed.map_err(|error| Refusal::new(RefusalKind::Malformed, format_args!("'{name}': {error}")))?;
        self.begin(NarTarget::File(name), length, grant)
    }

    /// Like [`Cache::begin_nar`], named by either hash. For a NAR's hash, a file with another compression also counts.
    ///
    /// # Errors
    /// See [`Cache::begin_nar`].
    pub fn begin(&self, target: NarTarget, length: Option<u64>, grant: &Grant) -> Result<Begin, Refusal> {
        grant.require(self.name(), Scope::Push)?;
        let settings = self.settings();
        if length.is_some_and(|length| length > settings.nar_size_max) {
            let max = settings.nar_size_max;
            let message = format!("'{target}' is larger than {max} bytes, the largest NAR that this cache accepts");
            return Err(Refusal::new(RefusalKind::TooLarge, message));
        }
        if let Some(stored) = self.known(&target)? {
            // Its narinfo may follow soon.
            self.note_nar_used(&stored.name);
            return Ok(Begin::Known(stored));
        }
        let more = length.unwrap_or(0);
        self.make_room_for(more);
        if let Err(refusal) = self.check_quota(more) {
            self.notice_shortage(&refusal);
            self.check_quota(more)?;
        }
        Ok(Begin::Receive(Box::new(Upload { cache: self.clone(), target, length, grant: grant.clone() })))
    }

    /// Checks that this many more bytes are within the quota.
    pub(super) fn check_quota(&self, more: u64) -> Result<(), Refusal> {
        if let Some(quota) = self.settings().quota {
            let usage = self.usage()?;
            let bytes = usage.bytes.saturating_add(usage.small_bytes);
            if bytes.saturating_add(more) > quota {
                let cache = self.name();
                let message = format!(
                    "the cache '{cache}' is full: {bytes} of {quota} bytes are used; delete paths or raise its quota"
                );
                return Err(Refusal::new(RefusalKind::NoSpace, message));
            }
        }
        Ok(())
    }

    /// The NAR of an upload, if this cache already has its file.
    fn known(&self, target: &NarTarget) -> Result<Option<Stored>, Refusal> {
        let candidates = match target {
            NarTarget::File(name) => {
                let name = name.to_string();
                self.index().file(self.id(), &name)?.map(|nar| (name, nar)).into_iter().collect()
            }
            NarTarget::Nar { nar_hash, .. } => self.index().files_of(self.id(), nar_hash)?,
        };
        for (name, nar) in candidates {
            let len = self.directory().nar_len(&name).map_err(|error| Refusal::of_file("look at", &name, &error))?;
            if len == Some(nar.file_size)
                && let Ok(name) = NarFileName::parse(&name)
            {
                return Ok(Some(Stored::new(name, &nar)));
            }
        }
        Ok(None)
    }

    /// A temporary file in the data folder for [`Upload::adopt`]. It is removed when dropped.
    ///
    /// # Errors
    /// If it cannot be created.
    pub fn incoming_file(&self) -> Result<TemporaryFile, Refusal> {
        self.storage().incoming().map_err(|error| Refusal::of_file("create", "incoming/", &error))
    }
}

impl Upload {
    /// An internal upload, regardless of other files of the same NAR.
    pub(super) fn new(cache: &Cache, target: NarTarget, length: u64, grant: &Grant) -> Self {
        Self { cache: cache.clone(), target, length: Some(length), grant: grant.clone() }
    }

    /// Receives, verifies and stores the file. When this returns, its bytes are on the disk.
    ///
    /// # Errors
    /// If the body ends early, does not match its name and length, is not a NAR, or does not fit on the disk.
    /// Nothing is left then.
    pub fn receive(self, body: &mut dyn Read) -> Result<Stored, Refusal> {
        let result = self.cache.incoming_file().and_then(|file| {
            let verified = self.verify(body, Some(file.file()))?;
            self.store(verified.0, file, verified.1)
        });
        self.note(result)
    }

    /// Like [`Upload::receive`], for a file of [`Cache::incoming_file`] that is already complete: it is read, but not
    /// copied.
    ///
    /// # Errors
    /// See [`Upload::receive`].
    pub fn adopt(self, file: TemporaryFile) -> Result<Stored, Refusal> {
        let rewind = || file.file().rewind().map_err(|error| Refusal::of_file("read", self.target, &error));
        let verified = rewind().and_then(|()| self.verify(&mut file.file(), None));
        let result = verified.and_then(|verified| self.store(verified.0, file, verified.1));
        self.note(result)
    }

    fn note(&self, result: Result<Stored, Refusal>) -> Result<Stored, Refusal> {
        let outcome = result.as_ref().map(|stored| stored.nar_hash.to_string()).map_err(ToString::to_string);
        self.cache.audit(&self.grant, "nar", &self.target.to_string(), &outcome);
        result.inspect_err(|refusal| self.cache.notice_shortage(refusal))
    }

    fn verify(&self, body: &mut dyn Read, file: Option<&File>) -> Result<(Verified, TemporaryFile), Refusal> {
        let listing = self.cache.incoming_file()?;
        let nar_size_max = self.cache.settings().nar_size_max;
        let (is_unverified, is_alias) = (self.cache.is_unverified(), false);
        let claims = Claims { target: &self.target, length: self.length, nar_size_max, is_unverified, is_alias };
        Ok((verify(&claims, body, file, listing.file())?, listing))
    }

    fn store(&self, verified: Verified, file: TemporaryFile, listing: TemporaryFile) -> Result<Stored, Refusal> {
        let failed = |error: std::io::Error| Refusal::of_file("store", self.target, &error);
        let (cache, storage) = (&self.cache, self.cache.storage());
        let Verified { file_hash, file_size, nar_hash, nar_size, compression, listing_size, found } = verified;
        let fresh = NarRecord { nar_hash, nar_size, compression, file_hash, file_size, listing_size, found };
        // Before taking the lock, because it takes time. Not needed if the cache already has the NAR.
        let mut is_durable = cache.is_unverified();
        if !is_durable && cache.stored(&fresh)?.is_none() {
            file.file().sync_all().map_err(failed)?;
            is_durable = true;
        }
        let _no_collection = storage.lock_shared().map_err(failed)?;
        let _one_by_one = cache.nar_lock(&nar_hash).lock().unwrap_or_else(PoisonError::into_inner);
        let parsed = match &self.target {
            NarTarget::File(name) => *name,
            // The name of the stored file, if there is one already.
            NarTarget::Nar { .. } => {
                let kept = cache.stored(&fresh)?.map_or(file_hash, |kept| kept.file_hash);
                NarFileName::new(kept, compression)
            }
        };
        let name = parsed.to_string();
        let blob = storage.blob(&nar_hash, compression);
        let record = match cache.stored(&fresh)? {
            Some(kept) => {
                cache.index().add_file(cache.id(), &name, &kept, cache.now())?;
                kept
            }
            None => {
                // Others may have used the quota meanwhile.
                cache.check_quota(fresh.file_size)?;
                // The row first: a row without a file is found at the next start.
                cache.index().add_file(cache.id(), &name, &fresh, cache.now())?;
                let place = || {
                    if fresh.listing_size.is_some() {
                        storage::persist(listing, &storage.blob_listing(&nar_hash))?;
                    }
                    if !is_durable {
                        // Another upload's file existed a moment ago, and is lost now.
                        file.file().sync_all()?;
                    }
                    storage::persist(file, &blob)
                };
                if let Err(error) = place() {
                    // The first error is reported; if this fails, too, the next start finds the row.
                    cache.index().remove_file(cache.id(), &name).ok();
                    return Err(failed(error));
                }
                fresh
            }
        };
        cache.directory().link_nar(&blob, &name).map_err(failed)?;
        Ok(Stored::new(parsed, &record))
    }
}

impl Cache {
    /// Records a file below `nar/` that the index does not have, if it is a NAR.
    pub(super) fn import_nar(&self, name: &NarFileName, path: &Path) -> Result<(), Refusal> {
        let failed = |error: std::io::Error| Refusal::of_file("read", path.display(), &error);
        let mut file = File::open(path).map_err(failed)?;
        let (target, listing) = (NarTarget::File(*name), self.incoming_file()?);
        let nar_size_max = self.settings().nar_size_max;
        let claims = Claims { target: &target, length: None, nar_size_max, is_unverified: false, is_alias: true };
        let Verified { file_hash, file_size, nar_hash, nar_size, compression, listing_size, found } =
            verify(&claims, &mut file, None, listing.file())?;
        let blob = self.storage().blob(&nar_hash, compression);
        let mut nar = NarRecord { nar_hash, nar_size, compression, file_hash, file_size, listing_size, found };
        match self.index().nar(&nar_hash, compression)? {
            Some(kept) if kept.file_size == file_size && kept.file_hash == file_hash => {}
            // There already is another file of this NAR: this name becomes an alias of it, as after an upload.
            Some(kept) => {
                storage::link(&blob, path).map_err(failed)?;
                nar = kept;
            }
            None => {
                if let Some(folder) = blob.parent() {
                    std::fs::create_dir_all(folder).map_err(failed)?;
                }
                storage::link(path, &blob).map_err(failed)?;
                if listing_size.is_some() {
                    storage::persist(listing, &self.storage().blob_listing(&nar_hash)).map_err(failed)?;
                }
            }
        }
        Ok(self.index().add_file(self.id(), &name.to_string(), &nar, self.now())?)
    }

    /// The stored file of this NAR, if it exists as recorded.
    fn stored(&self, nar: &NarRecord) -> Result<Option<NarRecord>, Refusal> {
        let Some(kept) = self.index().nar(&nar.nar_hash, nar.compression)? else { return Ok(None) };
        let blob = self.storage().blob(&nar.nar_hash, nar.compression);
        let len = file_len(&blob).map_err(|error| Refusal::of_file("look at", blob.display(), &error))?;
        Ok(Some(kept).filter(|kept| len == Some(kept.file_size)))
    }
}

/// Verifies an upload of these bytes under a name with this compression or none, for fuzzing. Nothing is stored.
#[doc(hidden)]
pub fn verify_anything(bytes: &[u8], compression: Option<Compression>) -> Result<(NarHash, u64), Refusal> {
    let failed = |error: std::io::Error| Refusal::of_file("create", "a file", &error);
    let extension = compression.unwrap_or(Compression::None);
    let target = NarTarget::File(NarFileName::new(Sha256::of(bytes), extension));
    let listing = TemporaryFile::create(&std::env::temp_dir(), ".fuzz-", 0o600).map_err(failed)?;
    let nar_size_max = 16 << 20;
    let claims = Claims { target: &target, length: None, nar_size_max, is_unverified: false, is_alias: false };
    verify(&claims, &mut &*bytes, None, listing.file()).map(|verified| (verified.nar_hash, verified.nar_size))
}
