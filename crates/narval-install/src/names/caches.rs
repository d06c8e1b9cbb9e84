//! Paths by name: what `git` or `git-2.47.2` may mean.
//!
//! Names are looked up in caches that can be searched: those of Narval, at `_narval/v1/paths`.

use std::cmp::{Ordering, Reverse};
use std::collections::HashSet;
use std::sync::Arc;

use narval_cache::CacheError;
use narval_client::{Client, HttpError, Request, Scheme, Url, escaped};
use narval_nix::{PackageName, StorePath, compare_versions};
use serde_json::Value;

use narval_transfer::Error;

/// The path of a search.
const SEARCH: &str = "_narval/v1/paths";
/// The maximum number of paths that one cache is asked for.
const PATHS_MAX: usize = 2_000;
/// The maximum length of one answer.
const ANSWER_LEN_MAX: u64 = 1024 * 1024;
/// How names of files end that are no programs, but what these are built from.
const SOURCES: [&str; 8] = [".drv", ".patch", ".diff", ".zip", ".tgz", ".gem", ".crate", ".lock"];

/// A path that a name may mean.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The path.
    pub path: StorePath,
    /// Its size in the cache, in bytes.
    pub size: u64,
    /// When it was registered, or last pushed or requested, in seconds since 1970.
    pub time: u64,
    /// Whether it lacks a signature of the cache, which signs.
    pub unsigned: bool,
    /// The cache that has it.
    pub cache: String,
}

/// What caches are asked for.
#[derive(Clone, Copy, Debug)]
pub enum Query<'a> {
    /// Names that contain all of these words.
    Words(&'a str),
    /// Names of this package, whatever the version.
    Package(&'a str),
}

/// What caches have found.
#[derive(Debug, Default)]
pub struct SearchResults {
    /// The paths, each once: by package, the newest versions first, then those used last.
    pub candidates: Vec<Candidate>,
    /// Whether there are more.
    pub more: bool,
    /// Caches that cannot be searched.
    pub cannot: Vec<String>,
}

/// Asks caches for paths by name.
///
/// # Errors
/// If a cache cannot be asked, and no other has found anything.
pub fn search(caches: &[Url], client: &Client, query: Query<'_>) -> Result<SearchResults, Error> {
    let (mut found, mut first) = (SearchResults::default(), None);
    for cache in caches {
        match search_in(cache, client, query, &mut found) {
            Ok(true) => {}
            Ok(false) => found.cannot.push(cache.to_string()),
            Err(error) => {
                tracing::debug!("{error}");
                first.get_or_insert(error);
            }
        }
    }
    match first {
        Some(error) if found.candidates.is_empty() => return Err(error),
        Some(error) => tracing::warn!("{error}"),
        None => {}
    }
    let mut seen = HashSet::new();
    found.candidates.retain(|candidate| seen.insert(candidate.path.clone()));
    sort(&mut found.candidates);
    Ok(found)
}

/// Whether the cache can be searched.
fn search_in(cache: &Url, client: &Client, query: Query<'_>, found: &mut SearchResults) -> Result<bool, Error> {
    if !matches!(cache.scheme(), Scheme::Http | Scheme::Https) {
        return Ok(false);
    }
    let (key, text) = match query {
        Query::Words(words) => ("q", words),
        Query::Package(package) => ("package", package),
    };
    let mut from = 0;
    loop {
        let url = cache.child(&format!("{SEARCH}?{key}={}&from={from}", escaped(text)))?;
        let answer = client.retrying(&url, || client.small_answer(&Request::get(&url), ANSWER_LEN_MAX));
        let answer = match answer {
            Ok(Some(answer)) => answer,
            // A bucket answers 403 for what is not there.
            Ok(None) | Err(HttpError::Status { status: 400 | 403 | 404 | 405 | 501, .. }) => return Ok(false),
            Err(source) => {
                return Err(CacheError::Fetch { cache: cache.to_string(), what: SEARCH.to_owned(), source }.into());
            }
        };
        let Ok(answer) = serde_json::from_slice::<Value>(&answer) else { return Ok(false) };
        let Some(paths) = answer.get("paths").and_then(Value::as_array) else { return Ok(false) };
        found.candidates.extend(paths.iter().filter_map(|path| candidate(path, cache)));
        from += paths.len();
        let total = answer.get("total").and_then(Value::as_u64).unwrap_or(0);
        let is_all = paths.is_empty() || from as u64 >= total;
        found.more |= answer.get("more") == Some(&Value::Bool(true)) || (!is_all && from >= PATHS_MAX);
        if is_all || from >= PATHS_MAX {
            return Ok(true);
        }
    }
}

fn candidate(path: &Value, cache: &Url) -> Option<Candidate> {
    let text = |key: &str| path.get(key).and_then(Value::as_str);
    let number = |key: &str| path.get(key).and_then(Value::as_u64).unwrap_or(0);
    Some(Candidate {
        path: StorePath::parse(&format!("{}-{}", text("hash")?, text("name")?)).ok()?,
        size: number("size"),
        time: number("time"),
        unsigned: path.get("unsigned") == Some(&Value::Bool(true)),
        cache: cache.to_string(),
    })
}

/// By package, the newest versions first, then those used last.
pub fn sort(candidates: &mut [Candidate]) {
    candidates.sort_by(|one, other| {
        let (first, second) = (PackageName::of(one.path.name()), PackageName::of(other.path.name()));
        let by_version = || compare_versions(second.version, first.version);
        let rest = |candidate: &Candidate| (Reverse(candidate.time), candidate.path.clone());
        let by_package = first.package.cmp(second.package).then_with(by_version);
        by_package.then_with(|| first.output.cmp(second.output)).then_with(|| rest(one).cmp(&rest(other)))
    });
}

/// Of these paths, those that a name means: those of exactly this name, or else those of this package (and version, if the name has one). Other
/// outputs than the first one are meant if there is no first one, and sources if they are named exactly.
pub fn named<'a>(candidates: &'a [Candidate], name: &str) -> Vec<&'a Candidate> {
    let exact: Vec<_> = candidates.iter().filter(|candidate| candidate.path.name() == name).collect();
    if !exact.is_empty() {
        return exact;
    }
    let wanted = PackageName::of(name);
    let is_meant = |candidate: &&Candidate| {
        let of = PackageName::of(candidate.path.name());
        of.package == wanted.package
            && (wanted.version.is_empty() || of.version == wanted.version)
            && (wanted.output.is_empty() || of.output == wanted.output)
            && !is_source(candidate.path.name())
    };
    let all: Vec<_> = candidates.iter().filter(is_meant).collect();
    let of_first = |candidate: &&&Candidate| PackageName::of(candidate.path.name()).output.is_empty();
    let first: Vec<_> = all.iter().filter(of_first).copied().collect();
    if first.is_empty() { all } else { first }
}

fn is_source(name: &str) -> bool {
    name.contains(".tar.") || SOURCES.iter().any(|end| name.ends_with(end))
}

/// What a cache is asked for to find the paths of a name.
pub fn query_for(name: &str) -> Query<'_> {
    Query::Package(PackageName::of(name).package)
}

/// What caches have under a name. See [`named`].
///
/// # Errors
/// See [`search`].
pub fn find(caches: &[Url], client: &Arc<Client>, name: &str) -> Result<SearchResults, Error> {
    let mut found = search(caches, client, query_for(name))?;
    found.candidates = named(&found.candidates, name).into_iter().cloned().collect();
    Ok(found)
}

/// A path, and a newer version of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upgrade {
    /// The path that is there.
    pub old: StorePath,
    /// The newest version that a cache has.
    pub new: Candidate,
}

/// The result of [`upgrades`].
#[derive(Debug, Default)]
pub struct Upgrades {
    /// The paths of which a cache has a newer version.
    pub newer: Vec<Upgrade>,
    /// Caches that cannot be searched.
    pub cannot: Vec<String>,
}

/// Asks caches for newer versions of paths: of the same package and output, by Nix's order of versions. With `signed`, those without a signature of
/// their cache do not count. A path without a version has none that is newer.
///
/// # Errors
/// See [`search`].
pub fn upgrades(paths: &[StorePath], caches: &[Url], client: &Client, signed: bool) -> Result<Upgrades, Error> {
    let mut all = Upgrades::default();
    for old in paths {
        let package = PackageName::of(old.name()).package;
        let SearchResults { mut candidates, cannot, .. } = search(caches, client, Query::Package(package))?;
        candidates.retain(|candidate| !(signed && candidate.unsigned));
        all.newer.extend(newest(old, &candidates).map(|new| Upgrade { old: old.clone(), new: new.clone() }));
        all.cannot = cannot;
    }
    Ok(all)
}

/// Of sorted candidates, the newest version of this path that is newer.
fn newest<'a>(old: &StorePath, candidates: &'a [Candidate]) -> Option<&'a Candidate> {
    let wanted = PackageName::of(old.name());
    candidates.iter().find(|candidate| {
        let of = PackageName::of(candidate.path.name());
        (of.package, of.output) == (wanted.package, wanted.output)
            && !wanted.version.is_empty()
            && compare_versions(of.version, wanted.version) == Ordering::Greater
            && !is_source(candidate.path.name())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidates(names: &[&str]) -> Vec<Candidate> {
        let one = |(at, name): (usize, &&str)| Candidate {
            path: StorePath::parse(&format!("{at:032}-{name}")).unwrap(),
            size: 1,
            time: at as u64,
            unsigned: false,
            cache: "http://cache".to_owned(),
        };
        names.iter().enumerate().map(one).collect()
    }

    #[test]
    fn a_name_means_a_package_a_version_or_exactly_that() {
        let all = candidates(&[
            "git-2.47.1",
            "git-2.47.2",
            "git-2.47.2-man",
            "git-2.47.2.tar.xz",
            "git-2.47.2.drv",
            "git-lfs-3.6.1",
            "openssl-3.0.14-dev",
            "hook",
        ]);
        let meant = |name: &str| named(&all, name).into_iter().map(|found| found.path.name()).collect::<Vec<_>>();
        assert_eq!(meant("git"), ["git-2.47.1", "git-2.47.2"]);
        assert_eq!(meant("git-2.47.2"), ["git-2.47.2"]);
        assert_eq!(meant("git-2.47.2-man"), ["git-2.47.2-man"]);
        assert_eq!(meant("git-2.47.2.drv"), ["git-2.47.2.drv"]);
        assert_eq!(meant("openssl"), ["openssl-3.0.14-dev"]);
        assert_eq!(meant("hook"), ["hook"]);
        assert_eq!(meant("gi"), Vec::<&str>::new());
    }

    #[test]
    fn the_newest_version_is_first_and_of_its_builds_the_newest() {
        let mut all = candidates(&["b-1", "a-1.9", "a-1.10", "a-1.10", "a-1.10-dev"]);
        sort(&mut all);
        let sorted: Vec<_> = all.iter().map(|found| (found.path.name(), found.time)).collect();
        assert_eq!(sorted, [("a-1.10", 3), ("a-1.10", 2), ("a-1.10-dev", 4), ("a-1.9", 1), ("b-1", 0)]);
    }

    #[test]
    fn newer_versions_are_of_the_same_package_and_output() {
        let mut all = candidates(&["a-1.9", "a-1.10", "a-1.10", "a-2-dev", "a-3.tar.gz", "a-b-4"]);
        sort(&mut all);
        let newest_of = |name: &str| {
            let old = StorePath::parse(&format!("{:032}-{name}", 9)).unwrap();
            newest(&old, &all).map(|found| (found.path.name().to_owned(), found.time))
        };
        assert_eq!(newest_of("a-1.9"), Some(("a-1.10".to_owned(), 2)));
        assert_eq!(newest_of("a-1.10"), None);
        assert_eq!(newest_of("a-1.9-dev"), Some(("a-2-dev".to_owned(), 3)));
        assert_eq!(newest_of("a"), None);
    }
}
