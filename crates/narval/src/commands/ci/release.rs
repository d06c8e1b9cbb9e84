//! The release that a job records of what its command has made.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use narval_client::{Client, Url};
use narval_install::{Destination, Error, Progress};
use narval_nix::Release;
use narval_nix::release::check_notes;
use narval_push::{Filter, Selection, Target};
use narval_store::StoreConfig;

use super::options::Args;
use super::session::spawn;
use crate::args::paths::{closure_in, parse_wanted};
use crate::ui::failure::Failure;

/// Where platforms say which revision of the sources a job is for, and its page.
const NOTES: [(&str, &[&str]); 2] = [
    ("git", &["GITHUB_SHA", "CI_COMMIT_SHA", "BUILDKITE_COMMIT", "CIRCLE_SHA1", "GIT_COMMIT"]),
    ("url", &["CI_JOB_URL", "BUILDKITE_BUILD_URL", "CIRCLE_BUILD_URL", "BUILD_URL"]),
];
/// The parts of the address of a job's page, where there is no variable with all of it.
const ACTIONS: [&str; 3] = ["GITHUB_SERVER_URL", "GITHUB_REPOSITORY", "GITHUB_RUN_ID"];

/// The notes of a platform. `variable` reads the environment.
fn notes_of_platform(variable: impl Fn(&str) -> Option<String>) -> BTreeMap<String, String> {
    let set = |name: &&str| variable(name).filter(|value| !value.is_empty());
    let mut notes = BTreeMap::new();
    for (name, variables) in NOTES {
        if let Some(value) = variables.iter().find_map(set) {
            notes.insert(name.to_owned(), value);
        }
    }
    if let [Some(server), Some(repository), Some(run)] = ACTIONS.each_ref().map(set) {
        notes.insert("url".to_owned(), format!("{server}/{repository}/actions/runs/{run}"));
    }
    // What is too long or no text says nothing.
    notes.retain(|name, value| check_notes(&BTreeMap::from([(name.clone(), value.clone())])).is_ok());
    notes
}

/// The paths that the command has left: those that were named, or the links that `nix build` makes of one installable.
fn made(args: &Args) -> Result<Vec<String>, Failure> {
    if !args.release_path.is_empty() {
        return Ok(args.release_path.iter().map(|path| path.display().to_string()).collect());
    }
    let entries = std::fs::read_dir(".").map_err(|error| Failure::of_file(".", &error))?;
    // With a number, it is another installable.
    let is_output = |name: &str| {
        name == "result" || name.strip_prefix("result-").is_some_and(|output| output.parse::<u32>().is_err())
    };
    let mut links: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    links.retain(|path| path.is_symlink() && path.file_name().and_then(|name| name.to_str()).is_some_and(is_output));
    links.sort();
    if links.is_empty() {
        return Err(Failure::usage("there is no ./result: name what the release consists of with --release-path"));
    }
    Ok(links.iter().map(|link| link.display().to_string()).collect())
}

/// Records the release that was asked for, with its paths in the cache. Returns it, or why it is not recorded.
pub(super) fn record(
    args: &Args,
    to: &Url,
    client: &Arc<Client>,
    store: &StoreConfig,
    limit: Duration,
) -> Result<Release, String> {
    let (sender, receiver) = mpsc::channel();
    let work = prepare(args, to, client, store).map_err(|failure| failure.to_string())?;
    // Whoever waits may have given up.
    spawn("release", move || drop(sender.send(work()))).map_err(|failure| failure.to_string())?;
    let recorded = receiver.recv_timeout(limit).map_err(|_| "no time was left".to_owned())?;
    recorded.map_err(|error| error.to_string())
}

/// What is wrong with the options is found at once; the rest is the work of a thread.
fn prepare(
    args: &Args,
    to: &Url,
    client: &Arc<Client>,
    store: &StoreConfig,
) -> Result<impl FnOnce() -> Result<Release, Error> + Send + use<>, Failure> {
    let from = Destination::new(store.clone());
    let closure = closure_in(&from, &parse_wanted(&made(args)?, from.config())?)?;
    let notes = notes_of_platform(|name| std::env::var(name).ok());
    let release = args.release.to_record_with(notes, &closure.roots, from.store_dir())?;
    let release = release.ok_or_else(|| Failure::usage("--release: no name"))?;
    let selection = args.filter.selection(std::slice::from_ref(to), &args.how.token.requests, from.store_dir())?;
    // Whoever gets the release needs all of it.
    let filter = Filter { derivations: true, ..Filter::default() };
    let selection = Selection { filter, no_closure: false, ..selection };
    let (infos, options) = (selection.of_closure(&closure.roots, closure.infos()), args.how.options()?);
    let (to, client) = (to.clone(), Arc::clone(client));
    Ok(move || {
        let target = Target::open(&to, &client, from.store_dir())?;
        if !target.is_narval() {
            return Err(release.not_possible(&to));
        }
        selection.push(&from, &infos, &closure.roots, &target, (&options, &Progress::default()))?;
        release.record(&to, &client)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn platforms_say_the_revision_and_the_page_of_the_job() {
        let notes = |variables: &[(&str, &str)]| -> String {
            let find =
                |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
            notes_of_platform(find).into_iter().map(|(name, value)| format!("{name}={value} ")).collect()
        };
        let github =
            [("GITHUB_SHA", "0a1"), (ACTIONS[0], "https://github.com"), (ACTIONS[1], "our-org/app"), (ACTIONS[2], "7")];
        assert_eq!(notes(&github), "git=0a1 url=https://github.com/our-org/app/actions/runs/7 ");
        assert_eq!(notes(&[("CI_COMMIT_SHA", "0a1"), ("CI_JOB_URL", "https://g/1")]), "git=0a1 url=https://g/1 ");
        assert_eq!(notes(&[("BUILDKITE_COMMIT", "0a1"), ("CIRCLE_BUILD_URL", "")]), "git=0a1 ");
        assert_eq!(notes(&[("GIT_COMMIT", "a\nb")]), "");
    }
}
