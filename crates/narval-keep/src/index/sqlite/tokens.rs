//! Tokens.

use rusqlite::{Connection, OptionalExtension, Row, params};

use crate::index::TokenRecord;

const COLUMNS: &str = "id, hash, label, scopes, caches, created, expires, last_used, revoked";

fn record(row: &Row<'_>) -> rusqlite::Result<TokenRecord> {
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

pub(super) fn add(connection: &Connection, token: &TokenRecord) -> rusqlite::Result<bool> {
    let add = format!("insert into tokens ({COLUMNS}) values (?, ?, ?, ?, ?, ?, ?, ?, ?) on conflict do nothing");
    connection
        .execute(
            &add,
            params![
                token.id,
                token.hash,
                token.label,
                token.scopes,
                token.caches,
                token.created,
                token.expires,
                token.last_used,
                token.revoked
            ],
        )
        .map(|added| added > 0)
}

pub(super) fn get(connection: &Connection, id: &str) -> rusqlite::Result<Option<TokenRecord>> {
    let query = format!("select {COLUMNS} from tokens where id = ?");
    connection.prepare_cached(&query)?.query_row([id], record).optional()
}

pub(super) fn all(connection: &Connection) -> rusqlite::Result<Vec<TokenRecord>> {
    let query = format!("select {COLUMNS} from tokens order by created, id");
    connection.prepare_cached(&query)?.query_map([], record)?.collect()
}

pub(super) fn change(connection: &Connection, id: &str, caches: &str, scopes: &str) -> rusqlite::Result<bool> {
    let change = "update tokens set caches = ?, scopes = ? where id = ? and revoked is null";
    // As below.
    super::schema::is_visible(connection)?;
    Ok(connection.execute(change, params![caches, scopes, id])? > 0)
}

pub(super) fn revoke(connection: &Connection, id: &str, now: u64) -> rusqlite::Result<bool> {
    let revoke = "update tokens set revoked = coalesce(revoked, ?) where id = ?";
    // Servers cache what a token allows until the stamp changes.
    super::schema::is_visible(connection)?;
    Ok(connection.execute(revoke, params![now, id])? > 0)
}

pub(super) fn used(connection: &Connection, used: &[(String, u64)]) -> rusqlite::Result<()> {
    let mut statement =
        connection.prepare_cached("update tokens set last_used = max(coalesce(last_used, 0), ?) where id = ?")?;
    used.iter().try_for_each(|(id, time)| statement.execute(params![time, id]).map(drop))
}

pub(super) fn forget(connection: &Connection, before: u64) -> rusqlite::Result<()> {
    connection.execute("delete from tokens where expires is not null and expires < ?", [before]).map(drop)
}
