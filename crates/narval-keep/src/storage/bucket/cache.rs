//! One cache in a bucket.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, ErrorKind, Read, Seek};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, UNIX_EPOCH};

use narval_client::Payload;
use narval_files::TemporaryFile;
use narval_nix::HashPart;

use super::flights::Asked;
use super::shared::{APART, OTHER, ObjectReader, Shared, content_type};
use crate::index::{CacheId, Index, NarRecord, PathRecord, Placed, Placing, Used};
use crate::storage::{
    Asker, Below, CacheStorage, Incoming, Keep, NarBytes, REDIRECT_LEN_MIN, REDIRECT_VALID_FOR, Redirect, StoredFile,
    VALID_FOR, WrittenNarinfo, object_name, several,
};
use crate::{CacheName, NarFileName, NarTarget, Refusal, RefusalKind};
use narval_client::clock;
use narval_s3::{Object, ObjectWriter};

/// How long an upload waits for another upload of the same NAR in another encoding, and how often it checks.
const WAIT_MAX: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// How often an upload whose name was removed meanwhile is recorded again.
const PLACE_ATTEMPTS_MAX: u32 = 3;

/// Threads that store the NARs of one request.
const THREADS_MAX: usize = 16;

/// The largest small file: build logs.
const SMALL_LEN_MAX: u64 = 256 << 20;

/// What becomes of an upload.
enum Found {
    /// The cache has the NAR already.
    Kept(NarFileName, NarRecord),
    /// It is about to be stored, and this is the number of its pending entry.
    Recorded(NarFileName, i64),
}

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

    /// The record of the NAR, if this cache has it already.
    fn kept(&self, keep: &Keep<'_>) -> Result<Option<NarRecord>, Refusal> {
        let until = clock::instant() + WAIT_MAX;
        loop {
            let nar = keep.index.nar(keep.cache, &keep.nar.nar_hash, keep.nar.compression)?;
            let Some(kept) = nar else { return Ok(None) };
            let own = object_name(&kept);
            if keep.index.file(keep.cache, &own)?.is_none() {
                return Ok(None);
            }
            if self.is_placed(keep.index, keep.cache, &own, &kept)? {
                return Ok(Some(kept));
            }
            // Another upload has recorded it and is storing it. If it is the same file, storing it twice does no harm.
            if kept.file_hash == keep.nar.file_hash || clock::instant() >= until {
                return Ok(None);
            }
            clock::sleep(LOOK_EVERY);
        }
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

    /// Finds the NAR of an upload in this cache, or records that it is about to be stored.
    fn kept_or_recorded(&self, keep: &Keep<'_>) -> Result<Found, Refusal> {
        for _ in 0..PLACE_ATTEMPTS_MAX {
            if let Some(kept) = self.kept(keep)? {
                let own = NarFileName::new(kept.file_hash, kept.compression);
                let name = match keep.target {
                    NarTarget::File(name) => *name,
                    NarTarget::Nar { .. } => own,
                };
                let (file, time) = (Some(own.to_string()), keep.now);
                keep.index.used(&[Used { cache: keep.cache, path: None, file, time }])?;
                if name != own {
                    let recorded = self.record(keep, &name.to_string(), &kept)?;
                    keep.index.settle_file(keep.cache, &name.to_string(), recorded)?;
                }
                return Ok(Found::Kept(name, kept));
            }
            // Others may have used the quota meanwhile.
            (keep.check_quota)(keep.nar.file_size)?;
            let name = NarFileName::new(keep.nar.file_hash, keep.nar.compression);
            // `None` if another server has stored it in another encoding meanwhile.
            if let Some(recorded) = self.try_record(keep, &name.to_string(), &keep.nar)? {
                return Ok(Found::Recorded(name, recorded));
            }
        }
        Err(overtaken())
    }

    fn store_bytes(&self, name: &str, nar: &NarRecord, file: &[u8]) -> Result<(), Refusal> {
        let payload = Payload::Bytes(file);
        let put = self.shared.objects.put(&self.nar_key(name), "application/x-nix-nar", payload, nar.file_hash);
        put.map_err(|error| Refusal::of_file("store", name, &error))
    }

    fn writer(&self, name: &str, len_max: u64) -> io::Result<ObjectWriter> {
        ObjectWriter::new(&self.shared.objects, self.nar_key(name), len_max)
    }

    /// Records a name that is about to be stored. Returns the number of its pending entry; `None` if the NAR is in use in another encoding.
    fn try_record(&self, keep: &Keep<'_>, name: &str, nar: &NarRecord) -> Result<Option<i64>, Refusal> {
        Ok(keep.index.add_object(keep.cache, name, nar, keep.now)?)
    }

    /// As [`try_record`](Self::try_record), in the encoding that was in use.
    fn record(&self, keep: &Keep<'_>, name: &str, nar: &NarRecord) -> Result<i64, Refusal> {
        self.try_record(keep, name, nar)?.ok_or_else(overtaken)
    }

    /// Marks a name as placed whose object was just stored. If its pending entry is gone, a collection has condemned the name meanwhile,
    /// or another node has taken the upload for one that was killed: the object may be there without a name, or be removed. So the name is
    /// recorded again, and then the object is looked for.
    fn placed(&self, keep: &Keep<'_>, name: &str, nar: &NarRecord, mut recorded: i64) -> Result<(), Refusal> {
        for _ in 0..PLACE_ATTEMPTS_MAX {
            if keep.index.settle_file_soon(keep.cache, name, recorded)? {
                return Ok(());
            }
            recorded = self.record(keep, name, nar)?;
            if !self.check_nar(name, nar).map_err(|error| Refusal::of_file("look at", keep.target, &error))? {
                break;
            }
        }
        let message = "the NAR was removed while it was stored: the path was collected or deleted; push again";
        Err(Refusal::new(RefusalKind::Conflict, message))
    }
}

/// Another upload of the NAR was faster.
fn overtaken() -> Refusal {
    let message = "the NAR is being stored in another encoding; push again";
    Refusal::new(RefusalKind::Conflict, message)
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

    fn served_name(&self, _: &str, nar: &NarRecord) -> String {
        object_name(nar)
    }

    /// Trusts the index, because asking the bucket takes a request.
    fn has_nar(&self, _: &str, _: u64) -> io::Result<bool> {
        Ok(true)
    }

    fn check_nar(&self, _: &str, nar: &NarRecord) -> io::Result<bool> {
        let len = self.shared.objects.len(&self.nar_key(&object_name(nar))).map_err(io::Error::other)?;
        if len != Some(nar.file_size) {
            self.shared.is_the_right_one()?;
        }
        Ok(len == Some(nar.file_size))
    }

    fn is_placed(&self, index: &dyn Index, cache: CacheId, name: &str, nar: &NarRecord) -> Result<bool, Refusal> {
        let own = object_name(nar);
        if own != name && index.file(cache, &own)?.is_none() {
            return Ok(false);
        }
        // It may be an upload of an object that exists already.
        Ok(!index.is_unplaced(cache, &own)?
            || self.check_nar(name, nar).map_err(|error| Refusal::of_file("look at", name, &error))?)
    }

    fn placed(
        &self,
        index: &dyn Index,
        cache: CacheId,
        nars: &[(String, NarRecord)],
    ) -> Result<Vec<Option<Placed>>, Refusal> {
        let own: Vec<String> = nars.iter().map(|(_, nar)| object_name(nar)).collect();
        let names: Vec<&str> = own.iter().map(String::as_str).collect();
        let placings = index.placings(cache, &names)?;
        let mut placed = Vec::with_capacity(nars.len());
        for (((name, nar), own), placing) in nars.iter().zip(&own).zip(placings) {
            let is_named = own == name || index.file(cache, own)?.is_some();
            let entry = match placing {
                _ if !is_named => None,
                Placing::Done => Some(0),
                Placing::Stored(number) => Some(number),
                Placing::Pending(oldest) => {
                    let is_there = self.check_nar(name, nar);
                    is_there.map_err(|error| Refusal::of_file("look at", name, &error))?.then_some(oldest)
                }
            };
            placed.push(entry.map(|entry| Placed { name: own.clone(), entry }));
        }
        Ok(placed)
    }

    fn nar(&self, _: &str, nar: &NarRecord, asker: Asker) -> io::Result<Option<NarBytes>> {
        let name = object_name(nar);
        let asked = Asked { cache: &self.name, key: &self.nar_key(&name), name: &name, nar, asker };
        self.shared.flights.nar(&asked)
    }

    /// Signing fails with the credentials: what is on the disk can be served without them.
    fn elsewhere(&self, nar: &NarRecord, redirect: Redirect) -> Option<String> {
        let name = object_name(nar);
        let redirects = match redirect {
            Redirect::Off => false,
            Redirect::Auto => self.shared.flights.is_first(&self.name, &name, nar),
            Redirect::On => true,
        };
        if !redirects || nar.file_size < REDIRECT_LEN_MIN {
            return None;
        }
        let address = self.shared.objects.presign(&self.nar_key(&name), REDIRECT_VALID_FOR);
        address.inspect_err(|error| tracing::debug!("no redirect to '{name}': {error}")).ok()
    }

    fn open_nar(&self, _: &str, nar: &NarRecord) -> io::Result<Option<File>> {
        let name = object_name(nar);
        let asker = Asker::Client;
        self.shared.flights.whole(&Asked { cache: &self.name, key: &self.nar_key(&name), name: &name, nar, asker })
    }

    fn read(&self, name: &str) -> io::Result<Option<Box<dyn Read>>> {
        let body = self.shared.objects.get(&self.key(name)).map_err(io::Error::other)?;
        Ok(body.map(|body| Box::new(ObjectReader(body)) as Box<dyn Read>))
    }

    /// An upload whose name is the hash of its file is sent to the bucket while it arrives. The name of any other one is known only at
    /// its end.
    fn receive(&self, target: &NarTarget, len_max: u64) -> io::Result<Incoming> {
        match target {
            NarTarget::File(name) => {
                self.writer(&name.to_string(), len_max).map(|writer| Incoming::Object(Box::new(writer)))
            }
            NarTarget::Nar { .. } => self.shared.incoming().map(Incoming::File),
        }
    }

    fn listing(&self) -> io::Result<Option<TemporaryFile>> {
        Ok(None)
    }

    fn keep(&self, received: Incoming, keep: Keep<'_>) -> Result<(NarFileName, NarRecord), Refusal> {
        let failed = |error: io::Error| Refusal::of_file("store", keep.target, &error);
        let found = {
            let _one_by_one = clock::lock(keep.one_by_one);
            self.kept_or_recorded(&keep)?
        };
        let (stored, recorded) = match found {
            Found::Kept(name, nar) => return Ok((name, nar)),
            Found::Recorded(name, recorded) => (name, recorded),
        };
        // If storing fails, the row is removed by the next pass over pending rows.
        let name = stored.to_string();
        self.store(received, &keep.nar).map_err(failed)?;
        let _one_by_one = clock::lock(keep.one_by_one);
        self.placed(&keep, &name, &keep.nar, recorded)?;
        Ok((stored, keep.nar))
    }

    /// Those of which the index has no row yet. What is in the way of the others is dealt with one by one.
    fn keep_new(
        &self,
        index: &dyn Index,
        cache: CacheId,
        nars: &[(NarRecord, &[u8])],
        now: u64,
    ) -> Result<Vec<bool>, Refusal> {
        let mut stored = vec![false; nars.len()];
        let (mut new, mut seen) = (Vec::new(), HashSet::new());
        for (at, (nar, file)) in nars.iter().enumerate() {
            if seen.insert((nar.nar_hash, nar.compression))
                && index.nar(cache, &nar.nar_hash, nar.compression)?.is_none()
            {
                new.push((at, (object_name(nar), nar.clone()), *file));
            }
        }
        let objects: Vec<(String, NarRecord)> = new.iter().map(|(_, object, _)| object.clone()).collect();
        let recorded = index.add_objects(cache, &objects, now)?;
        let recorded = new.into_iter().zip(recorded);
        let recorded: Vec<_> = recorded.filter_map(|(new, number)| number.map(|number| (new, number))).collect();
        // If storing fails, the rows are removed by the next pass over pending rows.
        several(THREADS_MAX, &recorded, |((_, (name, nar), file), _)| self.store_bytes(name, nar, file))?;
        let placed: Vec<(String, i64)> =
            recorded.iter().map(|((_, (name, _), _), number)| (name.clone(), *number)).collect();
        let settled = index.settle_files_soon(cache, &placed)?;
        for (((at, ..), _), is_settled) in recorded.iter().zip(settled) {
            if let Some(stored) = stored.get_mut(*at) {
                *stored = is_settled;
            }
        }
        Ok(stored)
    }

    fn store(&self, received: Incoming, nar: &NarRecord) -> io::Result<()> {
        match received {
            Incoming::Object(writer) => writer.finish(nar.file_hash),
            Incoming::File(file) => self.shared.put_file(&self.nar_key(&object_name(nar)), &file, Some(nar.file_hash)),
        }
    }

    fn store_all(&self, nars: &[(&NarRecord, &[u8])]) -> Result<(), Refusal> {
        several(THREADS_MAX, nars, |(nar, file)| self.store_bytes(&object_name(nar), nar, file)).map(drop)
    }

    fn record(&self, keep: &Keep<'_>) -> Result<(), Refusal> {
        let _one_by_one = clock::lock(keep.one_by_one);
        self.kept_or_recorded(keep).map(drop)
    }

    fn add_alias(&self, _: &str, _: &str) -> io::Result<()> {
        Ok(())
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
