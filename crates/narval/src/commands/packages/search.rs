//! `narval search`: finds paths of caches, and packages of channels, by name.

use narval_install::Error;
use narval_install::names::{Candidate, Query, SearchResults, search};
use narval_nix::PackageName;
use serde_json::json;

use crate::args::channels::{Lookup, NameArgs};
use crate::args::client::ClientArgs;
use crate::args::names::{cannot_search, line, show_package};
use crate::ui::failure::Failure;
use crate::ui::json;
use crate::ui::output::{note, out};

/// The most packages of a channel that are shown.
const PACKAGES_MAX: usize = 100;

/// Find packages by name
///
/// Asks the caches that Narval serves, which are the default ones as for `narval install`, for paths whose names contain all words: packages of
/// exactly this name first, the newest versions first, with their sizes in the cache and when they were last used. Then looks in the channel, in
/// attributes, names and descriptions: exact names first, then those that begin so, then words, then descriptions.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  narval search ripgrep
  narval search http server --json
  narval search python numpy --from https://cache.example.org --channel none

Exit codes: 0 found, 1 failed, 2 wrong usage, 3 nothing found, 5 network.")]
pub struct Args {
    /// Name, or words that name or description contain
    #[arg(required = true, value_name = "NAME")]
    words: Vec<String>,
    #[command(flatten)]
    names: NameArgs,
    #[command(flatten)]
    client: ClientArgs,
}

/// Runs `narval search`.
///
/// # Errors
/// If neither a cache nor a channel can be asked, or nothing is found.
pub fn run(args: &Args) -> Result<(), Failure> {
    let (caches, output) = (&args.client.caches, args.client.output);
    output.start_log();
    let (urls, client) = (caches.urls()?, caches.client()?);
    let words = args.words.join(" ");
    let has_channels = !args.names.channels()?.is_empty();
    let mut found = match search(&urls, &client, Query::Words(&words)) {
        Ok(found) => found,
        Err(error) if has_channels => {
            tracing::debug!("{error}");
            SearchResults::default()
        }
        Err(error) => return Err(error.into()),
    };
    // What was asked for, before what has a similar name.
    found.candidates.sort_by_key(|candidate| PackageName::of(candidate.path.name()).package != words);
    for candidate in &found.candidates {
        if output.json {
            show_json(candidate);
        } else if urls.len() > 1 {
            out!("{}  {}", line(candidate), candidate.cache);
        } else {
            out!("{}", line(candidate));
        }
    }
    let (packages, more) = match in_channels(args) {
        Ok(found) => found,
        Err(error) if !found.candidates.is_empty() => {
            tracing::warn!("{error}");
            (0, false)
        }
        Err(error) => return Err(error),
    };
    let count = found.candidates.len();
    if count + packages == 0 {
        let cannot = cannot_search(&found.cannot, &words).filter(|_| !has_channels);
        return Err(Failure::Coded(
            3,
            match (has_channels, found.cannot.len() == urls.len()) {
                (true, _) => format!("neither a cache nor the channel has '{words}' in a name or description"),
                (false, true) => cannot.unwrap_or_default(),
                (false, false) => format!(
                    "no cache has a path with '{words}' in its name{}",
                    cannot.map(|cannot| format!("; {cannot}")).unwrap_or_default()
                ),
            },
        ));
    }
    let more = found.more || more;
    if output.json {
        json::summary(json!({"paths": count, "packages": packages, "more": more, "notSearched": found.cannot}));
    } else if !output.quiet {
        if more {
            note!("there are more: add a word");
        }
        if !found.cannot.is_empty() && !has_channels {
            note!("not searched, because they cannot be: {}", found.cannot.join(", "));
        }
    }
    Ok(())
}

/// Shows what channels have; returns how many packages that are, and whether there are more.
fn in_channels(args: &Args) -> Result<(usize, bool), Failure> {
    let destination = args.client.store.destination()?;
    let mut lookup = Lookup::new(&destination, &args.client, &args.names);
    let (mut shown, mut any_more) = (0, false);
    for channel in lookup.channels()? {
        let failed = |source| Error::Names { channel: channel.channel().name().to_owned(), source };
        let (found, more) = channel.index().search(&args.words, PACKAGES_MAX).map_err(failed)?;
        for one in &found {
            show_package(&one.package, args.client.output);
        }
        shown += found.len();
        any_more |= more;
    }
    Ok((shown, any_more))
}

fn show_json(candidate: &Candidate) {
    let Candidate { path, size, time, unsigned, cache } = candidate;
    let PackageName { package, version, output } = PackageName::of(path.name());
    json::event(
        "path",
        json!({"path": path.base_name(), "package": package, "version": version, "output": output, "size": size,
            "time": time, "unsigned": unsigned, "cache": cache}),
    );
}
