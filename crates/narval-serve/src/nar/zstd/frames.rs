//! zstd in frames: a NAR cut into pieces, each compressed on its own and saying its size, so that a client can decompress
//! a large NAR on several cores. The same NAR and level give the same bytes, whoever makes them.
//!
//! At the fast levels a frame is read as a whole and compressed in one go: zstd then looks for repetitions in one run of memory,
//! and not in a buffer that it goes round in, which takes a quarter less time; and several frames are compressed at the
//! same time where processors are idle. At the others a frame takes seconds, and is compressed as it comes.

use std::io::{self, Read};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

use narval_nix::{NarHash, Sha256Hasher};
use zstd::stream::raw::{Encoder, InBuffer, Operation, OutBuffer};
use zstd::zstd_safe::{CCtx, CParameter, ErrorCode, compress_bound, get_error_name};

/// Stands for how a NAR becomes frames: another number where the same level of the same library makes other bytes.
pub(super) const FRAMES_FORM: u32 = 1;
/// Bytes of the NAR in one frame that is compressed in one go; the last has what is left. With twice as
/// much files get smaller by 0.2 %.
const FRAME_BYTES: usize = 4 * 1024 * 1024;
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
/// Frames of one NAR that are compressed at the same time at most.
pub(crate) const FRAMES_AT_ONCE_MAX: usize = 4;
/// Bytes that are read and hashed at a time: they are still in the processor's cache when they are hashed.
const READ_BYTES: usize = 256 * 1024;
/// Output is taken in pieces of this size: `ZSTD_CStreamOutSize()` rounded up.
const OUT_BYTES: usize = 256 * 1024;

/// Compresses a NAR of a known size and hash, piece by piece.
pub(crate) struct FrameEncoder {
    level: i32,
    mode: Mode,
    /// Bytes of the NAR that are still to come.
    left: u64,
    hasher: Sha256Hasher,
    expected: NarHash,
}

enum Mode {
    /// Frame by frame, each in one go; so many at the same time at most.
    Gathered(usize),
    Streamed(Box<Streamed>),
}

struct Streamed {
    encoder: Encoder<'static>,
    /// Bytes still to come in this frame.
    frame_left: u64,
    input: Box<[u8]>,
    made: Box<[u8]>,
}

/// Why it does not go on.
#[derive(Debug)]
pub(crate) enum Stop {
    /// The NAR can't be read or compressed.
    Nar(io::Error),
    /// It is not the one with that hash.
    Corrupt,
    /// What was made can't be put where it belongs.
    Sink(io::Error),
}

/// Takes what was made.
pub(crate) type Sink<'a> = &'a mut dyn FnMut(&[u8]) -> io::Result<()>;

impl FrameEncoder {
    /// An encoder for the NAR of this size and hash. Up to `at_once` of its frames are compressed at the same time.
    pub(crate) fn new(level: i32, size: u64, expected: NarHash, at_once: usize) -> io::Result<Self> {
        let mode = if level <= FAST_LEVEL_MAX {
            Mode::Gathered(at_once.clamp(1, FRAMES_AT_ONCE_MAX))
        } else {
            let mut encoder = Encoder::new(level)?;
            encoder.set_parameter(CParameter::ContentSizeFlag(true))?;
            let (input, made) = (vec![0; READ_BYTES].into(), vec![0; OUT_BYTES].into());
            Mode::Streamed(Streamed { encoder, frame_left: 0, input, made }.into())
        };
        Ok(Self { level, mode, left: size, hasher: Sha256Hasher::new(), expected })
    }

    /// Reads more of the NAR, and puts what came of it into the sink, if there is something. The last piece is not put there
    /// unless the NAR is the right one.
    ///
    /// # Errors
    /// See [`Stop`].
    pub(crate) fn advance(&mut self, nar: &mut impl Read, sink: Sink<'_>) -> Result<(), Stop> {
        match &mut self.mode {
            Mode::Gathered(at_once) => {
                let frames = usize::try_from(self.left.div_ceil(FRAME_BYTES as u64)).unwrap_or(usize::MAX);
                let desks = Desk::take(self.level, frames.min(*at_once)).map_err(Stop::Nar)?;
                self.gathered(desks, nar, sink)
            }
            Mode::Streamed(streamed) => {
                let left = &mut self.left;
                if streamed.frame_left == 0 {
                    streamed.begin_frame(*left).map_err(Stop::Nar)?;
                }
                let wanted = usize::try_from(streamed.frame_left).unwrap_or(usize::MAX).min(READ_BYTES);
                let piece = streamed.input.get_mut(..wanted).unwrap_or_default();
                read_and_hash(nar, piece, &mut self.hasher)?;
                *left -= piece.len() as u64;
                if *left == 0 && self.hasher.clone().finish() != self.expected {
                    return Err(Stop::Corrupt);
                }
                streamed.compress(wanted, sink)
            }
        }
    }

    /// Whether all of it was made.
    pub(crate) fn is_complete(&self) -> bool {
        self.left == 0
    }

    /// One frame at each desk; all but the last by threads of their own.
    fn gathered(&mut self, mut desks: Vec<Desk>, nar: &mut impl Read, sink: Sink<'_>) -> Result<(), Stop> {
        let Some((last, others)) = desks.split_last_mut() else { return Ok(()) };
        std::thread::scope(|scope| {
            for desk in others {
                self.read_frame(desk, nar)?;
                // Where no thread can be started, it is done below.
                let _ = std::thread::Builder::new()
                    .name("nar-frame".to_owned())
                    .spawn_scoped(scope, || desk.compress().is_ok());
            }
            self.read_frame(last, nar)?;
            last.compress().map_err(Stop::Nar)
        })?;
        if self.left == 0 && self.hasher.clone().finish() != self.expected {
            return Err(Stop::Corrupt);
        }
        for desk in &mut desks {
            if desk.0.made.is_empty() {
                desk.compress().map_err(Stop::Nar)?;
            }
            sink(&desk.0.made).map_err(Stop::Sink)?;
        }
        Ok(())
    }

    fn read_frame(&mut self, desk: &mut Desk, nar: &mut impl Read) -> Result<(), Stop> {
        let length = usize::try_from(self.left).unwrap_or(usize::MAX).min(FRAME_BYTES);
        let frame = desk.begin(length);
        for piece in frame.chunks_mut(READ_BYTES) {
            read_and_hash(nar, piece, &mut self.hasher)?;
        }
        self.left -= length as u64;
        Ok(())
    }
}

/// Fills `piece`, and hashes it.
fn read_and_hash(nar: &mut impl Read, piece: &mut [u8], hasher: &mut Sha256Hasher) -> Result<(), Stop> {
    nar.read_exact(piece).map_err(Stop::Nar)?;
    hasher.update(piece);
    Ok(())
}

impl Streamed {
    fn begin_frame(&mut self, left: u64) -> io::Result<()> {
        self.encoder.reinit()?;
        self.frame_left = left.min(STREAMED_FRAME_BYTES);
        self.encoder.set_pledged_src_size(Some(self.frame_left))
    }

    /// Compresses the first `length` bytes of the input.
    fn compress(&mut self, length: usize, sink: Sink<'_>) -> Result<(), Stop> {
        let mut input = InBuffer::around(self.input.get(..length).unwrap_or_default());
        while input.pos < length {
            let mut output = OutBuffer::around(&mut *self.made);
            self.encoder.run(&mut input, &mut output).map_err(Stop::Nar)?;
            sink(output.as_slice()).map_err(Stop::Sink)?;
        }
        self.frame_left -= length as u64;
        while self.frame_left == 0 {
            let mut output = OutBuffer::around(&mut *self.made);
            let left = self.encoder.finish(&mut output, false).map_err(Stop::Nar)?;
            sink(output.as_slice()).map_err(Stop::Sink)?;
            if left == 0 {
                break;
            }
        }
        Ok(())
    }
}

/// A place to compress one frame at. There is one for each processor, up to [`DESKS_MAX`]: more would only take memory.
/// Nobody who waits for a client has one.
struct Desk(Memory);

#[derive(Default)]
struct Memory {
    /// Room for a frame, as large as any has been.
    room: Vec<u8>,
    /// The frame's length.
    length: usize,
    /// What became of it.
    made: Vec<u8>,
    /// What zstd needs, for frames of this level.
    context: Option<(i32, CCtx<'static>)>,
}

struct Desks {
    in_use: usize,
    /// Numbers given to those who want desks, in the order they come.
    numbers: u64,
    /// Whose turn it is.
    turn: u64,
    /// Memory to be used again.
    free: Vec<Memory>,
}

static DESKS: Mutex<Desks> = Mutex::new(Desks { in_use: 0, numbers: 0, turn: 0, free: Vec::new() });
static DESK_IS_FREE: Condvar = Condvar::new();

fn desks() -> MutexGuard<'static, Desks> {
    DESKS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn processors() -> usize {
    // Finding out reads files.
    static PROCESSORS: OnceLock<usize> = OnceLock::new();
    *PROCESSORS.get_or_init(|| std::thread::available_parallelism().map_or(2, usize::from))
}

impl Desk {
    /// Takes one, and up to `wanted` where nobody else wants them; waits while all are in use. First come, first served: a
    /// large NAR, which comes for every frame, must not pass by small ones. Nobody who has one waits for another.
    fn take(level: i32, wanted: usize) -> io::Result<Vec<Self>> {
        let in_use_max = processors().clamp(2, DESKS_MAX);
        let mut desks = desks();
        let number = desks.numbers;
        desks.numbers += 1;
        while desks.in_use >= in_use_max || desks.turn != number {
            desks = DESK_IS_FREE.wait(desks).unwrap_or_else(PoisonError::into_inner);
        }
        desks.turn += 1;
        let others_wait = desks.turn != desks.numbers;
        let idle = processors().min(in_use_max).saturating_sub(desks.in_use);
        let count = if others_wait { 1 } else { wanted.min(idle).max(1) };
        desks.in_use += count;
        if others_wait && desks.in_use < in_use_max {
            DESK_IS_FREE.notify_all();
        }
        let mut taken: Vec<_> = (0..count).map(|_| Self(desks.free.pop().unwrap_or_default())).collect();
        drop(desks);
        for desk in &mut taken {
            if desk.0.context.as_ref().is_none_or(|(of, _)| *of != level) {
                desk.0.context = Some((level, context(level)?));
            }
        }
        Ok(taken)
    }

    /// Room for a frame of `length` bytes.
    fn begin(&mut self, length: usize) -> &mut [u8] {
        let Memory { room, length: of, made, .. } = &mut self.0;
        made.clear();
        *of = length;
        if room.len() < length {
            // Not `resize`: what is in there need not be copied.
            *room = vec![0; length];
        }
        room.get_mut(..length).unwrap_or_default()
    }

    /// Compresses the frame.
    fn compress(&mut self) -> io::Result<()> {
        let Memory { room, length, made, context } = &mut self.0;
        let Some((_, context)) = context else { return Ok(()) };
        made.clear();
        made.reserve(compress_bound(*length));
        context.compress2(made, room.get(..*length).unwrap_or_default()).map_err(zstd_error)?;
        Ok(())
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        let memory = std::mem::take(&mut self.0);
        let mut desks = desks();
        desks.in_use -= 1;
        if desks.free.len() < FREE_DESKS_MAX {
            desks.free.push(memory);
        }
        drop(desks);
        // Whose turn it is, is for them to find out.
        DESK_IS_FREE.notify_all();
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
    use std::io::Write;

    use narval_nix::Sha256;

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

    /// Gives out so many bytes at a time.
    struct Pieces<'a>(&'a [u8], usize);

    impl Read for Pieces<'_> {
        fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
            let most = out.len().min(self.1);
            self.0.read(&mut out[..most])
        }
    }

    fn encoder(level: i32, nar: &[u8], at_once: usize) -> FrameEncoder {
        FrameEncoder::new(level, nar.len() as u64, Sha256::of(nar), at_once).unwrap()
    }

    fn encode(level: i32, nar: &[u8], piece: usize, at_once: usize) -> Vec<u8> {
        let (mut encoder, mut nar, mut out) = (encoder(level, nar, at_once), Pieces(nar, piece), Vec::new());
        while !encoder.is_complete() {
            encoder.advance(&mut nar, &mut |made| out.write_all(made)).unwrap();
        }
        out
    }

    #[test]
    fn frames_say_their_sizes_and_hold_the_nar() {
        let lengths = |frame: u64| {
            [1, 112, frame - 1, frame, frame + 1, 2 * frame + 12345]
                .map(|length| (frame, usize::try_from(length).unwrap()))
        };
        let gathered = lengths(FRAME_BYTES as u64).map(|length| (1, length));
        let streamed = lengths(STREAMED_FRAME_BYTES).map(|length| (4, length));
        for (level, (frame, length)) in gathered.into_iter().chain(streamed) {
            let nar = text(length);
            let out = encode(level, &nar, 200_000, 2);
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
    fn the_pieces_and_who_makes_them_do_not_matter() {
        let nar = text(13_000_000);
        for level in [1, 3, 4] {
            let expected = encode(level, &nar, 1_000, 1);
            assert!(encode(level, &nar, 12_999_999, 1) == expected, "{level}");
            assert!(encode(level, &nar, 100_000, 4) == expected, "{level}");
        }
    }

    #[test]
    fn more_at_once_than_there_are_desks_take_turns() {
        let nar = text(17_000_000);
        let expected = encode(1, &nar, 100_000, 1);
        std::thread::scope(|scope| {
            for number in 0..12 {
                let (nar, expected) = (&nar, &expected);
                scope.spawn(move || assert!(encode(1, nar, 100_000, 1 + number % 4) == *expected));
            }
        });
    }

    #[test]
    fn who_waits_for_a_client_has_no_desk() {
        let nar = text(9_000_000);
        let mut waiting: Vec<_> = (0..2 * DESKS_MAX).map(|_| encoder(1, &nar, 2)).collect();
        for encoder in &mut waiting {
            encoder.advance(&mut &nar[..], &mut |_| Ok(())).unwrap();
            assert!(!encoder.is_complete());
        }
        assert!(!encode(1, &nar, 100_000, 2).is_empty());
    }

    #[test]
    fn what_is_wrong_does_not_come_to_its_end() {
        let nar = text(9_000_000);
        for level in [1, 4] {
            let mut changed = nar.clone();
            changed[8_999_999] ^= 1;
            let (mut encoder, mut changed, mut out) = (encoder(level, &nar, 4), &changed[..], Vec::new());
            let stop = loop {
                let step = encoder.advance(&mut changed, &mut |made| out.write_all(made));
                if let Err(stop) = step {
                    break stop;
                }
            };
            assert!(matches!(stop, Stop::Corrupt));
            assert!(zstd::decode_all(&out[..]).map_or(true, |decoded| decoded.len() < nar.len()));
        }
    }

    #[test]
    fn a_short_nar_and_a_full_disk() {
        let nar = text(9_000_000);
        let mut short = encoder(1, &nar, 4);
        let mut rest = &nar[..8_000_000];
        let stop = (0..4).find_map(|_| short.advance(&mut rest, &mut |_| Ok(())).err());
        assert!(matches!(stop, Some(Stop::Nar(error)) if error.kind() == io::ErrorKind::UnexpectedEof));
        let full = |_: &[u8]| Err(io::ErrorKind::StorageFull.into());
        assert!(matches!(encoder(1, &nar, 4).advance(&mut &nar[..], &mut { full }), Err(Stop::Sink(_))));
        // Their desks are free again.
        assert!(!encode(1, &nar, 100_000, 2).is_empty());
    }
}
