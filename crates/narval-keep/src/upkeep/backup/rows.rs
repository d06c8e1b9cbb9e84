//! Files of rows: JSON lines, compressed.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};

use narval_files::TemporaryFile;
use narval_nix::HashPart;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::place::{ROWS, Shelf, damaged};
use crate::records::paths::{NarRecord, SavedPath};
use narval_store::hash_of;

/// The zstd level.
const LEVEL: i32 = 3;

/// The largest file of rows, and the largest row, in bytes.
const FILE_LEN_MAX: u64 = 1 << 30;
const ROW_LEN_MAX: u64 = 64 << 20;

/// Writes rows into files, a new one whenever the key of a row is greater than the one before.
pub(super) struct Rows<'a> {
    shelf: &'a Shelf,
    /// Files that the shelf has.
    there: &'a HashSet<String>,
    open: Option<(i64, zstd::stream::write::Encoder<'static, TemporaryFileWriter>)>,
    pub(super) names: Vec<String>,
    /// Files that it did not have.
    pub(super) new: u64,
}

pub(super) struct TemporaryFileWriter(TemporaryFile);

impl Write for TemporaryFileWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.file().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> Rows<'a> {
    pub(super) const fn new(shelf: &'a Shelf, there: &'a HashSet<String>) -> Self {
        Self { shelf, there, open: None, names: Vec::new(), new: 0 }
    }

    pub(super) fn add(&mut self, key: i64, row: &impl Serialize) -> io::Result<()> {
        let mut line = serde_json::to_vec(row)?;
        line.push(b'\n');
        self.add_text(key, &line)
    }

    pub(super) fn add_text(&mut self, key: i64, text: &[u8]) -> io::Result<()> {
        if self.open.as_ref().is_some_and(|(open, _)| *open < key) {
            self.close()?;
        }
        let (_, out) = match &mut self.open {
            Some(open) => open,
            None => {
                let file = TemporaryFileWriter(self.shelf.storage.incoming()?);
                self.open.insert((key, zstd::stream::write::Encoder::new(file, LEVEL)?))
            }
        };
        out.write_all(text)
    }

    fn close(&mut self) -> io::Result<()> {
        let Some((_, out)) = self.open.take() else { return Ok(()) };
        let TemporaryFileWriter(file) = out.finish()?;
        let name = format!("{}.zst", hash_of(&mut File::open(file.path())?)?.to_nix32());
        if !self.there.contains(&name) {
            self.shelf.put_file(&format!("{ROWS}/{name}"), file)?;
            self.new += 1;
        }
        self.names.push(name);
        Ok(())
    }

    /// All rows are written. Returns the names of the files.
    pub(super) fn finish(mut self) -> io::Result<(Vec<String>, u64)> {
        self.close()?;
        Ok((self.names, self.new))
    }
}

impl Shelf {
    /// The contents of a file of rows, as one text.
    pub(super) fn text_of(&self, name: &str) -> io::Result<String> {
        let (bytes, mut text) = (self.read_rows(name, FILE_LEN_MAX)?, String::new());
        zstd::stream::read::Decoder::new(&*bytes)?.take(FILE_LEN_MAX).read_to_string(&mut text)?;
        Ok(text)
    }

    /// The rows of a file.
    pub(super) fn each_row<T: DeserializeOwned>(
        &self,
        name: &str,
        mut take: impl FnMut(T) -> io::Result<()>,
    ) -> io::Result<()> {
        let bytes = self.read_rows(name, FILE_LEN_MAX)?;
        let mut rows = BufReader::new(zstd::stream::read::Decoder::new(&*bytes)?);
        let mut line = Vec::new();
        while (&mut rows).take(ROW_LEN_MAX).read_until(b'\n', &mut line)? > 0 {
            take(serde_json::from_slice(&line).map_err(|_| damaged(name))?)?;
            line.clear();
        }
        Ok(())
    }
}

/// A path of a cache, as a row.
#[derive(Serialize, Deserialize)]
pub(super) struct PathRow {
    path: String,
    file: String,
    narinfo: String,
    nar_hash: String,
    nar_size: u64,
    compression: String,
    file_hash: String,
    file_size: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    listing_size: Option<u64>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    found: String,
}

impl TryFrom<SavedPath> for PathRow {
    type Error = std::string::FromUtf8Error;

    fn try_from(saved: SavedPath) -> Result<Self, Self::Error> {
        let SavedPath { path, file, narinfo, nar } = saved;
        Ok(Self {
            path,
            file,
            narinfo: String::from_utf8(narinfo)?,
            nar_hash: nar.nar_hash.to_nix32(),
            nar_size: nar.nar_size,
            compression: nar.compression.to_string(),
            file_hash: nar.file_hash.to_nix32(),
            file_size: nar.file_size,
            listing_size: nar.listing_size,
            found: nar.found.iter().map(HashPart::as_str).collect(),
        })
    }
}

impl PathRow {
    /// `None` if it cannot be one.
    pub(super) fn saved(self) -> Option<SavedPath> {
        let hash = |text: &str| narval_nix::Sha256::from_nix32(text.as_bytes()).ok();
        let nar = NarRecord {
            nar_hash: hash(&self.nar_hash)?,
            nar_size: self.nar_size,
            compression: self.compression.parse().ok()?,
            file_hash: hash(&self.file_hash)?,
            file_size: self.file_size,
            listing_size: self.listing_size,
            found: self.found.as_bytes().chunks(32).map(|part| HashPart::parse(part).ok()).collect::<Option<_>>()?,
        };
        Some(SavedPath { path: self.path, file: self.file, narinfo: self.narinfo.into_bytes(), nar })
    }
}
