//! Who was asked for, collected in memory and recorded from time to time.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use narval_nix::HashPart;

use crate::written::index::{CacheId, Used};

/// What can wait to be recorded, in each part. Uses of more different things within one period are not noted.
const WAITING_MAX: usize = 1 << 14;

/// Parts, each with its lock: requests for different things do not wait for each other.
const PARTS: usize = 16;

/// A use is recorded to the minute: of many within one, the first is noted.
const RESOLUTION_SECONDS: u64 = 60;

/// Uses that are not recorded yet.
#[derive(Default)]
pub(in crate::written) struct Uses([Mutex<HashMap<(CacheId, Subject), u64>>; PARTS]);

#[derive(Clone, PartialEq, Eq, Hash)]
pub(in crate::written) enum Subject {
    Path(HashPart),
    File(String),
}

impl Uses {
    pub(in crate::written) fn note(&self, cache: CacheId, subject: Subject, now: u64) {
        let now = now - now % RESOLUTION_SECONDS;
        // Hash parts and hashes of files: any of their characters are spread well.
        let last = match &subject {
            Subject::Path(part) => part.as_bytes().last().copied(),
            Subject::File(name) => name.bytes().next(),
        };
        let [first, ..] = &self.0;
        let part = self.0.get(usize::from(last.unwrap_or(0)) % PARTS).unwrap_or(first);
        let mut waiting = part.lock().unwrap_or_else(PoisonError::into_inner);
        let room = waiting.len() < WAITING_MAX;
        let key = (cache, subject);
        if room || waiting.contains_key(&key) {
            waiting.insert(key, now);
        }
    }

    /// Takes all that waits, to be recorded.
    pub(in crate::written) fn take(&self) -> Vec<Used> {
        let take = |part: &Mutex<_>| std::mem::take(&mut *part.lock().unwrap_or_else(PoisonError::into_inner));
        let used = |((cache, subject), time): ((CacheId, Subject), u64)| match subject {
            Subject::Path(part) => Used { cache, path: Some(part), file: None, time },
            Subject::File(name) => Used { cache, path: None, file: Some(name), time },
        };
        self.0.iter().flat_map(take).map(used).collect()
    }
}
