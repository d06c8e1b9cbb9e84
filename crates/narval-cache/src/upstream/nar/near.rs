//! Takes a NAR from a neighbour: into the file that is kept, but nobody can read any of it before all of it is verified.

use std::fs::File;
use std::io::{self, Seek};
use std::sync::Arc;

use narval_client::Trouble;
use narval_files::{Fill, Start};
use parking_lot::Mutex;

use super::fetch::Fetch;
use super::places::{FromNear, Places};
use crate::upstream::neighbours::asking::Fetching;
use crate::upstream::neighbours::list::{Coming, TRIED_MAX};
use crate::upstream::neighbours::nearby::Nearby;

impl Fetch {
    /// Takes it from a neighbour, if one has it or fetches it, and else tells neighbours that it comes from an upstream.
    ///
    /// # Errors
    /// The file cannot be written.
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
            let hidden = Arc::new(Fill::new(file.try_clone().map_err(Trouble::Disk)?));
            let places = Places {
                shared: Arc::clone(shared),
                remote: Arc::clone(&self.places.remote),
                info: Arc::clone(info),
                near: Some(FromNear { near, used: Mutex::default() }),
            };
            let hidden = Self { places, fill: hidden, plain: self.plain };
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

/// Removes what came from neighbours.
fn empty(mut file: &File) -> io::Result<()> {
    file.set_len(0)?;
    file.rewind()
}
