//! That this process may store NARs which get no row, because it is killed or the index is away.
//!
//! A row follows its bytes, so bytes without a row are nobody's. They are found by listing the files of a cache, which takes a while, and is done only
//! if there are any: before a process stores something, it has a row that says so. It says every hour that it is alive, and removes the row if nothing
//! went wrong. A collection looks for what others have left ([`leftovers`](crate::retention)).

use std::sync::Mutex;
use std::time::{Duration, Instant};

use narval_client::clock;

/// How often a process says that it is alive, and how long it is a writer after it has stored something.
pub(crate) const RENEW_EVERY: Duration = Duration::from_secs(60 * 60);

/// How long after the beginning of its upload a NAR can be recorded, in seconds: three days. What is a day older and has no row gets none.
pub(crate) const RECORDED_WITHIN: u64 = 3 * 24 * 60 * 60;

/// What this process is as a writer of a cache.
#[derive(Default)]
pub(crate) struct Writing(pub(crate) Mutex<WritingState>);

#[derive(Default)]
pub(crate) struct WritingState {
    pub(crate) row: Option<Written>,
    /// NARs that are being stored.
    pub(crate) storing: usize,
}

/// The row of this process.
pub(crate) struct Written {
    pub(crate) number: i64,
    pub(crate) renewed: Instant,
    pub(crate) used: Instant,
    /// Which server answered for the index: another one may not have the last rows.
    pub(crate) server: u64,
}

impl Writing {
    /// The number of its row, if nothing is being stored.
    pub(crate) fn idle(&self) -> Option<i64> {
        let state = clock::lock(&self.0);
        state.row.as_ref().filter(|_| state.storing == 0).map(|row| row.number)
    }
}
