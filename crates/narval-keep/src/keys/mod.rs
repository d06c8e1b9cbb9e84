//! Keys that the index has: all servers of a cache sign with them, and a rotation needs no restart.
//!
//! A server signs with these and with those of its configuration file. After a rotation, the key of before signs, too, until its end: by then clients
//! have the new one, and what was signed before keeps its signatures.

use std::collections::HashMap;

use narval_nix::{PublicKey, SecretKey};
use serde_json::{Value, json};

use crate::index::SignKeyRecord;
use crate::{Cache, CacheName, Data, Grant, IndexError, Refusal, RefusalKind, Scope};

/// The most keys that a cache has in the index, those that have ended included.
const KEYS_MAX: usize = 64;

/// A key of a cache. Its secret is never shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheKey {
    /// Its public key, which clients trust.
    pub public_key: PublicKey,
    /// When it was made, in seconds since 1970.
    pub created: u64,
    /// Until when it signs; `None`: until the next rotation.
    pub ends: Option<u64>,
}

impl CacheKey {
    /// As JSON.
    pub fn to_value(&self) -> Value {
        json!({"name": self.public_key.name(), "publicKey": self.public_key.to_string(), "created": self.created, "ends": self.ends})
    }
}

fn secret(record: &SignKeyRecord) -> Result<SecretKey, Refusal> {
    SecretKey::parse_file(&record.secret).map_err(|_| {
        tracing::error!("the key '{}' in the index cannot be read", record.name);
        unreadable()
    })
}

fn unreadable() -> Refusal {
    Refusal::new(RefusalKind::Failed, "a key in the index cannot be read; see the server's log")
}

impl Cache {
    /// Its keys in the index, the oldest first.
    ///
    /// # Errors
    /// If the index fails.
    pub fn keys(&self) -> Result<Vec<CacheKey>, Refusal> {
        let records = self.index().sign_keys_of(self.id())?;
        let key = |record: &SignKeyRecord| {
            Ok(CacheKey { public_key: secret(record)?.public_key(), created: record.created, ends: record.ends })
        };
        records.iter().map(key).collect()
    }

    /// Makes a new key. Those of before sign for so many seconds more.
    ///
    /// # Errors
    /// If the token may not administer the cache, or it has too many keys.
    pub fn rotate_key(&self, overlap_seconds: u64, grant: &Grant) -> Result<CacheKey, Refusal> {
        grant.require(self.name(), Scope::Admin)?;
        let before = self.index().sign_keys_of(self.id())?;
        if before.len() >= KEYS_MAX {
            let message = format!("the cache '{}' has {KEYS_MAX} keys, which is as many as it may have", self.name());
            return Err(Refusal::new(RefusalKind::Conflict, message));
        }
        let name = format!("{}-{}", self.name(), before.len() + 1);
        let key = SecretKey::generate(&name).map_err(|error| Refusal::new(RefusalKind::Failed, error))?;
        let now = self.now();
        let record = SignKeyRecord {
            cache: self.name().to_string(),
            name,
            secret: key.to_file_text().ok_or_else(unreadable)?.to_string(),
            created: now,
            ends: None,
        };
        // Two at the same time: the later one finds the name taken.
        if !self.index().add_sign_key(self.id(), record, now.saturating_add(overlap_seconds))? {
            return Err(Refusal::new(RefusalKind::Conflict, "another rotation has just made a key: look at it first"));
        }
        let made = CacheKey { public_key: key.public_key(), created: now, ends: None };
        self.audit(
            grant,
            "rotate key",
            made.public_key.name(),
            &Ok(format!("those of before end in {overlap_seconds} s")),
        );
        Ok(made)
    }

    /// Forgets its keys.
    pub(crate) fn forget_keys(&self) -> Result<(), IndexError> {
        self.index().forget_sign_keys(self.id())
    }
}

impl Data {
    /// The keys of the index that sign now, by cache.
    ///
    /// # Errors
    /// If the index fails.
    pub fn signing_keys(&self) -> Result<HashMap<CacheName, Vec<SecretKey>>, Refusal> {
        let index = &self.shared().index;
        let (mut keys, now) = (HashMap::<CacheName, Vec<SecretKey>>::new(), index.now());
        for record in index.sign_keys()?.iter().filter(|record| record.ends.is_none_or(|ends| now < ends)) {
            if let Ok(cache) = record.cache.parse() {
                keys.entry(cache).or_default().push(secret(record)?);
            }
        }
        Ok(keys)
    }
}
