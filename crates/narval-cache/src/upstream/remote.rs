//! Requests to one upstream.

use std::sync::mpsc;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use narval_client::{
    Bounds, Budget, Client, ClientOptions, Credentials, HttpError, Proxies, RetryPolicy, Scheme, Url, clock, request_id,
};
use narval_codec::delta::DELTA_NAR_BYTES_MIN;
use narval_nix::{HashPart, NarInfo, StoreDir, TrustedKeys};
use parking_lot::Mutex;

use super::answer::{Unavailable, UpstreamAnswer};
use super::limits::{ASKED_MAX, RETRIES_SHARE};
use super::options::{NamePattern, UpstreamOptions};
use super::standing::counts::{Counts, RequestOutcome};
use super::standing::failures::Failures;
use super::standing::health::{Health, Standing};
use super::standing::listed::Listed;
use super::standing::nearby::Nearby;
use super::standing::presence::{Asking, Check, Presence, Says};
use crate::advice::signature_advice;
use crate::cache::{BinaryCache, Patience};
use crate::error::CacheError;
use crate::lookup::Trust;
use crate::upstream::standing::probe::{self, PROBE_WAIT, Probed};
use crate::wanted::Wanted;
use narval_client::Trouble;
use narval_files::{Permits, served_client, work_for};
use narval_s3::client;

/// One upstream. It has a client for narinfos, with short timeouts, and one for NARs, with long ones.
pub(super) struct Remote {
    pub(super) cache: BinaryCache,
    pub(super) nars: Arc<Client>,
    trust: Trust,
    /// Whether it sends deltas; unknown until its `nix-cache-info` was read.
    deltas: OnceLock<bool>,
    pub(super) counts: Counts,
    pub(super) health: Health,
    failures: Failures,
    pub(super) presence: Presence,
    pub(super) listed: Listed,
    /// For threads that wait for it.
    pub(super) requests: Permits,
    /// How long a NAR may make no progress.
    pub(super) stall_timeout: Duration,
    /// Names that it is never asked for.
    skip: Vec<NamePattern>,
    /// An answer that takes longer is late.
    in_time: Duration,
    /// The path that was asked for last.
    last: Mutex<Option<HashPart>>,
    /// Whether neighbours may have its paths.
    pub(super) is_offered: bool,
    /// If it is a neighbour.
    pub(super) nearby: Option<Nearby>,
}

impl Remote {
    pub(super) fn new(options: UpstreamOptions, store_dir: &StoreDir, in_time: Duration) -> Self {
        Self::of(options, store_dir, in_time, None)
    }

    /// A neighbour. A proxy of this machine does not lead to it.
    pub(super) fn nearby(options: UpstreamOptions, store_dir: &StoreDir, nearby: Nearby) -> Self {
        let timeout = options.timeout;
        Self::of(options, store_dir, timeout, Some(nearby))
    }

    fn of(options: UpstreamOptions, store_dir: &StoreDir, in_time: Duration, nearby: Option<Nearby>) -> Self {
        let UpstreamOptions { url, keys, priority, credentials, redirect_hosts, timeout, stall_timeout, .. } = options;
        let UpstreamOptions { skip, store_paths, offered, .. } = options;
        // What it answers is shown to anybody: it must not be that of a server in our own network. Requests to buckets are not redirected.
        let is_http = matches!(url.scheme(), Scheme::Http | Scheme::Https);
        let bounds = is_http.then(|| Bounds::new(std::slice::from_ref(&url), redirect_hosts));
        let retries = Arc::new(Budget::new(RETRIES_SHARE));
        let make = |stall_timeout, retry| {
            Arc::new(client(ClientOptions {
                credentials: Credentials::new(credentials.clone(), std::slice::from_ref(&url)).only_for_caches(),
                bounds: bounds.clone(),
                proxies: if nearby.is_some() { Proxies::default() } else { Proxies::from_env() },
                connect_timeout: timeout,
                stall_timeout,
                retry,
                retries: Some(Arc::clone(&retries)),
                ..ClientOptions::default()
            }))
        };
        let once = RetryPolicy { attempts: 1, patience: Duration::ZERO, ..RetryPolicy::default() };
        let (narinfos, nars) = (make(timeout, once), make(stall_timeout, RetryPolicy { attempts: 3, ..once }));
        let trust = Trust {
            check_signatures: keys.is_some(),
            keys: keys.unwrap_or_else(TrustedKeys::new),
            store_dir: store_dir.clone(),
        };
        Self {
            cache: BinaryCache::unasked(url, &narinfos, store_dir, priority),
            nars,
            trust,
            deltas: OnceLock::new(),
            counts: Counts::default(),
            health: Health::default(),
            failures: Failures::default(),
            presence: Presence::default(),
            listed: Listed::at(store_paths),
            requests: Permits::new(ASKED_MAX),
            stall_timeout,
            skip,
            in_time,
            last: Mutex::default(),
            is_offered: offered,
            nearby,
        }
    }

    /// Whether it is a neighbour.
    pub(super) const fn is_near(&self) -> bool {
        self.nearby.is_some()
    }

    /// Forgets a neighbour. Returns whether it is one.
    pub(super) fn goes(&self) -> bool {
        self.nearby.as_ref().inspect(|nearby| nearby.goes()).is_some()
    }

    /// Records whether a neighbour has answered, or not in time.
    pub(super) fn owes(&self, owes: bool) {
        if let Some(nearby) = &self.nearby {
            nearby.owes(owes);
        }
    }

    /// A narinfo as it is trusted from this upstream: `None` if it is not signed by one of its keys.
    pub(super) fn signed(&self, info: &NarInfo) -> Option<NarInfo> {
        let mut info = info.clone();
        (self.is_signed() && self.check(&mut info).is_ok()).then_some(info)
    }

    /// Whether it sends deltas of NARs, if that is known.
    pub(super) fn sends_deltas(&self) -> Option<bool> {
        self.deltas.get().copied()
    }

    /// Asks whether it sends deltas of NARs.
    pub(super) fn asks_for_deltas(self: &Arc<Self>) -> UpstreamAnswer<bool> {
        match self.cache.asks_for_deltas() {
            Ok(deltas) => UpstreamAnswer::Has(*self.deltas.get_or_init(|| deltas)),
            // It is asked again for the next path.
            Err(error) => {
                if let CacheError::Fetch { source, .. } = &error
                    && !source.is_answer()
                {
                    self.has_failed(source.retry_after());
                }
                UpstreamAnswer::Failed(Unavailable::new(5, error.to_string()))
            }
        }
    }

    pub(super) fn url(&self) -> &Url {
        self.cache.url()
    }

    /// Whether it is never asked for paths of this name.
    pub(super) fn skips(&self, name: &str) -> bool {
        self.skip.iter().any(|pattern| pattern.matches(name))
    }

    /// Whether there are names that it is never asked for.
    pub(super) const fn skips_any(&self) -> bool {
        !self.skip.is_empty()
    }

    /// Whether its paths must be signed by a key that is trusted for it.
    pub(super) const fn is_signed(&self) -> bool {
        self.trust.check_signatures
    }

    /// Asks for the narinfo of a path. An answer that comes late may be used, but ends no doubts about this upstream.
    pub(super) fn narinfo(self: &Arc<Self>, hash_part: HashPart) -> UpstreamAnswer<NarInfo> {
        *self.last.lock() = Some(hash_part);
        let began = clock::instant();
        let answer = match self.cache.narinfo(&Wanted::HashPart(hash_part), Patience::None) {
            Ok(Some(mut info)) => self.check(&mut info).map(|()| Some(info)),
            answer => answer,
        };
        let time = clock::since(began);
        let answered = |outcome| self.answered(outcome, time);
        match answer {
            Ok(Some(info)) if self.skips(info.path.name()) => {
                answered(RequestOutcome::Found);
                tracing::warn!(
                    "upstream {}: has {}, whose name it is not asked for; it is not used",
                    self.url(),
                    info.path
                );
                UpstreamAnswer::Absent
            }
            Ok(Some(info)) => {
                answered(RequestOutcome::Found);
                if info.nar_size >= DELTA_NAR_BYTES_MIN && self.sends_deltas().is_none() {
                    self.asks_for_deltas();
                }
                UpstreamAnswer::Has(info)
            }
            Ok(None) => {
                answered(RequestOutcome::Absent);
                UpstreamAnswer::Absent
            }
            Err(error) => {
                // Anything but a failed request is about one path, and is always logged.
                let is_request = matches!(error, CacheError::Fetch { .. });
                match if is_request { self.failures.add(clock::instant()) } else { Some(0) } {
                    Some(0) => tracing::warn!("upstream {error}"),
                    Some(others) => tracing::warn!("upstream {error}; {others} more failures since the last message"),
                    None => tracing::debug!("upstream {error}"),
                }
                match &error {
                    // It leads elsewhere, which does not become better by asking again.
                    CacheError::Fetch { source: HttpError::OutOfBounds { .. }, .. } => {
                        answered(RequestOutcome::Failed);
                        return UpstreamAnswer::Absent;
                    }
                    // Credentials may have expired. That is an answer, and no absence.
                    CacheError::Fetch { source, .. } if source.is_answer() => answered(RequestOutcome::Failed),
                    CacheError::Fetch { source, .. } => {
                        self.probe_if(self.not_answered(began, time, source.retry_after()));
                    }
                    // Nor does a page of a proxy, or another invalid answer, say that it does not have the path.
                    CacheError::NarInfo { .. } => answered(RequestOutcome::Failed),
                    // What it has is not accepted.
                    _ => {
                        answered(RequestOutcome::Failed);
                        return UpstreamAnswer::Absent;
                    }
                }
                UpstreamAnswer::Failed(Unavailable::new(5, error.to_string()))
            }
        }
    }

    /// Records that it has answered what was asked for a narinfo.
    pub(super) fn answered(&self, outcome: RequestOutcome, time: Duration) {
        self.counts.add(outcome, time);
        self.owes(false);
        self.health.answered(outcome == RequestOutcome::Found, time, time <= self.in_time);
    }

    /// Records that what was asked then failed after some time. Returns whether somebody must probe it from now on.
    pub(super) fn not_answered(&self, began: Instant, time: Duration, retry_after: Option<Duration>) -> bool {
        self.counts.add(RequestOutcome::Failed, time);
        if time <= self.in_time || retry_after.is_some() {
            return self.health.failed(retry_after);
        }
        // It counts as late even for those who wait longest, and once if it has counted as late already.
        self.health.late(began, Duration::MAX, 1)
    }

    /// Asks it on a thread of its own, which ends with the request: nobody may have the patience to wait for that.
    pub(super) fn on_a_thread<T: Send + 'static>(
        self: &Arc<Self>,
        ask: impl Fn(&Arc<Self>) -> UpstreamAnswer<T> + Send + 'static,
        answer: impl FnOnce(UpstreamAnswer<T>) + Send + 'static,
    ) -> Result<(), Unavailable> {
        let busy = || Unavailable::new(5, format!("too many requests to {} are not answered yet", self.url()));
        let permit = self.requests.take().ok_or_else(busy)?;
        let (remote, id, client) = (Arc::clone(self), request_id::current(), served_client());
        let run = move || {
            let (_permit, _client, _entered) = (permit, work_for(client), request_id::enter(id));
            answer(ask(&remote));
        };
        let started = thread::Builder::new().name("ask-upstream".into()).spawn(run);
        started.map(drop).map_err(|error| Unavailable::new(5, error.to_string()))
    }

    /// What its presence filter says of a path. The filter is fetched by a thread of its own.
    pub(super) fn presence_of(self: &Arc<Self>, hash_part: &HashPart) -> Says {
        self.presence.says(hash_part, || {
            let remote = Arc::clone(self);
            let load = move || remote.asking(&remote.nars).load(&remote.presence);
            if let Err(error) = thread::Builder::new().name("presence".into()).spawn(load) {
                tracing::error!("upstreams: no thread to fetch the filter of {}: {error}", self.url());
                self.presence.is_not_loaded();
            }
        })
    }

    /// Whether its filter or a list of its paths has a path. The lists are fetched by a thread of its own, from wherever the operator says.
    pub(super) fn is_said_to_have(self: &Arc<Self>, hash_part: &HashPart) -> bool {
        let fetch = || {
            let remote = Arc::clone(self);
            let options = ClientOptions {
                proxies: Proxies::from_env(),
                stall_timeout: remote.stall_timeout,
                ..ClientOptions::default()
            };
            let load = move || remote.listed.load(&client(options), &remote.trust.store_dir);
            if let Err(error) = thread::Builder::new().name("store-paths".into()).spawn(load) {
                tracing::error!("upstreams: no thread to fetch the list of paths of {}: {error}", self.url());
                self.listed.loaded(None);
            }
        };
        self.presence.has(hash_part) || self.listed.has(hash_part, fetch)
    }

    /// Asks what it got since its presence filter was made.
    pub(super) fn check_presence(self: &Arc<Self>, check: &Check) -> UpstreamAnswer<()> {
        match self.asking(self.cache.client()).changes(check) {
            Ok(changes) => {
                self.presence.take(check, changes);
                UpstreamAnswer::Has(())
            }
            Err(error) => {
                self.has_failed(error.retry_after());
                UpstreamAnswer::Failed(Unavailable::new(5, error.to_string()))
            }
        }
    }

    fn asking<'a>(&'a self, client: &'a Client) -> Asking<'a> {
        let Trust { check_signatures, keys, store_dir, .. } = &self.trust;
        Asking { client, cache: self.url(), store_dir, keys: check_signatures.then_some(keys) }
    }

    /// Records a failure. A thread finds out when it answers again.
    pub(super) fn has_failed(self: &Arc<Self>, retry_after: Option<Duration>) {
        self.probe_if(self.health.failed(retry_after));
    }

    /// Whether clients may ask it.
    pub(super) fn standing(&self) -> Standing {
        self.health.standing(self.in_time)
    }

    /// Records that it has not answered within this time what was asked then; `is_awake`: and that this machine had the time to notice.
    pub(super) fn is_late(self: &Arc<Self>, since: Instant, within: Duration, is_awake: bool) {
        self.counts.late();
        if self.is_near() {
            return self.owes(true);
        }
        let unanswered = if is_awake { self.requests.taken() } else { 1 };
        self.probe_if(self.health.late(since, within, unanswered));
    }

    fn probe_if(self: &Arc<Self>, must: bool) {
        // A neighbour that fails is forgotten.
        if !self.goes() && must {
            probe::start(self);
        }
    }

    /// A stored narinfo, if it is still trusted.
    pub(super) fn take_up(&self, hash_part: HashPart, text: &[u8]) -> Result<NarInfo, CacheError> {
        let mut info = self.cache.parse(&Wanted::HashPart(hash_part), text)?;
        self.check(&mut info)?;
        Ok(info)
    }

    /// A signature is required even for content-addressed paths: clients that get the narinfo from us do not check the
    /// contents.
    fn check(&self, info: &mut NarInfo) -> Result<(), CacheError> {
        self.trust.check(&self.cache, info)?;
        let fingerprint = info.fingerprint(&self.trust.store_dir);
        if self.is_signed() && self.trust.keys.find_valid(fingerprint.as_bytes(), &info.signatures).is_none() {
            let cache = self.url().to_string();
            let advice = signature_advice(&cache, &fingerprint, &info.signatures, &[]);
            return Err(CacheError::Untrusted { cache, path: info.path.clone(), advice });
        }
        Ok(())
    }

    /// Why its NAR was not fetched.
    pub(super) fn failed(self: &Arc<Self>, error: HttpError) -> Trouble {
        match error {
            error @ HttpError::OutOfBounds { .. } => Trouble::Wrong(error.to_string()),
            error => {
                self.has_failed(error.retry_after());
                Trouble::Unavailable(error)
            }
        }
    }
}

impl Probed for Remote {
    fn health(&self) -> &Health {
        &self.health
    }

    fn name(&self) -> String {
        self.url().to_string()
    }

    fn answers(self: &Arc<Self>) -> bool {
        // What was asked for last shows most: the rest of the upstream may work.
        let last = self.last.lock().unwrap_or_else(|| HashPart::from_digest(&[0; 20]));
        let (sender, receiver) = mpsc::channel::<()>();
        let started = self.on_a_thread(move |remote| remote.narinfo(last), move |_| drop(sender));
        if started.is_ok() {
            // Nothing is sent: it ends when the sender is dropped, or the time is over.
            let _ = receiver.recv_timeout(PROBE_WAIT);
        }
        self.standing() == Standing::Good
    }
}
