//! The keys of an issuer: fetched when needed, cached, and requested at a limited rate.

use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyAlgorithm, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey};
use narval_client::{Client, Url};
use serde_json::Value;

use crate::error::OidcError;
use crate::fetch::{discovery, get};
use crate::issuer::is_safe;
use crate::limits::{FETCH_TIME_MAX, FETCH_WINDOW, FETCHES_MAX, KEYS_FRESH, KEYS_LEN_MAX, KEYS_MAX, KEYS_STALE_MAX};
use crate::token::short;

type KeySet = HashMap<(String, Algorithm), DecodingKey>;

/// The keys of one issuer.
pub(super) struct Keys {
    issuer: String,
    url: Url,
    client: Arc<Client>,
    state: Mutex<State>,
    fetched: Condvar,
}

#[derive(Default)]
struct State {
    keys: Arc<KeySet>,
    /// When they were fetched.
    since: Option<Instant>,
    /// Whether a thread is querying the issuer.
    fetching: bool,
    /// When the issuer was queried, within the window.
    fetched_at: VecDeque<Instant>,
    /// Why the last query failed, if it did.
    failure: Option<String>,
}

impl Keys {
    pub(super) fn new(issuer: &str, url: &Url, client: &Arc<Client>) -> Self {
        let (issuer, url, client) = (issuer.to_owned(), url.clone(), Arc::clone(client));
        Self { issuer, url, client, state: Mutex::default(), fetched: Condvar::new() }
    }

    /// The key with this id for this algorithm. Queries the issuer if it is unknown, or if the cached keys are old.
    pub(super) fn find(&self, kid: &str, algorithm: Algorithm) -> Result<DecodingKey, OidcError> {
        let wanted = (kid.to_owned(), algorithm);
        let mut state = self.lock();
        if let Some(key) = state.usable(&wanted, KEYS_FRESH) {
            return Ok(key);
        }
        // One thread queries; the others wait for its result.
        if state.fetching {
            let waited = self.fetched.wait_timeout_while(state, FETCH_TIME_MAX, |state| state.fetching);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        } else if state.may_ask() {
            state.fetching = true;
            drop(state);
            // A panic must not leave the others waiting.
            let result = catch_unwind(AssertUnwindSafe(|| fetch(&self.client, &self.url, &self.issuer)))
                .unwrap_or_else(|_| Err("a panic, which was reported".to_owned()));
            state = self.lock();
            state.take(result);
            self.fetched.notify_all();
        }
        if let Some(key) = state.usable(&wanted, KEYS_STALE_MAX) {
            return Ok(key);
        }
        let fresh = state.since.is_some_and(|since| since.elapsed() < KEYS_STALE_MAX);
        match &state.failure {
            None if fresh => Err(OidcError::UnknownKey {
                issuer: self.issuer.clone(),
                kid: short(kid),
                algorithm: format!("{algorithm:?}"),
            }),
            failure => Err(OidcError::Unavailable {
                issuer: self.issuer.clone(),
                reason: failure.clone().unwrap_or_else(|| "it was queried too often".to_owned()),
            }),
        }
    }

    /// The same if no query is necessary. While another thread queries the issuer, a key that is not too old will do.
    pub(super) fn find_now(&self, kid: &str, algorithm: Algorithm) -> Option<DecodingKey> {
        let wanted = (kid.to_owned(), algorithm);
        let state = self.lock();
        state.usable(&wanted, if state.fetching { KEYS_STALE_MAX } else { KEYS_FRESH })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn usable(&self, wanted: &(String, Algorithm), age_max: std::time::Duration) -> Option<DecodingKey> {
        self.since.filter(|since| since.elapsed() < age_max)?;
        self.keys.get(wanted).cloned()
    }

    fn may_ask(&mut self) -> bool {
        while self.fetched_at.front().is_some_and(|fetched_at| fetched_at.elapsed() >= FETCH_WINDOW) {
            self.fetched_at.pop_front();
        }
        let may = self.fetched_at.len() < FETCHES_MAX;
        if may {
            self.fetched_at.push_back(Instant::now());
        }
        may
    }

    fn take(&mut self, result: Result<KeySet, String>) {
        self.fetching = false;
        match result {
            Ok(keys) => {
                self.keys = Arc::new(keys);
                self.since = Some(Instant::now());
                self.failure = None;
            }
            Err(reason) => {
                tracing::warn!("OpenID Connect: {reason}");
                self.failure = Some(reason);
            }
        }
    }
}

/// Requests the discovery document, and then the keys.
fn fetch(client: &Client, url: &Url, issuer: &str) -> Result<KeySet, String> {
    let document = discovery(client, url, issuer)?;
    let named = document.get("jwks_uri").and_then(Value::as_str);
    let keys_url = named.and_then(|named| Url::parse(named).ok()).filter(is_safe);
    let keys_url =
        keys_url.ok_or_else(|| format!("{url}: the jwks_uri of its discovery document is missing or not https://"))?;
    let document = get(client, &keys_url, KEYS_LEN_MAX)?;
    let list = document.get("keys").and_then(Value::as_array);
    let list = list.ok_or_else(|| format!("{keys_url}: there is no list of keys"))?;
    if list.len() > KEYS_MAX {
        return Err(format!("{keys_url}: there are more than {KEYS_MAX} keys"));
    }
    let mut keys = KeySet::new();
    for key in list {
        // Keys of unsupported types are skipped.
        if let Some((name, key)) = usable_key(key) {
            keys.entry(name).or_insert(key);
        }
    }
    if keys.is_empty() {
        return Err(format!("{keys_url}: there is no key for RS256 or ES256"));
    }
    Ok(keys)
}

/// A key for verification, with its algorithm. An RSA key never verifies another algorithm, nor does a key of a curve.
fn usable_key(key: &Value) -> Option<((String, Algorithm), DecodingKey)> {
    let key: Jwk = serde_json::from_value(key.clone()).ok()?;
    let algorithm = match &key.algorithm {
        AlgorithmParameters::RSA(_) => Algorithm::RS256,
        AlgorithmParameters::EllipticCurve(curve) if curve.curve == EllipticCurve::P256 => Algorithm::ES256,
        _ => return None,
    };
    let stated = match key.common.key_algorithm {
        None => true,
        Some(KeyAlgorithm::RS256) => algorithm == Algorithm::RS256,
        Some(KeyAlgorithm::ES256) => algorithm == Algorithm::ES256,
        Some(_) => false,
    };
    let signs = key.common.public_key_use.as_ref().is_none_or(|purpose| *purpose == PublicKeyUse::Signature);
    let name = (key.common.key_id.clone()?, algorithm);
    (stated && signs).then(|| DecodingKey::from_jwk(&key).ok()).flatten().map(|key| (name, key))
}
