//! Requests to one upstream.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use narval_client::{Bounds, Client, ClientOptions, Credentials, HttpError, Proxies, RetryPolicy, Scheme, Url};
use narval_nix::{HashPart, NarInfo, StoreDir, TrustedKeys};

use super::counts::{Asked, Counts};
use super::options::UpstreamOptions;
use crate::cache::Patience;
use crate::lookup::Trust;
use crate::{Cache, CacheError, Wanted, signature_advice};
use narval_client::Trouble;
use narval_s3::client;

/// One upstream. It has a client for narinfos, with short timeouts, and one for NARs, with long ones.
pub(super) struct Remote {
    pub(super) cache: Cache,
    pub(super) nars: Arc<Client>,
    trust: Trust,
    /// Whether it sends deltas; unknown until its `nix-cache-info` was read.
    deltas: OnceLock<bool>,
    pub(super) counts: Counts,
}

impl Remote {
    pub(super) fn new(options: UpstreamOptions, store_dir: &StoreDir) -> Self {
        let UpstreamOptions { url, keys, priority, credentials, redirect_hosts, timeout, stall_timeout } = options;
        // What it answers is shown to anybody: it must not be that of a server in our own network. Requests to buckets are not redirected.
        let is_http = matches!(url.scheme(), Scheme::Http | Scheme::Https);
        let bounds = is_http.then(|| Bounds::new(std::slice::from_ref(&url), redirect_hosts));
        let make = |stall_timeout, retry| {
            Arc::new(client(ClientOptions {
                credentials: Credentials::new(credentials.clone(), std::slice::from_ref(&url)).only_for_caches(),
                bounds: bounds.clone(),
                proxies: Proxies::from_env(),
                connect_timeout: timeout,
                stall_timeout,
                retry,
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
            cache: Cache::unasked(url, &narinfos, store_dir, priority),
            nars,
            trust,
            deltas: OnceLock::new(),
            counts: Counts::default(),
        }
    }

    /// Whether it sends deltas of NARs: asked once it has answered for a narinfo.
    pub(super) fn sends_deltas(&self) -> bool {
        if let Some(deltas) = self.deltas.get() {
            return *deltas;
        }
        match self.cache.asks_for_deltas() {
            Ok(deltas) => *self.deltas.get_or_init(|| deltas),
            // It is asked again for the next path.
            Err(_) => false,
        }
    }

    pub(super) fn url(&self) -> &Url {
        self.cache.url()
    }

    /// Whether its paths must be signed by a key that is trusted for it.
    pub(super) const fn is_signed(&self) -> bool {
        self.trust.check_signatures
    }

    /// Its narinfo of a path; `None` if it has none.
    pub(super) fn narinfo(&self, hash_part: HashPart) -> Result<Option<NarInfo>, CacheError> {
        let began = Instant::now();
        let answer = match self.cache.narinfo(&Wanted::HashPart(hash_part), Patience::None) {
            Ok(Some(mut info)) => self.check(&mut info).map(|()| Some(info)),
            answer => answer,
        };
        let asked = match &answer {
            Ok(Some(_)) => Asked::Found,
            Ok(None) => Asked::Absent,
            Err(_) => Asked::Failed,
        };
        self.counts.add(asked, began.elapsed());
        answer
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
    pub(super) fn failed(&self, error: HttpError) -> Trouble {
        match error {
            error @ HttpError::OutOfBounds { .. } => Trouble::Wrong(error.to_string()),
            error => {
                self.cache.breaker.failed();
                Trouble::Unavailable(error)
            }
        }
    }
}
