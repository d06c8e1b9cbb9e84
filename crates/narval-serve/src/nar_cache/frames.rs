//! zstd in frames: a NAR cut into pieces, each compressed on its own and saying its size, so that a client can decompress
//! a large NAR on several cores. The same NAR and level give the same bytes, whoever makes them.
//!
//! At the fast levels a frame is gathered and compressed in one go: zstd then looks for repetitions in one run of memory,
//! and not in a buffer that it goes round in, which takes a quarter less time. At the others a frame takes seconds, and
//! is compressed as it comes.

use std::io;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use zstd::stream::raw::{Encoder, InBuffer, Operation, OutBuffer};
use zstd::zstd_safe::{CCtx, CParameter, ErrorCode, compress_bound, get_error_name};

/// Bytes of the NAR in one frame that is compressed in one go; the last has what is left. With twice as
/// much files get smaller by 0.2 %.
const FRAME_BYTES: u64 = 4 * 1024 * 1024;
/// Bytes of the NAR in other frames: there repetitions are found that are farther away.
const STREAMED_FRAME_BYTES: u64 = 16 * 1024 * 1024;
/// The last level whose frames are compressed in one go.
const FAST_LEVEL_MAX: i32 = 3;
/// Level 1 for such a frame: window and table are larger than zstd's own (in binary logarithms). Files get smaller by 3 %, in
/// hardly more time.
const LEVEL_1_WINDOW: u32 = 22;
const LEVEL_1_HASH_TABLE: u32 = 15;
const LEVEL_1_MATCH: u32 = 7;
/// Desks that are in use at the same time at most: each takes some 6 MB.
const DESKS_MAX: usize = 8;
/// Desks whose memory is kept for the next frame.
const FREE_DESKS_MAX: usize = 2;
/// Output is taken in pieces of this size: `ZSTD_CStreamOutSize()` rounded up.
const OUT_BYTES: usize = 256 * 1024;

/// Compresses a NAR of a known size, piece by piece.
pub(crate) struct FrameEncoder {
    level: i32,
    mode: Mode,
    /// Bytes of the NAR that are still to come.
    left: u64,
    /// Bytes still to come in this frame.
    frame_left: u64,
}

enum Mode {
    /// Frame by frame, each in one go. The desk is held until there is output, and by nobody who waits for a client: what
    /// came of the next frame together with the end of one waits without a desk.
    Gathered(Option<Desk>, Vec<u8>),
    Streamed(Encoder<'static>, Box<[u8]>),
}

impl FrameEncoder {
    /// An encoder for `size` bytes in all.
    pub(crate) fn new(level: i32, size: u64) -> io::Result<Self> {
        let mode = if level <= FAST_LEVEL_MAX {
            Mode::Gathered(None, Vec::new())
        } else {
            let mut encoder = Encoder::new(level)?;
            encoder.set_parameter(CParameter::ContentSizeFlag(true))?;
            Mode::Streamed(encoder, vec![0; OUT_BYTES].into())
        };
        let mut this = Self { level, mode, left: size, frame_left: 0 };
        this.begin_frame()?;
        Ok(this)
    }

    fn begin_frame(&mut self) -> io::Result<()> {
        match &mut self.mode {
            Mode::Gathered(..) => self.frame_left = self.left.min(FRAME_BYTES),
            Mode::Streamed(encoder, _) => {
                encoder.reinit()?;
                self.frame_left = self.left.min(STREAMED_FRAME_BYTES);
                encoder.set_pledged_src_size(Some(self.frame_left))?;
            }
        }
        Ok(())
    }

    /// Takes the next bytes of the NAR, and appends what can be sent of them. Whoever begins should go on until there
    /// is something: till then others may wait for the memory of a frame.
    ///
    /// # Errors
    /// zstd's own, or more bytes than were announced.
    pub(crate) fn push(&mut self, mut nar: &[u8], out: &mut Vec<u8>) -> io::Result<()> {
        if nar.len() as u64 > self.left {
            return Err(io::Error::other("more bytes than the NAR has"));
        }
        let mut has_ended_one = false;
        while !nar.is_empty() {
            if let Mode::Gathered(_, waiting) = &mut self.mode
                && has_ended_one
                && (nar.len() as u64) < self.frame_left
            {
                waiting.extend_from_slice(nar);
                self.left -= nar.len() as u64;
                self.frame_left -= nar.len() as u64;
                return Ok(());
            }
            let take = usize::try_from(self.frame_left).unwrap_or(usize::MAX).min(nar.len());
            let (now, rest) = nar.split_at(take);
            self.compress(now, out)?;
            nar = rest;
            self.left -= take as u64;
            self.frame_left -= take as u64;
            if self.frame_left == 0 {
                self.end_frame(out)?;
                has_ended_one = true;
                if self.left > 0 {
                    self.begin_frame()?;
                }
            }
        }
        Ok(())
    }

    /// Whether all bytes have come.
    pub(crate) fn is_complete(&self) -> bool {
        self.left == 0
    }

    fn compress(&mut self, piece: &[u8], out: &mut Vec<u8>) -> io::Result<()> {
        let (encoder, made) = match &mut self.mode {
            Mode::Gathered(desk, waiting) => {
                let desk = match desk {
                    Some(desk) => desk,
                    None => desk.insert(Desk::take(self.level)?),
                };
                desk.0.frame.append(waiting);
                desk.0.frame.extend_from_slice(piece);
                return Ok(());
            }
            Mode::Streamed(encoder, made) => (encoder, made),
        };
        let mut input = InBuffer::around(piece);
        while input.pos < piece.len() {
            let mut output = OutBuffer::around(&mut **made);
            encoder.run(&mut input, &mut output)?;
            out.extend_from_slice(output.as_slice());
        }
        Ok(())
    }

    fn end_frame(&mut self, out: &mut Vec<u8>) -> io::Result<()> {
        let (encoder, made) = match &mut self.mode {
            Mode::Gathered(desk, _) => return desk.take().map_or(Ok(()), |mut desk| desk.compress(out)),
            Mode::Streamed(encoder, made) => (encoder, made),
        };
        loop {
            let mut output = OutBuffer::around(&mut **made);
            let left = encoder.finish(&mut output, false)?;
            out.extend_from_slice(output.as_slice());
            if left == 0 {
                return Ok(());
            }
        }
    }
}

/// A place to compress one frame at. There is one for each processor, up to [`DESKS_MAX`]: more would only take memory.
struct Desk(Memory);

#[derive(Default)]
struct Memory {
    frame: Vec<u8>,
    made: Vec<u8>,
    /// What zstd needs, for frames of this level.
    context: Option<(i32, CCtx<'static>)>,
}

struct Desks {
    in_use: usize,
    /// Memory to be used again.
    free: Vec<Memory>,
}

static DESKS: Mutex<Desks> = Mutex::new(Desks { in_use: 0, free: Vec::new() });
static DESK_IS_FREE: Condvar = Condvar::new();

fn desks() -> MutexGuard<'static, Desks> {
    DESKS.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Desk {
    /// Takes one; waits while all are in use. Nobody who has one waits for another.
    fn take(level: i32) -> io::Result<Self> {
        let in_use_max = std::thread::available_parallelism().map_or(2, usize::from).clamp(2, DESKS_MAX);
        let mut desks = desks();
        while desks.in_use >= in_use_max {
            desks = DESK_IS_FREE.wait(desks).unwrap_or_else(PoisonError::into_inner);
        }
        desks.in_use += 1;
        let mut desk = Self(desks.free.pop().unwrap_or_default());
        drop(desks);
        if desk.0.context.as_ref().is_none_or(|(of, _)| *of != level) {
            desk.0.context = Some((level, context(level)?));
        }
        Ok(desk)
    }

    /// Appends the compressed frame.
    fn compress(&mut self, out: &mut Vec<u8>) -> io::Result<()> {
        let Memory { frame, made, context } = &mut self.0;
        let Some((_, context)) = context else { return Ok(()) };
        made.clear();
        made.reserve(compress_bound(frame.len()));
        context.compress2(made, frame).map_err(zstd_error)?;
        out.extend_from_slice(made);
        Ok(())
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        let mut memory = std::mem::take(&mut self.0);
        memory.frame.clear();
        let mut desks = desks();
        desks.in_use -= 1;
        if desks.free.len() < FREE_DESKS_MAX {
            desks.free.push(memory);
        }
        drop(desks);
        DESK_IS_FREE.notify_one();
    }
}

fn context(level: i32) -> io::Result<CCtx<'static>> {
    let mut context = CCtx::try_create().ok_or(io::ErrorKind::OutOfMemory)?;
    let mut set = |parameter| context.set_parameter(parameter).map_err(zstd_error);
    set(CParameter::CompressionLevel(level))?;
    if level == 1 {
        set(CParameter::WindowLog(LEVEL_1_WINDOW))?;
        set(CParameter::HashLog(LEVEL_1_HASH_TABLE))?;
        set(CParameter::MinMatch(LEVEL_1_MATCH))?;
    }
    Ok(context)
}

fn zstd_error(code: ErrorCode) -> io::Error {
    io::Error::other(get_error_name(code))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes that compress somewhat.
    fn text(length: usize) -> Vec<u8> {
        let mut state = 1_u32;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            b'a' + u8::try_from(state >> 28).unwrap()
        };
        let block: Vec<u8> = (0..70_000).map(|_| next()).collect();
        let mut text = block.repeat(length / block.len() + 1);
        text.truncate(length);
        text
    }

    fn encode(level: i32, nar: &[u8], piece: usize) -> Vec<u8> {
        let mut encoder = FrameEncoder::new(level, nar.len() as u64).unwrap();
        let mut out = Vec::new();
        nar.chunks(piece).for_each(|piece| encoder.push(piece, &mut out).unwrap());
        assert!(encoder.is_complete());
        out
    }

    #[test]
    fn frames_say_their_sizes_and_hold_the_nar() {
        let lengths = |frame: u64| {
            [1, 112, frame - 1, frame, frame + 1, 2 * frame + 12345]
                .map(|length| (frame, usize::try_from(length).unwrap()))
        };
        let gathered = lengths(FRAME_BYTES).map(|length| (1, length));
        let streamed = lengths(STREAMED_FRAME_BYTES).map(|length| (4, length));
        for (level, (frame, length)) in gathered.into_iter().chain(streamed) {
            let nar = text(length);
            let out = encode(level, &nar, 200_000);
            assert!(zstd::decode_all(&out[..]).unwrap() == nar, "{length}");
            let mut rest = &out[..];
            let mut sizes = Vec::new();
            while !rest.is_empty() {
                sizes.push(zstd::zstd_safe::get_frame_content_size(rest).unwrap().unwrap());
                rest = &rest[zstd::zstd_safe::find_frame_compressed_size(rest).unwrap()..];
            }
            assert_eq!(sizes.iter().sum::<u64>(), length as u64);
            assert!(sizes.iter().rev().skip(1).all(|size| *size == frame), "{sizes:?}");
        }
    }

    #[test]
    fn the_pieces_do_not_matter() {
        let nar = text(3_000_000);
        for level in [1, 3, 4] {
            assert!(encode(level, &nar, 1_000) == encode(level, &nar, 2_999_999), "{level}");
        }
    }

    #[test]
    fn more_at_once_than_there_are_desks_take_turns() {
        let nar = text(17_000_000);
        let expected = encode(1, &nar, 100_000);
        std::thread::scope(|scope| {
            for _ in 0..12 {
                scope.spawn(|| assert!(encode(1, &nar, 100_000) == expected));
            }
        });
    }

    #[test]
    fn who_waits_for_a_client_has_no_desk() {
        let nar = text(9_000_000);
        let mut waiting: Vec<_> = (0..2 * DESKS_MAX).map(|_| FrameEncoder::new(1, nar.len() as u64).unwrap()).collect();
        for encoder in &mut waiting {
            let mut out = Vec::new();
            for piece in nar.chunks(100_001) {
                encoder.push(piece, &mut out).unwrap();
                if !out.is_empty() {
                    break;
                }
            }
            assert!(encoder.left < nar.len() as u64 - FRAME_BYTES, "a piece of the next frame came, too");
        }
        assert!(!encode(1, &nar, 100_000).is_empty());
    }

    #[test]
    fn more_than_announced_is_refused() {
        let mut encoder = FrameEncoder::new(1, 3).unwrap();
        assert!(encoder.push(b"four", &mut Vec::new()).is_err());
        assert!(!encoder.is_complete());
    }
}
