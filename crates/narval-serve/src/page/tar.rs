//! A folder of a path as a tar archive, made while it is sent.
//!
//! GNU's format (<https://www.gnu.org/software/tar/manual/html_node/Standard.html>), which has room for names of any length and any bytes. All
//! names are below one folder, and no component is `..`: the archive unpacks into that folder alone.

use std::io;

use narval_http::{BodySource, Fill, HeaderValue, Response, SegmentBuf, StatusCode, header};
use narval_nix::listing::Node;

use super::contents::guarded;
use super::inside::{Inside, Reader};
use crate::error::ServeError;
use crate::piecework::Answered;

const BLOCK_LEN: usize = 512;
/// The maximum length of a name in a header. A longer one is in a separate entry before it.
const NAME_LEN_MAX: usize = 100;
/// The largest number in 11 octal digits.
const OCTAL_MAX: u64 = 0o777_7777_7777;
/// The maximum length of all names of an archive in bytes, because they are in memory while it is sent.
const NAMES_LEN_MAX: usize = 32 << 20;
/// Nix's time of all files, in seconds since 1970.
const TIME: u64 = 1;

/// Answers with an archive of a folder, or of a single file.
pub(super) fn answer(inside: &Inside, path: &[u8]) -> Result<Answered, ServeError> {
    let node = inside.listing.get(path).ok_or(ServeError::NoPath)?;
    let last = path.split(|byte| *byte == b'/').rfind(|name| !name.is_empty());
    let top = last.unwrap_or_else(|| inside.path.name().as_bytes());
    let mut entries = Entries { list: Vec::new(), names_len: 0 };
    entries.add(top.to_vec(), node).map_err(ServeError::Upload)?;
    let length = entries.list.iter().map(Entry::length).sum::<u64>() + 2 * BLOCK_LEN as u64;
    // The name is only a suggestion, and all other bytes would have to be quoted.
    let safe = |byte: &u8| if byte.is_ascii_alphanumeric() || b"-._+".contains(byte) { char::from(*byte) } else { '_' };
    let file = top.iter().map(safe).collect::<String>();
    let disposition = format!("attachment; filename=\"{}.tar\"", file.trim_start_matches('.'));
    if let Some(offset) = entries.list.iter().find_map(Entry::offset) {
        inside.may_skip_to(offset)?;
    }
    let source = Tar { reader: inside.reader(), entries: entries.list.into_iter(), padding: 0, state: State::Next };
    let mut response = guarded(Response::new(StatusCode::OK))
        .header(header::CONTENT_TYPE, HeaderValue::from_static("application/x-tar"));
    if let Ok(disposition) = HeaderValue::from_str(&disposition) {
        response = response.header(header::CONTENT_DISPOSITION, disposition);
    }
    Ok(inside.answered(response, source, Some(length)))
}

/// One entry of the archive.
struct Entry {
    name: Vec<u8>,
    kind: Kind,
}

enum Kind {
    File { executable: bool, size: u64, offset: u64 },
    Symlink { target: Vec<u8> },
    Folder,
}

struct Entries {
    list: Vec<Entry>,
    names_len: usize,
}

impl Entries {
    /// Adds a node and all below it, in the order of the NAR.
    fn add(&mut self, name: Vec<u8>, node: &Node) -> Result<(), String> {
        let mut open = vec![(name, node)];
        while let Some((mut name, node)) = open.pop() {
            let kind = match node {
                Node::Regular { executable, size, nar_offset } => {
                    let offset = nar_offset.ok_or("the listing of this path has no offsets")?;
                    Kind::File { executable: *executable, size: *size, offset }
                }
                Node::Symlink { target } => Kind::Symlink { target: target.to_vec() },
                Node::Directory(children) => {
                    name.push(b'/');
                    for (child, node) in children.iter().rev() {
                        open.push(([&name, &**child].concat(), node));
                    }
                    Kind::Folder
                }
            };
            self.names_len += name.len();
            if self.names_len > NAMES_LEN_MAX {
                return Err("this folder has too many files for an archive: download the NAR".into());
            }
            self.list.push(Entry { name, kind });
        }
        Ok(())
    }
}

impl Entry {
    fn size(&self) -> u64 {
        if let Kind::File { size, .. } = self.kind { size } else { 0 }
    }

    /// Where its contents are in the NAR.
    fn offset(&self) -> Option<u64> {
        if let Kind::File { offset, size: 1.., .. } = self.kind { Some(offset) } else { None }
    }

    fn target(&self) -> &[u8] {
        if let Kind::Symlink { target } = &self.kind { target } else { b"" }
    }

    /// The header, with the entries for long names before it.
    fn header(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for (kind, name) in [(b'K', self.target()), (b'L', &*self.name)] {
            if name.len() > NAME_LEN_MAX {
                let len = name.len() + 1;
                out.extend(block(b"././@LongLink", kind, 0, len as u64, b""));
                out.extend(name);
                out.resize(out.len() + 1 + padding(len as u64), 0);
            }
        }
        let (kind, mode) = match self.kind {
            Kind::File { executable: true, .. } => (b'0', 0o755),
            Kind::File { executable: false, .. } => (b'0', 0o644),
            Kind::Symlink { .. } => (b'2', 0o777),
            Kind::Folder => (b'5', 0o755),
        };
        out.extend(block(&self.name, kind, mode, self.size(), self.target()));
        out
    }

    /// Its length in the archive.
    fn length(&self) -> u64 {
        let long = |name: &[u8]| match name.len() {
            0..=NAME_LEN_MAX => 0,
            len => (BLOCK_LEN + len + 1 + padding(len as u64 + 1)) as u64,
        };
        let size = self.size();
        BLOCK_LEN as u64 + long(&self.name) + long(self.target()) + size.saturating_add(padding(size) as u64)
    }
}

/// The number of padding bytes up to the next block.
fn padding(len: u64) -> usize {
    let over = usize::try_from(len % BLOCK_LEN as u64).unwrap_or_default();
    if over == 0 { 0 } else { BLOCK_LEN - over }
}

/// A header block. Longer names are truncated.
fn block(name: &[u8], kind: u8, mode: u64, size: u64, target: &[u8]) -> [u8; BLOCK_LEN] {
    let mut block = [0; BLOCK_LEN];
    let mut put = |at: usize, bytes: &[u8]| {
        if let Some(place) = block.get_mut(at..at + bytes.len()) {
            place.copy_from_slice(bytes);
        }
    };
    put(0, name.get(..NAME_LEN_MAX).unwrap_or(name));
    put(100, format!("{mode:07o}").as_bytes());
    // The IDs of the owner and the group.
    put(108, b"0000000");
    put(116, b"0000000");
    if size <= OCTAL_MAX {
        put(124, format!("{size:011o}").as_bytes());
    } else {
        // In base 256, as marked by the highest bit.
        put(124, &[0x80, 0, 0, 0]);
        put(128, &size.to_be_bytes());
    }
    put(136, format!("{TIME:011o}").as_bytes());
    put(156, &[kind]);
    put(157, target.get(..NAME_LEN_MAX).unwrap_or(target));
    put(257, b"ustar  ");
    // The checksum covers the block with spaces in place of the checksum.
    put(148, b"        ");
    let sum: u64 = block.iter().map(|byte| u64::from(*byte)).sum();
    if let Some(place) = block.get_mut(148..156) {
        place.copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    }
    block
}

/// The archive as a body.
struct Tar {
    reader: Reader,
    entries: std::vec::IntoIter<Entry>,
    /// Zeros after the current file.
    padding: usize,
    state: State,
}

enum State {
    /// The next entry's header follows.
    Next,
    /// The contents of a file follow.
    Contents,
    /// Everything was written.
    Over,
}

impl BodySource for Tar {
    fn fill(&mut self, out: &mut SegmentBuf) -> io::Result<Fill> {
        while out.room() > 0 {
            match self.state {
                State::Over => return Ok(Fill::Done),
                State::Contents => {
                    if self.reader.fill(out)? == Fill::More {
                        return Ok(Fill::More);
                    }
                    out.memory().extend(std::iter::repeat_n(0, self.padding));
                    self.state = State::Next;
                }
                State::Next => match self.entries.next() {
                    Some(entry) => {
                        out.memory().extend(entry.header());
                        if let Kind::File { size, offset, .. } = entry.kind
                            && size > 0
                        {
                            self.reader.begin(offset, size)?;
                            self.padding = padding(size);
                            self.state = State::Contents;
                        }
                    }
                    None => {
                        // The end of an archive.
                        out.memory().extend([0; 2 * BLOCK_LEN]);
                        self.state = State::Over;
                    }
                },
            }
        }
        Ok(Fill::More)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_match_the_written_entries() {
        let file =
            |name: &str, size| Entry { name: name.into(), kind: Kind::File { executable: false, size, offset: 0 } };
        let link = |target: &str| Entry { name: b"l".to_vec(), kind: Kind::Symlink { target: target.into() } };
        let long = "x".repeat(255);
        for entry in [file("a", 0), file("a", 1), file("a", 512), file(&long, 513), link("b"), link(&"y".repeat(1024))]
        {
            let contents = entry.size() + padding(entry.size()) as u64;
            assert_eq!(entry.header().len() as u64 + contents, entry.length());
            assert_eq!(entry.length() % BLOCK_LEN as u64, 0);
        }
        let names = [99, 100, 101, 511, 512].map(|len| file(&"n".repeat(len), 0));
        assert!(names.iter().all(|entry| entry.header().len() as u64 == entry.length()));
    }

    #[test]
    fn large_sizes_are_in_base_256() {
        assert_eq!(&block(b"a", b'0', 0o644, OCTAL_MAX, b"")[124..136], b"77777777777\0");
        let large = block(b"a", b'0', 0o644, OCTAL_MAX + 1, b"");
        assert_eq!(large[124..136], [0x80, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0]);
    }
}
