//! The walk over the paths of a cache that is copied: each comes after its references.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};

use narval_files::Work;
use narval_nix::HashPart;

use crate::cache::Cache;
use crate::records::paths::PathRecord;
use crate::rejection::Rejection;

/// Paths that are copied, and made visible, together.
const BATCH: usize = 128;

/// Paths that are compared at a time.
const PAGE: usize = 1024;

/// What was copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Migrated {
    /// Paths that were committed.
    pub paths: u64,
    /// Paths of the source that were there already.
    pub present: u64,
    /// NARs that were sent.
    pub nars: u64,
    /// Bytes of these.
    pub bytes: u64,
    /// Logs, realisations and other small files.
    pub files: u64,
    /// Tokens that were not there.
    pub tokens: u64,
    /// Pins of the source that the destination has.
    pub pins: u64,
}

/// Counts while threads copy.
#[derive(Default)]
pub(super) struct Tally {
    pub(super) paths: AtomicU64,
    pub(super) present: AtomicU64,
    pub(super) nars: AtomicU64,
    pub(super) bytes: AtomicU64,
    pub(super) files: AtomicU64,
}

impl Tally {
    pub(super) fn add(count: &AtomicU64, more: u64) {
        count.fetch_add(more, Ordering::Relaxed);
    }

    pub(super) fn migrated(&self) -> Migrated {
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let (paths, present, nars) = (get(&self.paths), get(&self.present), get(&self.nars));
        Migrated { paths, present, nars, bytes: get(&self.bytes), files: get(&self.files), tokens: 0, pins: 0 }
    }
}

/// Where paths are copied to.
pub(super) trait To {
    /// Which of these paths, with their narinfos here, are there as they are here.
    fn has(&self, parts: &[HashPart], ours: &[Option<Vec<u8>>]) -> Result<Vec<bool>, Rejection>;
    /// Which of these paths are there.
    fn present(&self, parts: &[HashPart]) -> Result<Vec<bool>, Rejection>;
    /// Copies the NARs of these paths, and makes the paths visible, in their order. Those that were removed here meanwhile are left out.
    fn take(&self, batch: Vec<PathRecord>) -> Result<(), Rejection>;
}

/// A cache that is being walked over.
pub(super) struct Walk<'a, T> {
    from: &'a Cache,
    to: &'a T,
    tally: &'a Tally,
    work: &'a Work,
    /// Paths to be copied next, references first.
    batch: Vec<PathRecord>,
    /// Paths of this page that were visited.
    planned: HashSet<HashPart>,
}

/// A path whose references are being visited.
struct Visited {
    record: PathRecord,
    /// References that the destination lacks.
    lacking: Vec<HashPart>,
}

impl<'a, T: To> Walk<'a, T> {
    pub(super) fn new(from: &'a Cache, to: &'a T, tally: &'a Tally, work: &'a Work) -> Self {
        Self { from, to, tally, work, batch: Vec::new(), planned: HashSet::new() }
    }

    pub(super) fn run(mut self) -> Result<(), Rejection> {
        let (mut page, from) = (Vec::new(), self.from);
        from.each_path(|path| {
            page.push(path.hash_part);
            if page.len() == PAGE { self.copy_page(&std::mem::take(&mut page)) } else { Ok(()) }
        })?;
        self.copy_page(&page)
    }

    fn copy_page(&mut self, parts: &[HashPart]) -> Result<(), Rejection> {
        let ours = self.from.index().narinfos(self.from.id(), parts)?;
        let has = self.to.has(parts, &ours)?;
        for ((part, ours), has) in parts.iter().zip(ours).zip(has) {
            if has {
                // One that was copied for the sake of another path is counted already.
                if !self.planned.contains(part) {
                    Tally::add(&self.tally.present, 1);
                    self.work.count(1);
                }
            } else if ours.is_some() {
                // Otherwise it was removed since.
                self.visit(part)?;
            }
        }
        self.flush()?;
        self.planned.clear();
        Ok(())
    }

    /// Adds a path to the batch after its references. In a circle of references, one of them is first.
    fn visit(&mut self, part: &HashPart) -> Result<(), Rejection> {
        let mut stack: Vec<Visited> = self.enter(part)?.into_iter().collect();
        while let Some(visited) = stack.last_mut() {
            if let Some(reference) = visited.lacking.pop() {
                stack.extend(self.enter(&reference)?);
                continue;
            }
            self.batch.extend(stack.pop().map(|visited| visited.record));
            if self.batch.len() >= BATCH {
                self.flush()?;
            }
        }
        Ok(())
    }

    /// A path that was not visited before.
    fn enter(&mut self, part: &HashPart) -> Result<Option<Visited>, Rejection> {
        if !self.planned.insert(*part) {
            return Ok(None);
        }
        // One that the source does not have is in an upstream.
        let Some(record) = self.from.index().path(self.from.id(), part)? else { return Ok(None) };
        let references: Vec<HashPart> =
            record.references.iter().filter(|part| !self.planned.contains(*part)).copied().collect();
        let present = self.to.present(&references)?;
        let lacking = references.into_iter().zip(present).filter(|(_, present)| !present).map(|(part, _)| part);
        Ok(Some(Visited { lacking: lacking.collect(), record }))
    }

    fn flush(&mut self) -> Result<(), Rejection> {
        let batch = std::mem::take(&mut self.batch);
        if batch.is_empty() {
            return Ok(());
        }
        self.work.check().map_err(|_| Rejection::interrupted("copy"))?;
        let count = batch.len() as u64;
        self.to.take(batch)?;
        self.work.count(count);
        Ok(())
    }
}
