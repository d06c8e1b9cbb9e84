//! Names as arguments, in place of store paths.

use narval_install::names::{self, Candidate};
use narval_nix::{HashPart, StorePathName};

use crate::Failure;
use crate::args::client::human_bytes;
use crate::args::data::ago;

/// Candidates that a message lists.
pub(crate) const LISTED_MAX: usize = 20;

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
