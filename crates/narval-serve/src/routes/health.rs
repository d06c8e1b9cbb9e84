//! `/health`: whether the store can be read. `/`: what this server is, for people.

use narval_http::{HeaderValue, Response, StatusCode, header};
use narval_nix::SecretKey;
use narval_store::Store;

/// Queries the store and looks for some of its files: 200 or 503. The reason for a 503 is in the log.
pub(crate) fn answer(store: &Store) -> Response {
    let response = match store.check() {
        Ok(()) => Response::text(StatusCode::OK, "ok\n"),
        Err(error) => {
            tracing::error!("health check: {error}");
            Response::text(StatusCode::SERVICE_UNAVAILABLE, "The store can't be read now.\n")
        }
    };
    response.header(header::CACHE_CONTROL, HeaderValue::from_static("no-store"))
}

/// How to use this cache.
pub(crate) fn index(store: &Store, sign_keys: &[SecretKey]) -> Response {
    let mut text = format!(
        "This is a Nix binary cache for {}.\n\n\
         To use it, put its URL into `substituters` in nix.conf, or:\n\n  nix copy --from URL PATH\n",
        store.store_dir()
    );
    if !sign_keys.is_empty() {
        text.push_str("\nIts paths are signed by (for `trusted-public-keys`):\n\n");
        for key in sign_keys {
            text.push_str(&format!("  {}\n", key.public_key()));
        }
    }
    Response::text(StatusCode::OK, text)
}
