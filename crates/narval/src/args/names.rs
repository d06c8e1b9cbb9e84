//! Names as arguments, in place of store paths.

use narval_install::names::{self, Candidate};
use narval_install::{Destination, Wanted};
use narval_nix::{HashPart, StorePath, StorePathName};
use serde_json::json;

use crate::Failure;
use crate::args::client::{ClientArgs, human_bytes};
use crate::args::data::ago;
use crate::args::paths::parse_wanted;
use crate::ui::json;
use crate::ui::output::{note, out};

/// Candidates that a message lists.
const LISTED_MAX: usize = 20;

/// Whether a text may be the name of a path, rather than a path that is not there.
pub(crate) fn may_be_name(text: &str) -> bool {
    !text.starts_with('.') && StorePathName::parse(text).is_ok()
}

/// A candidate in a list: path, size and age.
pub(crate) fn line(candidate: &Candidate) -> String {
    let unsigned = if candidate.unsigned { "  not signed" } else { "" };
    format!("{}  {}  {}{unsigned}", candidate.path.base_name(), human_bytes(candidate.size), ago(candidate.time))
}

/// The one path of this name; the error lists the candidates if there are several. `unknown` is the error if there is none.
pub(crate) fn only_one(name: &str, candidates: &[Candidate], unknown: Failure) -> Result<HashPart, Failure> {
    match names::named(candidates, name).as_slice() {
        [] => Err(unknown),
        [only] => Ok(only.path.hash_part()),
        several => {
            let lines = several.iter().take(LISTED_MAX).map(|candidate| format!("\n  {}", line(candidate)));
            let left = several.len().saturating_sub(LISTED_MAX);
            let rest = if left > 0 { format!("\n  and {left} more") } else { String::new() };
            let lines: String = lines.collect();
            Err(Failure::usage(format!(
                "'{name}' is the name of {} paths: give one of\n{}{rest}",
                several.len(),
                lines.trim_start_matches('\n')
            )))
        }
    }
}

/// Where to find what caches do not find by name; `None` if all of them can be searched.
pub(crate) fn cannot_search(caches: &[String], name: &str) -> Option<String> {
    let (who, verb) = match caches {
        [] => return None,
        [only] => (only.clone(), "cannot be"),
        several => (several.join(", "), "cannot be"),
    };
    Some(format!(
        "{who} {verb} searched by name: https://search.nixos.org/packages finds packages of nixpkgs, and 'nix eval --raw nixpkgs#{name}.outPath' prints a \
         path to install"
    ))
}

/// The paths that arguments name: store paths, or names that caches know.
///
/// # Errors
/// Exit code 3 if no cache has a path of a name, or if several do, which are then listed.
pub(crate) fn wanted_or_named(
    texts: &[String],
    destination: &Destination,
    client: &ClientArgs,
) -> Result<Vec<Wanted>, Failure> {
    let mut all = Vec::with_capacity(texts.len());
    for text in texts {
        match parse_wanted(std::slice::from_ref(text), destination.config()) {
            Err(unknown) if may_be_name(text) && !client.caches.offline => {
                all.push(Wanted::Path(resolve(text, client, &unknown)?));
            }
            wanted => all.extend(wanted?),
        }
    }
    Ok(all)
}

/// The one path of the caches with this name.
fn resolve(name: &str, client: &ClientArgs, unknown: &Failure) -> Result<StorePath, Failure> {
    let urls = client.caches.urls()?;
    let found = names::find(&urls, &client.caches.client()?, name)?;
    let output = client.output;
    match found.candidates.as_slice() {
        [] => match cannot_search(&found.cannot, name) {
            Some(cannot) if found.cannot.len() == urls.len() => Err(Failure::usage(format!("{unknown}; {cannot}"))),
            cannot => {
                let cannot = cannot.map(|cannot| format!("; {cannot}")).unwrap_or_default();
                Err(Failure::Coded(
                    3,
                    format!(
                        "no cache has a path of the name '{name}': 'narval search {name}' looks for similar names{cannot}"
                    ),
                ))
            }
        },
        [only] => {
            if output.json {
                json::event("named", json!({"name": name, "path": only.path.base_name(), "cache": only.cache}));
            } else if !output.quiet {
                note!("{name} is {} in {}", line(only), only.cache);
            }
            Ok(only.path.clone())
        }
        several => {
            for candidate in several.iter().take(LISTED_MAX) {
                if output.json {
                    let (path, cache) = (candidate.path.base_name(), &candidate.cache);
                    json::event("candidate", json!({"name": name, "path": path, "cache": cache}));
                } else {
                    out!("{}  {}", line(candidate), candidate.cache);
                }
            }
            Err(Failure::Coded(
                3,
                format!(
                    "'{name}' is the name of {} paths: install one of them by its version, or by HASH-NAME",
                    several.len()
                ),
            ))
        }
    }
}
