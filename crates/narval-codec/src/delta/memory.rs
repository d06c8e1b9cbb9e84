//! The memory for decoding deltas.

use parking_lot::{Condvar, Mutex};

/// The memory that undoing deltas may take at a time: the largest base and the largest window.
pub const DELTA_MEMORY_MAX: u64 = 256 * 1024 * 1024;

/// The memory in use, in bytes; at most [`DELTA_MEMORY_MAX`].
#[derive(Debug, Default)]
pub struct DeltaMemory {
    in_use: Mutex<u64>,
    freed: Condvar,
}

/// Reserved memory, returned when dropped.
#[derive(Debug)]
pub struct Reserved<'a> {
    memory: &'a DeltaMemory,
    bytes: u64,
}

impl DeltaMemory {
    /// Waits until this much is free; `None` if it exceeds the limit. The caller must not hold a permit for a core: others need
    /// one to finish and free their memory.
    pub fn reserve(&self, bytes: u64) -> Option<Reserved<'_>> {
        if bytes > DELTA_MEMORY_MAX {
            return None;
        }
        let mut in_use = self.in_use.lock();
        self.freed.wait_while(&mut in_use, |in_use| *in_use + bytes > DELTA_MEMORY_MAX);
        *in_use += bytes;
        Some(Reserved { memory: self, bytes })
    }

    /// The same without waiting, for what is read in advance: half of the limit is left for what has come already.
    pub fn try_reserve(&self, bytes: u64) -> Option<Reserved<'_>> {
        let mut in_use = self.in_use.lock();
        (bytes <= (DELTA_MEMORY_MAX / 2).saturating_sub(*in_use)).then(|| {
            *in_use += bytes;
            Reserved { memory: self, bytes }
        })
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        *self.memory.in_use.lock() -= self.bytes;
        self.memory.freed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_bounded() {
        let memory = DeltaMemory::default();
        assert!(memory.reserve(DELTA_MEMORY_MAX + 1).is_none());
        assert!(memory.try_reserve(DELTA_MEMORY_MAX / 2 + 1).is_none());
        drop(memory.try_reserve(DELTA_MEMORY_MAX / 2).unwrap());
        let one = memory.reserve(DELTA_MEMORY_MAX).unwrap();
        assert!(memory.try_reserve(1).is_none());
        std::thread::scope(|scope| {
            let next = scope.spawn(|| memory.reserve(1).is_some());
            std::thread::sleep(std::time::Duration::from_millis(30));
            assert!(!next.is_finished());
            drop(one);
            assert!(next.join().unwrap());
        });
    }
}
