//! Names that this process has recorded.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::index::records::CacheId;

/// The most names of which is remembered under which number they are pending.
const RECORDED_MAX: usize = 4096;

/// Names of NARs that this process has recorded, until the index knows that their files are stored.
#[derive(Default)]
pub(in crate::index) struct RecordedNames(Mutex<HashMap<(CacheId, String), Recorded>>);

/// A name whose file is being stored.
struct Recorded {
    /// Under which number it is pending.
    number: i64,
    /// Whether the file is stored.
    is_stored: bool,
}

impl RecordedNames {
    fn lock(&self) -> MutexGuard<'_, HashMap<(CacheId, String), Recorded>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers under which numbers names are pending.
    pub(in crate::index) fn remember(&self, cache: CacheId, names: Vec<(String, i64)>) {
        let mut recorded = self.lock();
        if recorded.len() + names.len() > RECORDED_MAX {
            // Uploads that failed are among them. The others are settled one by one.
            recorded.retain(|_, name| name.is_stored);
        }
        for (name, number) in names {
            if recorded.len() < RECORDED_MAX {
                recorded.insert((cache, name), Recorded { number, is_stored: false });
            }
        }
    }

    /// The number of a name, if it is remembered.
    pub(in crate::index) fn number(&self, cache: CacheId, name: &str) -> Option<i64> {
        self.lock().get(&(cache, name.to_owned())).map(|name| name.number)
    }

    pub(in crate::index) fn remove(&self, cache: CacheId, name: &str) {
        self.lock().remove(&(cache, name.to_owned()));
    }

    /// Notes that the file of a name is stored. Returns `false` if the name is not pending under this number.
    pub(in crate::index) fn set_stored(&self, cache: CacheId, name: &str, number: i64) -> bool {
        let mut recorded = self.lock();
        let mine = recorded.get_mut(&(cache, name.to_owned())).filter(|name| name.number == number);
        mine.map(|name| name.is_stored = true).is_some()
    }

    /// The caches that have names whose files are stored, which the index does not know yet.
    pub(in crate::index) fn caches_with_stored(&self) -> BTreeSet<CacheId> {
        let stored = |((cache, _), name): (&(CacheId, String), &Recorded)| name.is_stored.then_some(*cache);
        self.lock().iter().filter_map(stored).collect()
    }

    /// These names of a cache, with their numbers.
    pub(in crate::index) fn stored_of(&self, cache: CacheId) -> Vec<(String, i64)> {
        let recorded = self.lock();
        let stored = recorded.iter().filter(|((of, _), name)| *of == cache && name.is_stored);
        stored.map(|((_, name), recorded)| (name.clone(), recorded.number)).collect()
    }

    /// The number of such a name.
    pub(in crate::index) fn stored_number(&self, cache: CacheId, name: &str) -> Option<i64> {
        let recorded = self.lock();
        recorded.get(&(cache, name.to_owned())).filter(|name| name.is_stored).map(|name| name.number)
    }

    /// The index knows that these are stored.
    pub(in crate::index) fn forget_stored(&self, cache: CacheId, names: Vec<(String, i64)>) {
        let mut recorded = self.lock();
        for (name, number) in names {
            let key = (cache, name);
            // It may be on its way again since.
            if recorded.get(&key).is_some_and(|name| name.number == number) {
                recorded.remove(&key);
            }
        }
    }
}
