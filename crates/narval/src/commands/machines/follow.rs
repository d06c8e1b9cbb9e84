//! `narval follow`: a machine that follows a release.

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use narval_client::{Client, Url, clock};
use narval_install::follow::{FollowOptions, Follower, Patience, Round, Window, state_folder};
use narval_install::names::machine_system;
use narval_install::releases::{Expected, SeenReleases, find_in};
use narval_install::{Error, Options, human_bytes};
use narval_keep::MachineName;
use narval_nix::release::{ReleaseSystem, Selector, share_of};
use narval_push::watch::Stop;
use sd_notify::NotifyState;
use serde_json::{Value, json};

use super::report::{ReportOptions, Reports};
use crate::args::client::{ClientArgs, DeltaArgs};
use crate::args::push::TokenArgs;
use crate::server::notify_systemd;
use crate::ui::failure::Failure;
use crate::ui::output::{out, paths};
use crate::ui::signals;
use crate::ui::{json, log};
use crate::values::time::parse_time_in;

/// Where Nix has the profiles of a machine.
const PROFILES_OF_NIX: &str = "/nix/var/nix/profiles";

/// Follow a release: switch to new revisions, back if they fail
///
/// Asks the caches for the newest revision of a release. A new one is fetched, verified and registered, becomes a new generation of the profile, and is
/// switched to and checked. If a command fails or takes too long, if the caches are out of reach afterwards, or if this program or the machine ends in the
/// middle, the generation before is switched to again. A revision that failed is not tried again. SIGTERM and SIGINT stop it: an attempt under
/// way goes back first.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The release, such as @web
    #[arg(value_name = "@NAME")]
    release: Selector,
    /// Profile whose generations are the revisions. For one below /nix/var/nix/profiles, the store is that of the machine (`--store auto`)
    #[arg(long, value_name = "DIR")]
    profile: PathBuf,
    /// Command that switches to a path, for /bin/sh. It starts in the path; NARVAL_RELEASE, NARVAL_REVISION, NARVAL_PATH and NARVAL_PROFILE are set
    #[arg(long, value_name = "COMMAND")]
    switch: Option<String>,
    /// How long the switch may take
    #[arg(long, value_name = "TIME", default_value = "15m", value_parser = parse_limit)]
    switch_timeout: Duration,
    /// Command that succeeds when the machine works. After the switch, it is run until it does
    #[arg(long, value_name = "COMMAND")]
    check: Option<String>,
    /// How long the check may fail
    #[arg(long, value_name = "TIME", default_value = "1m", value_parser = parse_limit)]
    check_timeout: Duration,
    /// How long the caches may be out of reach after a switch, until the machine goes back
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = parse_limit)]
    network_timeout: Duration,
    /// Time between two looks at the release
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = parse_limit)]
    every: Duration,
    /// Add a random time up to this to each --every, so that many machines do not switch at once
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = parse_jitter)]
    jitter: Duration,
    /// Switch only on these days, or at these times of UTC: 'Mon-Fri 02:00-05:00', 'Sat,Sun' or '22:00-04:00'. Repeatable
    #[arg(long, value_name = "WINDOW")]
    on: Vec<Window>,
    /// Look once, and exit: with 1 if the newest revision does not run
    #[arg(long)]
    once: bool,
    /// Show what would be done, and exit
    #[arg(long)]
    dry_run: bool,
    /// Try the newest revision once more if it failed before
    #[arg(long)]
    retry: bool,
    /// System whose paths are used [default: this machine's]
    #[arg(long, value_name = "SYSTEM")]
    system: Option<ReleaseSystem>,
    /// Report to the cache which revision runs, and what failed: 'narval machines' and the cache's page show it. Needs a token with the scope `report`
    #[arg(long, help_heading = "Reports")]
    report: bool,
    /// File with the token to report with [default: what netrc has for the cache]
    #[arg(long, value_name = "FILE", env = "NARVAL_TOKEN_FILE", hide_env_values = true, help_heading = "Reports")]
    token_file: Option<PathBuf>,
    /// Name that this machine reports under [default: that of its host]
    #[arg(long, value_name = "NAME", help_heading = "Reports", value_parser = parse_machine)]
    name: Option<MachineName>,
    #[command(flatten)]
    client: ClientArgs,
    #[command(flatten)]
    deltas: DeltaArgs,
}

const EXAMPLES: &str = "\
Examples:
  A NixOS machine:
  narval follow @web --from https://cache.example.org \\
    --profile /nix/var/nix/profiles/system \\
    --switch 'bin/switch-to-configuration switch' \\
    --check 'curl -sf localhost/health' --every 1m

  The same, seen at the cache by 'narval machines':
  narval follow @web --from https://cache.example.org \\
    --profile /nix/var/nix/profiles/system --report --token-file report.token

  A service on any other system, at night:
  narval follow @api --from https://cache.example.org --store /opt/store \\
    --profile /opt/api --switch 'systemctl restart api' --on 02:00-05:00

Exit codes: 0 done or stopped, 1 failed or not possible, 2 wrong usage;
with --once also 3 not in any cache, 4 verification failed, 5 network,
6 no space, 7 locked, 130 interrupted.";

fn parse_limit(text: &str) -> Result<Duration, String> {
    parse_time_in(text, &(Duration::from_millis(100)..=Duration::from_secs(7 * 86_400)))
}

impl Args {
    /// The name of this machine: that of its host, unless another one is given.
    fn name_of_machine(&self) -> String {
        let host = || rustix::system::uname().nodename().to_string_lossy().into_owned();
        self.name.as_ref().map_or_else(host, ToString::to_string)
    }

    /// What is reported, if anything is.
    fn reports(&self) -> Result<Option<ReportOptions>, Failure> {
        if !self.report {
            return Ok(None);
        }
        let name = self.name_of_machine();
        let unfit = |error| Failure::usage(format!("'{name}' is {error}; give another name with --name NAME"));
        Ok(Some(ReportOptions {
            name: name.parse().map_err(unfit)?,
            token: TokenArgs { token_file: self.token_file.clone(), requests: self.client.caches.requests.clone() },
            release: self.release.to_string(),
            every: self.every + self.jitter,
            // Going back switches, too.
            attempt: self.switch_timeout * 2 + self.check_timeout + self.network_timeout,
            once: self.once,
        }))
    }
}

fn parse_machine(text: &str) -> Result<MachineName, String> {
    text.parse().map_err(|error: narval_keep::InvalidMachineName| error.to_string())
}

fn parse_jitter(text: &str) -> Result<Duration, String> {
    parse_time_in(text, &(Duration::ZERO..=Duration::from_secs(7 * 86_400)))
}

/// What is needed to ask and to fetch.
struct Source {
    selector: Selector,
    system: ReleaseSystem,
    options: Options,
    client: Arc<Client>,
    /// Makes one attempt at each request.
    once: Arc<Client>,
    seen: SeenReleases,
    allow_downgrade: bool,
    /// Where this machine is among all that follow the release.
    share: u8,
    /// The cache that has the release.
    cache: Mutex<Option<Url>>,
}

/// Runs `narval follow`.
///
/// # Errors
/// If another process has the profile, or it cannot be used; with --once, if the newest revision does not run.
pub fn run(mut args: Args) -> Result<(), Failure> {
    if args.profile.starts_with(PROFILES_OF_NIX) {
        args.client.store.store.get_or_insert_with(|| "auto".to_owned());
    }
    if args.dry_run {
        args.client.output.start_log();
    } else {
        log::start(None)?;
    }
    let destination = args.client.store.destination()?;
    let lock_timeout = destination.config().lock_timeout;
    let system = args.system.clone().map_or_else(|| machine_system().parse().map_err(Failure::usage), Ok)?;
    let options = args.client.caches.options(None, true)?;
    let source = Source {
        selector: args.release.clone(),
        system: system.clone(),
        options: Options { deltas: args.deltas.chosen(), ..options },
        client: args.client.caches.client()?,
        once: {
            let mut caches = args.client.caches.clone();
            (caches.requests.attempts, caches.requests.timeout) =
                (1, caches.requests.timeout.min(args.network_timeout));
            caches.client()?
        },
        seen: SeenReleases::at(state_folder(&args.profile, lock_timeout)?, lock_timeout),
        allow_downgrade: args.client.caches.allow_downgrade,
        share: share_of(&args.name_of_machine(), &args.release.name),
        cache: Mutex::new(None),
    };
    let follow = FollowOptions {
        selector: args.release.clone(),
        system,
        profile: args.profile.clone(),
        switch: args.switch.clone(),
        switch_timeout: args.switch_timeout,
        check: args.check.clone(),
        check_timeout: args.check_timeout,
        network_timeout: args.network_timeout,
        retry: args.retry,
    };
    let stop = Stop::default();
    let follower = Follower::open(follow, &destination, &stop)?;
    if args.dry_run {
        let round = follower.plan(&|patience| source.find(patience), (&source.options, &source.client))?;
        show(&args, &round);
        return Ok(());
    }
    // Going back takes as long as the user's command.
    let is_switching = follower.is_switching();
    signals::stop_on_signal(&stop, "what is half done is finished by the next start", move || {
        is_switching.load(Ordering::Relaxed)
    })?;
    let reports = args.reports()?.map(|options| Reports::start(options, &source.cache)).transpose()?;
    let switched = rounds(&args, &source, follower, &stop, reports.as_ref());
    notify_systemd(&[NotifyState::Stopping]);
    // What was reported last is sent.
    drop(reports);
    let switched = switched?;
    if args.client.output.json {
        json::summary(json!({"switched": switched}));
    }
    Ok(())
}

/// Follows the release until it is stopped; returns how often it has switched.
fn rounds<'a>(
    args: &'a Args,
    source: &'a Source,
    mut follower: Follower<'a>,
    stop: &Stop,
    reports: Option<&'a Reports<'a>>,
) -> Result<u64, Failure> {
    notify_systemd(&[NotifyState::Ready]);
    if let Some(reports) = reports {
        follower.on_trying(|trying, running| reports.trying(trying, running));
    }
    let (mut last, mut switched) = (None, 0);
    loop {
        // Going back does not wait for a window.
        let result = follower.recover().and_then(|_| {
            if !args.once && !args.on.is_empty() && !args.on.iter().any(|window| window.has(clock::now())) {
                return Ok(None);
            }
            follower.round(&|patience| source.find(patience), (&source.options, &source.client)).map(Some)
        });
        let is_last = args.once || stop.is_stopped();
        if let Some(reports) = reports {
            reports.round(&follower, result.as_ref().err(), is_last);
        }
        if stop.is_stopped() && !matches!(result, Ok(Some(Round::Switched { .. } | Round::WentBack(_)))) {
            if args.once {
                return Err(result.err().unwrap_or(Error::Interrupted).into());
            }
            tracing::info!("stopped");
            return Ok(switched);
        }
        switched += u64::from(matches!(result, Ok(Some(Round::Switched { .. }))));
        let line = match &result {
            Ok(None) => "waiting for the time to switch".to_owned(),
            Ok(Some(round)) => line(args, round),
            Err(error) => error.to_string(),
        };
        // What does not change is said once.
        if last.as_ref() != Some(&line) {
            match &result {
                Ok(Some(Round::WentBack(_) | Round::Refused(_))) | Err(_) => tracing::error!("{line}"),
                _ => tracing::info!("{line}"),
            }
            if args.client.output.json
                && let Ok(Some(round)) = &result
            {
                json::event("round", as_json(round));
            }
        }
        notify_systemd(&[NotifyState::Status(&line)]);
        last = Some(line.clone());
        if args.once {
            return match result {
                Ok(Some(Round::WentBack(_) | Round::Refused(_))) => Err(Failure::runtime(line)),
                Ok(_) => Ok(switched),
                Err(error) => Err(error.into()),
            };
        }
        stop.pause(args.every + args.jitter.mul_f64(random()));
        if stop.is_stopped() {
            if let Some(reports) = reports {
                reports.round(&follower, None, true);
            }
            tracing::info!("stopped");
            return Ok(switched);
        }
    }
}

impl Source {
    fn find(&self, patience: Patience) -> Result<narval_install::releases::FoundRelease, Error> {
        let client = if patience == Patience::Once { &self.once } else { &self.client };
        let expected = Expected {
            system: &self.system,
            keys: &self.options.keys,
            check_signatures: self.options.check_signatures,
            seen: &self.seen,
            allow_downgrade: self.allow_downgrade,
            share: self.share,
        };
        let found = find_in(&self.options.caches, client, &self.selector, &expected)?;
        *self.cache.lock().unwrap_or_else(PoisonError::into_inner) = Some(found.cache.clone());
        Ok(found)
    }
}

/// A number from 0 to 1, for jitter.
fn random() -> f64 {
    use std::hash::{BuildHasher, RandomState};
    f64::from(u32::try_from(RandomState::new().hash_one(()) >> 32).unwrap_or(0)) / f64::from(u32::MAX)
}

fn line(args: &Args, round: &Round) -> String {
    let release = &args.release;
    match round {
        Round::Unchanged => format!("the newest revision of {release} runs"),
        Round::Same(running) => {
            format!("revision {} of {release} is what runs already", running.revision.unwrap_or(0))
        }
        Round::Switched { to, .. } => {
            format!("revision {} of {release} runs: generation {}", to.revision.unwrap_or(0), to.generation)
        }
        Round::WentBack(failed) => {
            format!(
                "revision {} of {release} failed, and the generation before runs again: {}",
                failed.revision, failed.why
            )
        }
        Round::Refused(failed) => format!(
            "revision {} of {release} failed before ({}), and is not tried again; --retry does that",
            failed.revision, failed.why
        ),
        Round::InstallItem { revision, path, missing, download } => format!(
            "revision {revision} of {release} is new: {path}; {} to install, {} to download",
            paths(*missing),
            human_bytes(*download)
        ),
    }
}

fn show(args: &Args, round: &Round) {
    if args.client.output.json {
        json::summary(as_json(round));
    } else {
        out!("{}", line(args, round));
    }
}

fn as_json(round: &Round) -> Value {
    let shown = |path: &Path| path.display().to_string();
    match round {
        Round::Unchanged => json!({"outcome": "unchanged"}),
        Round::Same(running) => json!({"outcome": "same", "revision": running.revision, "path": shown(&running.path)}),
        Round::Switched { from, to } => json!({
            "outcome": "switched", "revision": to.revision, "generation": to.generation, "path": shown(&to.path),
            "from": from.as_ref().map(|from| json!({"revision": from.revision, "generation": from.generation, "path": shown(&from.path)})),
        }),
        Round::WentBack(failed) => json!({"outcome": "wentBack", "revision": failed.revision, "why": failed.why}),
        Round::Refused(failed) => json!({"outcome": "refused", "revision": failed.revision, "why": failed.why}),
        Round::InstallItem { revision, path, missing, download } => json!({
            "outcome": "planned", "dryRun": true, "revision": revision, "path": path.base_name(), "missing": missing, "download": download,
        }),
    }
}
