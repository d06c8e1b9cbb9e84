//! Fetches a NAR from the upstream into a file that its readers follow, and verifies it meanwhile.
//!
//! [`VerifiedNar`](narval_store::VerifiedNar) also verifies while reading, but it reads an uncompressed NAR from a
//! source that has checked its file, and withholds the end of the NAR. Here the compressed *file* is passed on
//! unchanged, and its last byte is withheld ([`GrowingFile`]); the NAR is only decoded for verification.

use std::fs::File;
use std::io::{self, BufRead, Read, Write};
use std::sync::Arc;

use narval_client::{HttpError, Trouble};
use narval_codec::decode::{Decoder, INPUT_LEN, OUTPUT_LEN};
use narval_files::{FillEnd, GrowingFile, Start, TemporaryFile};
use narval_nix::{Compression, Hash, Hasher, Sha256Hasher};

use super::places::Places;
use super::plain::Plain;
use super::source::{Otherwise, Source};
use crate::upstream::shared::bases::Base;

/// How much longer than its NAR a file may be if the narinfo has no `FileSize`: incompressible data only gets slightly
/// longer.
const EXPANSION_MAX: u64 = 1024 * 1024;

/// A NAR to fetch.
pub(in crate::upstream) struct Fetch {
    pub(in crate::upstream) places: Places,
    pub(in crate::upstream) fill: Arc<GrowingFile>,
    /// Whether the NAR is written uncompressed.
    pub(in crate::upstream) plain: bool,
    /// Whether no upstream was asked for anything when it began: it comes from a neighbour, or not at all.
    pub(in crate::upstream) only_near: bool,
}

impl Fetch {
    /// Fetches it into the file. The readers have been notified of the end when this returns.
    /// An uncompressed NAR is fetched as the delta from `base`, if there is one.
    /// If its upstream fails, the rest comes from another one.
    pub(in crate::upstream) fn run<'a>(
        &self,
        file: &TemporaryFile,
        base: impl FnOnce() -> Option<Base<'a>>,
    ) -> Result<(), Trouble> {
        let Places { remote, info, .. } = &self.places;
        let fetching = self.places.shared.fetching(info, self.plain);
        let result = match self.take_from_neighbour(file.file(), fetching.as_ref()) {
            Ok(true) => Ok(()),
            Ok(false) if self.only_near => Err(Trouble::Unavailable(HttpError::Connect {
                host: remote.url().to_string(),
                source: io::Error::other("it does not respond"),
            })),
            Ok(false) => self.fetch_file(file.file(), base),
            Err(trouble) => Err(trouble),
        };
        drop(fetching);
        match &result {
            Ok(()) => self.fill.ends(FillEnd::Complete),
            Err(_) if self.fill.is_abandoned() => {
                tracing::debug!("upstream {}: nobody waits for the NAR of {} any more", remote.url(), info.path);
            }
            Err(trouble) => {
                let (path, log) = (&info.path, format!("upstream {}", remote.url()));
                let (start, reason) = match trouble {
                    Trouble::Absent => {
                        tracing::warn!("{log}: has the narinfo of {path}, but not its NAR");
                        (Start::Absent, "the upstream does not have it".to_owned())
                    }
                    Trouble::Unavailable(error) => {
                        tracing::warn!("{log}: the NAR of {path} was not fetched: {error}");
                        (Start::Unavailable(error.to_string()), error.to_string())
                    }
                    Trouble::Wrong(reason) => {
                        tracing::error!(
                            "{log}: the NAR of {path} does not match its narinfo: {reason}; it is not stored"
                        );
                        (Start::Absent, reason.clone())
                    }
                    Trouble::Disk(error) => {
                        tracing::error!("upstreams: the NAR of {path} cannot be written: {error}");
                        (Start::Unavailable("it cannot be written".to_owned()), error.to_string())
                    }
                };
                self.fill.starts(start);
                self.fill.ends(FillEnd::Failed(reason.into()));
            }
        }
        result
    }

    /// Fetches a file of it from the places that it is at.
    pub(super) fn fetch_file<'a>(&self, file: &File, base: impl FnOnce() -> Option<Base<'a>>) -> Result<(), Trouble> {
        let info = &self.places.info;
        let is_nar = info.compression == Compression::None
            && info.file_hash.is_none_or(|hash| hash == Hash::from(info.nar_hash));
        match self.plain || is_nar {
            true => self.fetch_plain(file, self.plain.then(base).flatten()),
            false => self.fetch(file),
        }
    }

    fn fetch_plain(&self, file: &File, base: Option<Base<'_>>) -> Result<(), Trouble> {
        let plain = Plain { places: &self.places, fill: &self.fill, file };
        if let Some(base) = base {
            match plain.fetch_delta(base) {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(trouble) => tracing::debug!("a delta of {} is not used: {trouble:?}", self.places.info.path),
            }
        }
        plain.fetch_whole()
    }

    fn fetch(&self, file: &File) -> Result<(), Trouble> {
        let info = &*self.places.info;
        let opened = self.places.open()?;
        let body = Source::new(&self.places, &self.fill, opened, Vec::new(), Otherwise::Wait);
        let length = body.total_len();
        let hasher = info.file_hash.and_then(|hash| Hasher::new(hash.algorithm()));
        let length_max = info.file_size.or(length).unwrap_or_else(|| info.nar_size.saturating_add(EXPANSION_MAX));
        let tee = Tee {
            body,
            file,
            fill: &self.fill,
            hasher,
            written: 0,
            length_max,
            trouble: None,
            buffer: Vec::new(),
            at: 0,
        };
        let mut decoder = Decoder::new(&info.compression, tee, 1).map_err(|error| Trouble::Wrong(error.to_string()))?;
        // Only now: errors before this are better reported as a status.
        self.fill.starts(Start::Comes(info.file_size.or(length)));
        self.verify(&mut decoder)
    }

    fn verify(&self, decoder: &mut Decoder<Tee<'_>>) -> Result<(), Trouble> {
        let info = &*self.places.info;
        let (mut hasher, mut size) = (Sha256Hasher::new(), 0);
        let mut buffer = vec![0; OUTPUT_LEN];
        loop {
            let read = decoder.read(&mut buffer);
            let len = read.map_err(|error| {
                decoder.source_mut().trouble.take().unwrap_or_else(|| Trouble::Wrong(error.to_string()))
            })?;
            if len == 0 {
                break;
            }
            size += len as u64;
            if size > info.nar_size {
                return Err(Trouble::Wrong(format!("NarSize is more than {}", info.nar_size)));
            }
            hasher.update(buffer.get(..len).unwrap_or_default());
        }
        let tee = decoder.source_mut();
        // A compressed file ends where its format does: later bytes belong to no NAR.
        match tee.fill_buf() {
            Ok([]) => {}
            Ok(_) => return Err(Trouble::Wrong("there are bytes after the NAR".to_owned())),
            Err(error) => return Err(tee.trouble.take().unwrap_or_else(|| Trouble::Wrong(error.to_string()))),
        }
        let differs = |what: &str, is: String, announced: String| {
            Err(Trouble::Wrong(format!("{what} is {is}, but the narinfo has {announced}")))
        };
        let (file_size, file_hash) = (tee.written, tee.hasher.take().map(Hasher::finish));
        let nar_hash = Hash::from(hasher.finish());
        if size != info.nar_size {
            return differs("NarSize", size.to_string(), info.nar_size.to_string());
        }
        if nar_hash != Hash::from(info.nar_hash) {
            return differs("NarHash", nar_hash.to_string(), info.nar_hash.to_string());
        }
        if let Some(announced) = info.file_size.filter(|announced| *announced != file_size) {
            return differs("FileSize", file_size.to_string(), announced.to_string());
        }
        if let (Some(announced), Some(is)) = (info.file_hash, file_hash)
            && announced != is
        {
            return differs("FileHash", is.to_string(), announced.to_string());
        }
        Ok(())
    }
}

/// A reader that also writes to the file, hashes, and notifies the file's readers.
struct Tee<'a> {
    body: Source<'a>,
    file: &'a File,
    fill: &'a GrowingFile,
    hasher: Option<Hasher>,
    written: u64,
    length_max: u64,
    /// Why a read failed, if the decoder was not the cause.
    trouble: Option<Trouble>,
    buffer: Vec<u8>,
    at: usize,
}

impl Tee<'_> {
    fn more(&mut self) -> Result<(), Trouble> {
        self.buffer.resize(INPUT_LEN, 0);
        let len = self.body.read(&mut self.buffer).map_err(|error| match error {
            HttpError::Changed => Trouble::Wrong("it changed while it was fetched".to_owned()),
            error => Trouble::Unavailable(error),
        });
        self.buffer.truncate(*len.as_ref().unwrap_or(&0));
        self.at = 0;
        let len = len? as u64;
        if len == 0 {
            return Ok(());
        }
        if self.written + len > self.length_max {
            return Err(Trouble::Wrong(format!("FileSize is more than {}", self.length_max)));
        }
        (&*self.file).write_all(&self.buffer).map_err(Trouble::Disk)?;
        if let Some(hasher) = &mut self.hasher {
            hasher.update(&self.buffer);
        }
        self.written += len;
        self.fill.wrote(self.written);
        Ok(())
    }
}

impl BufRead for Tee<'_> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.at >= self.buffer.len()
            && let Err(trouble) = self.more()
        {
            self.buffer.clear();
            self.trouble.get_or_insert(trouble);
            return Err(io::Error::other("the upstream"));
        }
        Ok(self.buffer.get(self.at..).unwrap_or_default())
    }

    fn consume(&mut self, amount: usize) {
        self.at += amount;
    }
}

impl Read for Tee<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let len = self.fill_buf()?.read(out)?;
        self.consume(len);
        Ok(len)
    }
}
