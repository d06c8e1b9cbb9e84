//! Which paths a watcher pushes.

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};
use narval_nix::{PathInfo, StorePath};

use crate::Error;

/// What is left out. What a path refers to is pushed with it, left out by itself or not, unless it is elsewhere.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    excluded: GlobSet,
    built_here: bool,
    derivations: bool,
    signed_by: Vec<String>,
}

impl Filter {
    /// Leaves out names that one of these patterns matches: `*`, `?`, `[…]` and `{a,b}`, against the part behind the hash. With
    /// `built_here`, also what was substituted or added, and without `derivations`, also `.drv` files.
    ///
    /// # Errors
    /// [`Error::Usage`] for a pattern that is none.
    pub fn new(exclude: &[String], built_here: bool, derivations: bool) -> Result<Self, Error> {
        let mut excluded = GlobSetBuilder::new();
        for pattern in exclude {
            let glob = GlobBuilder::new(pattern).backslash_escape(true).build();
            excluded.add(glob.map_err(|error| Error::Usage(format!("option --exclude: {error}")))?);
        }
        let excluded = excluded.build().map_err(|error| Error::Usage(format!("option --exclude: {error}")))?;
        Ok(Self { excluded, built_here, derivations, signed_by: Vec::new() })
    }

    /// Also leaves out paths that have a signature by a key with one of these names, and that even where another path refers to
    /// them: they come from a cache that clients have anyway. The signature is not verified.
    #[must_use]
    pub fn without_signed_by(self, key_names: Vec<String>) -> Self {
        Self { signed_by: key_names, ..self }
    }

    /// Whether a path comes from a cache that clients have anyway.
    pub(super) fn is_elsewhere(&self, info: &PathInfo) -> bool {
        info.signatures.iter().any(|signature| self.signed_by.iter().any(|name| name == signature.key_name()))
    }

    /// Whether a path is pushed. `is_built_here`: as the database says; a hook is only run for what was built.
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
