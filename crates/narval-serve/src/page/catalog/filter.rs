//! Selections of paths.

use std::cmp::Reverse;
use std::collections::HashSet;

use narval_client::clock;

use super::is_unsigned;
use super::query::{Filter, SearchQuery};
use super::table::{Group, Groups, PAGE_LEN, TOTAL_MAX, Table};
use crate::error::ServeError;
use crate::page::places::Places;

/// How long a path is not used, in seconds.
const UNUSED_SECONDS: u64 = 30 * 24 * 60 * 60;
/// Paths whose signatures are looked at for one answer, the newest ones: each takes about 0.1 ms.
const VERIFIED_MAX: usize = 10_000;

/// The paths of a selection, each on its own.
pub(super) fn filtered(
    table: &Table,
    places: &Places,
    query: &SearchQuery,
    filter: Filter,
    pinned: &HashSet<String>,
) -> Result<Groups, ServeError> {
    let mut rows = Vec::new();
    let mut more = false;
    let unused_before = clock::now().saturating_sub(UNUSED_SECONDS);
    let wanted = query.from.saturating_add(PAGE_LEN);
    let mut looked_at = 0;
    let mut failed = None;
    table.each_hit(query, |at| {
        let Some((hash, size, used)) = table.row(at) else { return true };
        let is_wanted = match filter {
            Filter::Pinned => pinned.contains(hash),
            Filter::Largest => true,
            Filter::Unused => used.is_some_and(|used| used < unused_before),
            Filter::Unsigned => {
                looked_at += 1;
                more = looked_at > VERIFIED_MAX || rows.len() > wanted;
                match is_unsigned(places, hash) {
                    _ if more => return false,
                    Ok(is_unsigned) => is_unsigned,
                    Err(error) => {
                        failed = Some(error);
                        return false;
                    }
                }
            }
        };
        if is_wanted {
            rows.push((size, at));
        }
        // All sizes are looked at, and pins are few.
        filter != Filter::Unsigned || rows.len() <= TOTAL_MAX
    });
    if let Some(error) = failed {
        return Err(error);
    }
    match filter {
        Filter::Largest => rows.sort_by_key(|(size, _)| Reverse(*size)),
        Filter::Unused => rows.reverse(),
        Filter::Pinned | Filter::Unsigned => {}
    }
    let alone = |(_, at): &(u64, usize)| Some(Group { newest: table.found(*at)?, older: Vec::new(), older_count: 0 });
    let list = rows.iter().skip(query.from).take(PAGE_LEN).filter_map(alone).collect();
    Ok(Groups { list, total: rows.len(), more, ..table.nothing() })
}
