use std::path::PathBuf;
use std::time::Duration;

use globset::{Glob, GlobMatcher};
use http::HeaderValue;
use thiserror::Error;

/// How a [`Site`](super::Site) serves its folder.
#[derive(Clone, Debug)]
pub struct SiteOptions {
    /// Index files: the first that exists is served for a folder.
    pub index: Vec<String>,
    /// List folders that have no index file.
    pub listing: bool,
    /// Serve names that start with a dot. `.well-known` is served in any case (RFC 8615).
    pub hidden: bool,
    /// Serve `FILE.zst`, `FILE.br` and `FILE.gz` instead of `FILE` to clients that accept them.
    pub sidecars: bool,
    /// A separate folder for these files, with the same tree below it; `None` if they are beside the originals.
    pub sidecar_folder: Option<PathBuf>,
    /// The file that is served with status 200 for missing pages: the page of a single-page application.
    pub fallback: Option<String>,
    /// The file that is the body of a 404.
    pub not_found: Option<String>,
    /// `Cache-Control` by path; the first matching rule applies.
    pub cache_control: Vec<CacheRule>,
    /// The files that browsers keep as dictionaries for their later versions, and that are sent as deltas to browsers that
    /// have such a dictionary (RFC 9842), named by [`delta_ending`](super::delta_ending).
    pub dictionaries: Vec<PathGlob>,
    /// Whether all TCP connections are encrypted. Others get deltas only on this machine.
    pub is_secure: bool,
    /// How long a file is served before its name is checked again. If it was replaced meanwhile, the old contents are
    /// served, whole. Zero checks on every request.
    pub revalidate_after: Duration,
    /// The most memory for contents of small files, in bytes.
    pub memory_bytes_max: u64,
    /// The most files that are kept open.
    pub open_files_max: u64,
}

impl Default for SiteOptions {
    fn default() -> Self {
        Self {
            index: vec!["index.html".into()],
            listing: false,
            hidden: false,
            sidecars: true,
            sidecar_folder: None,
            fallback: None,
            not_found: None,
            cache_control: Vec::new(),
            dictionaries: Vec::new(),
            is_secure: false,
            revalidate_after: Duration::from_secs(1),
            memory_bytes_max: 64 << 20,
            open_files_max: 1024,
        }
    }
}

/// A `Cache-Control` value for the paths that match a glob.
#[derive(Clone, Debug)]
pub struct CacheRule {
    glob: GlobMatcher,
    value: HeaderValue,
}

/// An invalid rule.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RuleError {
    /// It is not of the form `GLOB=VALUE`.
    #[error("the rule '{0}' has no '=': write GLOB=VALUE, such as 'assets/**=public, max-age=31536000, immutable'")]
    NoValue(String),
    /// The glob is malformed.
    #[error("the glob '{glob}' is invalid: {reason}")]
    Glob {
        /// The glob.
        glob: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The value is not a valid field value.
    #[error("'{0}' is not a valid Cache-Control value")]
    Value(String),
}

impl CacheRule {
    /// Parses `GLOB=VALUE`. The glob is matched against the path below the root, without a leading slash.
    ///
    /// # Errors
    /// The rule is invalid.
    ///
    /// ```
    /// use narval_http::files::CacheRule;
    ///
    /// let rule = CacheRule::parse("assets/**=public, max-age=31536000, immutable")?;
    /// # Ok::<(), narval_http::files::RuleError>(())
    /// ```
    pub fn parse(text: &str) -> Result<Self, RuleError> {
        let (glob, value) = text.split_once('=').ok_or_else(|| RuleError::NoValue(text.into()))?;
        let PathGlob(glob) = PathGlob::parse(glob)?;
        let value = HeaderValue::try_from(value.trim()).map_err(|_| RuleError::Value(value.into()))?;
        Ok(Self { glob, value })
    }

    /// The value, if the path matches.
    pub(super) fn value_for(&self, path: &std::path::Path) -> Option<&HeaderValue> {
        self.glob.is_match(path).then_some(&self.value)
    }
}

/// A glob that is matched against the path below the root, without a leading slash.
#[derive(Clone, Debug)]
pub struct PathGlob(GlobMatcher);

impl PathGlob {
    /// Parses a glob.
    ///
    /// # Errors
    /// The glob is malformed.
    pub fn parse(text: &str) -> Result<Self, RuleError> {
        let glob = Glob::new(text.trim_start_matches('/'))
            .map_err(|error| RuleError::Glob { glob: text.into(), reason: error.kind().to_string() })?;
        Ok(Self(glob.compile_matcher()))
    }

    pub(super) fn matches(&self, path: &std::path::Path) -> bool {
        self.0.is_match(path)
    }
}
