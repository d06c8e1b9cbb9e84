//! Releases, and the machines that follow them.

use narval_keep::{MachineCursor, ReleaseCursor, ReleasePage};
use narval_nix::Release;
use narval_nix::release::{ReleaseName, Which};
use serde_json::{Value, json};

use super::call::{ApiAnswer, ApiCall, malformed, not_found};
use crate::error::ServeError;
use crate::routes::releases as routes;
use crate::upload::releases as upload;

/// A release as it was signed.
fn signed(status: u16, release: &Release) -> Result<ApiAnswer, ServeError> {
    // It was parsed, so it is JSON.
    let value: Value = serde_json::from_str(&release.to_json()).map_err(malformed)?;
    ApiAnswer::new(status, &value)
}

/// `GET caches/{cache}/releases`
pub(super) fn list(call: &ApiCall<'_>) -> Result<ApiAnswer, ServeError> {
    let cache = call.cache()?;
    let name = call.query("name").map(str::parse::<ReleaseName>).transpose().map_err(malformed)?;
    let after = call.query("after").map(str::parse::<ReleaseCursor>).transpose().map_err(malformed)?;
    let ReleasePage { releases, next } = cache.releases(name.as_ref(), after.as_ref())?;
    ApiAnswer::page(&releases.iter().map(routes::row).collect::<Vec<_>>(), next)
}

/// `GET caches/{cache}/releases/{name}/{which}`
pub(super) fn show(call: &ApiCall<'_>) -> Result<ApiAnswer, ServeError> {
    let machine = (call.query("system"), None);
    let found = routes::find(&call.cache()?, call.part("name"), call.part("which"), machine)?;
    signed(200, &found.release)
}

/// `POST caches/{cache}/releases/{name}`
pub(super) fn record(call: &ApiCall<'_>) -> Result<ApiAnswer, ServeError> {
    let recorded = upload::record_body(&call.cache()?, call.part("name"), call.body, call.key, call.grant()?)?;
    signed(201, &recorded)
}

/// `DELETE caches/{cache}/releases/{name}` and `…/{which}`
pub(super) fn forget(call: &ApiCall<'_>) -> Result<ApiAnswer, ServeError> {
    let revision = match call.part("which") {
        "" => None,
        which => match which.parse() {
            Ok(Which::Revision(revision)) => Some(revision),
            _ => return Err(malformed("a release is forgotten by its revision, a number")),
        },
    };
    call.cache()?.forget_release(&call.parsed("name")?, revision, call.grant()?)?;
    Ok(ApiAnswer::nothing())
}

fn set_pinned(call: &ApiCall<'_>, is_pinned: bool) -> Result<ApiAnswer, ServeError> {
    let (name, which) = (call.parsed("name")?, call.parsed("which")?);
    signed(200, &call.cache()?.pin_release(&name, &which, is_pinned, call.grant()?)?)
}

/// `PUT caches/{cache}/releases/{name}/{which}/pin`
pub(super) fn pin(call: &ApiCall<'_>) -> Result<ApiAnswer, ServeError> {
    set_pinned(call, true)
}

/// `DELETE caches/{cache}/releases/{name}/{which}/pin`
pub(super) fn unpin(call: &ApiCall<'_>) -> Result<ApiAnswer, ServeError> {
    set_pinned(call, false)
}

/// `GET caches/{cache}/machines`
pub(super) fn machines(call: &ApiCall<'_>) -> Result<ApiAnswer, ServeError> {
    let after = call.query("after").map(str::parse::<MachineCursor>).transpose().map_err(malformed)?;
    let page = call.cache()?.machines(after.as_ref())?;
    ApiAnswer::ok(&json!({"items": page.machines, "next": page.next}))
}

/// `DELETE caches/{cache}/machines/{name}`
pub(super) fn forget_machine(call: &ApiCall<'_>) -> Result<ApiAnswer, ServeError> {
    let name = call.parsed("name")?;
    match call.cache()?.forget_machine(&name, call.grant()?)? {
        true => Ok(ApiAnswer::nothing()),
        false => Err(not_found(format!("there is no machine '{name}'"))),
    }
}
