//! Listings, build logs, realisations and debug information: small, either unsigned or checked by clients, and stored
//! like other files once they were parsed.

use std::fmt;
use std::fs::File;
use std::io::{self, BufReader, ErrorKind, Read, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use narval_client::HttpError;
use narval_files::{FileAt, TemporaryFile};
use narval_nix::realisation::{BuildTraceKey, DrvOutput};
use narval_nix::{HashPart, StorePath};
use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::answer::{Unavailable, UpstreamAnswer};
use super::limits::SMALL_LEN_MAX;
use super::lookup::Upstreams;
use super::race::{Pace, race};
use super::remote::Remote;
use super::shared::Shared;
use crate::file::open_small_once;

/// The memory used while fetching a small file, in bytes.
const BUFFER_LEN: usize = 64 * 1024;

/// How long upstreams may take to begin with a small file: nobody builds what is missing here, and a log is long.
const SMALL_WITHIN: Duration = Duration::from_secs(5);

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

/// The maximum length of a build id, in digits.
const BUILD_ID_LEN_MAX: usize = 128;

impl Small {
    /// Debug information by its name; `None` for an invalid name.
    pub fn debug_info(name: &str) -> Option<Self> {
        let id = name.strip_suffix(".debug").unwrap_or(name);
        let legal = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        let is_id = (2..=BUILD_ID_LEN_MAX).contains(&id.len()) && id.bytes().all(legal);
        is_id.then(|| Self::DebugInfo(DebugInfoName(name.to_owned())))
    }

    /// Its URL relative to a cache.
    fn url(&self) -> String {
        match self {
            Self::Listing(hash_part) => format!("{hash_part}.ls"),
            Self::Log(path) => format!("log/{}", path.base_name()),
            Self::BuildTrace(key) => key.cache_path(),
            Self::Realisation(id) => id.cache_path(),
            Self::DebugInfo(name) => format!("debuginfo/{}", name.0),
        }
    }

    /// The name of the derivation that it is of, if it is known.
    fn path_name(&self) -> Option<&str> {
        match self {
            Self::Log(path) => Some(path.name()),
            Self::BuildTrace(key) => Some(key.drv_path.name()),
            Self::Listing(_) | Self::Realisation(_) | Self::DebugInfo(_) => None,
        }
    }

    /// Checks that a file is what its name says, as far as that can be told without keeping it in memory: a listing or a realisation is a JSON
    /// object. Logs and debug information may have any contents.
    fn check(&self, file: &File) -> serde_json::Result<()> {
        match self {
            Self::Log(_) | Self::DebugInfo(_) => Ok(()),
            Self::Listing(_) | Self::BuildTrace(_) | Self::Realisation(_) => {
                let json = BufReader::with_capacity(BUFFER_LEN, FileAt::new(file, 0));
                serde_json::from_reader(json).map(|AnyObject| ())
            }
        }
    }

    /// Its name in the folder of stored files.
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

/// An object, whatever is in it. Nothing of it is kept in memory.
struct AnyObject;

impl<'de> Deserialize<'de> for AnyObject {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Self)
    }
}

impl<'de> Visitor<'de> for AnyObject {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(self)
    }
}

impl Upstreams {
    /// A small file and its length, from the stored files or from the first upstream that has it, with its content
    /// coding decoded.
    ///
    /// It is a file because it may have up to [`SMALL_LEN_MAX`] bytes, which neither a fetch nor a slow client should
    /// hold in memory.
    ///
    /// # Errors
    /// [`Unavailable`]: no upstream has it that could be asked, and not all could.
    pub fn small(&self, small: &Small) -> Result<Option<(File, u64)>, Unavailable> {
        let shared = &*self.shared;
        // An empty one was not synced before a crash.
        if let Some(kept) = shared.kept.get(&small.kept()).filter(|(_, length)| *length > 0) {
            return Ok(Some(kept));
        }
        if shared.is_absent(&small.url()) {
            return Ok(None);
        }
        let _permit = shared.waiting.take().ok_or_else(Shared::busy)?;
        let mut remotes = match small {
            Small::Listing(hash_part) => shared.remotes_for(hash_part),
            _ => shared.remotes().to_vec(),
        };
        remotes.retain(|remote| small.path_name().is_none_or(|name| !remote.skips(name)));
        let mut failed = None;
        loop {
            let url = small.url();
            let answer =
                race(&remotes, &shared.hedges, Pace::ranked("file", SMALL_WITHIN), move |remote| remote.small(&url));
            let (remote, body) = match answer {
                Ok(Some(found)) => found,
                Ok(None) => break,
                Err(unavailable) => {
                    failed.get_or_insert(unavailable);
                    break;
                }
            };
            // If what follows fails, the others are asked.
            remotes.retain(|other| !Arc::ptr_eq(other, &remote));
            let disk = |error: io::Error| {
                tracing::error!("upstreams: '{}' cannot be written: {error}", small.kept());
                Unavailable::new(5, format!("'{}' cannot be written", small.kept()))
            };
            let file = shared.kept.create().map_err(disk)?;
            let wrong = |reason: String| Unavailable::new(5, format!("{}: {reason}", remote.url()));
            match receive(body, &file) {
                Ok(length) => {
                    if let Err(error) = small.check(file.file()) {
                        tracing::warn!(
                            "upstream {}: '{}' is not what was requested, and is not passed on: {error}",
                            remote.url(),
                            small.url()
                        );
                        failed.get_or_insert_with(|| wrong(format!("this is not what was requested: {error}")));
                        continue;
                    }
                    let opened = file.file().try_clone().map_err(disk)?;
                    if let Err(error) = shared.kept.keep_unsynced(&small.kept(), file) {
                        tracing::warn!("upstreams: '{}' cannot be stored: {error}", small.kept());
                    }
                    return Ok(Some((opened, length)));
                }
                Err(ReceiveError::Upstream(error)) => {
                    remote.has_failed(None);
                    failed.get_or_insert_with(|| wrong(error.to_string()));
                }
                Err(ReceiveError::Disk(error)) => return Err(disk(error)),
            }
        }
        match failed {
            Some(unavailable) => Err(unavailable),
            None => {
                shared.note_absent(&small.url());
                Ok(None)
            }
        }
    }
}

impl Remote {
    /// Asks for a small file by its URL.
    fn small(self: &Arc<Self>, url: &str) -> UpstreamAnswer<Box<dyn Read + Send>> {
        let Ok(url) = self.url().child(url) else { return UpstreamAnswer::Absent };
        let began = Instant::now();
        let answered = |has| self.health.answered(has, began.elapsed(), true);
        match open_small_once(self.cache.client(), &url) {
            Ok(Some(body)) => {
                answered(true);
                UpstreamAnswer::Has(body)
            }
            Ok(None) => {
                answered(false);
                UpstreamAnswer::Absent
            }
            Err(error @ HttpError::OutOfBounds { .. }) => {
                tracing::warn!("upstream {url}: {error}");
                UpstreamAnswer::Absent
            }
            Err(error) => {
                if !error.is_answer() {
                    self.has_failed(error.retry_after());
                }
                UpstreamAnswer::Failed(Unavailable::new(5, format!("{}: {error}", self.url())))
            }
        }
    }
}

/// Why a small file was not received.
enum ReceiveError {
    Upstream(io::Error),
    Disk(io::Error),
}

/// Writes an upstream's response to a file; returns its length.
fn receive(mut from: Box<dyn Read + Send>, to: &TemporaryFile) -> Result<u64, ReceiveError> {
    let (mut buffer, mut length) = (vec![0; BUFFER_LEN], 0);
    loop {
        let read = match from.read(&mut buffer) {
            Ok(0) => return Ok(length),
            Ok(read) => read,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(ReceiveError::Upstream(error)),
        };
        length += read as u64;
        if length > SMALL_LEN_MAX {
            return Err(ReceiveError::Upstream(io::Error::other(format!("it is larger than {SMALL_LEN_MAX} bytes"))));
        }
        to.file().write_all(buffer.get(..read).unwrap_or_default()).map_err(ReceiveError::Disk)?;
    }
}
