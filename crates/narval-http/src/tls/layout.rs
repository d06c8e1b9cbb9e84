//! Plaintext laid out as TLS records, with room for each record's header and trailer, so that it can be encrypted in
//! place and sent from the same buffer.

/// Type, version, length (RFC 8446 section 5.2).
pub(crate) const RECORD_HEADER: usize = 5;
/// The maximum plaintext in a record.
pub(crate) const RECORD_PLAINTEXT_MAX: usize = 1 << 14;
/// The content type, and the tag, which has 16 bytes in all suites of TLS 1.3.
pub(crate) const RECORD_TRAILER: usize = 1 + 16;
/// The length of a full record.
#[cfg(any(test, feature = "tls"))]
pub(crate) const RECORD_FULL: usize = RECORD_HEADER + RECORD_PLAINTEXT_MAX + RECORD_TRAILER;

/// A destination that plaintext is gathered in.
pub(crate) trait Gather {
    /// The number of bytes gathered.
    fn gathered(&self) -> usize;

    /// Returns a slice for up to `most` bytes, at least one, which count as gathered.
    fn room(&mut self, most: usize) -> &mut [u8];

    /// The number of bytes that still fit into the current record, which may be a new one.
    fn record_left(&self) -> usize {
        RECORD_PLAINTEXT_MAX - self.gathered() % RECORD_PLAINTEXT_MAX
    }

    /// Gives back the last `bytes` of the latest [room](Self::room).
    fn give_back(&mut self, bytes: usize);

    /// Appends all of `bytes`.
    fn push(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let place = self.room(bytes.len());
            let (now, later) = bytes.split_at(place.len().min(bytes.len()));
            place.copy_from_slice(now);
            bytes = later;
        }
    }
}

impl Gather for Vec<u8> {
    fn gathered(&self) -> usize {
        self.len()
    }

    fn room(&mut self, most: usize) -> &mut [u8] {
        let start = self.len();
        self.resize(start + most, 0);
        self.get_mut(start..).unwrap_or_default()
    }

    fn give_back(&mut self, bytes: usize) {
        self.truncate(self.len().saturating_sub(bytes));
    }
}

/// Lays out the gathered bytes as consecutive full records, except for the last.
pub(crate) struct Layout<'b> {
    /// Longer than the laid out data: leftovers of the previous use are overwritten rather than zeroed.
    buffer: &'b mut Vec<u8>,
    /// The position of the next byte.
    end: usize,
    gathered: usize,
}

impl<'b> Layout<'b> {
    /// Starts a layout for about `expected` bytes in `buffer`, whose contents are discarded.
    pub(crate) fn new(buffer: &'b mut Vec<u8>, expected: usize) -> Self {
        let whole = expected + expected.div_ceil(RECORD_PLAINTEXT_MAX) * (RECORD_HEADER + RECORD_TRAILER);
        buffer.reserve_exact(whole.saturating_sub(buffer.len()));
        Self { buffer, end: 0, gathered: 0 }
    }

    /// Truncates the buffer to the records.
    pub(crate) fn finish(self) {
        let trailer = if self.gathered > 0 { RECORD_TRAILER } else { 0 };
        self.buffer.truncate(self.end + trailer);
    }
}

impl Gather for Layout<'_> {
    fn gathered(&self) -> usize {
        self.gathered
    }

    fn room(&mut self, most: usize) -> &mut [u8] {
        let in_record = self.gathered % RECORD_PLAINTEXT_MAX;
        if in_record == 0 {
            self.end += RECORD_HEADER + if self.gathered > 0 { RECORD_TRAILER } else { 0 };
        }
        let count = most.min(RECORD_PLAINTEXT_MAX - in_record);
        let start = self.end;
        self.end += count;
        self.gathered += count;
        if self.buffer.len() < self.end + RECORD_TRAILER {
            self.buffer.resize(self.end + RECORD_TRAILER, 0);
        }
        self.buffer.get_mut(start..self.end).unwrap_or_default()
    }

    fn give_back(&mut self, bytes: usize) {
        if bytes == 0 {
            return;
        }
        self.end -= bytes;
        self.gathered -= bytes;
        if self.gathered.is_multiple_of(RECORD_PLAINTEXT_MAX) {
            // The record has not begun after all.
            self.end -= RECORD_HEADER + if self.gathered > 0 { RECORD_TRAILER } else { 0 };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_that_is_given_back_leaves_no_trace() {
        let (mut plain, mut buffer) = (Vec::new(), Vec::new());
        let mut layout = Layout::new(&mut buffer, 60_000);
        for (most, used) in [(100, 100), (9000, 0), (16_284, 16_284), (16_384, 0), (500, 7), (16_377, 16_377), (3, 1)] {
            let bytes: Vec<u8> = (0..used).map(|at| (at % 253) as u8).collect();
            let place = layout.room(most);
            assert_eq!(place.len(), most);
            place[..used].copy_from_slice(&bytes);
            layout.give_back(most - used);
            plain.extend_from_slice(&bytes);
            assert_eq!(layout.record_left(), Gather::record_left(&plain));
        }
        layout.finish();
        assert!(records(&buffer).0 == plain);
    }

    /// The plaintext and the length of all records.
    fn records(buffer: &[u8]) -> (Vec<u8>, Vec<usize>) {
        let records: Vec<_> = buffer.chunks(RECORD_FULL).collect();
        let plain = records.iter().flat_map(|r| &r[RECORD_HEADER..r.len() - RECORD_TRAILER]).copied().collect();
        (plain, records.iter().map(|r| r.len()).collect())
    }

    #[test]
    fn whatever_the_pieces_the_records_are_full_but_the_last() {
        let text: Vec<u8> = (0..50_000u32).map(|i| (i % 251) as u8).collect();
        let mut buffer = vec![0xaa; 70_000];
        for length in [0, 1, 16_383, 16_384, 16_385, 32_768, 50_000] {
            for piece in [7, 1000, 16_384, 50_000] {
                let mut layout = Layout::new(&mut buffer, length);
                text[..length].chunks(piece).for_each(|piece| layout.push(piece));
                assert_eq!(layout.gathered(), length);
                layout.finish();
                let (plain, lengths) = records(&buffer);
                assert!(plain == text[..length], "{length} in pieces of {piece}");
                assert_eq!(lengths.len(), length.div_ceil(RECORD_PLAINTEXT_MAX));
                assert!(lengths.iter().rev().skip(1).all(|&length| length == RECORD_FULL));
            }
        }
    }
}
