//! A request as the functions of the table see it, and their answers.

use std::borrow::Cow;

use narval_http::{Method, Response};
use narval_keep::{Cache, CacheName, Data, Grant, Rejection};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::error::ServeError;
use crate::routes::cache_names::no_cache;

/// The most entries of a page of a list, and how many it has if nothing else is said.
const PAGE_MAX: usize = 1000;
const PAGE_DEFAULT: usize = 100;

/// The longest `Idempotency-Key`, in bytes.
const KEY_LEN_MAX: usize = 64;

/// A request to the API.
#[derive(Clone, Copy, Debug)]
pub struct ApiRequest<'a> {
    /// Its method.
    pub method: &'a Method,
    /// Its path below the API's, with `%XX`, and without a query: `caches/default/pins`.
    pub path: &'a str,
    /// Its query, without `?`.
    pub query: Option<&'a str>,
    /// Its body: JSON, or nothing.
    pub body: &'a [u8],
    /// `Idempotency-Key`: what a request that is sent again has in common with the first one.
    pub key: Option<&'a str>,
}

/// What is known of a request when it is answered.
pub(super) struct ApiCall<'a> {
    pub(super) data: &'a Data,
    /// The cache at whose address this was asked.
    pub(super) at: Option<&'a CacheName>,
    pub(super) grant: Option<&'a Grant>,
    pub(super) parts: Parts<'a>,
    query: Vec<(Cow<'a, str>, Cow<'a, str>)>,
    pub(super) body: &'a [u8],
    pub(super) key: Option<&'a str>,
}

/// The parts of a path that a pattern names, decoded.
pub(super) type Parts<'a> = Vec<(&'static str, Cow<'a, str>)>;

/// What is answered.
#[derive(Debug)]
pub(super) struct ApiAnswer {
    pub(super) status: u16,
    /// JSON; `None`: nothing.
    pub(super) body: Option<Value>,
    /// Events, instead of them.
    pub(super) events: Option<Response>,
}

impl ApiAnswer {
    pub(super) fn new(status: u16, body: &impl Serialize) -> Result<Self, ServeError> {
        let body = serde_json::to_value(body).map_err(|error| {
            tracing::error!("cannot render an answer of the API: {error}");
            Rejection::failed("the answer cannot be rendered; see the server's log")
        })?;
        Ok(Self { status, body: Some(body), events: None })
    }

    pub(super) fn ok(body: &impl Serialize) -> Result<Self, ServeError> {
        Self::new(200, body)
    }

    /// A page of a list, and what the next one comes after.
    pub(super) fn page(items: &impl Serialize, next: Option<impl ToString>) -> Result<Self, ServeError> {
        Self::ok(&json!({"items": items, "next": next.map(|next| next.to_string())}))
    }

    pub(super) const fn nothing() -> Self {
        Self { status: 204, body: None, events: None }
    }

    pub(super) const fn events(response: Response) -> Self {
        Self { status: 200, body: None, events: Some(response) }
    }
}

/// A request that is not of the form that it should have.
pub(super) fn malformed(error: impl std::fmt::Display) -> ServeError {
    Rejection::malformed(error).into()
}

pub(super) fn not_found(what: impl std::fmt::Display) -> ServeError {
    Rejection::not_found(what).into()
}

impl<'a> ApiCall<'a> {
    pub(super) fn new(
        data: &'a Data,
        at: Option<&'a CacheName>,
        grant: Option<&'a Grant>,
        parts: Parts<'a>,
        request: &ApiRequest<'a>,
    ) -> Result<Self, ServeError> {
        let is_legal = |key: &str| {
            (1..=KEY_LEN_MAX).contains(&key.len())
                && key.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
        };
        if !request.key.is_none_or(is_legal) {
            return Err(malformed(format!("'Idempotency-Key' has 1 to {KEY_LEN_MAX} letters, digits and -")));
        }
        let pairs = request.query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty());
        let query = pairs.map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            Some((decoded(name)?, decoded(value)?))
        });
        let query = query.collect::<Option<_>>().ok_or_else(|| malformed("the query is not UTF-8"))?;
        Ok(Self { data, at, grant, parts, query, body: request.body, key: request.key })
    }

    /// Who asks. All routes but those for everybody have somebody.
    pub(super) fn grant(&self) -> Result<&'a Grant, ServeError> {
        self.grant.ok_or_else(|| crate::auth::unauthorized("this needs a token"))
    }

    pub(super) fn part(&self, name: &str) -> &str {
        part(&self.parts, name)
    }

    /// A part of the path, parsed.
    pub(super) fn parsed<T: std::str::FromStr<Err: std::fmt::Display>>(&self, name: &str) -> Result<T, ServeError> {
        self.part(name).parse().map_err(|error: T::Err| malformed(error))
    }

    /// The cache of the path.
    pub(super) fn cache(&self) -> Result<Cache, ServeError> {
        let name = self.part("cache");
        let found = CacheName::parse(name).ok().map(|name| self.data.cache(&name)).transpose().map_err(of_data)?;
        found.flatten().filter(|cache| !cache.settings().deleted).ok_or_else(|| no_cache(name).into())
    }

    /// The same, also if it was deleted: for its jobs.
    pub(super) fn cache_or_deleted(&self) -> Result<Cache, ServeError> {
        let name = self.parsed("cache")?;
        self.data.cache(&name).map_err(of_data)?.ok_or_else(|| no_cache(name.as_str()).into())
    }

    /// A parameter of the query.
    pub(super) fn query(&self, name: &str) -> Option<&str> {
        self.query.iter().find(|(key, _)| key == name).map(|(_, value)| &**value).filter(|value| !value.is_empty())
    }

    /// The same, parsed.
    pub(super) fn number(&self, name: &str) -> Result<Option<u64>, ServeError> {
        let parse = |text: &str| text.parse().map_err(|_| malformed(format!("'{name}={text}' is not a number")));
        self.query(name).map(parse).transpose()
    }

    /// The number of entries of a page.
    pub(super) fn limit(&self) -> Result<usize, ServeError> {
        let limit = self.number("limit")?.map_or(PAGE_DEFAULT, |limit| usize::try_from(limit).unwrap_or(PAGE_MAX));
        Ok(limit.clamp(1, PAGE_MAX))
    }

    /// The body; nothing is an empty object.
    pub(super) fn json<T: DeserializeOwned>(&self) -> Result<T, ServeError> {
        let body = if self.body.is_empty() { b"{}" } else { self.body };
        serde_json::from_slice(body).map_err(|error| malformed(format!("the body: {error}")))
    }
}

pub(super) fn of_data(error: narval_keep::DataError) -> ServeError {
    tracing::error!("{error}");
    Rejection::failed("the data cannot be read or written; see the server's log").into()
}

pub(super) fn decoded(text: &str) -> Option<Cow<'_, str>> {
    percent_encoding::percent_decode_str(text).decode_utf8().ok()
}

pub(super) fn part<'a>(parts: &'a Parts<'_>, name: &str) -> &'a str {
    parts.iter().find(|(key, _)| *key == name).map_or("", |(_, value)| value)
}

/// What limits those who administer some caches is changed by those who administer all of them.
pub(super) fn require_all(grant: &Grant, what: &str) -> Result<(), ServeError> {
    if grant.caches.cover("*") {
        return Ok(());
    }
    let caches = grant.caches.texts().join(", ");
    let message = format!("only those who administer all caches can {what}: your token is for {caches}");
    Err(Rejection::forbidden(message).into())
}
