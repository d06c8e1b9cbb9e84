//! Finds keys, caches them, and renews them before they expire.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use narval_client::{Client, ClientOptions, Proxies, RetryPolicy};
use parking_lot::Mutex;

use super::web_identity::WebIdentity;
use super::{CredentialsError, Environment, Keys, container, instance, profile};

/// Keys are renewed this long before they expire.
const RENEWED_BEFORE: Duration = Duration::from_secs(300);
/// After a failed renewal, how long the keys are used before the next attempt.
const RENEWAL_INTERVAL: Duration = Duration::from_secs(10);
/// How long the absence of credentials is remembered.
const NONE_FOR: Duration = Duration::from_secs(300);
/// The timeout for the machine's own endpoints: they are near, or do not exist.
const NEAR_TIMEOUT: Duration = Duration::from_secs(2);

/// The credentials of one profile, or those of the environment.
pub struct Provider {
    environment: Arc<Environment>,
    profile: Option<String>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// `Some(None)`: there are none.
    found: Option<Option<Arc<Keys>>>,
    /// When to look again, other than at their expiry.
    look_again: Option<Instant>,
}

impl Provider {
    /// Nothing is searched yet.
    pub fn new(environment: Arc<Environment>, profile: Option<String>) -> Self {
        Self { environment, profile, state: Mutex::default() }
    }

    /// The keys to sign with; `None` if there are none anywhere. Concurrent callers wait for one search.
    ///
    /// # Errors
    /// If configured credentials are not available.
    pub fn keys(&self, client: &Client) -> Result<Option<Arc<Keys>>, CredentialsError> {
        let mut state = self.state.lock();
        let due = state.look_again.is_some_and(|at| Instant::now() >= at);
        match &state.found {
            Some(None) if !due => return Ok(None),
            Some(Some(keys)) if !due && !expires_within(keys, RENEWED_BEFORE) => return Ok(Some(Arc::clone(keys))),
            Some(Some(keys)) if state.look_again.is_some() && !due && !expires_within(keys, Duration::ZERO) => {
                return Ok(Some(Arc::clone(keys)));
            }
            _ => {}
        }
        match self.look(client) {
            Ok(found) => {
                let found = found.map(Arc::new);
                let none_until = || Instant::now() + NONE_FOR;
                *state = State { look_again: found.is_none().then(none_until), found: Some(found.clone()) };
                Ok(found)
            }
            Err(error) => match &state.found {
                Some(Some(keys)) if !expires_within(keys, Duration::ZERO) => {
                    tracing::warn!("credentials could not be renewed, but are still valid: {error}");
                    let keys = Arc::clone(keys);
                    state.look_again = Some(Instant::now() + RENEWAL_INTERVAL);
                    Ok(Some(keys))
                }
                _ => Err(error),
            },
        }
    }

    /// Makes the next call search again: the keys were rejected as expired.
    pub fn forget(&self) {
        *self.state.lock() = State::default();
    }

    /// Whether there are no credentials.
    pub fn is_anonymous(&self) -> bool {
        matches!(self.state.lock().found, Some(None))
    }

    fn look(&self, client: &Client) -> Result<Option<Keys>, CredentialsError> {
        let environment = &*self.environment;
        let unusable = |name: &str, why| {
            CredentialsError::Setting(format!("the profile '{name}' {why} (~/.aws/credentials, ~/.aws/config)"))
        };
        if let Some(name) = &self.profile {
            let why = if profile::exists(environment, name)? { "has no access key" } else { "does not exist" };
            return profile::keys(environment, name, client)?
                .map_or_else(|| Err(unusable(name, why)), |keys| Ok(Some(keys)));
        }
        if let Some(keys) = environment.keys() {
            return Ok(Some(keys));
        }
        let named = environment.get("AWS_PROFILE");
        if let Some(name) = &named
            && !profile::exists(environment, name)?
        {
            return Err(unusable(name, "of AWS_PROFILE does not exist"));
        }
        if let Some(keys) = profile::keys(environment, named.as_deref().unwrap_or("default"), client)? {
            return Ok(Some(keys));
        }
        if let Some(identity) = WebIdentity::of(environment)? {
            return identity.keys(environment, client).map(Some);
        }
        let near = near_client();
        match container::keys(environment, &near)? {
            Some(keys) => Ok(Some(keys)),
            None => instance::keys(environment, &near),
        }
    }
}

/// A client for the machine's own endpoints, without a proxy.
fn near_client() -> Client {
    Client::new(ClientOptions {
        proxies: Proxies::default(),
        connect_timeout: NEAR_TIMEOUT,
        stall_timeout: NEAR_TIMEOUT,
        retry: RetryPolicy { attempts: 3, ..RetryPolicy::default() },
        ..ClientOptions::default()
    })
}

fn expires_within(keys: &Keys, limit: Duration) -> bool {
    keys.expires.is_some_and(|at| {
        at.duration_since(SystemTime::now()).is_ok_and(|left| left < limit) || at <= SystemTime::now()
    })
}
