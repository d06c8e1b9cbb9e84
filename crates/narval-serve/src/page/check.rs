//! Whether clients that trust only this server's keys accept what it has.

use std::sync::Arc;

use narval_nix::HashPart;
use serde::Serialize;

use super::catalog::Catalog;
use super::paths::{is_signed, look_up};
use super::places::Places;
use crate::error::ServeError;

/// Paths whose signatures are verified, the newest ones: each takes about 0.1 ms.
const CHECKED_MAX: usize = 5_000;

/// The answer to `check`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Checked {
    store_dir: String,
    /// All paths.
    paths: usize,
    /// Those of which the signatures were looked at.
    checked: usize,
    /// Those of them that have a valid signature of this server, and others that need none, because their contents prove themselves.
    signed: usize,
    by_contents: usize,
}

pub(super) fn check(
    places: &Arc<Places>,
    catalog: &Arc<Catalog>,
    is_wanted: &dyn Fn() -> bool,
) -> Result<Checked, ServeError> {
    let (paths, newest) = catalog.newest(places, CHECKED_MAX)?;
    let mut checked = Checked { store_dir: places.store_dir.to_string(), paths, checked: 0, signed: 0, by_contents: 0 };
    for hash in newest {
        if !is_wanted() {
            return Err(ServeError::Busy);
        }
        // It may have gone meanwhile.
        if let Ok(hash_part) = HashPart::parse(hash.as_bytes())
            && let Some(info) = look_up(places, hash_part)?
        {
            checked.checked += 1;
            if is_signed(places, &info) {
                checked.signed += 1;
            } else if info.ca.is_some() {
                checked.by_contents += 1;
            }
        }
    }
    Ok(checked)
}
