//! Sorted tables in a file: blocks of keys and values, each compressed on its own, and a directory of their first keys. A look-up reads one block.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;

use crate::bounded::TABLES_LEN_MAX;
use crate::error::NamesError;
use crate::fields::{Fields, put, put_number};

/// A block is complete once it has this size.
const BLOCK_LEN: usize = 32 * 1024;
/// The largest block: a last value comes on top.
const BLOCK_LEN_MAX: usize = BLOCK_LEN + 4 * 1024 * 1024;
/// The level of zstd: who installs their first package waits for it.
const LEVEL: i32 = 1;

/// Is given a key and a value.
pub(crate) type Take<'a, K, T> = &'a mut dyn FnMut(&K, &[u8]) -> Result<T, NamesError>;

/// Keys and values that are not sorted yet.
#[derive(Debug, Default)]
pub(crate) struct Rows {
    bytes: Vec<u8>,
    /// Start, length of the key, length of the value.
    rows: Vec<(u32, u16, u32)>,
}

impl Rows {
    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }

    pub(crate) fn add(&mut self, key: &[u8], value: &[u8]) -> Result<(), NamesError> {
        let too_large = || NamesError::Limit { what: "the index", limit: TABLES_LEN_MAX as u64, unit: "bytes" };
        if self.bytes.len() + key.len() + value.len() > TABLES_LEN_MAX {
            return Err(too_large());
        }
        let start = u32::try_from(self.bytes.len()).map_err(|_| too_large())?;
        let key_len = u16::try_from(key.len()).map_err(|_| too_large())?;
        let value_len = u32::try_from(value.len()).map_err(|_| too_large())?;
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(value);
        self.rows.push((start, key_len, value_len));
        Ok(())
    }

    fn key(&self, row: (u32, u16, u32)) -> &[u8] {
        let start = row.0 as usize;
        self.bytes.get(start..start + usize::from(row.1)).unwrap_or_default()
    }

    /// Sorts the rows and compresses them; of several with one key, the first that was added.
    pub(crate) fn pack(mut self) -> Result<Packed, NamesError> {
        let mut compressor = compressor()?;
        let mut bytes = Vec::new();
        let mut pack = |first: &[u8], block: &[u8]| -> Result<Block, NamesError> {
            let compressed = compressor.compress(block)?;
            let position = bytes.len() as u64;
            bytes.extend_from_slice(&compressed);
            Ok(Block { first: first.to_vec(), position, len: compressed.len() as u64, raw_len: block.len() as u64 })
        };
        let mut rows = std::mem::take(&mut self.rows);
        // The first of equal keys stays the first.
        rows.sort_unstable_by(|one, other| self.key(*one).cmp(self.key(*other)).then(one.0.cmp(&other.0)));
        rows.dedup_by(|later, first| self.key(*later) == self.key(*first));
        let mut directory = Directory { rows: rows.len() as u64, blocks: Vec::new() };
        let (mut block, mut first, mut last): (Vec<u8>, &[u8], &[u8]) = (Vec::new(), &[], &[]);
        for row in rows {
            let key = self.key(row);
            let value_at = row.0 as usize + key.len();
            let value = self.bytes.get(value_at..value_at + row.2 as usize).unwrap_or_default();
            if block.is_empty() {
                (first, last) = (key, &[]);
            }
            let shared = last.iter().zip(key).take_while(|(one, other)| one == other).count();
            put_number(&mut block, shared as u64);
            put(&mut block, key.get(shared..).unwrap_or_default());
            put(&mut block, value);
            last = key;
            if block.len() >= BLOCK_LEN {
                directory.blocks.push(pack(first, &block)?);
                block.clear();
            }
        }
        if !block.is_empty() {
            directory.blocks.push(pack(first, &block)?);
        }
        Ok(Packed { directory, bytes })
    }
}

/// A sorted table, compressed. The positions of its blocks are those in `bytes`.
#[derive(Debug, Default)]
pub(crate) struct Packed {
    pub(crate) directory: Directory,
    bytes: Vec<u8>,
}

impl Packed {
    /// Writes the blocks, and returns where they are.
    pub(crate) fn write(mut self, out: &mut Output<'_>) -> Result<Directory, NamesError> {
        for block in &mut self.directory.blocks {
            block.position += out.position;
        }
        out.write(&self.bytes)?;
        Ok(self.directory)
    }
}

/// Compresses the blocks of tables, and the directory.
pub(crate) fn compressor() -> Result<zstd::bulk::Compressor<'static>, NamesError> {
    let mut compressor = zstd::bulk::Compressor::new(LEVEL)?;
    compressor.include_checksum(true)?;
    Ok(compressor)
}

/// Where tables are written.
pub(crate) struct Output<'a> {
    pub(crate) out: &'a mut dyn Write,
    pub(crate) position: u64,
}

impl Output<'_> {
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<(), NamesError> {
        self.out.write_all(bytes)?;
        self.position += bytes.len() as u64;
        Ok(())
    }
}

/// Where the blocks of a table are.
#[derive(Debug, Default)]
pub(crate) struct Directory {
    pub(crate) rows: u64,
    blocks: Vec<Block>,
}

#[derive(Debug)]
struct Block {
    first: Vec<u8>,
    position: u64,
    len: u64,
    raw_len: u64,
}

impl Directory {
    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        put_number(out, self.rows);
        put_number(out, self.blocks.len() as u64);
        for block in &self.blocks {
            put(out, &block.first);
            for number in [block.position, block.len, block.raw_len] {
                put_number(out, number);
            }
        }
    }

    pub(crate) fn get(fields: &mut Fields<'_>) -> Result<Self, NamesError> {
        let (rows, count) = (fields.number()?, fields.length()?);
        let mut blocks = Vec::new();
        for _ in 0..count {
            let (first, position) = (fields.bytes()?.to_vec(), fields.number()?);
            let (len, raw_len) = (fields.number()?, fields.number()?);
            if len > BLOCK_LEN_MAX as u64 || raw_len > BLOCK_LEN_MAX as u64 {
                return Err(NamesError::Damaged("a block is too large"));
            }
            blocks.push(Block { first, position, len, raw_len });
        }
        Ok(Self { rows, blocks })
    }

    /// Passes on all rows whose key has this prefix, in order, until `take` returns false.
    pub(crate) fn scan(&self, file: &File, prefix: &[u8], take: Take<'_, [u8], bool>) -> Result<(), NamesError> {
        // The last block that does not begin after the prefix has the first row.
        let begin = self.blocks.partition_point(|block| block.first.as_slice() <= prefix).saturating_sub(1);
        let mut key = Vec::new();
        for block in self.blocks.get(begin..).unwrap_or_default() {
            if block.first.as_slice() > prefix && !block.first.starts_with(prefix) {
                return Ok(());
            }
            let bytes = read_compressed(file, block.position, block.len, block.raw_len)?;
            let mut fields = Fields(&bytes);
            key.clear();
            while !fields.0.is_empty() {
                key.truncate(fields.length()?);
                key.extend_from_slice(fields.bytes()?);
                let value = fields.bytes()?;
                if key.starts_with(prefix) {
                    if !take(&key, value)? {
                        return Ok(());
                    }
                } else if key.as_slice() > prefix {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// The value of a key.
    pub(crate) fn find(&self, file: &File, key: &[u8]) -> Result<Option<Vec<u8>>, NamesError> {
        let mut found = None;
        self.scan(file, key, &mut |other, value| {
            if other == key {
                found = Some(value.to_vec());
            }
            Ok(false)
        })?;
        Ok(found)
    }
}

/// Reads compressed bytes of a file.
pub(crate) fn read_compressed(file: &File, position: u64, len: u64, raw_len: u64) -> Result<Vec<u8>, NamesError> {
    let length = |len: u64| usize::try_from(len).map_err(|_| NamesError::Damaged("a block is too large"));
    let mut compressed = vec![0; length(len)?];
    file.read_exact_at(&mut compressed, position).map_err(|error| match error.kind() {
        std::io::ErrorKind::UnexpectedEof => NamesError::Damaged("it is truncated"),
        _ => NamesError::Io(error),
    })?;
    let raw_len = length(raw_len)?;
    let bytes = zstd::bulk::decompress(&compressed, raw_len).map_err(|_| NamesError::Damaged("a block"))?;
    if bytes.len() == raw_len { Ok(bytes) } else { Err(NamesError::Damaged("a block is truncated")) }
}
