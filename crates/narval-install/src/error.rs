//! Why an install, or a part of it, failed: always with the cache, the path and what to do.

use std::io;
use std::path::PathBuf;

use narval_nix::narinfo::NarInfoError;
use narval_nix::{HashPart, StorePath};
use narval_store::{CacheFolderError, LocalStoreError, StoreError, UnpackError};

use narval_cache::decode::DecodeError;
use narval_client::{HttpError, UrlError};

/// A failure; its [`exit_code`](Error::exit_code) is what the program ends with.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No cache has it.
    #[error("no cache has {what} (asked: {caches}); check the path, or add another cache with --from")]
    NotFound {
        /// Path or hash part.
        what: String,
        /// The caches asked.
        caches: String,
    },
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
    /// Neither "yes" nor "no" could be had from a cache.
    #[error("{cache}: cannot fetch {what}: {source}{}", hint(.source))]
    Fetch {
        /// The cache.
        cache: String,
        /// Path, hash part or file.
        what: String,
        /// Why.
        source: HttpError,
    },
    /// The narinfo says there is a NAR, and there is none.
    #[error(
        "{cache}: the NAR of {path} is gone from the cache ({url}); the cache is broken: use another one with --from"
    )]
    NarGone {
        /// The cache.
        cache: String,
        /// The path.
        path: StorePath,
        /// Where it should have been.
        url: String,
    },
    /// A narinfo that is none, or is another path's.
    #[error("{cache}: the narinfo of {what} is refused: {reason}")]
    NarInfo {
        /// The cache.
        cache: String,
        /// What was asked for.
        what: HashPart,
        /// Why.
        reason: String,
    },
    /// No signature by a trusted key.
    #[error(
        "{cache}: {path} is not signed by a trusted key (signed by: {signers}); add its key with --trusted-public-key, \
         or use --no-check-sigs if you trust the cache and the way to it"
    )]
    Untrusted {
        /// The cache.
        cache: String,
        /// The path.
        path: StorePath,
        /// Names of the keys that signed it.
        signers: String,
    },
    /// The bytes are not those that the narinfo promised.
    #[error("{cache}: {path} is damaged: {what} is {actual}, and the narinfo says {expected}")]
    Mismatch {
        /// The cache.
        cache: String,
        /// The path.
        path: StorePath,
        /// `FileHash`, `FileSize`, `NarHash` or `NarSize`.
        what: &'static str,
        /// What came.
        actual: String,
        /// What was promised.
        expected: String,
    },
    /// The file does not decompress, or holds no valid NAR.
    #[error("{cache}: {path} is damaged: {reason}")]
    Damaged {
        /// The cache.
        cache: String,
        /// The path.
        path: StorePath,
        /// What is wrong, and where.
        reason: String,
    },
    /// A compression that is not supported.
    #[error("{cache}: {path}: {source}")]
    Decoder {
        /// The cache.
        cache: String,
        /// The path.
        path: StorePath,
        /// Which.
        source: DecodeError,
    },
    /// A path refers to one that is not part of the closure.
    #[error("{path} refers to {reference}, which is neither in the store nor in the closure")]
    Reference {
        /// The path.
        path: StorePath,
        /// What it refers to.
        reference: StorePath,
    },
    /// Something that is no cache, or one of another store directory.
    #[error("{cache}: {reason}")]
    Cache {
        /// The cache.
        cache: String,
        /// Why it is refused.
        reason: String,
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
    /// A file of a cache folder can't be written or read.
    #[error("{error}{}", folder_hint(.error))]
    CacheFolder {
        /// Why.
        error: CacheFolderError,
    },
    /// The NAR of a path can't be written to a cache folder.
    #[error("cannot write the NAR of {path}: {source}")]
    Copy {
        /// The path.
        path: StorePath,
        /// The system's error.
        source: io::Error,
    },
    /// A file or folder of a profile can't be read or written.
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
    /// An address that is none.
    #[error(transparent)]
    Url(#[from] UrlError),
    /// The store can't be asked.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The store can't be written.
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
            Self::NotFound { .. } | Self::NotInStore { .. } | Self::NotInProfile { .. } => 3,
            Self::NarInfo { .. } | Self::Untrusted { .. } | Self::Mismatch { .. } | Self::Damaged { .. } => 4,
            Self::Reference { .. } => 4,
            Self::Fetch { .. } | Self::NarGone { .. } => 5,
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
            Self::Locked { .. } => 7,
            Self::Usage(_) | Self::Url(_) => 2,
            Self::Interrupted => 130,
            Self::Several { first, .. } => first.exit_code(),
            Self::Decoder { .. } | Self::Cache { .. } | Self::Store(_) | Self::LocalStore { .. } | Self::Died => 1,
        }
    }

    /// Whether another cache may do better.
    pub(crate) const fn is_the_caches_fault(&self) -> bool {
        matches!(
            self,
            Self::Fetch { .. }
                | Self::NarGone { .. }
                | Self::NarInfo { .. }
                | Self::Untrusted { .. }
                | Self::Mismatch { .. }
                | Self::Damaged { .. }
                | Self::Decoder { .. }
        )
    }

    pub(crate) fn file(action: &'static str, path: &std::path::Path, source: io::Error) -> Self {
        Self::File { action, path: path.to_owned(), source }
    }

    pub(crate) fn narinfo(cache: &str, what: HashPart, error: &NarInfoError) -> Self {
        Self::NarInfo { cache: cache.to_owned(), what, reason: error.to_string() }
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

fn hint(error: &HttpError) -> &'static str {
    match error {
        HttpError::Status { status: 401 | 407, .. } => "; give credentials with --netrc-file or --header",
        HttpError::Status { status: 429 | 503, .. } => "; the server is overloaded: try again later",
        HttpError::Resolve { .. } | HttpError::Connect { .. } => {
            "; check the address, the network and the proxy ('narval doctor')"
        }
        _ => "",
    }
}
