//! Paths and pins.

use narval_client::clock;
use narval_keep::{Cache, Pin, PinFor};
use narval_nix::{HashPart, StorePath};
use serde::Deserialize;
use serde_json::{Value, json};

use super::call::{ApiAnswer, ApiCall, malformed, not_found};
use crate::error::ServeError;

/// A store path, its base name or its hash part.
///
/// # Errors
/// It is none of them.
pub(crate) fn hash_part_of(text: &str) -> Result<HashPart, ServeError> {
    let base = text.trim().rsplit('/').next().unwrap_or_default();
    let hash_part = StorePath::parse(base).map(|path| path.hash_part()).ok();
    let hash_part = hash_part.or_else(|| HashPart::parse(base.as_bytes()).ok());
    hash_part.ok_or_else(|| malformed(format!("'{text}' is not a store path")))
}

/// `GET caches/{cache}/paths`
pub(super) fn paths(call: &ApiCall<'_>) -> Result<ApiAnswer, ServeError> {
    let (cache, limit) = (call.cache()?, call.limit()?);
    let after = call.query("after").map(hash_part_of).transpose()?;
    let listed = cache.list_after(after.as_ref(), limit)?;
    let next = listed.last().filter(|_| listed.len() == limit).and_then(|last| last.path.get(..32).map(str::to_owned));
    let path = |path: &narval_keep::Listed| json!({"path": path.path, "added": path.added, "used": path.used, "fileSize": path.file_size});
    ApiAnswer::page(&listed.iter().map(path).collect::<Vec<Value>>(), next)
}

/// `DELETE caches/{cache}/paths/{path}`
pub(super) fn delete(call: &ApiCall<'_>) -> Result<ApiAnswer, ServeError> {
    let referrers = match call.query("referrers") {
        None | Some("false" | "0") => false,
        Some("true" | "1") => true,
        Some(other) => return Err(malformed(format!("'referrers={other}' is neither true nor false"))),
    };
    let deleted = call.cache()?.delete(&hash_part_of(call.part("path"))?, referrers, call.grant()?)?;
    ApiAnswer::ok(&json!({"paths": deleted.paths.len(), "files": deleted.files, "bytes": deleted.bytes}))
}

/// `GET caches/{cache}/pins`
pub(super) fn pins(call: &ApiCall<'_>) -> Result<ApiAnswer, ServeError> {
    let (pins, limit) = (call.cache()?.pins()?, call.limit()?);
    // The number of those before: names are not unique.
    let skipped = call.number("after")?.map_or(0, |after| usize::try_from(after).unwrap_or(usize::MAX));
    let rest = pins.get(skipped.min(pins.len())..).unwrap_or_default();
    let next = (rest.len() > limit).then(|| skipped.saturating_add(limit));
    ApiAnswer::page(&rest.iter().take(limit).collect::<Vec<_>>(), next)
}

/// The body of a new pin.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NewPin {
    path: String,
    /// How many of the newest pins of this name are kept.
    keep: Option<u32>,
    /// How long it holds.
    seconds: Option<u64>,
}

/// `PUT caches/{cache}/pins/{name}`
pub(super) fn pin(call: &ApiCall<'_>) -> Result<ApiAnswer, ServeError> {
    let (cache, NewPin { path, keep, seconds }) = (call.cache()?, call.json()?);
    let until = seconds.map(|seconds| clock::now().saturating_add(seconds));
    let pin = cache.pin(call.part("name"), &hash_part_of(&path)?, PinFor { keep, until }, call.grant()?)?;
    ApiAnswer::ok(&pin)
}

/// `DELETE caches/{cache}/pins/{name}`
pub(super) fn unpin(call: &ApiCall<'_>) -> Result<ApiAnswer, ServeError> {
    let (cache, name) = (call.cache()?, call.part("name"));
    let part = call.query("path").map(hash_part_of).transpose()?;
    let path = part.map(|part| pinned(&cache, name, &part)).transpose()?;
    let removed = match path {
        Some(None) => 0,
        Some(Some(path)) => cache.unpin(name, Some(&path), call.grant()?)?,
        None => cache.unpin(name, None, call.grant()?)?,
    };
    match removed {
        0 => Err(not_found(format!("there is no pin '{name}'"))),
        removed => ApiAnswer::ok(&json!({"removed": removed})),
    }
}

/// The path that a pin of this name keeps.
fn pinned(cache: &Cache, name: &str, part: &HashPart) -> Result<Option<StorePath>, ServeError> {
    let pins = cache.pins()?;
    let of_name = pins.iter().filter(|pin: &&Pin| pin.name == name);
    Ok(of_name.filter_map(|pin| StorePath::parse(&pin.path).ok()).find(|path| path.hash_part() == *part))
}
