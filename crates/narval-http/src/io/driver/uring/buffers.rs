//! The buffers that the kernel receives into.
#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, Ordering};

use io_uring::IoUring;
use io_uring::types::BufRingEntry;

use crate::limits::{URING_BUFFER, URING_BUFFERS};

/// The group of the provided buffers.
pub(super) const BUFFER_GROUP: u16 = 0;

/// The ring of provided buffers that the kernel receives into.
pub(super) struct ProvidedBuffers {
    ring: NonNull<BufRingEntry>,
    memory: NonNull<u8>,
    tail: u16,
    leaked: bool,
}

impl ProvidedBuffers {
    const RING: Layout = match Layout::from_size_align(URING_BUFFERS as usize * size_of::<BufRingEntry>(), 4096) {
        Ok(layout) => layout,
        Err(_) => unreachable!(),
    };
    const MEMORY: Layout = match Layout::from_size_align(URING_BUFFERS as usize * URING_BUFFER, 4096) {
        Ok(layout) => layout,
        Err(_) => unreachable!(),
    };

    pub(super) fn register(ring: &IoUring) -> io::Result<Self> {
        // SAFETY: both layouts have a size above zero.
        let (entries, memory) = unsafe { (alloc_zeroed(Self::RING), alloc_zeroed(Self::MEMORY)) };
        let (Some(entries), Some(memory)) = (NonNull::new(entries), NonNull::new(memory)) else {
            return Err(io::ErrorKind::OutOfMemory.into());
        };
        let mut buffers = Self { ring: entries.cast(), memory, tail: 0, leaked: false };
        // SAFETY: the ring's memory has room for that many entries and lives as long as the driver, which cancels all
        // operations before it frees it.
        unsafe {
            ring.submitter().register_buf_ring_with_flags(entries.as_ptr() as u64, URING_BUFFERS, BUFFER_GROUP, 0)?;
        }
        for id in 0..URING_BUFFERS {
            buffers.give_back(id);
        }
        Ok(buffers)
    }

    /// The first `length` bytes of a buffer that the kernel filled.
    pub(super) fn take(&self, id: u16, length: usize) -> &[u8] {
        let id = usize::from(id % URING_BUFFERS);
        // SAFETY: the buffer is within `memory`, which is initialised, and the kernel does not write to it until it is
        // provided again, which requires `&mut self`.
        unsafe { std::slice::from_raw_parts(self.memory.as_ptr().add(id * URING_BUFFER), length.min(URING_BUFFER)) }
    }

    /// Provides a buffer to the kernel again.
    pub(super) fn give_back(&mut self, id: u16) {
        let id = id % URING_BUFFERS;
        let place = usize::from(self.tail % URING_BUFFERS);
        // SAFETY: `place` is below the number of entries, and entries behind the tail are not the kernel's. The tail
        // lies within the first entry (io_uring_register_buf_ring(3)), aligned to two bytes, and only we write it: the
        // kernel reads it after the release store.
        unsafe {
            let entry = &mut *self.ring.as_ptr().add(place);
            entry.set_addr(self.memory.as_ptr().add(usize::from(id) * URING_BUFFER) as u64);
            entry.set_len(URING_BUFFER as u32);
            entry.set_bid(id);
            self.tail = self.tail.wrapping_add(1);
            let tail = BufRingEntry::tail(self.ring.as_ptr()).cast_mut();
            AtomicU16::from_ptr(tail).store(self.tail, Ordering::Release);
        }
    }

    pub(super) fn leak(&mut self) {
        self.leaked = true;
    }
}

impl Drop for ProvidedBuffers {
    fn drop(&mut self) {
        if !self.leaked {
            // SAFETY: allocated with these layouts; the driver has seen all operations end that could use them.
            unsafe {
                dealloc(self.ring.as_ptr().cast(), Self::RING);
                dealloc(self.memory.as_ptr(), Self::MEMORY);
            }
        }
    }
}

const _: () = assert!(URING_BUFFERS.is_power_of_two(), "the tail wraps around at 2^16");
