//! Tokens.

use tokio_postgres::{Client, Row};

use super::failed::Failed;
use super::sql::{execute, get, int, maybe_number, number, p, query, query_opt};
use super::transaction::Change;
use crate::index::TokenRecord;

const COLUMNS: &str = "id, hash, label, scopes, caches, created, expires, last_used, revoked";

fn record(row: &Row) -> Result<TokenRecord, Failed> {
    Ok(TokenRecord {
        id: get(row, 0)?,
        hash: *super::sql::hash(row, 1)?.as_bytes(),
        label: get(row, 2)?,
        scopes: get(row, 3)?,
        caches: get(row, 4)?,
        created: number(row, 5)?,
        expires: maybe_number(row, 6)?,
        last_used: maybe_number(row, 7)?,
        revoked: maybe_number(row, 8)?,
    })
}

pub(super) async fn add(change: &Change<'_>, token: &TokenRecord) -> Result<bool, Failed> {
    let add = format!(
        "insert into narval.tokens ({COLUMNS}) values ($1, $2, $3, $4, $5, $6, $7, $8, $9) on conflict do nothing"
    );
    let (created, expires) = (int(token.created), token.expires.map(int));
    let (last_used, revoked) = (token.last_used.map(int), token.revoked.map(int));
    let hash: &[u8] = &token.hash;
    let params = [
        p(&token.id),
        p(&hash),
        p(&token.label),
        p(&token.scopes),
        p(&token.caches),
        p(&created),
        p(&expires),
        p(&last_used),
        p(&revoked),
    ];
    execute(change.client, &add, &params).await.map(|added| added > 0)
}

pub(super) async fn find(client: &Client, id: &str) -> Result<Option<TokenRecord>, Failed> {
    let query = format!("select {COLUMNS} from narval.tokens where id = $1");
    query_opt(client, &query, &[p(&id)]).await?.map(|row| record(&row)).transpose()
}

pub(super) async fn all(client: &Client) -> Result<Vec<TokenRecord>, Failed> {
    let all = format!("select {COLUMNS} from narval.tokens order by created, id");
    query(client, &all, &[]).await?.iter().map(record).collect()
}

pub(super) async fn change(change: &Change<'_>, (id, caches, scopes): (&str, &str, &str)) -> Result<bool, Failed> {
    let update = "update narval.tokens set caches = $1, scopes = $2 where id = $3 and revoked is null";
    // As below.
    change.is_visible().await?;
    Ok(execute(change.client, update, &[p(&caches), p(&scopes), p(&id)]).await? > 0)
}

pub(super) async fn revoke(change: &Change<'_>, id: &str, now: u64) -> Result<bool, Failed> {
    let revoke = "update narval.tokens set revoked = coalesce(revoked, $1) where id = $2";
    // Servers remember what a token allows as long as nothing changes.
    change.is_visible().await?;
    Ok(execute(change.client, revoke, &[p(&int(now)), p(&id)]).await? > 0)
}

pub(super) async fn used(change: &Change<'_>, used: &[(String, u64)]) -> Result<(), Failed> {
    let update = "update narval.tokens t set last_used = greatest(coalesce(t.last_used, 0), u.time) \
         from unnest($1, $2) as u (id, time) where t.id = u.id";
    let ids: Vec<&str> = used.iter().map(|(id, _)| id.as_str()).collect();
    let times: Vec<i64> = used.iter().map(|(_, time)| int(*time)).collect();
    execute(change.client, update, &[p(&ids), p(&times)]).await.map(drop)
}

pub(super) async fn forget(change: &Change<'_>, before: u64) -> Result<(), Failed> {
    let forget = "delete from narval.tokens where expires is not null and expires < $1";
    execute(change.client, forget, &[p(&int(before))]).await.map(drop)
}
