//! What to do about a path without a trusted signature. It depends on what the cache publishes: there may be no key to trust.

use narval_nix::{CacheInfo, PublicKey, Signature, TrustedKeys};

/// The public keys in a cache's `nix-cache-info`. Narval publishes them; other caches do not.
///
/// # Errors
/// The text of one that is no key, and why.
pub fn published_keys(info: &CacheInfo) -> Result<Vec<PublicKey>, String> {
    let texts = info.unknown.iter().filter(|(key, _)| key == "PublicKey").map(|(_, text)| text);
    texts.map(|text| text.parse().map_err(|error| format!("'{text}': {error}"))).collect()
}

/// Why a path of a cache is not accepted, and what to do, after "not signed by a trusted key". `message` is what signatures of the path sign.
pub fn signature_advice(cache: &str, message: &str, signatures: &[Signature], published: &[PublicKey]) -> String {
    let names = |names: Vec<&str>| names.join(", ");
    let keys = names(published.iter().map(PublicKey::name).collect());
    let trusted: TrustedKeys = published.iter().cloned().collect();
    if let Some(signature) = trusted.find_valid(message.as_bytes(), signatures) {
        let name = signature.key_name();
        return format!(
            "signed by {name}, which the cache publishes and is not trusted here: run 'narval use {cache}', or add the key with \
             --trusted-public-key"
        );
    }
    match (names(signatures.iter().map(Signature::key_name).collect()).as_str(), keys.as_str()) {
        ("", "") => {
            "it has no signature, and the cache publishes no key: its operator gives it one with 'sign-keys'; or use \
             --no-check-sigs if you trust the cache and the way to it"
                .to_owned()
        }
        ("", keys) => format!(
            "it has no signature, although the cache has the key {keys}: the token that pushed it may not sign. The cache's operator \
             signs what is there with 'narval cache sign --all'"
        ),
        (signers, "") => format!(
            "signed by {signers}: add that key with --trusted-public-key, or use --no-check-sigs if you trust the cache and the way to it"
        ),
        (signers, keys) => format!(
            "signed by {signers}, and not by the cache's key {keys}: the cache's operator signs it with 'narval cache sign --all' (after \
             a key was replaced, too); or add the key {signers} with --trusted-public-key if you trust it"
        ),
    }
}
