//! Releases of caches: `@api` is the newest release of that name, signed by a trusted key and not older than what was seen before.
//!
//! [`find`] asks one cache, [`find_in`] the caches of a user. Both verify signatures, and remember revisions in [`SeenReleases`].

mod seen;

use narval_cache::CacheError;
use narval_client::{Client, Extra, HttpError, Request, Scheme, Url};
use narval_nix::release::{RELEASE_LEN_MAX, ReleaseName, ReleaseSystem, SHARE_OF_ALL, Selector, Which};
use narval_nix::{Release, TrustedKeys};

use serde_json::Value;

pub use seen::SeenReleases;

use narval_transfer::Error;

/// Where releases are, below the URL of a cache.
const RELEASES: &str = "releases";

/// What is expected of a release.
#[derive(Clone, Copy, Debug)]
pub struct Expected<'a> {
    /// The system whose paths are wanted: only releases that have some are asked for.
    pub system: &'a ReleaseSystem,
    /// The keys of which one must have signed it.
    pub keys: &'a TrustedKeys,
    /// Otherwise any release is taken, and none is remembered.
    pub check_signatures: bool,
    /// What was seen before.
    pub seen: &'a SeenReleases,
    /// Whether a release is taken that is older than what was seen before.
    pub allow_downgrade: bool,
    /// The newest release for machines of this share is wanted ([`share_of`](narval_nix::release::share_of)); [`SHARE_OF_ALL`] if this is no machine that
    /// follows it.
    pub share: u8,
}

/// A release that was found.
#[derive(Clone, Debug)]
pub struct FoundRelease {
    /// The release.
    pub release: Release,
    /// The cache that has it.
    pub cache: Url,
}

/// Asks caches, in their order, for a release. The first one that has it is used.
///
/// # Errors
/// If no cache has it, or what a cache has is not signed by a trusted key, or is older than what was seen before.
pub fn find_in(
    caches: &[Url],
    client: &Client,
    selector: &Selector,
    expected: &Expected<'_>,
) -> Result<FoundRelease, Error> {
    let mut failed = None;
    for cache in caches {
        match find(cache, client, selector, expected) {
            Ok(Some(release)) => {
                // The others may have newer releases of that name: it is for the user to say which cache is meant.
                if let Some(error) = failed {
                    tracing::warn!("{error}; {selector} is that of {cache}");
                }
                return Ok(FoundRelease { release, cache: cache.clone() });
            }
            Ok(None) => {}
            Err(error @ Error::Cache(_)) => failed = failed.or(Some(error)),
            Err(error) => return Err(error),
        }
    }
    let asked = caches.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    Err(failed.unwrap_or_else(|| {
        Error::Unresolved(format!(
            "no cache has a release {selector} for {}; asked: {asked}. Name the cache with --from, and --system for another system",
            expected.system
        ))
    }))
}

/// Asks a cache for a release. `None` if it has no such release for this system, or has none at all.
///
/// # Errors
/// If the cache cannot be asked, or what it has is not signed by a trusted key, or is older than what was seen before.
pub fn find(
    cache: &Url,
    client: &Client,
    selector: &Selector,
    expected: &Expected<'_>,
) -> Result<Option<Release>, Error> {
    if !matches!(cache.scheme(), Scheme::Http | Scheme::Https) {
        return Ok(None);
    }
    let Selector { name, which } = selector;
    let mut below = format!("{RELEASES}/{name}/{}?system={}", escaped(which), escaped(expected.system));
    if expected.share != SHARE_OF_ALL {
        below.push_str(&format!("&share={}", expected.share));
    }
    let Some(answer) = fetch(cache, client, &below, RELEASE_LEN_MAX as u64)? else { return Ok(None) };
    let wrong = |why: String| Error::WrongPath(format!("{cache}: {selector}: {why}"));
    let release = Release::parse(&answer).map_err(|error| wrong(error.to_string()))?;
    let is_meant = match which {
        Which::Latest => release.is_for(expected.share),
        Which::Revision(revision) => release.revision == *revision,
        Which::Version(version) => release.version.as_ref() == Some(version),
    };
    if release.name != *name || !is_meant || !release.paths.contains_key(expected.system) {
        return Err(wrong(format!("the cache answers with {} instead", release.selector())));
    }
    if !expected.check_signatures {
        return Ok(Some(release));
    }
    if release.find_valid(expected.keys).is_none() {
        let by: Vec<_> = release.signatures.iter().map(narval_nix::Signature::key_name).collect();
        let by = if by.is_empty() { "by nobody".to_owned() } else { format!("by {}", by.join(", ")) };
        return Err(wrong(format!(
            "it is signed {by}, and no trusted key has signed it; trust the cache's key with 'narval use', or --trusted-public-key"
        )));
    }
    expected.seen.check(cache, selector, expected.system, &release, expected.allow_downgrade)?;
    Ok(Some(release))
}

/// The longest page of a list that is read.
const PAGE_LEN_MAX: u64 = 16 * 1024 * 1024;
/// The most pages of a list that are read.
const PAGES_MAX: usize = 100_000;

/// Reads the releases of a name that a cache lists, or the newest of each name: JSON objects, which nobody has signed, a page of them at a time.
/// `false` if it has none.
///
/// # Errors
/// If the cache cannot be asked.
pub fn list(
    cache: &Url,
    client: &Client,
    name: Option<&ReleaseName>,
    mut take: impl FnMut(Vec<Value>),
) -> Result<bool, Error> {
    if !matches!(cache.scheme(), Scheme::Http | Scheme::Https) {
        return Ok(false);
    }
    let below = name.map_or_else(|| RELEASES.to_owned(), |name| format!("{RELEASES}/{name}"));
    let (mut page, mut exists) = (below.clone(), false);
    for _ in 0..PAGES_MAX {
        let answer = fetch(cache, client, &page, PAGE_LEN_MAX)?;
        let Some(mut json) = answer.and_then(|answer| serde_json::from_slice::<Value>(&answer).ok()) else { break };
        let Some(rows) = json.get_mut("releases").and_then(Value::as_array_mut).map(std::mem::take) else { break };
        exists |= !rows.is_empty();
        take(rows);
        // Names, revisions and systems; anything else is no cursor of ours.
        let is_legal = |text: &&str| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._+-@".contains(&byte));
        let Some(next) = json.get("next").and_then(Value::as_str).filter(is_legal) else { break };
        page = format!("{below}?after={}", escaped(&next));
    }
    Ok(exists)
}

/// What a cache has at an address; `None` if it has nothing there.
fn fetch(cache: &Url, client: &Client, below: &str, len_max: u64) -> Result<Option<Vec<u8>>, Error> {
    let url = cache.child(below)?;
    let extra = Extra { fields: &[("accept", "application/json")], ..Extra::default() };
    let request = Request { extra, ..Request::get(&url) };
    match client.retrying(&url, || client.small_answer(&request, len_max)) {
        // Other servers, and buckets, answer so.
        Err(HttpError::Status { status: 400 | 403 | 404 | 405 | 501, .. }) => Ok(None),
        Ok(answer) => Ok(answer),
        Err(source) => Err(CacheError::Fetch { cache: cache.to_string(), what: below.to_owned(), source }.into()),
    }
}

/// In a URL, `+` may stand for a blank.
fn escaped(text: &impl ToString) -> String {
    text.to_string().replace('+', "%2B")
}
