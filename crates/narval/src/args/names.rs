//! Names as arguments, in place of store paths, and how what they may mean is shown.

use std::time::{Duration, SystemTime};

use narval_install::names::{self, Candidate, Variant};
use narval_names::Package;
use narval_nix::{HashPart, StorePathName};
use serde_json::json;

use crate::args::client::human_bytes;
use crate::args::data::ago;
use crate::ui::failure::Failure;
use crate::ui::json;
use crate::ui::output::out;
use crate::ui::output_args::OutputArgs;

/// Candidates that a message lists.
pub(crate) const LISTED_MAX: usize = 20;
/// The most references that tell variants apart in a list.
const REFERENCES_MAX: usize = 4;

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
    let who = caches.join(", ");
    (!who.is_empty()).then(|| {
        format!(
            "{who} cannot be searched by name: https://search.nixos.org/packages finds packages of nixpkgs, and 'nix eval --raw nixpkgs#{name}.outPath' prints \
             a path to install"
        )
    })
}

/// A package in a list.
pub(crate) fn show_package(package: &Package, output: OutputArgs) {
    if output.json {
        json::event("package", package_json(package));
    } else {
        let refused: Vec<&str> = package.problems.iter().map(|problem| problem.word()).collect();
        let refused = if refused.is_empty() { String::new() } else { format!("({}) ", refused.join(", ")) };
        out!("{}  {}  {refused}{}", package.attribute, package.version, package.description);
    }
}

/// A package as JSON.
pub(crate) fn package_json(package: &Package) -> serde_json::Value {
    json!({"attribute": package.attribute, "name": package.name, "package": package.pname, "version": package.version,
        "description": package.description, "homepage": package.homepage, "licence": package.licence,
        "outputs": package.outputs, "program": package.program,
        "problems": package.problems.iter().map(|problem| problem.word()).collect::<Vec<_>>()})
}

/// The paths that a name may mean, with what differs.
pub(crate) fn list_variants(text: &str, variants: &[Variant], output: OutputArgs) {
    for variant in variants {
        let path = variant.path.base_name();
        if output.json {
            let closure = variant.closure.map(|(paths, size)| json!({"paths": paths, "size": size}));
            json::event(
                "candidate",
                json!({"name": text, "path": path, "narSize": variant.nar_size, "closure": closure,
                    "refersTo": variant.refers_to, "isSame": variant.is_same}),
            );
            continue;
        }
        let size = variant.nar_size.map_or_else(|| "in no cache".to_owned(), human_bytes);
        let closure = variant.closure.map(|(paths, size)| format!("  with {paths} paths of {}", human_bytes(size)));
        let refers = match variant.refers_to.as_slice() {
            [] => String::new(),
            all => {
                let shown = all.iter().take(REFERENCES_MAX).map(String::as_str).collect::<Vec<_>>().join(", ");
                let more = all.len().saturating_sub(REFERENCES_MAX);
                format!("  refers to {shown}{}", if more > 0 { format!(" and {more} more") } else { String::new() })
            }
        };
        let same = if variant.is_same { "  same contents as another" } else { "" };
        out!("{path}  {size}{}{refers}{same}", closure.unwrap_or_default());
    }
}

/// How old something is.
pub(crate) fn since(age: Duration) -> String {
    let time = SystemTime::now().checked_sub(age).and_then(|time| time.duration_since(SystemTime::UNIX_EPOCH).ok());
    ago(time.unwrap_or_default().as_secs())
}
