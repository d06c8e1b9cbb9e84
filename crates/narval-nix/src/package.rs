//! The package, version and output in the name of a store path, by Nix's rules (`nix-env`, `builtins.parseDrvName`,
//! `builtins.compareVersions`).

use std::cmp::Ordering;

/// The parts of a name such as `openssl-3.0.14-dev`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PackageName<'a> {
    /// The package: `openssl`.
    pub package: &'a str,
    /// The version: `3.0.14`; may be empty.
    pub version: &'a str,
    /// The output: `dev`; empty for the first one. Without a version, it is part of the package.
    pub output: &'a str,
}

impl<'a> PackageName<'a> {
    /// Splits the name of a store path. The version begins after the first dash that no letter follows (`names.cc`
    /// `DrvName`), and ends before a last word without digits, which is the output.
    ///
    /// ```
    /// # use narval_nix::PackageName;
    /// let name = PackageName::of("gtk+3-3.24.41-dev");
    /// assert_eq!((name.package, name.version, name.output), ("gtk+3", "3.24.41", "dev"));
    /// ```
    pub fn of(name: &'a str) -> Self {
        let is_start = |at: &usize| name.as_bytes().get(at + 1).is_some_and(|next| !next.is_ascii_alphabetic());
        let dash = name.match_indices('-').map(|(at, _)| at).find(is_start);
        let Some((package, rest)) = dash.and_then(|at| Some((name.get(..at)?, name.get(at + 1..)?))) else {
            return Self { package: name, version: "", output: "" };
        };
        match rest.rsplit_once('-') {
            Some((version, output)) if !output.is_empty() && output.bytes().all(|byte| byte.is_ascii_alphabetic()) => {
                Self { package, version, output }
            }
            _ => Self { package, version: rest, output: "" },
        }
    }
}

/// Compares versions by Nix's rule (`names.cc` `compareVersions`): component by component, numbers as numbers, and `pre`
/// before everything.
pub fn compare_versions(one: &str, other: &str) -> Ordering {
    let (mut one, mut other) = (one, other);
    while !(one.is_empty() && other.is_empty()) {
        let (first, second) = (component(&mut one), component(&mut other));
        if is_less(first, second) {
            return Ordering::Less;
        }
        if is_less(second, first) {
            return Ordering::Greater;
        }
    }
    Ordering::Equal
}

/// `Less` if the first of two versions is nearer to `wanted`: the same, else the newest older one, else the oldest newer
/// one.
pub fn nearer_version(wanted: &str, one: &str, other: &str) -> Ordering {
    let side = |version: &str| match compare_versions(version, wanted) {
        Ordering::Equal => 0,
        Ordering::Less => 1,
        Ordering::Greater => 2,
    };
    side(one).cmp(&side(other)).then_with(|| match side(one) {
        1 => compare_versions(other, one),
        _ => compare_versions(one, other),
    })
}

/// Takes the next component: digits, or other characters up to a separator or a digit.
fn component<'a>(rest: &mut &'a str) -> &'a str {
    let text = rest.trim_start_matches(['.', '-']);
    let is_number = text.starts_with(|c: char| c.is_ascii_digit());
    let ends = |c: char| if is_number { !c.is_ascii_digit() } else { c.is_ascii_digit() || c == '.' || c == '-' };
    let (found, left) = text.split_at(text.find(ends).unwrap_or(text.len()));
    *rest = left;
    found
}

fn is_less(one: &str, other: &str) -> bool {
    let number = |text: &str| text.parse::<u64>().ok();
    match (number(one), number(other)) {
        (Some(one), Some(other)) => one < other,
        // `2.3a` is before `2.3.1`, and so is `2.3`.
        (None, Some(_)) => true,
        (Some(_), None) => false,
        (None, None) if one == "pre" || other == "pre" => one != other && one == "pre",
        (None, None) => one < other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_split_as_nix_splits_them() {
        for (name, parts) in [
            ("hello-2.12", ("hello", "2.12", "")),
            ("glibc-2.39-52-bin", ("glibc", "2.39-52", "bin")),
            ("openssl-3.0.14-dev", ("openssl", "3.0.14", "dev")),
            ("nix-wrapper", ("nix-wrapper", "", "")),
            ("python3.11-requests-2.31.0", ("python3.11-requests", "2.31.0", "")),
            ("foo-unstable-2024-01-01", ("foo-unstable", "2024-01-01", "")),
            ("hook", ("hook", "", "")),
            ("a-", ("a-", "", "")),
            ("a-1-", ("a", "1-", "")),
            ("gcc-13.2.0-lib", ("gcc", "13.2.0", "lib")),
            ("x-1.0rc1", ("x", "1.0rc1", "")),
        ] {
            let found = PackageName::of(name);
            assert_eq!((found.package, found.version, found.output), parts, "{name}");
        }
    }

    #[test]
    fn the_nearest_version_is_the_same_then_the_newest_older_one() {
        let mut versions = ["3.0.9", "2.9", "3.1", "3.0.14", "3.0.13", "4.0", ""];
        versions.sort_by(|one, other| nearer_version("3.0.14", one, other));
        assert_eq!(versions, ["3.0.14", "3.0.13", "3.0.9", "2.9", "", "3.1", "4.0"]);
    }

    /// The vectors of Nix's manual and tests (`tests/functional/lang/eval-okay-versions.nix`).
    #[test]
    fn versions_compare_as_nix_compares_them() {
        use Ordering::{Equal, Greater, Less};
        for (one, other, expected) in [
            ("1.0", "2.3", Less),
            ("2.1", "2.3", Less),
            ("2.3", "2.3", Equal),
            ("2.5", "2.3", Greater),
            ("3.1", "2.3", Greater),
            ("2.3.1", "2.3", Greater),
            ("2.3.1", "2.3a", Greater),
            ("2.3pre1", "2.3", Less),
            ("2.3pre3", "2.3pre12", Less),
            ("2.3a", "2.3c", Less),
            ("2.3pre1", "2.3c", Less),
            ("2.3pre1", "2.3q", Less),
            ("", "1", Less),
        ] {
            assert_eq!(compare_versions(one, other), expected, "{one} {other}");
            assert_eq!(compare_versions(other, one), expected.reverse(), "{other} {one}");
        }
    }
}
