//! zstd in frames: a NAR is cut into pieces that are compressed separately and state their size, so that a client can
//! decompress a large NAR on several cores. The same NAR and level always give the same bytes.
//!
//! At the fast levels a frame is read whole and compressed in one call: zstd then searches contiguous memory instead of a
//! ring buffer, which takes a quarter less time. Several frames are compressed at once when cores are idle. At the other
//! levels a frame takes seconds, and is compressed as it is read.

use std::io::{self, Read};
use std::sync::OnceLock;

use narval_nix::{NarHash, Sha256Hasher};
use parking_lot::{Condvar, Mutex, MutexGuard};
use zstd::stream::raw::{Encoder, InBuffer, Operation, OutBuffer};
use zstd::zstd_safe::{CCtx, CParameter, ErrorCode, compress_bound, get_error_name};

/// The version of this framing. It changes whenever the same level of the same zstd library would produce other bytes.
pub const FRAMES_FORMAT: u32 = 1;
/// NAR bytes in a frame that is compressed in one call; the last frame has the rest. Doubling it would make files 0.2 %
/// smaller.
const FRAME_BYTES: usize = 4 * 1024 * 1024;
/// NAR bytes in a frame of the other levels, which find repetitions at greater distances.
const STREAMED_FRAME_BYTES: u64 = 16 * 1024 * 1024;
/// The highest level whose frames are compressed in one call.
const FAST_LEVEL_MAX: i32 = 3;
/// Level 1 for such a frame: window and table are larger than zstd's defaults (binary logarithms). Files are 3 % smaller for
/// hardly more time.
const LEVEL_1_WINDOW: u32 = 22;
const LEVEL_1_HASH_TABLE: u32 = 15;
const LEVEL_1_MATCH: u32 = 7;
/// The maximum number of workspaces in use at the same time. Each takes about 6 MB.
const WORKSPACES_MAX: usize = 8;
/// Workspaces whose memory is kept for the next frame.
const FREE_WORKSPACES_MAX: usize = 2;
/// The maximum number of frames of one NAR that are compressed at the same time.
pub const FRAMES_AT_ONCE_MAX: usize = 4;
/// Bytes read before they are hashed: few enough to still be in the processor's cache.
const READ_BYTES: usize = 256 * 1024;
/// The output buffer: `ZSTD_CStreamOutSize()` rounded up.
const OUT_BYTES: usize = 256 * 1024;

/// Compresses a NAR of known size and hash, step by step.
pub struct FrameEncoder {
    level: i32,
    mode: Mode,
    /// NAR bytes not yet read.
    left: u64,
    hasher: Sha256Hasher,
    expected: NarHash,
}

enum Mode {
    /// Each frame in one call, at most this many at once.
    Whole(usize),
    Streamed(Box<Streamed>),
}

struct Streamed {
    encoder: Encoder<'static>,
    /// NAR bytes missing in this frame.
    frame_left: u64,
    input: Box<[u8]>,
    made: Box<[u8]>,
}

/// Why a NAR could not be compressed.
#[derive(Debug)]
pub enum EncodeError {
    /// The NAR cannot be read or compressed.
    Nar(io::Error),
    /// The NAR does not have the expected hash.
    Corrupt,
    /// The sink failed.
    Sink(io::Error),
}

/// Receives the compressed bytes, in order.
pub type Sink<'a> = &'a mut dyn FnMut(&[u8]) -> io::Result<()>;

impl FrameEncoder {
    /// An encoder for the NAR of this size (in bytes) and hash. Up to `at_once` of its frames are compressed at once, on
    /// idle cores; at most [`FRAMES_AT_ONCE_MAX`].
    ///
    /// # Errors
    /// If zstd has no memory, or does not know the level.
    pub fn new(level: i32, size: u64, expected: NarHash, at_once: usize) -> io::Result<Self> {
        let mode = if level <= FAST_LEVEL_MAX {
            Mode::Whole(at_once.clamp(1, FRAMES_AT_ONCE_MAX))
        } else {
            let mut encoder = Encoder::new(level)?;
            encoder.set_parameter(CParameter::ContentSizeFlag(true))?;
            let (input, made) = (vec![0; READ_BYTES].into(), vec![0; OUT_BYTES].into());
            Mode::Streamed(Streamed { encoder, frame_left: 0, input, made }.into())
        };
        Ok(Self { level, mode, left: size, hasher: Sha256Hasher::new(), expected })
    }

    /// Reads more of the NAR and passes what was compressed to the sink, possibly nothing. The last bytes are passed on only
    /// if the NAR has the expected hash.
    ///
    /// # Errors
    /// See [`EncodeError`].
    pub fn advance(&mut self, nar: &mut impl Read, sink: Sink<'_>) -> Result<(), EncodeError> {
        match &mut self.mode {
            Mode::Whole(at_once) => {
                let frames = usize::try_from(self.left.div_ceil(FRAME_BYTES as u64)).unwrap_or(usize::MAX);
                let workspaces = Workspace::take(self.level, frames.min(*at_once)).map_err(EncodeError::Nar)?;
                self.whole_frames(workspaces, nar, sink)
            }
            Mode::Streamed(streamed) => {
                let left = &mut self.left;
                if streamed.frame_left == 0 {
                    streamed.begin_frame(*left).map_err(EncodeError::Nar)?;
                }
                let wanted = usize::try_from(streamed.frame_left).unwrap_or(usize::MAX).min(READ_BYTES);
                let piece = streamed.input.get_mut(..wanted).unwrap_or_default();
                read_and_hash(nar, piece, &mut self.hasher)?;
                *left -= piece.len() as u64;
                if *left == 0 && self.hasher.clone().finish() != self.expected {
                    return Err(EncodeError::Corrupt);
                }
                streamed.compress(wanted, sink)
            }
        }
    }

    /// Whether the whole NAR has been compressed.
    pub fn is_complete(&self) -> bool {
        self.left == 0
    }

    /// Compresses one frame in each workspace; all but the last on separate threads.
    fn whole_frames(
        &mut self,
        mut workspaces: Vec<Workspace>,
        nar: &mut impl Read,
        sink: Sink<'_>,
    ) -> Result<(), EncodeError> {
        let Some((last, others)) = workspaces.split_last_mut() else { return Ok(()) };
        std::thread::scope(|scope| {
            for workspace in others {
                self.read_frame(workspace, nar)?;
                // If no thread can be started, the frame is compressed below.
                let _ = std::thread::Builder::new()
                    .name("nar-frame".to_owned())
                    .spawn_scoped(scope, || workspace.compress().is_ok());
            }
            self.read_frame(last, nar)?;
            last.compress().map_err(EncodeError::Nar)
        })?;
        if self.left == 0 && self.hasher.clone().finish() != self.expected {
            return Err(EncodeError::Corrupt);
        }
        for workspace in &mut workspaces {
            if workspace.0.made.is_empty() {
                workspace.compress().map_err(EncodeError::Nar)?;
            }
            sink(&workspace.0.made).map_err(EncodeError::Sink)?;
        }
        Ok(())
    }

    fn read_frame(&mut self, workspace: &mut Workspace, nar: &mut impl Read) -> Result<(), EncodeError> {
        let length = usize::try_from(self.left).unwrap_or(usize::MAX).min(FRAME_BYTES);
        let frame = workspace.begin(length);
        for piece in frame.chunks_mut(READ_BYTES) {
            read_and_hash(nar, piece, &mut self.hasher)?;
        }
        self.left -= length as u64;
        Ok(())
    }
}

/// Fills `piece`, and hashes it.
fn read_and_hash(nar: &mut impl Read, piece: &mut [u8], hasher: &mut Sha256Hasher) -> Result<(), EncodeError> {
    nar.read_exact(piece).map_err(EncodeError::Nar)?;
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
    fn compress(&mut self, length: usize, sink: Sink<'_>) -> Result<(), EncodeError> {
        let mut input = InBuffer::around(self.input.get(..length).unwrap_or_default());
        while input.pos < length {
            let mut output = OutBuffer::around(&mut *self.made);
            self.encoder.run(&mut input, &mut output).map_err(EncodeError::Nar)?;
            sink(output.as_slice()).map_err(EncodeError::Sink)?;
        }
        self.frame_left -= length as u64;
        while self.frame_left == 0 {
            let mut output = OutBuffer::around(&mut *self.made);
            let left = self.encoder.finish(&mut output, false).map_err(EncodeError::Nar)?;
            sink(output.as_slice()).map_err(EncodeError::Sink)?;
            if left == 0 {
                break;
            }
        }
        Ok(())
    }
}

/// Memory to compress one frame in, and the permit to do so. There is one for each processor, up to [`WORKSPACES_MAX`]:
/// more would only take memory. None is held while waiting for a client.
struct Workspace(Memory);

#[derive(Default)]
struct Memory {
    /// The frame's contents; as long as the longest frame so far.
    room: Vec<u8>,
    /// The frame's length.
    length: usize,
    /// The compressed frame.
    made: Vec<u8>,
    /// The level, and a zstd context for it.
    context: Option<(i32, CCtx<'static>)>,
}

struct Workspaces {
    in_use: usize,
    /// The ticket that the next caller gets.
    numbers: u64,
    /// The ticket whose turn it is.
    turn: u64,
    /// Memory for reuse.
    free: Vec<Memory>,
}

static WORKSPACES: Mutex<Workspaces> = Mutex::new(Workspaces { in_use: 0, numbers: 0, turn: 0, free: Vec::new() });
static WORKSPACE_IS_FREE: Condvar = Condvar::new();

fn workspaces() -> MutexGuard<'static, Workspaces> {
    WORKSPACES.lock()
}

fn processors() -> usize {
    // Finding out reads files.
    static PROCESSORS: OnceLock<usize> = OnceLock::new();
    *PROCESSORS.get_or_init(|| std::thread::available_parallelism().map_or(2, usize::from))
}

impl Workspace {
    /// Takes one, or up to `wanted` if nobody else is waiting. Blocks while all are in use. First come, first served: a large
    /// NAR, which asks for every frame, must not overtake small ones. No holder waits for another one.
    fn take(level: i32, wanted: usize) -> io::Result<Vec<Self>> {
        let in_use_max = processors().clamp(2, WORKSPACES_MAX);
        let mut workspaces = workspaces();
        let number = workspaces.numbers;
        workspaces.numbers += 1;
        while workspaces.in_use >= in_use_max || workspaces.turn != number {
            WORKSPACE_IS_FREE.wait(&mut workspaces);
        }
        workspaces.turn += 1;
        let others_wait = workspaces.turn != workspaces.numbers;
        let idle = processors().min(in_use_max).saturating_sub(workspaces.in_use);
        let count = if others_wait { 1 } else { wanted.min(idle).max(1) };
        workspaces.in_use += count;
        if others_wait && workspaces.in_use < in_use_max {
            WORKSPACE_IS_FREE.notify_all();
        }
        let mut taken: Vec<_> = (0..count).map(|_| Self(workspaces.free.pop().unwrap_or_default())).collect();
        drop(workspaces);
        for workspace in &mut taken {
            if workspace.0.context.as_ref().is_none_or(|(of, _)| *of != level) {
                workspace.0.context = Some((level, context(level)?));
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
            // Not `resize`: the old contents need not be copied.
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

impl Drop for Workspace {
    fn drop(&mut self) {
        let memory = std::mem::take(&mut self.0);
        let mut workspaces = workspaces();
        workspaces.in_use -= 1;
        if workspaces.free.len() < FREE_WORKSPACES_MAX {
            workspaces.free.push(memory);
        }
        drop(workspaces);
        // Each waiter checks whether it is its turn.
        WORKSPACE_IS_FREE.notify_all();
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
    use zstd::zstd_safe::{find_frame_compressed_size, get_frame_content_size};

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

    /// Returns this many bytes at a time.
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
        let whole_frames = lengths(FRAME_BYTES as u64).map(|length| (1, length));
        let streamed = lengths(STREAMED_FRAME_BYTES).map(|length| (4, length));
        for (level, (frame, length)) in whole_frames.into_iter().chain(streamed) {
            let nar = text(length);
            let out = encode(level, &nar, 200_000, 2);
            assert!(zstd::decode_all(&out[..]).unwrap() == nar, "{length}");
            let mut rest = &out[..];
            let mut sizes = Vec::new();
            while !rest.is_empty() {
                sizes.push(get_frame_content_size(rest).unwrap().unwrap());
                rest = &rest[find_frame_compressed_size(rest).unwrap()..];
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
    fn more_at_once_than_there_are_workspaces_take_turns() {
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
    fn an_encoder_that_waits_for_its_client_holds_no_workspace() {
        let nar = text(9_000_000);
        let mut waiting: Vec<_> = (0..2 * WORKSPACES_MAX).map(|_| encoder(1, &nar, 2)).collect();
        for encoder in &mut waiting {
            encoder.advance(&mut &nar[..], &mut |_| Ok(())).unwrap();
            assert!(!encoder.is_complete());
        }
        assert!(!encode(1, &nar, 100_000, 2).is_empty());
    }

    #[test]
    fn a_nar_with_another_hash_is_never_completed() {
        let nar = text(9_000_000);
        for level in [1, 4] {
            let mut changed = nar.clone();
            changed[8_999_999] ^= 1;
            let (mut encoder, mut changed, mut out) = (encoder(level, &nar, 4), &changed[..], Vec::new());
            let error = loop {
                let step = encoder.advance(&mut changed, &mut |made| out.write_all(made));
                if let Err(error) = step {
                    break error;
                }
            };
            assert!(matches!(error, EncodeError::Corrupt));
            assert!(zstd::decode_all(&out[..]).map_or(true, |decoded| decoded.len() < nar.len()));
        }
    }

    #[test]
    fn a_short_nar_and_a_full_disk() {
        let nar = text(9_000_000);
        let mut short = encoder(1, &nar, 4);
        let mut rest = &nar[..8_000_000];
        let error = (0..4).find_map(|_| short.advance(&mut rest, &mut |_| Ok(())).err());
        assert!(matches!(error, Some(EncodeError::Nar(error)) if error.kind() == io::ErrorKind::UnexpectedEof));
        let full = |_: &[u8]| Err(io::ErrorKind::StorageFull.into());
        assert!(matches!(encoder(1, &nar, 4).advance(&mut &nar[..], &mut { full }), Err(EncodeError::Sink(_))));
        // Their workspaces are free again.
        assert!(!encode(1, &nar, 100_000, 2).is_empty());
    }
}
