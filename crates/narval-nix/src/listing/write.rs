//! The JSON of a listing, written while its tree is walked, byte for byte as Nix writes it: keys sorted, no white space.
//!
//! The entries of a NAR are sorted as those of a listing are, so that nothing need be held: a tree of millions of files costs no
//! memory.

use super::{ListingError, Node};
use crate::nar::Event;

/// Writes a listing from the events of a [`Decoder`](crate::nar::Decoder), as [`Encoder`](crate::nar::Encoder) writes a NAR.
#[derive(Debug, Default)]
pub struct ListingWriter {
    /// For each open directory: whether it has entries yet, and the name of the one that is being written.
    open: Vec<(bool, Box<[u8]>)>,
    has_begun: bool,
}

impl ListingWriter {
    /// A writer that has seen nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the next event, and the decoder's [offset](crate::nar::Decoder::offset) after it; appends what it adds to the
    /// listing to `out`.
    ///
    /// # Errors
    /// [`ListingError::NotUtf8`] for a name or target that JSON cannot express.
    pub fn push(&mut self, event: &Event<'_>, offset: u64, out: &mut Vec<u8>) -> Result<(), ListingError> {
        if !std::mem::replace(&mut self.has_begun, true) {
            out.extend_from_slice(b"{\"root\":");
        }
        match *event {
            Event::Regular { executable, size } => regular(executable, size, Some(offset), out),
            Event::Symlink { target } => self.symlink(target, out)?,
            Event::Directory => self.directory(out),
            Event::Entry { name } => self.entry(name, out)?,
            Event::EndDirectory => self.end_directory(out),
            Event::Contents(_) | Event::EndRegular => {}
        }
        Ok(())
    }

    /// Appends the end of the listing to `out`.
    pub fn finish(self, out: &mut Vec<u8>) {
        out.extend_from_slice(b",\"version\":1}");
    }

    /// Writes a node with all that is below it.
    pub(super) fn node(&mut self, node: &Node, out: &mut Vec<u8>) -> Result<(), ListingError> {
        match node {
            &Node::Regular { executable, size, nar_offset } => regular(executable, size, nar_offset, out),
            Node::Symlink { target } => self.symlink(target, out)?,
            Node::Directory(entries) => {
                self.directory(out);
                for (name, node) in entries {
                    self.entry(name, out)?;
                    self.node(node, out)?;
                }
                self.end_directory(out);
            }
        }
        Ok(())
    }

    fn symlink(&self, target: &[u8], out: &mut Vec<u8>) -> Result<(), ListingError> {
        out.extend_from_slice(b"{\"target\":");
        self.string(target, out)?;
        out.extend_from_slice(b",\"type\":\"symlink\"}");
        Ok(())
    }

    fn directory(&mut self, out: &mut Vec<u8>) {
        self.open.push((false, Box::default()));
        out.extend_from_slice(b"{\"entries\":{");
    }

    fn entry(&mut self, name: &[u8], out: &mut Vec<u8>) -> Result<(), ListingError> {
        if let Some((has_entries, last)) = self.open.last_mut() {
            *last = name.into();
            if std::mem::replace(has_entries, true) {
                out.push(b',');
            }
        }
        self.string(name, out)?;
        out.push(b':');
        Ok(())
    }

    fn end_directory(&mut self, out: &mut Vec<u8>) {
        self.open.pop();
        out.extend_from_slice(b"},\"type\":\"directory\"}");
    }

    fn string(&self, bytes: &[u8], out: &mut Vec<u8>) -> Result<(), ListingError> {
        let path = || self.open.iter().map(|(_, name)| String::from_utf8_lossy(name)).collect::<Vec<_>>().join("/");
        let text = std::str::from_utf8(bytes).map_err(|_| ListingError::NotUtf8 { path: path() })?;
        serde_json::to_writer(out, text).map_err(|error| ListingError::Json(error.to_string()))
    }
}

fn regular(executable: bool, size: u64, nar_offset: Option<u64>, out: &mut Vec<u8>) {
    let executable = if executable { "\"executable\":true," } else { "" };
    let offset = nar_offset.map(|offset| format!("\"narOffset\":{offset},")).unwrap_or_default();
    out.extend_from_slice(format!("{{{executable}{offset}\"size\":{size},\"type\":\"regular\"}}").as_bytes());
}
