//! An open data folder, or an open bucket.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind, Read, Seek, SeekFrom};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use crate::access::audit::{AUDIT_KEPT_FOR, Audit};
use crate::error::{DataError, io_error};
use crate::records::machines::MACHINES_KEPT_FOR;
use crate::records::paths::CacheRecord;
use crate::shared::{CacheState, Shared};

use crate::cache::{Cache, Stamp};
use crate::name::CacheName;
use crate::nodes::PeerStats;
use crate::records::audit::AuditLine;
use crate::settings::CacheSettings;
use crate::tokens::Tokens;
use narval_codec::decode::WindowMemory;

/// The longest line of an audit log that is read.
const AUDIT_LINE_MAX: u64 = 64 * 1024;

/// How much of an audit log is read at a time, and of its end for the last lines.
const AUDIT_PART: u64 = 8 << 20;

/// A data folder. Cheap to clone, can be shared between threads, and may be open in other processes at the same time.
#[derive(Clone)]
pub struct Data {
    shared: Arc<Shared>,
}

impl Data {
    /// Where it is, for messages: the folder, or the address of the bucket.
    pub fn path(&self) -> &Path {
        self.shared.storage.place()
    }

    /// The folder on this machine.
    pub fn folder(&self) -> &Path {
        &self.shared.local
    }

    /// A cache; `None` if there is none with this name.
    ///
    /// # Errors
    /// If the index or the cache's folder cannot be read.
    pub fn cache(&self, name: &CacheName) -> Result<Option<Cache>, DataError> {
        if let Some(state) = self.open_caches().get(name) {
            return Ok(Some(self.handle(Arc::clone(state))));
        }
        let record = self.shared.index.caches()?.into_iter().find(|record| record.name == *name);
        record.map(|record| self.open_cache(record)).transpose()
    }

    /// All caches, by name.
    ///
    /// # Errors
    /// See [`Data::cache`].
    pub fn caches(&self) -> Result<Vec<Cache>, DataError> {
        self.shared.index.caches()?.into_iter().map(|record| self.open_cache(record)).collect()
    }

    /// All caches by name, with the settings that the index has now: another process may have changed them.
    ///
    /// # Errors
    /// See [`Data::cache`].
    pub fn refreshed(&self) -> Result<Vec<Cache>, DataError> {
        let refreshed = |record: CacheRecord| {
            let settings = parse_settings(&record)?;
            let cache = self.open_cache(record)?;
            cache.replace_settings(settings);
            Ok(cache)
        };
        self.shared.index.caches()?.into_iter().map(refreshed).collect()
    }

    /// Creates a cache; an existing one with this name is returned unchanged.
    ///
    /// # Errors
    /// If the index or the cache's folder cannot be written.
    pub fn create_cache(&self, name: &CacheName, settings: &CacheSettings) -> Result<Cache, DataError> {
        let record = self.shared.index.create_cache(name, &settings.to_json(), self.shared.index.now())?;
        let cache = self.open_cache(record)?;
        cache
            .write_cache_info()
            .map_err(|source| io_error("write 'nix-cache-info' in", cache.files().place(), source))?;
        Ok(cache)
    }

    /// Changes with every change that a reader can see, in any of its caches or of its tokens, by whichever process: those of others are
    /// seen within 10 ms, and within half a second if the index is in a database.
    pub fn stamp(&self) -> Stamp {
        Stamp(self.shared.index.stamp())
    }

    /// The tokens.
    pub fn tokens(&self) -> Tokens {
        Tokens::new(Arc::clone(&self.shared))
    }

    /// Whether a request with this field `Authorization` comes from another node that shares its disk cache with this one.
    pub fn is_peer(&self, authorization: &[u8]) -> bool {
        self.shared.storage.peers().is_some_and(|peers| peers.is_proven(authorization))
    }

    /// What this node has got from others, if it shares its disk cache with them.
    pub fn peer_stats(&self) -> Option<PeerStats> {
        self.shared.storage.peers().map(|peers| peers.stats())
    }

    /// When this process collects the caches next, in seconds since 1970, if it does.
    pub fn next_collection(&self) -> Option<u64> {
        Some(self.shared.next_collection.load(Ordering::Relaxed)).filter(|time| *time > 0)
    }

    /// The memory for the windows of uploads' decoders.
    pub fn window_memory(&self) -> &WindowMemory {
        &self.shared.window_memory
    }

    /// The audit log.
    pub fn audit(&self) -> &Audit {
        &self.shared.audit
    }

    /// Reads the audit log since a time (seconds since 1970), oldest first: from the database, or else from the file, of which older
    /// parts may have been rotated away.
    ///
    /// # Errors
    /// If the database or the file cannot be read.
    pub fn read_audit(&self, since: u64, take: impl FnMut(AuditLine)) -> Result<(), DataError> {
        self.read_audit_from(since, 0, take)
    }

    fn read_audit_from(&self, since: u64, from: u64, mut take: impl FnMut(AuditLine)) -> Result<(), DataError> {
        let mut after = Some(from);
        while let Some(at) = after {
            let (lines, next) = self.audit_page(since, at, usize::MAX, |_| true)?;
            lines.into_iter().for_each(&mut take);
            after = next;
        }
        Ok(())
    }

    /// At most `max` lines of the audit log that are wanted, oldest first, and what the next page comes after: 0 for the first one. A page
    /// may have fewer, or none: it ends after 4,096 lines of a database, or 8 MiB of a file, of which older parts may have been rotated away.
    ///
    /// # Errors
    /// If the database or the file cannot be read.
    pub fn audit_page(
        &self,
        since: u64,
        after: u64,
        max: usize,
        is_wanted: impl Fn(&AuditLine) -> bool,
    ) -> Result<(Vec<AuditLine>, Option<u64>), DataError> {
        self.shared.audit.flush(&*self.shared.index);
        let mut lines = Vec::new();
        let mut take = |line: AuditLine| {
            if line.time >= since && is_wanted(&line) {
                lines.push(line);
            }
            lines.len() < max
        };
        if self.shared.index.keeps_audit() {
            let next = Audit::database_page(&*self.shared.index, after, since, &mut take)?;
            return Ok((lines, next));
        }
        let Some(mut file) = self.open_audit()? else { return Ok((lines, None)) };
        let path = self.shared.audit.path();
        let fail = |error| io_error("read", path, error);
        // What is after the end of a file that was rotated is at the beginning of the new one.
        let end = file.metadata().map_err(fail)?.len();
        let mut at = if after <= end { after } else { 0 };
        file.seek(SeekFrom::Start(at)).map_err(fail)?;
        let mut file = BufReader::new(file);
        let (begin, mut line) = (at, Vec::new());
        while at.saturating_sub(begin) < AUDIT_PART {
            line.clear();
            let read = (&mut file).take(AUDIT_LINE_MAX).read_until(b'\n', &mut line).map_err(fail)?;
            if read == 0 {
                return Ok((lines, None));
            }
            at += read as u64;
            // A line may be cut off where a disk was full.
            match serde_json::from_slice::<AuditLine>(&line) {
                Ok(line) => {
                    if !take(line) {
                        break;
                    }
                }
                Err(error) => tracing::warn!("a line of '{}' cannot be read: {error}", path.display()),
            }
        }
        Ok((lines, Some(at)))
    }

    fn open_audit(&self) -> Result<Option<File>, DataError> {
        let path = self.shared.audit.path();
        match File::open(path) {
            Ok(file) => Ok(Some(file)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(io_error("read", path, error)),
        }
    }

    /// Where the last 8 MiB of the audit log begin, if it is a file.
    fn audit_tail(&self) -> Result<u64, DataError> {
        let Some(mut file) = self.open_audit()?.filter(|_| !self.shared.index.keeps_audit()) else { return Ok(0) };
        let fail = |error| io_error("read", self.shared.audit.path(), error);
        let skipped = file.metadata().map_err(fail)?.len().saturating_sub(AUDIT_PART);
        file.seek(SeekFrom::Start(skipped)).map_err(fail)?;
        // The rest of a line that begins before.
        let rest = if skipped == 0 { 0 } else { BufReader::new(file).skip_until(b'\n').map_err(fail)? };
        Ok(skipped + rest as u64)
    }

    /// The last lines of the audit log that are wanted, the newest first: at most `max`, and none from before a time (seconds since 1970). Of a
    /// file, only the last 8 MiB are read.
    ///
    /// # Errors
    /// As for [`read_audit`](Self::read_audit).
    pub fn last_audit(
        &self,
        since: u64,
        max: usize,
        is_wanted: impl Fn(&AuditLine) -> bool,
    ) -> Result<Vec<AuditLine>, DataError> {
        let mut last = VecDeque::new();
        let take = |line: AuditLine| {
            if is_wanted(&line) {
                last.truncate(max.saturating_sub(1));
                last.push_front(line);
            }
        };
        self.read_audit_from(since, self.audit_tail()?, take)?;
        Ok(last.into())
    }

    /// Removes lines of the audit log from the database that are old.
    pub(super) fn forget_old_audit(&self) {
        if let Err(error) = self.shared.index.forget_audit(self.shared.index.now().saturating_sub(AUDIT_KEPT_FOR)) {
            tracing::warn!("{error}");
        }
    }

    /// Forgets machines that have not reported for a long time.
    pub(super) fn forget_old_machines(&self) {
        let index = &self.shared.index;
        let before = index.now().saturating_sub(MACHINES_KEPT_FOR);
        let forgotten = index
            .caches()
            .and_then(|caches| caches.iter().try_for_each(|cache| index.forget_machines(cache.id, before)));
        if let Err(error) = forgotten {
            tracing::warn!("{error}");
        }
    }

    /// Call this at the end of a command that has changed something: a running server has noticed the change when this
    /// returns.
    pub fn wait_until_noticed(&self) {
        std::thread::sleep(self.shared.index.noticed_after());
    }

    /// Call this when a server ends that has served it: what waits to be written is written, and other servers know that this one is gone. As
    /// when the last handle is dropped, but threads may have some.
    pub fn end(&self) {
        self.shared.end();
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    fn open_caches(&self) -> std::sync::RwLockReadGuard<'_, BTreeMap<CacheName, Arc<CacheState>>> {
        self.shared.caches.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn handle(&self, state: Arc<CacheState>) -> Cache {
        Cache::new(Arc::clone(&self.shared), state)
    }

    fn open_cache(&self, record: CacheRecord) -> Result<Cache, DataError> {
        if let Some(state) = self.open_caches().get(&record.name) {
            return Ok(self.handle(Arc::clone(state)));
        }
        let settings = parse_settings(&record)?;
        let files = self.shared.storage.open_cache(&record.name);
        let files = files.map_err(|source| io_error("create the files of a cache in", self.path(), source))?;
        let mut caches = self.shared.caches.write().unwrap_or_else(PoisonError::into_inner);
        let state = caches
            .entry(record.name.clone())
            .or_insert_with(|| Arc::new(CacheState::new(record.id, record.name, settings, files)));
        Ok(self.handle(Arc::clone(state)))
    }
}

fn parse_settings(record: &CacheRecord) -> Result<CacheSettings, DataError> {
    CacheSettings::from_json(&record.settings)
        .map_err(|source| DataError::Settings { cache: record.name.clone(), source })
}

impl std::fmt::Debug for Data {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Data").field("path", &self.path()).finish_non_exhaustive()
    }
}

impl Data {
    pub(super) fn of(shared: Arc<Shared>) -> Self {
        Self { shared }
    }
}

impl Cache {
    /// The data folder that it is in.
    pub(super) fn data(&self) -> Data {
        Data { shared: Arc::clone(self.shared()) }
    }
}
