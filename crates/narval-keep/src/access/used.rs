//! When tokens were last used, collected in memory and written periodically.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// The maximum number of collected uses; more are dropped.
const USED_MAX: usize = 4096;

/// Last uses of tokens that are not written yet.
#[derive(Debug, Default)]
pub(crate) struct TokensUsed(Mutex<HashMap<String, u64>>);

impl TokensUsed {
    pub(crate) fn note(&self, id: &str, now: u64) {
        let mut used = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if used.len() < USED_MAX || used.contains_key(id) {
            used.insert(id.to_owned(), now);
        }
    }

    pub(crate) fn take(&self) -> Vec<(String, u64)> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner)).into_iter().collect()
    }
}
