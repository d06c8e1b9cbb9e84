//! The listing of a NAR, written while the NAR comes.
//!
//! A NAR's entries are sorted as those of a listing are, so that nothing need be held: a tree of millions of files costs no
//! memory. The bytes are those of [`narval_nix::Listing::to_json`].

use std::io::{self, BufWriter, Write};

use narval_nix::nar::Event;

/// The largest listing that is made, in bytes. A NAR of a few megabytes, well compressed, can have millions of entries; the
/// largest real ones have a hundred thousand.
const LISTING_LEN_MAX: u64 = 64 << 20;

/// Why there is no listing.
pub(crate) enum NoListing {
    /// JSON cannot express it, or it would be larger than is read.
    Inexpressible,
    /// It can't be written.
    Io(io::Error),
}

impl From<io::Error> for NoListing {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// Writes a listing.
pub(crate) struct ListingWriter<W: Write> {
    out: BufWriter<W>,
    /// For each open directory: whether it has entries yet.
    open: Vec<bool>,
    len: u64,
}

impl<W: Write> ListingWriter<W> {
    pub(crate) fn new(out: W) -> Result<Self, NoListing> {
        let mut writer = Self { out: BufWriter::with_capacity(16 * 1024, out), open: Vec::new(), len: 0 };
        writer.put(b"{\"root\":")?;
        Ok(writer)
    }

    /// Takes the next event, and the decoder's offset after it.
    pub(crate) fn push(&mut self, event: &Event<'_>, offset: u64) -> Result<(), NoListing> {
        match *event {
            Event::Regular { executable, size } => {
                let executable = if executable { "\"executable\":true," } else { "" };
                let node = format!("{{{executable}\"narOffset\":{offset},\"size\":{size},\"type\":\"regular\"}}");
                self.put(node.as_bytes())
            }
            Event::Symlink { target } => {
                self.put(b"{\"target\":")?;
                self.string(target)?;
                self.put(b",\"type\":\"symlink\"}")
            }
            Event::Directory => {
                self.open.push(false);
                self.put(b"{\"entries\":{")
            }
            Event::Entry { name } => {
                let has_entries = self.open.last_mut().map(|has_entries| std::mem::replace(has_entries, true));
                if has_entries == Some(true) {
                    self.put(b",")?;
                }
                self.string(name)?;
                self.put(b":")
            }
            Event::EndDirectory => {
                self.open.pop();
                self.put(b"},\"type\":\"directory\"}")
            }
            Event::Contents(_) | Event::EndRegular => Ok(()),
        }
    }

    /// Ends it; says how long it is.
    pub(crate) fn finish(mut self) -> Result<u64, NoListing> {
        self.put(b",\"version\":1}")?;
        self.out.flush()?;
        Ok(self.len)
    }

    fn string(&mut self, bytes: &[u8]) -> Result<(), NoListing> {
        let text = std::str::from_utf8(bytes).map_err(|_| NoListing::Inexpressible)?;
        let json = serde_json::to_string(text).map_err(|_| NoListing::Inexpressible)?;
        self.put(json.as_bytes())
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), NoListing> {
        self.len += bytes.len() as u64;
        if self.len > LISTING_LEN_MAX {
            return Err(NoListing::Inexpressible);
        }
        Ok(self.out.write_all(bytes)?)
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
    fn names_that_json_has_not() {
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
