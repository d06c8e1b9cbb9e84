//! The bytes of a NAR's file, from one upstream after another: a client notices nothing of one that dies, falls silent or trickles.

use std::sync::Arc;
use std::time::{Duration, Instant};

use narval_client::HttpError;
use narval_files::Fill;

use super::places::{Opened, Places, Same};
use crate::upstream::remote::Remote;

/// How often a fetch that waits looks whether anybody waits for it.
const LOOK_EVERY: Duration = Duration::from_secs(1);

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
pub(in crate::upstream) struct Source<'a> {
    places: &'a Places,
    fill: &'a Fill,
    opened: Opened,
    otherwise: Otherwise,
    /// A file of the same NAR to begin with.
    instead: Option<Opened>,
    /// Those that have failed.
    tried: Vec<Arc<Remote>>,
    /// Whether another may have the rest.
    others: bool,
    position: u64,
    /// How long it was waited for, and what came meanwhile, since the rate was last looked at.
    waited: Duration,
    came: u64,
    /// What is wrong, when the bytes before it have been read.
    fault: Option<HttpError>,
}

impl<'a> Source<'a> {
    pub(in crate::upstream) fn new(
        places: &'a Places,
        fill: &'a Fill,
        opened: Opened,
        tried: Vec<Arc<Remote>>,
        otherwise: Otherwise,
    ) -> Self {
        let others = places.others(&tried).iter().any(|remote| !Arc::ptr_eq(remote, &opened.remote));
        let (position, waited, came) = (0, Duration::ZERO, 0);
        Self { places, fill, opened, otherwise, instead: None, tried, others, position, waited, came, fault: None }
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
            (self.waited, self.came) = (Duration::ZERO, 0);
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
        failed.health.nar_failed();
        self.tried.push(Arc::clone(failed));
        let gone = HttpError::Truncated { received: self.position, expected: self.opened.body.total_len() };
        if self.otherwise == Otherwise::Stop {
            return Err(gone);
        }
        let another = |same, position| self.places.elsewhere(&self.tried, position, same);
        if let Some(opened) = another(Same::File, self.position) {
            self.opened = opened;
            self.others = !self.places.others(&self.tried).is_empty();
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
        let window = if self.others { deadline.absent_after } else { self.opened.remote.stall_timeout };
        let began = Instant::now();
        let body = &mut self.opened.body;
        let read = match body.wait_for_data(window.saturating_sub(self.waited).min(LOOK_EVERY)) {
            true if self.others => body.read_once(out).map(Some),
            true => body.read_some(out).map(Some),
            false => Ok(None),
        };
        self.waited += began.elapsed();
        self.came += read.as_ref().map_or(0, |len| len.unwrap_or(0)) as u64;
        if self.fill.is_abandoned() {
            return Err(HttpError::Truncated { received: self.position, expected: None });
        }
        if self.waited >= window {
            let (came, waited) = (self.came, self.waited);
            (self.waited, self.came) = (Duration::ZERO, 0);
            if (came as f64) < deadline.nar_rate_min as f64 * waited.as_secs_f64()
                && !matches!(read, Ok(Some(0)) | Err(_))
            {
                self.fault = Some(HttpError::Slow { received: came, elapsed: waited });
            }
        }
        read
    }
}
