//! Recompresses NARs in the background: xz, bzip2 and uncompressed files become zstd in frames.
//!
//! The new file is an upload like any other: it is decoded again and verified before it is stored. Then one transaction
//! changes all paths of the NAR to it. The old file keeps its name for as long as clients remember the old narinfo, so
//! they still get the file that it describes. A killed process leaves either the old or the new state.

use std::collections::HashSet;
use std::io::{BufReader, ErrorKind, Write};
use std::sync::Weak;
use std::time::Duration;

use narval_nix::{Compression, NarInfo};

use crate::access::grant::Grant;
use crate::cache::Cache;
use crate::data::Data;
use crate::name::NarTarget;
use crate::receive::{Stored, Upload};
use crate::records::paths::{Commit, NarRecord, PathRecord};
use crate::rejection::{Rejection, RejectionKind};
use crate::retention::COLLECT_GRACE;
use crate::shared::Shared;
use narval_client::clock;
use narval_codec::decode::Decoder;
use narval_codec::encode::FrameEncoder;
use narval_files::Work;

/// How long the old file of a recompressed NAR is kept, in seconds: the 30 days for which Nix remembers a narinfo.
pub const RECOMPRESSED_GRACE: u64 = 30 * 24 * 60 * 60;

/// The zstd level: the size matters more than the time.
const LEVEL: i32 = 9;

/// How often a server looks for NARs to recompress.
const LOOK_EVERY: Duration = Duration::from_secs(20);

/// The number of NARs read from the index at a time.
const STEP: usize = 64;

/// The same if they are only counted.
const COUNT_STEP: usize = 4096;

/// The maximum number of failed NARs that this process remembers and does not try again.
const FAILED_MAX: usize = 4096;

/// How often paths are read again while others change them.
const ATTEMPTS_MAX: usize = 4;

/// What came of [`Cache::recompress`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Recompressed {
    /// NARs that are zstd now.
    pub done: usize,
    /// NARs that could not be recompressed; the log says why.
    pub failed: usize,
}

impl Cache {
    /// Recompresses all NARs of this cache's paths that are not zstd, one after the other. Failed ones are logged and left unchanged. It can be interrupted, and run again.
    ///
    /// # Errors
    /// If the index fails, or the disk is full.
    pub fn recompress(&self, work: &Work) -> Result<Recompressed, Rejection> {
        let (mut after, mut all) = (String::new(), 0);
        loop {
            let names = self.index().not_zstd(self.id(), &after, COUNT_STEP)?;
            let Some(last) = names.last() else { break };
            after.clone_from(last);
            all += names.len() as u64;
        }
        work.begin("recompressing", "NARs", all, 0);
        let mut failed = HashSet::new();
        let goes_on = || {
            let goes_on = !work.is_stopped();
            work.count(u64::from(goes_on));
            goes_on
        };
        let done = self.recompress_but(&mut failed, &goes_on)?;
        Ok(Recompressed { done, failed: failed.len() })
    }

    /// Like [`Cache::recompress`], while `goes_on` returns `true`, and without NARs that have failed before.
    fn recompress_but(&self, failed: &mut HashSet<String>, goes_on: &dyn Fn() -> bool) -> Result<usize, Rejection> {
        let (mut after, mut done) = (String::new(), 0);
        loop {
            let names = self.index().not_zstd(self.id(), &after, STEP)?;
            let Some(last) = names.last() else { return Ok(done) };
            after.clone_from(last);
            for name in names {
                if !goes_on() {
                    return Ok(done);
                }
                if failed.contains(&name) {
                    continue;
                }
                match self.recompress_one(&name) {
                    Ok(()) => done += 1,
                    Err(rejection) if matches!(rejection.kind, RejectionKind::NoSpace | RejectionKind::Unavailable) => {
                        return Err(rejection);
                    }
                    Err(rejection) => {
                        tracing::warn!("cache '{}': 'nar/{name}' stays as it is: {rejection}", self.name());
                        if failed.len() < FAILED_MAX {
                            failed.insert(name);
                        }
                    }
                }
            }
        }
    }

    fn recompress_one(&self, name: &str) -> Result<(), Rejection> {
        let Some((_, old)) = self.index().file(self.id(), name)? else { return Ok(()) };
        let mut known = None;
        for (name, nar) in self.index().files_of(self.id(), &old.nar_hash)? {
            if nar.compression == Compression::Zstd && self.has_nar((&name, &nar))? {
                known = self.index().file(self.id(), &name)?;
                break;
            }
        }
        let new = match known {
            Some(known) => known,
            None => self.make_zstd(name, &old)?,
        };
        for _ in 0..ATTEMPTS_MAX {
            if self.rename_in_paths(name, &new)? == Commit::Done {
                return Ok(());
            }
        }
        Err(Rejection::conflict("other clients are committing its paths"))
    }

    /// Stores a NAR again as zstd.
    fn make_zstd(&self, name: &str, old: &NarRecord) -> Result<(String, NarRecord), Rejection> {
        let (nar_hash, compression) = (old.nar_hash, Compression::Zstd);
        let fail = |error: std::io::Error| Rejection::of_file("recompress", nar_hash, &error);
        let stored = self.files().open_nar(name, old).map_err(fail)?;
        let stored = stored.ok_or_else(|| fail(ErrorKind::NotFound.into()))?;
        let mut nar = Decoder::new(&old.compression, BufReader::new(stored), 1).map_err(Rejection::unprocessable)?;
        let file = self.incoming_file()?;
        let mut length = 0;
        let mut encoder = FrameEncoder::new(LEVEL, old.nar_size, nar_hash, 1).map_err(fail)?;
        while !encoder.is_complete() {
            let written = encoder.advance(&mut nar, &mut |piece| {
                length += piece.len() as u64;
                file.file().write_all(piece)
            });
            written.map_err(|error| fail(error.into()))?;
        }
        let target = NarTarget::Nar { nar_hash, compression };
        let upload = Upload::new(self, target, Some(length), &Grant::administrator("recompression"))?;
        let Stored { name, nar_size, file_hash, file_size, .. } = upload.adopt(file)?;
        let NarRecord { listing_size, found, .. } = old.clone();
        Ok((name.to_string(), NarRecord { nar_hash, nar_size, compression, file_hash, file_size, listing_size, found }))
    }

    /// Changes all paths with this file to another file of the same NAR.
    fn rename_in_paths(&self, old: &str, (name, nar): &(String, NarRecord)) -> Result<Commit, Rejection> {
        let fail = |error: std::io::Error| Rejection::of_file("write", "a narinfo", &error);
        let _no_collection = self.no_collection()?;
        let settings = self.settings();
        let mut records = Vec::new();
        for part in self.index().paths_of_file(self.id(), old)? {
            let Some(record) = self.index().path(self.id(), &part)? else { continue };
            let mut info = NarInfo::parse(&record.narinfo, &settings.store_dir)
                .map_err(|error| Rejection::failed(format_args!("'{part}.narinfo': {error}")))?;
            if (info.nar_hash, record.file.as_str()) != (nar.nar_hash, old) {
                return Ok(Commit::Changed);
            }
            info.url = format!("nar/{name}");
            info.compression = nar.compression;
            (info.file_hash, info.file_size) = (Some(nar.file_hash.into()), Some(nar.file_size));
            let narinfo = info.render(&settings.store_dir).into_bytes();
            records.push(PathRecord { file: name.clone(), narinfo, ..record });
        }
        self.files().sync_nars().map_err(fail)?;
        // A collection removes the old file once nothing has used it for COLLECT_GRACE.
        let orphaned = self.now().saturating_add(RECOMPRESSED_GRACE - COLLECT_GRACE);
        let began = clock::instant();
        let Some(up_to) = self.index().rename(self.id(), records.clone(), old, orphaned)? else {
            return Ok(Commit::Changed);
        };
        self.publish_committed(&records, Vec::new(), (began, up_to));
        Ok(Commit::Done)
    }
}

/// Recompresses the NARs of caches with that setting as long as the data folder is open. One NAR at a time, with the
/// lowest priority.
pub(crate) fn run(shared: &Weak<Shared>) {
    // On Linux, this only affects this thread. If it fails, the work is still done.
    rustix::process::nice(19).ok();
    let mut failed = HashSet::new();
    loop {
        std::thread::sleep(LOOK_EVERY);
        let Some(data) = shared.upgrade().map(Data::of) else { return };
        if data.is_short_of_room() {
            continue;
        }
        for cache in data.caches().unwrap_or_default().iter().filter(|cache| cache.settings().recompress) {
            // Settings may change meanwhile, by a command or a reload.
            match cache.recompress_but(&mut failed, &|| cache.settings().recompress) {
                Ok(0) => {}
                Ok(done) => tracing::info!("cache '{}': recompressed {done} NARs", cache.name()),
                Err(rejection) => tracing::warn!("cache '{}': recompressing stopped: {rejection}", cache.name()),
            }
        }
    }
}
