//! Administers a cache over HTTP, with a token that may (`docs/push-protocol.md`).

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use narval_client::{Client, Method, Payload, Url};
use narval_nix::release::{RELEASE_LEN_MAX, ReleaseName, Which};
use narval_nix::{HashPart, Release, StoreDir};
use serde_json::Value;
use zeroize::Zeroizing;

use super::server::{ANSWER_LEN_MAX, Sent, Server};
use crate::Error;
use crate::names::escaped;

/// The path of these requests.
const PROTOCOL: &str = "_narval/v1";
/// The maximum length of a list of pins.
const PINS_LEN_MAX: u64 = 64 * 1024 * 1024;

/// The maximum length of a page of machines.
const MACHINES_LEN_MAX: u64 = 16 * 1024 * 1024;
/// What a form of RFC 8693 asks for, and what for.
const EXCHANGE: &str = "grant_type=urn:ietf:params:oauth:grant-type:token-exchange\
                        &subject_token_type=urn:ietf:params:oauth:token-type:jwt&subject_token=";

/// What a job gets for the token of its platform.
pub struct Exchanged {
    /// A token of the cache.
    pub token: Zeroizing<String>,
    /// How long it is valid.
    pub lifetime: Duration,
    /// What it may do.
    pub scopes: Vec<String>,
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

    /// Its pins: an array.
    ///
    /// # Errors
    /// If the cache cannot be reached, or refuses. So for the other requests.
    pub fn pins(&self) -> Result<Value, Error> {
        self.json(Method::Get, &format!("{PROTOCOL}/pins"), PINS_LEN_MAX)
    }

    /// Pins a path, for the newest `keep` paths of this name, and for so many seconds. Returns the name and the path.
    pub fn pin(&self, name: &str, path: &HashPart, keep: Option<u32>, seconds: Option<u64>) -> Result<String, Error> {
        let mut below = format!("{PROTOCOL}/pins/{}?path={path}", escaped(name));
        for (key, value) in [("keep", keep.map(u64::from)), ("seconds", seconds)] {
            if let Some(value) = value {
                below.push_str(&format!("&{key}={value}"));
            }
        }
        let answer = self.ask(Method::Put, &below, ANSWER_LEN_MAX)?;
        Ok(String::from_utf8_lossy(&answer).trim_end().to_owned())
    }

    /// Removes the pins of a name, or the one with this path. Returns whether there was one.
    pub fn unpin(&self, name: &str, path: Option<&HashPart>) -> Result<bool, Error> {
        let path = path.map(|path| format!("?path={path}")).unwrap_or_default();
        match self.ask(Method::Delete, &format!("{PROTOCOL}/pins/{}{path}", escaped(name)), ANSWER_LEN_MAX) {
            Err(Error::Refused { status: 404, .. }) => Ok(false),
            answer => answer.map(|_| true),
        }
    }

    /// Deletes a path, and with `referrers` those that refer to it. Returns the numbers of paths and NARs, and bytes.
    pub fn delete(&self, path: &HashPart, referrers: bool) -> Result<Value, Error> {
        let query = if referrers { "?referrers=1" } else { "" };
        self.json(Method::Delete, &format!("{path}.narinfo{query}"), ANSWER_LEN_MAX)
    }

    /// Records a release of paths that it has, or promotes another one (`docs/push-protocol.md`). The request has a key, so that it is recorded once,
    /// however often it is sent.
    pub fn release(&self, name: &ReleaseName, body: &Value) -> Result<Release, Error> {
        let below = format!("{PROTOCOL}/releases/{}", escaped(name.as_str()));
        let mut body = body.clone();
        if let Some(fields) = body.as_object_mut() {
            // Nobody else's: 128 bits that depend on random ones of this process.
            let random = |number: u8| RandomState::new().hash_one(number);
            fields.insert("key".to_owned(), format!("{:016x}{:016x}", random(0), random(1)).into());
        }
        let answer = self.send(Method::Post, &below, body.to_string().as_bytes(), RELEASE_LEN_MAX as u64)?;
        Release::parse(&answer).map_err(|error| self.not_narval(&below, &error))
    }

    /// Pins a release, or unpins it. Returns which one it was.
    pub fn pin_release(&self, name: &ReleaseName, which: &Which, is_pinned: bool) -> Result<String, Error> {
        let method = if is_pinned { Method::Put } else { Method::Delete };
        let (name, which) = (escaped(name.as_str()), escaped(&which.to_string()));
        let answer = self.ask(method, &format!("{PROTOCOL}/releases/{name}/{which}/pin"), ANSWER_LEN_MAX)?;
        Ok(String::from_utf8_lossy(&answer).trim_end().to_owned())
    }

    /// Forgets a release, or all of a name.
    pub fn forget_release(&self, name: &ReleaseName, revision: Option<u64>) -> Result<(), Error> {
        let revision = revision.map(|revision| format!("/{revision}")).unwrap_or_default();
        let below = format!("{PROTOCOL}/releases/{}{revision}", escaped(name.as_str()));
        self.ask(Method::Delete, &below, ANSWER_LEN_MAX).map(drop)
    }

    /// Sends what a machine reports that follows a release.
    pub fn report(&self, machine: &str, report: &Value) -> Result<(), Error> {
        let below = format!("{PROTOCOL}/machines/{}", escaped(machine));
        self.send(Method::Post, &below, report.to_string().as_bytes(), ANSWER_LEN_MAX).map(drop)
    }

    /// A page of the machines that have reported, after what the page before has as its `next`.
    pub fn machines(&self, after: Option<&str>) -> Result<Value, Error> {
        let after = after.map(|after| format!("?after={}", escaped(after))).unwrap_or_default();
        self.json(Method::Get, &format!("{PROTOCOL}/machines{after}"), MACHINES_LEN_MAX)
    }

    /// Forgets a machine. Returns whether it was known.
    pub fn forget_machine(&self, machine: &str) -> Result<bool, Error> {
        match self.ask(Method::Delete, &format!("{PROTOCOL}/machines/{}", escaped(machine)), ANSWER_LEN_MAX) {
            Err(Error::Refused { status: 404, .. }) => Ok(false),
            answer => answer.map(|_| true),
        }
    }

    /// Exchanges the token of a CI platform for one of the cache (RFC 8693; `docs/push-protocol.md`).
    pub fn exchange(&self, platform_token: &str) -> Result<Exchanged, Error> {
        let below = format!("{PROTOCOL}/oidc");
        let form = Zeroizing::new(format!("{EXCHANGE}{}", escaped(platform_token)));
        let form_type = "application/x-www-form-urlencoded";
        let answer = Zeroizing::new(self.send_as(form_type, Method::Post, &below, form.as_bytes(), ANSWER_LEN_MAX)?);
        let answer: Value = serde_json::from_slice(&answer).map_err(|error| self.not_narval(&below, &error))?;
        let text = |name: &str| answer.get(name).and_then(Value::as_str);
        let token = text("access_token").ok_or_else(|| self.not_narval(&below, &"no access_token"))?;
        let seconds = answer.get("expires_in").and_then(Value::as_u64).unwrap_or(0);
        Ok(Exchanged {
            token: token.to_owned().into(),
            lifetime: Duration::from_secs(seconds),
            scopes: text("scope").unwrap_or_default().split(' ').map(ToOwned::to_owned).collect(),
        })
    }

    /// Whether the credentials allow to push: asks for nothing.
    pub fn may_push(&self) -> Result<bool, Error> {
        match self.ask(Method::Post, &format!("{PROTOCOL}/missing"), ANSWER_LEN_MAX) {
            Ok(_) => Ok(true),
            Err(Error::Refused { status: 401 | 403, .. }) => Ok(false),
            // Another server, which cannot be asked.
            Err(Error::Refused { status: 404 | 405, .. }) => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Its figures.
    pub fn stats(&self) -> Result<Value, Error> {
        self.json(Method::Get, &format!("{PROTOCOL}/stats"), ANSWER_LEN_MAX)
    }

    fn json(&self, method: Method, below: &str, answer_len_max: u64) -> Result<Value, Error> {
        let answer = self.ask(method, below, answer_len_max)?;
        serde_json::from_slice(&answer).map_err(|error| self.not_narval(below, &error))
    }

    fn not_narval(&self, below: &str, error: &dyn std::fmt::Display) -> Error {
        Error::Refused {
            cache: self.0.url.to_string(),
            what: below.to_owned(),
            status: 200,
            message: format!("the answer cannot be read, is it a Narval server? ({error})"),
        }
    }

    fn ask(&self, method: Method, below: &str, answer_len_max: u64) -> Result<Vec<u8>, Error> {
        self.send(method, below, &[], answer_len_max)
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
