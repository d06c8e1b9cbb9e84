//! The counters of a service, as OpenMetrics (<https://prometheus.io/docs/specs/om/open_metrics_spec/>).

use std::fmt;
use std::time::Duration;

use narval_keep::{CacheName, REFUSAL_REASONS};
use prometheus_client::encoding::{EncodeLabelSet, EncodeMetric, MetricEncoder, NoLabelSet, text::encode};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::{MetricType, counter};
use prometheus_client::registry::{Registry, Unit};

use crate::sharded::Sharded;
use crate::watch::history::TIMES;
use crate::watch::{History, Totals, Transfers, UnderWay};

pub(crate) type Counter = counter::Counter<u64, Sharded>;

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

/// All counters. Request counters are looked up once, so that counting is one addition.
pub(crate) struct Metrics {
    registry: Registry,
    requests: Vec<Vec<Counter>>,
    latencies: Latencies,
    pub(crate) narinfo_memo_hits: Counter,
    pub(crate) narinfo_memo_misses: Counter,
    pub(crate) layout_hits: Counter,
    pub(crate) layout_misses: Counter,
    pub(crate) flat_nar_hits: Counter,
    pub(crate) nar_cache_hits: Counter,
    pub(crate) nar_cache_misses: Counter,
    pub(crate) nar_cache_damaged: Counter,
    pub(crate) single_flight_waits: Counter,
    pub(crate) stream_aborts: Counter,
    pub(crate) corrupt_paths: Counter,
    pub(crate) database_errors: Counter,
    pub(crate) nar_deltas_sent: Counter,
    pub(crate) nar_deltas_made: Counter,
    pub(crate) nar_bytes_delta: Counter,
    pub(crate) nars_redirected: Counter,
    pub(crate) nar_bytes_identity: Counter,
    pub(crate) nar_bytes_zstd: Counter,
    /// Bytes of NARs sent as they were uploaded, compressed.
    pub(crate) nar_bytes_compressed: Counter,
    /// Bytes of NARs sent while they were fetched from an upstream.
    pub(crate) nar_bytes_upstream: Counter,
    /// Bytes of NARs sent to other nodes.
    pub(crate) peer_bytes_sent: Counter,
    pub(crate) upload_bytes: Counter,
    pub(crate) uploads_stored: Counter,
    pub(crate) uploads_known: Counter,
    uploads_refused: Vec<Counter>,
    pub(crate) page_refused: Counter,
    pub(crate) logins_failed: Counter,
    pub(crate) logins_throttled: Counter,
    /// NARs of [`LARGE_BYTES_MIN`] and more.
    pub(crate) downloads: Transfers,
    pub(crate) uploads: Transfers,
    pub(crate) compressions: UnderWay,
    /// Requests of the page that decode, walk or compare.
    pub(crate) page_requests: UnderWay,
    /// The last hour.
    pub(crate) history: History,
}

/// How many answers took how long to begin. Unlike the library's histogram, it can be read.
#[derive(Clone, Debug, Default)]
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
}

impl EncodeMetric for Latencies {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Result<(), fmt::Error> {
        let counts = self.counts.each_ref().map(Counter::get);
        let buckets: Vec<_> = SECONDS.into_iter().chain([f64::MAX]).zip(counts).collect();
        let seconds = Duration::from_nanos(self.nanos.get()).as_secs_f64();
        encoder.encode_histogram::<NoLabelSet>(seconds, counts.iter().sum(), &buckets, None)
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Histogram
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Metrics")
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    route: &'static str,
    status: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EncodingLabel {
    encoding: &'static str,
}

impl Metrics {
    /// Creates the counters of a cache at zero.
    pub(crate) fn new(cache: &CacheName) -> Self {
        let label = ("cache".into(), cache.as_str().to_owned().into());
        let mut registry = Registry::with_prefix_and_labels("narval", std::iter::once(label));
        let requests: Family<RequestLabels, Counter> = Family::default();
        registry.register("requests", "Requests by route and status", requests.clone());
        let statuses = || STATUSES.iter().map(ToString::to_string).chain(["other".to_owned()]);
        let counters = |route: &'static str| {
            statuses().map(|status| requests.get_or_create(&RequestLabels { route, status }).clone()).collect()
        };
        let requests = ROUTES.iter().map(|route| counters(route)).collect();
        let latencies = Latencies::default();
        registry.register_with_unit(
            "worker",
            "Time to start a response that was not in memory",
            Unit::Seconds,
            latencies.clone(),
        );
        let bytes: Family<EncodingLabel, Counter> = Family::default();
        registry.register_with_unit("nar", "Bytes of NARs sent by encoding", Unit::Bytes, bytes.clone());
        let encoded = |encoding| bytes.get_or_create(&EncodingLabel { encoding }).clone();
        let (nar_bytes_identity, nar_bytes_zstd) = (encoded("identity"), encoded("zstd"));
        let nar_bytes_delta = encoded("delta");
        let nar_bytes_compressed = encoded("as uploaded");
        let nar_bytes_upstream = encoded("from upstream");
        let peer_bytes_sent = Counter::default();
        let help = "Bytes of NARs sent to other nodes of the same bucket";
        registry.register_with_unit("peer_sent", help, Unit::Bytes, peer_bytes_sent.clone());
        let upload_bytes = Counter::default();
        registry.register_with_unit("upload", "Bytes received of uploaded NARs", Unit::Bytes, upload_bytes.clone());
        let refused: Family<ReasonLabel, Counter> = Family::default();
        registry.register("uploads_refused", "Uploads that were refused, by reason", refused.clone());
        let refused = |reason: &'static str| refused.get_or_create(&ReasonLabel { reason }).clone();
        let uploads_refused = REFUSAL_REASONS.iter().map(|reason| refused(reason)).collect();
        let mut transfers = |name: &str, help: &str| {
            let transfers = Transfers::default();
            registry.register(name, help, transfers.gauge());
            transfers
        };
        let downloads = transfers("nars_being_sent", "NARs of 1 MiB and more that are being sent");
        let uploads = transfers("uploads_being_received", "NARs that are being received and verified");
        let mut under_way = |name: &str, help: &str| {
            let under_way = UnderWay::default();
            registry.register(name, help, under_way.gauge());
            under_way
        };
        let compressions = under_way("compressions_running", "NARs that are being compressed");
        let page_requests = under_way("page_requests_running", "Requests of the page that decode, walk or compare");
        let mut counter = |name: &str, help: &str| {
            let counter = Counter::default();
            registry.register(name, help, counter.clone());
            counter
        };
        Self {
            requests,
            latencies,
            narinfo_memo_hits: counter("narinfo_memo_hits", "Narinfos and absences answered from memory"),
            narinfo_memo_misses: counter("narinfo_memo_misses", "Narinfos and absences looked up in the store"),
            layout_hits: counter("layout_hits", "NARs whose plan was cached"),
            layout_misses: counter("layout_misses", "NARs that were planned"),
            flat_nar_hits: counter("flat_nar_hits", "NARs of many small files sent from a packed file"),
            nar_cache_hits: counter("nar_cache_hits", "Compressed NARs sent from the cache"),
            nar_cache_misses: counter("nar_cache_misses", "Compressed NARs that had to be created"),
            nar_cache_damaged: counter("nar_cache_damaged", "Compressed NARs in the cache that had changed on disk"),
            nar_deltas_sent: counter("nar_deltas_sent", "NARs sent as the difference to another NAR"),
            nar_deltas_made: counter("nar_deltas_made", "Differences between NARs that were created"),
            nars_redirected: counter("nars_redirected", "NARs for which a client was sent to the object store"),
            single_flight_waits: counter("single_flight_waits", "Requests that joined an in-flight compression"),
            stream_aborts: counter("stream_aborts", "NARs aborted while they were sent"),
            corrupt_paths: counter("corrupt_paths", "Paths whose files do not match the database"),
            database_errors: counter("store_errors", "Times the store could not be read"),
            peer_bytes_sent,
            upload_bytes,
            uploads_stored: counter("uploads_stored", "Uploaded NARs that were verified and stored"),
            uploads_known: counter("uploads_known", "Uploads of NARs that the cache already had"),
            uploads_refused,
            page_refused: counter(
                "page_refused",
                "Requests of the page, and for missing paths, beyond what is answered at a time",
            ),
            logins_failed: counter("logins_failed", "Requests with a wrong, expired or revoked token"),
            logins_throttled: counter("logins_throttled", "The same after too many of them from the address"),
            nar_bytes_delta,
            nar_bytes_identity,
            nar_bytes_zstd,
            nar_bytes_compressed,
            nar_bytes_upstream,
            downloads,
            uploads,
            compressions,
            page_requests,
            history: History::default(),
            registry,
        }
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
        let at = REFUSAL_REASONS.iter().position(|known| *known == reason);
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
            let at = REFUSAL_REASONS.iter().position(|known| *known == reason);
            at.and_then(|at| self.uploads_refused.get(at)).map_or(0, Counter::get)
        };
        let sent = [
            &self.nar_bytes_identity,
            &self.nar_bytes_zstd,
            &self.nar_bytes_compressed,
            &self.nar_bytes_upstream,
            &self.nar_bytes_delta,
        ];
        let micros = |at: usize| SECONDS.get(at).map_or(10_000_000, |seconds| (seconds * 1e6) as u32);
        Totals {
            sent: sent.into_iter().map(Counter::get).sum(),
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

    /// All counters, in the OpenMetrics text format.
    pub(crate) fn render(&self) -> Result<String, fmt::Error> {
        let mut text = String::new();
        encode(&mut text, &self.registry)?;
        Ok(text)
    }
}
