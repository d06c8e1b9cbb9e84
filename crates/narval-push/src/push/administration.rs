//! Administers a cache over HTTP, with a token that may (`docs/push-protocol.md`).

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use narval_client::{Client, HttpError, Method, Payload, Url, escaped};
use narval_nix::release::{RELEASE_LEN_MAX, ReleaseName};
use narval_nix::{Release, StoreDir};
use serde_json::Value;
use zeroize::Zeroizing;

use super::server::{ANSWER_LEN_MAX, Sent, Server};
use narval_transfer::Error;

/// The path of these requests.
const PROTOCOL: &str = "_narval/v1";
/// The path of the API for administration.
const API: &str = "_narval/api/v1";
/// The maximum length of a page of a list: a thousand tokens, each with 64 caches and 64 patterns, are 17 MB.
const PAGE_LEN_MAX: u64 = 32 * 1024 * 1024;
/// What a form of RFC 8693 asks for, and what for.
const EXCHANGE: &str = "grant_type=urn:ietf:params:oauth:grant-type:token-exchange\
                        &subject_token_type=urn:ietf:params:oauth:token-type:jwt&subject_token=";

/// What a job or a person gets for an identity token.
pub struct Exchanged {
    /// A token of the cache.
    pub token: Zeroizing<String>,
    /// How long it is valid.
    pub lifetime: Duration,
}

/// A key for a request that is nobody else's: 128 bits that depend on random ones of this process.
fn random_key() -> String {
    let random = |number: u8| RandomState::new().hash_one(number);
    format!("{:016x}{:016x}", random(0), random(1))
}

/// A cache that is administered over HTTP.
pub struct Administered(Server);

impl Administered {
    /// The cache at this address. Nothing is asked yet.
    pub fn new(url: Url, client: Arc<Client>) -> Self {
        Self(Server::new(url, client, StoreDir::default()))
    }

    /// Its address, without secrets.
    pub const fn url(&self) -> &Url {
        &self.0.url
    }

    /// Asks the API for administration (`docs/api.md`). `path`: below the API's, with `%XX` and its query. What is not repeated by its nature, a POST, has
    /// a key, so that it is done once, however often it is sent.
    ///
    /// # Errors
    /// If the cache cannot be reached, or refuses. So for the other requests.
    pub fn ask(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Value, Error> {
        let below = if path.is_empty() { API.to_owned() } else { format!("{API}/{path}") };
        let (url, body) = (self.0.url.child(&below)?, body.map(ToString::to_string).unwrap_or_default());
        let key = (method == Method::Post).then(random_key);
        let fields: Vec<_> = key.iter().map(|key| ("idempotency-key", &**key)).collect();
        let (fields, payload, content_type) = (&*fields, Payload::Bytes(body.as_bytes()), "application/json");
        let sent = Sent { method, url: &url, content_type, fields, payload, answer_len_max: PAGE_LEN_MAX };
        let answer = self.0.accepted(&url, self.0.send(&sent, &|_| {})?)?;
        if answer.is_empty() {
            return Ok(Value::Null);
        }
        serde_json::from_slice(&answer).map_err(|error| self.not_narval(&below, &error))
    }

    /// Records a release of paths that it has, or promotes another one (`docs/push-protocol.md`). The request has a key, so that it is recorded once,
    /// however often it is sent.
    pub fn release(&self, name: &ReleaseName, body: &Value) -> Result<Release, Error> {
        let below = format!("{PROTOCOL}/releases/{}", escaped(name.as_str()));
        let mut body = body.clone();
        if let Some(fields) = body.as_object_mut() {
            fields.insert("key".to_owned(), random_key().into());
        }
        let answer = self.send(Method::Post, &below, body.to_string().as_bytes(), RELEASE_LEN_MAX as u64)?;
        Release::parse(&answer).map_err(|error| self.not_narval(&below, &error))
    }

    /// Sends what a machine reports that follows a release.
    pub fn report(&self, machine: &str, report: &Value) -> Result<(), Error> {
        let below = format!("{PROTOCOL}/machines/{}", escaped(machine));
        self.send(Method::Post, &below, report.to_string().as_bytes(), ANSWER_LEN_MAX).map(drop)
    }

    /// How people sign in: what the cache says of it to everybody. `None` if they do not, or it is another server.
    pub fn sign_in(&self) -> Result<Option<Vec<u8>>, Error> {
        let url = self.0.url.child(&format!("{PROTOCOL}/oidc"))?;
        match narval_cache::read_small(&self.0.client, &url, ANSWER_LEN_MAX) {
            Err(HttpError::Status { status: 401..=405, .. }) => Ok(None),
            answer => answer.map_err(|error| self.0.failed(&url.target(), error)),
        }
    }

    /// Exchanges the token of a CI platform, or of a person who signs in, for one of the cache (RFC 8693; `docs/push-protocol.md`).
    pub fn exchange(&self, platform_token: &str) -> Result<Exchanged, Error> {
        let below = format!("{PROTOCOL}/oidc");
        let form = Zeroizing::new(format!("{EXCHANGE}{}", escaped(platform_token)));
        let form_type = "application/x-www-form-urlencoded";
        let answer = Zeroizing::new(self.send_as(form_type, Method::Post, &below, form.as_bytes(), ANSWER_LEN_MAX)?);
        let answer: Value = serde_json::from_slice(&answer).map_err(|error| self.not_narval(&below, &error))?;
        let token = answer.get("access_token").and_then(Value::as_str);
        let token = token.ok_or_else(|| self.not_narval(&below, &"no access_token"))?;
        let seconds = answer.get("expires_in").and_then(Value::as_u64).unwrap_or(0);
        Ok(Exchanged { token: token.to_owned().into(), lifetime: Duration::from_secs(seconds) })
    }

    /// Whether the credentials allow to push: asks for nothing.
    pub fn may_push(&self) -> Result<bool, Error> {
        match self.send(Method::Post, &format!("{PROTOCOL}/missing"), &[], ANSWER_LEN_MAX) {
            Ok(_) => Ok(true),
            Err(Error::Refused { status: 401 | 403, .. }) => Ok(false),
            // Another server, which cannot be asked.
            Err(Error::Refused { status: 404 | 405, .. }) => Ok(true),
            Err(error) => Err(error),
        }
    }

    fn not_narval(&self, below: &str, error: &dyn std::fmt::Display) -> Error {
        Error::Refused {
            cache: self.0.url.to_string(),
            what: below.to_owned(),
            status: 200,
            message: format!("the answer cannot be read, is it a Narval server? ({error})"),
        }
    }

    fn send(&self, method: Method, below: &str, body: &[u8], answer_len_max: u64) -> Result<Vec<u8>, Error> {
        let content_type = if body.is_empty() { "text/plain" } else { "application/json" };
        self.send_as(content_type, method, below, body, answer_len_max)
    }

    fn send_as(
        &self,
        content_type: &str,
        method: Method,
        below: &str,
        body: &[u8],
        answer_len_max: u64,
    ) -> Result<Vec<u8>, Error> {
        let url = self.0.url.child(below)?;
        let (fields, payload) = (&[], Payload::Bytes(body));
        let sent = Sent { method, url: &url, content_type, fields, payload, answer_len_max };
        self.0.accepted(&url, self.0.send(&sent, &|_| {})?)
    }
}
