//! Who was asked for, collected in memory and recorded from time to time.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use narval_nix::HashPart;

use crate::written::index::{CacheId, Used};

/// What can wait to be recorded. Uses of more different things within one period are not noted.
const WAITING_MAX: usize = 1 << 18;

/// A use is recorded to the minute: of many within one, the first is noted.
const RESOLUTION_SECONDS: u64 = 60;

/// Uses that are not recorded yet.
#[derive(Default)]
pub(in crate::written) struct Uses(Mutex<HashMap<(CacheId, Subject), u64>>);

#[derive(Clone, PartialEq, Eq, Hash)]
pub(in crate::written) enum Subject {
    Path(HashPart),
    File(String),
}

impl Uses {
    pub(in crate::written) fn note(&self, cache: CacheId, subject: Subject, now: u64) {
        let now = now - now % RESOLUTION_SECONDS;
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let room = waiting.len() < WAITING_MAX;
        let key = (cache, subject);
        if room || waiting.contains_key(&key) {
            waiting.insert(key, now);
        }
    }

    /// Takes all that waits, to be recorded.
    pub(in crate::written) fn take(&self) -> Vec<Used> {
        let waiting = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        let used = |((cache, subject), time)| match subject {
            Subject::Path(part) => Used { cache, path: Some(part), file: None, time },
            Subject::File(name) => Used { cache, path: None, file: Some(name), time },
        };
        waiting.into_iter().map(used).collect()
    }
}
