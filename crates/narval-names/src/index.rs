//! An index file that is read.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use narval_nix::{HashPart, StorePath, StorePathName};

use crate::builder::{BY_NAME, BY_PNAME, BY_PROGRAM, MAGIC, key};
use crate::error::NamesError;
use crate::fields::Fields;
use crate::package::Package;
use crate::table::{Directory, Take, read_compressed};

/// The bytes after the directory: its position, its two lengths, and the magic.
const FOOTER_LEN: usize = 3 * 8 + MAGIC.len();
/// The largest directory.
const DIRECTORY_LEN_MAX: u64 = 64 * 1024 * 1024;

/// An open index.
#[derive(Debug)]
pub struct Index {
    file: File,
    facts: Vec<(String, String)>,
    packages: Directory,
    others: Directory,
    paths: Directory,
    exact: Directory,
}

/// How much an index has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    /// Attributes.
    pub attributes: u64,
    /// Store paths without an attribute.
    pub paths: u64,
    /// Outputs of attributes whose path is known.
    pub exact: u64,
}

/// What an exact index has for one output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exact {
    /// The system.
    pub system: String,
    /// The output.
    pub output: String,
    /// Its path.
    pub path: StorePath,
}

impl Index {
    /// Opens an index file.
    ///
    /// # Errors
    /// If it cannot be read, or is damaged ([`NamesError::is_damaged`]).
    pub fn open(path: &Path) -> Result<Self, NamesError> {
        let file = File::open(path)?;
        let len = file.metadata()?.len();
        let at = len.checked_sub(FOOTER_LEN as u64).ok_or(NamesError::Damaged("it is truncated"))?;
        let mut footer = [0; FOOTER_LEN];
        file.read_exact_at(&mut footer, at)?;
        let (numbers, magic) = footer.split_at(24);
        if magic != MAGIC {
            return Err(NamesError::Damaged("it is truncated, or of another version"));
        }
        let mut number = numbers.chunks_exact(8).map(|bytes| u64::from_le_bytes(bytes.try_into().unwrap_or_default()));
        let mut next = || number.next().unwrap_or_default();
        let (position, compressed_len, raw_len) = (next(), next(), next());
        if raw_len > DIRECTORY_LEN_MAX || position.checked_add(compressed_len) != Some(at) {
            return Err(NamesError::Damaged("its directory"));
        }
        let directory = read_compressed(&file, position, compressed_len, raw_len)?;
        let mut fields = Fields(&directory);
        let count = fields.length()?;
        let facts = (0..count).map(|_| Ok((fields.text()?, fields.text()?))).collect::<Result<_, NamesError>>()?;
        let mut table = || Directory::get(&mut fields);
        Ok(Self { facts, packages: table()?, others: table()?, paths: table()?, exact: table()?, file })
    }

    /// A fact about the whole index.
    pub fn fact(&self, fact: &str) -> Option<&str> {
        self.facts.iter().find(|(name, _)| name == fact).map(|(_, value)| value.as_str())
    }

    /// How much it has.
    pub const fn counts(&self) -> Counts {
        Counts { attributes: self.packages.rows, paths: self.paths.rows, exact: self.exact.rows }
    }

    /// The package of an attribute, quoted as Nix quotes it.
    ///
    /// # Errors
    /// If the index cannot be read.
    pub fn package(&self, attribute: &str) -> Result<Option<Package>, NamesError> {
        let value = self.packages.find(&self.file, attribute.as_bytes())?;
        value.map(|value| Package::decode(attribute, &value)).transpose()
    }

    /// Passes on all packages in the order of their attributes, until `take` returns false.
    ///
    /// # Errors
    /// If the index cannot be read.
    pub fn packages(&self, take: &mut dyn FnMut(Package) -> bool) -> Result<(), NamesError> {
        self.packages.scan(&self.file, &[], &mut |key, value| Ok(take(Package::decode(&text(key)?, value)?)))
    }

    /// Passes on all attributes with their encoded packages.
    pub(crate) fn rows(&self, take: Take<'_, str, ()>) -> Result<(), NamesError> {
        self.packages.scan(&self.file, &[], &mut |key, value| {
            let key = std::str::from_utf8(key).map_err(|_| NamesError::Damaged("an attribute"))?;
            take(key, value).map(|()| true)
        })
    }

    /// The attributes whose derivation has this name (or `pname`-`version`).
    ///
    /// # Errors
    /// If the index cannot be read.
    pub fn attributes_named(&self, name: &str) -> Result<Vec<String>, NamesError> {
        self.others(BY_NAME, name).map(|found| found.into_iter().map(|(attribute, _)| attribute).collect())
    }

    /// The attributes of a package, by its name without version, with their versions.
    ///
    /// # Errors
    /// If the index cannot be read.
    pub fn versions_of(&self, pname: &str) -> Result<Vec<(String, String)>, NamesError> {
        self.others(BY_PNAME, pname)
    }

    /// The attributes with this main program.
    ///
    /// # Errors
    /// If the index cannot be read.
    pub fn with_program(&self, program: &str) -> Result<Vec<String>, NamesError> {
        self.others(BY_PROGRAM, program).map(|found| found.into_iter().map(|(attribute, _)| attribute).collect())
    }

    fn others(&self, kind: u8, name: &str) -> Result<Vec<(String, String)>, NamesError> {
        let prefix = key(kind, name, &[]);
        let mut found = Vec::new();
        self.others.scan(&self.file, &prefix, &mut |key, value| {
            found.push((text(key.get(prefix.len()..).unwrap_or_default())?, text(value)?));
            Ok(true)
        })?;
        Ok(found)
    }

    /// The store paths of the channel with this name, of all systems.
    ///
    /// # Errors
    /// If the index cannot be read.
    pub fn paths_named(&self, name: &str) -> Result<Vec<StorePath>, NamesError> {
        let Ok(store_name) = StorePathName::parse(name) else { return Ok(Vec::new()) };
        let prefix = [name.as_bytes(), &[0]].concat();
        let mut found = Vec::new();
        self.paths.scan(&self.file, &prefix, &mut |key, _| {
            let digest = key.get(prefix.len()..).and_then(|digest| <&[u8; 20]>::try_from(digest).ok());
            let digest = digest.ok_or(NamesError::Damaged("a hash part"))?;
            found.push(StorePath::from_parts(HashPart::from_digest(digest), &store_name));
            Ok(true)
        })?;
        Ok(found)
    }

    /// The exact paths of an attribute, on all systems.
    ///
    /// # Errors
    /// If the index cannot be read.
    pub fn exact(&self, attribute: &str) -> Result<Vec<Exact>, NamesError> {
        let prefix = format!("{attribute}\0");
        let mut found = Vec::new();
        self.exact.scan(&self.file, prefix.as_bytes(), &mut |key, value| {
            let rest = text(key.get(prefix.len()..).unwrap_or_default())?;
            let (system, output) = rest.split_once('\0').ok_or(NamesError::Damaged("a system"))?;
            let path = StorePath::parse_bytes(value).map_err(|_| NamesError::Damaged("a store path"))?;
            found.push(Exact { system: system.to_owned(), output: output.to_owned(), path });
            Ok(true)
        })?;
        Ok(found)
    }
}

fn text(bytes: &[u8]) -> Result<String, NamesError> {
    std::str::from_utf8(bytes).map(str::to_owned).map_err(|_| NamesError::Damaged("a text is not UTF-8"))
}
