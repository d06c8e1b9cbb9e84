//! `/releases`: the names that the cache has given to paths (`docs/releases.md`). The same addresses are views for browsers.

use narval_http::{Body, HeadRef, HeaderValue, Response, StatusCode, header};
use narval_keep::{Cache, KeptRelease, Rejection, ReleaseCursor, ReleasePage};
use narval_nix::release::{ReleaseName, ReleaseSystem, SHARE_OF_ALL, Which};
use serde::Serialize;
use serde_json::{Value, json};

use crate::error::ServeError;

/// What is asked for below `/releases`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ReleaseRoute<'a> {
    /// `/releases`: the newest of each name and system
    All,
    /// `/releases/<name>`: those of a name
    Name(&'a str),
    /// `/releases/<name>/<which>`: one
    One(&'a str, &'a str),
    /// `/releases/<name>/<which>/path`: its path, as text
    Path(&'a str, &'a str),
}

impl<'a> ReleaseRoute<'a> {
    /// Parses a path without its first `/`; `None` if it is of another route.
    pub(crate) fn parse(path: &'a str) -> Option<Self> {
        let rest = path.strip_prefix("releases")?;
        let parts: Vec<&str> = rest.trim_end_matches('/').split('/').collect();
        match parts.as_slice() {
            [""] => Some(Self::All),
            ["", name] => Some(Self::Name(name)),
            ["", name, which] => Some(Self::One(name, which)),
            ["", name, which, "path"] => Some(Self::Path(name, which)),
            _ => None,
        }
    }
}

/// Where a page of a list begins: what a page has said is its `next`.
///
/// # Errors
/// If it is malformed.
pub(crate) fn cursor(query: Option<&str>) -> Result<Option<ReleaseCursor>, ServeError> {
    let after = parameter(query, AFTER).map(|after| after.parse());
    after.transpose().map_err(|_| Rejection::malformed("'after' is what the page before has as 'next'").into())
}

/// The query of the page after a cursor.
pub(crate) fn query_after(cursor: &ReleaseCursor) -> String {
    // A `+` may stand for a blank.
    format!("?{AFTER}={}", cursor.to_string().replace('+', "%2B"))
}

/// The parameter of a list's cursor.
const AFTER: &str = "after";

/// The value of a parameter. In names of systems, a `+` is itself.
fn parameter(query: Option<&str>, key: &str) -> Option<String> {
    let mut pairs = query.unwrap_or_default().split('&').filter_map(|pair| pair.split_once('='));
    let (_, value) = pairs.find(|(name, _)| *name == key)?;
    Some(percent_encoding::percent_decode_str(value).decode_utf8_lossy().into_owned())
}

/// Looks up a release by the parts of an address.
///
/// # Errors
/// If a part is malformed, or there is no such release.
pub(crate) fn find(
    cache: &Cache,
    name: &str,
    which: &str,
    (system, share): (Option<&str>, Option<&str>),
) -> Result<KeptRelease, ServeError> {
    let name: ReleaseName = name.parse().map_err(Rejection::malformed)?;
    let which: Which = which.parse().map_err(Rejection::malformed)?;
    let parsed = system.map(str::parse::<ReleaseSystem>).transpose().map_err(Rejection::malformed)?;
    let share = share.map(|share| share.parse().ok().filter(|share| *share <= SHARE_OF_ALL));
    let wrong = || Rejection::malformed(format!("'share' is a number from 0 to {SHARE_OF_ALL}"));
    let share = share.map_or(Some(SHARE_OF_ALL), |share| share).ok_or_else(wrong)?;
    cache.find_release_for(share, &name, &which, parsed.as_ref())?.ok_or_else(|| {
        let of = system.map(|system| format!(" for {system}")).unwrap_or_default();
        Rejection::not_found(format_args!("the cache '{}' has no release @{name}@{which}{of}", cache.name())).into()
    })
}

/// Answers with JSON, or with the text of a path.
pub(crate) fn answer(cache: &Cache, route: &ReleaseRoute<'_>, head: &HeadRef<'_>) -> Result<Response, ServeError> {
    let parameter = |key| parameter(head.query(), key);
    let (system, share) = (parameter("system"), parameter("share"));
    let machine = (system.as_deref(), share.as_deref());
    match route {
        ReleaseRoute::All => listed(cache, None, head),
        ReleaseRoute::Name(name) => {
            let name = name.parse().map_err(Rejection::malformed)?;
            listed(cache, Some(&name), head)
        }
        ReleaseRoute::One(name, which) => {
            let found = find(cache, name, which, machine)?;
            Ok(text(found.release.to_json() + "\n", "application/json"))
        }
        ReleaseRoute::Path(name, which) => {
            let release = find(cache, name, which, machine)?.release;
            let selector = release.selector();
            let of_system = match (&system, release.paths.len()) {
                (Some(system), _) => release.paths.iter().find(|(of, _)| of.as_str() == system),
                (None, 1) => release.paths.first_key_value(),
                (None, _) => None,
            };
            let (system, outputs) = of_system.ok_or_else(|| {
                let systems: Vec<&str> = release.paths.keys().map(ReleaseSystem::as_str).collect();
                Rejection::malformed(format_args!("{selector} is for {}: name one with ?system=", systems.join(", ")))
            })?;
            let released = match parameter("output") {
                Some(output) => outputs.iter().find(|(name, _)| name.as_str() == output).map(|(_, path)| path),
                None => release.main_path(system),
            };
            let released =
                released.ok_or_else(|| Rejection::not_found(format!("{selector} has no such output for {system}")))?;
            Ok(text(format!("{}\n", release.store_dir.display(&released.path)), "text/plain; charset=utf-8"))
        }
    }
}

/// A release as a list has it.
pub(crate) fn row(of: &KeptRelease) -> Value {
    let (release, store_dir) = (&of.release, &of.release.store_dir);
    let outputs = release.paths.iter().filter(|(system, _)| system.as_str() == of.system).flat_map(|(_, of)| of);
    let outputs: serde_json::Map<String, Value> = outputs
        .map(|(output, released)| (output.to_string(), store_dir.display(&released.path).to_string().into()))
        .collect();
    json!({
        "name": release.name.as_str(), "revision": release.revision, "system": of.system,
        "version": release.version.as_ref().map(ToString::to_string), "created": release.created,
        "promotedFrom": release.promoted_from.as_ref().map(|(name, revision)| format!("@{name}@{revision}")),
        "percent": release.percent, "pinned": of.is_pinned, "kept": of.is_kept, "outputs": outputs, "notes": release.notes,
    })
}

fn listed(cache: &Cache, name: Option<&ReleaseName>, head: &HeadRef<'_>) -> Result<Response, ServeError> {
    #[derive(Serialize)]
    struct List {
        releases: Vec<Value>,
        #[serde(skip_serializing_if = "Option::is_none")]
        next: Option<String>,
    }
    let after = cursor(head.query())?;
    let ReleasePage { releases, next } = cache.releases(name, after.as_ref())?;
    if let Some(name) = name.filter(|_| releases.is_empty() && after.is_none()) {
        return Err(Rejection::not_found(format_args!("the cache '{}' has no release @{name}", cache.name())).into());
    }
    let list = List { releases: releases.iter().map(row).collect(), next: next.map(|next| next.to_string()) };
    let json = serde_json::to_string(&list).map_err(|error| ServeError::Upload(error.to_string()))?;
    Ok(text(json + "\n", "application/json"))
}

/// Names are moved: what is remembered of an answer must be asked for again.
fn text(body: String, content_type: &'static str) -> Response {
    Response::new(StatusCode::OK)
        .header(header::CONTENT_TYPE, HeaderValue::from_static(content_type))
        .header(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"))
        .header(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"))
        .body(Body::bytes(body.into_bytes()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails may say so")]

    use super::*;

    #[test]
    fn addresses() {
        let parse = ReleaseRoute::parse;
        assert_eq!((parse("releases"), parse("releases/")), (Some(ReleaseRoute::All), Some(ReleaseRoute::All)));
        assert_eq!(parse("releases/api"), Some(ReleaseRoute::Name("api")));
        assert_eq!(parse("releases/api/41"), Some(ReleaseRoute::One("api", "41")));
        assert_eq!(parse("releases/api/latest/path"), Some(ReleaseRoute::Path("api", "latest")));
        for other in ["releases2", "releases/a/b/c", "releases/a/b/path/x", "release/a"] {
            assert_eq!(parse(other), None, "{other}");
        }
        assert_eq!(cursor(Some("after=a@1@x%2By")).unwrap().unwrap().to_string(), "a@1@x+y");
        assert!(cursor(None).unwrap().is_none());
        for bad in ["", "a", "a@1", "a@x@y", "@1@y", "a@1@y@z", "a@-1@y", "a@1@%00"] {
            assert!(cursor(Some(&format!("after={bad}"))).is_err(), "{bad}");
        }
        assert_eq!(parameter(Some("a=1&system=x%2By+z"), "system").unwrap(), "x+y+z");
    }
}
