use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::{HeaderValue, StatusCode, header};

use crate::http1::head_parts::HeadRef;
use crate::io::sync::Mutex;
use crate::limits::{RATE_KEYS_MAX, RATE_TIDY};
use crate::message::reject::Reject;
use crate::message::request::Request;
use crate::message::response::Response;
use crate::peer::network;
use crate::web::middleware::{Middleware, Next};

/// A middleware that answers 429 with `Retry-After` to whoever asks too often: a number of requests per time, at once or evenly.
/// Clients are told apart by address (of IPv6 by network, /64), or [`by`](Self::by) anything else in the head.
///
/// 65,536 clients are remembered at a time. If so many ask at once, further ones share what one of them may.
///
/// ```
/// use std::time::Duration;
///
/// use narval_http::{RateLimit, Router, StatusCode, test};
///
/// let limit = RateLimit::new(2, Duration::from_secs(60)).by(|head| head.header("x-key"));
/// let app = test::client(Router::new().layer(limit).get("/", || "hello").build()?);
/// let ask = |key| app.get("/").header("x-key", key).send();
/// assert_eq!([ask("a"), ask("a"), ask("b")].map(|answer| answer.status()), [StatusCode::OK; 3]);
/// let refused = ask("a");
/// assert_eq!((refused.status(), refused.header("retry-after")), (StatusCode::TOO_MANY_REQUESTS, Some("30")));
/// # Ok::<(), narval_http::RouteError>(())
/// ```
#[derive(Clone)]
pub struct RateLimit {
    buckets: Arc<Buckets>,
    key: Arc<Key>,
}

type Key = dyn Fn(&HeadRef<'_>, &RandomState) -> u64 + Send + Sync;

impl RateLimit {
    /// At most `requests` in each time of this length.
    pub fn new(requests: u32, per: Duration) -> Self {
        let interval = per / requests.max(1);
        let buckets = Buckets {
            interval,
            burst: per.saturating_sub(interval),
            hasher: RandomState::new(),
            state: Mutex::default(),
        };
        Self {
            buckets: Arc::new(buckets),
            key: Arc::new(|head, hasher| hasher.hash_one(head.client_ip().map(network))),
        }
    }

    /// Tells clients apart by something else in the head: a token, a user. `None` is one client.
    #[must_use]
    pub fn by(mut self, key: impl for<'a> Fn(&HeadRef<'a>) -> Option<&'a str> + Send + Sync + 'static) -> Self {
        self.key = Arc::new(move |head, hasher| hasher.hash_one(key(head)));
        self
    }

    fn check(&self, head: &HeadRef<'_>) -> Result<(), Reject> {
        self.buckets.take((self.key)(head, &self.buckets.hasher), Instant::now()).map_err(|wait| {
            let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
            let reject = Reject::new(StatusCode::TOO_MANY_REQUESTS, "too many requests");
            reject.header(header::RETRY_AFTER, HeaderValue::from(seconds))
        })
    }
}

impl Middleware for RateLimit {
    fn handle(&self, request: Request, next: Next<'_>) -> Response {
        self.check(&request.head()).map_or_else(Response::failure, |()| next.run(request))
    }

    // A request that is not answered inline comes by a second time, and is counted then.
    fn inline(&self, _: &HeadRef<'_>, _: Next<'_>) -> Option<Response> {
        None
    }
}

/// Leaky buckets: for each client the time at which its bucket is empty, if that is to come.
struct Buckets {
    /// After which time one request more is allowed.
    interval: Duration,
    /// How far the time may be ahead.
    burst: Duration,
    hasher: RandomState,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    empty_at: HashMap<u64, Instant>,
    tidied: Option<Instant>,
}

impl Buckets {
    /// Allows a request, or says after which time the next is allowed.
    fn take(&self, key: u64, now: Instant) -> Result<(), Duration> {
        let mut state = self.state.lock();
        let is_full = state.empty_at.len() >= RATE_KEYS_MAX && !state.empty_at.contains_key(&key);
        if is_full && state.tidied.is_none_or(|tidied| now - tidied >= RATE_TIDY) {
            state.tidied = Some(now);
            state.empty_at.retain(|_, empty_at| *empty_at > now);
        }
        let key = if is_full && state.empty_at.len() >= RATE_KEYS_MAX { 0 } else { key };
        let empty_at = state.empty_at.entry(key).or_insert(now);
        let ahead = empty_at.saturating_duration_since(now);
        if ahead > self.burst {
            return Err(ahead - self.burst);
        }
        *empty_at = now + ahead + self.interval;
        Ok(())
    }
}

impl fmt::Debug for RateLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimit").field("interval", &self.buckets.interval).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_may_ask_at_once_or_evenly() {
        let limit = RateLimit::new(3, Duration::from_secs(30));
        let start = Instant::now();
        let at = |seconds| limit.buckets.take(1, start + Duration::from_secs(seconds));
        assert_eq!([at(0), at(0), at(0)], [Ok(()); 3]);
        assert_eq!(at(0), Err(Duration::from_secs(10)));
        assert_eq!(at(4), Err(Duration::from_secs(6)));
        assert_eq!((at(10), at(10)), (Ok(()), Err(Duration::from_secs(10))));
        assert_eq!([at(100), at(100), at(100)], [Ok(()); 3], "no more than three are saved up");
        assert!(at(100).is_err());
    }

    #[test]
    fn memory_is_bounded_and_those_who_are_known_are_served() {
        let limit = RateLimit::new(1, Duration::from_secs(60));
        let now = Instant::now();
        let take = |key, now| limit.buckets.take(key, now);
        assert!((1..=RATE_KEYS_MAX as u64).all(|key| take(key, now).is_ok()));
        assert!(take(1 << 40, now).is_ok(), "the first of the others");
        assert!(take(1 << 41, now).is_err(), "they share one bucket");
        assert!(limit.buckets.state.lock().empty_at.len() <= RATE_KEYS_MAX + 1);
        let later = now + Duration::from_secs(61);
        assert!(take(1 << 41, later).is_ok() && take(1 << 42, later).is_ok(), "old ones are forgotten");
    }

    #[test]
    fn ipv6_clients_are_networks() {
        let ip = |text: &str| network(text.parse().expect("an address"));
        assert_eq!(ip("2001:db8::1"), ip("2001:db8::ffff:1"));
        assert_ne!(ip("2001:db8::1"), ip("2001:db8:0:1::1"));
        assert_ne!(ip("192.0.2.1"), ip("192.0.2.2"));
    }
}
