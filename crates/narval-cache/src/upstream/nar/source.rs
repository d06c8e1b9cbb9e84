//! The bytes of a NAR's file, from one upstream after another: a client notices nothing of one that dies, falls silent or trickles.

use std::sync::Arc;
use std::time::{Duration, Instant};

use narval_client::HttpError;
use narval_files::GrowingFile;

use super::places::{Opened, Places, Same};
use super::rate::Rate;
use crate::upstream::race::trace;
use crate::upstream::remote::Remote;

/// How often a fetch that waits looks whether anybody waits for it.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Into how many parts the time is divided for which an upstream may be silent.
const SLOTS: u32 = 16;

/// The part of the time for which it may be silent once another NAR of it has stalled.
const DOUBTED: u32 = 8;

/// What happens when an upstream fails, and no other has the same file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::upstream) enum Otherwise {
    /// It is tried again.
    Wait,
    /// The reader begins with another file of the same NAR, if there is one: see [`Source::instead`].
    OtherFile,
    /// The reader begins with another file.
    Stop,
}

/// The bytes of one file. While another upstream may have the rest, one that is silent or too slow for
/// [`absent_after`](crate::upstream::Deadline::absent_after) is left; the last one may take its `stall_timeout`, and is tried again.
/// NARs that stall together are left together: where one of an upstream has stalled, the others may be silent for a fraction of that time.
pub(in crate::upstream) struct Source<'a> {
    places: &'a Places,
    fill: &'a GrowingFile,
    opened: Opened,
    otherwise: Otherwise,
    /// A file of the same NAR to begin with.
    instead: Option<Opened>,
    /// Those that have failed.
    tried: Vec<Arc<Remote>>,
    /// Whether another may have the rest.
    others: bool,
    position: u64,
    /// How fast it comes.
    rate: Rate,
    /// For how long too little has come.
    slow: Duration,
    /// What is wrong, when the bytes before it have been read.
    fault: Option<HttpError>,
}

impl<'a> Source<'a> {
    pub(in crate::upstream) fn new(
        places: &'a Places,
        fill: &'a GrowingFile,
        opened: Opened,
        tried: Vec<Arc<Remote>>,
        otherwise: Otherwise,
    ) -> Self {
        let others = places.has_others(&tried, &opened.remote);
        let (position, rate, slow) = (0, Rate::default(), Duration::ZERO);
        Self { places, fill, opened, otherwise, instead: None, tried, others, position, rate, slow, fault: None }
    }

    /// The file's length, if it is known.
    pub(in crate::upstream) fn total_len(&self) -> Option<u64> {
        self.opened.body.total_len()
    }

    /// After an error: another file of the same NAR, and those that have failed.
    pub(in crate::upstream) fn instead(self) -> Option<(Opened, Vec<Arc<Remote>>)> {
        Some((self.instead?, self.tried))
    }

    /// Reads some bytes; returns 0 at the file's end.
    ///
    /// # Errors
    /// No upstream has the rest, or nobody waits for it any more.
    pub(in crate::upstream) fn read(&mut self, out: &mut [u8]) -> Result<usize, HttpError> {
        loop {
            let read = match self.fault.take() {
                Some(fault) => Err(fault),
                None => self.read_here(out),
            };
            let error = match read {
                Ok(Some(len)) => {
                    self.position += len as u64;
                    if len == 0 {
                        self.opened.remote.health.nar_came();
                    }
                    return Ok(len);
                }
                Ok(None) => continue,
                Err(error) => error,
            };
            if self.fill.is_abandoned() {
                return Err(error);
            }
            self.rate = Rate::default();
            let is_slow = matches!(error, HttpError::Slow { .. });
            match std::mem::replace(&mut self.others, false) {
                true if self.continues(&error)? => {}
                // Slow is better than nothing, and a broken connection is resumed.
                true => {}
                false if is_slow => self.opened.body.abort(error)?,
                false => return Err(error),
            }
        }
    }

    /// Turns to another upstream; returns whether there is one.
    fn continues(&mut self, error: &HttpError) -> Result<bool, HttpError> {
        let failed = &self.opened.remote;
        tracing::debug!("upstream {}: {error}", failed.url());
        trace::left(failed, self.position, &error.to_string());
        failed.health.nar_failed();
        failed.goes();
        self.tried.push(Arc::clone(failed));
        let gone = HttpError::Truncated { received: self.position, expected: self.opened.body.total_len() };
        if self.otherwise == Otherwise::Stop || self.places.is_coming() && !self.places.is_shown() {
            return Err(gone);
        }
        let another = |same, position| self.places.elsewhere(&self.tried, position, same);
        if let Some(opened) = another(Same::File, self.position) {
            self.opened = opened;
            self.others = self.places.has_others(&self.tried, &self.opened.remote);
            return Ok(true);
        }
        if self.otherwise == Otherwise::OtherFile {
            self.instead = another(Same::Nar, 0);
        }
        if self.instead.is_some() { Err(gone) } else { Ok(false) }
    }

    /// Reads some bytes, if any come soon.
    fn read_here(&mut self, out: &mut [u8]) -> Result<Option<usize>, HttpError> {
        let deadline = self.places.deadline();
        let (absent_after, short) = (deadline.absent_after, deadline.absent_after / SLOTS);
        let patience = self.places.patience(&self.opened.remote);
        let (window, look_every) = match self.others {
            true if let Some(patience) = patience => (patience, patience / SLOTS),
            true if self.opened.remote.health.doubts_nars() => (absent_after / DOUBTED, short),
            true => (absent_after, short),
            false => (self.opened.remote.stall_timeout, LOOK_EVERY),
        };
        let began = Instant::now();
        let body = &mut self.opened.body;
        let read = match body.wait_for_data(look_every) {
            true if self.others => body.read_once(out).map(Some),
            true => body.read_some(out).map(Some),
            false => Ok(None),
        };
        let came = read.as_ref().map_or(0, |len| len.unwrap_or(0)) as u64;
        self.rate.add(began.elapsed(), came, look_every, window.max(absent_after));
        if self.fill.is_abandoned() {
            return Err(HttpError::Truncated { received: self.position, expected: None });
        }
        let Some((elapsed, received)) = self.rate.over(window) else { return read };
        if (received as f64) >= deadline.nar_rate_min as f64 * elapsed.as_secs_f64() {
            self.slow = Duration::ZERO;
        } else if !matches!(read, Ok(Some(0)) | Err(_)) {
            self.slow += elapsed;
            self.rate = Rate::default();
            if !self.places.still_comes(&self.opened.remote, self.slow) {
                self.fault = Some(HttpError::Slow { received, elapsed });
            }
        }
        read
    }
}
