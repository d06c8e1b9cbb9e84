//! Fetches a NAR from an upstream that sends deltas, and writes it uncompressed: as the base of later deltas.
//!
//! A delta is undone completely and verified before any of its bytes can be read; if it is wrong, the whole NAR is fetched
//! instead. A whole NAR is read along while it arrives, except for its last byte ([`Fill`]).

use std::fs::File;
use std::io::{BufReader, Read};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;

use narval_client::{HttpError, OwnCodings};
use narval_nix::{NarInfo, Sha256Hasher};

use super::bases::Base;
use crate::CacheFile;
use crate::upstream::remote::Remote;
use narval_client::Trouble;
use narval_codec::decode::{Decoder, DeltaDecoder, INPUT_LEN, OUTPUT_LEN};
use narval_codec::delta::delta_codings;
use narval_files::{Fill, Start};

/// How long an upstream may take for a delta that it has yet to make. Those that are asked for deltas are behind slow lines.
const WAIT: Duration = Duration::from_secs(25);

/// A NAR to fetch.
pub(in crate::upstream) struct Plain<'a> {
    pub(in crate::upstream) remote: &'a Arc<Remote>,
    pub(in crate::upstream) info: &'a NarInfo,
    pub(in crate::upstream) fill: &'a Fill,
    pub(in crate::upstream) file: &'a File,
}

impl Plain<'_> {
    /// Fetches it as the delta from a base. Returns `false` if the upstream sends no delta.
    pub(in crate::upstream) fn fetch_delta(&self, base: Base<'_>) -> Result<bool, Trouble> {
        let Base { of, nar, memory } = base;
        let body = self.open(delta_codings(&of.path.hash_part(), &of.nar_hash, &[], Some(WAIT)))?;
        if body.coding() != Some("dcz") {
            return Ok(false);
        }
        let source = BufReader::with_capacity(INPUT_LEN, Source(body));
        let decoder = DeltaDecoder::new(source, nar, &of.nar_hash);
        let mut decoder = decoder.map_err(|error| Trouble::Wrong(error.to_string()))?;
        self.copy(&mut decoder, |_| {})?;
        self.fill.starts(Start::Comes(Some(self.info.nar_size)));
        self.fill.wrote(self.info.nar_size);
        drop((decoder, memory));
        Ok(true)
    }

    /// Fetches its file, and decodes it.
    pub(in crate::upstream) fn fetch_whole(&self) -> Result<(), Trouble> {
        let body = self.open(OwnCodings::default())?;
        let source = BufReader::with_capacity(INPUT_LEN, Source(body));
        let decoder = Decoder::new(&self.info.compression, source, 1);
        let mut decoder = decoder.map_err(|error| Trouble::Wrong(error.to_string()))?;
        self.fill.starts(Start::Comes(Some(self.info.nar_size)));
        self.copy(&mut decoder, |written| self.fill.wrote(written))
    }

    fn open(&self, codings: OwnCodings) -> Result<CacheFile, Trouble> {
        let url = self.remote.cache.nar_url(self.info).map_err(|error| Trouble::Wrong(error.to_string()))?;
        let opened = CacheFile::open_coded(&self.remote.nars, &url, codings, false)
            .map_err(|error| self.remote.failed(error))?;
        opened.ok_or(Trouble::Absent)
    }

    /// Writes the NAR from the file's start, and verifies it.
    fn copy(&self, nar: &mut impl Read, mut wrote: impl FnMut(u64)) -> Result<(), Trouble> {
        let (mut hasher, mut written, mut buffer) = (Sha256Hasher::new(), 0, vec![0; OUTPUT_LEN]);
        loop {
            let len = nar.read(&mut buffer).map_err(|error| match error.downcast::<HttpError>() {
                Ok(HttpError::Changed) => Trouble::Wrong("it changed while it was fetched".to_owned()),
                Ok(error) => Trouble::Unavailable(error),
                Err(error) => Trouble::Wrong(error.to_string()),
            })?;
            let piece = buffer.get(..len).unwrap_or_default();
            if written + len as u64 > self.info.nar_size {
                return Err(Trouble::Wrong(format!("NarSize is more than {}", self.info.nar_size)));
            }
            if len == 0 {
                break;
            }
            hasher.update(piece);
            self.file.write_all_at(piece, written).map_err(Trouble::Disk)?;
            written += len as u64;
            wrote(written);
        }
        if written != self.info.nar_size {
            return Err(Trouble::Wrong(format!("NarSize is {written}, but the narinfo has {}", self.info.nar_size)));
        }
        let nar_hash = hasher.finish();
        if nar_hash != self.info.nar_hash {
            let expected = self.info.nar_hash;
            return Err(Trouble::Wrong(format!("NarHash is {nar_hash}, but the narinfo has {expected}")));
        }
        Ok(())
    }
}

/// A body as a reader that passes on why it failed.
struct Source(CacheFile);

impl Read for Source {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        self.0.read_some(out).map_err(std::io::Error::other)
    }
}
