//! The audit log.

use tokio_postgres::{Client, Row};

use super::failed::Failed;
use super::sql::{execute, get, int, number, p, query};
use super::transaction::Change;
use crate::AuditLine;

/// Adds lines, in their order.
pub(super) async fn add(change: &Change<'_>, lines: &[AuditLine]) -> Result<(), Failed> {
    let add = "insert into narval.audit (time, token, label, peer, cache, action, subject, result, detail) \
         select * from unnest($1, $2, $3, $4, $5, $6, $7, $8, $9)";
    let times: Vec<i64> = lines.iter().map(|line| int(line.time)).collect();
    let texts = |of: fn(&AuditLine) -> &str| -> Vec<String> { lines.iter().map(|line| storable(of(line))).collect() };
    let maybe = |of: fn(&AuditLine) -> Option<&str>| -> Vec<Option<String>> {
        lines.iter().map(|line| of(line).map(storable)).collect()
    };
    let (tokens, labels) = (texts(|line| &line.token), texts(|line| &line.label));
    let (peers, caches) = (maybe(|line| line.peer.as_deref()), maybe(|line| line.cache.as_deref()));
    let (actions, subjects) = (texts(|line| &line.action), texts(|line| &line.subject));
    let (results, details) = (texts(|line| &line.result), texts(|line| &line.detail));
    let params =
        [p(&times), p(&tokens), p(&labels), p(&peers), p(&caches), p(&actions), p(&subjects), p(&results), p(&details)];
    execute(change.client, add, &params).await.map(drop)
}

/// A text that PostgreSQL can store: without NUL.
fn storable(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}

/// At most this many lines after a number, and not before a time.
pub(super) async fn after(
    client: &Client,
    after: i64,
    since: u64,
    max: usize,
) -> Result<Vec<(i64, AuditLine)>, Failed> {
    let some = "select id, time, token, label, peer, cache, action, subject, result, detail from narval.audit \
         where id > $1 and time >= $2 order by id limit $3";
    let (since, max) = (int(since), int(max as u64));
    query(client, some, &[p(&after), p(&since), p(&max)]).await?.iter().map(line).collect()
}

fn line(row: &Row) -> Result<(i64, AuditLine), Failed> {
    let line = AuditLine {
        time: number(row, 1)?,
        token: get(row, 2)?,
        label: get(row, 3)?,
        peer: get(row, 4)?,
        cache: get(row, 5)?,
        action: get(row, 6)?,
        subject: get(row, 7)?,
        result: get(row, 8)?,
        detail: get(row, 9)?,
    };
    Ok((get(row, 0)?, line))
}

/// Removes the lines before a time.
pub(super) async fn forget(change: &Change<'_>, before: u64) -> Result<(), Failed> {
    execute(change.client, "delete from narval.audit where time < $1", &[p(&int(before))]).await.map(drop)
}
