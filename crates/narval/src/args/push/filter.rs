//! Which paths the commands that push take.

use std::sync::Arc;
use std::time::Duration;

use narval_client::{ClientOptions, RetryPolicy, Url};
use narval_nix::StoreDir;
use narval_push::{Excluded, Filter, OtherCaches, Selection};

use crate::args::client::{RequestArgs, SourceCacheArgs};
use crate::ui::failure::Failure;
use crate::values::size::parse_size;

/// How long a question that something waits for may be without data.
const STALL: Duration = Duration::from_secs(4);

/// Which paths are pushed.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Which paths")]
pub(crate) struct FilterArgs {
    /// Also push what the other caches of this machine (NARVAL_CACHES, nix.conf) have
    ///
    /// By default they are asked for each path that the cache lacks. A folder, and a cache that refuses paths whose references it lacks, get
    /// complete closures anyway.
    #[arg(long)]
    all: bool,
    /// Do not push what the paths refer to
    #[arg(long)]
    no_closure: bool,
    /// Only push paths that were built here, not those that were substituted or added
    #[arg(long, visible_alias = "built-here")]
    only_built: bool,
    /// Skip paths whose name (without the hash) matches: a glob such as `*-source`, or a regular expression between slashes such as
    /// `/-(doc|man)$/`. Repeatable
    #[arg(long, value_name = "GLOB|/REGEX/")]
    exclude: Vec<String>,
    /// Skip paths whose NAR is smaller
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    min_size: Option<u64>,
    /// Skip paths whose NAR is larger
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    max_size: Option<u64>,
    /// Skip paths signed by the key with this name, even as references of other paths: clients use their cache anyway. Repeatable
    #[arg(long, value_name = "KEY-NAME")]
    skip_signed_by: Vec<String>,
    /// Also push derivations (.drv files)
    #[arg(long)]
    pub(crate) derivations: bool,
    /// Only say what would be pushed, and its size
    #[arg(long)]
    pub(crate) dry_run: bool,
}

impl FilterArgs {
    /// What is pushed to these caches.
    ///
    /// # Errors
    /// For an invalid pattern, or a file with credentials that cannot be used.
    pub(crate) fn selection(
        &self,
        to: &[Url],
        requests: &RequestArgs,
        store_dir: &StoreDir,
    ) -> Result<Selection, Failure> {
        let sizes = self.min_size.unwrap_or(0)..=self.max_size.unwrap_or(u64::MAX);
        if sizes.is_empty() {
            return Err(Failure::usage("--min-size is larger than --max-size"));
        }
        let filter = Filter {
            excluded: Excluded::parse(&self.exclude)?,
            only_built: self.only_built,
            derivations: self.derivations,
            sizes,
            signed_by: self.skip_signed_by.clone(),
        };
        let other_caches = if self.all { None } else { other_caches(to, requests, store_dir)? };
        Ok(Selection { filter, no_closure: self.no_closure, other_caches })
    }
}

/// The caches of this machine that are not pushed to.
fn other_caches(to: &[Url], requests: &RequestArgs, store_dir: &StoreDir) -> Result<Option<OtherCaches>, Failure> {
    let upstreams = SourceCacheArgs::of_environment(requests.clone());
    let same = |a: &Url, b: &Url| a.to_string().trim_end_matches('/') == b.to_string().trim_end_matches('/');
    let others: Vec<Url> =
        upstreams.urls_if_any()?.into_iter().filter(|url| !to.iter().any(|to| same(url, to))).collect();
    if others.is_empty() {
        return Ok(None);
    }
    let client = Arc::new(narval_s3::client(quick(requests.options(&others)?)));
    Ok(Some(OtherCaches::new(others, client, upstreams.keys()?, store_dir.clone())))
}

/// For questions that something waits for: one attempt, and no long waits.
pub(crate) fn quick(options: ClientOptions) -> ClientOptions {
    let retry = RetryPolicy { attempts: 1, ..RetryPolicy::default() };
    ClientOptions { retry, connect_timeout: STALL, stall_timeout: STALL, ..options }
}
