//! Management of a cache by browsers that have signed in. It does what the commands `narval token`, `pin` and `cache` do, within the
//! scopes of the token.

use std::io::Read;

use narval_client::clock;
use narval_http::{Method, Response};
use narval_keep::{
    Cache, CachePatterns, CollectOptions, Data, Grant, NewToken, PinFor, Refusal, RefusalKind, Scope, Scopes,
    TokenError, TokenInfo,
};
use narval_nix::{HashPart, StorePath};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::{json, usage};
use crate::error::ServeError;

/// The maximum length of a request's body in bytes.
const BODY_LEN_MAX: u64 = 64 * 1024;
/// The maximum number of tokens, pins and paths in one answer.
const LISTED_MAX: usize = 1_000;
const DAY_SECONDS: u64 = 24 * 60 * 60;

/// Collections from the page run one at a time.
static COLLECTING: Mutex<()> = Mutex::new(());

/// A request below `manage/`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Managing<'a> {
    /// `GET tokens`
    Tokens,
    /// `POST tokens`
    CreateToken,
    /// `DELETE tokens/<id>`
    RevokeToken(&'a str),
    /// `GET pins`
    Pins,
    /// `POST pins`
    Pin,
    /// `DELETE pins/<hash part>/<name>`
    Unpin(HashPart, &'a str),
    /// `DELETE paths/<hash part>`, with `?referrers=1` also what refers to it
    Delete(HashPart, bool),
    /// `GET collection`: what a collection would remove. `POST`: run one
    Collect {
        /// Whether only to report.
        dry_run: bool,
    },
    /// `GET usage`
    Usage,
}

impl<'a> Managing<'a> {
    /// # Errors
    /// 404 for other paths, 405 for other methods.
    pub(crate) fn of(method: &Method, path: &'a str, query: Option<&str>) -> Result<Self, ServeError> {
        let hash_part = |text: &str| HashPart::parse(text.as_bytes()).map_err(|_| ServeError::Invalid);
        let method = if *method == Method::HEAD { &Method::GET } else { method };
        let (first, rest) = path.split_once('/').unwrap_or((path, ""));
        let (found, allowed) = match (first, rest) {
            ("tokens", "") => match *method {
                Method::GET => (Some(Self::Tokens), ""),
                Method::POST => (Some(Self::CreateToken), ""),
                _ => (None, "GET, HEAD, POST"),
            },
            ("tokens", id) => ((*method == Method::DELETE).then_some(Self::RevokeToken(id)), "DELETE"),
            ("pins", "") => match *method {
                Method::GET => (Some(Self::Pins), ""),
                Method::POST => (Some(Self::Pin), ""),
                _ => (None, "GET, HEAD, POST"),
            },
            ("pins", rest) => {
                let (hash, name) = rest.split_once('/').ok_or(ServeError::NoRoute)?;
                let unpin = Self::Unpin(hash_part(hash)?, name);
                ((*method == Method::DELETE).then_some(unpin), "DELETE")
            }
            ("paths", hash) => {
                let delete = Self::Delete(hash_part(hash)?, query == Some("referrers=1"));
                ((*method == Method::DELETE).then_some(delete), "DELETE")
            }
            ("collection", "") => match *method {
                Method::GET => (Some(Self::Collect { dry_run: true }), ""),
                Method::POST => (Some(Self::Collect { dry_run: false }), ""),
                _ => (None, "GET, HEAD, POST"),
            },
            ("usage", "") => ((*method == Method::GET).then_some(Self::Usage), "GET, HEAD"),
            _ => return Err(ServeError::NoRoute),
        };
        found.ok_or(ServeError::Method(allowed))
    }

    /// The scope that it needs.
    pub(crate) const fn scope(&self) -> Scope {
        match self {
            Self::Pins | Self::Pin | Self::Unpin(..) => Scope::Pin,
            Self::Delete(..) => Scope::Delete,
            Self::Tokens | Self::CreateToken | Self::RevokeToken(_) | Self::Collect { .. } | Self::Usage => {
                Scope::Admin
            }
        }
    }

    /// The request with its own copy of the names.
    pub(crate) fn into_command(self) -> Command {
        match self {
            Self::Tokens => Command::Tokens,
            Self::CreateToken => Command::CreateToken,
            Self::RevokeToken(id) => Command::RevokeToken(id.to_owned()),
            Self::Pins => Command::Pins,
            Self::Pin => Command::Pin,
            Self::Unpin(hash_part, name) => Command::Unpin(hash_part, name.to_owned()),
            Self::Delete(hash_part, referrers) => Command::Delete(hash_part, referrers),
            Self::Collect { dry_run } => Command::Collect { dry_run },
            Self::Usage => Command::Usage,
        }
    }
}

/// A request that can be sent to another thread.
#[derive(Debug)]
pub(crate) enum Command {
    Tokens,
    CreateToken,
    RevokeToken(String),
    Pins,
    Pin,
    Unpin(HashPart, String),
    Delete(HashPart, bool),
    Collect { dry_run: bool },
    Usage,
}

impl Command {
    /// Runs the request with a grant that has its scope.
    pub(crate) fn run(
        self,
        data: &Data,
        cache: &Cache,
        grant: &Grant,
        body: &mut dyn Read,
    ) -> Result<Response, ServeError> {
        match self {
            Self::Tokens => tokens(data, grant),
            Self::CreateToken => create_token(data, grant, parse(body)?),
            Self::RevokeToken(id) => revoke_token(data, grant, &id),
            Self::Pins => pins(cache),
            Self::Pin => pin(cache, grant, parse(body)?),
            Self::Unpin(hash_part, name) => unpin(cache, grant, hash_part, &name),
            Self::Delete(hash_part, referrers) => {
                let deleted = cache.delete(&hash_part, referrers, grant)?;
                json(&Removed { paths: deleted.paths.len(), files: deleted.files, bytes: deleted.bytes })
            }
            Self::Collect { dry_run } => collect(cache, grant, dry_run),
            Self::Usage => json(&usage::usage(cache)?),
        }
    }
}

fn parse<T: for<'a> Deserialize<'a>>(body: &mut dyn Read) -> Result<T, ServeError> {
    let mut text = Vec::new();
    let read = body.take(BODY_LEN_MAX).read_to_end(&mut text);
    read.map_err(|error| malformed(&error))?;
    serde_json::from_slice(&text).map_err(|error| malformed(&error))
}

fn malformed(error: &dyn std::fmt::Display) -> ServeError {
    Refusal::new(RefusalKind::Malformed, error).into()
}

/// Days from now.
fn in_days(days: u32) -> u64 {
    clock::now().saturating_add(u64::from(days).saturating_mul(DAY_SECONDS))
}

// -- tokens

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Token {
    id: String,
    label: String,
    caches: Vec<String>,
    scopes: String,
    created: u64,
    expires: Option<u64>,
    last_used: Option<u64>,
    revoked: Option<u64>,
    /// Whether this session was opened with it.
    is_own: bool,
}

impl Token {
    fn of(info: TokenInfo, grant: &Grant) -> Self {
        let TokenInfo { id, label, caches, scopes, created, expires, last_used, revoked } = info;
        let is_own = id == grant.token;
        Self { id, label, caches, scopes: scopes.to_string(), created, expires, last_used, revoked, is_own }
    }
}

#[derive(Debug, Serialize)]
struct Tokens {
    tokens: Vec<Token>,
    /// The total number of tokens that the caller may see.
    total: usize,
}

/// The body of `POST tokens`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TokenWanted {
    label: String,
    scopes: Vec<String>,
    caches: Vec<String>,
    /// How long it is valid; without a value, forever.
    days: Option<u32>,
}

#[derive(Debug, Serialize)]
struct Created {
    id: String,
    /// The token, which is not stored: it cannot be shown again.
    token: String,
}

/// An administrator of some caches may manage only tokens that are limited to these.
fn governs(grant: &Grant, caches: &[String]) -> bool {
    caches.iter().all(|pattern| grant.caches.cover(pattern))
}

/// Sorts tokens: valid ones first, then the newest first.
fn tokens(data: &Data, grant: &Grant) -> Result<Response, ServeError> {
    let mut tokens = data.tokens().list().map_err(of_tokens)?;
    tokens.retain(|token| governs(grant, &token.caches));
    let now = clock::now();
    let is_over = |token: &TokenInfo| token.revoked.is_some() || token.expires.is_some_and(|expires| expires <= now);
    tokens.sort_by_key(|token| (is_over(token), std::cmp::Reverse(token.created)));
    let total = tokens.len();
    let tokens = tokens.into_iter().take(LISTED_MAX).map(|token| Token::of(token, grant)).collect();
    json(&Tokens { tokens, total })
}

fn create_token(data: &Data, grant: &Grant, wanted: TokenWanted) -> Result<Response, ServeError> {
    let scopes: Scopes = wanted.scopes.join(",").parse().map_err(|error| malformed(&error))?;
    if wanted.caches.is_empty() {
        return Err(malformed(&"a token needs at least one cache, or '*' for all"));
    }
    let caches = CachePatterns::new(&wanted.caches).map_err(|error| malformed(&error))?;
    if !governs(grant, caches.texts()) {
        let message = format!("your token is only for {}", grant.caches.texts().join(", "));
        return Err(Refusal::new(RefusalKind::Forbidden, message).into());
    }
    let new = NewToken { label: wanted.label, caches, scopes, expires: wanted.days.map(in_days) };
    let (info, token) = data.tokens().create(&new).map_err(of_tokens)?;
    let detail = format!("'{}' allows {} in {}", info.label, info.scopes, info.caches.join(", "));
    data.audit().note(grant, None, "create token", &info.id, &Ok(detail));
    json(&Created { id: info.id, token: token.to_string() })
}

fn revoke_token(data: &Data, grant: &Grant, id: &str) -> Result<Response, ServeError> {
    let tokens = data.tokens();
    let listed = tokens.list().map_err(of_tokens)?;
    let known = listed.iter().any(|token| token.id == id && governs(grant, &token.caches));
    if !known || !tokens.revoke(id).map_err(of_tokens)? {
        return Err(Refusal::new(RefusalKind::NotFound, "there is no such token").into());
    }
    data.audit().note(grant, None, "revoke", id, &Ok("revoked".to_owned()));
    json(&serde_json::json!({}))
}

fn of_tokens(error: TokenError) -> ServeError {
    match error {
        TokenError::Index(error) => error.into(),
        TokenError::Label | TokenError::NoScope => malformed(&error),
        TokenError::Random(_) | TokenError::Record { .. } => {
            tracing::error!("{error}");
            Refusal::new(RefusalKind::Failed, "the tokens cannot be used; see the server's log").into()
        }
    }
}

// -- pins

#[derive(Debug, Serialize)]
struct Pin {
    name: String,
    hash: String,
    path: String,
    created: u64,
    keep: Option<u32>,
    until: Option<u64>,
}

#[derive(Debug, Serialize)]
struct Pins {
    pins: Vec<Pin>,
    total: usize,
}

/// The body of `POST pins`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PinWanted {
    name: String,
    /// A store path, its base name or its hash part.
    path: String,
    keep: Option<u32>,
    days: Option<u32>,
}

fn pins(cache: &Cache) -> Result<Response, ServeError> {
    let pins = cache.pins()?;
    let total = pins.len();
    let pin = |pin: narval_keep::Pin| Pin {
        hash: pin.path.split_once('-').map_or("", |(hash, _)| hash).to_owned(),
        name: pin.name,
        path: pin.path,
        created: pin.created,
        keep: pin.holds.keep,
        until: pin.holds.until,
    };
    json(&Pins { pins: pins.into_iter().take(LISTED_MAX).map(pin).collect(), total })
}

fn pin(cache: &Cache, grant: &Grant, wanted: PinWanted) -> Result<Response, ServeError> {
    let base = wanted.path.trim().rsplit('/').next().unwrap_or_default();
    let hash_part = StorePath::parse(base).map(|path| path.hash_part()).ok();
    let hash_part = hash_part.or_else(|| HashPart::parse(base.as_bytes()).ok());
    let hash_part = hash_part.ok_or_else(|| malformed(&"this is not a store path"))?;
    let holds = PinFor { keep: wanted.keep, until: wanted.days.map(in_days) };
    let pin = cache.pin(wanted.name.trim(), &hash_part, holds, grant)?;
    json(&serde_json::json!({ "name": pin.name, "path": pin.path }))
}

fn unpin(cache: &Cache, grant: &Grant, hash_part: HashPart, name: &str) -> Result<Response, ServeError> {
    let pins = cache.pins()?;
    let pin = pins.iter().find(|pin| pin.name == name && pin.path.starts_with(hash_part.as_str()));
    let path = pin.and_then(|pin| StorePath::parse(&pin.path).ok());
    let removed = path.map_or(Ok(0), |path| cache.unpin(name, Some(&path), grant))?;
    match removed {
        0 => Err(Refusal::new(RefusalKind::NotFound, "there is no such pin").into()),
        _ => json(&serde_json::json!({})),
    }
}

// -- paths

#[derive(Debug, Serialize)]
struct Removed {
    paths: usize,
    files: usize,
    bytes: u64,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Collected {
    /// The largest of the paths that are removed.
    paths: Vec<Forgotten>,
    /// The number of paths that are removed, the size of their NARs, and the number of those that stay.
    total: usize,
    total_bytes: u64,
    kept: usize,
    /// NARs without a path that are deleted, and their bytes.
    files: usize,
    bytes: u64,
    retention_days: Option<u32>,
    size_max: Option<u64>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Forgotten {
    hash: String,
    name: String,
    used: u64,
    size: u64,
    for_size: bool,
}

fn collect(cache: &Cache, grant: &Grant, dry_run: bool) -> Result<Response, ServeError> {
    let Some(_alone) = COLLECTING.try_lock() else {
        return Err(Refusal::new(RefusalKind::Conflict, "another collection is running: wait for it to end").into());
    };
    let collected = cache.collect(&CollectOptions { dry_run, ..CollectOptions::default() }, grant)?;
    let settings = cache.settings();
    let mut paths = collected.forgotten;
    let (total, total_bytes) = (paths.len(), paths.iter().map(|path| path.file_size).sum());
    paths.sort_by_key(|path| std::cmp::Reverse(path.file_size));
    let forgotten = |path: narval_keep::Forgotten| {
        let (hash, name) = path.path.split_once('-').unwrap_or((&path.path, ""));
        Forgotten {
            hash: hash.to_owned(),
            name: name.to_owned(),
            used: path.used,
            size: path.file_size,
            for_size: path.for_size,
        }
    };
    json(&Collected {
        paths: paths.into_iter().take(LISTED_MAX).map(forgotten).collect(),
        total,
        total_bytes,
        kept: collected.kept,
        files: collected.files,
        bytes: collected.bytes,
        retention_days: settings.retention_days,
        size_max: settings.size_max,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails may say so")]

    use super::*;

    #[test]
    fn requests_and_the_scopes_they_need() {
        let hash = "0i4073ldk2aplbmaarmp5c8gf3wmbl84";
        let of = |method, path: &str| Managing::of(&method, path, None).map(|asked| asked.scope());
        assert_eq!(of(Method::GET, "tokens").unwrap(), Scope::Admin);
        assert_eq!(of(Method::DELETE, "tokens/x").unwrap(), Scope::Admin);
        assert_eq!(of(Method::DELETE, &format!("pins/{hash}/a/b")).unwrap(), Scope::Pin);
        assert_eq!(of(Method::DELETE, &format!("paths/{hash}")).unwrap(), Scope::Delete);
        assert_eq!(of(Method::HEAD, "usage").unwrap(), Scope::Admin);
        assert_eq!(Managing::of(&Method::POST, "collection", None).unwrap(), Managing::Collect { dry_run: false });
        for (method, path) in [(Method::PUT, "tokens"), (Method::GET, "tokens/x"), (Method::POST, "usage")] {
            assert!(matches!(of(method, path), Err(ServeError::Method(_))), "{path}");
        }
        for path in ["", "x", "usage/x", "pins/x", "collection/x"] {
            assert!(matches!(of(Method::GET, path), Err(ServeError::NoRoute)), "{path}");
        }
        assert!(matches!(of(Method::DELETE, "paths/../x"), Err(ServeError::Invalid)));
    }

    #[test]
    fn administrators_of_some_caches_govern_the_tokens_of_these() {
        let caches = CachePatterns::new(&["team-*"]).unwrap();
        let grant = Grant { caches, ..Grant::administrator("test") };
        let governed = |caches: &[&str]| governs(&grant, &caches.iter().map(ToString::to_string).collect::<Vec<_>>());
        assert!(governed(&["team-a", "team-*"]) && !governed(&["team-a", "default"]) && !governed(&["*"]));
        assert!(governs(&Grant::administrator("test"), &["*".to_owned(), "x-*".to_owned()]));
    }
}
