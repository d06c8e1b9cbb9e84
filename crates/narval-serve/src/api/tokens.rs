//! Tokens. What is stored of one is its hash: it is in the answer that creates it, and nowhere else.

use narval_client::clock;
use narval_keep::{CachePatterns, Grant, NewToken, Rejection, Scopes, TokenError, TokenInfo};
use serde::Deserialize;
use serde_json::{Value, json};

use super::call::{ApiAnswer, ApiCall, malformed, not_found};
use crate::error::ServeError;

/// An administrator of some caches may manage only tokens that are limited to these.
pub(crate) fn governs(grant: &Grant, caches: &[String]) -> bool {
    caches.iter().all(|pattern| grant.caches.cover(pattern))
}

pub(crate) fn of_tokens(error: TokenError) -> ServeError {
    match error {
        TokenError::Index(error) => error.into(),
        TokenError::Label | TokenError::NoScope => malformed(&error),
        TokenError::Random(_) | TokenError::Record { .. } => {
            tracing::error!("{error}");
            Rejection::failed("the tokens cannot be used; see the server's log").into()
        }
    }
}

fn json_of(token: &TokenInfo) -> Value {
    let TokenInfo { id, label, caches, scopes, created, expires, last_used, revoked } = token;
    json!({"id": id, "label": label, "caches": caches, "scopes": scopes.to_string(), "created": created, "expires": expires,
        "lastUsed": last_used, "revoked": revoked})
}

/// The tokens that the caller administers.
fn governed(call: &ApiCall<'_>) -> Result<Vec<TokenInfo>, ServeError> {
    let grant = call.grant()?;
    let mut tokens = call.data.tokens().list().map_err(of_tokens)?;
    tokens.retain(|token| governs(grant, &token.caches));
    Ok(tokens)
}

/// The one of the path. One of others is as absent as one that does not exist.
fn one(call: &ApiCall<'_>) -> Result<TokenInfo, ServeError> {
    let id = call.part("id");
    let token = governed(call)?.into_iter().find(|token| token.id == id);
    token.ok_or_else(|| not_found(format!("there is no token '{id}'; 'narval token list' shows them")))
}

fn note(call: &ApiCall<'_>, action: &str, token: &TokenInfo) -> Result<(), ServeError> {
    let detail = match action {
        "revoke" => "revoked".to_owned(),
        _ => format!("'{}' allows {} in {}", token.label, token.scopes, token.caches.join(", ")),
    };
    call.data.audit().note(call.grant()?, None, action, &token.id, &Ok(detail));
    Ok(())
}

/// `GET tokens`
pub(super) fn list(call: &ApiCall<'_>) -> Result<ApiAnswer, ServeError> {
    let (tokens, limit, after) = (governed(call)?, call.limit()?, call.query("after"));
    let at = after.map_or(Ok(0), |after| {
        let at = tokens.iter().position(|token| token.id == after);
        at.map(|at| at + 1).ok_or_else(|| malformed("'after' is the 'next' of the page before"))
    })?;
    let rest = tokens.get(at..).unwrap_or_default();
    let page = rest.get(..limit.min(rest.len())).unwrap_or_default();
    let next = page.last().filter(|_| rest.len() > limit).map(|last| &last.id);
    ApiAnswer::page(&page.iter().map(json_of).collect::<Vec<_>>(), next)
}

/// The body of a new token.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct New {
    label: String,
    /// Names or patterns.
    caches: Vec<String>,
    /// Separated by commas.
    scopes: String,
    /// How long it is valid, in seconds.
    expires_in: Option<u64>,
}

/// Caches that the caller administers.
fn caches_of(call: &ApiCall<'_>, caches: &[String]) -> Result<CachePatterns, ServeError> {
    let grant = call.grant()?;
    if caches.is_empty() {
        return Err(malformed("a token needs at least one cache, or '*' for all"));
    }
    let patterns = CachePatterns::new(caches).map_err(malformed)?;
    if !governs(grant, caches) {
        let message = format!("your token is only for {}", grant.caches.texts().join(", "));
        return Err(Rejection::forbidden(message).into());
    }
    Ok(patterns)
}

/// `POST tokens`
pub(super) fn create(call: &ApiCall<'_>) -> Result<ApiAnswer, ServeError> {
    let New { label, caches, scopes, expires_in } = call.json()?;
    let (caches, scopes) = (caches_of(call, &caches)?, scopes.parse::<Scopes>().map_err(malformed)?);
    let expires = expires_in.map(|seconds| clock::now().saturating_add(seconds));
    let (new, tokens) = (NewToken { label, caches, scopes, expires }, call.data.tokens());
    let Some(key) = call.key else {
        let (info, token) = tokens.create(&new).map_err(of_tokens)?;
        return created(call, &info, Some(&token));
    };
    // The key becomes the token's id, so that it is created once, at whichever server.
    let parts = ["idempotency-key", &call.grant()?.token, key];
    match tokens.create_once(&new, &parts).map_err(of_tokens)? {
        Some((info, token)) => created(call, &info, Some(&token)),
        None => {
            let id = narval_keep::Tokens::id_of_exchanged(&parts);
            let before = governed(call)?.into_iter().find(|token| token.id == id);
            let before = before.filter(|before| before.label == new.label && before.scopes == new.scopes);
            let message = "this 'Idempotency-Key' was used for another token";
            created(call, &before.ok_or_else(|| Rejection::conflict(message))?, None)
        }
    }
}

fn created(call: &ApiCall<'_>, info: &TokenInfo, token: Option<&str>) -> Result<ApiAnswer, ServeError> {
    let mut body = json_of(info);
    if let Some(fields) = body.as_object_mut() {
        fields.insert("token".to_owned(), token.into());
    }
    if token.is_some() {
        note(call, "create token", info)?;
    }
    ApiAnswer::new(if token.is_some() { 201 } else { 200 }, &body)
}

/// The body of a change: what is absent stays.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Change {
    caches: Option<Vec<String>>,
    scopes: Option<String>,
}

/// `PATCH tokens/{id}`
pub(super) fn change(call: &ApiCall<'_>) -> Result<ApiAnswer, ServeError> {
    let before = one(call)?;
    let Change { caches, scopes } = call.json()?;
    let gone = || not_found(format!("there is no valid token '{}'; 'narval token list' shows them", before.id));
    let caches = caches_of(call, caches.as_ref().unwrap_or(&before.caches))?;
    let scopes = scopes.map(|scopes| scopes.parse::<Scopes>()).transpose().map_err(malformed)?;
    let scopes = scopes.unwrap_or_else(|| before.scopes.clone());
    if !call.data.tokens().change(&before.id, &caches, &scopes).map_err(of_tokens)? {
        return Err(gone());
    }
    let after = TokenInfo { caches: caches.texts().to_vec(), scopes, ..before };
    note(call, "change token", &after)?;
    ApiAnswer::ok(&json_of(&after))
}

/// `DELETE tokens/{id}`
pub(super) fn revoke(call: &ApiCall<'_>) -> Result<ApiAnswer, ServeError> {
    let before = one(call)?;
    call.data.tokens().revoke(&before.id).map_err(of_tokens)?;
    note(call, "revoke", &before)?;
    ApiAnswer::ok(&json_of(&one(call)?))
}

/// `DELETE token`
pub(super) fn end(call: &ApiCall<'_>) -> Result<ApiAnswer, ServeError> {
    let (grant, tokens) = (call.grant()?, call.data.tokens());
    tokens.revoke(&grant.token).map_err(of_tokens)?;
    call.data.audit().note(grant, None, "revoke", &grant.token, &Ok("revoked by its bearer".to_owned()));
    Ok(ApiAnswer::nothing())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails may say so")]

    use super::*;

    #[test]
    fn administrators_of_some_caches_govern_the_tokens_of_these() {
        let caches = CachePatterns::new(&["team-*"]).unwrap();
        let grant = Grant { caches, ..Grant::administrator("test") };
        let governed = |caches: &[&str]| governs(&grant, &caches.iter().map(ToString::to_string).collect::<Vec<_>>());
        assert!(governed(&["team-a", "team-*"]) && !governed(&["team-a", "default"]) && !governed(&["*"]));
        assert!(governs(&Grant::administrator("test"), &["*".to_owned(), "x-*".to_owned()]));
    }
}
