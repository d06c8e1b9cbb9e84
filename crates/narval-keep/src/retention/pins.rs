//! Pins: closures that are kept.

use narval_nix::{HashPart, StorePath};

use super::mark::closure_size;
use crate::access::grant::{Grant, Scope};
use crate::cache::Cache;
use crate::index::IndexError;
use crate::records::pins::{Pin, PinFor};
use crate::rejection::Rejection;

/// The maximum length of a pin's name in bytes.
const NAME_LEN_MAX: usize = 128;

/// A pin, and what it keeps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PinSize {
    /// The pin.
    pub pin: Pin,
    /// Paths of the closure that are in the cache.
    pub paths: u64,
    /// Bytes of their NARs as they are stored, and of the listings.
    pub bytes: u64,
}

impl Cache {
    /// Pins a path of this cache, which is then kept with its closure. Pinning the same path under the same name again
    /// makes it the newest revision.
    ///
    /// # Errors
    /// If the path is not in the cache, the name is invalid, or the token may not pin.
    pub fn pin(&self, name: &str, hash_part: &HashPart, holds: PinFor, grant: &Grant) -> Result<Pin, Rejection> {
        let result = self.try_pin(name, hash_part, holds, grant);
        let outcome = result.as_ref().map(|pin| pin.path.clone()).map_err(ToString::to_string);
        self.audit(grant, "pin", name, &outcome);
        result
    }

    fn try_pin(&self, name: &str, hash_part: &HashPart, holds: PinFor, grant: &Grant) -> Result<Pin, Rejection> {
        grant.require(self.name(), Scope::Pin)?;
        if name.is_empty() || name.len() > NAME_LEN_MAX || name.chars().any(char::is_control) {
            let message = format!("the name of a pin must have 1 to {NAME_LEN_MAX} bytes and no control characters");
            return Err(Rejection::malformed(message));
        }
        if name.starts_with('@') {
            return Err(Rejection::malformed("names of pins that begin with '@' are those of releases"));
        }
        if holds.keep == Some(0) {
            return Err(Rejection::malformed("a pin must keep at least one revision"));
        }
        let _no_collection = self.no_collection()?;
        let absent =
            || Rejection::not_found(format_args!("'{hash_part}' is not in the cache '{}': push it first", self.name()));
        let path = self.index().path(self.id(), hash_part)?.ok_or_else(absent)?;
        let pin = Pin { name: name.to_owned(), path: path.path, created: self.now(), holds };
        // A bucket has no lock that keeps a collection of another server away.
        if !self.index().pin(self.id(), pin.clone(), true)? {
            return Err(absent());
        }
        Ok(pin)
    }

    /// Removes all pins with a name, or only those of a path. Returns how many.
    ///
    /// # Errors
    /// If the token may not pin, or the index fails.
    pub fn unpin(&self, name: &str, path: Option<&StorePath>, grant: &Grant) -> Result<usize, Rejection> {
        grant.require(self.name(), Scope::Pin)?;
        self.check_pin_name(name)?;
        let removed = self.index().unpin(self.id(), name, path.map(StorePath::hash_part))?;
        self.audit(grant, "unpin", name, &Ok(removed.to_string()));
        Ok(removed)
    }

    /// All pins, by name, the newest first.
    ///
    /// # Errors
    /// When the index fails.
    pub fn pins(&self) -> Result<Vec<Pin>, IndexError> {
        self.index().pins(self.id())
    }

    /// Pins of paths that are in the cache, at most so many, with what each keeps. This reads every path.
    ///
    /// # Errors
    /// When the index fails.
    pub fn pin_sizes(&self, max: usize) -> Result<Vec<PinSize>, IndexError> {
        let (snapshot, sizes) = (self.index().snapshot(self.id(), None)?, self.index().sizes(self.id())?);
        let size = |(path, pin): &(u32, Pin)| {
            let (paths, bytes) = closure_size(&snapshot, &sizes, [*path]);
            PinSize { pin: pin.clone(), paths, bytes }
        };
        Ok(snapshot.pins.iter().take(max).map(size).collect())
    }

    /// Bytes of the NARs and listings that pins keep, each counted once. This reads every path.
    pub(crate) fn pinned_bytes(&self) -> Result<u64, IndexError> {
        let (snapshot, sizes) = (self.index().snapshot(self.id(), None)?, self.index().sizes(self.id())?);
        let now = self.now();
        let pins = snapshot.pins.iter().filter(|(_, pin)| pin.is_in_force(now));
        Ok(closure_size(&snapshot, &sizes, pins.map(|(path, _)| *path)).1)
    }
}
