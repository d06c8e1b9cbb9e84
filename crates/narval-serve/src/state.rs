//! State that outlives a service. A reload replaces services while the server runs, and all caches of a server share limits and threads.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use narval_http::Snapshot;
use narval_keep::{Cache, CacheName, Data};
use parking_lot::Mutex;

use crate::auth::Auth;
use crate::metrics::Metrics;
use crate::narinfo::writable::WritableNarinfos;
use crate::origins::Origins;
use crate::piecework::Piecework;
use crate::upload::receive::UploadPool;
use crate::watch::{History, Totals, history};

/// State that the services of one server share, and that survives when one of them is replaced: counters, remembered narinfos, verified tokens,
/// partial uploads, and the threads for small uploads.
///
/// Cheap to clone: clones share everything.
#[derive(Clone, Debug, Default)]
pub struct ServerState(Arc<State>);

#[derive(Debug, Default)]
struct State {
    caches: Mutex<HashMap<CacheName, CacheState>>,
    auth: OnceLock<Arc<Auth>>,
    uploads: Arc<UploadPool>,
    page_work: Arc<Piecework>,
    engine: OnceLock<EngineCounters>,
    certificates: OnceLock<Certificates>,
    started: OnceLock<Instant>,
    history: History,
    /// The services that answer now, for the metrics of all caches.
    services: Mutex<BTreeMap<CacheName, Weak<Origins>>>,
}

/// The state of one cache.
#[derive(Debug)]
struct CacheState {
    metrics: Arc<Metrics>,
    /// The narinfos, and their memory limit in bytes.
    narinfos: Option<(u64, Arc<WritableNarinfos>)>,
}

/// See [`ServerState::show_engine`].
struct EngineCounters(Box<dyn Fn() -> Snapshot + Send + Sync>);

/// See [`ServerState::show_certificates`].
struct Certificates(Box<dyn Fn() -> Vec<(String, u64)> + Send + Sync>);

impl fmt::Debug for Certificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Certificates")
    }
}

impl fmt::Debug for EngineCounters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EngineCounters")
    }
}

/// Takes samples as long as the server has a state.
fn watch(state: &Weak<State>) {
    loop {
        std::thread::sleep(history::EVERY);
        let Some(state) = state.upgrade().map(ServerState) else { return };
        if let Some(engine) = state.engine() {
            state.history().take(Totals::of_engine(&engine));
        }
        state.services().iter().for_each(|service| service.look(&state));
    }
}

impl ServerState {
    /// The state of a new server.
    pub fn new() -> Self {
        Self::default()
    }

    /// Shows the counters of the engine that runs the services at `/metrics` of the cache at `/`. Only the first call has an effect.
    pub fn show_engine(&self, counters: impl Fn() -> Snapshot + Send + Sync + 'static) {
        // Only one engine can be shown.
        let _ = self.0.engine.set(EngineCounters(Box::new(counters)));
        self.services().iter().for_each(|service| service.begin_survey());
        if self.0.started.set(Instant::now()).is_err() {
            return;
        }
        let state = Arc::downgrade(&self.0);
        let watching = std::thread::Builder::new().name("history".into()).spawn(move || watch(&state));
        if let Err(error) = watching {
            tracing::warn!("the page shows no past: cannot start a thread: {error}");
        }
    }

    /// How long the server has run.
    pub(crate) fn uptime(&self) -> Duration {
        self.0.started.get().map(Instant::elapsed).unwrap_or_default()
    }

    /// The last hour of the whole server.
    pub(crate) fn history(&self) -> &History {
        &self.0.history
    }

    /// Shows at the same place when certificates end, in seconds since 1970, by their names. Only the first call has an effect.
    pub fn show_certificates(&self, ends: impl Fn() -> Vec<(String, u64)> + Send + Sync + 'static) {
        // A server has one set of certificates.
        let _ = self.0.certificates.set(Certificates(Box::new(ends)));
    }

    pub(crate) fn certificates(&self) -> Vec<(String, u64)> {
        self.0.certificates.get().map(|certificates| (certificates.0)()).unwrap_or_default()
    }

    /// Notes that this service answers from now on.
    pub(crate) fn serves(&self, service: &Arc<Origins>) {
        let mut services = self.0.services.lock();
        services.retain(|_, service| service.strong_count() > 0);
        services.insert(service.name(), Arc::downgrade(service));
    }

    /// The services that answer now.
    pub(crate) fn services(&self) -> Vec<Arc<Origins>> {
        let services = self.0.services.lock();
        services.values().filter_map(Weak::upgrade).collect()
    }

    /// The one of a cache.
    pub(crate) fn service(&self, cache: &CacheName) -> Option<Arc<Origins>> {
        self.0.services.lock().get(cache).and_then(Weak::upgrade)
    }

    pub(crate) fn engine(&self) -> Option<Snapshot> {
        self.0.engine.get().map(|engine| (engine.0)())
    }

    pub(crate) fn engine_text(&self) -> String {
        self.0.engine.get().map(|engine| (engine.0)().openmetrics()).unwrap_or_default()
    }

    /// The counters of a cache.
    pub(crate) fn metrics(&self, cache: &CacheName) -> Arc<Metrics> {
        self.of(cache, |state| Arc::clone(&state.metrics))
    }

    /// The narinfos of a cache, including those that are already remembered: they are valid until the cache's stamp changes.
    pub(crate) fn narinfos(&self, cache: &Cache, memory_bytes: u64) -> Arc<WritableNarinfos> {
        self.of(cache.name(), |state| match &state.narinfos {
            Some((bytes, narinfos)) if *bytes == memory_bytes => Arc::clone(narinfos),
            _ => {
                let metrics = Arc::clone(&state.metrics);
                let narinfos = Arc::new(WritableNarinfos::new(cache.clone(), memory_bytes, metrics));
                state.narinfos = Some((memory_bytes, Arc::clone(&narinfos)));
                narinfos
            }
        })
    }

    /// The verifier of the data folder's tokens. A server has one.
    pub(crate) fn auth(&self, data: &Data) -> Arc<Auth> {
        Arc::clone(self.0.auth.get_or_init(|| Arc::new(Auth::new(data))))
    }

    pub(crate) fn uploads(&self) -> Arc<UploadPool> {
        Arc::clone(&self.0.uploads)
    }

    pub(crate) fn page_work(&self) -> Arc<Piecework> {
        Arc::clone(&self.0.page_work)
    }

    fn of<T>(&self, cache: &CacheName, read: impl FnOnce(&mut CacheState) -> T) -> T {
        let mut caches = self.0.caches.lock();
        let new = || CacheState { metrics: Arc::new(Metrics::new(cache)), narinfos: None };
        read(caches.entry(cache.clone()).or_insert_with(new))
    }
}
