//! Why an install, or a part of it, failed, with the cache, the path and what to do.

use std::io;
use std::path::PathBuf;

use narval_names::NamesError;
use narval_nix::StorePath;
use narval_store::{DaemonError, LocalStoreError, NarIoError, StoreError};

use narval_cache::{CacheError, CacheFolderError, WantedError};
use narval_client::{HttpError, UrlError};

use crate::size::human_bytes;

/// A failure; the program exits with its [`exit_code`](Error::exit_code).
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A cache failed, or has invalid contents.
    #[error(transparent)]
    Cache(#[from] CacheError),
    /// The key does not sign.
    #[error(transparent)]
    Sign(#[from] narval_nix::SignError),
    /// A store does not have a path.
    #[error("the store {store} does not have {what}; check the path, or name another source")]
    NotInStore {
        /// Path or hash part.
        what: String,
        /// The store.
        store: String,
    },
    /// A profile does not have a path.
    #[error("{} does not have '{what}'; it has: {}", .profile.display(), .has.join(", "))]
    NotInProfile {
        /// The requested name.
        what: String,
        /// The profile.
        profile: PathBuf,
        /// The names of its paths.
        has: Vec<String>,
    },
    /// A path refers to one that is not part of the closure.
    #[error("{path} refers to {reference}, which is neither in the store nor in the closure")]
    Reference {
        /// The path.
        path: StorePath,
        /// The reference.
        reference: StorePath,
    },
    /// Not enough free space.
    #[error(
        "not enough space in {}: {} are needed and {} are free{}; {}",
        .folder.display(), human_bytes(*.needed), human_bytes(*.free), largest_hint(.largest.as_ref()), room_hint(*.has_parts)
    )]
    Space {
        /// The folder.
        folder: PathBuf,
        /// Bytes needed.
        needed: u64,
        /// Bytes free.
        free: u64,
        /// A NAR that does not fit by itself: its size in bytes, its path and its cache.
        largest: Option<(u64, String)>,
        /// Whether the store has paths that an interrupted run has completed, which a garbage collection would delete.
        has_parts: bool,
    },
    /// Paths of a cache that refer to each other.
    #[error("{cache}: {path} and {reference} refer to each other, directly or through others; no store can have them")]
    Cycle {
        /// The cache.
        cache: String,
        /// A path.
        path: StorePath,
        /// A path that it refers to.
        reference: StorePath,
    },
    /// A closure exceeds a limit.
    #[error("{cache}: the closure exceeds the limit of {limit} {what}")]
    Closure {
        /// The cache that the last path came from.
        cache: String,
        /// The limit.
        limit: usize,
        /// What it is a limit of.
        what: &'static str,
    },
    /// A file of a cache folder cannot be written or read.
    #[error("{error}{}", folder_hint(.error))]
    CacheFolder {
        /// Why.
        error: CacheFolderError,
    },
    /// A cache refused a request while writing to it.
    #[error("{cache}: {what} was refused ({status}): {message}")]
    Refused {
        /// The cache.
        cache: String,
        /// The request.
        what: String,
        /// The status code.
        status: u16,
        /// The server's message, or what the status code means.
        message: String,
    },
    /// A cache that signs has not signed what was pushed.
    #[error("{cache}: {paths} pushed paths are not signed by the cache: the token may not have it sign")]
    Unsigned {
        /// The cache.
        cache: String,
        /// How many.
        paths: usize,
    },
    /// The NAR of a path cannot be written to a cache folder.
    #[error("cannot write the NAR of {path}: {source}")]
    Copy {
        /// The path.
        path: StorePath,
        /// The operating system's error.
        source: io::Error,
    },
    /// A file or folder of a profile cannot be read or written.
    #[error("cannot {action} '{}': {source}{}", .path.display(), if no_room(.source) { "; make room and run the same command again" } else { "" })]
    File {
        /// The operation, as a verb.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// The names of a channel cannot be used.
    #[error("{channel}: {source}{}", if .source.is_damaged() { "; 'narval update' makes it again" } else { "" })]
    Names {
        /// The channel.
        channel: String,
        /// Why.
        source: NamesError,
    },
    /// No path, or not just one, is known for a name.
    #[error("{0}")]
    Unresolved(String),
    /// A package is not installed without being told to.
    #[error("{0}")]
    NotAllowed(String),
    /// A path is not what its name says.
    #[error("{0}")]
    WrongPath(String),
    /// An argument is not a valid store path, key, address or similar.
    #[error("{0}")]
    Usage(String),
    /// The store cannot be queried.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The store cannot be written.
    #[error("{error}{}", space_hint(.error))]
    LocalStore {
        /// Why.
        error: LocalStoreError,
    },
    /// A thread panicked: a bug in this program.
    #[error("a thread panicked; this is a bug in narval, please report it")]
    Died,
    /// Another process has locked the store, or a profile, for too long.
    #[error(
        "'{}' is locked by another process (waited {waited_s} s); wait for it, end it, or give a longer --lock-timeout",
        .path.display()
    )]
    Locked {
        /// The lock file, or the database.
        path: PathBuf,
        /// The time waited, in seconds.
        waited_s: u64,
    },
    /// SIGINT or SIGTERM.
    #[error("interrupted; run the same command again to resume")]
    Interrupted,
    /// Two paths of a profile have different files of one name.
    #[error(
        "'{}' and '{}' differ, and a profile can show one of them: install the path whose file is wanted with --priority 4 (the lowest number wins; \
         the default is 5)",
        .first.display(), .second.display()
    )]
    Conflict {
        /// The one.
        first: PathBuf,
        /// The other.
        second: PathBuf,
    },
    /// More than one path failed.
    #[error("{first} (and {others} more failure{})", if *.others == 1 { "" } else { "s" })]
    Several {
        /// The first.
        first: Box<Error>,
        /// The number of others.
        others: usize,
    },
}

impl Error {
    /// Whether no server answered, as far as this machine can tell.
    pub const fn is_network(&self) -> bool {
        use HttpError::{Broken, Connect, Proxy, Resolve, Slow, Stalled, Tls, Truncated};
        matches!(
            self,
            Self::Cache(CacheError::Fetch {
                source: Resolve { .. }
                    | Connect { .. }
                    | Tls { .. }
                    | Proxy { .. }
                    | Stalled { .. }
                    | Slow { .. }
                    | Broken { .. }
                    | Truncated { .. },
                ..
            })
        )
    }

    /// The exit code (the table is in the manual page): 1 failed, 2 usage, 3 not found, 4 verification, 5 network,
    /// 6 no space, 7 locked, 130 interrupted.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Cache(error) => cache_exit_code(error),
            Self::NotInStore { .. } | Self::NotInProfile { .. } | Self::Unresolved(_) => 3,
            Self::WrongPath(_) => 4,
            Self::Reference { .. } | Self::Unsigned { .. } | Self::Cycle { .. } | Self::Closure { .. } => 4,
            Self::Space { .. } => 6,
            Self::LocalStore { error: LocalStoreError::NoStore { .. } } => 3,
            Self::LocalStore { error } if error.is_disk_full() => 6,
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
            Self::Store(_)
            | Self::LocalStore { .. }
            | Self::Conflict { .. }
            | Self::Names { .. }
            | Self::Sign(_)
            | Self::NotAllowed(_)
            | Self::Died => 1,
        }
    }

    /// Whether another cache may succeed.
    pub const fn is_the_caches_fault(&self) -> bool {
        matches!(self, Self::Cache(error) if error.is_the_caches_fault())
    }

    /// A file that an operation failed on.
    pub fn file(action: &'static str, path: &std::path::Path, source: io::Error) -> Self {
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
        CacheError::Fetch { .. } | CacheError::NarGone { .. } | CacheError::Certificates { .. } => 5,
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

/// Errors about the NAR itself are reported by the caller, which knows the cache.
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
    // Not by a garbage collection, which would delete what an install has completed.
    if error.is_disk_full() { "; make room and run the same command again" } else { "" }
}

fn largest_hint(largest: Option<&(u64, String)>) -> String {
    largest.map(|(size, path)| format!(" ({} for {path})", human_bytes(*size))).unwrap_or_default()
}

const fn room_hint(has_parts: bool) -> &'static str {
    match has_parts {
        true => "make room elsewhere, or use another --store",
        false => "run 'narval gc', or use another --store",
    }
}

/// Whether the files of a path in the store differ from those that were registered.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_counted_in_words() {
        let several = |others| Error::Several { first: Box::new(Error::Interrupted), others }.to_string();
        assert!(several(1).ends_with("to resume (and 1 more failure)"), "{}", several(1));
        assert!(several(2).ends_with("(and 2 more failures)"), "{}", several(2));
    }
}
