//! Caches.

use crate::index::tx::{NOTE, Reading, Row, TxError, args, statements};
use crate::index::{Index, IndexError};
use crate::name::CacheName;
use crate::records::paths::{CacheId, CacheRecord};

statements! {
    ALL() = "select id, name, settings from narval.caches order by name";
    FIND(Text) = "select id, name, settings from narval.caches where name = $1";
    CREATE(Text, Text, Int) = "insert into narval.caches (name, settings, created) values ($1, $2, $3) on conflict (name) do nothing";
    SET(Text, Int) = "update narval.caches set settings = $1 where id = $2";
}

fn record(row: &dyn Row) -> Result<CacheRecord, TxError> {
    Ok(CacheRecord { id: CacheId(row.get(0)?), name: row.parsed(1)?, settings: row.get(2)? })
}

impl dyn Index + '_ {
    /// All caches.
    pub(crate) fn caches(&self) -> Result<Vec<CacheRecord>, IndexError> {
        self.read(Reading::Some, |tx| tx.all(&ALL, &[], record))
    }

    /// Creates a cache. An existing one of this name is left unchanged, and returned.
    pub(crate) fn create_cache(&self, name: &CacheName, settings: &str, now: u64) -> Result<CacheRecord, IndexError> {
        let (name, settings) = (name.clone(), settings.to_owned());
        self.write(NOTE, move |tx| {
            tx.execute(&CREATE, &args![name.as_str(), &settings, now])?;
            tx.is_visible()?;
            Ok(tx.first(&FIND, &args![name.as_str()], record)?.ok_or("the row of a new cache is gone")?)
        })
    }

    /// Changes the settings of a cache.
    pub(crate) fn set_settings(&self, cache: CacheId, settings: &str) -> Result<(), IndexError> {
        let settings = settings.to_owned();
        self.write(NOTE, move |tx| {
            tx.execute(&SET, &args![&settings, cache])?;
            tx.is_visible()
        })
    }
}
