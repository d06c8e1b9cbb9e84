//! One cache of a data folder: reading.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Write};
use std::sync::{Arc, PoisonError};

use narval_nix::{HashPart, NarHash, SecretKey};

use crate::access::grant::Grant;
use crate::error::{DataError, io_error};
use crate::index::{Index, IndexError};
use crate::name::{CacheName, NarFileName};
use crate::records::paths::{CacheId, Listed, NarRecord, Usage, Used};
use crate::rejection::{Rejection, RejectionKind};
use crate::settings::CacheSettings;
use crate::shared::other_sources::OtherSources;
use crate::shared::{CacheState, Finder, RESOLUTION_SECONDS, Shared, SmallBytes};
use crate::storage::{Asker, CacheStorage, NarBytes, Redirect, Storage, StorageLock};

/// The maximum number of hash parts in one query.
const QUESTION_MAX: usize = 1 << 20;

/// Paths whose retention ends sooner than this might be collected soon, in seconds: their uses are recorded before they are answered.
const DAY: u64 = 24 * 60 * 60;

/// The most files that are looked for by one name.
const FOUND_MAX: usize = 3;

/// The number of paths read from the index at a time.
const LIST_STEP: usize = 4096;

/// Hash parts in one statement.
const PARTS_STEP: usize = 65_536;

/// Identifies a state for caching results: if two stamps are equal, nothing has changed that a reader of any cache of
/// the folder can see. Take it before the query.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Stamp(pub(super) u64);

/// How far the history of a cache is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Point {
    /// Which history it is, if servers share one; otherwise it is that of this process.
    pub shared: Option<u64>,
    /// Paths up to this number are known.
    pub sequence: u64,
}

/// The open file of a NAR.
#[derive(Debug)]
pub struct NarFile {
    /// The file, at its start.
    pub file: File,
    /// Its length in bytes.
    pub len: u64,
    /// How it is compressed.
    pub compression: narval_nix::Compression,
    /// SHA-256 of the NAR in it.
    pub nar_hash: NarHash,
}

/// What is known of a NAR without opening it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NarHead {
    /// The length of its file in bytes.
    pub len: u64,
    /// How it is compressed.
    pub compression: narval_nix::Compression,
    /// SHA-256 of the NAR in it.
    pub nar_hash: NarHash,
    /// Size of the NAR in bytes.
    pub nar_size: u64,
}

impl NarHead {
    fn new(nar: &NarRecord) -> Self {
        let NarRecord { nar_hash, nar_size, compression, file_size: len, .. } = *nar;
        Self { len, compression, nar_hash, nar_size }
    }
}

/// The narinfo of a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptNarinfo {
    /// As it is served.
    pub text: Arc<[u8]>,
    /// Until when it may be answered from memory, in seconds since 1970 ([`Cache::note_hit`]).
    pub until: u64,
}

/// One cache: cheap to clone, shared by threads.
#[derive(Clone)]
pub struct Cache {
    shared: Arc<Shared>,
    state: Arc<CacheState>,
}

impl Cache {
    pub(super) fn new(shared: Arc<Shared>, state: Arc<CacheState>) -> Self {
        Self { shared, state }
    }

    /// Its name.
    pub fn name(&self) -> &CacheName {
        &self.state.name
    }

    /// Its settings.
    pub fn settings(&self) -> Arc<CacheSettings> {
        Arc::clone(&self.state.settings.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Changes its settings, here and in the index.
    ///
    /// # Errors
    /// If the index or `nix-cache-info` cannot be written.
    pub fn set_settings(&self, settings: &CacheSettings) -> Result<(), DataError> {
        self.index().set_settings(self.id(), &settings.to_json())?;
        self.replace_settings(settings.clone());
        let path = self.files().place();
        self.write_cache_info().map_err(|source| io_error("write 'nix-cache-info' in", path, source))
    }

    /// Uses the settings that the index has.
    pub(super) fn replace_settings(&self, settings: CacheSettings) {
        let mut current = self.state.settings.write().unwrap_or_else(PoisonError::into_inner);
        if **current != settings {
            *current = Arc::new(settings);
        }
    }

    /// Sets the keys that sign uploads of clients with the permission to sign. Only kept in memory.
    pub fn set_sign_keys(&self, keys: Vec<SecretKey>) {
        *self.state.sign_keys.write().unwrap_or_else(PoisonError::into_inner) = keys.into();
        self.shared.surveys.outdate();
    }

    /// Sets where references may also exist, besides this cache.
    pub fn set_other_sources(&self, other_sources: Option<Arc<dyn OtherSources>>) {
        *self.state.other_sources.write().unwrap_or_else(PoisonError::into_inner) = other_sources;
    }

    /// Changes with every change that a reader can see, by whichever process: as [`Data::stamp`](super::Data::stamp).
    pub fn stamp(&self) -> Stamp {
        Stamp(self.index().stamp())
    }

    /// Whether other servers may add paths at any time: then absent paths must be queried again.
    pub fn is_shared(&self) -> bool {
        self.index().is_shared()
    }

    /// Whether its files are in a folder, so that opening one costs little.
    pub fn is_local(&self) -> bool {
        !self.storage().publishes_later()
    }

    /// Whether uploads can be stored now: writes to a temporary file, as an upload does first.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn check_writable(&self) -> Result<(), Rejection> {
        let fail = |error: io::Error| Rejection::of_file("write to", "incoming", &error);
        self.storage().check_writable().map_err(fail)
    }

    /// The narinfo of a path, as served.
    ///
    /// # Errors
    /// If the index fails.
    pub fn narinfo(&self, hash_part: &HashPart) -> Result<Option<Arc<[u8]>>, IndexError> {
        Ok(self.narinfo_until(hash_part)?.map(|found| found.text))
    }

    /// As [`narinfo`](Self::narinfo), with the time until when it may be answered from memory.
    ///
    /// Who is answered relies on the path: `nix copy` does not push it then. Its use is in memory for some seconds, and a collection by another process does not
    /// know it. So the use of a path that a collection might remove soon is recorded before it is answered.
    ///
    /// # Errors
    /// If the index fails.
    pub fn narinfo_until(&self, hash_part: &HashPart) -> Result<Option<KeptNarinfo>, IndexError> {
        let find = || {
            let found = self.index().narinfo(self.id(), hash_part)?;
            let kept = |(text, used): (Vec<u8>, u64)| KeptNarinfo { text: text.into(), until: self.safe_until(used) };
            Ok::<_, IndexError>(found.map(kept))
        };
        let Some(found) = find()? else { return Ok(None) };
        if self.note_hit(hash_part, found.until) {
            return Ok(Some(found));
        }
        self.index().used(&[Used { cache: self.id(), path: Some(*hash_part), file: None, time: self.now() }])?;
        // It may have been collected before.
        find()
    }

    /// The narinfo of a path for somebody who only looks: it is no use of the path.
    ///
    /// # Errors
    /// If the index fails.
    pub fn narinfo_to_look_at(&self, hash_part: &HashPart) -> Result<Option<Vec<u8>>, IndexError> {
        Ok(self.index().narinfo(self.id(), hash_part)?.map(|(text, _)| text))
    }

    /// Notes that a narinfo was answered from memory, which [`narinfo_until`](Self::narinfo_until) has returned with this time. Returns `false` if it must
    /// not be: its use has to be recorded before.
    pub fn note_hit(&self, hash_part: &HashPart, until: u64) -> bool {
        let now = self.now();
        let is_safe = now < until;
        if is_safe {
            self.shared.uses.note_path(self.id(), hash_part, now);
        }
        is_safe
    }

    /// Until when no collection removes a path that was last used then.
    fn safe_until(&self, used: u64) -> u64 {
        let settings = self.settings();
        let of_retention = settings.retention_days.map_or(u64::MAX, |days| {
            let retention = u64::from(days) * DAY;
            used.saturating_add(retention - DAY.min(retention / 2))
        });
        // With a maximum size, the order counts in which paths were used: to the minute, as uses are recorded.
        let of_size = settings.size_max.map_or(u64::MAX, |_| used.saturating_add(RESOLUTION_SECONDS));
        of_retention.min(of_size)
    }

    /// The NAR of this name below `nar/`, as the index has it. It may be lost.
    ///
    /// # Errors
    /// If the index fails.
    pub fn nar_head(&self, name: &str) -> Result<Option<NarHead>, Rejection> {
        Ok(self.stored(name)?.map(|(_, nar)| NarHead::new(&nar)))
    }

    /// The bytes of a NAR by its name below `nar/`; see [`nar_file`](Self::nar_file). In a bucket, they may be on their way, and with
    /// `redirect`, elsewhere.
    ///
    /// # Errors
    /// See [`nar_file`](Self::nar_file).
    pub fn nar(&self, name: &str, redirect: Redirect) -> Result<Option<(NarHead, NarBytes)>, Rejection> {
        self.find_nar(name, |name, nar| match self.files().redirect_url(name, nar, redirect) {
            Some(address) => Ok(Some(NarBytes::Redirect(address))),
            None => self.files().nar(name, nar, Asker::Client),
        })
    }

    /// Like [`nar`](Self::nar), for another node ([`Data::is_peer`](super::Data::is_peer)), which takes it that this one keeps the NAR: it is
    /// neither redirected nor sent to a third one.
    ///
    /// # Errors
    /// See [`nar_file`](Self::nar_file).
    pub fn nar_for_peer(&self, name: &str) -> Result<Option<(NarHead, NarBytes)>, Rejection> {
        self.find_nar(name, |name, nar| self.files().nar(name, nar, Asker::Peer))
    }

    fn find_nar<T>(
        &self,
        name: &str,
        open: impl Fn(&str, &NarRecord) -> io::Result<Option<T>>,
    ) -> Result<Option<(NarHead, T)>, Rejection> {
        // One that is lost is removed from the index, and there may be another file of the NAR.
        for _ in 0..FOUND_MAX {
            let Some((own, nar)) = self.index().file(self.id(), name)? else { return Ok(None) };
            if let Some(opened) = open(&own, &nar).map_err(|error| Rejection::of_file("open", &own, &error))? {
                if let Ok(own) = NarFileName::parse(&own) {
                    self.note_nar_used(&own);
                }
                return Ok(Some((NarHead::new(&nar), opened)));
            }
            self.lost(&own, &nar, Finder::Read)?;
        }
        Ok(None)
    }

    /// Opens the file of a NAR by its name below `nar/`. Returns `None` if there is none. A file of the wrong length is never served: it is
    /// removed from the index, together with the paths that use it, so that they can be pushed again.
    ///
    /// # Errors
    /// If the index or the file cannot be read.
    pub fn nar_file(&self, name: &str) -> Result<Option<NarFile>, Rejection> {
        let found = self.find_nar(name, |name, nar| self.files().open_nar(name, nar))?;
        Ok(found.map(|(NarHead { len, compression, nar_hash, .. }, file)| NarFile { file, len, compression, nar_hash }))
    }

    /// Reads a NAR, as far as the simulation does.
    #[cfg(test)]
    pub(super) fn read_simulated(&self, name: &str) -> Result<Option<()>, Rejection> {
        let exists = |name: &str, nar: &NarRecord| Ok(self.files().check_nar(name, nar)?.then_some(()));
        Ok(self.find_nar(name, exists)?.map(|(_, exists)| exists))
    }

    /// Returns the paths that are missing, or whose NAR is lost, in the given order. With `lease_seconds`, the others are leased for so long,
    /// because the client will not upload them.
    ///
    /// # Errors
    /// If the index or a file cannot be read, or there are too many hash parts.
    pub fn missing(&self, hash_parts: &[HashPart], lease_seconds: Option<u64>) -> Result<Vec<HashPart>, Rejection> {
        if hash_parts.len() > QUESTION_MAX {
            let message = format!("more than {QUESTION_MAX} paths in one query");
            return Err(Rejection::new(RejectionKind::TooLarge, message));
        }
        let mut present = HashSet::new();
        for (part, located) in hash_parts.iter().zip(self.index().located(self.id(), hash_parts)?) {
            if let Some((name, size)) = located
                && self.files().has_nar(&name, size).map_err(|error| Rejection::of_file("look at", &name, &error))?
            {
                present.insert(*part);
            }
        }
        // Those that have gone since are not leased. Paths that are not there never are: a client may ask for any.
        if let Some(seconds) = lease_seconds.filter(|_| !present.is_empty()) {
            let (parts, until) = (Vec::from_iter(present), self.now().saturating_add(seconds));
            present = self.index().lease(self.id(), &parts, until)?.into_iter().collect();
        }
        Ok(hash_parts.iter().filter(|part| !present.contains(part)).copied().collect())
    }

    /// All its paths, by base name.
    ///
    /// # Errors
    /// If the index fails.
    pub fn list(&self) -> Result<Vec<Listed>, IndexError> {
        self.record_uses();
        let mut listed = Vec::new();
        self.each_path(|path| {
            listed.push(path);
            Ok::<(), IndexError>(())
        })?;
        // By hash part, and so by base name.
        Ok(listed)
    }

    /// At most `max` paths by base name, after the one with this hash part.
    ///
    /// # Errors
    /// If the index fails.
    pub fn list_after(&self, after: Option<&HashPart>, max: usize) -> Result<Vec<Listed>, IndexError> {
        self.record_uses();
        self.index().list(self.id(), after.map_or("", HashPart::as_str), max)
    }

    /// Up to which point its history is complete now.
    fn point(&self) -> Result<Point, IndexError> {
        let (shared, id) = match self.index().history()? {
            Some((shared, id)) => (Some(shared), id),
            None => (None, self.index().last_id()?),
        };
        Ok(Point { shared, sequence: id.cast_unsigned() })
    }

    /// The hash parts of all paths, and up to which point of the cache's history they are complete; `None` if there are more than `max`.
    /// Paths that come meanwhile may be left out: they are after that point.
    ///
    /// # Errors
    /// If the index fails.
    pub fn all_parts(&self, max: usize) -> Result<Option<(Point, Vec<HashPart>)>, IndexError> {
        let (point, mut all, mut after) = (self.point()?, Vec::new(), String::new());
        while all.len() <= max {
            let parts = self.index().parts(self.id(), &after, PARTS_STEP)?;
            let Some(end) = parts.last().filter(|_| parts.len() == PARTS_STEP) else {
                all.extend(parts);
                return Ok(Some((point, all)).filter(|(_, all)| all.len() <= max));
            };
            after = end.to_string();
            all.extend(parts);
        }
        Ok(None)
    }

    /// The paths that came after a point of the cache's history, and up to which point; `None` if there are more than `max`, or the point is of
    /// another history. Where other servers write to it, too, some that came after the new point may be among them.
    ///
    /// # Errors
    /// If the index fails.
    pub fn parts_since(&self, since: Point, max: usize) -> Result<Option<(Point, Vec<HashPart>)>, IndexError> {
        let point = self.point()?;
        if point.shared != since.shared {
            return Ok(None);
        }
        // The last path may be gone since.
        let sequence = point.sequence.max(since.sequence);
        let last = if point.shared.is_some() { i64::MAX } else { sequence.cast_signed() };
        let parts = self.index().parts_between(self.id(), (since.sequence.cast_signed(), last), max + 1)?;
        Ok((parts.len() <= max).then_some((Point { sequence, ..point }, parts)))
    }

    /// Each path, sorted by hash part. Paths that come or go meanwhile may be left out.
    pub(super) fn each_path<E: From<IndexError>>(
        &self,
        mut take: impl FnMut(Listed) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut after = String::new();
        loop {
            let paths = self.index().list(self.id(), &after, LIST_STEP)?;
            let Some(last) = paths.last() else { return Ok(()) };
            last.hash_part.as_str().clone_into(&mut after);
            paths.into_iter().try_for_each(&mut take)?;
        }
    }

    /// The base name of a path whose NAR is in this file.
    ///
    /// # Errors
    /// If the index fails.
    pub fn path_of_nar(&self, name: &str) -> Result<Option<String>, IndexError> {
        let Some((own, _)) = self.index().file(self.id(), name)? else { return Ok(None) };
        let Some(part) = self.index().paths_of_file(self.id(), &own)?.into_iter().next() else { return Ok(None) };
        Ok(self.index().path(self.id(), &part)?.map(|record| record.path))
    }

    /// Its number of paths and size.
    ///
    /// # Errors
    /// If the index fails, or the small files cannot be listed.
    pub fn usage(&self) -> Result<Usage, Rejection> {
        Ok(Usage { small_bytes: self.bytes_of_small_files()?, ..self.index().usage(self.id())? })
    }

    /// The paths that refer to a path, except itself.
    ///
    /// # Errors
    /// If the index fails.
    pub fn referrers(&self, hash_part: &HashPart) -> Result<Vec<HashPart>, IndexError> {
        self.index().referrers(self.id(), hash_part)
    }

    /// Notes that a path was requested. Answers from memory count, too.
    pub fn note_used(&self, hash_part: &HashPart) {
        self.shared.uses.note_path(self.id(), hash_part, self.now());
    }

    /// Like [`note_used`](Cache::note_used), by the name of a NAR's file.
    pub fn note_nar_used(&self, name: &NarFileName) {
        self.shared.uses.note_file(self.id(), name, self.now());
    }

    /// Writes the noted uses to the index, before they are read there.
    pub(super) fn record_uses(&self) {
        self.shared.record();
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    pub(super) fn state(&self) -> &Arc<CacheState> {
        &self.state
    }

    pub(super) fn id(&self) -> CacheId {
        self.state.id
    }

    pub(super) fn index(&self) -> &dyn Index {
        &*self.shared.index
    }

    pub(super) fn storage(&self) -> &dyn Storage {
        &*self.shared.storage
    }

    pub(super) fn files(&self) -> &dyn CacheStorage {
        &*self.state.files
    }

    pub(super) fn small_bytes(&self) -> &SmallBytes {
        &self.state.small_bytes
    }

    pub(super) fn is_unverified(&self) -> bool {
        self.shared.unsafe_no_verify
    }

    pub(super) fn now(&self) -> u64 {
        self.index().now()
    }

    pub(super) fn sign_keys(&self) -> Arc<[SecretKey]> {
        Arc::clone(&self.state.sign_keys.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn other_sources(&self) -> Option<Arc<dyn OtherSources>> {
        self.state.other_sources.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn audit(&self, grant: &Grant, action: &str, subject: &str, outcome: &Result<String, String>) {
        self.shared.audit.note(grant, Some(self.name()), action, subject, outcome);
    }

    /// Like [`Cache::audit`], for many actions, each with its detail.
    pub(super) fn audit_done<'a>(
        &self,
        grant: &Grant,
        action: &str,
        done: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) {
        self.shared.audit.note_done(grant, self.name(), action, done);
    }

    /// In a folder: no process removes files until this is dropped.
    pub(super) fn no_collection(&self) -> Result<StorageLock, Rejection> {
        self.storage().lock_shared().map_err(|error| Rejection::of_file("lock", "the data folder", &error))
    }

    /// In a folder: no other process adds or removes files until this is dropped.
    pub(super) fn alone(&self) -> Result<StorageLock, Rejection> {
        self.storage().lock_exclusive().map_err(|error| Rejection::of_file("lock", "the data folder", &error))
    }

    pub(super) fn write_cache_info(&self) -> io::Result<()> {
        let text = self.settings().cache_info().to_string();
        let file = self.storage().incoming()?;
        file.file().write_all(text.as_bytes())?;
        self.files().write("nix-cache-info", file)
    }
}

impl std::fmt::Debug for Cache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cache").field("name", &self.state.name).finish_non_exhaustive()
    }
}
