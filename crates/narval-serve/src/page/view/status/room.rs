//! Room: how full the cache is, how it grows, and the file systems.

use maud::{Markup, html};
use narval_keep::SizeOfDay;

use super::Status;
use super::chart::bar;
use crate::page::view::words::{ago, bytes, duration, many};

const DAY_SECONDS: u64 = 24 * 60 * 60;

/// How a cache has grown.
#[derive(Debug, PartialEq, Eq)]
struct Growth {
    /// Over so many days,
    days: u64,
    /// so many bytes; negative if it has shrunk.
    bytes: i64,
}

/// The growth over the last week and over the last month, as far as it is known: of the newest size that is at least so old, or of the
/// oldest one if it is at least a day old.
fn growth(sizes: &[SizeOfDay]) -> Vec<Growth> {
    let Some(today) = sizes.last() else { return Vec::new() };
    let over = |days: u64| {
        let before = sizes.iter().rev().find(|size| today.day - size.day >= days).or(sizes.first())?;
        let days = today.day - before.day;
        let bytes = i64::try_from(today.bytes).ok()? - i64::try_from(before.bytes).ok()?;
        (days > 0).then_some(Growth { days, bytes })
    };
    let mut all: Vec<Growth> = [7, 30].into_iter().filter_map(over).collect();
    all.dedup();
    all
}

/// In how many seconds so many bytes are used up, if it goes on as over the longest time.
fn used_up_in(growth: &[Growth], left: u64) -> Option<u64> {
    let Growth { days, bytes } = growth.last()?;
    let bytes = u64::try_from(*bytes).ok().filter(|bytes| *bytes > 0)?;
    u64::try_from(u128::from(left) * u128::from(days * DAY_SECONDS) / u128::from(bytes)).ok()
}

impl Status<'_> {
    pub(super) fn room(&self) -> Markup {
        let disks = if self.visit.is_operator() { self.service.disks(self.state) } else { Vec::new() };
        html! {
            (self.of_cache())
            @for (what, used, most) in self.service.bounded() {
                p { (what) ": " b { (bytes(used)) } " of at most " (bytes(most)) "." }
                (bar(&format!("{what}: {} of {}", bytes(used), bytes(most)), &[used], most))
            }
            @for disk in &disks {
                p {
                    "File system of the " (if disk.used_for == "data" { "data folder" } else { "NAR cache" }) ": "
                    b { (bytes(disk.free)) } " of " (bytes(disk.size)) " are free"
                    @if let Some(left) = disk.full_in { ", full in about " (duration(left)) " as it went in the last hours" }
                    "."
                }
                (bar(
                    &format!("{} of {} are used", bytes(disk.size.saturating_sub(disk.free)), bytes(disk.size)),
                    &[disk.size.saturating_sub(disk.free)],
                    disk.size,
                ))
            }
        }
    }

    fn of_cache(&self) -> Markup {
        let Some(cache) = self.service.cache() else {
            return html! { p.says { "This server keeps no paths of its own: it serves a store." } };
        };
        let Ok(usage) = cache.usage() else { return html! { p.says { "The index cannot be read." } } };
        // Counted on a thread of its own, now and then.
        let full = self.service.fullness().unwrap_or_default();
        let (settings, done) = (cache.settings(), cache.collections());
        let used = usage.bytes.saturating_add(usage.small_bytes);
        let limit = settings.quota.into_iter().chain(settings.size_max).min();
        let growth = growth(&cache.sizes_by_day());
        let left = limit.and_then(|limit| used_up_in(&growth, limit.saturating_sub(used)));
        html! {
            p.says {
                @if usage.paths == 0 { b { "No path yet" } } @else { b { (bytes(used)) } " in " (many(usage.paths, "path")) }
                @if let Some(limit) = limit {
                    (if usage.paths == 0 { "; at most " } else { " of at most " }) (bytes(limit))
                    @if settings.size_max == Some(limit) { ", beyond which those unused for longest are removed" }
                }
                @if full.pins > 0 { "; " (bytes(full.pinned_bytes)) " are pinned" }
                "."
            }
            @if let Some(limit) = limit {
                (bar(
                    &format!("{} of {} are used, {} pinned", bytes(used), bytes(limit), bytes(full.pinned_bytes)),
                    &[full.pinned_bytes.min(used), used.saturating_sub(full.pinned_bytes)],
                    limit,
                ))
                @if full.pins > 0 { p.soft.ends { span { "pinned" } span { "free" } } }
            }
            @if !growth.is_empty() {
                p {
                    @for (at, grown) in growth.iter().enumerate() {
                        (if at == 0 { "It " } else { " and " })
                        @if at == 0 || (grown.bytes < 0) != growth.first().is_some_and(|first| first.bytes < 0) {
                            (if grown.bytes < 0 { "shrank by " } else { "grew by " })
                        }
                        (bytes(grown.bytes.unsigned_abs())) " in " (many(grown.days, "day"))
                    }
                    @if let Some(left) = left { "; at its limit in about " (duration(left)) }
                    "."
                }
            }
            p.soft {
                @match full.collected {
                    Some(collected) => {
                        "Last collection " (ago(collected))
                        @if done.last.is_some() {
                            ", which removed " (many(done.last_removed.0, "path")) " and " (bytes(done.last_removed.1))
                        }
                        "."
                    }
                    None => "Nothing was collected yet.",
                }
                @match settings.retention_days {
                    Some(days) => { " Paths are kept for " (many(days, "day")) " after their last use." }
                    None => " Paths are kept for ever.",
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(all: &[(u64, u64)]) -> Vec<SizeOfDay> {
        all.iter().map(|(day, bytes)| SizeOfDay { day: *day, bytes: *bytes }).collect()
    }

    #[test]
    fn growth_is_told_as_far_as_it_is_known() {
        assert_eq!(growth(&[]), []);
        assert_eq!(growth(&sizes(&[(5, 10)])), [], "one day is no growth");
        assert_eq!(growth(&sizes(&[(5, 10), (8, 40)])), [Growth { days: 3, bytes: 30 }]);
        let month: Vec<_> = (0..=31).map(|day| (day, day * 10)).collect();
        let grown = growth(&sizes(&month));
        assert_eq!(grown, [Growth { days: 7, bytes: 70 }, Growth { days: 30, bytes: 300 }]);
        assert_eq!(used_up_in(&grown, 350), Some(35 * DAY_SECONDS));
        assert_eq!(duration(35 * DAY_SECONDS), "5 weeks");
        assert_eq!(used_up_in(&growth(&sizes(&[(1, 50), (9, 20)])), 350), None, "it shrinks");
    }
}
