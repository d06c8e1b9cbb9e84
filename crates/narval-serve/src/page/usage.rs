//! Disk use of a writable cache, by age and by name.

use std::cmp::Reverse;
use std::collections::HashMap;

use narval_keep::Listed;

const DAY_SECONDS: u64 = 24 * 60 * 60;
/// The age groups: upper bounds in days. Older paths are in the last group.
const AGES_DAYS: [u64; 5] = [1, 7, 30, 90, 365];

/// Paths that were last used about then.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Age {
    /// Last used less than this many days ago; `None`: longer ago.
    pub(super) days: Option<u64>,
    pub(super) paths: u64,
    pub(super) bytes: u64,
}

/// All paths of a name. A NAR that several of them share counts for each.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Name {
    pub(super) name: String,
    pub(super) paths: u64,
    pub(super) bytes: u64,
}

pub(super) fn by_age(listed: &[Listed], now: u64) -> Vec<Age> {
    let bounds = AGES_DAYS.into_iter().map(Some).chain([None]);
    let mut ages: Vec<_> = bounds.map(|days| Age { days, ..Age::default() }).collect();
    for path in listed {
        let days = now.saturating_sub(path.used) / DAY_SECONDS;
        let group = ages.iter_mut().find(|age| age.days.is_none_or(|bound| days < bound));
        if let Some(age) = group {
            age.paths += 1;
            age.bytes += path.file_size;
        }
    }
    ages
}

/// The largest first.
pub(super) fn by_name(listed: &[Listed]) -> Vec<Name> {
    let mut sums: HashMap<&str, (u64, u64)> = HashMap::new();
    for path in listed {
        let (paths, bytes) = sums.entry(package_name(path.path.get(33..).unwrap_or_default())).or_default();
        *paths += 1;
        *bytes += path.file_size;
    }
    let name = |(name, (paths, bytes)): (&str, _)| Name { name: name.to_owned(), paths, bytes };
    let mut names: Vec<_> = sums.into_iter().map(name).collect();
    names.sort_unstable_by(|one, other| (Reverse(one.bytes), &one.name).cmp(&(Reverse(other.bytes), &other.name)));
    names
}

/// The part of a store path's name before its version, which begins with the first dash that no letter follows (`builtins.parseDrvName`).
pub(super) fn package_name(name: &str) -> &str {
    let bytes = name.as_bytes();
    let is_version =
        |at: &usize| bytes.get(*at) == Some(&b'-') && bytes.get(at + 1).is_some_and(|next| !next.is_ascii_alphabetic());
    (0..bytes.len()).find(is_version).and_then(|at| name.get(..at)).unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(name: &str, days: u64, file_size: u64) -> Listed {
        Listed {
            hash_part: narval_nix::HashPart::parse("0".repeat(32).as_bytes()).unwrap(),
            path: format!("{}-{name}", "0".repeat(32)),
            added: 0,
            used: 1_000 * DAY_SECONDS - days * DAY_SECONDS,
            file_size,
        }
    }

    #[test]
    fn names_without_versions() {
        for (name, package) in [
            ("hello-2.12.1", "hello"),
            ("hello", "hello"),
            ("python3.11-numpy-1.26", "python3.11-numpy"),
            ("gcc-wrapper-13.2.0-man", "gcc-wrapper"),
            ("x-", "x-"),
            ("", ""),
            ("ä-1", "ä"),
        ] {
            assert_eq!(package_name(name), package);
        }
    }

    #[test]
    fn sums_by_name_and_age() {
        let all = [listed("a-1", 0, 5), listed("a-2", 8, 6), listed("b-1", 400, 20), listed("c", 6, 1)];
        let names: Vec<_> = by_name(&all).into_iter().map(|name| (name.name, name.paths, name.bytes)).collect();
        assert_eq!(names, [("b".into(), 1, 20), ("a".into(), 2, 11), ("c".into(), 1, 1)]);
        let ages: Vec<_> = by_age(&all, 1_000 * DAY_SECONDS).iter().map(|age| (age.days, age.bytes)).collect();
        assert_eq!(ages, [(Some(1), 5), (Some(7), 1), (Some(30), 6), (Some(90), 0), (Some(365), 0), (None, 20)]);
    }
}
