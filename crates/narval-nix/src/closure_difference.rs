//! What differs between two closures: paths, and the packages that they are of.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use crate::package::{PackageName, compare_versions};
use crate::path_info::PathInfo;
use crate::store_path::HashPart;

/// A path of a closure.
pub trait ClosurePath {
    /// Its hash part.
    fn hash_part(&self) -> HashPart;
    /// Its name, without the hash part.
    fn name(&self) -> &str;
    /// The size of its NAR in bytes.
    fn nar_size(&self) -> u64;
}

impl ClosurePath for PathInfo {
    fn hash_part(&self) -> HashPart {
        self.path.hash_part()
    }

    fn name(&self) -> &str {
        self.path.name()
    }

    fn nar_size(&self) -> u64 {
        self.nar_size
    }
}

/// The paths that only one of two closures has, the largest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClosureDifference<'a, P> {
    /// Those of the first closure.
    pub only_before: Vec<&'a P>,
    /// Those of the second one.
    pub only_after: Vec<&'a P>,
    /// How many paths both have.
    pub both: usize,
}

/// What has become of a package (or another output of one) from one closure to the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackageChange<'a, P> {
    /// The package: `openssl`.
    pub package: &'a str,
    /// The output: `dev`; empty for the first one.
    pub output: &'a str,
    /// The paths that only the first closure has; none if it has the same ones, or the package is new.
    pub before: Vec<&'a P>,
    /// The paths that only the second closure has.
    pub after: Vec<&'a P>,
}

impl<'a, P: ClosurePath> ClosureDifference<'a, P> {
    /// Compares two closures.
    pub fn of(before: impl IntoIterator<Item = &'a P>, after: impl IntoIterator<Item = &'a P>) -> Self {
        let (mut only_before, mut only_after): (Vec<_>, Vec<_>) =
            (before.into_iter().collect(), after.into_iter().collect());
        let parts = |paths: &[&P]| paths.iter().map(|path| path.hash_part()).collect::<HashSet<_>>();
        let (in_before, in_after) = (parts(&only_before), parts(&only_after));
        only_before.retain(|path| !in_after.contains(&path.hash_part()));
        only_after.retain(|path| !in_before.contains(&path.hash_part()));
        for only in [&mut only_before, &mut only_after] {
            only.sort_by(|one, other| other.nar_size().cmp(&one.nar_size()).then_with(|| one.name().cmp(other.name())));
        }
        Self { only_before, only_after, both: in_before.intersection(&in_after).count() }
    }

    /// What differs, package by package, by their names.
    ///
    /// ```
    /// use narval_nix::{ClosureDifference, ClosurePath, HashPart};
    /// # #[derive(Debug)]
    /// struct Path(&'static str, &'static str, u64);
    /// impl ClosurePath for Path {
    ///     fn hash_part(&self) -> HashPart { self.0.parse().unwrap() }
    ///     fn name(&self) -> &str { self.1 }
    ///     fn nar_size(&self) -> u64 { self.2 }
    /// }
    /// let before = [Path("0000000000000000000000000000000a", "openssl-3.0.13", 10)];
    /// let after = [Path("0000000000000000000000000000000b", "openssl-3.0.14", 12)];
    /// let difference = ClosureDifference::of(&before, &after);
    /// let openssl = &difference.packages()[0];
    /// assert_eq!((openssl.package, openssl.versions_before(), openssl.versions_after()), ("openssl", vec!["3.0.13"], vec!["3.0.14"]));
    /// assert_eq!(openssl.size_change(), 2);
    /// ```
    pub fn packages(&self) -> Vec<PackageChange<'a, P>> {
        let mut packages: BTreeMap<_, (Vec<_>, Vec<_>)> = BTreeMap::new();
        let of = |path: &'a P| {
            let PackageName { package, output, .. } = PackageName::of(path.name());
            (package, output)
        };
        self.only_before.iter().for_each(|path| packages.entry(of(path)).or_default().0.push(*path));
        self.only_after.iter().for_each(|path| packages.entry(of(path)).or_default().1.push(*path));
        let change = |((package, output), (before, after))| PackageChange { package, output, before, after };
        packages.into_iter().map(change).collect()
    }
}

impl<'a, P: ClosurePath> PackageChange<'a, P> {
    /// The versions of the paths that only the first closure has.
    pub fn versions_before(&self) -> Vec<&'a str> {
        versions(&self.before)
    }

    /// The versions of the paths that only the second closure has.
    pub fn versions_after(&self) -> Vec<&'a str> {
        versions(&self.after)
    }

    /// Whether both have other paths of the same versions.
    pub fn is_rebuilt(&self) -> bool {
        versions(&self.before) == versions(&self.after)
    }

    /// How much larger the second closure is by this package, in bytes.
    pub fn size_change(&self) -> i64 {
        let size = |paths: &[&P]| paths.iter().map(|path| path.nar_size()).fold(0_u64, u64::saturating_add);
        let signed = |size: u64| i64::try_from(size).unwrap_or(i64::MAX);
        signed(size(&self.after)).saturating_sub(signed(size(&self.before)))
    }
}

fn versions<'a, P: ClosurePath>(paths: &[&'a P]) -> Vec<&'a str> {
    let versions: BTreeSet<_> = paths.iter().map(|path| PackageName::of(path.name()).version).collect();
    let mut versions: Vec<_> = versions.into_iter().collect();
    versions.sort_by(|one, other| compare_versions(one, other));
    versions
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Eq)]
    struct Path(String, &'static str, u64);

    impl ClosurePath for Path {
        fn hash_part(&self) -> HashPart {
            self.0.parse().unwrap()
        }

        fn name(&self) -> &str {
            self.1
        }

        fn nar_size(&self) -> u64 {
            self.2
        }
    }

    fn path(hash: char, name: &'static str, size: u64) -> Path {
        Path(hash.to_string().repeat(32), name, size)
    }

    #[test]
    fn packages_are_gained_lost_rebuilt_or_of_another_version() {
        let before = [path('0', "a-1", 10), path('1', "b-2", 20), path('2', "c-3", 30), path('3', "d-4-dev", 5)];
        let after = [path('0', "a-1", 10), path('4', "b-2.10", 25), path('5', "b-2.9", 1), path('6', "c-3", 31)];
        let difference = ClosureDifference::of(&before, &after);
        assert_eq!(difference.both, 1);
        assert_eq!(difference.only_before.iter().map(|path| path.2).collect::<Vec<_>>(), [30, 20, 5]);
        let packages = difference.packages();
        let shown: Vec<_> = packages
            .iter()
            .map(|it| (it.package, it.output, it.versions_before(), it.versions_after(), it.size_change()))
            .collect();
        assert_eq!(
            shown,
            [
                ("b", "", vec!["2"], vec!["2.9", "2.10"], 6),
                ("c", "", vec!["3"], vec!["3"], 1),
                ("d", "dev", vec!["4"], vec![], -5),
            ]
        );
        assert_eq!(packages.iter().map(PackageChange::is_rebuilt).collect::<Vec<_>>(), [false, true, false]);
        assert_eq!(ClosureDifference::of(&after, &after).packages(), []);
    }
}
