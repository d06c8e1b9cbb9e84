//! Listings, build logs, realisations, debug information: small, signed by nobody or checked by clients, and kept all the same.

use narval_nix::realisation::{BuildTraceKey, DrvOutput};
use narval_nix::{HashPart, StorePath};

use super::lookup::{Shared, Upstreams};
use super::{SMALL_LEN_MAX, Unavailable};
use crate::read_small_once;

/// A small file of a binary cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Small {
    /// `/<hash part>.ls`
    Listing(HashPart),
    /// `/log/<derivation>`
    Log(StorePath),
    /// `/build-trace-v2/<derivation>/<output>.doi`: clients check its signatures.
    BuildTrace(BuildTraceKey),
    /// `/realisations/<derivation hash>!<output>.doi`: clients check its signatures.
    Realisation(DrvOutput),
    /// `/debuginfo/<build id>`, see [`Small::debug_info`]
    DebugInfo(DebugInfoName),
}

/// The name of debug information: `<build id>` or `<build id>.debug`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DebugInfoName(String);

/// The longest build id, in digits.
const BUILD_ID_LEN_MAX: usize = 128;

impl Small {
    /// Debug information by its name; `None` for a name that is none.
    pub fn debug_info(name: &str) -> Option<Self> {
        let id = name.strip_suffix(".debug").unwrap_or(name);
        let legal = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        let is_id = (2..=BUILD_ID_LEN_MAX).contains(&id.len()) && id.bytes().all(legal);
        is_id.then(|| Self::DebugInfo(DebugInfoName(name.to_owned())))
    }

    /// Below the address of a cache.
    fn url(&self) -> String {
        match self {
            Self::Listing(hash_part) => format!("{hash_part}.ls"),
            Self::Log(path) => format!("log/{}", path.base_name()),
            Self::BuildTrace(key) => key.cache_path(),
            Self::Realisation(id) => id.cache_path(),
            Self::DebugInfo(name) => format!("debuginfo/{}", name.0),
        }
    }

    /// In the folder of what is kept.
    fn kept(&self) -> String {
        match self {
            Self::Listing(hash_part) => format!("small/{hash_part}.ls"),
            Self::Log(path) => format!("small/{}.log", path.base_name()),
            Self::BuildTrace(_) | Self::Realisation(_) | Self::DebugInfo(_) => {
                format!("small/{}", self.url().replace('/', "_"))
            }
        }
    }
}

impl Upstreams {
    /// A small file, from what is kept or from the first upstream that has it. It is decoded if it came encoded.
    ///
    /// # Errors
    /// [`Unavailable`]: no upstream has it that could be asked, and not all could.
    pub fn small(&self, small: &Small) -> Result<Option<Vec<u8>>, Unavailable> {
        let shared = &*self.shared;
        // An empty one was not on the disk yet when the machine went down.
        if let Some(bytes) = shared.kept.read(&small.kept()).filter(|bytes| !bytes.is_empty()) {
            return Ok(Some(bytes));
        }
        if shared.is_absent(&small.url()) {
            return Ok(None);
        }
        let _permit = shared.waiting.take().ok_or_else(Shared::busy)?;
        let mut failed = None;
        for remote in shared.remotes().iter() {
            if remote.cache.breaker.is_open() {
                failed = Some(format!("{} does not answer", remote.url()));
                continue;
            }
            let url = remote.url().child(&small.url());
            let Ok(url) = url else { continue };
            match read_small_once(remote.cache.client(), &url, SMALL_LEN_MAX) {
                Ok(answer) => {
                    remote.cache.breaker.succeeded();
                    let Some(bytes) = answer else { continue };
                    if let Err(error) = shared.kept.keep_bytes(&small.kept(), &bytes) {
                        tracing::warn!("upstreams: '{}' is not kept: {error}", small.kept());
                    }
                    return Ok(Some(bytes));
                }
                Err(error) => {
                    remote.cache.breaker.failed();
                    failed = Some(format!("{}: {error}", remote.url()));
                }
            }
        }
        match failed {
            Some(reason) => Err(Unavailable::new(5, reason)),
            None => {
                shared.note_absent(&small.url());
                Ok(None)
            }
        }
    }
}
