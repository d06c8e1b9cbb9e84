//! `POST releases/<name>`: records a release, or promotes another one (`docs/push-protocol.md`).

use std::collections::BTreeMap;
use std::io::Read;

use narval_http::{HeaderValue, Response, StatusCode, header};
use narval_keep::{Cache, Grant, NewRelease, Promotion, Rejection};
use narval_nix::Release;
use narval_nix::release::{RELEASE_LEN_MAX, ReleaseName};
use serde::Deserialize;

use super::receive::{read, text};
use crate::error::ServeError;

/// The body of a request. It has either `systems` or `from`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Asked {
    version: Option<String>,
    /// Full store paths, by system and output.
    #[serde(default)]
    systems: BTreeMap<String, BTreeMap<String, String>>,
    #[serde(default)]
    notes: BTreeMap<String, String>,
    from: Option<From>,
    /// With `from`: the share of machines that it is for.
    percent: Option<u8>,
    /// The same when the request is sent again.
    key: Option<String>,
}

/// The release that is promoted.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct From {
    name: String,
    /// A revision, a version, or `latest`.
    which: String,
}

/// Reads the body, and records.
pub(super) fn record(cache: &Cache, name: &str, body: &mut dyn Read, grant: &Grant) -> Result<Response, ServeError> {
    let body = read(body, RELEASE_LEN_MAX as u64)?;
    let release = record_body(cache, name, &body, None, grant)?;
    let json = HeaderValue::from_static("application/json");
    Ok(text(StatusCode::CREATED, release.to_json() + "\n").header(header::CONTENT_TYPE, json))
}

/// Records what a body asks for. `key`: of the request, if the body has none.
///
/// # Errors
/// If it is malformed, or the cache refuses.
pub(crate) fn record_body(
    cache: &Cache,
    name: &str,
    body: &[u8],
    key: Option<&str>,
    grant: &Grant,
) -> Result<Release, ServeError> {
    let name: ReleaseName = name.parse().map_err(Rejection::malformed)?;
    let Asked { version, systems, notes, from, percent, key: of_body } =
        serde_json::from_slice(body).map_err(|error| Rejection::malformed(format!("not a release: {error}")))?;
    let key = of_body.or_else(|| key.map(str::to_owned));
    Ok(match from {
        Some(from) if systems.is_empty() && version.is_none() && notes.is_empty() => {
            let (of, which) =
                (from.name.parse().map_err(Rejection::malformed)?, from.which.parse().map_err(Rejection::malformed)?);
            cache.promote(&of, &which, &name, &Promotion { percent, key }, grant)?
        }
        Some(_) => {
            return Err(
                Rejection::malformed("a release that is promoted has nothing but 'from', 'percent' and 'key'").into()
            );
        }
        None if percent.is_some() => {
            return Err(Rejection::malformed("'percent' is for releases that are promoted, with 'from'").into());
        }
        None => {
            let store_dir = cache.settings().store_dir.clone();
            let mut paths = BTreeMap::new();
            for (system, outputs) in systems {
                let mut of_system = BTreeMap::new();
                for (output, path) in outputs {
                    of_system.insert(
                        output.parse().map_err(Rejection::malformed)?,
                        store_dir.parse(&path).map_err(Rejection::malformed)?,
                    );
                }
                paths.insert(system.parse().map_err(Rejection::malformed)?, of_system);
            }
            let version = version.map(|version| version.parse()).transpose().map_err(Rejection::malformed)?;
            cache.release(&NewRelease { name, version, paths, notes, key }, grant)?
        }
    })
}
