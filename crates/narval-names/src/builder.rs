//! Makes an index file.

use std::io::Write;

use narval_nix::{StorePath, nix32};

use crate::bounded::{ATTRIBUTES_MAX, STORE_PATHS_MAX};
use crate::error::NamesError;
use crate::fields::{put, put_number};
use crate::package::Package;
use crate::table::{Output, Packed, Rows, compressor};

/// The first and the last bytes of an index file.
pub(crate) const MAGIC: &[u8; 16] = b"narval-names-01\n";

/// The kinds of keys in the table of other names.
pub(crate) const BY_NAME: u8 = b'n';
pub(crate) const BY_PNAME: u8 = b'p';
pub(crate) const BY_PROGRAM: u8 = b'm';

/// Collects attributes and paths, and writes them as an index.
#[derive(Debug, Default)]
pub struct Builder {
    /// Attribute → package.
    packages: Rows,
    /// Other names → attributes.
    others: Rows,
    /// Name and digest of store paths.
    paths: Rows,
    /// Attribute, system and output → path.
    exact: Rows,
    facts: Vec<(String, String)>,
}

impl Builder {
    /// Adds an attribute. Of several of one name, the first one stays.
    ///
    /// # Errors
    /// If a limit is exceeded.
    pub fn add_package(&mut self, package: &Package) -> Result<(), NamesError> {
        if self.packages.len() >= ATTRIBUTES_MAX {
            return Err(NamesError::Limit { what: "the index", limit: ATTRIBUTES_MAX as u64, unit: "attributes" });
        }
        let attribute = package.attribute.as_bytes();
        self.packages.add(attribute, &package.encode())?;
        let named = [Some(package.name.clone()), package.pname_version().filter(|other| *other != package.name)];
        for name in named.into_iter().flatten() {
            self.others.add(&key(BY_NAME, &name, attribute), &[])?;
        }
        for (kind, name) in [(BY_PNAME, &package.pname), (BY_PROGRAM, &package.program)] {
            if !name.is_empty() {
                self.others.add(&key(kind, name, attribute), package.version.as_bytes())?;
            }
        }
        Ok(())
    }

    /// Adds a store path of the channel.
    ///
    /// # Errors
    /// If a limit is exceeded.
    pub fn add_path(&mut self, path: &StorePath) -> Result<(), NamesError> {
        if self.paths.len() >= STORE_PATHS_MAX {
            return Err(NamesError::Limit { what: "the index", limit: STORE_PATHS_MAX as u64, unit: "store paths" });
        }
        let mut key = Vec::with_capacity(64);
        key.extend_from_slice(path.name().as_bytes());
        key.push(0);
        let digest = nix32::decode::<20>(path.hash_part().as_bytes());
        key.extend_from_slice(&digest.map_err(|_| NamesError::Damaged("a hash part"))?);
        self.paths.add(&key, &[])
    }

    /// Adds which path an output of an attribute has on a system.
    ///
    /// # Errors
    /// If a limit is exceeded.
    pub fn add_exact(
        &mut self,
        attribute: &str,
        system: &str,
        output: &str,
        path: &StorePath,
    ) -> Result<(), NamesError> {
        let key = [attribute, system, output].join("\0");
        self.exact.add(key.as_bytes(), path.base_name().as_bytes())
    }

    /// Records a fact about the whole index, such as the release it is of.
    pub fn set(&mut self, fact: &str, value: &str) {
        self.facts.push((fact.to_owned(), value.to_owned()));
    }

    /// The number of attributes and of store paths.
    pub fn counts(&self) -> (usize, usize) {
        (self.packages.len(), self.paths.len())
    }

    /// Sorts and compresses all that was added, the two largest tables in two threads.
    ///
    /// # Errors
    /// If it cannot be compressed.
    pub fn pack(self) -> Result<PackedIndex, NamesError> {
        let Self { packages, others, paths, exact, facts } = self;
        let (packages, others) = std::thread::scope(|scope| {
            let others = scope.spawn(|| others.pack());
            (packages.pack(), others.join())
        });
        let others = others.map_err(|_| NamesError::Io(std::io::Error::other("a thread has died")))?;
        Ok(PackedIndex { packages: packages?, others: others?, paths: paths.pack()?, exact: exact.pack()?, facts })
    }

    /// Writes the index.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write(self, out: &mut dyn Write) -> Result<(), NamesError> {
        self.pack()?.write(out)
    }
}

/// An index that is ready to be written.
#[derive(Debug, Default)]
pub struct PackedIndex {
    packages: Packed,
    others: Packed,
    paths: Packed,
    exact: Packed,
    facts: Vec<(String, String)>,
}

impl PackedIndex {
    /// Records a fact about the whole index, such as the release it is of.
    pub fn set(&mut self, fact: &str, value: &str) {
        self.facts.push((fact.to_owned(), value.to_owned()));
    }

    /// Takes the store paths of another one: a channel's two files may be read by two threads.
    pub fn take_paths_of(&mut self, other: Self) {
        self.paths = other.paths;
    }

    /// Writes the index.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write(self, out: &mut dyn Write) -> Result<(), NamesError> {
        let mut out = Output { out, position: 0 };
        out.write(MAGIC)?;
        let mut directory = Vec::new();
        put_number(&mut directory, self.facts.len() as u64);
        for (fact, value) in &self.facts {
            put(&mut directory, fact.as_bytes());
            put(&mut directory, value.as_bytes());
        }
        for table in [self.packages, self.others, self.paths, self.exact] {
            table.write(&mut out)?.put(&mut directory);
        }
        let position = out.position;
        let compressed = compressor()?.compress(&directory)?;
        out.write(&compressed)?;
        for number in [position, compressed.len() as u64, directory.len() as u64] {
            out.write(&number.to_le_bytes())?;
        }
        out.write(MAGIC)
    }
}

/// A key of the table of other names.
pub(crate) fn key(kind: u8, name: &str, attribute: &[u8]) -> Vec<u8> {
    let mut key = vec![kind];
    key.extend_from_slice(name.as_bytes());
    key.push(0);
    key.extend_from_slice(attribute);
    key
}
