//! The listing of a NAR, written to a file while the NAR arrives.

use std::io::{self, Write};

use narval_nix::listing;
use narval_nix::nar::Event;

/// Size of the write buffer.
const BUFFER_LEN: usize = 16 * 1024;

/// The maximum size of a listing in bytes. A NAR of a few megabytes, well compressed, can have millions of entries; the
/// largest real ones have a hundred thousand.
const LISTING_LEN_MAX: u64 = 64 << 20;

/// Why there is no listing.
pub(crate) enum NoListing {
    /// JSON cannot express it, or it would be too large.
    Inexpressible,
    /// It cannot be written.
    Io(io::Error),
}

impl From<io::Error> for NoListing {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// Writes a listing.
pub(crate) struct ListingWriter<W: Write> {
    out: W,
    writer: listing::ListingWriter,
    buffer: Vec<u8>,
    len: u64,
}

impl<W: Write> ListingWriter<W> {
    pub(crate) fn new(out: W) -> Result<Self, NoListing> {
        Ok(Self { out, writer: listing::ListingWriter::new(), buffer: Vec::new(), len: 0 })
    }

    /// Takes the next event, and the decoder's offset after it.
    pub(crate) fn push(&mut self, event: &Event<'_>, offset: u64) -> Result<(), NoListing> {
        self.writer.push(event, offset, &mut self.buffer).map_err(|_| NoListing::Inexpressible)?;
        if self.len + self.buffer.len() as u64 > LISTING_LEN_MAX {
            return Err(NoListing::Inexpressible);
        }
        if self.buffer.len() >= BUFFER_LEN { self.write_out() } else { Ok(()) }
    }

    /// Ends it, and returns its length.
    pub(crate) fn finish(mut self) -> Result<u64, NoListing> {
        std::mem::take(&mut self.writer).finish(&mut self.buffer);
        self.write_out()?;
        Ok(self.len)
    }

    fn write_out(&mut self) -> Result<(), NoListing> {
        self.out.write_all(&self.buffer)?;
        self.len += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use narval_nix::Listing;
    use narval_nix::nar::{Decoder, Encoder};
    use proptest::prelude::*;

    fn listing(nar: &[u8]) -> Option<String> {
        let (mut decoder, mut rest, mut out) = (Decoder::new(), nar, Vec::new());
        let mut writer = ListingWriter::new(&mut out).ok()?;
        while let (used, Some(event)) = decoder.next(rest).unwrap() {
            rest = &rest[used..];
            writer.push(&event, (nar.len() - rest.len()) as u64).ok()?;
        }
        let len = writer.finish().ok()?;
        assert_eq!(len, out.len() as u64);
        String::from_utf8(out).ok()
    }

    fn nar(events: &[Event<'_>]) -> Vec<u8> {
        let (mut encoder, mut out) = (Encoder::new(), Vec::new());
        events.iter().for_each(|event| encoder.push(*event, &mut out).unwrap());
        encoder.finish().unwrap();
        out
    }

    #[test]
    fn as_nix_writes_it() {
        let nar = nar(&[
            Event::Directory,
            Event::Entry { name: b"bin" },
            Event::Directory,
            Event::Entry { name: "h\"\u{e9}llo".as_bytes() },
            Event::Regular { executable: true, size: 2 },
            Event::Contents(b"hi"),
            Event::EndRegular,
            Event::EndDirectory,
            Event::Entry { name: b"empty" },
            Event::Directory,
            Event::EndDirectory,
            Event::Entry { name: b"link" },
            Event::Symlink { target: b"bin" },
            Event::EndDirectory,
        ]);
        assert_eq!(listing(&nar).unwrap(), Listing::of_nar(&nar).unwrap().to_json().unwrap());
    }

    #[test]
    fn names_that_json_cannot_hold() {
        let nar = nar(&[Event::Symlink { target: b"\xff" }]);
        assert_eq!(listing(&nar), None);
    }

    proptest! {
        #[test]
        fn the_same_as_the_one_in_memory(names in prop::collection::btree_set("[a-zA-Z0-9 \"\\\\é.]{1,12}", 0..12)) {
            let legal = |name: &&String| !matches!(name.as_str(), "." | "..");
            let mut events = vec![Event::Directory];
            for name in names.iter().filter(legal) {
                events.extend([
                    Event::Entry { name: name.as_bytes() },
                    Event::Regular { executable: false, size: 0 },
                    Event::EndRegular,
                ]);
            }
            events.push(Event::EndDirectory);
            let nar = nar(&events);
            prop_assert_eq!(listing(&nar).unwrap(), Listing::of_nar(&nar).unwrap().to_json().unwrap());
        }
    }
}
