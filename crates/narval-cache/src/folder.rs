//! A binary cache in a folder (`file://`): `nix-cache-info`, `<hash part>.narinfo`, `nar/<hash>.nar.<compression>`.
//!
//! Layout: Nix `libstore/local-binary-cache-store.cc`, `binary-cache-store.cc`. Every file appears atomically: it is
//! written under a temporary name and renamed. A narinfo is written after its NAR. The temporary files of processes
//! that have ended are removed when a folder is next opened for writing.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use narval_nix::cache_info::{CACHE_INFO_LEN_MAX, CacheInfoError};
use narval_nix::narinfo::{NARINFO_LEN_MAX, NarInfoError};
use narval_nix::{CacheInfo, Compression, HashPart, NarInfo, Sha256, Sha256Hasher, StoreDir};
use thiserror::Error;

use crate::file::open_below;
use narval_files::{TemporaryFile, is_temporary_name, remove_leftovers};

/// Why a cache folder could not be used.
#[derive(Debug, Error)]
pub enum CacheFolderError {
    /// A file cannot be used.
    #[error("cannot {action} '{}': {source}", path.display())]
    Io {
        /// The operation, as a verb.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// Not a narinfo.
    #[error("'{}': {source}", path.display())]
    NarInfo {
        /// The file.
        path: PathBuf,
        /// Why.
        source: NarInfoError,
    },
    /// Not a `nix-cache-info`.
    #[error("'{}': {source}", path.display())]
    CacheInfo {
        /// The file.
        path: PathBuf,
        /// Why.
        source: CacheInfoError,
    },
    /// The cache is for another store directory.
    #[error("the cache '{}' is for the store directory {found}, not {expected}", path.display())]
    StoreDir {
        /// The folder.
        path: PathBuf,
        /// Its store directory.
        found: StoreDir,
        /// The expected one.
        expected: StoreDir,
    },
}

/// A writable binary cache in a folder. Can be shared between threads and processes.
#[derive(Debug)]
pub struct CacheFolder {
    path: PathBuf,
    store_dir: StoreDir,
}

impl CacheFolder {
    /// Opens a cache for this store directory. A folder without `nix-cache-info` is accepted.
    ///
    /// # Errors
    /// If the folder cannot be read, or is for another store directory.
    pub fn open(path: &Path, store_dir: StoreDir) -> Result<Self, CacheFolderError> {
        File::open(path).map_err(|error| io_error("open", path, error))?;
        let folder = Self { path: path.to_owned(), store_dir };
        if let Some(info) = folder.cache_info()?
            && info.store_dir != folder.store_dir
        {
            return Err(CacheFolderError::StoreDir {
                path: folder.path,
                found: info.store_dir,
                expected: folder.store_dir,
            });
        }
        Ok(folder)
    }

    /// Like [`CacheFolder::open`], but creates the folder and its `nix-cache-info` if they are missing.
    ///
    /// # Errors
    /// See [`CacheFolder::open`]; also if it cannot be written.
    pub fn create(path: &Path, store_dir: StoreDir) -> Result<Self, CacheFolderError> {
        fs::create_dir_all(path.join("nar")).map_err(|error| io_error("create", &path.join("nar"), error))?;
        let folder = Self::open(path, store_dir)?;
        clear_up(path)?;
        clear_up(&path.join("nar"))?;
        if folder.cache_info()?.is_none() {
            // What Nix writes; the other keys are for servers.
            folder.write_file("nix-cache-info", format!("StoreDir: {}\n", folder.store_dir).as_bytes())?;
        }
        Ok(folder)
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The contents of `nix-cache-info`, or `None` if there is none.
    ///
    /// # Errors
    /// If it exists but cannot be read.
    pub fn cache_info(&self) -> Result<Option<CacheInfo>, CacheFolderError> {
        let path = self.path.join("nix-cache-info");
        let text = self.read_small("nix-cache-info", CACHE_INFO_LEN_MAX)?;
        text.map(|text| CacheInfo::parse(&text))
            .transpose()
            .map_err(|source| CacheFolderError::CacheInfo { path, source })
    }

    /// The narinfo with this hash part, or `None` if there is none.
    ///
    /// # Errors
    /// If it exists but cannot be read.
    pub fn narinfo(&self, hash_part: &HashPart) -> Result<Option<NarInfo>, CacheFolderError> {
        let name = format!("{hash_part}.narinfo");
        let Some(text) = self.read_small(&name, NARINFO_LEN_MAX)? else { return Ok(None) };
        let (path, info) = (self.path.join(name), NarInfo::parse(&text, &self.store_dir));
        info.map(Some).map_err(|source| CacheFolderError::NarInfo { path, source })
    }

    /// The hash parts of all narinfos, in no particular order.
    ///
    /// # Errors
    /// If the folder cannot be listed.
    pub fn hash_parts(&self) -> Result<Vec<HashPart>, CacheFolderError> {
        let fail = |error| io_error("list", &self.path, error);
        let mut parts = Vec::new();
        for entry in fs::read_dir(&self.path).map_err(fail)? {
            let name = entry.map_err(fail)?.file_name();
            let part = name.to_str().and_then(|name| name.strip_suffix(".narinfo"));
            parts.extend(part.and_then(|part| part.parse::<HashPart>().ok()));
        }
        Ok(parts)
    }

    /// Reads at most this many bytes of a file, plus one, which makes the parser reject it.
    fn read_small(&self, name: &str, len_max: usize) -> Result<Option<Vec<u8>>, CacheFolderError> {
        let fail = |error| io_error("read", &self.path.join(name), error);
        let Some(file) = open_below(&self.path, name.as_ref()).map_err(fail)? else { return Ok(None) };
        let (mut text, limit) = (Vec::new(), u64::try_from(len_max).unwrap_or(u64::MAX).saturating_add(1));
        file.take(limit).read_to_end(&mut text).map_err(fail)?;
        Ok(Some(text))
    }

    /// Starts writing the file of a NAR.
    ///
    /// # Errors
    /// If the file cannot be created.
    pub fn write_nar(&self) -> Result<IncomingFile<'_>, CacheFolderError> {
        let directory = self.path.join("nar");
        fs::create_dir_all(&directory).map_err(|error| io_error("create", &directory, error))?;
        let file = create_temporary(&directory)?;
        Ok(IncomingFile { folder: self, file, hasher: Sha256Hasher::new(), size_bytes: 0 })
    }

    /// Writes a narinfo, replacing an existing one. The file that it names must exist already.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write_narinfo(&self, info: &NarInfo) -> Result<(), CacheFolderError> {
        let name = format!("{}.narinfo", info.path.hash_part());
        self.write_file(&name, info.render(&self.store_dir).as_bytes())
    }

    pub(crate) fn write_error(&self, error: io::Error) -> CacheFolderError {
        io_error("write a NAR to", &self.path, error)
    }

    fn write_file(&self, name: &str, contents: &[u8]) -> Result<(), CacheFolderError> {
        let file = create_temporary(&self.path)?;
        let path = self.path.join(name);
        file.file().write_all(contents).map_err(|error| io_error("write", &path, error))?;
        file.persist(&path).map_err(|error| io_error("create", &path, error))
    }
}

/// A file of a cache that is being written. Dropped without [`IncomingFile::commit`], it is removed.
#[derive(Debug)]
pub struct IncomingFile<'a> {
    folder: &'a CacheFolder,
    file: TemporaryFile,
    hasher: Sha256Hasher,
    size_bytes: u64,
}

/// A complete file of a cache, with the fields for its narinfo.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WrittenFile {
    /// `URL`.
    pub url: String,
    /// `FileHash`.
    pub file_hash: Sha256,
    /// `FileSize`.
    pub file_size: u64,
}

impl IncomingFile<'_> {
    /// Renames the file to its hash. An existing file with that name has the same contents, and is replaced.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn commit(mut self, compression: Compression) -> Result<WrittenFile, CacheFolderError> {
        let file_hash = std::mem::take(&mut self.hasher).finish();
        let url = format!("nar/{}.nar{}", file_hash.to_nix32(), compression.file_extension());
        let path = self.folder.path.join(&url);
        self.file.persist(&path).map_err(|error| io_error("create", &path, error))?;
        Ok(WrittenFile { url, file_hash, file_size: self.size_bytes })
    }
}

impl Write for IncomingFile<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.file().write(bytes)?;
        self.hasher.update(bytes.get(..written).unwrap_or_default());
        self.size_bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.file().flush()
    }
}

/// The prefix of temporary names, which no narinfo or NAR has.
const TEMPORARY: &str = ".tmp-";

fn create_temporary(directory: &Path) -> Result<TemporaryFile, CacheFolderError> {
    TemporaryFile::create(directory, TEMPORARY, 0o644).map_err(|error| io_error("create a file in", directory, error))
}

/// Removes temporary files that no process is writing.
fn clear_up(directory: &Path) -> Result<(), CacheFolderError> {
    remove_leftovers(directory, |name| is_temporary_name(name, TEMPORARY))
        .map_err(|error| io_error("clear up", directory, error))
}

fn io_error(action: &'static str, path: &Path, source: io::Error) -> CacheFolderError {
    CacheFolderError::Io { action, path: path.to_owned(), source }
}
