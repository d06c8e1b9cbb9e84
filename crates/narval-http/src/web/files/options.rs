use std::path::PathBuf;
use std::time::Duration;

use globset::{Glob, GlobMatcher};
use http::HeaderValue;
use thiserror::Error;

/// How a [`Site`](super::Site) serves its folder.
#[derive(Clone, Debug)]
pub struct SiteOptions {
    /// Files that answer for a folder, the first that is there.
    pub index: Vec<String>,
    /// List folders that have no index file.
    pub listing: bool,
    /// Serve names that start with a dot. `.well-known` is served in any case (RFC 8615).
    pub hidden: bool,
    /// Serve `FILE.zst`, `FILE.br` and `FILE.gz` in the place of `FILE` to clients that accept them.
    pub sidecars: bool,
    /// A folder of its own for those, with the same tree below it; where there is none they are looked for beside the files.
    pub sidecar_folder: Option<PathBuf>,
    /// The file that answers for pages that are not there, with status 200: the page of a single-page application.
    pub fallback: Option<String>,
    /// The file that is the body of a 404.
    pub not_found: Option<String>,
    /// `Cache-Control` by path; the first rule that fits.
    pub cache_control: Vec<CacheRule>,
    /// How long what was found out about a file is believed before the file is looked at again. A file that was replaced
    /// meanwhile is served as it was, whole. Zero: every request looks.
    pub believed: Duration,
    /// Most memory for contents of small files, in bytes.
    pub memory_bytes_max: u64,
    /// Most files that are held open.
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
            believed: Duration::from_secs(1),
            memory_bytes_max: 64 << 20,
            open_files_max: 1024,
        }
    }
}

/// A `Cache-Control` value for the paths that fit a glob.
#[derive(Clone, Debug)]
pub struct CacheRule {
    glob: GlobMatcher,
    value: HeaderValue,
}

/// A rule that can't be read.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RuleError {
    /// It is not of the form `GLOB=VALUE`.
    #[error("the rule '{0}' has no '=': write GLOB=VALUE, such as 'assets/**=public, max-age=31536000, immutable'")]
    NoValue(String),
    /// The glob is malformed.
    #[error("the glob '{glob}' can't be read: {reason}")]
    Glob {
        /// The glob.
        glob: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The value can't stand in a field.
    #[error("'{0}' can't be a Cache-Control value")]
    Value(String),
}

impl CacheRule {
    /// Reads `GLOB=VALUE`. The glob is matched against the path below the root, without a leading slash.
    ///
    /// # Errors
    /// Where it can't be read.
    ///
    /// ```
    /// use narval_http::files::CacheRule;
    ///
    /// let rule = CacheRule::parse("assets/**=public, max-age=31536000, immutable")?;
    /// # Ok::<(), narval_http::files::RuleError>(())
    /// ```
    pub fn parse(text: &str) -> Result<Self, RuleError> {
        let (glob, value) = text.split_once('=').ok_or_else(|| RuleError::NoValue(text.into()))?;
        let glob = Glob::new(glob.trim_start_matches('/'))
            .map_err(|error| RuleError::Glob { glob: glob.into(), reason: error.kind().to_string() })?;
        let value = HeaderValue::try_from(value.trim()).map_err(|_| RuleError::Value(value.into()))?;
        Ok(Self { glob: glob.compile_matcher(), value })
    }

    /// The value, where the path fits.
    pub(super) fn value_for(&self, path: &std::path::Path) -> Option<&HeaderValue> {
        self.glob.is_match(path).then_some(&self.value)
    }
}
