//! `/metrics`: what the engine and the service count, as OpenMetrics.

use std::path::Path;

use narval_cache::upstream::{SECONDS, UpstreamsStats};
use narval_client::trace::{self, Work};
use narval_codec::decode::WindowStats;
use narval_http::{Body, HeaderValue, Response, StatusCode, header};
use narval_keep::{Cache, Data, Fullness, PeerStats, TokenEnd};
use rustix::fs::statvfs;

use crate::families::{Families, Named};
use crate::nar::zstd::NarCache;

/// The content type that OpenMetrics demands.
const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The memory for the windows of uploads' decoders.
pub(crate) fn add_windows(families: &mut Families, stats: &WindowStats) {
    let WindowStats { total, used, refused } = *stats;
    let help = "Memory reserved for the windows of uploads' decoders";
    families.add(Named::gauge("narval_decode_memory_bytes", help), &[], used);
    let help = "The maximum of narval_decode_memory_bytes (limits.decode-memory)";
    families.add(Named::gauge("narval_decode_memory_max_bytes", help), &[], total);
    let help = "Uploads that were answered 503 because there was no memory for their windows";
    families.add(Named::counter("narval_decode_memory_refused", help), &[], refused);
}

/// What came from other nodes.
fn add_peers(families: &mut Families, stats: &PeerStats) {
    let PeerStats { nodes, received, fallbacks } = *stats;
    let help = "Nodes that share their disk caches, with this one";
    families.add(Named::gauge("narval_peer_nodes", help), &[], nodes);
    let help = "Bytes of NARs that came from other nodes";
    families.add(Named::counter("narval_peer_received_bytes", help), &[], received);
    let help = "NARs kept by another node that came from the bucket all the same, in part or whole";
    families.add(Named::counter("narval_peer_fallbacks", help), &[], fallbacks);
}

/// How full a cache was when it was counted last.
pub(crate) fn add_fullness(families: &mut Families, cache: &Cache, full: &Fullness) {
    let name = [("cache", cache.name().as_str())];
    let mut gauge = |metric, help, value: u64| families.add(Named::gauge(metric, help), &name, value);
    gauge("narval_cache_paths", "Paths in the cache", full.paths);
    gauge("narval_cache_pins", "Pins in the cache", full.pins);
    if let Some(unsigned) = full.unsigned {
        gauge("narval_paths_unsigned", "Paths without a signature by each of the cache's keys", unsigned);
    }
    if let Some(used) = full.oldest_use {
        let help = "When the path that was unused for longest was last pushed or requested";
        gauge("narval_cache_oldest_use_timestamp_seconds", help, used);
    }
    if let Some(collected) = full.collected {
        let help = "When the cache was last collected completely, by whichever process";
        gauge("narval_gc_last_success_timestamp_seconds", help, collected);
    }
    let kinds = [
        ("nar", full.nar_bytes),
        ("listing", full.listing_bytes),
        ("log", full.log_bytes),
        ("other", full.other_bytes),
    ];
    for (kind, bytes) in kinds {
        let bytes_of = Named::gauge("narval_cache_bytes", "Bytes stored in the cache, by kind");
        families.add(bytes_of, &[name[0], ("kind", kind)], bytes);
    }
}

/// The limits of a cache, and what its collections have done.
pub(crate) fn add_limits(families: &mut Families, cache: &Cache) {
    let (name, settings, done) = (("cache", cache.name().as_str()), cache.settings(), cache.collections());
    let limit = Named::gauge(
        "narval_cache_limit_bytes",
        "Limits of the cache: beyond size-max, paths are collected; beyond quota, uploads are refused",
    );
    for (kind, bytes) in [("size-max", settings.size_max), ("quota", settings.quota)] {
        if let Some(bytes) = bytes {
            families.add(limit, &[name, ("kind", kind)], bytes);
        }
    }
    let help = "Bytes of NARs that collections of this process have removed";
    families.add(Named::counter("narval_gc_removed_bytes", help), &[name], done.removed_bytes);
    if let Some(took) = done.last {
        let help = "How long the last collection of this process took";
        families.add(Named::gauge("narval_gc_duration_seconds", help), &[name], took.as_secs_f64());
    }
}

/// The NAR cache of a live store.
pub(crate) fn add_nar_cache(families: &mut Families, cache: &str, nars: &NarCache) {
    let (bytes, limit) = nars.bytes();
    let name = [("cache", cache)];
    families.add(Named::gauge("narval_nar_cache_bytes", "Bytes of compressed NARs that are kept"), &name, bytes);
    families.add(Named::gauge("narval_nar_cache_limit_bytes", "The maximum of narval_nar_cache_bytes"), &name, limit);
}

/// The requests to upstreams, and what is kept of them.
pub(crate) fn add_upstreams(families: &mut Families, cache: &str, stats: &UpstreamsStats) {
    let cache = ("cache", cache);
    for upstream in &stats.upstreams {
        let labels = [cache, ("upstream", &*upstream.url)];
        let requests = Named::counter("narval_upstream_requests", "Requests to upstreams for narinfos and NARs");
        for (result, count) in [("found", upstream.found), ("absent", upstream.absent), ("failed", upstream.failed)] {
            families.add(requests, &[labels[0], labels[1], ("result", result)], count);
        }
        for (name, help, count) in [
            ("narval_upstream_late", "Requests that an upstream did not answer in time", upstream.late),
            (
                "narval_upstream_hedges",
                "Requests that were made although another upstream might still have answered in time",
                upstream.hedges,
            ),
            (
                "narval_upstream_failovers",
                "Requests that were made because another upstream had used up half of the time",
                upstream.failovers,
            ),
            ("narval_upstream_used", "Answers of an upstream that were used", upstream.used),
            (
                "narval_upstream_filtered",
                "Narinfos that an upstream was not asked for, by its presence filter",
                upstream.filtered,
            ),
        ] {
            families.add(Named::counter(name, help), &labels, count);
        }
        let help = "Seconds that clients did not wait for a slow upstream, because another one was asked";
        families.add(Named::counter("narval_upstream_saved_seconds", help), &labels, upstream.saved.as_secs_f64());
        let help = "Whether the upstream is asked after the others, because it was late or failed";
        families.add(Named::gauge("narval_upstream_doubtful", help), &labels, u8::from(upstream.is_doubtful));
        let help = "Whether the upstream responds, as far as the last requests have shown";
        families.add(Named::gauge("narval_upstream_up", help), &labels, u8::from(upstream.is_up));
        let named = ("narval_upstream_seconds", "Time to the first byte of an upstream's answer");
        families.add_times(named, &labels, SECONDS, &upstream.times);
    }
    let mut gauge = |name, help, value: u64| families.add(Named::gauge(name, help), &[cache], value);
    gauge("narval_upstream_kept_bytes", "Bytes that are kept of upstreams", stats.kept_bytes);
    gauge("narval_upstream_kept_limit_bytes", "The maximum of narval_upstream_kept_bytes", stats.kept_bytes_max);
    let mut counter = |name, help, value: u64| families.add(Named::counter(name, help), &[cache], value);
    let help = "Narinfos that were answered with 404 because upstreams did not answer in time";
    counter("narval_upstream_counted_absent", help, stats.counted_absent);
    counter("narval_upstream_kept_hits", "NARs of upstreams that were sent from what is kept", stats.kept_hits);
    counter("narval_upstream_kept_misses", "NARs that were fetched from upstreams", stats.kept_misses);
    let Some(near) = &stats.neighbours else { return };
    families.add(Named::gauge("narval_neighbours", "Near caches on the same network"), &[cache], near.neighbours);
    for (name, help, count) in [
        ("narval_neighbour_offered", "Questions of neighbours for a NAR that were answered with yes", near.offered),
        ("narval_neighbour_refused", "NARs that were not sent, because too many were being sent", near.refused),
        ("narval_neighbour_given", "NARs that were sent to neighbours", near.given),
        ("narval_neighbour_given_bytes", "Bytes of NARs that were sent to neighbours", near.given_bytes),
        ("narval_neighbour_taken", "NARs that came from neighbours, and were right", near.taken),
        ("narval_neighbour_taken_bytes", "Bytes of these NARs", near.taken_bytes),
        ("narval_neighbour_failed", "NARs that did not come from a neighbour, or were wrong", near.failed),
    ] {
        families.add(Named::counter(name, help), &[cache], count);
    }
}

/// The file system of a folder.
pub(crate) fn add_disk(families: &mut Families, used_for: &str, folder: &Path) {
    // A folder that is not there has no disk to run full.
    let Ok(disk) = statvfs(folder) else { return };
    let labels = [("use", used_for)];
    let free = Named::gauge("narval_disk_free_bytes", "Bytes free on the file system, for this process");
    families.add(free, &labels, disk.f_bavail.saturating_mul(disk.f_frsize));
    let size = Named::gauge("narval_disk_size_bytes", "Bytes of the file system");
    families.add(size, &labels, disk.f_blocks.saturating_mul(disk.f_frsize));
}

/// When tokens end.
pub(crate) fn add_tokens(families: &mut Families, tokens: &[TokenEnd]) {
    let ends = Named::gauge("narval_token_expires_timestamp_seconds", "When a token ends, if it does");
    for token in tokens {
        families.add(ends, &[("id", &token.id)], token.expires);
    }
}

/// When certificates end.
pub(crate) fn add_certificates(families: &mut Families, ends: &[(String, u64)]) {
    let help = "When a certificate in use ends";
    for (name, end) in ends {
        let ends = Named::gauge("narval_tls_certificate_not_after_timestamp_seconds", help);
        families.add(ends, &[("name", name)], end);
    }
}

/// What this program is.
pub(crate) fn add_build(families: &mut Families) {
    let info = Named::gauge("narval_build_info", "The version of the program, always 1");
    families.add(info, &[("version", env!("CARGO_PKG_VERSION"))], 1);
}

/// How long this process waits for databases and the object store, and what became of spans.
pub(crate) fn add_waits(families: &mut Families) {
    let database = "How long reads and transactions of the index, and reads of a store's database take";
    let storage = "Time to the first byte of an object store's answer";
    for (name, help, labels, work) in [
        ("narval_database_seconds", database, &[("kind", "read")][..], Work::DatabaseRead),
        ("narval_database_seconds", database, &[("kind", "write")], Work::DatabaseWrite),
        ("narval_storage_seconds", storage, &[], Work::Storage),
    ] {
        families.add_times((name, help), labels, trace::SECONDS, &trace::times(work));
    }
    if trace::is_on() {
        let help = "Spans that were not sent, because the collector was away or slow";
        families.add(Named::counter("narval_trace_spans_dropped", help), &[], trace::dropped());
    }
}

/// What came from other nodes, and the memory of uploads.
pub(crate) fn add_data(families: &mut Families, data: &Data) {
    if let Some(next) = data.next_collection() {
        let help = "When this process collects its caches next";
        families.add(Named::gauge("narval_gc_next_run_timestamp_seconds", help), &[], next);
    }
    if let Some(stats) = data.peer_stats() {
        add_peers(families, &stats);
    }
    add_windows(families, &data.window_memory().stats());
    add_disk(families, "data", data.folder());
}

/// Answers with these.
pub(crate) fn answer(families: Families) -> Response {
    Response::new(StatusCode::OK)
        .header(header::CONTENT_TYPE, HeaderValue::from_static(CONTENT_TYPE))
        .body(Body::bytes(families.into_text()))
}
