//! The narinfo of a store path, as each dialect writes it.

use narval_http::{Bytes, HeaderValue, StatusCode, header};
use narval_nix::narinfo::MIME_TYPE;
use narval_nix::{Compression, HashPart, NarInfo, PathInfo, SecretKey, Sha256, SignError, StoreDir};

use crate::config::Dialect;
use crate::narinfo::memo::Present;
use crate::prepared::prepared;

/// The narinfo of `info`, requested by `hash_part`, signed with `sign_keys`. [`Dialect::Narval`] names the compressed file (SHA-256 and
/// size in bytes) where there is one and it is smaller.
///
/// # Errors
/// A key does not sign.
pub(crate) fn render(
    dialect: Dialect,
    sign_keys: &[SecretKey],
    store_dir: &StoreDir,
    hash_part: HashPart,
    info: &PathInfo,
    compressed: Option<(Sha256, u64)>,
) -> Result<String, SignError> {
    let url = format!("nar/{hash_part}-{}.nar", info.nar_hash.to_nix32());
    let mut narinfo = NarInfo::new(info, url, Compression::None);
    let own = || {
        let fingerprint = info.fingerprint(store_dir);
        sign_keys.iter().map(move |key| key.sign(fingerprint.as_bytes()))
    };
    match dialect {
        Dialect::NixServe => {
            narinfo.ca = None;
            narinfo.omit_empty_references = true;
            if let Some(signature) = own().next() {
                narinfo.signatures = vec![signature?];
            }
        }
        Dialect::Narval => {
            narinfo.file_hash = Some(info.nar_hash.into());
            narinfo.file_size = Some(info.nar_size);
            if let Some((file_hash, file_size)) = compressed.filter(|(_, file_size)| *file_size < info.nar_size) {
                narinfo.url.push_str(".zst");
                narinfo.compression = Compression::Zstd;
                narinfo.file_hash = Some(file_hash.into());
                narinfo.file_size = Some(file_size);
            }
            let mut signatures: Vec<_> = own().collect::<Result<_, _>>()?;
            // Ed25519 is deterministic: a stored signature by one of our keys is equal to ours, or it is of an older state.
            signatures.append(&mut narinfo.signatures);
            narinfo.signatures = signatures;
        }
    }
    narinfo.signatures.sort();
    narinfo.signatures.dedup();
    Ok(narinfo.render(store_dir))
}

/// A narinfo as an answer, ready to be sent.
pub(crate) fn present(dialect: Dialect, text: impl Into<Bytes>) -> Present {
    let text = text.into();
    let etag = match dialect {
        Dialect::NixServe => None,
        Dialect::Narval => etag(&text),
    };
    let fields: Vec<_> = etag.iter().map(|etag| (header::ETAG, etag.clone())).collect();
    Present { response: prepared(StatusCode::OK, MIME_TYPE, &fields, text.clone()), etag, text, until: u64::MAX }
}

/// An entity tag that changes with the text: the first 130 bits of its SHA-256.
fn etag(text: &[u8]) -> Option<HeaderValue> {
    let digest = Sha256::of(text).to_nix32();
    HeaderValue::from_str(&format!("\"{}\"", digest.get(..26)?)).ok()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use narval_nix::{SecretKey, Signature, StorePath, TrustedKeys};

    use super::*;

    fn store_path(name: &str) -> StorePath {
        StorePath::parse(name).unwrap()
    }

    fn info() -> PathInfo {
        let references = ["7gx4kiv5m0i7d7qkixq2cwzbr10lvxwc-glibc-2.27", "00bgd045z0d4icpbc2yyz4gx48ak44la-net-tools"];
        PathInfo {
            path: store_path("00bgd045z0d4icpbc2yyz4gx48ak44la-net-tools"),
            nar_hash: "sha256:0lxjvvpr59c2mdram7ympy5ay741f180kv3349hvfc3f8nrmbqf6".parse().unwrap(),
            nar_size: 464_152,
            references: references.iter().map(|name| store_path(name)).collect(),
            deriver: Some(store_path("7gx4kiv5m0i7d7qkixq2cwzbr10lvxwc-net-tools.drv")),
            registration_time: 1,
            ultimate: false,
            signatures: vec![Signature::new("z-1", [1; 64]).unwrap(), Signature::new("a-1", [2; 64]).unwrap()],
            ca: Some("fixed:r:sha256:0sjjj9z1dhilhpc8pq4154czrb79z9cm044jvn75kxcjv6v5l2m5".parse().unwrap()),
        }
    }

    fn rendered(dialect: Dialect, keys: Vec<SecretKey>, info: &PathInfo) -> String {
        render(dialect, &keys, &StoreDir::default(), info.path.hash_part(), info, None).unwrap()
    }

    fn key(name: &str) -> SecretKey {
        SecretKey::generate(name).unwrap()
    }

    #[test]
    fn nix_serve_without_a_key_shows_the_stored_signatures_sorted() {
        let text = rendered(Dialect::NixServe, vec![], &info());
        let signature = |byte: u8| Signature::new("x", [byte; 64]).unwrap().to_base64();
        let want = format!(
            "StorePath: /nix/store/00bgd045z0d4icpbc2yyz4gx48ak44la-net-tools\n\
             URL: nar/00bgd045z0d4icpbc2yyz4gx48ak44la-0lxjvvpr59c2mdram7ympy5ay741f180kv3349hvfc3f8nrmbqf6.nar\n\
             Compression: none\n\
             NarHash: sha256:0lxjvvpr59c2mdram7ympy5ay741f180kv3349hvfc3f8nrmbqf6\n\
             NarSize: 464152\n\
             References: 00bgd045z0d4icpbc2yyz4gx48ak44la-net-tools 7gx4kiv5m0i7d7qkixq2cwzbr10lvxwc-glibc-2.27\n\
             Deriver: 7gx4kiv5m0i7d7qkixq2cwzbr10lvxwc-net-tools.drv\n\
             Sig: a-1:{}\n\
             Sig: z-1:{}\n",
            signature(2),
            signature(1)
        );
        assert_eq!(text, want);
    }

    #[test]
    fn nix_serve_with_a_key_shows_its_signature_alone() {
        let secret = key("own-1");
        let trusted: TrustedKeys = [secret.public_key()].into_iter().collect();
        let text = rendered(Dialect::NixServe, vec![secret], &info());
        let parsed = NarInfo::parse(text.as_bytes(), &StoreDir::default()).unwrap();
        assert_eq!(parsed.signatures.len(), 1);
        let fingerprint = info().fingerprint(&StoreDir::default());
        assert!(trusted.find_valid(fingerprint.as_bytes(), &parsed.signatures).is_some());
    }

    #[test]
    fn nix_serve_leaves_out_lines_that_have_nothing_to_say() {
        let bare = PathInfo { references: BTreeSet::new(), deriver: None, signatures: vec![], ..info() };
        let text = rendered(Dialect::NixServe, vec![], &bare);
        assert!(text.ends_with("NarSize: 464152\n"), "{text}");
    }

    #[test]
    fn the_richer_face_shows_all_it_knows() {
        let keys = vec![key("own-1"), key("own-2")];
        let text = rendered(Dialect::Narval, keys, &info());
        let parsed = NarInfo::parse(text.as_bytes(), &StoreDir::default()).unwrap();
        let names: Vec<_> = parsed.signatures.iter().map(Signature::key_name).collect();
        assert_eq!(names, ["a-1", "own-1", "own-2", "z-1"]);
        assert_eq!(parsed.file_hash, Some(info().nar_hash.into()));
        assert_eq!((parsed.file_size, parsed.ca), (Some(464_152), info().ca));
    }
}
