//! `/health`: whether the sources can be read. `/ready`: whether everything works, uploads included. `/`: what this server is, for people.

use narval_http::{Response, StatusCode, header};
use narval_keep::Cache;
use narval_nix::{PublicKey, StoreDir};
use narval_store::Store;

/// What a check is of, and why it fails.
type Check = (&'static str, Result<(), String>);

/// Queries the sources, and looks for some files of the store: 200 or 503. The reason for a 503 is in the log.
pub(crate) fn answer(store: Option<&Store>, cache: Option<&Cache>) -> Response {
    let failed = log_failures("health", &readable(store, cache));
    let response = match failed {
        false => Response::text(StatusCode::OK, "ok\n"),
        true => Response::text(StatusCode::SERVICE_UNAVAILABLE, "The store cannot be read at the moment.\n"),
    };
    response.header(header::CACHE_CONTROL, "no-store")
}

/// The same, and writes to the data folder: one line for each part. A server that fails only here can still be read from.
pub(crate) fn ready(store: Option<&Store>, cache: Option<&Cache>) -> Response {
    let checks = all(store, cache);
    let status = match log_failures("readiness", &checks) {
        false => StatusCode::OK,
        true => StatusCode::SERVICE_UNAVAILABLE,
    };
    // Why it fails is nothing for strangers.
    let line = |(part, result): &Check| format!("{part}: {}\n", if result.is_ok() { "ok" } else { "failed" });
    Response::text(status, checks.iter().map(line).collect::<String>()).header(header::CACHE_CONTROL, "no-store")
}

/// The parts that do not work.
pub(crate) fn broken(store: Option<&Store>, cache: Option<&Cache>) -> Vec<&'static str> {
    let checks = all(store, cache);
    log_failures("readiness", &checks);
    checks.into_iter().filter(|(_, result)| result.is_err()).map(|(part, _)| part).collect()
}

fn all(store: Option<&Store>, cache: Option<&Cache>) -> Vec<Check> {
    let mut checks = readable(store, cache);
    checks.extend(cache.map(|cache| ("uploads", cache.check_writable().map_err(|error| error.to_string()))));
    checks
}

fn readable(store: Option<&Store>, cache: Option<&Cache>) -> Vec<Check> {
    let store = store.map(|store| ("store", store.check().map_err(|error| error.to_string())));
    let index = cache.map(|cache| ("index", cache.usage().map(drop).map_err(|error| error.to_string())));
    store.into_iter().chain(index).collect()
}

/// Whether there were any.
fn log_failures(what: &str, checks: &[Check]) -> bool {
    let failures = checks.iter().filter_map(|(part, result)| Some((part, result.as_ref().err()?)));
    failures.inspect(|(part, error)| tracing::error!("{what} check: {part}: {error}")).count() > 0
}

/// How to use this cache.
pub(crate) fn index(store_dir: &StoreDir, sign_keys: &[PublicKey], is_writable: bool) -> Response {
    let mut text = format!(
        "This is a Nix binary cache for {store_dir}.\n\n\
         To use it, put its URL into `substituters` in nix.conf, or:\n\n  nix copy --from URL PATH\n"
    );
    if is_writable {
        text.push_str("\nTo upload, put a token into the netrc file as the password for this host, and:\n\n  nix copy --to URL PATH\n");
    }
    if !sign_keys.is_empty() {
        text.push_str("\nIts paths are signed by (for `trusted-public-keys`):\n\n");
        for key in sign_keys {
            text.push_str(&format!("  {key}\n"));
        }
    }
    Response::text(StatusCode::OK, text)
}
