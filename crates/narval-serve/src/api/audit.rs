//! The audit log.

use narval_keep::{AuditLine, CacheName};

use super::call::{ApiAnswer, ApiCall, of_data};
use super::tokens::governs;
use crate::error::ServeError;

/// `GET audit`
pub(super) fn list(call: &ApiCall<'_>) -> Result<ApiAnswer, ServeError> {
    let (grant, only) = (call.grant()?, call.query("cache"));
    // What is about no cache, such as tokens, is for those who administer all of them.
    let sees_all = governs(grant, &["*".to_owned()]);
    let is_wanted = |line: &AuditLine| {
        let is_seen = match &line.cache {
            Some(cache) => CacheName::parse(cache).is_ok_and(|cache| grant.caches.matches(&cache)),
            None => sees_all,
        };
        is_seen && only.is_none_or(|only| line.cache.as_deref() == Some(only))
    };
    let (since, after) = (call.number("since")?.unwrap_or(0), call.number("after")?.unwrap_or(0));
    let (lines, next) = call.data.audit_page(since, after, call.limit()?, is_wanted).map_err(of_data)?;
    ApiAnswer::page(&lines, next)
}
