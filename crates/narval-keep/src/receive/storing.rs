//! Before and after something is stored: what [`writing`](crate::shared::writing) says of this process is kept right.

use std::sync::{Arc, PoisonError};

use crate::cache::Cache;
use crate::index::IndexError;
use crate::rejection::Rejection;
use crate::shared::writing::{RENEW_EVERY, Written};
use crate::shared::{CacheState, Shared};
use narval_client::clock;

/// A NAR is being stored. Unless it is [recorded](Self::recorded), its bytes may stay without a row.
pub(crate) struct Storing {
    state: Arc<CacheState>,
    is_recorded: bool,
}

impl Storing {
    pub(crate) fn recorded(mut self) {
        self.is_recorded = true;
    }
}

impl Drop for Storing {
    fn drop(&mut self) {
        let mut state = clock::lock(&self.state.writing.0);
        state.storing -= 1;
        if !self.is_recorded {
            // The row stays, and a collection finds it.
            state.row = None;
        }
    }
}

impl Cache {
    /// To be called before something is stored.
    pub(crate) fn begin_storing(&self) -> Result<Storing, Rejection> {
        let (index, state) = (self.index(), self.state());
        let mut writing = clock::lock(&state.writing.0);
        let now = clock::instant();
        match &mut writing.row {
            Some(row) => row.used = now,
            none => {
                let server = index.server();
                *none = Some(Written { number: index.begin_writer(self.id())?, renewed: now, used: now, server });
            }
        }
        writing.storing += 1;
        Ok(Storing { state: Arc::clone(state), is_recorded: false })
    }
}

impl Shared {
    /// Says that this process is alive, or is no writer any more.
    pub(crate) fn keep_writers(&self, is_end: bool) {
        // Not locked while the index is asked: a cache may be opened meanwhile.
        let states: Vec<Arc<CacheState>> =
            self.caches.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect();
        for state in states {
            if let Err(error) = self.keep_writer(&state, is_end)
                && !error.is_unavailable()
            {
                tracing::warn!("{error}");
            }
        }
    }

    fn keep_writer(&self, cache: &CacheState, is_end: bool) -> Result<(), IndexError> {
        let mut state = clock::lock(&cache.writing.0);
        let (now, is_storing) = (clock::instant(), state.storing > 0);
        let Some(row) = &mut state.row else { return Ok(()) };
        if row.server != self.index.server() {
            state.row = None;
        } else if !is_storing && (is_end || now.saturating_duration_since(row.used) >= RENEW_EVERY) {
            self.index.end_writer(row.number)?;
            state.row = None;
        } else if now.saturating_duration_since(row.renewed) >= RENEW_EVERY {
            if self.index.renew_writer(row.number)? {
                row.renewed = now;
            } else {
                state.row = None;
            }
        }
        Ok(())
    }
}
