//! What forms of the page change, for browsers that have signed in: what the commands `narval token`, `pin` and `cache` do, within the scopes of the
//! token. Views of the same names show it (`view/manage/`).

use std::io::Read;

use narval_client::clock;
use narval_http::semantics::path::query_pairs;
use narval_keep::{
    Cache, CachePatterns, CollectOptions, Data, Grant, NewToken, PinFor, Refusal, RefusalKind, Scope, Scopes,
    TokenError,
};
use narval_nix::{HashPart, StorePath};
use parking_lot::Mutex;

use crate::error::ServeError;

/// The maximum length of a form in bytes.
const FORM_LEN_MAX: u64 = 64 * 1024;
/// The maximum number of paths that are deleted at a time.
pub(super) const DELETED_MAX: usize = 100;
const DAY_SECONDS: u64 = 24 * 60 * 60;

/// Collections from the page run one at a time.
static COLLECTING: Mutex<()> = Mutex::new(());

/// A form as it was sent: names and values.
#[derive(Debug, Default)]
pub(super) struct Form(Vec<(String, String)>);

impl Form {
    pub(super) fn read(body: &mut dyn Read) -> Result<Self, ServeError> {
        let mut text = Vec::new();
        let read = body.take(FORM_LEN_MAX + 1).read_to_end(&mut text);
        read.map_err(|error| malformed(&error))?;
        if text.len() as u64 > FORM_LEN_MAX {
            return Err(malformed(&"the form is too long"));
        }
        let text = String::from_utf8(text).map_err(|error| malformed(&error))?;
        Ok(Self::parse(&text))
    }

    /// Of a query, or of a body.
    pub(super) fn parse(text: &str) -> Self {
        Self(query_pairs(text).map(|(name, value)| (name.into_owned(), value.into_owned())).collect())
    }

    /// The first value of this name that is not empty.
    pub(super) fn value<'a>(&'a self, name: &str) -> Option<&'a str> {
        let mut values = self.0.iter().filter(|(key, _)| key == name).map(|(_, value)| value.trim());
        values.find(|value| !value.is_empty())
    }

    pub(super) fn values<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(key, _)| key == name).map(|(_, value)| value.trim())
    }

    /// A number, if the field is filled in.
    fn number(&self, name: &str) -> Result<Option<u32>, ServeError> {
        let parse = |text: &str| text.parse().map_err(|_| malformed(&format!("'{text}' is not a number")));
        self.value(name).map(parse).transpose()
    }

    /// The hash parts of the paths that it names.
    pub(super) fn paths(&self) -> Result<Vec<HashPart>, ServeError> {
        let mut paths = self.values("path").map(hash_part_of).collect::<Result<Vec<_>, _>>()?;
        paths.dedup();
        if paths.len() > DELETED_MAX {
            return Err(malformed(&format!("at most {DELETED_MAX} paths at a time")));
        }
        Ok(paths)
    }
}

/// What came of a form.
#[derive(Debug)]
pub(super) enum Done {
    /// In words.
    Said(String),
    /// A new token, which is not stored: it cannot be shown again.
    Created { label: String, token: String, scopes: Scopes },
}

/// What a form asks for, and the scope that it needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Create,
    Revoke,
    Pin,
    Unpin,
    Delete,
    Collect,
}

impl Action {
    pub(super) fn of(form: &Form) -> Result<Self, ServeError> {
        Ok(match form.value("do") {
            Some("create") => Self::Create,
            Some("revoke") => Self::Revoke,
            Some("pin") => Self::Pin,
            Some("unpin") => Self::Unpin,
            Some("delete") => Self::Delete,
            Some("collect") => Self::Collect,
            _ => return Err(malformed(&"this form is not known")),
        })
    }

    const fn scope(self) -> Scope {
        match self {
            Self::Create | Self::Revoke | Self::Collect => Scope::Admin,
            Self::Pin | Self::Unpin => Scope::Pin,
            Self::Delete => Scope::Delete,
        }
    }

    /// Does it with a grant that has its scope.
    pub(super) fn run(self, form: &Form, data: &Data, cache: &Cache, grant: &Grant) -> Result<Done, ServeError> {
        grant.require(cache.name(), self.scope())?;
        match self {
            Self::Create => create_token(form, data, grant),
            Self::Revoke => revoke_token(form, data, grant),
            Self::Pin => pin(form, cache, grant),
            Self::Unpin => unpin(form, cache, grant),
            Self::Delete => delete(form, cache, grant),
            Self::Collect => collect(cache, grant),
        }
    }
}

fn malformed(error: &dyn std::fmt::Display) -> ServeError {
    Refusal::new(RefusalKind::Malformed, error).into()
}

/// Days from now.
fn in_days(days: u32) -> u64 {
    clock::now().saturating_add(u64::from(days).saturating_mul(DAY_SECONDS))
}

/// A store path, its base name or its hash part.
fn hash_part_of(text: &str) -> Result<HashPart, ServeError> {
    let base = text.trim().rsplit('/').next().unwrap_or_default();
    let hash_part = StorePath::parse(base).map(|path| path.hash_part()).ok();
    let hash_part = hash_part.or_else(|| HashPart::parse(base.as_bytes()).ok());
    hash_part.ok_or_else(|| malformed(&format!("'{text}' is not a store path")))
}

/// An administrator of some caches may manage only tokens that are limited to these.
pub(super) fn governs(grant: &Grant, caches: &[String]) -> bool {
    caches.iter().all(|pattern| grant.caches.cover(pattern))
}

fn create_token(form: &Form, data: &Data, grant: &Grant) -> Result<Done, ServeError> {
    let scopes: Vec<&str> = form.values("scope").collect();
    let scopes: Scopes = scopes.join(",").parse().map_err(|error| malformed(&error))?;
    let caches = form.value("caches").unwrap_or_default();
    let caches: Vec<&str> = caches.split([' ', ',']).filter(|cache| !cache.is_empty()).collect();
    if caches.is_empty() {
        return Err(malformed(&"a token needs at least one cache, or '*' for all"));
    }
    let caches = CachePatterns::new(&caches).map_err(|error| malformed(&error))?;
    if !governs(grant, caches.texts()) {
        let message = format!("your token is only for {}", grant.caches.texts().join(", "));
        return Err(Refusal::new(RefusalKind::Forbidden, message).into());
    }
    let label = form.value("label").unwrap_or_default().to_owned();
    let new = NewToken { label, caches, scopes, expires: form.number("days")?.map(in_days) };
    let (info, token) = data.tokens().create(&new).map_err(of_tokens)?;
    let detail = format!("'{}' allows {} in {}", info.label, info.scopes, info.caches.join(", "));
    data.audit().note(grant, None, "create token", &info.id, &Ok(detail));
    Ok(Done::Created { label: info.label, token: token.to_string(), scopes: info.scopes })
}

fn revoke_token(form: &Form, data: &Data, grant: &Grant) -> Result<Done, ServeError> {
    let (tokens, id) = (data.tokens(), form.value("id").unwrap_or_default());
    let listed = tokens.list().map_err(of_tokens)?;
    let known = listed.iter().find(|token| token.id == id && governs(grant, &token.caches));
    match known {
        Some(token) if tokens.revoke(id).map_err(of_tokens)? => {
            data.audit().note(grant, None, "revoke", id, &Ok("revoked".to_owned()));
            Ok(Done::Said(format!("Revoked '{}'. Who uses it is refused from now on.", token.label)))
        }
        _ => Err(Refusal::new(RefusalKind::NotFound, "there is no such token").into()),
    }
}

pub(super) fn of_tokens(error: TokenError) -> ServeError {
    match error {
        TokenError::Index(error) => error.into(),
        TokenError::Label | TokenError::NoScope => malformed(&error),
        TokenError::Random(_) | TokenError::Record { .. } => {
            tracing::error!("{error}");
            Refusal::new(RefusalKind::Failed, "the tokens cannot be used; see the server's log").into()
        }
    }
}

fn pin(form: &Form, cache: &Cache, grant: &Grant) -> Result<Done, ServeError> {
    let hash_part = hash_part_of(form.value("path").unwrap_or_default())?;
    let holds = PinFor { keep: form.number("keep")?, until: form.number("days")?.map(in_days) };
    let pin = cache.pin(form.value("name").unwrap_or_default(), &hash_part, holds, grant)?;
    Ok(Done::Said(format!("Pinned {} as '{}'.", pin.path, pin.name)))
}

fn unpin(form: &Form, cache: &Cache, grant: &Grant) -> Result<Done, ServeError> {
    let (hash_part, name) = (hash_part_of(form.value("path").unwrap_or_default())?, form.value("name"));
    let pins = cache.pins()?;
    let pin = pins.iter().find(|pin| Some(&*pin.name) == name && pin.path.starts_with(hash_part.as_str()));
    let path = pin.and_then(|pin| StorePath::parse(&pin.path).ok());
    let removed = path.map_or(Ok(0), |path| cache.unpin(name.unwrap_or_default(), Some(&path), grant))?;
    match removed {
        0 => Err(Refusal::new(RefusalKind::NotFound, "there is no such pin").into()),
        _ => Ok(Done::Said("Removed the pin.".to_owned())),
    }
}

/// Deletes paths that may refer to each other: what is refused because of a referrer is tried again after that one.
fn delete(form: &Form, cache: &Cache, grant: &Grant) -> Result<Done, ServeError> {
    let (mut left, with_referrers) = (form.paths()?, form.value("referrers").is_some());
    let (mut paths, mut bytes) = (0, 0);
    loop {
        let mut refused: Vec<(HashPart, Refusal)> = Vec::new();
        for path in &left {
            match cache.delete(path, with_referrers, grant) {
                Ok(deleted) => (paths, bytes) = (paths + deleted.paths.len(), bytes + deleted.bytes),
                // One that referred to another one of these is gone with it.
                Err(refusal) if with_referrers && paths > 0 && refusal.kind == RefusalKind::NotFound => {}
                Err(refusal) => refused.push((*path, refusal)),
            }
        }
        let Some((_, first)) = refused.first() else { break };
        if refused.len() == left.len() {
            let deleted = if paths == 0 { String::new() } else { format!("Deleted {}. ", many(paths)) };
            let why = match first.kind {
                RefusalKind::Conflict => "other paths refer to them, which have to be deleted, too",
                _ => &first.message,
            };
            let message = format!("{deleted}Left {}: {why}", many(refused.len()));
            return Err(Refusal::new(first.kind, message).into());
        }
        left = refused.into_iter().map(|(path, _)| path).collect();
    }
    let bytes = super::view::words::bytes(bytes);
    Ok(Done::Said(format!("{} {} deleted, {bytes}.", many(paths), if paths == 1 { "was" } else { "were" })))
}

fn many(paths: usize) -> String {
    super::view::words::many(paths, "path")
}

fn collect(cache: &Cache, grant: &Grant) -> Result<Done, ServeError> {
    let Some(_alone) = COLLECTING.try_lock() else {
        return Err(Refusal::new(RefusalKind::Conflict, "another collection is running: wait for it to end").into());
    };
    let done = cache.collect(&CollectOptions::default(), grant)?;
    let bytes = super::view::words::bytes(done.bytes);
    Ok(Done::Said(format!("Removed {}, and deleted {} NARs, {bytes}.", many(done.forgotten.len()), done.files)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails may say so")]

    use super::*;

    #[test]
    fn forms_and_the_scopes_they_need() {
        let of = |text: &str| Action::of(&Form::parse(text)).map(Action::scope);
        for (name, scope) in [
            ("create", Scope::Admin),
            ("revoke", Scope::Admin),
            ("collect", Scope::Admin),
            ("pin", Scope::Pin),
            ("unpin", Scope::Pin),
            ("delete", Scope::Delete),
        ] {
            assert_eq!(of(&format!("x=y&do={name}")).unwrap(), scope);
        }
        assert!(of("").is_err() && of("do=other").is_err());
        let form = Form::parse("path=/nix/store/0i4073ldk2aplbmaarmp5c8gf3wmbl84-a+b&keep=&days=x&name=+a%26b+");
        assert_eq!((form.value("name"), form.number("keep").unwrap()), (Some("a&b"), None));
        assert!(form.number("days").is_err() && form.paths().is_err());
        let form = Form::parse("path=0i4073ldk2aplbmaarmp5c8gf3wmbl84&path=0i4073ldk2aplbmaarmp5c8gf3wmbl84-x");
        assert_eq!(form.paths().unwrap().len(), 1);
        assert!(Form::read(&mut &vec![b'x'; 70_000][..]).is_err());
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
