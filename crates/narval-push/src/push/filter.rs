//! Which paths a command that pushes takes.

use std::ops::RangeInclusive;

use globset::GlobBuilder;
use narval_nix::{PathInfo, StorePath};
use regex_automata::meta::Regex;
use regex_automata::util::syntax;

use narval_transfer::Error;

/// The maximum memory of the compiled patterns in bytes.
const PATTERNS_LEN_MAX: usize = 4 << 20;

/// Which paths are pushed for their own sake. What a pushed path refers to is pushed with it even if the filter skips it, unless other caches
/// have it.
#[derive(Debug, Clone)]
pub struct Filter {
    /// Names that are skipped.
    pub excluded: Excluded,
    /// Whether paths are skipped that were substituted or added.
    pub only_built: bool,
    /// Whether `.drv` files are taken, too.
    pub derivations: bool,
    /// The sizes of their NARs in bytes.
    pub sizes: RangeInclusive<u64>,
    /// Names of keys. Paths with a signature by one of them are skipped even if another path refers to them: they come from a cache that clients
    /// use anyway. The signature is not verified.
    pub signed_by: Vec<String>,
}

impl Default for Filter {
    /// Takes everything but derivations.
    fn default() -> Self {
        Self {
            excluded: Excluded(None),
            only_built: false,
            derivations: false,
            sizes: 0..=u64::MAX,
            signed_by: Vec::new(),
        }
    }
}

/// Patterns of names, without the hash part.
#[derive(Debug, Clone, Default)]
pub struct Excluded(Option<Regex>);

impl Excluded {
    /// Each is a glob for the whole name (`*`, `?`, `[…]` and `{a,b}`), or a regular expression between slashes, which is searched for in it.
    ///
    /// # Errors
    /// [`Error::Usage`] for an invalid pattern.
    pub fn parse(patterns: &[String]) -> Result<Self, Error> {
        let wrong = |pattern: &str, error: &dyn std::fmt::Display| {
            // Those of regular expressions have several lines, with the place marked below.
            let text: Vec<_> = error.to_string().split_whitespace().map(str::to_owned).collect();
            Error::Usage(format!("option --exclude '{pattern}': {}", text.join(" ")))
        };
        let mut all: Vec<String> = Vec::with_capacity(patterns.len());
        for pattern in patterns {
            let inside = pattern.strip_prefix('/').and_then(|rest| rest.strip_suffix('/'));
            all.push(match inside {
                Some(regex) => {
                    Regex::new(regex).map_err(|error| wrong(pattern, error.syntax_error().map_or(&error, |it| it)))?;
                    regex.to_owned()
                }
                None => {
                    let glob = GlobBuilder::new(pattern).backslash_escape(true).build();
                    glob.map_err(|error| wrong(pattern, &error))?.regex().to_owned()
                }
            });
        }
        if all.is_empty() {
            return Ok(Self(None));
        }
        let config = Regex::config().nfa_size_limit(Some(PATTERNS_LEN_MAX));
        let regex = Regex::builder().configure(config).syntax(syntax::Config::new().utf8(false)).build_many(&all);
        Ok(Self(Some(regex.map_err(|error| wrong(&patterns.join(" "), &error))?)))
    }

    fn has(&self, name: &str) -> bool {
        self.0.as_ref().is_some_and(|regex| regex.is_match(name))
    }
}

impl Filter {
    /// Whether a path comes from a cache that clients use anyway.
    pub(super) fn is_elsewhere(&self, info: &PathInfo) -> bool {
        info.signatures.iter().any(|signature| self.signed_by.iter().any(|name| name == signature.key_name()))
    }

    /// Whether a path is pushed. `is_built_here` is from the database; a hook only runs for built paths.
    pub(crate) fn takes(&self, path: &StorePath, nar_size: u64, is_built_here: bool) -> bool {
        let name = path.name();
        (is_built_here || !self.only_built)
            && (self.derivations || !name.ends_with(".drv"))
            && self.sizes.contains(&nar_size)
            && !self.excluded.has(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn excluding(patterns: &[&str]) -> Result<Filter, Error> {
        let patterns: Vec<_> = patterns.iter().map(|pattern| (*pattern).to_owned()).collect();
        Ok(Filter { excluded: Excluded::parse(&patterns)?, ..Filter::default() })
    }

    fn takes(filter: &Filter, name: &str, size: u64, built: bool) -> bool {
        filter.takes(&format!("{}-{name}", "0".repeat(32)).parse().unwrap(), size, built)
    }

    #[test]
    fn names_derivations_and_what_was_built() {
        let filter = excluding(&["*-source", "nixos-system-*"]).unwrap();
        assert!(takes(&filter, "hello-2.12", 1, false) && takes(&filter, "source-hello", 1, true));
        assert!(!takes(&filter, "hello-source", 1, true) && !takes(&filter, "nixos-system-x", 1, true));
        assert!(!takes(&filter, "hello.drv", 1, true));
        let built = Filter { only_built: true, derivations: true, ..Filter::default() };
        assert!(takes(&built, "hello.drv", 1, true) && !takes(&built, "hello", 1, false));
    }

    #[test]
    fn regular_expressions_are_between_slashes() {
        let filter = excluding(&["/^linux-[0-9.]+$/", "/-doc|-man/", "a.b"]).unwrap();
        assert!(!takes(&filter, "linux-6.12.1", 1, true) && !takes(&filter, "git-doc-2", 1, true));
        assert!(takes(&filter, "linux-headers", 1, true) && takes(&filter, "axb", 1, true));
        assert!(!takes(&filter, "a.b", 1, true));
    }

    #[test]
    fn wrong_and_huge_patterns_are_refused() {
        for pattern in ["[", "/(/", "/a{1000}{1000}{1000}/"] {
            let message = excluding(&[pattern]).unwrap_err().to_string();
            assert!(message.contains("--exclude") && message.lines().count() == 1, "{message}");
        }
    }

    #[test]
    fn sizes() {
        let filter = Filter { sizes: 10..=20, ..Filter::default() };
        assert_eq!([9, 10, 20, 21].map(|size| takes(&filter, "a", size, true)), [false, true, true, false]);
    }
}
