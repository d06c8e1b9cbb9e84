//! Receiving NARs.
//!
//! An upload is written to its own file while one pass verifies it: SHA-256 of the file, a bounded decoder, the NAR's
//! grammar, SHA-256 of the NAR, its listing, the store paths that it mentions. A valid upload is made durable, gets a name that no
//! other file ever has, and is recorded, in this order; an invalid one leaves nothing. The thread with the body does all of this.

pub(crate) mod contents;
mod listing;
mod many;
mod pass;
mod scan;
mod storing;
mod tee;

use std::io::{self, Read, Seek, Write};

use narval_files::TemporaryFile;
use narval_nix::{Compression, NarHash, Sha256};

pub(super) use self::pass::no_window;
use self::pass::{Claims, Verified, file_size_max, verify};
use crate::access::grant::{Grant, Scope};
use crate::cache::Cache;
use crate::name::{NarFileName, NarTarget};
use crate::records::paths::{NamedNar, NarRecord};
use crate::rejection::{Rejection, RejectionKind};
use crate::rule::holds;
use crate::shared::writing::RECORDED_WITHIN;
use crate::storage::Incoming;
use narval_client::clock;
use narval_codec::decode::{DECODE_MEMORY, WindowMemory};

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
    /// Under which it will be stored.
    name: NarFileName,
    length: Option<u64>,
    grant: Grant,
    /// When it was begun, in seconds since 1970.
    begun: u64,
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

    /// `None` if the name is not one of a NAR, which only the index of somebody else can have.
    fn of((name, nar): &NamedNar) -> Option<Self> {
        Some(Self::new(NarFileName::parse(name).ok()?, nar))
    }
}

impl Cache {
    /// Starts the upload of a NAR of this length, named by its file's hash as below `nar/`. Call this before reading
    /// the body.
    ///
    /// # Errors
    /// If the name is invalid, the token may not push, or the file is too large or does not fit on the disk.
    pub fn begin_nar(&self, name: &str, length: Option<u64>, grant: &Grant) -> Result<Begin, Rejection> {
        grant.require(self.name(), Scope::Push)?;
        let parsed = NarFileName::parse(name);
        let malformed = |why: &dyn std::fmt::Display| Rejection::malformed(format_args!("'{name}': {why}"));
        let name = parsed.map_err(|error| malformed(&error))?;
        if name.is_unique() {
            return Err(malformed(&"the cache chooses such names; an upload has the hash of its file alone"));
        }
        self.begin(NarTarget::File(name), length, grant)
    }

    /// Like [`Cache::begin_nar`], named by either hash. For a NAR's hash, a file with another compression also counts.
    ///
    /// # Errors
    /// See [`Cache::begin_nar`].
    pub fn begin(&self, target: NarTarget, length: Option<u64>, grant: &Grant) -> Result<Begin, Rejection> {
        grant.require(self.name(), Scope::Push)?;
        let settings = self.settings();
        if length.is_some_and(|length| length > settings.nar_size_max) {
            let max = settings.nar_size_max;
            let message = format!("'{target}' is larger than {max} bytes, the largest NAR that this cache accepts");
            return Err(Rejection::too_large(message));
        }
        if let Some(stored) = self.known(&target)? {
            // Its narinfo may follow soon.
            if holds!(Promised) {
                self.note_nar_used(&stored.name);
            }
            return Ok(Begin::Known(stored));
        }
        let more = length.unwrap_or(0);
        let check = || self.check_room(more).and_then(|()| self.check_quota(more));
        if let Err(rejection) = check() {
            self.notice_shortage(&rejection);
            check()?;
        }
        Ok(Begin::Receive(Box::new(Upload::new(self, target, length, grant)?)))
    }

    /// Checks that this many more bytes are within the quota.
    pub(super) fn check_quota(&self, more: u64) -> Result<(), Rejection> {
        if let Some(quota) = self.settings().quota {
            let usage = self.usage()?;
            let bytes = usage.bytes.saturating_add(usage.small_bytes);
            if bytes.saturating_add(more) > quota {
                let cache = self.name();
                let message = format!(
                    "the cache '{cache}' is full: {bytes} of {quota} bytes are used; delete paths or raise its quota"
                );
                return Err(Rejection::new(RejectionKind::NoSpace, message).because("quota"));
            }
        }
        Ok(())
    }

    /// The NAR of an upload, if this cache already has its file.
    fn known(&self, target: &NarTarget) -> Result<Option<Stored>, Rejection> {
        if let NarTarget::File(name) = target {
            return Ok(self.stored(&name.to_string())?.and_then(|nar| Stored::of(&nar)));
        }
        let NarTarget::Nar { nar_hash, .. } = target else { return Ok(None) };
        for (name, _) in self.index().files_of(self.id(), nar_hash)? {
            if let Some(nar) = self.stored(&name)? {
                return Ok(Stored::of(&nar));
            }
        }
        Ok(None)
    }

    /// The NAR that a name below `nar/` means, with its own name, if its file is there, as far as that can be told without asking a bucket.
    pub(super) fn stored(&self, name: &str) -> Result<Option<NamedNar>, Rejection> {
        // Whoever is told so may rely on it: what is remembered does not count, because another server may have removed it since.
        let known = |name: &str| self.index().file_now(self.id(), name);
        let Some((own, nar)) = known(name)? else { return Ok(None) };
        if self.has_nar((&own, &nar))? {
            return Ok(Some((own, nar)));
        }
        // Its file is lost. The NAR may have been pushed again.
        let others = self.index().files_of(self.id(), &nar.nar_hash)?.into_iter();
        for (name, other) in others.filter(|(name, other)| *name != own && other.compression == nar.compression) {
            if self.has_nar((&name, &other))? {
                return Ok(known(&name)?);
            }
        }
        Ok(None)
    }

    /// Whether the file of a NAR is there; a bucket is not asked.
    pub(super) fn has_nar(&self, (name, nar): (&str, &NarRecord)) -> Result<bool, Rejection> {
        self.files().has_nar(name, nar.file_size).map_err(|error| Rejection::of_file("look at", name, &error))
    }

    /// The file of a NAR in this compression.
    fn same(&self, nar: &NarRecord) -> Result<Option<NamedNar>, Rejection> {
        let all = self.index().files_of(self.id(), &nar.nar_hash)?;
        match all.into_iter().find(|(_, other)| other.compression == nar.compression) {
            Some((name, _)) => self.stored(&name),
            None => Ok(None),
        }
    }

    fn listing_file(&self) -> Result<Option<TemporaryFile>, Rejection> {
        self.files().listing().map_err(|error| Rejection::of_file("create", "a listing", &error))
    }

    /// A temporary file in the data folder for [`Upload::adopt`]. It is removed when dropped.
    ///
    /// # Errors
    /// If it cannot be created.
    pub fn incoming_file(&self) -> Result<TemporaryFile, Rejection> {
        self.storage().incoming().map_err(|error| Rejection::of_file("create", "incoming/", &error))
    }
}

/// A file that is received. If the disk is full, what can be fetched again makes room.
struct Roomy<'a> {
    cache: &'a Cache,
    to: &'a mut Incoming,
}

impl Write for Roomy<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.to.write(bytes) {
            Err(error) if error.kind() == io::ErrorKind::StorageFull => {
                self.cache.make_disk_room(bytes.len() as u64);
                self.to.write(bytes)
            }
            written => written,
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

impl Upload {
    /// An upload, regardless of files of the same NAR in other compressions.
    pub(super) fn new(cache: &Cache, target: NarTarget, length: Option<u64>, grant: &Grant) -> Result<Self, Rejection> {
        let named = match target {
            NarTarget::File(name) => name,
            NarTarget::Nar { nar_hash, compression } => NarFileName::new(nar_hash, compression),
        };
        let name = named.unique().map_err(Rejection::failed)?;
        Ok(Self { cache: cache.clone(), target, name, length, grant: grant.clone(), begun: cache.now() })
    }

    /// Receives, verifies and stores the file. When this returns, its bytes are on the disk.
    ///
    /// # Errors
    /// If the body ends early, does not match its name and length, is not a NAR, or does not fit on the disk.
    /// Nothing is left then.
    pub fn receive(self, body: &mut dyn Read) -> Result<Stored, Rejection> {
        let len_max = self.length.unwrap_or_else(|| file_size_max(self.cache.settings().nar_size_max));
        let received = self.cache.files().receive(&self.name.to_string(), len_max);
        let received = received.map_err(|error| Rejection::of_file("create", self.target, &error));
        let result = received.and_then(|mut received| {
            let verified = self.verify(body, Some(&mut Roomy { cache: &self.cache, to: &mut received }))?;
            self.store(verified.0, received, verified.1)
        });
        self.note(result)
    }

    /// Like [`Upload::receive`], for a file of [`Cache::incoming_file`] that is already complete: it is read, but not
    /// copied.
    ///
    /// # Errors
    /// See [`Upload::receive`].
    pub fn adopt(self, file: TemporaryFile) -> Result<Stored, Rejection> {
        let rewind = || file.file().rewind().map_err(|error| Rejection::of_file("read", self.target, &error));
        let verified = rewind().and_then(|()| self.verify(&mut file.file(), None));
        let result = verified.and_then(|verified| self.store(verified.0, Incoming::File(file), verified.1));
        self.note(result)
    }

    fn note(&self, result: Result<Stored, Rejection>) -> Result<Stored, Rejection> {
        let outcome = result.as_ref().map(|stored| stored.nar_hash.to_string()).map_err(ToString::to_string);
        self.cache.audit(&self.grant, "nar", &self.target.to_string(), &outcome);
        result.inspect_err(|rejection| self.cache.notice_shortage(rejection))
    }

    fn verify<'a>(
        &self,
        body: &'a mut dyn Read,
        file: Option<&'a mut dyn Write>,
    ) -> Result<(Verified, Option<TemporaryFile>), Rejection> {
        let listing = self.cache.listing_file()?;
        let nar_size_max = self.cache.settings().nar_size_max;
        let (is_unverified, is_alias) = (self.cache.is_unverified(), false);
        let claims = Claims { target: &self.target, length: self.length, nar_size_max, is_unverified, is_alias };
        let window = self.cache.shared().window_memory.window();
        let verified = verify(&claims, Some(window), body, file, listing.as_ref().map(TemporaryFile::file))?;
        if let Some(file) = verified.file {
            self.cache.shared().file_hashes.note(self.cache.id(), verified.nar.nar_hash, file);
        }
        Ok((verified, listing))
    }

    fn store(
        &self,
        verified: Verified,
        received: Incoming,
        listing: Option<TemporaryFile>,
    ) -> Result<Stored, Rejection> {
        let cache = &self.cache;
        let (nar, failed) = (verified.nar, |error: io::Error| Rejection::of_file("store", self.target, &error));
        if let Incoming::File(file) = &received
            && cache.is_local()
            && !cache.is_unverified()
        {
            file.file().sync_all().map_err(failed)?;
        }
        // Uploads of the same NAR, one after another.
        let _one_by_one = clock::lock(cache.state().nar_lock(&nar.nar_hash));
        if let Some((name, kept)) = cache.same(&nar)? {
            if kept.file_hash != nar.file_hash {
                // The client names what it has uploaded.
                cache.index().remember_former(cache.id(), nar.file_hash, nar.nar_hash)?;
            }
            let name = NarFileName::parse(&name).map_err(Rejection::failed)?;
            return Ok(Stored::new(name, &kept));
        }
        // Others may have used the quota meanwhile.
        cache.check_quota(nar.file_size)?;
        let (storing, name) = (cache.begin_storing()?, self.name.to_string());
        if !holds!(Follows) {
            cache.index().record(cache.id(), (name.clone(), nar.clone()), self.times())?;
        }
        cache.files().store(received, &name, &nar, listing).map_err(failed)?;
        cache.index().record(cache.id(), (name, nar.clone()), self.times())?;
        storing.recorded();
        Ok(Stored::new(self.name, &nar))
    }

    /// The current time, and until when this upload can be recorded.
    fn times(&self) -> (u64, u64) {
        (self.cache.now(), self.begun.saturating_add(RECORDED_WITHIN))
    }
}

impl Cache {
    /// Records a file below `nar/` that the index does not have, if it is a NAR.
    pub(super) fn import_nar(&self, name: &NarFileName, file: &mut dyn Read) -> Result<(), Rejection> {
        let (target, listing) = (NarTarget::File(*name), self.listing_file()?);
        let nar_size_max = self.settings().nar_size_max;
        let claims = Claims { target: &target, length: None, nar_size_max, is_unverified: false, is_alias: true };
        let Verified { nar, .. } = verify(&claims, None, file, None, listing.as_ref().map(TemporaryFile::file))?;
        let name = name.to_string();
        if let Some(listing) = listing.filter(|_| nar.listing_size.is_some()) {
            let failed = |error: io::Error| Rejection::of_file("import", &name, &error);
            self.files().keep_listing(&name, listing).map_err(failed)?;
        }
        Ok(self.index().record(self.id(), (name, nar), (self.now(), u64::MAX))?)
    }
}

/// Verifies an upload of these bytes under a name with this compression or none, for fuzzing. Nothing is stored.
#[doc(hidden)]
pub fn verify_anything(bytes: &[u8], compression: Option<Compression>) -> Result<(NarHash, u64), Rejection> {
    let failed = |error: io::Error| Rejection::of_file("create", "a file", &error);
    let extension = compression.unwrap_or(Compression::None);
    let target = NarTarget::File(NarFileName::new(Sha256::of(bytes), extension));
    let listing = TemporaryFile::create(&std::env::temp_dir(), ".fuzz-", 0o600).map_err(failed)?;
    let nar_size_max = 16 << 20;
    let claims = Claims { target: &target, length: None, nar_size_max, is_unverified: false, is_alias: false };
    let window = WindowMemory::new(DECODE_MEMORY).window();
    verify(&claims, Some(window), &mut &*bytes, None, Some(listing.file()))
        .map(|verified| (verified.nar.nar_hash, verified.nar.nar_size))
}
