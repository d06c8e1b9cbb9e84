//! Which paths a watcher pushes.

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};
use narval_nix::{PathInfo, StorePath};

use crate::Error;

/// Which paths to skip. The references of a pushed path are pushed with it even if the filter skips them, unless other
/// caches have them.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    excluded: GlobSet,
    built_here: bool,
    derivations: bool,
    signed_by: Vec<String>,
}

impl Filter {
    /// Skips names that match one of these patterns (`*`, `?`, `[…]` and `{a,b}`), without the hash part. With
    /// `built_here`, also skips paths that were substituted or added, and without `derivations`, `.drv` files.
    ///
    /// # Errors
    /// [`Error::Usage`] for an invalid pattern.
    pub fn new(exclude: &[String], built_here: bool, derivations: bool) -> Result<Self, Error> {
        let mut excluded = GlobSetBuilder::new();
        for pattern in exclude {
            let glob = GlobBuilder::new(pattern).backslash_escape(true).build();
            excluded.add(glob.map_err(|error| Error::Usage(format!("option --exclude: {error}")))?);
        }
        let excluded = excluded.build().map_err(|error| Error::Usage(format!("option --exclude: {error}")))?;
        Ok(Self { excluded, built_here, derivations, signed_by: Vec::new() })
    }

    /// Also skips paths with a signature by a key with one of these names, even if another path refers to them: they
    /// come from a cache that clients use anyway. The signature is not verified.
    #[must_use]
    pub fn without_signed_by(self, key_names: Vec<String>) -> Self {
        Self { signed_by: key_names, ..self }
    }

    /// Whether a path comes from a cache that clients use anyway.
    pub(super) fn is_elsewhere(&self, info: &PathInfo) -> bool {
        info.signatures.iter().any(|signature| self.signed_by.iter().any(|name| name == signature.key_name()))
    }

    /// Whether a path is pushed. `is_built_here` is from the database; a hook only runs for built paths.
    pub(super) fn takes(&self, path: &StorePath, is_built_here: bool) -> bool {
        let name = path.name();
        (is_built_here || !self.built_here)
            && (self.derivations || !name.ends_with(".drv"))
            && !self.excluded.is_match(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_derivations_and_what_was_built() {
        let takes = |filter: &Filter, name: &str, built| {
            filter.takes(&format!("{}-{name}", "0".repeat(32)).parse().unwrap(), built)
        };
        let filter = Filter::new(&["*-source".into(), "nixos-system-*".into()], false, false).unwrap();
        assert!(takes(&filter, "hello-2.12", false) && takes(&filter, "source-hello", true));
        assert!(!takes(&filter, "hello-source", true) && !takes(&filter, "nixos-system-x", true));
        assert!(!takes(&filter, "hello.drv", true));
        let built = Filter::new(&[], true, true).unwrap();
        assert!(takes(&built, "hello.drv", true) && !takes(&built, "hello", false));
        assert!(Filter::new(&["[".into()], false, false).is_err());
    }
}
