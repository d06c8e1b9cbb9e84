//! `narval search`: finds paths of caches by name.

use narval_install::names::{Candidate, Query, search};
use narval_nix::PackageName;
use serde_json::json;

use crate::Failure;
use crate::args::client::{CacheArgs, OutputArgs};
use crate::args::names::{cannot_search, line};
use crate::ui::json;
use crate::ui::output::{note, out};

/// Find packages in binary caches by name
///
/// Asks caches that Narval serves, which are the default ones as for `narval install`. Prints the paths whose names contain all words, packages of
/// exactly this name first, the newest versions first, with their sizes in the cache and when they were last used.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  narval search git
  narval search python numpy --from https://cache.example.org

Exit codes: 0 found, 1 failed, 2 wrong usage, 3 nothing found, 5 network.")]
pub struct Args {
    /// Name, or words that the name contains
    #[arg(required = true, value_name = "NAME")]
    words: Vec<String>,
    #[command(flatten)]
    caches: CacheArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// Runs `narval search`.
///
/// # Errors
/// If no cache can be asked, or nothing is found.
pub fn run(args: &Args) -> Result<(), Failure> {
    args.output.start_log();
    let (urls, client) = (args.caches.urls()?, args.caches.client()?);
    let words = args.words.join(" ");
    let mut found = search(&urls, &client, Query::Words(&words))?;
    // What was asked for, before what has a similar name.
    found.candidates.sort_by_key(|candidate| PackageName::of(candidate.path.name()).package != words);
    for candidate in &found.candidates {
        if args.output.json {
            show_json(candidate);
        } else if urls.len() > 1 {
            out!("{}  {}", line(candidate), candidate.cache);
        } else {
            out!("{}", line(candidate));
        }
    }
    let count = found.candidates.len();
    if count == 0 {
        let cannot = cannot_search(&found.cannot, &words);
        return Err(Failure::Coded(
            3,
            match found.cannot.len() == urls.len() {
                true => cannot.unwrap_or_default(),
                false => format!(
                    "no cache has a path with '{words}' in its name{}",
                    cannot.map(|cannot| format!("; {cannot}")).unwrap_or_default()
                ),
            },
        ));
    }
    if args.output.json {
        json::summary(json!({"paths": count, "more": found.more, "notSearched": found.cannot}));
    } else if !args.output.quiet {
        if found.more {
            note!("there are more: add a word");
        }
        if !found.cannot.is_empty() {
            note!("not searched, because they cannot be: {}", found.cannot.join(", "));
        }
    }
    Ok(())
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
