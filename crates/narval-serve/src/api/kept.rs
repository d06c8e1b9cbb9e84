//! Paths and pins.

use narval_client::clock;
use narval_keep::{Cache, Pin, PinFor};
use narval_nix::{HashPart, StorePath};
use serde::Deserialize;
use serde_json::{Value, json};

use super::asked::{Answered, Asked, malformed, not_found};
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
pub(super) fn paths(asked: &Asked<'_>) -> Result<Answered, ServeError> {
    let (cache, limit) = (asked.cache()?, asked.limit()?);
    let after = asked.query("after").map(hash_part_of).transpose()?;
    let listed = cache.list_after(after.as_ref(), limit)?;
    let next = listed.last().filter(|_| listed.len() == limit).and_then(|last| last.path.get(..32).map(str::to_owned));
    let path = |path: &narval_keep::Listed| json!({"path": path.path, "added": path.added, "used": path.used, "fileSize": path.file_size});
    Answered::page(&listed.iter().map(path).collect::<Vec<Value>>(), next)
}

/// `DELETE caches/{cache}/paths/{path}`
pub(super) fn delete(asked: &Asked<'_>) -> Result<Answered, ServeError> {
    let referrers = match asked.query("referrers") {
        None | Some("false" | "0") => false,
        Some("true" | "1") => true,
        Some(other) => return Err(malformed(format!("'referrers={other}' is neither true nor false"))),
    };
    let deleted = asked.cache()?.delete(&hash_part_of(asked.part("path"))?, referrers, asked.grant()?)?;
    Answered::ok(&json!({"paths": deleted.paths.len(), "files": deleted.files, "bytes": deleted.bytes}))
}

/// `GET caches/{cache}/pins`
pub(super) fn pins(asked: &Asked<'_>) -> Result<Answered, ServeError> {
    let (pins, limit) = (asked.cache()?.pins()?, asked.limit()?);
    // The number of those before: names are not unique.
    let skipped = asked.number("after")?.map_or(0, |after| usize::try_from(after).unwrap_or(usize::MAX));
    let rest = pins.get(skipped.min(pins.len())..).unwrap_or_default();
    let next = (rest.len() > limit).then(|| skipped.saturating_add(limit));
    Answered::page(&rest.iter().take(limit).collect::<Vec<_>>(), next)
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
pub(super) fn pin(asked: &Asked<'_>) -> Result<Answered, ServeError> {
    let (cache, NewPin { path, keep, seconds }) = (asked.cache()?, asked.json()?);
    let until = seconds.map(|seconds| clock::now().saturating_add(seconds));
    let pin = cache.pin(asked.part("name"), &hash_part_of(&path)?, PinFor { keep, until }, asked.grant()?)?;
    Answered::ok(&pin)
}

/// `DELETE caches/{cache}/pins/{name}`
pub(super) fn unpin(asked: &Asked<'_>) -> Result<Answered, ServeError> {
    let (cache, name) = (asked.cache()?, asked.part("name"));
    let part = asked.query("path").map(hash_part_of).transpose()?;
    let path = part.map(|part| pinned(&cache, name, &part)).transpose()?;
    let removed = match path {
        Some(None) => 0,
        Some(Some(path)) => cache.unpin(name, Some(&path), asked.grant()?)?,
        None => cache.unpin(name, None, asked.grant()?)?,
    };
    match removed {
        0 => Err(not_found(format!("there is no pin '{name}'"))),
        removed => Answered::ok(&json!({"removed": removed})),
    }
}

/// The path that a pin of this name keeps.
fn pinned(cache: &Cache, name: &str, part: &HashPart) -> Result<Option<StorePath>, ServeError> {
    let pins = cache.pins()?;
    let of_name = pins.iter().filter(|pin: &&Pin| pin.name == name);
    Ok(of_name.filter_map(|pin| StorePath::parse(&pin.path).ok()).find(|path| path.hash_part() == *part))
}
