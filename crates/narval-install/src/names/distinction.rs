//! What tells a path that its user has chosen from the others of its name, so that the choice holds in the next release of the channel, where all have
//! other hashes: the packages that it refers to, without versions, and its derivation's name.
//!
//! A path of another release is the chosen one if it has all that told the choice from any other path, nothing that the choice lacked, and is the only
//! such path. Otherwise the user is asked again.

use std::collections::BTreeSet;

use narval_names::Evidence;
use narval_nix::{PackageName, StorePath};

use super::evidence::FromNarinfos;

/// The most features that are remembered.
const FEATURES_MAX: usize = 100;
/// What precedes a feature that the chosen path has, and one that it lacks.
const HAS: char = '+';
const LACKS: char = '-';

/// What a path may have and another one of its name lack. `None` if no cache has it.
fn features(path: &StorePath, evidence: &mut FromNarinfos<'_>) -> Option<BTreeSet<String>> {
    let info = &evidence.narinfo(path)?.info;
    let name = |path: &StorePath| match PackageName::of(path.name()) {
        PackageName { package, output: "", .. } => package.to_owned(),
        PackageName { package, output, .. } => format!("{package}^{output}"),
    };
    let mut all: BTreeSet<String> = info.references.iter().filter(|other| *other != path).map(name).collect();
    let deriver = info.deriver.as_ref().and_then(|deriver| deriver.name().strip_suffix(".drv"));
    all.extend(deriver.map(|deriver| format!("from {}", PackageName::of(deriver).package)));
    Some(all)
}

/// The features of all of these paths. `None` if one of them is not known.
fn all_features(paths: &[StorePath], evidence: &mut FromNarinfos<'_>) -> Option<Vec<BTreeSet<String>>> {
    // All are asked for at once.
    evidence.references(paths);
    paths.iter().map(|path| features(path, evidence)).collect()
}

/// What tells a chosen path from the others; empty if nothing does.
pub(super) fn between(chosen: &StorePath, all: &[StorePath], evidence: &mut FromNarinfos<'_>) -> Vec<String> {
    let Some(features) = all_features(all, evidence) else { return Vec::new() };
    let Some(own) = all.iter().position(|path| path == chosen).and_then(|at| features.get(at)) else {
        return Vec::new();
    };
    difference(own, &features)
}

fn difference(own: &BTreeSet<String>, all: &[BTreeSet<String>]) -> Vec<String> {
    let has = own.iter().filter(|one| all.iter().any(|other| !other.contains(*one))).map(|one| format!("{HAS}{one}"));
    let others: BTreeSet<&String> = all.iter().flatten().filter(|one| !own.contains(*one)).collect();
    has.chain(others.into_iter().map(|one| format!("{LACKS}{one}"))).take(FEATURES_MAX).collect()
}

/// The only one of these paths that a distinction fits.
pub(super) fn only_fitting(
    paths: &[StorePath],
    distinction: &[String],
    evidence: &mut FromNarinfos<'_>,
) -> Option<StorePath> {
    if distinction.is_empty() || paths.len() < 2 {
        return None;
    }
    let features = all_features(paths, evidence)?;
    let mut fitting = paths.iter().zip(&features).filter(|(_, features)| fits(distinction, features));
    match (fitting.next(), fitting.next()) {
        (Some((path, _)), None) => Some(path.clone()),
        _ => None,
    }
}

fn fits(distinction: &[String], features: &BTreeSet<String>) -> bool {
    distinction.iter().all(|one| match (one.strip_prefix(HAS), one.strip_prefix(LACKS)) {
        (Some(has), _) => features.contains(has),
        (_, Some(lacks)) => !features.contains(lacks),
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn a_choice_is_what_differs_and_holds_for_what_has_all_of_it() {
        let [plain, full, svn] = [set(&["glibc"]), set(&["glibc", "perl"]), set(&["glibc", "perl", "subversion"])];
        let all = [plain.clone(), full.clone(), svn.clone()];
        assert_eq!(difference(&full, &all), ["+perl", "-subversion"]);
        assert_eq!(difference(&plain, &all), ["-perl", "-subversion"]);
        for (own, expected) in
            [(&plain, [true, false, false]), (&full, [false, true, false]), (&svn, [false, false, true])]
        {
            let distinction = difference(own, &all);
            assert_eq!([&plain, &full, &svn].map(|one| fits(&distinction, one)), expected);
        }
        // The next release: one has changed in a way that does not matter, and none has what told the choice.
        let distinction = difference(&full, &all);
        assert!(fits(&distinction, &set(&["glibc", "perl", "curl"])) && !fits(&distinction, &set(&["glibc", "curl"])));
        // Two that do not differ.
        assert_eq!(difference(&plain, &[plain.clone(), plain.clone()]), Vec::<String>::new());
        assert!(!fits(&["what is this".to_owned()], &plain));
    }
}
