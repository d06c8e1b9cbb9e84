//! Fetches a NAR from an upstream that sends deltas, and writes it uncompressed: as the base of later deltas.
//!
//! A delta is undone completely and verified before any of its bytes can be read; if it is wrong, the whole NAR is fetched
//! instead. A whole NAR is read along while it arrives, except for its last byte ([`GrowingFile`]). If its upstream fails, it is continued with
//! any file of the same NAR: bytes that came already are decoded again, and skipped.

use std::fs::File;
use std::io::{BufReader, Read};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;

use narval_client::{HttpError, Trouble};
use narval_codec::decode::{Decoder, DeltaDecoder, INPUT_LEN, OUTPUT_LEN};
use narval_codec::delta::delta_codings;
use narval_files::{GrowingFile, Start};
use narval_nix::Sha256Hasher;

use super::places::{Opened, Places};
use super::source::{Otherwise, Source};
use crate::file::CacheFile;
use crate::upstream::shared::bases::Base;

/// How long an upstream may take for a delta that it has yet to make. Those that are asked for deltas are behind slow lines.
const WAIT: Duration = Duration::from_secs(25);

/// A NAR to fetch.
pub(in crate::upstream) struct Plain<'a> {
    pub(in crate::upstream) places: &'a Places,
    pub(in crate::upstream) fill: &'a GrowingFile,
    pub(in crate::upstream) file: &'a File,
}

/// What has been written of a NAR.
#[derive(Default)]
struct Written {
    hasher: Sha256Hasher,
    len: u64,
}

impl Plain<'_> {
    /// Fetches it as the delta from a base. Returns `false` if the upstream sends no delta.
    pub(in crate::upstream) fn fetch_delta(&self, base: Base<'_>) -> Result<bool, Trouble> {
        let Base { of, nar, memory } = base;
        let Places { remote, info, .. } = self.places;
        let url = remote.cache.nar_url(info).map_err(|error| Trouble::Wrong(error.to_string()))?;
        let codings = delta_codings(&of.path.hash_part(), &of.nar_hash, &[], Some(WAIT));
        let body = CacheFile::open_coded(&remote.nars, &url, codings, false).map_err(|error| remote.failed(error))?;
        let body = body.ok_or(Trouble::Absent)?;
        if body.coding() != Some("dcz") {
            return Ok(false);
        }
        let opened = Opened { remote: Arc::clone(remote), info: Arc::clone(info), body };
        let mut source = Source::new(self.places, self.fill, opened, Vec::new(), Otherwise::Stop);
        let reader = BufReader::with_capacity(INPUT_LEN, Reader(&mut source));
        let decoder = DeltaDecoder::new(reader, nar, &of.nar_hash);
        let mut decoder = decoder.map_err(|error| Trouble::Wrong(error.to_string()))?;
        self.copy(&mut decoder, &mut Written::default(), |_| {})?;
        self.fill.starts(Start::Comes(Some(info.nar_size)));
        self.fill.wrote(info.nar_size);
        drop((decoder, memory));
        Ok(true)
    }

    /// Fetches a file of it, and decodes it.
    pub(in crate::upstream) fn fetch_whole(&self) -> Result<(), Trouble> {
        let (mut opened, mut tried) = (self.places.open()?, Vec::new());
        let mut written = Written::default();
        self.fill.starts(Start::Comes(Some(self.places.info.nar_size)));
        loop {
            let compression = opened.info.compression;
            let mut source = Source::new(self.places, self.fill, opened, tried, Otherwise::OtherFile);
            let reader = BufReader::with_capacity(INPUT_LEN, Reader(&mut source));
            let decoder = Decoder::new(&compression, reader, 1);
            let mut decoder = decoder.map_err(|error| Trouble::Wrong(error.to_string()))?;
            let copied = self.copy(&mut decoder, &mut written, |written| self.fill.wrote(written));
            drop(decoder);
            match (copied, source.instead()) {
                (Err(Trouble::Unavailable(_)), Some(instead)) => (opened, tried) = instead,
                (copied, _) => return copied,
            }
        }
    }

    /// Writes the NAR, of which a part may have been written, and verifies it.
    fn copy(&self, nar: &mut impl Read, written: &mut Written, mut wrote: impl FnMut(u64)) -> Result<(), Trouble> {
        let info = &*self.places.info;
        let (mut read, mut buffer) = (0, vec![0; OUTPUT_LEN]);
        loop {
            let len = nar.read(&mut buffer).map_err(|error| match error.downcast::<HttpError>() {
                Ok(HttpError::Changed) => Trouble::Wrong("it changed while it was fetched".to_owned()),
                Ok(error) => Trouble::Unavailable(error),
                Err(error) => Trouble::Wrong(error.to_string()),
            })?;
            read += len as u64;
            if read > info.nar_size {
                return Err(Trouble::Wrong(format!("NarSize is more than {}", info.nar_size)));
            }
            if len == 0 {
                break;
            }
            // The end of it, as far as it is new.
            let new = usize::try_from(read.saturating_sub(written.len)).map_or(len, |new| new.min(len));
            let piece = buffer.get(len - new..len).unwrap_or_default();
            written.hasher.update(piece);
            self.file.write_all_at(piece, written.len).map_err(Trouble::Disk)?;
            written.len += piece.len() as u64;
            wrote(written.len);
        }
        if read != info.nar_size {
            return Err(Trouble::Wrong(format!("NarSize is {read}, but the narinfo has {}", info.nar_size)));
        }
        let (nar_hash, expected) = (std::mem::take(&mut written.hasher).finish(), info.nar_hash);
        if nar_hash != expected {
            return Err(Trouble::Wrong(format!("NarHash is {nar_hash}, but the narinfo has {expected}")));
        }
        Ok(())
    }
}

/// A source as a reader that passes on why it failed.
struct Reader<'a, 'b>(&'a mut Source<'b>);

impl Read for Reader<'_, '_> {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        self.0.read(out).map_err(std::io::Error::other)
    }
}
