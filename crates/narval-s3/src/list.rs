//! Lists of the objects of a bucket, page by page.

use std::collections::HashSet;

use jiff::Timestamp;
use narval_client::{Client, Extra, HttpError, Request, Url};

use crate::xml::{element, elements};

/// The maximum size of one page: 1000 entries.
const PAGE_LEN_MAX: u64 = 4 << 20;

/// An object in a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Object {
    /// Relative to the prefix.
    pub key: String,
    /// In bytes.
    pub len: u64,
    /// When it was written, in seconds since 1970.
    pub modified: Option<u64>,
}

/// What to list.
pub(super) struct Listing<'a> {
    /// The prefix of all keys, which is left out.
    pub(super) root: &'a str,
    /// The start of the keys, after the root.
    pub(super) prefix: &'a str,
    /// Whether objects in further folders are left out.
    pub(super) is_flat: bool,
    /// The maximum number of requests.
    pub(super) pages_max: usize,
}

impl Listing<'_> {
    /// Visits objects in the order of their keys. Returns the folders of a flat list; `None` if it has more pages than allowed.
    pub(super) fn read(
        &self,
        page: impl Fn(&[(&str, &str)]) -> Result<String, HttpError>,
        visit: &mut dyn FnMut(Object),
    ) -> Result<Option<Vec<String>>, HttpError> {
        let (full, mut after, mut folders) = (format!("{}{}", self.root, self.prefix), None::<String>, Vec::new());
        for _ in 0..self.pages_max {
            let mut query = vec![("list-type", "2"), ("prefix", full.as_str())];
            if let Some(after) = &after {
                query.push(("continuation-token", after));
            }
            if self.is_flat {
                query.push(("delimiter", "/"));
            }
            let page = page(&query)?;
            for entry in elements(&page, "Contents") {
                let key = element(entry, "Key");
                if let Some(key) = key.as_deref().and_then(|key| key.strip_prefix(self.root)) {
                    let len = element(entry, "Size").and_then(|size| size.parse().ok()).unwrap_or(0);
                    visit(Object { key: key.to_owned(), len, modified: time(entry, "LastModified") });
                }
            }
            for entry in elements(&page, "CommonPrefixes") {
                let folder = element(entry, "Prefix");
                let folder = folder.as_deref().and_then(|key| key.strip_prefix(self.root)?.strip_suffix('/'));
                folders.extend(folder.map(str::to_owned));
            }
            after = element(&page, "NextContinuationToken").filter(|token| !token.is_empty());
            if after.is_none() || element(&page, "IsTruncated").as_deref() == Some("false") {
                return Ok(Some(folders));
            }
        }
        Ok(None)
    }
}

/// Which of these keys exist directly below an `s3` address, found in a list of all of them; `None` if the list has more pages
/// than `pages_max`, or if the store refuses to list (`s3:ListBucket`).
///
/// # Errors
/// If the store fails.
pub fn find_listed(
    client: &Client,
    url: &Url,
    keys: &HashSet<String>,
    pages_max: usize,
) -> Result<Option<HashSet<String>>, HttpError> {
    let below = url.child("x")?;
    let (_, root) = below.bucket_and_key();
    let root = root.strip_suffix('x').unwrap_or_default();
    let (listing, mut found) = (Listing { root, prefix: "", is_flat: true, pages_max }, HashSet::new());
    let listed = listing.read(|query| page_of(client, url, query), &mut |object| {
        if keys.contains(&object.key) {
            found.insert(object.key);
        }
    });
    match listed {
        Ok(folders) => Ok(folders.map(|_| found)),
        Err(error) if error.is_retryable() => Err(error),
        Err(error) => {
            tracing::debug!("{url} cannot be listed: {error}");
            Ok(None)
        }
    }
}

/// Requests a list, with these parameters, of the bucket of an `s3` address.
pub(super) fn page_of(client: &Client, url: &Url, query: &[(&str, &str)]) -> Result<String, HttpError> {
    // The bucket itself, with the parameters that say how to reach it.
    let url = url.bucket();
    // In the order in which they are signed.
    let mut query = query.to_vec();
    query.sort_unstable();
    let request = Request { extra: Extra { query: &query, ..Extra::default() }, ..Request::get(&url) };
    let page = client.retrying(&url, || {
        let response = client.send(&request)?;
        match (response.head.status, response.head.retry_after()) {
            (200, _) => response.body.read_all(PAGE_LEN_MAX),
            (status, retry_after) => Err(HttpError::Status { status, retry_after }),
        }
    })?;
    Ok(String::from_utf8_lossy(&page).into_owned())
}

pub(super) fn time(entry: &str, name: &str) -> Option<u64> {
    let time: Timestamp = element(entry, name)?.parse().ok()?;
    u64::try_from(time.as_second()).ok()
}
