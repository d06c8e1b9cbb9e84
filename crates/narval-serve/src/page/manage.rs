//! What forms of the page change, for browsers that have signed in: they ask the API for administration (`api/`), within the scopes of the token. Views of the same names show it (`view/manage/`).

use std::io::Read;

use narval_http::Method;
use narval_http::semantics::path::query_pairs;
use narval_keep::{Cache, CacheName, Data, Grant, JobKind, Rejection, RejectionKind, Scopes};
use narval_nix::HashPart;
use serde_json::{Value, json};

use crate::api::{self, ApiRequest, hash_part_of};
use crate::error::ServeError;

/// The maximum length of a form in bytes.
const FORM_LEN_MAX: u64 = 64 * 1024;
/// The maximum number of paths that are deleted at a time.
pub(super) const DELETED_MAX: usize = 100;
const DAY_SECONDS: u64 = 24 * 60 * 60;

/// A form as it was sent: names and values.
#[derive(Debug, Default)]
pub(super) struct Form(Vec<(String, String)>);

impl Form {
    pub(super) fn read(body: &mut dyn Read) -> Result<Self, ServeError> {
        let mut text = Vec::new();
        let read = body.take(FORM_LEN_MAX + 1).read_to_end(&mut text);
        read.map_err(Rejection::malformed)?;
        if text.len() as u64 > FORM_LEN_MAX {
            return Err(Rejection::malformed("the form is too long").into());
        }
        let text = String::from_utf8(text).map_err(Rejection::malformed)?;
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
        let parse = |text: &str| text.parse().map_err(|_| Rejection::malformed(format!("'{text}' is not a number")));
        Ok(self.value(name).map(parse).transpose()?)
    }

    /// So many days, in seconds.
    fn seconds(&self, days: &str) -> Result<Option<u64>, ServeError> {
        Ok(self.number(days)?.map(|days| u64::from(days).saturating_mul(DAY_SECONDS)))
    }

    /// The hash parts of the paths that it names.
    pub(super) fn paths(&self) -> Result<Vec<HashPart>, ServeError> {
        let mut paths = self.values("path").map(hash_part_of).collect::<Result<Vec<_>, _>>()?;
        paths.dedup();
        if paths.len() > DELETED_MAX {
            return Err(Rejection::malformed(format!("at most {DELETED_MAX} paths at a time")).into());
        }
        Ok(paths)
    }
}

/// What came of a form.
#[derive(Debug)]
pub(super) enum Done {
    /// In words.
    Confirmed(String),
    /// A new token, which is not stored: it cannot be shown again.
    Created { label: String, token: String, scopes: Scopes },
}

/// What a form asks for. The API says who may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Create,
    Revoke,
    Pin,
    Unpin,
    Delete,
    Collect,
    Cancel,
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
            Some("cancel") => Self::Cancel,
            _ => return Err(Rejection::malformed("this form is not known").into()),
        })
    }

    /// Asks the API for it. Nothing is done that the grant does not allow.
    pub(super) fn run(self, form: &Form, data: &Data, cache: &Cache, grant: &Grant) -> Result<Done, ServeError> {
        let asker = Asker { data, cache: cache.name(), grant };
        let value = |name: &str| form.value(name).unwrap_or_default();
        match self {
            Self::Create => {
                let scopes = form.values("scope").collect::<Vec<_>>().join(",");
                let caches: Vec<&str> = value("caches").split([' ', ',']).filter(|cache| !cache.is_empty()).collect();
                let body = json!({"label": value("label"), "caches": caches, "scopes": scopes, "expiresIn": form.seconds("days")?});
                let made = asker.ask(&Method::POST, "tokens", None, &body)?;
                let text = |name: &str| made.get(name).and_then(Value::as_str).unwrap_or_default();
                let scopes = text("scopes").parse().map_err(Rejection::malformed)?;
                Ok(Done::Created { label: text("label").to_owned(), token: text("token").to_owned(), scopes })
            }
            Self::Revoke => {
                let revoked =
                    asker.ask(&Method::DELETE, &format!("tokens/{}", escaped(value("id"))), None, &Value::Null)?;
                let label = revoked.get("label").and_then(Value::as_str).unwrap_or_default();
                Ok(Done::Confirmed(format!("Revoked '{label}'. Who uses it is refused from now on.")))
            }
            Self::Pin => {
                let body =
                    json!({"path": value("path"), "keep": form.number("keep")?, "seconds": form.seconds("days")?});
                let pin = asker.ask_cache(&Method::PUT, &format!("pins/{}", escaped(value("name"))), None, &body)?;
                let text = |name: &str| pin.get(name).and_then(Value::as_str).unwrap_or_default();
                Ok(Done::Confirmed(format!("Pinned {} as '{}'.", text("path"), text("name"))))
            }
            Self::Unpin => {
                let query = format!("path={}", escaped(value("path")));
                asker.ask_cache(
                    &Method::DELETE,
                    &format!("pins/{}", escaped(value("name"))),
                    Some(&query),
                    &Value::Null,
                )?;
                Ok(Done::Confirmed("Removed the pin.".to_owned()))
            }
            Self::Delete => delete(form, &asker),
            Self::Collect => {
                asker.ask_cache(&Method::POST, "jobs", None, &json!({"kind": JobKind::Gc.name()}))?;
                Ok(Done::Confirmed("A collection is under way.".to_owned()))
            }
            Self::Cancel => {
                asker.ask_cache(&Method::DELETE, &format!("jobs/{}", escaped(value("id"))), None, &Value::Null)?;
                Ok(Done::Confirmed("Cancelled. What was done by then stays so.".to_owned()))
            }
        }
    }
}

/// Who asks the API, and for which cache.
struct Asker<'a> {
    data: &'a Data,
    cache: &'a CacheName,
    grant: &'a Grant,
}

impl Asker<'_> {
    fn ask(&self, method: &Method, path: &str, query: Option<&str>, body: &Value) -> Result<Value, ServeError> {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let request = ApiRequest { method, path, query, body: body.as_bytes(), key: None };
        api::ask(self.data, self.grant, &request)
    }

    fn ask_cache(&self, method: &Method, below: &str, query: Option<&str>, body: &Value) -> Result<Value, ServeError> {
        self.ask(method, &format!("caches/{}/{below}", self.cache), query, body)
    }
}

fn escaped(text: &str) -> String {
    percent_encoding::utf8_percent_encode(text, percent_encoding::NON_ALPHANUMERIC).to_string()
}

/// Deletes paths that may refer to each other: what is refused because of a referrer is tried again after that one.
fn delete(form: &Form, asker: &Asker<'_>) -> Result<Done, ServeError> {
    let (mut left, with_referrers) = (form.paths()?, form.value("referrers").is_some());
    let (mut paths, mut bytes) = (0_u64, 0);
    loop {
        let mut refused: Vec<(HashPart, Rejection)> = Vec::new();
        for path in &left {
            let query = format!("referrers={with_referrers}");
            match asker.ask_cache(&Method::DELETE, &format!("paths/{path}"), Some(&query), &Value::Null) {
                Ok(deleted) => {
                    let number = |name: &str| deleted.get(name).and_then(Value::as_u64).unwrap_or(0);
                    (paths, bytes) = (paths + number("paths"), bytes + number("bytes"));
                }
                // One that referred to another one of these is gone with it.
                Err(ServeError::Rejected(rejection))
                    if with_referrers && paths > 0 && rejection.kind == RejectionKind::NotFound => {}
                Err(ServeError::Rejected(rejection)) => refused.push((*path, rejection)),
                Err(error) => return Err(error),
            }
        }
        let Some((_, first)) = refused.first() else { break };
        if refused.len() == left.len() {
            let deleted = if paths == 0 { String::new() } else { format!("Deleted {}. ", many(paths)) };
            let why = match first.kind {
                RejectionKind::Conflict => "other paths refer to them, which have to be deleted, too",
                _ => &first.message,
            };
            let message = format!("{deleted}Left {}: {why}", many(refused.len() as u64));
            return Err(Rejection::new(first.kind, message).into());
        }
        left = refused.into_iter().map(|(path, _)| path).collect();
    }
    let bytes = super::view::words::bytes(bytes);
    Ok(Done::Confirmed(format!("{} {} deleted, {bytes}.", many(paths), if paths == 1 { "was" } else { "were" })))
}

fn many(paths: u64) -> String {
    super::view::words::many(paths, "path")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails may say so")]

    use super::*;

    #[test]
    fn forms_and_their_fields() {
        let of = |text: &str| Action::of(&Form::parse(text));
        assert_eq!(of("x=y&do=collect").unwrap(), Action::Collect);
        assert!(of("").is_err() && of("do=other").is_err());
        let form = Form::parse("path=/nix/store/0i4073ldk2aplbmaarmp5c8gf3wmbl84-a+b&keep=&days=x&name=+a%26b+");
        assert_eq!((form.value("name"), form.number("keep").unwrap()), (Some("a&b"), None));
        assert!(form.number("days").is_err() && form.paths().is_err());
        let form = Form::parse("path=0i4073ldk2aplbmaarmp5c8gf3wmbl84&path=0i4073ldk2aplbmaarmp5c8gf3wmbl84-x");
        assert_eq!(form.paths().unwrap().len(), 1);
        assert!(Form::read(&mut &vec![b'x'; 70_000][..]).is_err());
    }
}
