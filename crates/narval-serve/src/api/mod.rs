//! The administration of caches: one API below `/_narval/api/v1`, which the command line uses on a data folder, too, and the forms of the page.
//!
//! What can be asked is a [table](table::ROWS): a method and a path, who may, and a function. Rights are checked here, from the table, before anything
//! is looked up: whoever may not do something learns nothing of what there is. `docs/api.md` is the reference, and `docs/openapi.json` is made of the table.

mod audit;
mod caches;
mod http;
mod jobs;
mod kept;
mod openapi;
mod releases;
mod table;
mod tokens;

use std::borrow::Cow;

use narval_http::{Method, Response};
use narval_keep::{Cache, CacheName, Data, Grant, Refusal, RefusalKind, Scope};
use narval_nix::release::RELEASE_LEN_MAX;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::error::ServeError;
use crate::upload::no_cache;
pub(crate) use http::answer;
pub(crate) use kept::hash_part_of;
pub use openapi::openapi;
use table::{Needs, ROWS, Row};
pub(crate) use tokens::{governs, of_tokens};

/// The path of the API, below that of a cache.
pub(crate) const PATH: &str = "_narval/api/v1";

/// The longest body, in bytes: that of a release.
const BODY_LEN_MAX: u64 = RELEASE_LEN_MAX as u64;

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

/// Asks the API of a data folder, without a server.
///
/// # Errors
/// The refusal of what the grant does not allow, or what is not possible.
///
/// ```
/// use narval_keep::{Data, DataOptions, Grant};
/// use narval_serve::{ApiRequest, ask_api};
/// # let folder = tempfile::tempdir().unwrap();
/// # let folder = folder.path().join("data");
/// let data = Data::open(&folder, DataOptions::default())?;
/// let grant = Grant::administrator("example");
/// let put = narval_http::Method::PUT;
/// let asked = ApiRequest { method: &put, path: "caches/team", query: None, body: b"{}", key: None };
/// assert_eq!(ask_api(&data, &grant, &asked)?["name"], "team");
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
pub fn ask_api(data: &Data, grant: &Grant, request: &ApiRequest<'_>) -> Result<Value, Refusal> {
    ask(data, grant, request).map_err(|error| match error {
        ServeError::Refused(refusal) => refusal,
        error => Refusal::new(RefusalKind::Failed, error),
    })
}

/// The same for the page: what the API answers.
pub(crate) fn ask(data: &Data, grant: &Grant, request: &ApiRequest<'_>) -> Result<Value, ServeError> {
    let Found::Row(row, parts) = find(request.method, request.path) else { return Err(ServeError::NoRoute) };
    authorize(row, &parts, grant)?;
    let answered = (row.run)(&Asked::new(data, None, Some(grant), parts, request)?)?;
    Ok(answered.body.unwrap_or_default())
}

/// What is known of a request when it is answered.
struct Asked<'a> {
    data: &'a Data,
    /// The cache at whose address this was asked.
    at: Option<&'a CacheName>,
    grant: Option<&'a Grant>,
    parts: Parts<'a>,
    query: Vec<(Cow<'a, str>, Cow<'a, str>)>,
    body: &'a [u8],
    key: Option<&'a str>,
}

/// The parts of a path that a pattern names, decoded.
type Parts<'a> = Vec<(&'static str, Cow<'a, str>)>;

/// What is answered.
#[derive(Debug)]
struct Answered {
    status: u16,
    /// JSON; `None`: nothing.
    body: Option<Value>,
    /// Events, instead of them.
    events: Option<Response>,
}

impl Answered {
    fn new(status: u16, body: &impl Serialize) -> Result<Self, ServeError> {
        let body = serde_json::to_value(body).map_err(|error| {
            tracing::error!("cannot render an answer of the API: {error}");
            Refusal::new(RefusalKind::Failed, "the answer cannot be rendered; see the server's log")
        })?;
        Ok(Self { status, body: Some(body), events: None })
    }

    fn ok(body: &impl Serialize) -> Result<Self, ServeError> {
        Self::new(200, body)
    }

    /// A page of a list, and what the next one comes after.
    fn page(items: &impl Serialize, next: Option<impl ToString>) -> Result<Self, ServeError> {
        Self::ok(&json!({"items": items, "next": next.map(|next| next.to_string())}))
    }

    const fn nothing() -> Self {
        Self { status: 204, body: None, events: None }
    }

    const fn events(response: Response) -> Self {
        Self { status: 200, body: None, events: Some(response) }
    }
}

/// A request that is not of the form that it should have.
fn malformed(error: impl std::fmt::Display) -> ServeError {
    Refusal::new(RefusalKind::Malformed, error).into()
}

fn not_found(what: impl std::fmt::Display) -> ServeError {
    Refusal::new(RefusalKind::NotFound, what).into()
}

impl<'a> Asked<'a> {
    fn new(
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
    fn grant(&self) -> Result<&'a Grant, ServeError> {
        self.grant.ok_or_else(|| crate::auth::unauthorized("this needs a token"))
    }

    fn part(&self, name: &str) -> &str {
        part(&self.parts, name)
    }

    /// A part of the path, parsed.
    fn parsed<T: std::str::FromStr<Err: std::fmt::Display>>(&self, name: &str) -> Result<T, ServeError> {
        self.part(name).parse().map_err(|error: T::Err| malformed(error))
    }

    /// The cache of the path.
    fn cache(&self) -> Result<Cache, ServeError> {
        let name = self.part("cache");
        let found = CacheName::parse(name).ok().map(|name| self.data.cache(&name)).transpose().map_err(of_data)?;
        found.flatten().filter(|cache| !cache.settings().deleted).ok_or_else(|| no_cache(name).into())
    }

    /// The same, also if it was deleted: for its jobs.
    fn cache_or_deleted(&self) -> Result<Cache, ServeError> {
        let name = self.parsed("cache")?;
        self.data.cache(&name).map_err(of_data)?.ok_or_else(|| no_cache(name.as_str()).into())
    }

    /// A parameter of the query.
    fn query(&self, name: &str) -> Option<&str> {
        self.query.iter().find(|(key, _)| key == name).map(|(_, value)| &**value).filter(|value| !value.is_empty())
    }

    /// The same, parsed.
    fn number(&self, name: &str) -> Result<Option<u64>, ServeError> {
        let parse = |text: &str| text.parse().map_err(|_| malformed(format!("'{name}={text}' is not a number")));
        self.query(name).map(parse).transpose()
    }

    /// The number of entries of a page.
    fn limit(&self) -> Result<usize, ServeError> {
        let limit = self.number("limit")?.map_or(PAGE_DEFAULT, |limit| usize::try_from(limit).unwrap_or(PAGE_MAX));
        Ok(limit.clamp(1, PAGE_MAX))
    }

    /// The body; nothing is an empty object.
    fn json<T: DeserializeOwned>(&self) -> Result<T, ServeError> {
        let body = if self.body.is_empty() { b"{}" } else { self.body };
        serde_json::from_slice(body).map_err(|error| malformed(format!("the body: {error}")))
    }
}

fn of_data(error: narval_keep::DataError) -> ServeError {
    tracing::error!("{error}");
    Refusal::new(RefusalKind::Failed, "the data cannot be read or written; see the server's log").into()
}

fn decoded(text: &str) -> Option<Cow<'_, str>> {
    percent_encoding::percent_decode_str(text).decode_utf8().ok()
}

fn part<'a>(parts: &'a Parts<'_>, name: &str) -> &'a str {
    parts.iter().find(|(key, _)| *key == name).map_or("", |(_, value)| value)
}

/// What a path is.
enum Found<'a> {
    Row(&'static Row, Parts<'a>),
    /// There are other methods, as `Allow` says them.
    Methods(String),
    Nothing,
}

/// Looks up a method, and a path below the API's.
fn find<'a>(method: &Method, path: &'a str) -> Found<'a> {
    let path: Vec<&str> = path.split('/').collect();
    let mut methods: Vec<&str> = Vec::new();
    // A path whose last part is fixed comes before one in which it is a name.
    for row in ROWS {
        let Some(parts) = matched(row.path, &path) else { continue };
        if row.method == *method || (*method == Method::HEAD && row.method == Method::GET) {
            return Found::Row(row, parts);
        }
        methods.push(row.method.as_str());
    }
    methods.dedup();
    if methods.is_empty() { Found::Nothing } else { Found::Methods(methods.join(", ")) }
}

fn matched<'a>(pattern: &'static str, path: &[&'a str]) -> Option<Parts<'a>> {
    let pattern: Vec<&str> = pattern.split('/').collect();
    if pattern.len() != path.len() {
        return None;
    }
    let mut parts = Parts::new();
    for (wanted, given) in pattern.into_iter().zip(path) {
        match wanted.strip_prefix('{').and_then(|name| name.strip_suffix('}')) {
            // Without its name, `releases//pin` must not be the release `pin`.
            Some(name) if !given.is_empty() => parts.push((name, decoded(given)?)),
            Some(_) => return None,
            None if wanted == *given => {}
            None => return None,
        }
    }
    Some(parts)
}

/// Whether a token may ask for something. Nothing but the token and the request decides: what there is does not.
fn authorize(row: &Row, parts: &Parts<'_>, grant: &Grant) -> Result<(), ServeError> {
    let name = part(parts, "cache");
    // No cache has such a name, whoever asks.
    let cache = || CacheName::parse(name).map_err(|_| no_cache(name));
    match row.needs {
        Needs::Nothing | Needs::Token => Ok(()),
        Needs::Scope(scope) => Ok(grant.require(&cache()?, scope)?),
        Needs::Release => {
            let release = part(parts, "name").parse().map_err(malformed)?;
            Ok(grant.require_release(&cache()?, &release)?)
        }
        Needs::All => {
            grant.require(&cache()?, Scope::Admin)?;
            require_all(grant, "create caches")
        }
        Needs::SomeAdmin if grant.scopes.has(Scope::Admin) => Ok(()),
        Needs::SomeAdmin => {
            let message = format!("token '{}' lacks the scope 'admin': it allows {}", grant.token, grant.scopes);
            Err(Refusal::new(RefusalKind::Forbidden, message).into())
        }
    }
}

/// What limits those who administer some caches is changed by those who administer all of them.
fn require_all(grant: &Grant, what: &str) -> Result<(), ServeError> {
    if grant.caches.cover("*") {
        return Ok(());
    }
    let caches = grant.caches.texts().join(", ");
    let message = format!("only those who administer all caches can {what}: your token is for {caches}");
    Err(Refusal::new(RefusalKind::Forbidden, message).into())
}
