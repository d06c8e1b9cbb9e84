//! A stream that one thread makes and another one reads, a few pieces ahead.

use std::io::{self, BufRead, Read};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use narval_codec::decode::OUTPUT_LEN;
use narval_names::NamesError;

/// How many pieces of [`OUTPUT_LEN`] there are: 2 MiB.
const PIECES_MAX: usize = 8;

/// A buffer, and how much of it is filled.
type Piece = (Vec<u8>, usize);

/// The end that is written.
pub(super) struct Feeder {
    filled: SyncSender<Piece>,
    empty: Receiver<Vec<u8>>,
}

/// The end that is read. It ends where the stream ends, or fails: the feeder knows which.
pub(super) struct Pieces {
    filled: Receiver<Piece>,
    give_back: SyncSender<Vec<u8>>,
    piece: Piece,
    taken: usize,
}

/// Both ends.
pub(super) fn pieces() -> (Feeder, Pieces) {
    let (to_read, filled) = sync_channel(PIECES_MAX);
    let (give_back, empty) = sync_channel(PIECES_MAX);
    for _ in 0..PIECES_MAX {
        // The channel has room for all of them, and the other end is here.
        let _ = give_back.send(Vec::new());
    }
    (Feeder { filled: to_read, empty }, Pieces { filled, give_back, piece: (Vec::new(), 0), taken: 0 })
}

impl Feeder {
    /// Passes on a stream until it ends or nobody reads it any more.
    ///
    /// # Errors
    /// If the stream fails.
    pub(super) fn feed(self, mut source: impl BufRead) -> Result<(), NamesError> {
        // The reader has failed if no buffer comes back.
        while let Ok(mut buffer) = self.empty.recv() {
            buffer.resize(OUTPUT_LEN, 0);
            let mut len = 0;
            while let Some(room) = buffer.get_mut(len..).filter(|room| !room.is_empty()) {
                match source.read(room)? {
                    0 => break,
                    read => len += read,
                }
            }
            if len == 0 || self.filled.send((buffer, len)).is_err() {
                break;
            }
        }
        Ok(())
    }
}

impl Read for Pieces {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.taken == self.piece.1 {
            let Ok(next) = self.filled.recv() else { return Ok(0) };
            let (old, _) = std::mem::replace(&mut self.piece, next);
            self.taken = 0;
            // The channel has room for all buffers. If the feeder is gone, its last pieces are still read.
            let _ = self.give_back.try_send(old);
        }
        let mut rest = self.piece.0.get(self.taken..self.piece.1).unwrap_or_default();
        let len = rest.read(out)?;
        self.taken += len;
        Ok(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_comes_whole_through_few_buffers() {
        let text: Vec<u8> = (0..3 * PIECES_MAX * OUTPUT_LEN + 5).map(|at| (at % 251) as u8).collect();
        let (feeder, mut pieces) = pieces();
        let mut read = Vec::new();
        std::thread::scope(|scope| {
            scope.spawn(|| feeder.feed(text.as_slice()).unwrap());
            pieces.read_to_end(&mut read).unwrap();
        });
        assert!(read == text);
    }

    #[test]
    fn the_feeder_ends_with_its_reader_and_is_never_far_ahead() {
        struct Endless(usize);
        impl Read for Endless {
            fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
                self.0 += out.len();
                assert!(self.0 <= (PIECES_MAX + 3) * OUTPUT_LEN, "{}", self.0);
                Ok(out.len())
            }
        }
        let (feeder, mut pieces) = pieces();
        let feeding = std::thread::spawn(|| feeder.feed(io::BufReader::with_capacity(1, Endless(0))));
        pieces.read_exact(&mut [0; 10]).unwrap();
        drop(pieces);
        feeding.join().unwrap().unwrap();
    }

    #[test]
    fn a_stream_that_fails_ends_early_and_the_feeder_says_why() {
        struct Fails;
        impl Read for Fails {
            fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
                Err(io::Error::other("torn"))
            }
        }
        let (feeder, mut pieces) = pieces();
        let source = io::BufReader::new((&b"begin"[..]).chain(Fails));
        let feeding = std::thread::spawn(|| feeder.feed(source).map_err(|error| error.to_string()));
        assert_eq!(pieces.read_to_end(&mut Vec::new()).unwrap(), 0);
        assert!(feeding.join().unwrap().unwrap_err().contains("torn"));
    }
}
