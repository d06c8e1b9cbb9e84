//! Tokens.

use crate::index::tx::{NOTE, NOTE_LATER, Reading, Row, TxError, args, statements};
use crate::index::{Index, IndexError};
use crate::records::tokens::TokenRecord;

macro_rules! columns {
    () => {
        "id, hash, label, scopes, caches, created, expires, last_used, revoked"
    };
}

statements! {
    ADD(Text, Bytes, Text, Text, Text, Int, Int, Int, Int) = concat!(
        "insert into narval.tokens (", columns!(), ") values ($1, $2, $3, $4, $5, $6, $7, $8, $9) on conflict do nothing"
    );
    FIND(Text) = concat!("select ", columns!(), " from narval.tokens where id = $1");
    ALL() = concat!("select ", columns!(), " from narval.tokens order by created, id");
    CHANGE(Text, Text, Text) = "update narval.tokens set caches = $1, scopes = $2 where id = $3 and revoked is null";
    REVOKE(Int, Text) = "update narval.tokens set revoked = coalesce(revoked, $1) where id = $2";
    FORGET(Int) = "delete from narval.tokens where expires is not null and expires < $1";
    USED() { id: Text, time: Int } = "update narval.tokens as t set last_used = greatest(coalesce(t.last_used, 0), r.time) \
         from {rows} where t.id = r.id";
}

fn record(row: &dyn Row) -> Result<TokenRecord, TxError> {
    Ok(TokenRecord {
        id: row.get(0)?,
        hash: row.get(1)?,
        label: row.get(2)?,
        scopes: row.get(3)?,
        caches: row.get(4)?,
        created: row.get(5)?,
        expires: row.get(6)?,
        last_used: row.get(7)?,
        revoked: row.get(8)?,
    })
}

impl dyn Index + '_ {
    /// Records a token. Returns `false` if there is one with its id.
    pub(crate) fn add_token(&self, token: TokenRecord) -> Result<bool, IndexError> {
        self.write(NOTE, move |tx| {
            let TokenRecord { id, hash, label, scopes, caches, created, expires, last_used, revoked } = &token;
            let args = args![id, hash, label, scopes, caches, *created, *expires, *last_used, *revoked];
            Ok(tx.execute(&ADD, &args)? > 0)
        })
    }

    /// A token.
    pub(crate) fn token(&self, id: &str) -> Result<Option<TokenRecord>, IndexError> {
        self.read(Reading::Some, |tx| tx.first(&FIND, &args![id], record))
    }

    /// All tokens, the oldest first.
    pub(crate) fn tokens(&self) -> Result<Vec<TokenRecord>, IndexError> {
        self.read(Reading::Some, |tx| tx.all(&ALL, &[], record))
    }

    /// Changes the caches and the scopes of a token that is not revoked. Returns `false` if there is none with this id.
    pub(crate) fn change_token(&self, id: &str, caches: &str, scopes: &str) -> Result<bool, IndexError> {
        let (id, caches, scopes) = (id.to_owned(), caches.to_owned(), scopes.to_owned());
        self.write(NOTE, move |tx| {
            // As below.
            tx.is_visible()?;
            Ok(tx.execute(&CHANGE, &args![&caches, &scopes, &id])? > 0)
        })
    }

    /// Revokes a token. Returns `false` if there is none with this id.
    pub(crate) fn revoke_token(&self, id: &str, now: u64) -> Result<bool, IndexError> {
        let id = id.to_owned();
        self.write(NOTE, move |tx| {
            // Servers remember what a token allows as long as nothing changes.
            tx.is_visible()?;
            Ok(tx.execute(&REVOKE, &args![now, &id])? > 0)
        })
    }

    /// Removes tokens that expired before this time.
    pub(crate) fn forget_tokens(&self, before: u64) -> Result<(), IndexError> {
        self.write(NOTE_LATER, move |tx| tx.execute(&FORGET, &args![before]).map(drop))
    }

    /// Records when tokens were last used.
    pub(crate) fn tokens_used(&self, used: Vec<(String, u64)>) -> Result<(), IndexError> {
        self.write(NOTE_LATER, move |tx| {
            let rows: Vec<_> = used.iter().flat_map(|(id, time)| args![id, *time]).collect();
            tx.query(&USED, &[], &rows, &mut |_| Ok(())).map(drop)
        })
    }
}
