//! Keys that caches sign with.

use crate::index::tx::{NOTE, Reading, Row, TxError, args, statements};
use crate::index::{Index, IndexError};
use crate::records::paths::CacheId;
use crate::records::tokens::SignKeyRecord;

statements! {
    ALL() = "select c.name, k.name, k.secret, k.created, k.ends from narval.sign_keys k join narval.caches c on c.id = k.cache order by k.cache, k.created, k.name";
    OF(Int) = "select c.name, k.name, k.secret, k.created, k.ends from narval.sign_keys k join narval.caches c on c.id = k.cache \
         where k.cache = $1 order by k.created, k.name";
    ADD(Int, Text, Text, Int) = "insert into narval.sign_keys (cache, name, secret, created) values ($1, $2, $3, $4) on conflict do nothing";
    RESTORE(Int, Text, Text, Int, Int) = "insert into narval.sign_keys (cache, name, secret, created, ends) values ($1, $2, $3, $4, $5) \
         on conflict do nothing";
    END(Int, Int, Text) = "update narval.sign_keys set ends = $1 where cache = $2 and name <> $3 and ends is null";
    FORGET(Int) = "delete from narval.sign_keys where cache = $1";
}

fn record(row: &dyn Row) -> Result<SignKeyRecord, TxError> {
    Ok(SignKeyRecord {
        cache: row.get(0)?,
        name: row.get(1)?,
        secret: row.get(2)?,
        created: row.get(3)?,
        ends: row.get(4)?,
    })
}

impl dyn Index + '_ {
    /// The keys of all caches, the oldest of each first.
    pub(crate) fn sign_keys(&self) -> Result<Vec<SignKeyRecord>, IndexError> {
        self.read(Reading::Some, |tx| tx.all(&ALL, &[], record))
    }

    /// Those of a cache.
    pub(crate) fn sign_keys_of(&self, cache: CacheId) -> Result<Vec<SignKeyRecord>, IndexError> {
        self.read(Reading::Some, |tx| tx.all(&OF, &args![cache], record))
    }

    /// Adds a key; the others that have no end get this one. Returns `false` if there is one of its name.
    pub(crate) fn add_sign_key(&self, cache: CacheId, key: SignKeyRecord, others_end: u64) -> Result<bool, IndexError> {
        self.write(NOTE, move |tx| {
            if tx.execute(&ADD, &args![cache, &key.name, &key.secret, key.created])? == 0 {
                return Ok(false);
            }
            tx.execute(&END, &args![others_end, cache, &key.name])?;
            tx.is_visible()?;
            Ok(true)
        })
    }

    /// Adds a key as it was elsewhere. One of its name that is there stays.
    pub(crate) fn restore_sign_key(&self, cache: CacheId, key: SignKeyRecord) -> Result<(), IndexError> {
        self.write(NOTE, move |tx| {
            tx.execute(&RESTORE, &args![cache, &key.name, &key.secret, key.created, key.ends])?;
            tx.is_visible()
        })
    }

    /// Removes the keys of a cache.
    pub(crate) fn forget_sign_keys(&self, cache: CacheId) -> Result<(), IndexError> {
        self.write(NOTE, move |tx| {
            tx.execute(&FORGET, &args![cache])?;
            tx.is_visible()
        })
    }
}
