//! The administration of caches: one API below `/_narval/api/v1`, which the command line uses on a data folder, too, and the forms of the page.
//!
//! What can be asked is a [table](table::ROWS): a method and a path, who may, and a function. Rights are checked here, from the table, before anything
//! is looked up: whoever may not do something learns nothing of what there is. `docs/api.md` is the reference, and `docs/openapi.json` is made of the table.

mod audit;
mod caches;
mod call;
mod http;
mod jobs;
mod kept;
mod openapi;
mod releases;
mod row;
mod table;
mod tokens;

use narval_http::Method;
use narval_keep::{CacheName, Data, Grant, Rejection, Scope};
use serde_json::Value;

use crate::error::ServeError;
use crate::routes::cache_names::no_cache;
pub use call::ApiRequest;
use call::{ApiCall, Parts, decoded, malformed, part, require_all};
pub(crate) use http::answer;
pub(crate) use kept::hash_part_of;
use row::{Needs, Row};
use table::ROWS;
pub(crate) use tokens::{governs, of_tokens};

/// The description of the API, as `docs/openapi.json` has it.
pub fn openapi() -> Value {
    openapi::describe(ROWS)
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
pub fn ask_api(data: &Data, grant: &Grant, request: &ApiRequest<'_>) -> Result<Value, Rejection> {
    ask(data, grant, request).map_err(|error| match error {
        ServeError::Rejected(rejection) => rejection,
        error => Rejection::failed(error),
    })
}

/// The same for the page: what the API answers.
pub(crate) fn ask(data: &Data, grant: &Grant, request: &ApiRequest<'_>) -> Result<Value, ServeError> {
    let Matched::Row(row, parts) = find(request.method, request.path) else { return Err(ServeError::NoRoute) };
    authorize(row, &parts, grant)?;
    let answered = (row.run)(&ApiCall::new(data, None, Some(grant), parts, request)?)?;
    Ok(answered.body.unwrap_or_default())
}

/// What a path is.
enum Matched<'a> {
    Row(&'static Row, Parts<'a>),
    /// There are other methods, as `Allow` says them.
    Methods(String),
    Nothing,
}

/// Looks up a method, and a path below the API's.
fn find<'a>(method: &Method, path: &'a str) -> Matched<'a> {
    let path: Vec<&str> = path.split('/').collect();
    let mut methods: Vec<&str> = Vec::new();
    // A path whose last part is fixed comes before one in which it is a name.
    for row in ROWS {
        let Some(parts) = matched(row.path, &path) else { continue };
        if row.method == *method || (*method == Method::HEAD && row.method == Method::GET) {
            return Matched::Row(row, parts);
        }
        methods.push(row.method.as_str());
    }
    methods.dedup();
    if methods.is_empty() { Matched::Nothing } else { Matched::Methods(methods.join(", ")) }
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
            Err(Rejection::forbidden(message).into())
        }
    }
}
