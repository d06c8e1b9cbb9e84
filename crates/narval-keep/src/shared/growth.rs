//! How caches have grown: the last size of each on each day of a month, in a file of the data folder.
//!
//! The file is a convenience: it is replaced without waiting for the disk, and without it the series begins anew.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use crate::name::CacheName;

/// The file in the data folder.
const FILE: &str = "sizes.json";

/// Days that are kept of each cache.
const DAYS_MAX: usize = 32;

/// The largest file that is read: a thousand caches.
const FILE_LEN_MAX: u64 = 1 << 20;

const DAY_SECONDS: u64 = 24 * 60 * 60;

/// Bytes by the day, in days since 1970, by the name of the cache.
type Sizes = BTreeMap<String, BTreeMap<u64, u64>>;

/// See the module's description.
#[derive(Debug)]
pub(crate) struct Growth {
    path: PathBuf,
    /// `None` until the file is read.
    sizes: Mutex<Option<Sizes>>,
}

impl Growth {
    pub(crate) fn new(folder: &std::path::Path) -> Self {
        Self { path: folder.join(FILE), sizes: Mutex::default() }
    }

    fn with<T>(&self, use_them: impl FnOnce(&mut Sizes) -> T) -> T {
        let mut sizes = self.sizes.lock().unwrap_or_else(PoisonError::into_inner);
        use_them(sizes.get_or_insert_with(|| self.read()))
    }

    fn read(&self) -> Sizes {
        let is_short = fs::metadata(&self.path).is_ok_and(|file| file.len() <= FILE_LEN_MAX);
        // The first server of a folder finds none.
        let text = if is_short { fs::read(&self.path).unwrap_or_default() } else { Vec::new() };
        serde_json::from_slice(&text).unwrap_or_default()
    }

    /// Records sizes of today. Caches that are gone are forgotten.
    pub(crate) fn note(&self, now: u64, today: &BTreeMap<&CacheName, u64>) {
        let text = self.with(|sizes| {
            sizes.retain(|name, _| today.keys().any(|cache| cache.as_str() == name));
            for (name, bytes) in today {
                let days = sizes.entry(name.as_str().to_owned()).or_default();
                days.insert(now / DAY_SECONDS, *bytes);
                while days.len() > DAYS_MAX {
                    days.pop_first();
                }
            }
            serde_json::to_vec(sizes)
        });
        let new = self.path.with_extension("new");
        let written = text.map_err(Into::into).and_then(|text| fs::write(&new, text));
        if let Err(error) = written.and_then(|()| fs::rename(&new, &self.path)) {
            tracing::warn!("cannot write '{}': {error}", self.path.display());
        }
    }

    pub(crate) fn of(&self, cache: &CacheName) -> Vec<SizeOfDay> {
        let size = |(day, bytes): (&u64, &u64)| SizeOfDay { day: *day, bytes: *bytes };
        self.with(|sizes| sizes.get(cache.as_str()).map(|days| days.iter().map(size).collect()).unwrap_or_default())
    }
}

/// The size of a cache at the end of a day.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SizeOfDay {
    /// Days since 1970.
    pub day: u64,
    /// Bytes of its NARs, listings and small files.
    pub bytes: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_size_of_each_day_is_kept_for_a_month_and_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let (one, two) = (CacheName::parse("one").unwrap(), CacheName::parse("two").unwrap());
        let growth = Growth::new(folder.path());
        growth.note(DAY_SECONDS, &[(&one, 1), (&two, 2)].into());
        for day in 2..60 {
            growth.note(day * DAY_SECONDS, &[(&one, day)].into());
            growth.note(day * DAY_SECONDS + 5, &[(&one, day * 10)].into());
        }
        for growth in [growth, Growth::new(folder.path())] {
            let days = growth.of(&one);
            assert_eq!((days.len(), days[0].day, days[31]), (32, 28, SizeOfDay { day: 59, bytes: 590 }));
            assert!(growth.of(&two).is_empty(), "it is gone");
        }
        fs::write(folder.path().join(FILE), "[").unwrap();
        assert!(Growth::new(folder.path()).of(&one).is_empty());
    }
}
