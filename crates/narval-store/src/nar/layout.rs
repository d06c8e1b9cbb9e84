//! The positions of a store path's files in its NAR.

use std::ffi::OsStr;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use narval_nix::Listing;
use narval_nix::listing::{ListingBuilder, ListingError};
use narval_nix::nar::{Event, wire};

/// The plan of a NAR: every file, directory and symlink in NAR order, with its offset. An entry takes 32 bytes plus its
/// name, and no open file.
#[derive(Debug)]
pub struct NarLayout {
    pub(super) root: RootIdentity,
    pub(super) records: Box<[Record]>,
    /// Names, each followed by its symlink's target.
    pub(super) text: Box<[u8]>,
    pub(super) size_bytes: u64,
}

/// Identifies the root as it was when the NAR was planned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RootIdentity {
    pub(super) device: u64,
    pub(super) inode: u64,
    /// Some file systems reuse inode numbers immediately; the change time distinguishes them.
    pub(super) changed: (i64, i64),
}

/// A stored entry. Its NAR bytes are: a head (name, type, size or target), the contents with their padding, and the
/// closing tokens of everything that ends with it, including its directories.
#[derive(Debug, Clone, Copy)]
pub(super) struct Record {
    /// Offset of the head in the NAR.
    pub(super) start: u64,
    /// Length of the contents, or of the symlink's target.
    pub(super) extent: u64,
    /// Index of its directory; its own for the root.
    pub(super) parent: u32,
    /// Offset of its name in `text`.
    pub(super) text: u32,
    pub(super) name_len: u8,
    pub(super) kind: Kind,
    /// How many `)` follow.
    pub(super) closes: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Regular,
    Executable,
    Symlink,
    Directory,
}

impl Record {
    pub(super) fn is_regular(&self) -> bool {
        matches!(self.kind, Kind::Regular | Kind::Executable)
    }

    /// Length of the bytes before the contents.
    pub(super) fn head_len(&self) -> u64 {
        // Only the root has no name.
        let name =
            if self.name_len == 0 { wire::HEAD.len() as u64 } else { wire::entry_head_len(self.name_len.into()) };
        name + match self.kind {
            Kind::Regular => wire::regular_head_len(false),
            Kind::Executable => wire::regular_head_len(true),
            Kind::Symlink => wire::symlink_len(self.extent),
            Kind::Directory => wire::DIRECTORY.len() as u64,
        }
    }

    /// Length of the contents without padding.
    pub(super) fn contents_len(&self) -> u64 {
        if self.is_regular() { self.extent } else { 0 }
    }

    /// Length of all its bytes.
    pub(super) fn len(&self) -> u64 {
        let closes = u64::from(self.closes) * wire::CLOSE.len() as u64;
        self.head_len().saturating_add(wire::padded_len(self.contents_len())).saturating_add(closes)
    }
}

/// An entry of a [`NarLayout`].
#[derive(Debug, Clone, Copy)]
pub struct NarEntry<'a> {
    /// Its index in the layout; parents come before their children.
    pub index: usize,
    /// The index of its directory; its own for the root.
    pub parent: usize,
    /// Its name; empty for the root. Any bytes but NUL and `/`.
    pub name: &'a [u8],
    /// Its type, and the data of that type.
    pub node: NarNode<'a>,
}

/// The type of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NarNode<'a> {
    /// A regular file.
    Regular {
        /// Whether its owner may execute it.
        executable: bool,
        /// Length of the contents.
        size_bytes: u64,
        /// Offset of its contents in the NAR (`narOffset` of a listing).
        nar_offset: u64,
    },
    /// A symlink.
    Symlink {
        /// Its target.
        target: &'a [u8],
    },
    /// A directory; its entries follow.
    Directory,
}

impl NarLayout {
    /// The size of the NAR in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// The number of files, directories and symlinks, including the root.
    pub fn entry_count(&self) -> usize {
        self.records.len()
    }

    /// The memory used, in bytes.
    pub fn memory_bytes(&self) -> usize {
        size_of::<Self>() + size_of_val(&*self.records) + self.text.len()
    }

    /// All entries in NAR order.
    pub fn entries(&self) -> impl ExactSizeIterator<Item = NarEntry<'_>> {
        self.records.iter().enumerate().map(|(index, record)| NarEntry {
            index,
            parent: record.parent as usize,
            name: self.name(record),
            node: match record.kind {
                Kind::Regular | Kind::Executable => NarNode::Regular {
                    executable: record.kind == Kind::Executable,
                    size_bytes: record.extent,
                    nar_offset: record.start + record.head_len(),
                },
                Kind::Symlink => NarNode::Symlink { target: self.target(record) },
                Kind::Directory => NarNode::Directory,
            },
        })
    }

    /// The listing of the NAR with the offset of each file's contents, as served at `<hash part>.ls`.
    ///
    /// # Errors
    /// [`ListingError`] for more nodes than a listing may have.
    pub fn listing(&self) -> Result<Listing, ListingError> {
        let mut builder = ListingBuilder::new();
        for entry in self.entries() {
            if !entry.name.is_empty() {
                builder.push(&Event::Entry { name: entry.name }, 0)?;
            }
            let ends = match entry.node {
                NarNode::Regular { executable, size_bytes: size, nar_offset } => {
                    builder.push(&Event::Regular { executable, size }, nar_offset)?;
                    builder.push(&Event::EndRegular, nar_offset)?;
                    2
                }
                NarNode::Symlink { target } => {
                    builder.push(&Event::Symlink { target }, 0)?;
                    1
                }
                NarNode::Directory => {
                    builder.push(&Event::Directory, 0)?;
                    0
                }
            };
            // The closing tokens beyond those of the node and its entry are those of directories and their entries; the
            // root has no entry.
            let closes = self.records.get(entry.index).map_or(0, |record| record.closes);
            let own = if entry.name.is_empty() { u8::min(ends, 1) } else { ends };
            for _ in 0..closes.saturating_sub(own).div_ceil(2) {
                builder.push(&Event::EndDirectory, 0)?;
            }
        }
        builder.finish()
    }

    pub(super) fn record(&self, index: usize) -> Option<&Record> {
        self.records.get(index)
    }

    /// Offset of an entry's bytes; the end of the NAR for the entry after the last.
    pub(super) fn start(&self, index: usize) -> u64 {
        self.records.get(index).map_or(self.size_bytes, |record| record.start)
    }

    /// The index of the entry with the byte at this offset.
    pub(super) fn index_at(&self, offset: u64) -> usize {
        self.records.partition_point(|record| record.start <= offset).saturating_sub(1)
    }

    pub(super) fn name(&self, record: &Record) -> &[u8] {
        let from = record.text as usize;
        self.text.get(from..from + usize::from(record.name_len)).unwrap_or_default()
    }

    fn target(&self, record: &Record) -> &[u8] {
        let from = record.text as usize + usize::from(record.name_len);
        let len = usize::try_from(record.extent).unwrap_or(usize::MAX);
        self.text.get(from..from.saturating_add(len)).unwrap_or_default()
    }

    /// Appends an entry's bytes before its contents.
    pub(super) fn push_head(&self, record: &Record, out: &mut Vec<u8>) {
        if record.name_len == 0 {
            out.extend_from_slice(&wire::HEAD);
        } else {
            wire::push_entry_head(out, self.name(record));
        }
        match record.kind {
            Kind::Regular => wire::push_regular_head(out, false, record.extent),
            Kind::Executable => wire::push_regular_head(out, true, record.extent),
            Kind::Symlink => wire::push_symlink(out, self.target(record)),
            Kind::Directory => out.extend_from_slice(&wire::DIRECTORY),
        }
    }

    /// Appends an entry's bytes after its contents.
    pub(super) fn push_tail(record: &Record, out: &mut Vec<u8>) {
        out.extend_from_slice(wire::padding(record.contents_len()));
        for _ in 0..record.closes {
            out.extend_from_slice(&wire::CLOSE);
        }
    }

    /// Appends the path of an entry below the root; nothing for the root.
    pub(super) fn push_path(&self, index: usize, out: &mut Vec<u8>) {
        let mut chain = [0_u32; narval_nix::nar::DEPTH_MAX + 1];
        let (mut len, mut at) = (0, index);
        while let Some(record) = self.records.get(at).filter(|record| record.name_len > 0)
            && let Some(place) = chain.get_mut(len)
        {
            *place = at as u32;
            len += 1;
            at = record.parent as usize;
        }
        for (order, at) in chain.iter().take(len).rev().enumerate() {
            if order > 0 {
                out.push(b'/');
            }
            if let Some(record) = self.records.get(*at as usize) {
                out.extend_from_slice(self.name(record));
            }
        }
    }

    /// The path of an entry below this path of the root, for messages.
    pub(super) fn path(&self, root: &std::path::Path, index: usize) -> PathBuf {
        let mut below = Vec::new();
        self.push_path(index, &mut below);
        if below.is_empty() { root.to_owned() } else { root.join(OsStr::from_bytes(&below)) }
    }

    /// The range of the NAR that these entries cover.
    pub(super) fn span(&self, entries: &Range<usize>) -> Range<u64> {
        self.start(entries.start)..self.start(entries.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_small() {
        assert_eq!(size_of::<Record>(), 32);
    }
}
