//! Retries. A server that has answered in this run, and is away now, is waited for: it probably restarts.

use std::time::{Duration, Instant};

use crate::error::HttpError;
use crate::exchange::client::Client;
use crate::limits::MENTIONED_AFTER;
use crate::url::Url;
use crate::wire::pool::Seen;

/// The attempts of one exchange.
#[derive(Debug, Default)]
pub struct Attempts {
    failures: u32,
    /// When the first of them failed.
    since: Option<Instant>,
    /// Whether the caller can do without this server.
    hasty: bool,
    /// Whether there is only one.
    once: bool,
}

impl Attempts {
    /// Attempts at a server that need not be waited for if it is away: another one may have the file.
    pub fn hasty() -> Self {
        Self { hasty: true, ..Self::default() }
    }

    /// One attempt.
    pub(crate) fn once() -> Self {
        Self { once: true, ..Self::default() }
    }

    /// Forgets earlier failures: the exchange has made progress.
    pub(crate) fn progressed(&mut self) {
        (self.failures, self.since) = (0, None);
    }

    /// Records a failed attempt and waits until the next one may begin.
    ///
    /// # Errors
    /// The error, if there is no further attempt.
    pub fn again(&mut self, client: &Client, url: &Url, error: HttpError) -> Result<(), HttpError> {
        if self.once {
            return Err(error);
        }
        self.failures += 1;
        let (policy, origin) = (&client.options().retry, url.origin());
        let since = *self.since.get_or_insert_with(Instant::now);
        let away = away_for(since, client.pool().seen(origin), &error).filter(|_| !self.hasty);
        let Some(wait) = policy.wait(self.failures, away, &error) else { return Err(error) };
        if client.options().retries.as_ref().is_some_and(|retries| !retries.spend()) {
            return Err(error);
        }
        tracing::debug!(%url, %error, ?wait, failures = self.failures, "trying again");
        if since.elapsed() + wait >= MENTIONED_AFTER {
            client.mention(origin, &format_args!("{error}; trying again"));
        }
        std::thread::sleep(wait);
        Ok(())
    }
}

/// For how long a server has been away that was there before; `None` if it was not, or if the error says something else.
fn away_for(since: Instant, seen: Seen, error: &HttpError) -> Option<Duration> {
    match error {
        // Nobody else could connect either since it last answered.
        HttpError::Connect { .. } | HttpError::Resolve { .. } if seen.connected => {
            Some(since.max(seen.answered_at.unwrap_or(since)).elapsed())
        }
        error if error.is_outage() => seen.answered_at.map(|_| since.elapsed()),
        _ => None,
    }
}

impl Client {
    /// Runs `attempt`, an exchange about `url`, until it succeeds or the policy allows no other attempt.
    ///
    /// # Errors
    /// That of the last attempt.
    pub fn retrying<T>(&self, url: &Url, attempt: impl FnMut() -> Result<T, HttpError>) -> Result<T, HttpError> {
        self.retrying_as(Attempts::default(), url, attempt)
    }

    pub(crate) fn retrying_as<T>(
        &self,
        mut attempts: Attempts,
        url: &Url,
        mut attempt: impl FnMut() -> Result<T, HttpError>,
    ) -> Result<T, HttpError> {
        loop {
            match attempt() {
                Ok(value) => return Ok(value),
                Err(error) => attempts.again(self, url, error)?,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::retry_policy::{AWAY_WAIT_MAX, RetryPolicy};

    const fn status(status: u16, retry_after: Option<u64>) -> HttpError {
        let retry_after = match retry_after {
            Some(seconds) => Some(Duration::from_secs(seconds)),
            None => None,
        };
        HttpError::Status { status, retry_after }
    }

    fn refused() -> HttpError {
        HttpError::Connect { host: "a".into(), source: std::io::ErrorKind::ConnectionRefused.into() }
    }

    #[test]
    fn waits_grow_and_end() {
        let policy = RetryPolicy::default();
        for failures in 1..5 {
            let wait = policy.wait(failures, None, &status(502, None)).unwrap();
            assert!(wait <= policy.base * (1 << (failures - 1)), "{failures}: {wait:?}");
        }
        assert_eq!(policy.wait(5, None, &status(502, None)), None);
        assert_eq!(policy.wait(1, None, &status(404, None)), None);
        assert_eq!(policy.wait(1, None, &status(501, None)), None);
        assert_eq!(policy.wait(1, None, &status(401, None)), None);
    }

    #[test]
    fn the_server_says_how_long() {
        let policy = RetryPolicy::default();
        let wait = policy.wait(1, None, &status(429, Some(3))).unwrap();
        assert!(wait >= Duration::from_secs(3) && wait < Duration::from_secs(4));
        assert_eq!(policy.wait(1, None, &status(503, Some(3600))), None);
    }

    #[test]
    fn a_server_that_was_there_is_waited_for() {
        let (policy, long) = (RetryPolicy::default(), Duration::from_secs(29));
        for failures in [5, 50, u32::MAX] {
            let wait = policy.wait(failures, Some(long), &refused()).unwrap();
            assert!(wait < AWAY_WAIT_MAX, "{wait:?}");
            assert_eq!(policy.wait(failures, Some(policy.patience), &refused()), None);
        }
        let once = RetryPolicy { attempts: 1, ..policy };
        assert_eq!(once.wait(1, Some(Duration::ZERO), &refused()), None, "one attempt is one");
        let now = Instant::now();
        let begun = now.checked_sub(long).unwrap();
        let never = Seen { connected: false, answered_at: None };
        let connected = Seen { connected: true, ..never };
        let answered = Seen { answered_at: Some(now), ..connected };
        let broken = HttpError::Broken { what: "reading", source: std::io::ErrorKind::ConnectionReset.into() };
        assert_eq!(away_for(begun, never, &refused()), None);
        assert!(away_for(begun, connected, &refused()).unwrap() >= long, "it has gone before it answered");
        assert_eq!(away_for(begun, connected, &broken), None, "it has never answered");
        assert!(away_for(begun, answered, &refused()).unwrap() < long, "it was there meanwhile");
        for error in [broken, status(503, None)] {
            assert!(away_for(begun, answered, &error).unwrap() >= long, "only this exchange may fail");
        }
        assert_eq!(away_for(begun, answered, &status(500, None)), None);
    }
}
