//! `/health`: whether the store can be asked. `/`: what this is, for people.

use narval_http::{Response, StatusCode};
use narval_nix::HashPart;

use crate::error::ServeError;
use crate::service::Shared;

/// Asks the store one question.
pub(crate) fn answer(shared: &Shared) -> Result<Response, ServeError> {
    shared.store.path_from_hash_part(&HashPart::from_digest(&[0; 20]))?;
    Ok(Response::text(StatusCode::OK, "ok\n"))
}

/// How to use this cache.
pub(crate) fn index(shared: &Shared) -> Response {
    let mut text = format!(
        "This is a Nix binary cache for {}.\n\n\
         To use it, put its URL into `substituters` in nix.conf, or:\n\n  nix copy --from URL PATH\n",
        shared.store.store_dir()
    );
    if !shared.config.sign_keys.is_empty() {
        text.push_str("\nIts paths are signed by (for `trusted-public-keys`):\n\n");
        for key in &shared.config.sign_keys {
            text.push_str(&format!("  {}\n", key.public_key()));
        }
    }
    Response::text(StatusCode::OK, text)
}
