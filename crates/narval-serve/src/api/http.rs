//! The API over HTTP: who asks, bodies, and answers as `application/problem+json` (RFC 9457).

use std::sync::Arc;

use narval_http::{Body, HeaderValue, Request, Response, StatusCode, header};
use narval_keep::{CacheName, Data, Grant};
use narval_nix::release::RELEASE_LEN_MAX;
use serde_json::json;

use super::call::{ApiCall, ApiRequest};
use super::row::Needs;
use super::{Matched, authorize, find};
use crate::auth::{Caller, client_text, is_read};
use crate::error::ServeError;
use crate::gate::Gate;
use crate::metrics::Metrics;
use crate::routes::table::API_PATH;
use crate::upload::receive::{Uploads, read};

/// The longest body, in bytes: that of a release.
const BODY_LEN_MAX: u64 = RELEASE_LEN_MAX as u64;

const KEY_FIELD: &str = "idempotency-key";

/// Answers a request to the API. It is the same below every cache.
pub(crate) fn answer(gate: &Gate<'_>, uploads: &Arc<Uploads>, request: Request, metrics: &Arc<Metrics>) -> Response {
    match begin(gate, uploads, request, metrics) {
        Ok(response) => response,
        Err(error) => problem(error, metrics),
    }
}

fn begin(
    gate: &Gate<'_>,
    uploads: &Arc<Uploads>,
    request: Request,
    metrics: &Arc<Metrics>,
) -> Result<Response, ServeError> {
    let method = request.method().clone();
    // As it was sent: in a name, `%2F` is no end of a part.
    let path =
        request.path().split_once(API_PATH).map_or("", |(_, rest)| rest.strip_prefix('/').unwrap_or(rest)).to_owned();
    let grant = match find(&method, &path) {
        Matched::Nothing => return Err(ServeError::NoRoute),
        Matched::Methods(allowed) => {
            let response = problem(ServeError::Method("GET"), metrics);
            return Ok(response.replace_header(
                header::ALLOW,
                HeaderValue::from_str(&allowed).unwrap_or(HeaderValue::from_static("GET")),
            ));
        }
        Matched::Row(row, parts) => match row.needs {
            Needs::Nothing => None,
            _ => {
                let grant = caller(gate, &request)?;
                authorize(row, &parts, &grant)?;
                Some(grant)
            }
        },
    };
    let query = request.query().map(str::to_owned);
    let key = request.header(KEY_FIELD).map(str::to_owned);
    let (at, metrics) = (gate.cache.clone(), Arc::clone(metrics));
    uploads.run_at_most(BODY_LEN_MAX, request, move |data, body| {
        let body = read(body, BODY_LEN_MAX)?;
        let request =
            ApiRequest { method: &method, path: &path, query: query.as_deref(), body: &body, key: key.as_deref() };
        Ok(run(data, &at, grant.as_ref(), &request).unwrap_or_else(|error| problem(error, &metrics)))
    })
}

/// Who asks: the bearer of a token, or a browser that has signed in. What changes something must come from our page then, with the session's proof.
fn caller(gate: &Gate<'_>, request: &Request) -> Result<Grant, ServeError> {
    let head = request.head();
    match gate.auth.caller(&head, gate.metrics)? {
        Caller::Bearer(grant) => Ok(Grant::clone(&grant).from_peer(client_text(&head))),
        Caller::Anonymous => {
            let session = match is_read(request.method()) {
                true => gate.any_session(&head)?,
                false => gate.writing_session(&head)?,
            };
            Ok(Grant::clone(&session.grant).from_peer(client_text(&head)))
        }
    }
}

fn run(data: &Data, at: &CacheName, grant: Option<&Grant>, request: &ApiRequest<'_>) -> Result<Response, ServeError> {
    // It was found before.
    let Matched::Row(row, parts) = find(request.method, request.path) else { return Err(ServeError::NoRoute) };
    let call = ApiCall::new(data, Some(at), grant, parts, request)?;
    let answered = (row.run)(&call)?;
    if let Some(events) = answered.events {
        return Ok(events);
    }
    let status = StatusCode::from_u16(answered.status).unwrap_or(StatusCode::OK);
    let response = Response::new(status).header(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(match answered.body {
        Some(body) => with_json(response, "application/json", &body),
        None => response,
    })
}

fn with_json(response: Response, content_type: &'static str, body: &serde_json::Value) -> Response {
    response
        .replace_header(header::CONTENT_TYPE, HeaderValue::from_static(content_type))
        .replace_header(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"))
        .body(Body::bytes(format!("{body}\n").into_bytes()))
}

/// The answer to a request that fails.
fn problem(error: ServeError, metrics: &Metrics) -> Response {
    let detail = match &error {
        ServeError::Rejected(rejection) => rejection.message.clone(),
        ServeError::Method(_) => "there is no such method here".to_owned(),
        error => error.to_string(),
    };
    let response = error.into_response(metrics);
    let status = response.status();
    let title = status.canonical_reason().unwrap_or("Error");
    let body = json!({"type": "about:blank", "title": title, "status": status.as_u16(), "detail": detail});
    let response = with_json(response, "application/problem+json", &body);
    match status {
        // Browsers would ask for a password.
        StatusCode::UNAUTHORIZED => {
            response.replace_header(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"))
        }
        _ => response,
    }
}
