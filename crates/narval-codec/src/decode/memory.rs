//! What decoders may take of memory, and one budget for the windows of many of them.
//!
//! A file of a kilobyte can ask for a window of 128 MiB, so decoders of files from strangers reserve theirs before they allocate it.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// The decoder's input buffer.
pub const INPUT_LEN: usize = 128 * 1024;
/// The decoder's output buffer.
pub const OUTPUT_LEN: usize = 256 * 1024;
/// Memory limit of an xz, lzma or lzip decoder: a dictionary of 128 MiB and some overhead. `xz -9` needs 65 MiB.
pub const XZ_MEMORY_MAX: u64 = 136 * 1024 * 1024;
/// Memory limit of one file that is decoded on several threads. xz blocks and zstd frames are held whole, before and after
/// decoding: three blocks of `xz -6 -T`, or five frames of 16 MiB. Only one file at a time is decoded in parallel.
pub const PARALLEL_MEMORY_MAX: u64 = 128 * 1024 * 1024;

/// The default budget, in bytes.
pub const DECODE_MEMORY: u64 = 256 * 1024 * 1024;
/// The smallest budget: the largest window fits into the share of [`WindowMemory`] for large ones.
pub const DECODE_MEMORY_MIN: u64 = 192 * 1024 * 1024;
/// The most that an ordinary decoder needs: windows of up to 16 MiB, as the default levels of all compressors write.
const ORDINARY_MAX: u64 = 20 * 1024 * 1024;
/// The maximum number of decoders that wait for memory for an ordinary window.
const ORDINARY_WAITING_MAX: usize = 16;
/// The maximum number of decoders that wait for memory for a large one. They hold threads.
const LARGE_WAITING_MAX: usize = 4;
/// The longest wait.
const PATIENCE: Duration = Duration::from_secs(10);

/// A budget for the windows of decoders. Large windows take at most three quarters of it, so that those of slow senders leave room for
/// ordinary ones.
#[derive(Debug)]
pub struct WindowMemory {
    state: Mutex<State>,
    freed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    total: u64,
    ordinary: Share,
    large: Share,
    refused: u64,
}

/// What decoders of one kind have.
#[derive(Debug, Default)]
struct Share {
    bytes: u64,
    waiting: usize,
}

/// The state of a budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WindowStats {
    /// Its size in bytes.
    pub total: u64,
    /// Reserved bytes.
    pub used: u64,
    /// How many decoders have found no room.
    pub refused: u64,
}

/// There is no memory for a window at the moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("too many files with large windows are being decoded at the moment")]
pub struct NoWindow;

impl WindowMemory {
    /// A budget of this many bytes, at least [`DECODE_MEMORY_MIN`].
    pub fn new(total: u64) -> Arc<Self> {
        let state = State { total: total.max(DECODE_MEMORY_MIN), ..State::default() };
        Arc::new(Self { state: Mutex::new(state), freed: Condvar::new() })
    }

    /// Changes its size. What is reserved stays.
    pub fn set_total(&self, total: u64) {
        self.state.lock().total = total.max(DECODE_MEMORY_MIN);
        self.freed.notify_all();
    }

    /// A decoder's part of it, which is empty at first.
    pub fn window(self: &Arc<Self>) -> Window {
        Window { memory: Arc::clone(self), bytes: 0 }
    }

    /// Its state.
    pub fn stats(&self) -> WindowStats {
        let state = self.state.lock();
        let used = state.ordinary.bytes + state.large.bytes;
        WindowStats { total: state.total, used, refused: state.refused }
    }
}

impl State {
    fn share(&mut self, is_large: bool) -> &mut Share {
        if is_large { &mut self.large } else { &mut self.ordinary }
    }
}

/// Memory that one decoder has reserved. It is given back when this is dropped.
#[derive(Debug)]
pub struct Window {
    memory: Arc<WindowMemory>,
    bytes: u64,
}

impl Window {
    /// Reserves this many bytes in all, and waits for them if necessary.
    ///
    /// # Errors
    /// [`NoWindow`] if others hold the memory for too long, or too many wait.
    pub(crate) fn grow_to(&mut self, bytes: u64) -> io::Result<()> {
        if bytes <= self.bytes {
            return Ok(());
        }
        let (memory, before) = (Arc::clone(&self.memory), self.bytes);
        let (was_large, is_large) = (before > ORDINARY_MAX, bytes > ORDINARY_MAX);
        let fits = |state: &State| {
            let large = state.large.bytes - if was_large { before } else { 0 };
            let ordinary = state.ordinary.bytes - if was_large { 0 } else { before };
            large + ordinary + bytes <= state.total && (!is_large || large + bytes <= state.total / 4 * 3)
        };
        let mut state = memory.state.lock();
        if !fits(&state) {
            let waiting_max = if is_large { LARGE_WAITING_MAX } else { ORDINARY_WAITING_MAX };
            if state.share(is_large).waiting < waiting_max {
                state.share(is_large).waiting += 1;
                memory.freed.wait_while_for(&mut state, |state| !fits(state), PATIENCE);
                state.share(is_large).waiting -= 1;
            }
            if !fits(&state) {
                state.refused += 1;
                return Err(io::Error::other(NoWindow));
            }
        }
        state.share(was_large).bytes -= before;
        state.share(is_large).bytes += bytes;
        self.bytes = bytes;
        Ok(())
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        let mut state = self.memory.state.lock();
        state.share(self.bytes > ORDINARY_MAX).bytes -= self.bytes;
        drop(state);
        self.memory.freed.notify_all();
    }
}

/// Whether an error is [`NoWindow`].
pub fn is_no_window(error: &io::Error) -> bool {
    error.get_ref().is_some_and(<dyn std::error::Error + Send + Sync>::is::<NoWindow>)
}

const _: () = assert!(XZ_MEMORY_MAX <= DECODE_MEMORY_MIN / 4 * 3, "each file that is accepted fits");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_windows_leave_room_for_ordinary_ones() {
        let memory = WindowMemory::new(DECODE_MEMORY_MIN);
        let mut large = memory.window();
        large.grow_to(XZ_MEMORY_MAX).unwrap();
        let mut ordinary: Vec<Window> = (0..2).map(|_| memory.window()).collect();
        ordinary.iter_mut().for_each(|window| window.grow_to(ORDINARY_MAX).unwrap());
        assert_eq!(memory.stats().used, XZ_MEMORY_MAX + 2 * ORDINARY_MAX);
        let waits = |bytes| {
            let mut window = memory.window();
            std::thread::spawn(move || window.grow_to(bytes))
        };
        // A second large one waits until the first has ended.
        let second = waits(XZ_MEMORY_MAX);
        while memory.state.lock().large.waiting == 0 {
            std::thread::yield_now();
        }
        drop(large);
        second.join().unwrap().unwrap();
        drop(ordinary);
        assert_eq!(memory.stats(), WindowStats { total: DECODE_MEMORY_MIN, used: 0, refused: 0 });
    }

    #[test]
    fn a_window_grows_out_of_its_share() {
        let memory = WindowMemory::new(DECODE_MEMORY_MIN);
        let mut window = memory.window();
        for bytes in [1, ORDINARY_MAX, ORDINARY_MAX + 1, XZ_MEMORY_MAX, 5] {
            window.grow_to(bytes).unwrap();
        }
        assert_eq!(memory.stats().used, XZ_MEMORY_MAX);
        drop(window);
        assert_eq!(memory.stats().used, 0);
    }
}
