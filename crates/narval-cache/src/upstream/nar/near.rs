//! Takes a NAR from a neighbour: into the file that is kept, but nobody can read any of it before all of it is verified, or [`SHOWN_AFTER`] is over.

use std::fs::File;
use std::io::{self, Seek};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use narval_client::{HttpError, Trouble};
use narval_files::{GrowingFile, Start};
use parking_lot::Mutex;

use super::fetch::Fetch;
use super::places::{FromNear, Places};
use crate::upstream::neighbours::asking::Fetching;
use crate::upstream::shared::neighbours::{Coming, TRIED_MAX};
use crate::upstream::shared::question::PATIENCE;
use crate::upstream::standing::nearby::Nearby;

/// A NAR that takes longer is passed on while it comes, without its last byte, as one of an upstream is: clients do not wait for minutes without a
/// byte. If it is wrong, the client is cut off, asks again, and the neighbour is forgotten.
const SHOWN_AFTER: Duration = Duration::from_secs(20);
const _: () = assert!(SHOWN_AFTER.as_secs() < PATIENCE.as_secs() / 2);

impl Fetch {
    /// Takes it from a neighbour, if one has it or fetches it, and else tells neighbours that it comes from an upstream.
    ///
    /// # Errors
    /// The file cannot be written, or what has been passed on of it is not continued.
    pub(super) fn take_from_neighbour(&self, file: &File, fetching: Option<&Fetching<'_>>) -> Result<bool, Trouble> {
        let Places { shared, info, .. } = &self.places;
        let Some(fetching) = fetching else { return Ok(false) };
        for _ in 0..TRIED_MAX {
            fetching.comes(Coming::Wanted);
            let Some(near) = shared.near(info, self.plain) else {
                match fetching.is_outbid() {
                    true => continue,
                    false => break,
                }
            };
            fetching.comes(Coming::Near);
            let hidden = Arc::new(GrowingFile::new(file.try_clone().map_err(Trouble::Disk)?));
            let places = Places {
                shared: Arc::clone(shared),
                remote: Arc::clone(&self.places.remote),
                info: Arc::clone(info),
                near: Some(FromNear { near, used: Mutex::default(), shown: Arc::default() }),
            };
            let begun = Instant::now();
            if let Some(from) = &places.near {
                let (front, shown) = (Arc::clone(&self.fill), Arc::clone(&from.shown));
                let shows = move |hidden: &GrowingFile| {
                    if begun.elapsed() < SHOWN_AFTER {
                        return;
                    }
                    shown.store(true, Ordering::Release);
                    front.starts(Start::Comes(hidden.length()));
                    front.wrote(hidden.progress().readable);
                };
                each_time(&hidden, shows);
            }
            let hidden = Self { places, fill: hidden, plain: self.plain, only_near: true };
            match hidden.fetch_file(file, || None) {
                Ok(()) => {
                    hidden.places.neighbours_used(Nearby::proves);
                    let length = file.metadata().map_err(Trouble::Disk)?.len();
                    shared.neighbours.counts.took(length);
                    self.fill.starts(Start::Comes(Some(length)));
                    self.fill.wrote(length);
                    return Ok(true);
                }
                Err(trouble @ Trouble::Disk(_)) => return Err(trouble),
                Err(trouble) => {
                    shared.neighbours.counts.failed();
                    tracing::info!("neighbours: the NAR of {} did not come from one: {trouble:?}", info.path);
                    if matches!(trouble, Trouble::Wrong(_)) {
                        // It is wrong.
                        hidden.places.neighbours_used(Nearby::goes);
                    }
                    if hidden.places.is_shown() {
                        let received = hidden.fill.progress().readable;
                        return Err(Trouble::Unavailable(HttpError::Truncated { received, expected: None }));
                    }
                    empty(file).map_err(Trouble::Disk)?;
                }
            }
            if self.fill.is_abandoned() {
                break;
            }
        }
        fetching.comes(Coming::Upstream);
        Ok(false)
    }
}

/// Calls a function each time that more of a file has come.
fn each_time(fill: &Arc<GrowingFile>, tell: impl Fn(&GrowingFile) + Send + 'static) {
    fn notify(fill: &Weak<GrowingFile>, tell: impl Fn(&GrowingFile) + Send + 'static) {
        let Some(fill) = fill.upgrade() else { return };
        tell(&fill);
        if fill.progress().end.is_none() {
            each_time(&fill, tell);
        }
    }
    let weak = Arc::downgrade(fill);
    fill.when_beyond(fill.progress().readable, move || notify(&weak, tell));
}

/// Removes what came from neighbours.
fn empty(mut file: &File) -> io::Result<()> {
    file.set_len(0)?;
    file.rewind()
}
