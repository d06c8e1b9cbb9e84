//! The audit log.

use narval_keep::{AuditLine, CacheName};

use super::asked::{Answered, Asked, of_data};
use super::tokens::governs;
use crate::error::ServeError;

/// `GET audit`
pub(super) fn list(asked: &Asked<'_>) -> Result<Answered, ServeError> {
    let (grant, only) = (asked.grant()?, asked.query("cache"));
    // What is about no cache, such as tokens, is for those who administer all of them.
    let sees_all = governs(grant, &["*".to_owned()]);
    let is_wanted = |line: &AuditLine| {
        let is_seen = match &line.cache {
            Some(cache) => CacheName::parse(cache).is_ok_and(|cache| grant.caches.matches(&cache)),
            None => sees_all,
        };
        is_seen && only.is_none_or(|only| line.cache.as_deref() == Some(only))
    };
    let (since, after) = (asked.number("since")?.unwrap_or(0), asked.number("after")?.unwrap_or(0));
    let (lines, next) = asked.data.audit_page(since, after, asked.limit()?, is_wanted).map_err(of_data)?;
    Answered::page(&lines, next)
}
