//! Receiving NARs.
//!
//! An upload is written to its own file while one pass verifies it: SHA-256 of the file, a bounded decoder, the NAR's
//! grammar, SHA-256 of the NAR, its listing, the store paths that it mentions. A valid upload is made durable, recorded
//! and linked to its names, in this order; an invalid one leaves nothing. The thread with the body does all of this.

pub(crate) mod contents;
mod listing;
mod many;
mod pass;
pub(crate) mod receipt;
pub(crate) mod receipt_key;
mod scan;
pub(crate) mod store_first;
mod tee;
pub(crate) mod unrecorded;

use std::io::{self, Read, Seek, Write};

use narval_files::TemporaryFile;
use narval_nix::{Compression, NarHash, Sha256};

pub(super) use self::pass::no_window;
use self::pass::{Claims, Verified, file_size_max, verify};
pub use self::receipt::RECEIPT_KEY;
use super::index::NarRecord;
use super::storage::{Incoming, Keep};
use super::{Cache, Grant, NarFileName, NarTarget, Refusal, RefusalKind, Scope};
use narval_codec::decode::{DECODE_MEMORY, WindowMemory};

/// The result of starting an upload.
#[derive(Debug)]
pub enum Begin {
    /// The cache has this NAR: nothing needs to be sent.
    Known(Stored),
    /// It must be sent.
    Receive(Box<Upload>),
}

/// Whether a client can bring receipts with its narinfos.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Receipts {
    /// It cannot: NARs are recorded at once.
    None,
    /// It can: in a bucket, NARs may be recorded with the commit.
    Wanted,
}

/// An accepted upload.
#[derive(Debug)]
pub struct Upload {
    cache: Cache,
    target: NarTarget,
    length: Option<u64>,
    grant: Grant,
    receipts: Receipts,
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
    /// What a commit has to bring, in the line [`RECEIPT_KEY`](super::RECEIPT_KEY) of the narinfo, if the NAR is not recorded yet.
    pub receipt: Option<String>,
}

impl Stored {
    fn new(name: NarFileName, nar: &NarRecord) -> Self {
        let NarRecord { nar_hash, nar_size, compression, file_hash, file_size, .. } = *nar;
        Self { name, nar_hash, nar_size, compression, file_hash, file_size, receipt: None }
    }

    fn with_receipt(nar: &NarRecord, receipt: String) -> Self {
        let name = NarFileName::new(nar.file_hash, nar.compression);
        Self { receipt: Some(receipt), ..Self::new(name, nar) }
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
        self.begin_with(target, length, Receipts::None, grant)
    }

    /// As [`begin`](Self::begin), for a client that may be able to bring receipts.
    ///
    /// # Errors
    /// See [`Cache::begin_nar`].
    pub fn begin_with(
        &self,
        target: NarTarget,
        length: Option<u64>,
        receipts: Receipts,
        grant: &Grant,
    ) -> Result<Begin, Refusal> {
        grant.require(self.name(), Scope::Push)?;
        let settings = self.settings();
        if length.is_some_and(|length| length > settings.nar_size_max) {
            let max = settings.nar_size_max;
            let message = format!("'{target}' is larger than {max} bytes, the largest NAR that this cache accepts");
            return Err(Refusal::new(RefusalKind::TooLarge, message));
        }
        if self.state().unrecorded.has(&target) {
            let stored = if receipts == Receipts::Wanted { self.stored_first(&target)? } else { None };
            match stored {
                Some((nar, receipt)) => return Ok(Begin::Known(Stored::with_receipt(&nar, receipt))),
                None => self.record_now()?,
            }
        }
        if let Some(stored) = self.known(&target)? {
            // Its narinfo may follow soon.
            self.note_nar_used(&stored.name);
            return Ok(Begin::Known(stored));
        }
        let more = length.unwrap_or(0);
        let check = || self.check_room(more).and_then(|()| self.check_quota(more));
        if let Err(refusal) = check() {
            self.notice_shortage(&refusal);
            check()?;
        }
        Ok(Begin::Receive(Box::new(Upload { cache: self.clone(), target, length, grant: grant.clone(), receipts })))
    }

    /// Checks that this many more bytes are within the quota. Those that this process has not recorded yet count, too.
    pub(super) fn check_quota(&self, more: u64) -> Result<(), Refusal> {
        self.check_recorded_quota(more.saturating_add(self.state().unrecorded.bytes()))
    }

    /// Checks that this many more bytes than those that are recorded are within the quota.
    pub(super) fn check_recorded_quota(&self, more: u64) -> Result<(), Refusal> {
        if let Some(quota) = self.settings().quota {
            let usage = self.usage()?;
            let bytes = usage.bytes.saturating_add(usage.small_bytes);
            if bytes.saturating_add(more) > quota {
                let cache = self.name();
                let message = format!(
                    "the cache '{cache}' is full: {bytes} of {quota} bytes are used; delete paths or raise its quota"
                );
                return Err(Refusal::new(RefusalKind::NoSpace, message).because("quota"));
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
            if self.files().is_placed(self.index(), self.id(), &name, &nar)?
                && let Ok(name) = NarFileName::parse(&name)
            {
                return Ok(Some(Stored::new(name, &nar)));
            }
        }
        Ok(None)
    }

    fn listing_file(&self) -> Result<Option<TemporaryFile>, Refusal> {
        self.files().listing().map_err(|error| Refusal::of_file("create", "a listing", &error))
    }

    /// A temporary file in the data folder for [`Upload::adopt`]. It is removed when dropped.
    ///
    /// # Errors
    /// If it cannot be created.
    pub fn incoming_file(&self) -> Result<TemporaryFile, Refusal> {
        self.storage().incoming().map_err(|error| Refusal::of_file("create", "incoming/", &error))
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
    /// An internal upload, regardless of other files of the same NAR.
    pub(super) fn new(cache: &Cache, target: NarTarget, length: u64, grant: &Grant) -> Self {
        let receipts = Receipts::None;
        Self { cache: cache.clone(), target, length: Some(length), grant: grant.clone(), receipts }
    }

    /// Receives, verifies and stores the file. When this returns, its bytes are on the disk.
    ///
    /// # Errors
    /// If the body ends early, does not match its name and length, is not a NAR, or does not fit on the disk.
    /// Nothing is left then.
    pub fn receive(self, body: &mut dyn Read) -> Result<Stored, Refusal> {
        let len_max = self.length.unwrap_or_else(|| file_size_max(self.cache.settings().nar_size_max));
        let received = self.cache.files().receive(&self.target, len_max);
        let received = received.map_err(|error| Refusal::of_file("create", self.target, &error));
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
    pub fn adopt(self, file: TemporaryFile) -> Result<Stored, Refusal> {
        let rewind = || file.file().rewind().map_err(|error| Refusal::of_file("read", self.target, &error));
        let verified = rewind().and_then(|()| self.verify(&mut file.file(), None));
        let result = verified.and_then(|verified| self.store(verified.0, Incoming::File(file), verified.1));
        self.note(result)
    }

    fn note(&self, result: Result<Stored, Refusal>) -> Result<Stored, Refusal> {
        let outcome = result.as_ref().map(|stored| stored.nar_hash.to_string()).map_err(ToString::to_string);
        self.cache.audit(&self.grant, "nar", &self.target.to_string(), &outcome);
        result.inspect_err(|refusal| self.cache.notice_shortage(refusal))
    }

    fn verify<'a>(
        &self,
        body: &'a mut dyn Read,
        file: Option<&'a mut dyn Write>,
    ) -> Result<(Verified, Option<TemporaryFile>), Refusal> {
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

    fn store(&self, verified: Verified, received: Incoming, listing: Option<TemporaryFile>) -> Result<Stored, Refusal> {
        let cache = &self.cache;
        let Verified { nar, .. } = verified;
        if self.receipts == Receipts::Wanted
            && let Some(leave) = cache.store_first(&[&nar])?.filter(|leave| leave.are_new == [true])
        {
            cache.check_quota(nar.file_size)?;
            return match cache.files().store(received, &nar) {
                Ok(()) => Ok(Stored::with_receipt(&nar, cache.was_stored(&leave, &nar))),
                Err(error) => {
                    cache.was_not_stored(&[&nar]);
                    Err(Refusal::of_file("store", self.target, &error))
                }
            };
        }
        let keep = Keep {
            index: cache.index(),
            cache: cache.id(),
            target: &self.target,
            one_by_one: cache.state().nar_lock(&nar.nar_hash),
            nar,
            listing,
            now: cache.now(),
            is_unverified: cache.is_unverified(),
            check_quota: &|bytes| cache.check_quota(bytes),
        };
        let (name, nar) = cache.files().keep(received, keep)?;
        Ok(Stored::new(name, &nar))
    }
}

impl Cache {
    /// Records a file below `nar/` that the index does not have, if it is a NAR.
    pub(super) fn import_nar(&self, name: &NarFileName, file: &mut dyn Read) -> Result<(), Refusal> {
        let (target, listing) = (NarTarget::File(*name), self.listing_file()?);
        let nar_size_max = self.settings().nar_size_max;
        let claims = Claims { target: &target, length: None, nar_size_max, is_unverified: false, is_alias: true };
        let Verified { nar, .. } = verify(&claims, None, file, None, listing.as_ref().map(TemporaryFile::file))?;
        let (name, failed) = (name.to_string(), |error: io::Error| Refusal::of_file("import", name, &error));
        let nar = match self.index().nar(self.id(), &nar.nar_hash, nar.compression)? {
            // There is another file of this NAR already, of which this becomes another name, as after an upload.
            Some(kept) if (kept.file_hash, kept.file_size) != (nar.file_hash, nar.file_size) => {
                let names = self.index().files_of(self.id(), &nar.nar_hash)?;
                if let Some((other, _)) = names.iter().find(|(_, other)| *other == kept) {
                    self.files().add_alias(other, &name).map_err(failed)?;
                }
                kept
            }
            _ => {
                if let Some(listing) = listing.filter(|_| nar.listing_size.is_some()) {
                    self.files().keep_listing(&name, listing).map_err(failed)?;
                }
                nar
            }
        };
        self.index().add_file(self.id(), &name, &nar, self.now())?;
        Ok(())
    }
}

/// Verifies an upload of these bytes under a name with this compression or none, for fuzzing. Nothing is stored.
#[doc(hidden)]
pub fn verify_anything(bytes: &[u8], compression: Option<Compression>) -> Result<(NarHash, u64), Refusal> {
    let failed = |error: io::Error| Refusal::of_file("create", "a file", &error);
    let extension = compression.unwrap_or(Compression::None);
    let target = NarTarget::File(NarFileName::new(Sha256::of(bytes), extension));
    let listing = TemporaryFile::create(&std::env::temp_dir(), ".fuzz-", 0o600).map_err(failed)?;
    let nar_size_max = 16 << 20;
    let claims = Claims { target: &target, length: None, nar_size_max, is_unverified: false, is_alias: false };
    let window = WindowMemory::new(DECODE_MEMORY).window();
    verify(&claims, Some(window), &mut &*bytes, None, Some(listing.file()))
        .map(|verified| (verified.nar.nar_hash, verified.nar.nar_size))
}
