//! Releases, and the machines that follow them.

use narval_keep::{MachineCursor, ReleaseCursor, ReleasePage};
use narval_nix::Release;
use narval_nix::release::{ReleaseName, Which};
use serde_json::{Value, json};

use super::asked::{Answered, Asked, malformed, not_found};
use crate::error::ServeError;
use crate::routes::releases as routes;
use crate::upload::releases as upload;

/// A release as it was signed.
fn signed(status: u16, release: &Release) -> Result<Answered, ServeError> {
    // It was parsed, so it is JSON.
    let value: Value = serde_json::from_str(&release.to_json()).map_err(malformed)?;
    Answered::new(status, &value)
}

/// `GET caches/{cache}/releases`
pub(super) fn list(asked: &Asked<'_>) -> Result<Answered, ServeError> {
    let cache = asked.cache()?;
    let name = asked.query("name").map(str::parse::<ReleaseName>).transpose().map_err(malformed)?;
    let after = asked.query("after").map(str::parse::<ReleaseCursor>).transpose().map_err(malformed)?;
    let ReleasePage { releases, next } = cache.releases(name.as_ref(), after.as_ref())?;
    Answered::page(&releases.iter().map(routes::row).collect::<Vec<_>>(), next)
}

/// `GET caches/{cache}/releases/{name}/{which}`
pub(super) fn show(asked: &Asked<'_>) -> Result<Answered, ServeError> {
    let machine = (asked.query("system"), None);
    let found = routes::find(&asked.cache()?, asked.part("name"), asked.part("which"), machine)?;
    signed(200, &found.release)
}

/// `POST caches/{cache}/releases/{name}`
pub(super) fn record(asked: &Asked<'_>) -> Result<Answered, ServeError> {
    let recorded = upload::record_body(&asked.cache()?, asked.part("name"), asked.body, asked.key, asked.grant()?)?;
    signed(201, &recorded)
}

/// `DELETE caches/{cache}/releases/{name}` and `…/{which}`
pub(super) fn forget(asked: &Asked<'_>) -> Result<Answered, ServeError> {
    let revision = match asked.part("which") {
        "" => None,
        which => match which.parse() {
            Ok(Which::Revision(revision)) => Some(revision),
            _ => return Err(malformed("a release is forgotten by its revision, a number")),
        },
    };
    asked.cache()?.forget_release(&asked.parsed("name")?, revision, asked.grant()?)?;
    Ok(Answered::nothing())
}

fn set_pinned(asked: &Asked<'_>, is_pinned: bool) -> Result<Answered, ServeError> {
    let (name, which) = (asked.parsed("name")?, asked.parsed("which")?);
    signed(200, &asked.cache()?.pin_release(&name, &which, is_pinned, asked.grant()?)?)
}

/// `PUT caches/{cache}/releases/{name}/{which}/pin`
pub(super) fn pin(asked: &Asked<'_>) -> Result<Answered, ServeError> {
    set_pinned(asked, true)
}

/// `DELETE caches/{cache}/releases/{name}/{which}/pin`
pub(super) fn unpin(asked: &Asked<'_>) -> Result<Answered, ServeError> {
    set_pinned(asked, false)
}

/// `GET caches/{cache}/machines`
pub(super) fn machines(asked: &Asked<'_>) -> Result<Answered, ServeError> {
    let after = asked.query("after").map(str::parse::<MachineCursor>).transpose().map_err(malformed)?;
    let page = asked.cache()?.machines(after.as_ref())?;
    Answered::ok(&json!({"items": page.machines, "next": page.next}))
}

/// `DELETE caches/{cache}/machines/{name}`
pub(super) fn forget_machine(asked: &Asked<'_>) -> Result<Answered, ServeError> {
    let name = asked.parsed("name")?;
    match asked.cache()?.forget_machine(&name, asked.grant()?)? {
        true => Ok(Answered::nothing()),
        false => Err(not_found(format!("there is no machine '{name}'"))),
    }
}
