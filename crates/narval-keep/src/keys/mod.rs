//! Keys that the index has: all servers of a cache sign with them, and a rotation needs no restart.
//!
//! A server signs with these and with those of its configuration file. After a rotation, the key of before signs, too, until its end: by then clients
//! have the new one, and what was signed before keeps its signatures.

use std::collections::HashMap;

use std::ops::ControlFlow;
use std::sync::atomic::Ordering;

use narval_files::Work;
use narval_nix::{PublicKey, SecretKey, TrustedKeys};
use serde_json::{Value, json};

use crate::access::grant::{Grant, Scope};
use crate::cache::Cache;
use crate::data::Data;
use crate::index::IndexError;
use crate::name::CacheName;
use crate::records::tokens::SignKeyRecord;
use crate::rejection::{Rejection, RejectionKind};
use crate::upkeep::SignReport;

/// How often paths are signed again that were committed meanwhile by servers that did not know the new key yet.
const PASSES_MAX: usize = 3;

/// How long keys of before a rotation sign, in seconds, if nothing else is said: 30 days.
pub const OVERLAP_SECONDS: u64 = 30 * 24 * 60 * 60;

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

/// What came of a rotation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rotated {
    /// The new key.
    pub key: CacheKey,
    /// What it has signed of what keys of before had.
    pub signed: SignReport,
}

impl Rotated {
    /// As JSON: the key, `signed` and `failed`.
    pub fn to_value(&self) -> Value {
        let mut value = self.key.to_value();
        if let Some(fields) = value.as_object_mut() {
            fields.insert("signed".to_owned(), self.signed.signed.into());
            fields.insert("failed".to_owned(), self.signed.failed.into());
        }
        value
    }
}

fn secret(record: &SignKeyRecord) -> Result<SecretKey, Rejection> {
    SecretKey::parse_file(&record.secret).map_err(|_| {
        tracing::error!("the key '{}' in the index cannot be read", record.name);
        unreadable()
    })
}

fn unreadable() -> Rejection {
    Rejection::failed("a key in the index cannot be read; see the server's log")
}

impl Cache {
    /// Its keys in the index, the oldest first.
    ///
    /// # Errors
    /// If the index fails.
    pub fn keys(&self) -> Result<Vec<CacheKey>, Rejection> {
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
    pub fn rotate_key(&self, overlap_seconds: u64, grant: &Grant) -> Result<CacheKey, Rejection> {
        self.make_key(overlap_seconds, self.now(), grant)
    }

    /// Makes a new key, and signs with it what its keys have signed; nothing else, so a rotation never makes clients trust more. It can be interrupted: if there is a key that was made
    /// after `asked`, in seconds since 1970, it is the new one already.
    ///
    /// # Errors
    /// If the token may not administer the cache, it has too many keys, or the index fails.
    pub fn rotate(&self, overlap_seconds: u64, since: u64, grant: &Grant, work: &Work) -> Result<Rotated, Rejection> {
        let is_made = |keys: Vec<CacheKey>| keys.into_iter().rev().find(|key| key.created > since);
        let key = match is_made(self.keys()?) {
            Some(key) => key,
            // One who rotates at the same time may be faster.
            None => match self.make_key(overlap_seconds, self.now().max(since.saturating_add(1)), grant) {
                Err(rejection) if rejection.kind == RejectionKind::Conflict => {
                    is_made(self.keys()?).ok_or(rejection)?
                }
                made => made?,
            },
        };
        // This server may not have noticed the new key yet.
        let mut keys = self.sign_keys().to_vec();
        for record in self.index().sign_keys_of(self.id())?.iter().filter(|record| record.name == key.public_key.name())
        {
            if !keys.iter().any(|known| known.public_key() == key.public_key) {
                keys.push(secret(record)?);
            }
        }
        let before = self.keys()?.into_iter().map(|key| key.public_key);
        let before = before.chain(keys.iter().map(SecretKey::public_key)).filter(|known| *known != key.public_key);
        let vouching: TrustedKeys = before.collect();
        self.set_sign_keys(keys);
        let (all, mut signed) = (self.usage()?.paths, SignReport::default());
        for _ in 0..PASSES_MAX {
            work.begin("signing", "paths", all, 0);
            let mut counted = 0;
            let pass = self.sign_if(None, Some(&vouching), false, grant, |report| {
                work.count((report.paths - std::mem::replace(&mut counted, report.paths)) as u64);
                if work.is_stopped() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            })?;
            signed = SignReport { signed: signed.signed + pass.signed, ..pass };
            if work.is_stopped() || pass.unsigned == pass.failed {
                break;
            }
        }
        Ok(Rotated { key, signed })
    }

    fn make_key(&self, overlap_seconds: u64, created: u64, grant: &Grant) -> Result<CacheKey, Rejection> {
        grant.require(self.name(), Scope::Admin)?;
        if self.settings().managed && !self.data().makes_keys() {
            let message = format!(
                "the cache '{}' signs with keys of the servers' configuration files ('managed-sign-keys'): replace them there",
                self.name()
            );
            return Err(Rejection::conflict(message));
        }
        let before = self.index().sign_keys_of(self.id())?;
        if before.len() >= KEYS_MAX {
            let message = format!("the cache '{}' has {KEYS_MAX} keys, which is as many as it may have", self.name());
            return Err(Rejection::conflict(message));
        }
        let name = format!("{}-{}", self.name(), before.len() + 1);
        let key = SecretKey::generate(&name).map_err(Rejection::failed)?;
        let now = self.now();
        let record = SignKeyRecord {
            cache: self.name().to_string(),
            name,
            secret: key.to_file_text().ok_or_else(unreadable)?.to_string(),
            created,
            ends: None,
        };
        // Two at the same time: the later one finds the name taken.
        if !self.index().add_sign_key(self.id(), record, now.saturating_add(overlap_seconds))? {
            return Err(Rejection::conflict("another rotation has just made a key: look at it first"));
        }
        let made = CacheKey { public_key: key.public_key(), created, ends: None };
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
    /// Sets whether caches that the API creates get keys in the index, which is so at first. All servers of the same data should have the same.
    pub fn set_makes_keys(&self, makes_keys: bool) {
        self.shared().makes_keys.store(makes_keys, Ordering::Relaxed);
    }

    /// Whether they do.
    pub fn makes_keys(&self) -> bool {
        self.shared().makes_keys.load(Ordering::Relaxed)
    }

    /// The keys of the index that sign now, by cache.
    ///
    /// # Errors
    /// If the index fails.
    pub fn signing_keys(&self) -> Result<HashMap<CacheName, Vec<SecretKey>>, Rejection> {
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
