//! Where a writable cache is: a folder, or a bucket with a local folder; and where its index is.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use narval_client::{Scheme, Url};

use crate::index::IndexError;

/// Where the bytes are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StorageLocation {
    /// A data folder.
    Folder(PathBuf),
    /// A bucket (`s3://…`).
    Bucket {
        /// Its address.
        url: Url,
        /// The folder on this machine for the disk cache, uploads on their way, and the index unless that is in a database.
        folder: PathBuf,
        /// The size of the disk cache in bytes, for servers; `None` if NARs are not kept.
        cache_size: Option<u64>,
    },
}

impl StorageLocation {
    /// The folder on this machine.
    pub fn folder(&self) -> &Path {
        match self {
            Self::Folder(folder) | Self::Bucket { folder, .. } => folder,
        }
    }

    /// Parses an address of a bucket; `None` for anything else, which names a folder.
    pub fn bucket_address(text: &str) -> Option<Result<Url, narval_client::UrlError>> {
        let is_bucket = text.get(..5).is_some_and(|scheme| scheme.eq_ignore_ascii_case("s3://"));
        is_bucket.then(|| Url::parse(text)).map(|url| url.inspect(|url| debug_assert_eq!(url.scheme(), Scheme::S3)))
    }
}

impl From<&Path> for StorageLocation {
    fn from(folder: &Path) -> Self {
        Self::Folder(folder.to_owned())
    }
}

impl From<&PathBuf> for StorageLocation {
    fn from(folder: &PathBuf) -> Self {
        Self::Folder(folder.clone())
    }
}

impl From<&Self> for StorageLocation {
    fn from(place: &Self) -> Self {
        place.clone()
    }
}

impl std::fmt::Display for StorageLocation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Folder(folder) => folder.display().fmt(f),
            Self::Bucket { url, .. } => url.fmt(f),
        }
    }
}

/// The address of a PostgreSQL database. Messages never contain its password.
#[derive(Clone, PartialEq, Eq)]
pub struct Database(pub(crate) String);

impl FromStr for Database {
    type Err = IndexError;

    /// `postgres://USER@HOST/DATABASE`, with libpq's parameters.
    fn from_str(text: &str) -> Result<Self, IndexError> {
        #[cfg(feature = "postgres")]
        crate::index::check_address(text)?;
        Ok(Self(text.to_owned()))
    }
}

#[cfg(test)]
impl Database {
    /// With the password.
    pub(crate) fn address(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Debug for Database {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Database(…)")
    }
}
