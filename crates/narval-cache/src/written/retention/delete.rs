//! Deletes a path immediately.

use std::collections::BTreeSet;

use narval_nix::HashPart;

use crate::written::{Cache, Grant, Refusal, RefusalKind, Scope};

/// The maximum number of referrers in a message.
const NAMED_MAX: usize = 3;

/// The result of a deletion.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Deleted {
    /// Hash parts of the paths.
    pub paths: Vec<HashPart>,
    /// Files of NARs. A file that another path or cache uses stays.
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
    pub fn delete(&self, hash_part: &HashPart, referrers: bool, grant: &Grant) -> Result<Deleted, Refusal> {
        let result = self.try_delete(hash_part, referrers, grant);
        let outcome =
            result.as_ref().map(|deleted| format!("{} paths", deleted.paths.len())).map_err(ToString::to_string);
        self.audit(grant, "delete", hash_part.as_str(), &outcome);
        result
    }

    fn try_delete(&self, hash_part: &HashPart, referrers: bool, grant: &Grant) -> Result<Deleted, Refusal> {
        grant.require(self.name(), Scope::Delete)?;
        let fail = |error: std::io::Error| Refusal::of_file("lock", "the data folder", &error);
        let _alone = self.storage().lock_exclusive().map_err(fail)?;
        if self.index().path(self.id(), hash_part)?.is_none() {
            let message = format!("'{hash_part}' is not in the cache '{}'", self.name());
            return Err(Refusal::new(RefusalKind::NotFound, message));
        }
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
            return Err(Refusal::new(RefusalKind::Conflict, message));
        }
        let paths: Vec<HashPart> = all.into_iter().collect();
        let swept = self.index().delete(self.id(), &paths, self.now())?;
        self.reconcile_now()?;
        Ok(Deleted { paths, files: swept.len(), bytes: swept.iter().map(|(_, bytes)| bytes).sum() })
    }
}
