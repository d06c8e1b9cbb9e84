//! What a cache has besides narinfos and NARs: listings, logs, realisations, debug information, and what later versions of Nix upload.

mod traces;

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::sync::PoisonError;

use narval_nix::listing::LISTING_LEN_MAX;
use narval_nix::{HashPart, Sha256, StorePath};

use self::traces::Rights;
use crate::access::grant::{Grant, Scope};
use crate::cache::Cache;
use crate::rejection::{Rejection, RejectionKind};
use crate::storage::Below;

/// The maximum size of a build log, in bytes.
const LOG_LEN_MAX: u64 = 256 << 20;

/// The maximum size of a JSON file, in bytes.
pub(super) const JSON_LEN_MAX: u64 = 1 << 20;

/// The maximum size of a file of an unknown kind, in bytes.
const OTHER_LEN_MAX: u64 = 16 << 20;

/// The maximum size of all files of unknown kinds in one cache, in bytes.
const OTHER_BYTES_MAX: u64 = 256 << 20;

/// The maximum length of the name of a file of an unknown kind, in bytes.
const OTHER_NAME_LEN_MAX: usize = 512;

/// The folder for files of unknown kinds.
const OTHER_FOLDER: &str = "other";

/// The kinds of small files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SmallKind {
    /// `<hash part>.ls`; the name is the hash part. Made by the cache from the NAR that it has verified: one that is uploaded
    /// is read and dropped.
    Listing,
    /// `log/<base name of a derivation>`.
    Log,
    /// `realisations/<algorithm>:<hash>!<output>.doi`.
    Realisation,
    /// `build-trace-v2/<base name of a derivation>/<output>.doi`.
    BuildTrace,
    /// `debuginfo/<build id>`.
    DebugInfo,
    /// `nix-cache-info`; the name is empty. Made by the cache.
    CacheInfo,
    /// A kind that only later versions of Nix know; the name is the whole path. Kept apart, below `other/`, and served as it
    /// came. All of them together have a limit.
    Other,
}

/// The result of uploading a small file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PutOutcome {
    /// It is new, or has replaced another.
    Written,
    /// The existing one was kept, or the cache makes such files itself.
    Kept,
    /// It is of an unknown kind and was discarded: its name is invalid, it is too large, or there are too many.
    Dropped,
}

impl SmallKind {
    /// The file's path in the cache's folder. Returns `None` for an invalid name.
    fn path(self, name: &str) -> Option<String> {
        match self {
            Self::Listing => name.parse::<HashPart>().ok().map(|part| format!("{part}.ls")),
            Self::Log => StorePath::parse(name).ok().map(|path| format!("log/{path}")),
            Self::Realisation => is_realisation(name).then(|| format!("realisations/{name}")),
            Self::BuildTrace => {
                let (derivation, output) = name.split_once('/')?;
                let output = output.strip_suffix(".doi").filter(|output| is_word(output, "+-._?="))?;
                let derivation = StorePath::parse(derivation).ok()?;
                Some(format!("build-trace-v2/{derivation}/{output}.doi"))
            }
            Self::DebugInfo => {
                let id = name.strip_suffix(".debug").unwrap_or(name);
                let legal =
                    (2..=128).contains(&id.len()) && id.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
                legal.then(|| format!("debuginfo/{name}"))
            }
            Self::CacheInfo => name.is_empty().then(|| "nix-cache-info".to_owned()),
            Self::Other => is_other(name).then(|| format!("{OTHER_FOLDER}/{name}")),
        }
    }

    const fn len_max(self) -> u64 {
        match self {
            Self::Log => LOG_LEN_MAX,
            Self::Listing => LISTING_LEN_MAX as u64,
            Self::Other => OTHER_LEN_MAX,
            _ => JSON_LEN_MAX,
        }
    }

    const fn is_made_here(self) -> bool {
        matches!(self, Self::Listing | Self::CacheInfo)
    }
}

impl Cache {
    /// Opens a small file, and returns its length, too. Returns `None` if it does not exist or the name is invalid.
    ///
    /// # Errors
    /// If it exists and cannot be read.
    pub fn small_file(&self, kind: SmallKind, name: &str) -> Result<Option<(File, u64)>, Rejection> {
        let Some(path) = kind.path(name) else { return Ok(None) };
        let fail = |error: io::Error| Rejection::of_file("open", &path, &error);
        let Some((file, len)) = self.files().open(&path).map_err(fail)? else { return Ok(None) };
        if kind == SmallKind::Listing {
            // A loss of power may have left it empty: it is not synchronised, since nothing depends on it.
            let part = name.parse::<HashPart>().ok();
            let record = part.map(|part| self.index().path(self.id(), &part)).transpose()?.flatten();
            if record.and_then(|record| record.listing_size) != Some(len) {
                return Ok(None);
            }
        }
        Ok(Some((file, len)))
    }

    /// Stores a small file. An existing one is kept, unless the token may replace it. To an existing realisation, new signatures are
    /// added.
    ///
    /// # Errors
    /// If the name is invalid, the token may not push, the file is too large, or there is no room.
    pub fn put_small(
        &self,
        kind: SmallKind,
        name: &str,
        body: &mut dyn Read,
        grant: &Grant,
    ) -> Result<PutOutcome, Rejection> {
        let result = match self.try_put(kind, name, body, grant) {
            // What a later Nix uploads must not fail its copy.
            Err(Rejection { kind: RejectionKind::NotFound | RejectionKind::TooLarge, message, .. })
                if kind == SmallKind::Other =>
            {
                tracing::warn!("cache '{}': a file of an unknown type is dropped: {message}", self.name());
                // A client whose body is not read reports a failure. The server limits how slowly it may send.
                io::copy(body, &mut io::sink()).ok();
                Ok(PutOutcome::Dropped)
            }
            result => result.inspect_err(|rejection| self.notice_shortage(rejection)),
        };
        if !kind.is_made_here() || result.is_err() {
            let outcome = result.as_ref().map(|put| format!("{put:?}").to_lowercase()).map_err(ToString::to_string);
            self.audit(grant, "file", &kind.path(name).unwrap_or_default(), &outcome);
        }
        result
    }

    fn try_put(
        &self,
        kind: SmallKind,
        name: &str,
        body: &mut dyn Read,
        grant: &Grant,
    ) -> Result<PutOutcome, Rejection> {
        grant.require(self.name(), Scope::Push)?;
        let path = kind
            .path(name)
            .ok_or_else(|| Rejection::not_found(format_args!("'{name}' is not the name of such a file")))?;
        let mut body = body.take(kind.len_max() + 1);
        let ended =
            |error: io::Error| Rejection::malformed(format_args!("the upload of '{path}' ended early: {error}"));
        let too_large = || Rejection::too_large(format_args!("'{path}' is larger than {} bytes", kind.len_max()));
        if kind.is_made_here() {
            let len = io::copy(&mut body, &mut io::sink()).map_err(ended)?;
            return if len > kind.len_max() { Err(too_large()) } else { Ok(PutOutcome::Kept) };
        }
        // A cache that is already full refuses before the body is read.
        self.check_room(1)?;
        self.check_quota(1)?;
        let fail = |error: io::Error| Rejection::of_file("write", &path, &error);
        let file = self.storage().incoming().map_err(fail)?;
        let (mut buffer, mut len) = (vec![0; 64 * 1024], 0);
        loop {
            let read = match body.read(&mut buffer) {
                Ok(0) => break,
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(ended(error)),
            };
            len += read as u64;
            if len > kind.len_max() {
                return Err(too_large());
            }
            file.file().write_all(buffer.get(..read).unwrap_or_default()).map_err(fail)?;
        }
        let is_trace = matches!(kind, SmallKind::Realisation | SmallKind::BuildTrace);
        // Uploads of the same one add their signatures one after another.
        let lock = is_trace.then(|| self.state().nar_lock(&Sha256::of(path.as_bytes())));
        let _one_by_one = lock.map(|lock| lock.lock().unwrap_or_else(PoisonError::into_inner));
        let old = self.files().len(&path).map_err(in_the_way(kind, &path))?;
        let may_replace = grant.allows(self.name(), Scope::Replace);
        let (mut file, mut len) = (file, len);
        if is_trace {
            let new = fs::read(file.path()).map_err(fail)?;
            let old = if old.is_some() { self.read_small(&path).map_err(fail)? } else { None };
            let rights = Rights { may_replace, may_sign: grant.allows(self.name(), Scope::Sign) };
            let Some(merged) = traces::merged(old.as_deref(), &new, rights) else { return Ok(PutOutcome::Kept) };
            if merged != new {
                file = self.storage().incoming().map_err(fail)?;
                file.file().write_all(&merged).map_err(fail)?;
                len = merged.len() as u64;
            }
        } else if old.is_some() && !may_replace {
            return Ok(PutOutcome::Kept);
        }
        self.check_quota(len)?;
        if kind == SmallKind::Other {
            self.check_others(&path, len)?;
        }
        self.files().write(&path, file).map_err(in_the_way(kind, &path))?;
        self.small_bytes().change(old.unwrap_or(0), len);
        Ok(PutOutcome::Written)
    }
}

impl Cache {
    /// Checks the limits on files of unknown kinds.
    fn check_others(&self, path: &str, more: u64) -> Result<(), Rejection> {
        let fail = |error: io::Error| Rejection::of_file("look at", OTHER_FOLDER, &error);
        let bytes = self.bytes_below(OTHER_FOLDER).map_err(fail)?;
        if bytes.saturating_add(more) <= OTHER_BYTES_MAX {
            return Ok(());
        }
        let message = format!("with '{path}', there would be more than {OTHER_BYTES_MAX} bytes of such files");
        Err(Rejection::too_large(message))
    }

    /// Bytes of logs, realisations, debug information and files of unknown kinds. They count towards the quota.
    pub(super) fn bytes_of_small_files(&self) -> Result<u64, Rejection> {
        let fail = |error: io::Error| Rejection::of_file("look at", "small files", &error);
        self.small_bytes().get(|| self.count_small_files()).map_err(fail)
    }

    /// Bytes of build logs, which are among them.
    pub(super) fn bytes_of_logs(&self) -> Result<u64, Rejection> {
        self.bytes_below("log").map_err(|error| Rejection::of_file("look at", "log", &error))
    }

    fn count_small_files(&self) -> io::Result<u64> {
        SMALL_FOLDERS.iter().map(|folder| self.bytes_below(folder)).sum()
    }

    /// Bytes of all files below a folder, which may be absent.
    fn bytes_below(&self, folder: &str) -> io::Result<u64> {
        Ok(self.files().list(Below::Folder(folder))?.iter().map(|file| file.len).sum())
    }

    /// The contents of a stored JSON file.
    fn read_small(&self, path: &str) -> io::Result<Option<Vec<u8>>> {
        let Some((file, _)) = self.files().open(path)? else { return Ok(None) };
        let mut text = Vec::new();
        file.take(JSON_LEN_MAX).read_to_end(&mut text)?;
        Ok(Some(text))
    }
}

/// Folders of a cache whose files no narinfo names.
pub(super) const SMALL_FOLDERS: [&str; 5] = ["log", "realisations", "build-trace-v2", "debuginfo", OTHER_FOLDER];

/// The refusal for a small file that cannot be written.
fn in_the_way(kind: SmallKind, path: &str) -> impl Fn(io::Error) -> Rejection {
    move |error| match (kind, error.kind()) {
        // A file is where this one needs a folder, or the reverse.
        (
            SmallKind::Other,
            io::ErrorKind::NotADirectory | io::ErrorKind::IsADirectory | io::ErrorKind::AlreadyExists,
        ) => Rejection::not_found(format_args!("'{path}' conflicts with another file's folder")),
        _ => Rejection::of_file("write", path, &error),
    }
}

/// `<algorithm>:<digits>!<output>.doi`.
fn is_realisation(name: &str) -> bool {
    let parts = name.strip_suffix(".doi").and_then(|name| name.split_once('!'));
    let Some((id, output)) = parts else { return false };
    let Some((algorithm, hash)) = id.split_once(':') else { return false };
    name.len() <= 255 && is_word(algorithm, "") && is_word(hash, "") && is_word(output, "+-._?=")
}

/// Parts of letters, digits and a few signs, none of which begins with a dot. Not below our own prefix.
fn is_other(name: &str) -> bool {
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || b"+-._=!:,~@".contains(&byte);
    let is_part =
        |part: &str| !part.is_empty() && part.len() <= 200 && !part.starts_with('.') && part.bytes().all(legal);
    name.len() <= OTHER_NAME_LEN_MAX && !name.starts_with("_narval") && name.split('/').all(is_part)
}

fn is_word(text: &str, also: &str) -> bool {
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || also.as_bytes().contains(&byte);
    !text.is_empty() && text.len() <= 211 && text.bytes().all(legal)
}
