//! A limit on concurrency without waiting: a caller that gets no permit does something else.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A number of permits. Cheap to clone: clones share them.
#[derive(Clone, Debug)]
pub(crate) struct Permits(Arc<AtomicUsize>);

/// Returned when dropped.
#[derive(Debug)]
pub(crate) struct Permit(Arc<AtomicUsize>);

impl Permits {
    pub(crate) fn new(permits: usize) -> Self {
        Self(Arc::new(AtomicUsize::new(permits)))
    }

    pub(crate) fn take(&self) -> Option<Permit> {
        let taken = self.0.try_update(Ordering::AcqRel, Ordering::Acquire, |left| left.checked_sub(1));
        taken.ok().map(|_| Permit(Arc::clone(&self.0)))
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }
}
