//! Deletes a path immediately.

use std::collections::BTreeSet;

use narval_nix::HashPart;

use crate::access::grant::{Grant, Scope};
use crate::cache::Cache;
use crate::rejection::Rejection;

/// The maximum number of referrers in a message.
const NAMED_MAX: usize = 3;

/// How often a deletion is tried while others push referrers.
const ATTEMPTS_MAX: u32 = 8;

/// The result of a deletion.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Deleted {
    /// Hash parts of the paths.
    pub paths: Vec<HashPart>,
    /// Files of NARs. A file that another path uses stays.
    pub files: usize,
    /// Their bytes.
    pub bytes: u64,
}

impl Cache {
    /// Deletes a path and its NAR at once, whatever pins it. With `referrers`, all paths that refer to it are deleted, too; without, the
    /// deletion is refused if there are any.
    ///
    /// # Errors
    /// If the path is not in the cache or other paths refer to it, or the token may not delete.
    pub fn delete(&self, hash_part: &HashPart, referrers: bool, grant: &Grant) -> Result<Deleted, Rejection> {
        let result = self.try_delete(hash_part, referrers, grant);
        let outcome =
            result.as_ref().map(|deleted| format!("{} paths", deleted.paths.len())).map_err(ToString::to_string);
        self.audit(grant, "delete", hash_part.as_str(), &outcome);
        result
    }

    fn try_delete(&self, hash_part: &HashPart, referrers: bool, grant: &Grant) -> Result<Deleted, Rejection> {
        grant.require(self.name(), Scope::Delete)?;
        let alone = self.alone()?;
        if self.index().path(self.id(), hash_part)?.is_none() {
            return Err(Rejection::not_found(format_args!("'{hash_part}' is not in the cache '{}'", self.name())));
        }
        let mut paths = self.with_referrers(hash_part, referrers)?;
        // On another server somebody may push one that refers to them.
        let mut attempts = 1;
        let gone = loop {
            if let Some(gone) = self.index().delete(self.id(), &paths, self.now())? {
                break gone;
            }
            if attempts == ATTEMPTS_MAX {
                return Err(Rejection::conflict("other clients are pushing paths that refer to it; try again"));
            }
            paths = self.with_referrers(hash_part, referrers)?;
            attempts += 1;
        };
        self.reconcile_now()?;
        drop(alone);
        let (files, bytes) = (gone.len(), gone.iter().map(|(_, bytes)| bytes).sum());
        self.remove_now(gone.into_iter().map(|(name, _)| name).collect())?;
        Ok(Deleted { paths, files, bytes })
    }

    /// A path and all that lead to it; refused if there are any and they are not to be deleted.
    fn with_referrers(&self, hash_part: &HashPart, referrers: bool) -> Result<Vec<HashPart>, Rejection> {
        let (mut all, mut open) = (BTreeSet::from([*hash_part]), vec![*hash_part]);
        while let Some(part) = open.pop() {
            let new: Vec<HashPart> = self
                .index()
                .referrers(self.id(), &part)?
                .into_iter()
                .filter(|referrer| all.insert(*referrer))
                .collect();
            open.extend(new);
        }
        let others: Vec<&HashPart> = all.iter().filter(|part| *part != hash_part).collect();
        if !referrers && !others.is_empty() {
            let mut named = Vec::new();
            for part in others.iter().take(NAMED_MAX) {
                named.extend(self.index().path(self.id(), part)?.map(|record| record.path));
            }
            let message = format!(
                "{} other paths refer to '{hash_part}' ({}{}): delete them too, with '--referrers' (over HTTP, '?referrers=1')",
                others.len(),
                named.join(", "),
                if others.len() > NAMED_MAX { ", …" } else { "" }
            );
            return Err(Rejection::conflict(message));
        }
        Ok(all.into_iter().collect())
    }
}
