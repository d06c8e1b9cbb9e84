//! A source whose NARs are counted as they are read.

use std::fmt::Display;
use std::sync::atomic::{AtomicU64, Ordering};

use narval_nix::{HashPart, NarInfo, PathInfo, StoreDir};
use narval_store::{Hashed, NarInput, NarOptions, Source};

use crate::progress::Progress;

/// A source that counts.
pub struct Watched<'a, S> {
    source: &'a S,
    progress: &'a Progress,
    /// Whether a path is shown as started when its NAR is opened, and as done when it is verified.
    shows: bool,
    counted: AtomicU64,
}

impl<'a, S: Source> Watched<'a, S> {
    /// Counts bytes.
    pub const fn new(source: &'a S, progress: &'a Progress) -> Self {
        Self { source, progress, shows: false, counted: AtomicU64::new(0) }
    }

    /// Counts bytes and paths.
    pub const fn shown(source: &'a S, progress: &'a Progress) -> Self {
        Self { shows: true, ..Self::new(source, progress) }
    }

    /// Counts the unread rest of a path that is done: a sink does not read NARs that it has.
    pub fn complete(&self, nar_size: u64) {
        self.progress.unpacked(nar_size.saturating_sub(self.counted.load(Ordering::Relaxed)));
    }
}

impl<S: Source> Source for Watched<'_, S> {
    type Entry = S::Entry;
    type Error = S::Error;

    fn store_dir(&self) -> &StoreDir {
        self.source.store_dir()
    }

    fn find(&self, hash_part: &HashPart) -> Result<Option<S::Entry>, S::Error> {
        self.source.find(hash_part)
    }

    fn info<'a>(&self, entry: &'a S::Entry) -> &'a PathInfo {
        self.source.info(entry)
    }

    fn narinfo<'a>(&self, entry: &'a S::Entry) -> Option<&'a NarInfo> {
        self.source.narinfo(entry)
    }

    fn nar<'a>(
        &'a self,
        entry: &'a S::Entry,
        how: NarOptions<'a>,
    ) -> Result<Box<dyn NarInput<Error = S::Error> + 'a>, S::Error> {
        let nar = self.source.nar(entry, how)?;
        let info = self.source.info(entry);
        if self.shows {
            self.progress.started(&info.path);
        }
        Ok(Box::new(Counted { nar, info, watched: (self.progress, &self.counted, self.shows) }))
    }

    fn fallback(&self, entry: &S::Entry, error: &S::Error) -> Option<S::Entry> {
        self.source.fallback(entry, error)
    }
}

struct Counted<'a, E> {
    nar: Box<dyn NarInput<Error = E> + 'a>,
    info: &'a PathInfo,
    /// The shared counters, that of this transfer, and whether the path is shown.
    watched: (&'a Progress, &'a AtomicU64, bool),
}

impl<E> NarInput for Counted<'_, E> {
    type Error = E;

    fn read(&mut self, buffer: &mut [u8]) -> Result<usize, E> {
        let len = self.nar.read(buffer)?;
        let (progress, counted, _) = self.watched;
        progress.unpacked(len as u64);
        counted.fetch_add(len as u64, Ordering::Relaxed);
        Ok(len)
    }

    fn check(&mut self, nar_len: u64, hashed: &Hashed) -> Result<(), E> {
        self.nar.check(nar_len, hashed)?;
        let (progress, _, shows) = self.watched;
        if shows {
            progress.ended(&self.info.path, Some(self.info.nar_size));
        }
        Ok(())
    }

    fn invalid(&self, reason: &dyn Display) -> E {
        self.nar.invalid(reason)
    }
}
