//! A question that is put to the upstreams once, whoever asks it.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::Unavailable;
use super::known::Known;

/// The longest wait for a narinfo that another thread requests, and for the start of a NAR.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// For whom the upstreams are asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Patience {
    /// A client, who goes on without what does not come soon.
    Client,
    /// A push or a page: upstreams that are slow are waited for.
    Push,
}

/// Why it is not known whether an upstream has a path.
pub(super) enum NoAnswer {
    /// Too many threads wait for upstreams already.
    Busy(Unavailable),
    /// Upstreams have failed, or are late.
    Upstreams(Unavailable),
}

impl From<NoAnswer> for Unavailable {
    fn from((NoAnswer::Busy(why) | NoAnswer::Upstreams(why)): NoAnswer) -> Self {
        why
    }
}

/// A narinfo that a thread is requesting.
#[derive(Default)]
pub(super) struct Question {
    pub(super) answer: Mutex<Option<Result<Option<Arc<Known>>, Unavailable>>>,
    pub(super) answered: Condvar,
}
