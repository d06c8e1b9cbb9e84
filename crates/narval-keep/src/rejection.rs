//! Refusals, with messages for clients.

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use narval_client::HttpError;
use narval_nix::SignError;
use rustix::io::Errno;
use thiserror::Error;

use crate::name::InvalidMachineName;
use narval_s3::{PutError, is_failing};

/// The maximum length of a message in bytes. Nix shows bodies of less than 1 KB to its user.
pub const MESSAGE_LEN_MAX: usize = 1000;

/// The type of a rejection: each has one HTTP status.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RejectionKind {
    /// 400: the request is malformed.
    Malformed,
    /// 401: no token, or one that is unknown, expired or revoked.
    Unauthorized,
    /// 403: the token lacks a scope.
    Forbidden,
    /// 404: there is nothing with that name.
    NotFound,
    /// 405: this cache does not accept these.
    NotAllowed,
    /// 409: it conflicts with the current state.
    Conflict,
    /// 409: another process is collecting.
    Busy,
    /// 413: too large.
    TooLarge,
    /// 422: well-formed, but not what it claims to be.
    Unprocessable,
    /// 507: no space. Must not be the response to a PUT of an old Nix: stop reading instead.
    NoSpace,
    /// 503: the index or the object store cannot be reached, or is busy; later it may not be.
    Unavailable,
    /// 500: a file or the index failed.
    Failed,
}

impl RejectionKind {
    /// Its HTTP status.
    pub const fn status(self) -> u16 {
        match self {
            Self::Malformed => 400,
            Self::Unauthorized => 401,
            Self::Forbidden => 403,
            Self::NotFound => 404,
            Self::NotAllowed => 405,
            Self::Conflict | Self::Busy => 409,
            Self::TooLarge => 413,
            Self::Unprocessable => 422,
            Self::Failed => 500,
            Self::Unavailable => 503,
            Self::NoSpace => 507,
        }
    }

    /// The reason, where none is named.
    const fn reason(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::Unauthorized | Self::Forbidden | Self::NotAllowed | Self::NotFound => "forbidden",
            Self::Conflict | Self::Busy => "conflict",
            Self::TooLarge => "too_large",
            Self::Unprocessable => "hash",
            Self::Failed => "failed",
            Self::Unavailable => "away",
            Self::NoSpace => "no_space",
        }
    }
}

/// A rejection. The message is for the client: one line, what is wrong and what to do.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{message}")]
pub struct Rejection {
    /// The kind.
    pub kind: RejectionKind,
    /// At most [`MESSAGE_LEN_MAX`] bytes.
    pub message: String,
    /// The reason, as metrics name it: one of [`REJECTION_REASONS`].
    pub reason: &'static str,
}

/// The reasons of rejections, as metrics name them.
pub const REJECTION_REASONS: [&str; 11] = [
    "away",
    "conflict",
    "failed",
    "forbidden",
    "hash",
    "malformed",
    "no_space",
    "quota",
    "reference",
    "signature",
    "too_large",
];

impl Rejection {
    /// A rejection with this message, truncated if it is too long.
    pub fn new(kind: RejectionKind, message: impl fmt::Display) -> Self {
        let mut message = message.to_string();
        if message.len() > MESSAGE_LEN_MAX {
            let end = (0..=MESSAGE_LEN_MAX - '…'.len_utf8()).rev().find(|at| message.is_char_boundary(*at));
            message.truncate(end.unwrap_or(0));
            message.push('…');
        }
        Self { kind, message, reason: kind.reason() }
    }

    /// The same with this reason.
    #[must_use]
    pub(super) fn because(self, reason: &'static str) -> Self {
        debug_assert!(REJECTION_REASONS.contains(&reason), "{reason}");
        Self { reason, ..self }
    }

    /// A file of the cache failed: the details are only logged, not sent to the client.
    pub(super) fn of_file(action: &str, what: impl fmt::Display, error: &io::Error) -> Self {
        if is_unavailable(error) {
            tracing::warn!("cannot {action} '{what}': {error}");
            let message = "the cache's object store cannot be reached at the moment: nothing was done, try again";
            return Self::unavailable(message);
        }
        tracing::error!("cannot {action} '{what}': {error}");
        if is_full(error) { Self::no_space() } else { Self::failed(format_args!("the cache cannot {action} a file")) }
    }

    /// Long work was stopped by who asked for it.
    pub(super) fn interrupted(what: &str) -> Self {
        Self::failed(format_args!("the {what} was interrupted"))
    }

    /// There is no space left.
    pub(super) fn no_space() -> Self {
        Self::new(
            RejectionKind::NoSpace,
            "the disk is full: free space there, then try again. NARs that a push has sent are kept for ten minutes, so that it \
             continues where it stopped",
        )
    }
}

macro_rules! constructors {
    ($($name:ident: $kind:ident,)*) => {
        impl Rejection {
            $(#[doc = concat!("A [`RejectionKind::", stringify!($kind), "`] with this message.")]
            pub fn $name(message: impl fmt::Display) -> Self {
                Self::new(RejectionKind::$kind, message)
            })*
        }
    };
}

constructors! {
    conflict: Conflict,
    failed: Failed,
    forbidden: Forbidden,
    malformed: Malformed,
    not_found: NotFound,
    too_large: TooLarge,
    unavailable: Unavailable,
    unprocessable: Unprocessable,
}

/// Whether an object store failed in a way that passes.
pub(super) fn is_unavailable(error: &io::Error) -> bool {
    let cause = error.get_ref();
    let http = cause.and_then(|cause| match cause.downcast_ref::<PutError>() {
        Some(PutError::Http(error)) => Some(error),
        _ => cause.downcast_ref::<HttpError>(),
    });
    http.is_some_and(is_failing)
}

/// Whether a file system is full: ENOSPC, or an exhausted quota.
pub(super) fn is_full(error: &io::Error) -> bool {
    let codes = [Errno::NOSPC, Errno::DQUOT].map(Errno::raw_os_error);
    error.raw_os_error().is_some_and(|code| codes.contains(&code))
}

/// Nothing is accepted or sent without a signature that was promised. The reason is for the log, every ten seconds: strangers can ask as often as they like.
impl From<SignError> for Rejection {
    fn from(error: SignError) -> Self {
        static LOGGED_AT: AtomicU64 = AtomicU64::new(0);
        let now = narval_client::clock::now() / 10;
        if LOGGED_AT.swap(now, Ordering::Relaxed) == now {
            tracing::debug!("{error}");
        } else {
            tracing::error!("{error}");
        }
        Self::unavailable("the key of this cache cannot sign now; try again")
    }
}

impl From<InvalidMachineName> for Rejection {
    fn from(error: InvalidMachineName) -> Self {
        Self::malformed(error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_messages_are_cut() {
        let rejection = Rejection::conflict("é".repeat(2000));
        assert!(rejection.message.len() <= MESSAGE_LEN_MAX && rejection.message.ends_with("é…"));
        assert_eq!(Rejection::conflict("short").message, "short");
    }
}
