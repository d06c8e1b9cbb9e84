//! Sessions of browsers. A session stands for a token that was verified at sign-in; its cookie holds a random secret.
//!
//! Only the SHA-256 of the secret is kept, in memory: sessions end with the process. A session has the current scopes of its token,
//! and ends with it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use narval_client::clock;
use narval_http::{Cookie, HeadRef, SameSite};
use narval_keep::{Grant, Stamp};
use narval_nix::{Sha256, nix32};
use parking_lot::Mutex;

/// The cookie's name.
const COOKIE: &str = "narval-session";
/// Bytes of a session's secret.
const SECRET_LEN: usize = 32;
/// How long a session lasts.
pub(crate) const LASTS_MAX: Duration = Duration::from_secs(8 * 60 * 60);
/// How long a session lasts without a request.
const IDLE_MAX: Duration = Duration::from_secs(60 * 60);
/// The maximum number of sessions, in total and for one token. Beyond that, the least recently used one ends.
const SESSIONS_MAX: usize = 1024;
const OF_TOKEN_MAX: usize = 16;
/// The maximum number of cookies with this name that are tried: browsers send one for each matching path.
const COOKIES_MAX: usize = 4;
/// The maximum length of a `Cookie` field, in bytes; longer ones are ignored.
const COOKIES_LEN_MAX: usize = 8192;
/// The field with the proof that a write comes from our page. Other sites cannot send it.
pub(crate) const PROOF_FIELD: &str = "x-narval-csrf";

/// A session that a request belongs to.
#[derive(Debug)]
pub(crate) struct Session {
    /// The grant of its token.
    pub(crate) grant: Arc<Grant>,
    /// The value that its writes must send in [`PROOF_FIELD`].
    pub(crate) proof: String,
    /// SHA-256 of its secret.
    pub(super) id: Sha256,
}

impl Session {
    /// Whether this is the session's proof, as a request presents it.
    pub(crate) fn is_proved_by(&self, proof: &[u8]) -> bool {
        // Compared as hashes, so that the time reveals nothing.
        let hash = |bytes: &[u8]| Sha256::of(bytes);
        hash(proof) == hash(self.proof.as_bytes())
    }
}

/// All sessions of a server.
#[derive(Debug, Default)]
pub(super) struct Sessions {
    open: Mutex<HashMap<Sha256, Open>>,
}

/// An open session.
#[derive(Clone, Debug)]
pub(super) struct Open {
    pub(super) grant: Arc<Grant>,
    /// When the token was last verified, and the state of the index then.
    pub(super) verified: (Stamp, Instant),
    since: Instant,
    used: Instant,
}

impl Open {
    fn is_over(&self) -> bool {
        clock::since(self.since) >= LASTS_MAX || clock::since(self.used) >= IDLE_MAX
    }
}

impl Sessions {
    /// Opens a session; returns its secret.
    pub(super) fn open(&self, grant: Arc<Grant>, stamp: Stamp) -> Result<String, getrandom::Error> {
        let mut secret = [0; SECRET_LEN];
        getrandom::fill(&mut secret)?;
        let secret = nix32::encode(&secret);
        let now = clock::instant();
        let mut open = self.open.lock();
        open.retain(|_, session| !session.is_over());
        let is_own = |session: &Open| session.grant.token == grant.token;
        if open.values().filter(|session| is_own(session)).count() >= OF_TOKEN_MAX {
            end_oldest(&mut open, is_own);
        }
        if open.len() >= SESSIONS_MAX {
            end_oldest(&mut open, |_| true);
        }
        open.insert(Sha256::of(secret.as_bytes()), Open { grant, verified: (stamp, now), since: now, used: now });
        Ok(secret)
    }

    /// The session that a request's cookie names, if it is open. This counts as a use.
    pub(super) fn find(&self, head: &HeadRef<'_>) -> Option<(Session, Open)> {
        let mut open = self.open.lock();
        for secret in secrets(head) {
            let id = Sha256::of(secret);
            let Some(session) = open.get_mut(&id) else { continue };
            if session.is_over() {
                open.remove(&id);
                continue;
            }
            session.used = clock::instant();
            let proof = Sha256::of(&[b"narval csrf ", secret].concat()).to_nix32();
            return Some((Session { grant: Arc::clone(&session.grant), proof, id }, session.clone()));
        }
        None
    }

    /// Records that the token of a session was verified again.
    pub(super) fn verified(&self, id: &Sha256, grant: &Arc<Grant>, stamp: Stamp) {
        if let Some(session) = self.open.lock().get_mut(id) {
            session.grant = Arc::clone(grant);
            session.verified = (stamp, clock::instant());
        }
    }

    /// Ends a session.
    pub(super) fn end(&self, id: &Sha256) {
        self.open.lock().remove(id);
    }
}

fn end_oldest(open: &mut HashMap<Sha256, Open>, which: impl Fn(&Open) -> bool) {
    let oldest = open.iter().filter(|(_, session)| which(session)).min_by_key(|(_, session)| session.used);
    if let Some(id) = oldest.map(|(id, _)| *id) {
        open.remove(&id);
    }
}

/// The values of our cookie that have the right form.
fn secrets<'a>(head: &HeadRef<'a>) -> impl Iterator<Item = &'a [u8]> {
    let field = head.header_bytes("cookie").filter(|field| field.len() <= COOKIES_LEN_MAX).unwrap_or_default();
    let pairs = field.split(|byte| *byte == b';').map(<[u8]>::trim_ascii);
    let values = pairs.filter_map(|pair| pair.strip_prefix(COOKIE.as_bytes())?.strip_prefix(b"="));
    values.filter(|value| value.len() == nix32::encoded_len(SECRET_LEN)).take(COOKIES_MAX)
}

/// The cookie of a new session, or with an empty secret, of one that has ended. `path` is that of the cache.
pub(crate) fn cookie(secret: &str, path: String, is_secure: bool) -> Cookie {
    let age = if secret.is_empty() { Duration::ZERO } else { LASTS_MAX };
    Cookie::new(COOKIE, secret).max_age(age).path(path).same_site(SameSite::Strict).secure(is_secure)
}

/// Whether a request comes from a page of this server. Browsers send `Origin` with every request but GET and HEAD, and with WebSockets;
/// `Sec-Fetch-Site` only to hosts that they consider secure.
pub(crate) fn is_own_page(head: &HeadRef<'_>) -> bool {
    let host = head.host().unwrap_or_default();
    let is_host = |origin: &[u8]| {
        let of_origin = origin.strip_prefix(b"https://").or_else(|| origin.strip_prefix(b"http://"));
        of_origin.is_some_and(|of_origin| !host.is_empty() && of_origin.eq_ignore_ascii_case(host.as_bytes()))
    };
    head.header_bytes("origin").is_some_and(is_host)
        && head.header_bytes("sec-fetch-site").is_none_or(|site| site == b"same-origin")
}

/// Whether the page of a request was loaded over TLS, here or at a proxy.
pub(crate) fn is_secure(head: &HeadRef<'_>) -> bool {
    head.header_bytes("origin").is_some_and(|origin| origin.starts_with(b"https://"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails may say so")]

    use narval_http::{Request, Response, StatusCode, header};
    use narval_keep::{CacheName, CacheSettings, Data, DataOptions};

    use super::*;

    fn request(fields: &str) -> Request {
        Request::parse(format!("POST / HTTP/1.1\r\nHost: cache.example:80\r\n{fields}\r\n"), "").unwrap()
    }

    fn stamp() -> Stamp {
        let folder = tempfile::tempdir().unwrap();
        let data = Data::open(folder.path(), DataOptions::default()).unwrap();
        data.create_cache(&CacheName::default(), &CacheSettings::default()).unwrap().stamp()
    }

    fn grant(token: &str) -> Arc<Grant> {
        Arc::new(Grant { token: token.to_owned(), ..Grant::administrator("test") })
    }

    #[test]
    fn only_the_secret_opens_a_session_and_only_its_proof_proves_a_write() {
        let (sessions, stamp) = (Sessions::default(), stamp());
        let [one, other] = ["a", "b"].map(|token| sessions.open(grant(token), stamp).unwrap());
        let found = |secret: &str| {
            let request = request(&format!("Cookie: x=y; {COOKIE}=wrong; {COOKIE}={secret}\r\n"));
            sessions.find(&request.head()).map(|(session, _)| session)
        };
        let (first, second) = (found(&one).unwrap(), found(&other).unwrap());
        assert_eq!((&*first.grant.token, &*second.grant.token), ("a", "b"));
        assert!(found(&one.replace(char::is_alphabetic, "0")).is_none() && found("").is_none());
        let proved = |session: &Session, proof: &str| session.is_proved_by(proof.as_bytes());
        assert!(proved(&first, &first.proof) && !proved(&first, &second.proof) && !proved(&first, &one));
        assert!(!first.is_proved_by(b""));
        sessions.end(&first.id);
        assert!(found(&one).is_none() && found(&other).is_some());
    }

    #[test]
    fn a_token_has_few_sessions_and_all_have_many() {
        let (sessions, stamp) = (Sessions::default(), stamp());
        let other = sessions.open(grant("other"), stamp).unwrap();
        let many: Vec<_> = (0..OF_TOKEN_MAX + 1).map(|_| sessions.open(grant("many"), stamp).unwrap()).collect();
        let is_open =
            |secret: &str| sessions.find(&request(&format!("Cookie: {COOKIE}={secret}\r\n")).head()).is_some();
        assert!(is_open(&other) && !is_open(&many[0]) && many[1..].iter().all(|secret| is_open(secret)));
        (0..SESSIONS_MAX + 5).for_each(|number| drop(sessions.open(grant(&number.to_string()), stamp).unwrap()));
        assert_eq!(sessions.open.lock().len(), SESSIONS_MAX);
    }

    #[test]
    fn other_origins_are_not_ours() {
        let own = |fields: &str| is_own_page(&request(fields).head());
        assert!(
            own("Origin: http://cache.example:80\r\n")
                && own("Origin: https://Cache.example:80\r\nSec-Fetch-Site: same-origin\r\n")
        );
        for fields in [
            "",
            "Origin: null\r\n",
            "Origin: http://cache.example\r\n",
            "Origin: http://evil.example\r\n",
            "Origin: http://cache.example:80.evil.example\r\n",
            "Origin: http://cache.example:80\r\nSec-Fetch-Site: cross-site\r\n",
            "Sec-Fetch-Site: same-origin\r\n",
        ] {
            assert!(!own(fields), "{fields}");
        }
        let set = |secret: &str, path: &str, is_secure| {
            let response = Response::new(StatusCode::OK).cookie(cookie(secret, path.to_owned(), is_secure));
            response.header_value(&header::SET_COOKIE).unwrap().to_str().unwrap().to_owned()
        };
        assert!(set("x", "/", true).ends_with("; Max-Age=28800; HttpOnly; Secure; SameSite=Strict"));
        assert!(set("", "/team/", false).ends_with("=; Path=/team/; Max-Age=0; HttpOnly; SameSite=Strict"));
    }
}
