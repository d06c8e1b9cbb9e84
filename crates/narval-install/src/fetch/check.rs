//! The checks of a NAR that was received completely, and their errors.

use std::fmt::Display;

use narval_cache::{CacheError, TrustedNarInfo};
use narval_nix::{Algorithm, Compression, NarInfo, Sha256};
use narval_store::Hashed;

use super::input::Input;
use narval_transfer::Error;

/// Checks that nothing follows the compressed data.
pub(crate) fn check_end(found: &TrustedNarInfo, input: &mut Input<'_>) -> Result<(), Error> {
    let more = input.has_more();
    if let Some(failure) = input.take_failure() {
        return Err(failure.about(found));
    }
    if more.map_err(|error| damaged(found, error.to_string()))? {
        return Err(damaged(found, "bytes follow the end of the compressed data".to_owned()));
    }
    Ok(())
}

/// Compares a file with its narinfo. A file with another size or hash than in the narinfo only causes a
/// warning: no signature covers them, Nix checks neither (`nar-info.cc`), and the NAR's own hash decides.
pub(crate) fn check_file(found: &TrustedNarInfo, input: &mut Input<'_>, nar_hash: Sha256) {
    let info = &found.info;
    if let Some(size) = info.file_size.filter(|size| *size != input.received_len()) {
        warn_about_file(found, "FileSize", &input.received_len(), &size);
    }
    let hash = if info.compression == Compression::None { Some(nar_hash) } else { input.file_hash() };
    if let (Some(expected), Some(actual)) = (&info.file_hash, hash)
        && expected.sha256().is_ok_and(|expected| expected != actual)
    {
        warn_about_file(found, "FileHash", &actual, expected);
    }
}

fn warn_about_file(found: &TrustedNarInfo, what: &str, actual: &dyn Display, expected: &dyn Display) {
    let (cache, path) = (found.cache.url(), &found.info.path);
    tracing::warn!(
        "{cache}: the {what} of {path} is {actual}, but its narinfo has {expected}; the NAR is verified by its NarHash"
    );
}

/// Checks the NAR's hash, and for a content-addressed path that of the contents. This is independent of signatures:
/// none covers `CA`, and the store would pass it on.
pub(crate) fn check_hashes(found: &TrustedNarInfo, hashed: &Hashed) -> Result<(), Error> {
    let info = &found.info;
    if hashed.nar != info.nar_hash {
        return Err(mismatch(found, "NarHash", hashed.nar, info.nar_hash));
    }
    match hashed.contents {
        Some((expected, Some(contents))) if contents != expected => Err(mismatch(found, "CA", contents, expected)),
        Some((expected, None)) => Err(mismatch(found, "CA", "no file", expected)),
        _ => Ok(()),
    }
}

/// Whether to compute the file's hash. Without compression it equals the NAR's, which is computed anyway.
pub(crate) fn hashes_file(info: &NarInfo) -> bool {
    let sha256 = info.file_hash.as_ref().is_some_and(|hash| hash.algorithm() == Algorithm::Sha256);
    sha256 && info.compression != Compression::None
}

pub(crate) fn mismatch(
    found: &TrustedNarInfo,
    what: &'static str,
    actual: impl ToString,
    expected: impl ToString,
) -> Error {
    CacheError::Mismatch {
        cache: found.cache.url().to_string(),
        path: found.info.path.clone(),
        what,
        actual: actual.to_string(),
        expected: expected.to_string(),
    }
    .into()
}

pub(crate) fn damaged(found: &TrustedNarInfo, reason: String) -> Error {
    CacheError::Damaged { cache: found.cache.url().to_string(), path: found.info.path.clone(), reason }.into()
}
