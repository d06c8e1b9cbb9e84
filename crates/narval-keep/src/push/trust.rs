//! Which signatures of a path are kept, and which uploads the cache vouches for.

use std::collections::BTreeSet;
use std::sync::Arc;

use narval_nix::narinfo::SIGNATURES_MAX;
use narval_nix::{NarInfo, PublicKey, SecretKey, SignError, Signature, TrustedKeys};

use crate::rejection::Rejection;
use crate::settings::CacheSettings;

/// The maximum number of signatures of unknown keys that tokens without the scope `sign` can add to a path.
pub(crate) const UNKNOWN_SIGNATURES_MAX: usize = 16;

/// The keys that matter to a cache.
pub(crate) struct Trust<'a> {
    settings: &'a CacheSettings,
    own: Arc<[SecretKey]>,
    /// All whose signatures mean something here: its own, those it trusts, and those it requires.
    known: TrustedKeys,
}

/// An upload of one path.
pub(crate) struct Signed<'a> {
    /// The text that signatures sign.
    pub(crate) fingerprint: &'a str,
    /// The signatures that came with it.
    pub(crate) signatures: &'a [Signature],
    /// Whether its token has the scope `sign`.
    pub(crate) may_sign: bool,
}

impl<'a> Trust<'a> {
    pub(crate) fn new(settings: &'a CacheSettings, own: Arc<[SecretKey]>) -> Self {
        let public = own.iter().map(SecretKey::public_key);
        let others = settings.trusted_keys.iter().chain(&settings.required_keys).cloned();
        let known = public.chain(others).collect();
        Self { settings, own, known }
    }

    /// Refuses an upload without a signature that the cache requires. Only signatures in this upload count: earlier ones say nothing
    /// about it.
    pub(crate) fn check_required(&self, info: &NarInfo, signed: &Signed<'_>) -> Result<(), Rejection> {
        let required = &self.settings.required_keys;
        if required.is_empty() || is_signed_by(required, signed) {
            return Ok(());
        }
        let names: Vec<&str> = required.iter().map(PublicKey::name).collect();
        let message = format!(
            "'{}' has no valid signature of {}, which this cache requires: sign it ('nix store sign') and push again",
            info.path,
            names.join(" or ")
        );
        Err(Rejection::unprocessable(message).because("signature"))
    }

    /// The text that signatures of a path sign.
    pub(crate) fn fingerprint(&self, info: &NarInfo) -> String {
        info.fingerprint(&self.settings.store_dir)
    }

    /// Whether the cache signs an upload.
    pub(crate) fn signs(&self, signed: &Signed<'_>) -> bool {
        signed.may_sign || is_signed_by(&self.settings.trusted_keys, signed)
    }

    /// Whether an upload will have a signature of the cache or of a key that it knows.
    pub(crate) fn vouches_for(&self, signed: &Signed<'_>) -> bool {
        let is_known = || self.known.find_valid(signed.fingerprint.as_bytes(), signed.signatures).is_some();
        (!self.own.is_empty() && self.signs(signed)) || is_known()
    }

    /// Whether a path of the cache has such a signature.
    pub(crate) fn has_vouched_for(&self, info: &NarInfo) -> bool {
        let fingerprint = self.fingerprint(info);
        self.known.find_valid(fingerprint.as_bytes(), &info.signatures).is_some()
    }

    /// The signatures that a path has after an upload, sorted as in Nix. Valid ones of known keys always have room. Then come those that
    /// a token with the scope `sign` brings, those that the path had, and a few that any other token brings.
    pub(crate) fn signatures(&self, signed: &Signed<'_>, before: &[Signature]) -> Result<Vec<Signature>, SignError> {
        let message = signed.fingerprint.as_bytes();
        let mut kept = BTreeSet::new();
        if self.signs(signed) {
            for key in self.own.iter() {
                // One that it has made before is not asked for again.
                let made = || {
                    let public_key = key.is_elsewhere().then(|| key.public_key())?;
                    signed.signatures.iter().chain(before).find(|made| public_key.verify(message, made)).cloned()
                };
                kept.insert(made().map_or_else(|| key.sign(message), Ok)?);
            }
        }
        let is_known = |signature: &&Signature| self.known.find_valid(message, [*signature]).is_some();
        let (known, brought): (Vec<_>, Vec<_>) = signed.signatures.iter().partition(is_known);
        let (known_before, before): (Vec<_>, Vec<_>) = before.iter().partition(is_known);
        // One by the name of an own key would have been known if it were valid.
        let is_of_another = |signature: &&Signature| !self.own.iter().any(|key| key.name() == signature.key_name());
        let (brought, before) = (brought.into_iter().filter(is_of_another), before.into_iter().filter(is_of_another));
        add(&mut kept, known.into_iter().chain(known_before), SIGNATURES_MAX);
        if signed.may_sign {
            add(&mut kept, brought.chain(before), SIGNATURES_MAX);
        } else {
            let at_most = kept.len() + UNKNOWN_SIGNATURES_MAX;
            add(&mut kept, before, SIGNATURES_MAX);
            add(&mut kept, brought, SIGNATURES_MAX.min(at_most));
        }
        Ok(kept.into_iter().collect())
    }
}

/// Whether a narinfo has a valid signature of each key.
pub(crate) fn is_signed(info: &NarInfo, fingerprint: &str, keys: &[SecretKey]) -> bool {
    keys.iter().all(|key| {
        let key: TrustedKeys = std::iter::once(key.public_key()).collect();
        key.find_valid(fingerprint.as_bytes(), &info.signatures).is_some()
    })
}

fn is_signed_by(keys: &[PublicKey], signed: &Signed<'_>) -> bool {
    let keys: TrustedKeys = keys.iter().cloned().collect();
    keys.find_valid(signed.fingerprint.as_bytes(), signed.signatures).is_some()
}

/// Adds signatures as long as there are fewer than `max`.
fn add<'a>(kept: &mut BTreeSet<Signature>, more: impl IntoIterator<Item = &'a Signature>, max: usize) {
    for signature in more {
        if kept.len() >= max {
            return;
        }
        kept.insert(signature.clone());
    }
}

/// Adds the signatures of one copy of a path to those of another, as far as there is room.
pub(crate) fn merge(info: &mut NarInfo, signatures: &[Signature]) {
    let mut all: BTreeSet<Signature> = info.signatures.iter().cloned().collect();
    add(&mut all, signatures, SIGNATURES_MAX);
    info.signatures = all.into_iter().collect();
}
