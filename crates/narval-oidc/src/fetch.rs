//! Small JSON documents of an issuer.

use std::sync::Arc;

use form_urlencoded::Serializer;
use narval_client::{Client, ClientOptions, Extra, Method, Request, Response, Url};
use serde_json::Value;
use zeroize::Zeroizing;

use crate::issuer::is_safe;
use crate::limits::{ANSWER_LEN_MAX, DISCOVERY_LEN_MAX, FETCH_TIMEOUT};

/// A client that waits for no issuer for long.
pub(super) fn client() -> Arc<Client> {
    let (connect_timeout, stall_timeout) = (FETCH_TIMEOUT, FETCH_TIMEOUT);
    Arc::new(Client::new(ClientOptions { connect_timeout, stall_timeout, ..ClientOptions::default() }))
}

/// The discovery document of an issuer (OpenID Connect Discovery 1.0, section 4).
pub(super) fn discovery(client: &Client, url: &Url, issuer: &str) -> Result<Value, String> {
    let place = url.child(".well-known/openid-configuration").map_err(|error| error.to_string())?;
    let document = get(client, &place, DISCOVERY_LEN_MAX)?;
    // Section 4.3: byte for byte.
    if document.get("issuer").and_then(Value::as_str) != Some(issuer) {
        return Err(format!("{place}: it is the document of another issuer"));
    }
    Ok(document)
}

/// Reads a document.
pub(super) fn get(client: &Client, url: &Url, len_max: u64) -> Result<Value, String> {
    match ask(client, url, None, len_max)? {
        (200, document) => Ok(document),
        (status, _) => Err(format!("{url}: the status is {status}")),
    }
}

/// Reads a document, or posts a form, which goes nowhere else. An answer that is not JSON is `null`, except with status 200; so is one without a body. One that only sends a byte now
/// and then is given up.
pub(super) fn ask(
    client: &Client,
    url: &Url,
    form: Option<&[(&str, &str)]>,
    len_max: u64,
) -> Result<(u16, Value), String> {
    let failed = |error: &dyn std::fmt::Display| format!("{url}: {error}");
    let answer = match form {
        None => client.send(&Request::get(url)),
        Some(form) => {
            let body = Zeroizing::new(Serializer::new(String::new()).extend_pairs(form).finish());
            let fields = [("content-type", "application/x-www-form-urlencoded"), ("accept", "application/json")];
            let extra = Extra { fields: &fields, ..Extra::default() };
            client.send_once(&Request { method: Method::Post, body: body.as_bytes(), extra, ..Request::get(url) })
        }
    };
    read(url, answer.map_err(|error| failed(&error))?, len_max)
}

/// The token that a runner of GitHub, Forgejo or Gitea gives a job, from the address and with the secret in its environment: `{"value": TOKEN}`.
///
/// # Errors
/// Why there is none, in words that contain neither.
pub fn token_of_runner(url: &str, secret: &str) -> Result<Zeroizing<String>, String> {
    let url = Url::parse(url).map_err(|error| error.to_string())?;
    if !is_safe(&url) {
        return Err("its address is not https://".to_owned());
    }
    let authorization = Zeroizing::new(format!("bearer {secret}"));
    let fields = [("authorization", authorization.as_str()), ("accept", "application/json")];
    let request = Request { extra: Extra { fields: &fields, ..Extra::default() }, ..Request::get(&url) };
    match read(&url, client().send_once(&request).map_err(|error| error.to_string())?, ANSWER_LEN_MAX)? {
        (200, answer) => {
            let token = answer.get("value").and_then(Value::as_str);
            token.map(|token| token.to_owned().into()).ok_or_else(|| "there is none in its answer".to_owned())
        }
        (status, _) => Err(format!("it answered {status}")),
    }
}

fn read(url: &Url, answer: Response, len_max: u64) -> Result<(u16, Value), String> {
    let failed = |error: &dyn std::fmt::Display| format!("{url}: {error}");
    let status = answer.head.status;
    let body = Zeroizing::new(answer.body.read_all(len_max).map_err(|error| failed(&error))?);
    match serde_json::from_slice(&body) {
        Ok(document) => Ok((status, document)),
        // Some requests are answered with a status alone.
        Err(_) if status != 200 || body.is_empty() => Ok((status, Value::Null)),
        Err(error) => Err(failed(&format!("not JSON: {error}"))),
    }
}
