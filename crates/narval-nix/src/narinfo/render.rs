//! Renders a narinfo.

use std::fmt::{Display, Write};

use super::{Key, Line, NarInfo, UNKNOWN_DERIVER};
use crate::compression::Compression;
use crate::hash::Hash;
use crate::store_path::StoreDir;

impl NarInfo {
    /// Renders the lines in Nix's order, or in the order of the text that the narinfo was parsed from.
    pub fn render(&self, store_dir: &StoreDir) -> String {
        let lines = &self.form.lines;
        let missing = Key::ALL.into_iter().map(Line::Known).filter(|line| !lines.contains(line));
        // Unknown lines that were added to a new narinfo come last.
        let (before, after): (Vec<Line>, &[Line]) = if lines.contains(&Line::Known(Key::StorePath)) {
            (lines.iter().cloned().chain(missing).collect(), &[])
        } else {
            (missing.collect(), lines)
        };
        let mut writer = Writer { text: String::with_capacity(self.len_estimate()), info: self, store_dir };
        let sig_lines = before.iter().filter(|line| **line == Line::Known(Key::Sig)).count();
        let mut sig_line = 0;
        for line in before.iter().chain(after) {
            match line {
                Line::Unknown { key, value } => writer.line(key, value),
                Line::Odd(content) => {
                    // Writing to a String cannot fail.
                    let _ = writeln!(writer.text, "{content}");
                }
                Line::Known(Key::Sig) => {
                    sig_line += 1;
                    let to = if sig_line == sig_lines { usize::MAX } else { sig_line };
                    writer.signatures(sig_line - 1, to);
                }
                Line::Known(key) => writer.known(*key, lines.contains(line)),
            }
        }
        writer.text
    }

    fn len_estimate(&self) -> usize {
        let references: usize = self.references.iter().map(|path| path.base_name().len() + 1).sum();
        512 + references + self.url.len() + 128 * self.signatures.len()
    }
}

struct Writer<'a> {
    text: String,
    info: &'a NarInfo,
    store_dir: &'a StoreDir,
}

impl Writer<'_> {
    fn line(&mut self, key: &str, value: impl Display) {
        // Writing to a String cannot fail.
        let _ = writeln!(self.text, "{key}: {value}");
    }

    fn signatures(&mut self, from: usize, to: usize) {
        let signatures = &self.info.signatures;
        for signature in signatures.get(from..to.min(signatures.len())).unwrap_or_default() {
            self.line(Key::Sig.name(), signature);
        }
    }

    /// Writes the line of a key, if it has one. `was_there` says whether the parsed text had a line with this key.
    fn known(&mut self, key: Key, was_there: bool) {
        let (info, name) = (self.info, key.name());
        match key {
            Key::StorePath => self.line(name, self.store_dir.display(&info.path)),
            Key::Url => self.line(name, &info.url),
            Key::Compression => self.compression(was_there),
            Key::FileHash => {
                if let Some(hash) = &info.file_hash {
                    self.line(name, hash.render(info.form.file_hash_encoding));
                }
            }
            Key::FileSize => {
                if let Some(size) = info.file_size {
                    self.line(name, size);
                }
            }
            Key::NarHash => self.line(name, Hash::from(info.nar_hash).render(info.form.nar_hash_encoding)),
            Key::NarSize => self.line(name, info.nar_size),
            Key::References => self.references(),
            Key::Deriver => match &info.deriver {
                Some(path) => self.line(name, path),
                None if was_there => self.line(name, UNKNOWN_DERIVER),
                None => {}
            },
            Key::Sig => {}
            Key::Ca => {
                if let Some(ca) = &info.ca {
                    self.line(name, ca);
                }
            }
        }
    }

    fn compression(&mut self, was_there: bool) {
        let compression = self.info.compression;
        let defaulted = self.info.form.compression_defaulted && compression == Compression::default();
        match (defaulted, was_there) {
            (false, _) => self.line(Key::Compression.name(), compression),
            (true, true) => self.line(Key::Compression.name(), ""),
            (true, false) => {}
        }
    }

    fn references(&mut self) {
        let references = &self.info.references;
        if references.is_empty() && self.info.omit_empty_references {
            return;
        }
        self.text.push_str(Key::References.name());
        self.text.push(':');
        if references.is_empty() {
            self.text.push(' ');
        }
        for path in references {
            self.text.push(' ');
            self.text.push_str(path.base_name());
        }
        self.text.push('\n');
    }
}
