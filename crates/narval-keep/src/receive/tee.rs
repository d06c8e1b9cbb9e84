//! The bytes of an upload: counted, hashed and written to a file before they reach a decoder.

use std::io::{self, BufRead, Read, Write};

use narval_nix::{Sha256, Sha256Hasher};

use narval_codec::decode::INPUT_LEN;

/// Why there are no more bytes.
#[derive(Debug)]
pub(super) enum TeeError {
    /// The sender has failed.
    Body(io::Error),
    /// The file cannot be written.
    File(io::Error),
    /// There are more bytes than allowed.
    TooLong,
}

/// A body that is stored while it is read, unless it is stored already.
pub(super) struct Tee<'a> {
    body: &'a mut dyn Read,
    file: Option<&'a mut dyn Write>,
    hasher: Sha256Hasher,
    is_hashed: bool,
    buffer: Box<[u8]>,
    at: usize,
    end: usize,
    len: u64,
    len_max: u64,
    ended: bool,
    /// Why reading failed; the decoder only sees that it did.
    failure: Option<TeeError>,
}

impl<'a> Tee<'a> {
    pub(super) fn new(body: &'a mut dyn Read, file: Option<&'a mut dyn Write>, len_max: u64) -> Self {
        Self {
            body,
            file,
            hasher: Sha256Hasher::new(),
            is_hashed: true,
            buffer: vec![0; INPUT_LEN].into(),
            at: 0,
            end: 0,
            len: 0,
            len_max,
            ended: false,
            failure: None,
        }
    }

    /// The same without hashing: only the size of [`Tee::finish`] is valid.
    pub(super) fn without_hash(self) -> Self {
        Self { is_hashed: false, ..self }
    }

    /// Why reading failed, if the decoder was not the cause.
    pub(super) fn take_failure(&mut self) -> Option<TeeError> {
        self.failure.take()
    }

    /// The hash and size of all bytes.
    pub(super) fn finish(self) -> (Sha256, u64) {
        (self.hasher.finish(), self.len)
    }

    /// Fills the buffer completely, if there are enough bytes, so that the file is written in large pieces.
    fn fill(&mut self) -> Result<(), TeeError> {
        (self.at, self.end) = (0, 0);
        while let Some(room) = self.buffer.get_mut(self.end..).filter(|room| !room.is_empty()) {
            match self.body.read(room) {
                Ok(0) => {
                    self.ended = true;
                    break;
                }
                Ok(len) => self.end += len,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(TeeError::Body(error)),
            }
        }
        let fresh = self.buffer.get(..self.end).unwrap_or_default();
        self.len += fresh.len() as u64;
        if self.len > self.len_max {
            return Err(TeeError::TooLong);
        }
        if self.is_hashed {
            self.hasher.update(fresh);
        }
        match &mut self.file {
            Some(file) => file.write_all(fresh).map_err(TeeError::File),
            None => Ok(()),
        }
    }
}

impl Read for Tee<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let input = self.fill_buf()?;
        let len = input.len().min(out.len());
        if let (Some(to), Some(from)) = (out.get_mut(..len), input.get(..len)) {
            to.copy_from_slice(from);
        }
        self.consume(len);
        Ok(len)
    }
}

impl BufRead for Tee<'_> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.at == self.end
            && !self.ended
            && let Err(failure) = self.fill()
        {
            self.ended = true;
            (self.at, self.end) = (0, 0);
            self.failure = Some(failure);
            return Err(io::Error::other("the upload has failed"));
        }
        Ok(self.buffer.get(self.at..self.end).unwrap_or_default())
    }

    fn consume(&mut self, len: usize) {
        self.at = (self.at + len).min(self.end);
    }
}
