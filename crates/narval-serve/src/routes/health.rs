//! `/health`: whether the sources can be read. `/`: what this server is, for people.

use narval_cache::written::Cache;
use narval_http::{Response, StatusCode, header};
use narval_nix::{PublicKey, StoreDir};
use narval_store::Store;

/// Queries the sources, and looks for some files of the store: 200 or 503. The reason for a 503 is in the log.
pub(crate) fn answer(store: Option<&Store>, cache: Option<&Cache>) -> Response {
    let store = store.map_or(Ok(()), |store| store.check().map_err(|error| error.to_string()));
    let checked = store.and_then(|()| match cache {
        Some(cache) => cache.usage().map(drop).map_err(|error| error.to_string()),
        None => Ok(()),
    });
    let response = match checked {
        Ok(()) => Response::text(StatusCode::OK, "ok\n"),
        Err(error) => {
            tracing::error!("health check: {error}");
            Response::text(StatusCode::SERVICE_UNAVAILABLE, "The store can't be read now.\n")
        }
    };
    response.header(header::CACHE_CONTROL, "no-store")
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
