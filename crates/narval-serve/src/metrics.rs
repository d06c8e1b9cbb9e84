//! The counters of a service, as OpenMetrics (<https://prometheus.io/docs/specs/om/open_metrics_spec/>).

use std::fmt;
use std::time::Duration;

use narval_client::trace::Times;
use narval_keep::{CacheName, REJECTION_REASONS};

use crate::families::{Families, Named};
pub(crate) use crate::sharded::Counter;
use crate::watch::history::TIMES;
use crate::watch::{Gauge, History, Totals, Transfers};

/// Statuses with a counter of their own; all others count as `other`.
const STATUSES: [u16; 19] =
    [200, 201, 202, 206, 304, 307, 400, 401, 403, 404, 405, 409, 412, 413, 416, 422, 500, 503, 507];
/// Responses with a NAR of this many bytes count as downloads that are under way. Smaller ones are sent in no time.
pub(crate) const LARGE_BYTES_MIN: u64 = 1024 * 1024;
/// Upper bounds of the latency buckets, in seconds.
const SECONDS: [f64; TIMES - 1] = [0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0];

/// The routes, as they are counted and labelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum RouteLabel {
    CacheInfo,
    NarInfo,
    Nar,
    Log,
    Listing,
    BuildTrace,
    Batch,
    Presence,
    Push,
    Peer,
    Other,
}

impl RouteLabel {
    /// The label's value.
    pub(crate) fn name(self) -> &'static str {
        ROUTES.get(self as usize).copied().unwrap_or("other")
    }
}

const ROUTES: [&str; 11] =
    ["nix-cache-info", "narinfo", "nar", "log", "ls", "build-trace", "batch", "presence", "push", "peer", "other"];

/// Defines what is counted of a cache: the field of each plain counter, the name of its metric and what it counts.
macro_rules! metrics {
    ($($field:ident: $name:literal, $help:literal;)*) => {
        /// All counters of a cache.
        #[derive(Default)]
        pub(crate) struct Metrics {
            cache: CacheName,
            /// By route and status.
            requests: [[Counter; STATUSES.len() + 1]; ROUTES.len()],
            latencies: Latencies,
            pub(crate) nar_bytes_delta: Counter,
            pub(crate) nar_bytes_identity: Counter,
            pub(crate) nar_bytes_zstd: Counter,
            /// Bytes of NARs sent as they were uploaded, compressed.
            pub(crate) nar_bytes_compressed: Counter,
            /// Bytes of NARs sent while they were fetched from an upstream.
            pub(crate) nar_bytes_upstream: Counter,
            uploads_refused: [Counter; REJECTION_REASONS.len()],
            /// NARs of [`LARGE_BYTES_MIN`] and more.
            pub(crate) downloads: Transfers,
            pub(crate) uploads: Transfers,
            pub(crate) compressions: Gauge,
            /// Requests of the page that decode, walk or compare.
            pub(crate) page_requests: Gauge,
            /// The last hour.
            pub(crate) history: History,
            $(pub(crate) $field: Counter,)*
        }

        impl Metrics {
            fn add_plain(&self, families: &mut Families, cache: (&str, &str)) {
                $(families.add(Named::counter(concat!("narval_", $name), $help), &[cache], self.$field.get());)*
            }
        }
    };
}

metrics! {
    narinfo_memo_hits: "narinfo_memo_hits", "Narinfos and absences answered from memory";
    narinfo_memo_misses: "narinfo_memo_misses", "Narinfos and absences looked up in the store";
    layout_hits: "layout_hits", "NARs whose plan was cached";
    layout_misses: "layout_misses", "NARs that were planned";
    flat_nar_hits: "flat_nar_hits", "NARs of many small files sent from a packed file";
    nar_cache_hits: "nar_cache_hits", "Compressed NARs sent from the cache";
    nar_cache_misses: "nar_cache_misses", "Compressed NARs that had to be created";
    nar_cache_damaged: "nar_cache_damaged", "Compressed NARs in the cache that had changed on disk";
    nar_deltas_sent: "nar_deltas_sent", "NARs sent as the difference to another NAR";
    nar_deltas_made: "nar_deltas_made", "Differences between NARs that were created";
    nars_redirected: "nars_redirected", "NARs for which a client was sent to the object store";
    single_flight_waits: "single_flight_waits", "Requests that joined an in-flight compression";
    stream_aborts: "stream_aborts", "NARs aborted while they were sent";
    corrupt_paths: "corrupt_paths", "Paths whose files do not match the database";
    database_errors: "store_errors", "Times the store could not be read";
    peer_bytes_sent: "peer_sent_bytes", "Bytes of NARs sent to other nodes of the same bucket";
    upload_bytes: "upload_bytes", "Bytes received of uploaded NARs";
    uploads_stored: "uploads_stored", "Uploaded NARs that were verified and stored";
    uploads_known: "uploads_known", "Uploads of NARs that the cache already had";
    page_refused: "page_refused", "Requests of the page, and for missing paths, beyond what is answered at a time";
    logins_failed: "logins_failed", "Requests with a wrong, expired or revoked token";
    logins_throttled: "logins_throttled", "The same after too many of them from the address";
}

/// How many answers took how long to begin.
#[derive(Debug, Default)]
struct Latencies {
    /// By the bound that they did not exceed; the last one counts the rest.
    counts: [Counter; TIMES],
    nanos: Counter,
}

impl Latencies {
    fn observe(&self, time: Duration) {
        let at = SECONDS.iter().position(|bound| time.as_secs_f64() <= *bound).unwrap_or(SECONDS.len());
        if let Some(count) = self.counts.get(at) {
            count.inc();
        }
        self.nanos.inc_by(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }

    fn times(&self) -> Times<{ SECONDS.len() }> {
        Times::of(self.counts.each_ref().map(Counter::get), Duration::from_nanos(self.nanos.get()))
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Metrics")
    }
}

impl Metrics {
    /// The counters of a cache, at zero.
    pub(crate) fn new(cache: &CacheName) -> Self {
        Self { cache: cache.clone(), ..Self::default() }
    }

    /// Adds all of them.
    pub(crate) fn add_to(&self, families: &mut Families) {
        let cache = ("cache", self.cache.as_str());
        let requests = Named::counter("narval_requests", "Requests by route and status");
        for (route, counters) in std::iter::zip(ROUTES, &self.requests) {
            let statuses = STATUSES.iter().map(ToString::to_string).chain(["other".to_owned()]);
            for (status, counter) in statuses.zip(counters) {
                families.add(requests, &[cache, ("route", route), ("status", &status)], counter.get());
            }
        }
        let named = ("narval_worker_seconds", "Time to start a response that was not in memory");
        families.add_times(named, &[cache], SECONDS, &self.latencies.times());
        let nar_bytes = Named::counter("narval_nar_bytes", "Bytes of NARs sent by encoding");
        for (encoding, counter) in self.nar_bytes() {
            families.add(nar_bytes, &[cache, ("encoding", encoding)], counter.get());
        }
        let refused = Named::counter("narval_uploads_refused", "Uploads that were refused, by reason");
        for (reason, counter) in std::iter::zip(REJECTION_REASONS, &self.uploads_refused) {
            families.add(refused, &[cache, ("reason", reason)], counter.get());
        }
        for (name, help, count) in [
            ("narval_nars_being_sent", "NARs of 1 MiB and more that are being sent", self.downloads.count()),
            ("narval_uploads_being_received", "NARs that are being received and verified", self.uploads.count()),
            ("narval_compressions_running", "NARs that are being compressed", self.compressions.count()),
            (
                "narval_page_requests_running",
                "Requests of the page that decode, walk or compare",
                self.page_requests.count(),
            ),
        ] {
            families.add(Named::gauge(name, help), &[cache], count);
        }
        self.add_plain(families, cache);
    }

    /// What was sent of NARs, by encoding.
    fn nar_bytes(&self) -> [(&'static str, &Counter); 5] {
        [
            ("identity", &self.nar_bytes_identity),
            ("zstd", &self.nar_bytes_zstd),
            ("delta", &self.nar_bytes_delta),
            ("as uploaded", &self.nar_bytes_compressed),
            ("from upstream", &self.nar_bytes_upstream),
        ]
    }

    /// Counts a request.
    pub(crate) fn request(&self, route: RouteLabel, status: u16) {
        let at = STATUSES.iter().position(|known| *known == status).unwrap_or(STATUSES.len());
        if let Some(counter) = self.requests.get(route as usize).and_then(|statuses| statuses.get(at)) {
            counter.inc();
        }
    }

    /// Counts an upload that was refused.
    pub(crate) fn upload_refused(&self, reason: &str) {
        let at = REJECTION_REASONS.iter().position(|known| *known == reason);
        if let Some(counter) = at.and_then(|at| self.uploads_refused.get(at)) {
            counter.inc();
        }
    }

    /// Records how long a worker took to start an answer.
    pub(crate) fn latency(&self, time: Duration) {
        self.latencies.observe(time);
    }

    /// The requests of a route.
    pub(crate) fn requests_of(&self, route: RouteLabel) -> u64 {
        self.requests.get(route as usize).map_or(0, |statuses| statuses.iter().map(Counter::get).sum())
    }

    /// Totals for the history. What the page, probes and `/metrics` themselves ask for is not counted.
    pub(crate) fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        let routes = self.requests.iter().take(RouteLabel::Other as usize).flatten();
        for (status, counter) in STATUSES.iter().map(Some).chain([None]).cycle().zip(routes) {
            let of = match status {
                Some(..=399) => &mut totals.hits,
                Some(404) => &mut totals.absent,
                Some(500..) => &mut totals.failed,
                _ => &mut totals.refused,
            };
            *of += counter.get();
        }
        let refused = |reason: &str| {
            let at = REJECTION_REASONS.iter().position(|known| *known == reason);
            at.and_then(|at| self.uploads_refused.get(at)).map_or(0, Counter::get)
        };
        let micros = |at: usize| SECONDS.get(at).map_or(10_000_000, |seconds| (seconds * 1e6) as u32);
        Totals {
            sent: self.nar_bytes().into_iter().map(|(_, counter)| counter.get()).sum(),
            received: self.upload_bytes.get(),
            times: self.latencies.counts.each_ref().map(Counter::get),
            bounds: std::array::from_fn(micros),
            taken: self.uploads_stored.get() + self.uploads_known.get(),
            not_taken: self.uploads_refused.iter().map(Counter::get).sum(),
            no_room: refused("no_space") + refused("quota"),
            store_errors: self.database_errors.get(),
            damaged: self.corrupt_paths.get(),
            damaged_nars: self.nar_cache_damaged.get(),
            throttled: self.logins_throttled.get(),
            ..totals
        }
    }
}
