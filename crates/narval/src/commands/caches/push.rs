//! `narval push`: copies paths of a store to writable caches.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use narval_client::Url;
use narval_install::{Closure, Destination, Error, Progress, Wanted};
use narval_nix::{PathInfo, Release, StorePath};
use narval_push::{Missing, Pushed, Selection, Target};
use serde_json::json;

use crate::args::client::{SourceCacheArgs, human_bytes};
use crate::args::paths::{closure_in, parse_wanted};
use crate::args::push::{FilterArgs, PushArgs, SourceArgs, read_paths};
use crate::args::released::ReleaseArgs;
use crate::args::releases::expand_releases;
use crate::ui::failure::Failure;
use crate::ui::json;
use crate::ui::lacking::show_lacking;
use crate::ui::output::{note, paths};
use crate::ui::output_args::OutputArgs;
use crate::ui::progress::{Display, PUSH};
use crate::ui::signals;

/// Push closures of a store to binary caches
///
/// Sends the paths that a cache does not have: the largest NARs first, compressed while they are sent. Each path
/// becomes visible only after its references. Works with every cache that `nix copy --to` can write to. A Narval server
/// needs only one request to find out which paths are missing, and one to publish all of them. What the other caches of
/// this machine have is left out. Pushes from /nix/store, unless --store names another store.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Store paths: in full, HASH-NAME, only the hash part, where they are installed, or symlinks to these
    #[arg(required_unless_present = "stdin", value_name = "PATH")]
    paths: Vec<String>,
    /// Also read paths from standard input: one a line, as `nix path-info` prints them, or each ended by NUL
    #[arg(long)]
    stdin: bool,
    #[command(flatten)]
    to: PushArgs,
    #[command(flatten)]
    filter: FilterArgs,
    #[command(flatten)]
    release: ReleaseArgs,
    /// Fail with 4 if pushed paths have no signature of the cache although it signs
    #[arg(long, help_heading = "Caches")]
    require_signed: bool,
    #[command(flatten)]
    store: SourceArgs,
    #[command(flatten)]
    output: OutputArgs,
}

const EXAMPLES: &str = "\
Examples:
  narval push ./result --to http://cache:5000 --token-file token
  narval push ./result --to file:///srv/cache --sign-key cache.sec
  narval push ./result --release api@1.4.2 --to https://cache:5000
  narval push ./result --to 's3://cache?region=eu-west-1' --sign-key cache.sec
  narval push ./result --to http://cache:5000 --only-built --dry-run
  nix path-info --recursive ./result | narval push --stdin --no-closure \
    --exclude '*-source' --max-size 1G --to http://cache:5000

Exit codes: 0 done, 1 failed, 2 wrong usage, 3 not in the store,
4 verification failed, 5 network or credentials, 6 no space, 7 locked,
130 interrupted.";

/// Runs `narval push`.
///
/// # Errors
/// If a path is not valid, or a cache cannot be reached or denies access. The other caches are pushed to
/// nevertheless.
pub fn run(args: Args) -> Result<(), Failure> {
    args.output.start_log();
    let from = Destination::new(args.store.config()?);
    let (urls, client, options) = (args.to.urls()?, args.to.client()?, args.to.how.options()?);
    // Of the caches that this machine uses: those of --to may not have it yet.
    let requests = &args.to.how.token.requests;
    let mut given = args.paths.clone();
    if args.stdin {
        given.extend(read_paths(std::io::stdin().lock())?);
        if given.is_empty() {
            note!("narval push: --stdin: there are no paths on standard input");
        }
    }
    let named = expand_releases(&SourceCacheArgs::of_environment(requests.clone()), &given, from.config())?;
    let mut closure = closure_in(&from, &parse_wanted(&named, from.config())?)?;
    let release = args.release.to_record(&closure.roots, from.store_dir())?;
    // A release is of what the cache itself has.
    let always = if release.is_some() { closure.roots.clone() } else { Vec::new() };
    if args.filter.derivations {
        closure = with_derivations(&from, closure)?;
    }
    let mut selection = args.filter.selection(&urls, requests, from.store_dir())?;
    // Those that are named, and what these refer to.
    selection.filter.derivations = true;
    let mut infos = selection.of_closure(&closure.roots, closure.infos());
    infos.extend(always.iter().filter_map(|path| Some((path.clone(), closure.nodes.get(path)?.info.clone()))));
    if args.filter.dry_run {
        return say_what_is_missing(&args, &urls, &from, &selection, &infos, &always);
    }
    let progress = Arc::new(Progress::default());
    signals::interrupt_on_signal(&progress);
    let display = Display::start(&progress, args.output, PUSH);
    let mut done: Vec<Result<(Pushed, Option<Release>), Error>> = Vec::new();
    for url in &urls {
        let target = Target::open(url, &client, from.store_dir());
        let pushed = target.and_then(|target| match &release {
            Some(release) if !target.is_narval() => Err(release.not_possible(url)),
            _ => selection.push(&from, &infos, &always, &target, (&options, &progress)),
        });
        done.push(match (&release, pushed) {
            (Some(release), Ok(pushed)) => release.record(url, &client).map(|recorded| (pushed, Some(recorded))),
            (_, pushed) => pushed.map(|pushed| (pushed, None)),
        });
        if progress.is_interrupted() {
            break;
        }
    }
    display.finish();
    let (mut failed, mut sums) = (Vec::new(), [0; 6]);
    for result in done {
        match result {
            Ok((pushed, recorded)) => {
                show(&pushed, args.output);
                if let Some(release) = recorded {
                    show_release(&release, &pushed.to, args.output);
                }
                let counts =
                    [pushed.pushed, pushed.already, pushed.elsewhere, pushed.unsigned].map(|count| count as u64);
                let one = [counts[0], counts[1], counts[2], counts[3], pushed.sent, pushed.requests];
                sums.iter_mut().zip(one).for_each(|(sum, one)| *sum += one);
                if args.require_signed && pushed.unsigned > 0 {
                    failed.push(Failure::from(Error::Unsigned { cache: pushed.to, paths: pushed.unsigned }));
                }
            }
            Err(error) => failed.push(Failure::from(error)),
        }
    }
    let mut failed = failed.into_iter();
    match (failed.next(), failed.next()) {
        (None, _) => {
            if args.output.json {
                let [pushed, already, elsewhere, unsigned, sent, requests] = sums;
                json::summary(
                    json!({"pushed": pushed, "already": already, "elsewhere": elsewhere, "unsigned": unsigned,
                    "sent": sent, "requests": requests}),
                );
            }
            Ok(())
        }
        (Some(only), None) => Err(only),
        (Some(first), Some(second)) => {
            for other in std::iter::once(second).chain(failed) {
                note!("narval: {other}");
            }
            Err(first)
        }
    }
}

/// The closure, and those of the derivations that the named paths were built from, as far as the store has them.
fn with_derivations(from: &Destination, closure: Closure) -> Result<Closure, Failure> {
    let derivers: BTreeSet<StorePath> =
        closure.roots.iter().filter_map(|root| closure.nodes.get(root)?.info.deriver.clone()).collect();
    let mut wanted: Vec<Wanted> = closure.roots.into_iter().map(Wanted::Path).collect();
    for deriver in derivers.into_iter().map(Wanted::Path) {
        wanted.extend(from.find(&deriver)?.is_some().then_some(deriver));
    }
    closure_in(from, &wanted)
}

/// `--dry-run`: what each cache lacks.
fn say_what_is_missing(
    args: &Args,
    urls: &[Url],
    from: &Destination,
    selection: &Selection,
    infos: &BTreeMap<StorePath, PathInfo>,
    always: &[StorePath],
) -> Result<(), Failure> {
    let (client, progress, mut lacking) = (args.to.client()?, Progress::default(), BTreeMap::new());
    for url in urls {
        let target = Target::look(url, &client, from.store_dir())?;
        let Missing { infos, already, elsewhere } = selection.missing(infos, always, &target, &progress)?;
        if !args.output.json && !args.output.quiet {
            note!("{url} lacks {}; already there: {already}; in other caches: {elsewhere}", paths(infos.len()));
        }
        lacking.extend(infos.into_iter().map(|info| (info.path, info.nar_size)));
    }
    show_lacking(&lacking, from.store_dir(), args.output.json);
    Ok(())
}

fn show_release(release: &Release, to: &str, output: OutputArgs) {
    let selector = release.selector().to_string();
    if output.json {
        let version = release.version.as_ref().map(ToString::to_string);
        json::event(
            "release",
            json!({"release": selector, "revision": release.revision, "version": version, "to": to}),
        );
    } else if !output.quiet {
        note!("Released {selector} at {to}");
    }
}

fn show(pushed: &Pushed, output: OutputArgs) {
    let seconds = pushed.elapsed.as_secs_f64();
    if output.json {
        let Pushed { to, pushed, already, elsewhere, sent, requests, unsigned, .. } = pushed;
        json::event(
            "cache",
            json!({"to": to, "pushed": pushed, "already": already, "elsewhere": elsewhere, "unsigned": unsigned, "sent": sent,
                "requests": requests, "seconds": seconds}),
        );
    } else if !output.quiet && pushed.pushed == 0 && pushed.elsewhere == 0 {
        match pushed.already {
            1 => note!("{} already has the path", pushed.to),
            all => note!("{} already has all {all} paths", pushed.to),
        }
    } else if !output.quiet {
        let sent = human_bytes(pushed.sent);
        note!(
            "Pushed {} to {} ({sent}) in {seconds:.1}s; already there: {}{}",
            paths(pushed.pushed),
            pushed.to,
            pushed.already,
            if pushed.elsewhere > 0 { format!("; in other caches: {}", pushed.elsewhere) } else { String::new() }
        );
    }
    if !output.json && pushed.unsigned > 0 {
        note!(
            "{} not signed by {}: the token may not have it sign ('narval token create --push --sign'), and clients refuse unsigned paths; on the \
             server, 'narval cache sign' signs what is there",
            match pushed.unsigned {
                1 => "1 path is".to_owned(),
                all => format!("{all} paths are"),
            },
            pushed.to
        );
    }
}
