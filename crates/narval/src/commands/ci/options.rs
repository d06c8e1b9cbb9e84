//! The options of `narval ci`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use narval_client::Url;

use super::identity::Identity;
use crate::args::client::parse_cache;
use crate::args::push::{FilterArgs, SendArgs, SourceArgs};
use crate::args::released::ReleaseArgs;
use crate::ui::failure::Failure;
use crate::ui::output_args::OutputArgs;
use crate::values::time::parse_time_in;

/// The longest time that a job may wait for its pushes.
const DEADLINE_MAX: Duration = Duration::from_secs(3600);

/// Run a CI job with a cache: read it, and push what is built
///
/// The command gets the cache as a substituter, through a server on loopback that answers for it while it hangs or is down. What becomes valid in
/// the store is pushed while the command runs; at its end, only the rest is waited for, and no longer than --deadline. The exit code is that of the
/// command, whatever happens to the cache.
///
/// A job needs no secret: the identity token of its platform is exchanged for a short-lived one of the cache. A job without any, such as that of a
/// fork's pull request, only reads.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// For runners that separate steps: `start` sets it up for the later steps, `end` waits for the pushes
    #[arg(value_name = "STEP")]
    pub(super) step: Option<Step>,
    /// The cache: an http://, https:// or s3:// URL
    #[arg(long, value_name = "URL")]
    pub(super) to: Option<String>,
    /// Where the platform's identity token comes from: `auto`, `none`, `file:PATH`, `env:NAME` or `command:COMMAND`
    ///
    /// `auto` knows GitHub, Forgejo, Gitea, Buildkite, CircleCI, and the variables NARVAL_ID_TOKEN (GitLab's `id_tokens`) and NARVAL_ID_TOKEN_FILE (a projected
    /// token of Kubernetes).
    #[arg(long, value_name = "SOURCE", default_value = "auto")]
    pub(super) identity: Identity,
    /// Audience of the identity token [default: the scheme, host and port of the cache]
    #[arg(long, value_name = "TEXT")]
    pub(super) audience: Option<String>,
    /// Public key of the cache's signatures [default: those that it publishes]. Repeatable
    #[arg(long, value_name = "NAME:KEY")]
    pub(super) public_key: Vec<String>,
    /// How long the end of the job may wait for the pushes
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = |text: &str| parse_time_in(text, &(Duration::ZERO..=DEADLINE_MAX)))]
    pub(super) deadline: Duration,
    /// Only read
    #[arg(long, conflicts_with = "release")]
    pub(super) no_push: bool,
    /// Also push what was substituted or added: --only-built is the default here
    #[arg(long, conflicts_with = "only_built", help_heading = "Which paths")]
    pub(super) substituted: bool,
    #[command(flatten)]
    pub(super) filter: FilterArgs,
    #[command(flatten)]
    pub(super) release: ReleaseArgs,
    /// Path that the release consists of. Repeatable; one for each output [default: ./result, and ./result-OUTPUT]
    #[arg(long, value_name = "PATH", requires = "release", help_heading = "Release")]
    pub(super) release_path: Vec<PathBuf>,
    /// Write the figures of the summary to this file as metrics, for GitLab's `artifacts:reports:metrics`
    #[arg(long, value_name = "FILE", env = "NARVAL_CI_METRICS", hide_env_values = true, help_heading = "Output")]
    pub(super) metrics: Option<PathBuf>,
    /// Folder of `start` and `end` [default: $RUNNER_TEMP/narval-ci, else narval-ci-UID in the folder for temporary files]
    #[arg(long, value_name = "DIR")]
    pub(super) state: Option<PathBuf>,
    #[command(flatten)]
    pub(super) how: SendArgs,
    #[command(flatten)]
    pub(super) store: SourceArgs,
    #[command(flatten)]
    pub(super) output: OutputArgs,
    /// The command to run, after `--`
    #[arg(last = true, value_name = "COMMAND")]
    pub(super) command: Vec<OsString>,
}

/// A step of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Step {
    /// Sets the cache up for the steps after it.
    Start,
    /// Waits for the pushes.
    End,
    /// What `start` leaves running.
    #[value(hide = true)]
    Hold,
}

const EXAMPLES: &str = "\
Examples:
  narval ci --to https://cache.example.org -- nix build .#app
  narval ci --to https://cache.example.org --token-file token -- make
  narval ci --to https://cache.example.org --release app -- nix build .#app
  narval ci start --to https://cache.example.org
  narval ci end

docs/ci.md has whole jobs of GitHub, GitLab and others.";

impl Args {
    /// The address of the cache.
    pub(super) fn cache(&self) -> Result<Url, Failure> {
        parse_cache(self.to.as_deref().ok_or_else(|| Failure::usage("give the cache with --to URL"))?)
    }

    /// The audience of identity tokens.
    pub(super) fn audience(&self, to: &Url) -> String {
        self.audience.clone().unwrap_or_else(|| to.origin().to_string())
    }
}
