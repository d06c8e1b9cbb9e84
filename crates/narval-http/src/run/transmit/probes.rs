use std::fs::File;
use std::io::IoSliceMut;
use std::sync::{Arc, Weak};

use rustix::io::ReadWriteFlags;

use crate::io::clock::Millis;
use crate::limits::{PROBE_BELIEVED_MS, PROBES_KEPT, SHARD_DRAIN_MAX};

/// Which parts of which files were recently found in the page cache. Asking for every response would cost a tenth of
/// sending a file of 60 KB, and what was just sent is not what the kernel evicts next.
#[derive(Debug, Default)]
pub(crate) struct Probes {
    /// Each file maps to one place, which it shares with others; empty until the first probe.
    places: Vec<Probe>,
}

#[derive(Clone, Debug, Default)]
struct Probe {
    /// Prevents the address from being reused, but not the file from being closed.
    file: Weak<File>,
    from: u64,
    to: u64,
    until: Millis,
}

/// If two pieces are no further apart, the kernel very likely has what is between them: a piece may be this long
/// itself.
const GAP_MAX: u64 = SHARD_DRAIN_MAX;

impl Probes {
    /// Whether the first and the last byte of the range are in the page cache: files are read ahead in order, so the
    /// bytes between are very likely there as well. Returns `false` if the file system cannot tell.
    pub(crate) fn seems_cached(&mut self, now: Millis, file: &Arc<File>, offset: u64, length: u64) -> bool {
        let to = offset.saturating_add(length);
        if self.places.is_empty() {
            self.places.resize(PROBES_KEPT, Probe::default());
        }
        let address = Arc::as_ptr(file);
        // Allocations of this size begin at multiples of 16 or 32.
        let Some(place) = self.places.get_mut((address.addr() >> 5) % PROBES_KEPT) else { return false };
        let is_known = place.until > now && place.file.as_ptr() == address;
        if is_known && place.from <= offset && place.to >= to {
            return true;
        }
        let is_cached = length == 0 || (has_byte(file, offset) && has_byte(file, to - 1));
        let meets = offset <= place.to.saturating_add(GAP_MAX) && to.saturating_add(GAP_MAX) >= place.from;
        if is_cached && is_known && meets {
            // Clients read a large file at different places: pieces found one by one count as one range, which expires
            // with its oldest piece.
            (place.from, place.to) = (place.from.min(offset), place.to.max(to));
        } else if is_cached {
            *place = Probe { file: Arc::downgrade(file), from: offset, to, until: now + PROBE_BELIEVED_MS };
        }
        is_cached
    }
}

fn has_byte(file: &File, at: u64) -> bool {
    let mut byte = [0];
    let read = rustix::io::preadv2(file, &mut [IoSliceMut::new(&mut byte)], at, ReadWriteFlags::NOWAIT);
    read.is_ok_and(|n| n == 1)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn what_was_found_is_believed_for_a_while_and_of_that_file_alone() {
        let file = |bytes: &[u8]| {
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(bytes).unwrap();
            Arc::new(file)
        };
        let (long, short) = (file(&[7; 10_000]), file(&[7; 10]));
        let mut probes = Probes::default();
        if !probes.seems_cached(1, &long, 0, 10_000) {
            return; // A file system that can't tell.
        }
        // The end is gone, which only a new probe can detect.
        long.set_len(5_000).unwrap();
        assert!(probes.seems_cached(PROBE_BELIEVED_MS, &long, 100, 9_900));
        assert!(!probes.seems_cached(PROBE_BELIEVED_MS, &long, 100, 10_000), "more than was looked at");
        assert!(!probes.seems_cached(PROBE_BELIEVED_MS + 1, &long, 0, 10_000), "too long ago");
        assert!(!probes.seems_cached(1, &short, 0, 11), "another file");
        assert!(probes.seems_cached(1, &short, 0, 10));
    }

    #[test]
    fn pieces_that_meet_are_one_for_as_long_as_the_oldest() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[7; 10_000]).unwrap();
        let (file, mut probes) = (Arc::new(file), Probes::default());
        if !probes.seems_cached(1, &file, 0, 4_000) {
            return; // A file system that can't tell.
        }
        assert!(probes.seems_cached(5, &file, 4_000, 6_000));
        // Everything is gone, which only a new probe can detect.
        file.set_len(0).unwrap();
        assert!(probes.seems_cached(PROBE_BELIEVED_MS, &file, 0, 10_000));
        assert!(!probes.seems_cached(PROBE_BELIEVED_MS + 1, &file, 4_000, 6_000), "the first piece is too old");
    }
}
