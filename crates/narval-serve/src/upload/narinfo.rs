//! `PUT /<hash part>.narinfo`, which makes a path visible.

use std::io::Read;

use narval_http::{Response, StatusCode};
use narval_keep::{Cache, Grant, Outcome};
use narval_nix::HashPart;
use narval_nix::narinfo::NARINFO_LEN_MAX;

use super::read;
use crate::error::ServeError;

/// Commits one narinfo. Nix uploads them one by one; concurrent commits share a transaction.
pub(super) fn take(
    cache: &Cache,
    hash_part: HashPart,
    body: &mut dyn Read,
    grant: &Grant,
) -> Result<Response, ServeError> {
    let text = read(body, NARINFO_LEN_MAX as u64)?;
    let committed = cache.commit_narinfos(&[(hash_part, text)], grant)?;
    let is_new = committed.iter().any(|committed| committed.outcome == Outcome::Added);
    Ok(Response::new(if is_new { StatusCode::CREATED } else { StatusCode::OK }))
}
