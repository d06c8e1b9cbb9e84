//! Why an install, or a part of it, failed: always with the cache, the path and what to do.

use std::io;
use std::path::PathBuf;

use narval_nix::StorePath;
use narval_store::{DaemonError, LocalStoreError, NarIoError, StoreError, UnpackError};

use narval_cache::{CacheError, CacheFolderError, WantedError};
use narval_client::UrlError;

/// A failure; its [`exit_code`](Error::exit_code) is what the program ends with.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A cache, or what it holds.
    #[error(transparent)]
    Cache(#[from] CacheError),
    /// A store has not got it.
    #[error("the store {store} does not have {what}; check the path, or name another source")]
    NotInStore {
        /// Path or hash part.
        what: String,
        /// The store.
        store: String,
    },
    /// A profile has not got it.
    #[error("{} does not have '{what}'; it has: {}", .profile.display(), .has.join(", "))]
    NotInProfile {
        /// What was named.
        what: String,
        /// The profile.
        profile: PathBuf,
        /// The names of what it has.
        has: Vec<String>,
    },
    /// A path refers to one that is not part of the closure.
    #[error("{path} refers to {reference}, which is neither in the store nor in the closure")]
    Reference {
        /// The path.
        path: StorePath,
        /// What it refers to.
        reference: StorePath,
    },
    /// Not enough room.
    #[error(
        "not enough space in {}: {needed} bytes are needed and {free} are free; run 'narval gc', or use another --store",
        .folder.display()
    )]
    Space {
        /// Where.
        folder: PathBuf,
        /// Bytes needed.
        needed: u64,
        /// Bytes free.
        free: u64,
    },
    /// A file of a cache folder cannot be written or read.
    #[error("{error}{}", folder_hint(.error))]
    CacheFolder {
        /// Why.
        error: CacheFolderError,
    },
    /// A cache that is written to refuses.
    #[error("{cache}: {what} was refused ({status}): {message}")]
    Refused {
        /// The cache.
        cache: String,
        /// What was asked of it.
        what: String,
        /// The status code.
        status: u16,
        /// Its words, or what the status code means.
        message: String,
    },
    /// The NAR of a path cannot be written to a cache folder.
    #[error("cannot write the NAR of {path}: {source}")]
    Copy {
        /// The path.
        path: StorePath,
        /// The system's error.
        source: io::Error,
    },
    /// A file or folder of a profile cannot be read or written.
    #[error("cannot {action} '{}': {source}{}", .path.display(), if no_room(.source) { "; make room and run the same command again" } else { "" })]
    File {
        /// What was tried, as a verb.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// What was given is no store path, key, address and so on.
    #[error("{0}")]
    Usage(String),
    /// The store cannot be asked.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The store cannot be written.
    #[error("{error}{}", space_hint(.error))]
    LocalStore {
        /// Why.
        error: LocalStoreError,
    },
    /// A thread of ours died: a fault in this program.
    #[error("a thread died; this is a fault in narval, please report it")]
    Died,
    /// Somebody else holds the store, or a profile, for too long.
    #[error(
        "'{}' is locked by another process (waited {waited_s} s); wait for it, end it, or give a longer --lock-timeout",
        .path.display()
    )]
    Locked {
        /// The lock file, or the database.
        path: PathBuf,
        /// How long it was waited for, in seconds.
        waited_s: u64,
    },
    /// SIGINT or SIGTERM.
    #[error("interrupted; run the same command again to continue where it stopped")]
    Interrupted,
    /// More than one path failed.
    #[error("{first} (and {others} more failures)")]
    Several {
        /// The first.
        first: Box<Error>,
        /// How many more.
        others: usize,
    },
}

impl Error {
    /// The exit code (the table is in the manual page): 1 failed, 2 usage, 3 not found, 4 verification, 5 network,
    /// 6 no space, 7 locked, 130 interrupted.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Cache(error) => cache_exit_code(error),
            Self::NotInStore { .. } | Self::NotInProfile { .. } => 3,
            Self::Reference { .. } => 4,
            Self::Space { .. } => 6,
            Self::LocalStore { error } if is_full(error) => 6,
            Self::CacheFolder { error: CacheFolderError::Io { source, .. } }
            | Self::Copy { source, .. }
            | Self::File { source, .. }
                if no_room(source) =>
            {
                6
            }
            Self::CacheFolder { .. } | Self::Copy { .. } | Self::File { .. } => 1,
            Self::Refused { status, .. } => match status {
                422 => 4,
                401 | 403 | 407 => 5,
                507 => 6,
                _ => 1,
            },
            Self::Locked { .. } => 7,
            Self::Usage(_) => 2,
            Self::Store(error) if is_not_as_registered(error) => 4,
            Self::Interrupted => 130,
            Self::Several { first, .. } => first.exit_code(),
            Self::Store(_) | Self::LocalStore { .. } | Self::Died => 1,
        }
    }

    /// Whether another cache may do better.
    pub(crate) const fn is_the_caches_fault(&self) -> bool {
        matches!(self, Self::Cache(error) if error.is_the_caches_fault())
    }

    pub(crate) fn file(action: &'static str, path: &std::path::Path, source: io::Error) -> Self {
        Self::File { action, path: path.to_owned(), source }
    }
}

const fn cache_exit_code(error: &CacheError) -> u8 {
    match error {
        CacheError::NotFound { .. } => 3,
        CacheError::NarInfo { .. }
        | CacheError::Untrusted { .. }
        | CacheError::Mismatch { .. }
        | CacheError::Damaged { .. } => 4,
        CacheError::Fetch { .. } | CacheError::NarGone { .. } => 5,
        CacheError::Url(_) => 2,
        CacheError::Decoder { .. } | CacheError::Refused { .. } => 1,
    }
}

impl From<UrlError> for Error {
    fn from(error: UrlError) -> Self {
        Self::Cache(error.into())
    }
}

impl From<WantedError> for Error {
    fn from(error: WantedError) -> Self {
        Self::Usage(error.to_string())
    }
}

impl From<DaemonError> for Error {
    fn from(error: DaemonError) -> Self {
        Self::Store(error.into())
    }
}

/// What a [`LocalStore`](narval_store::LocalStore) says of the NAR itself is said by whoever knows the cache.
impl From<LocalStoreError> for Error {
    fn from(error: LocalStoreError) -> Self {
        match error {
            LocalStoreError::Locked { path, waited_s } => Self::Locked { path, waited_s },
            LocalStoreError::Reference { path, reference } => Self::Reference { path, reference },
            error => Self::LocalStore { error },
        }
    }
}

impl From<CacheFolderError> for Error {
    fn from(error: CacheFolderError) -> Self {
        Self::CacheFolder { error }
    }
}

fn is_full(error: &LocalStoreError) -> bool {
    let source = match error {
        LocalStoreError::Io { source, .. } => source,
        LocalStoreError::Unpack { source: UnpackError::Io { source, .. }, .. } => source,
        LocalStoreError::Database { source, .. } => {
            return source.sqlite_error_code() == Some(rusqlite::ErrorCode::DiskFull);
        }
        _ => return false,
    };
    no_room(source)
}

fn no_room(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

const fn folder_hint(error: &CacheFolderError) -> &'static str {
    match error {
        CacheFolderError::StoreDir { .. } => "; use another folder",
        _ => "",
    }
}

fn space_hint(error: &LocalStoreError) -> &'static str {
    if is_full(error) { "; make room ('narval gc') and run the same command again" } else { "" }
}

/// Whether the files of a path in the store are not those that were registered.
fn is_not_as_registered(error: &StoreError) -> bool {
    match error {
        StoreError::Changed { .. } => true,
        StoreError::Nar { source, .. } => {
            let source = source.get_ref().and_then(|source| source.downcast_ref::<NarIoError>());
            matches!(source, Some(NarIoError::Changed { .. }))
        }
        _ => false,
    }
}
