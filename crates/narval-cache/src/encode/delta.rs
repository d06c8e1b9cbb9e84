//! Makes deltas of NARs: the content coding `dcz` (RFC 9842, section 5).

use std::io::{self, ErrorKind};

use narval_nix::{NarHash, Sha256Hasher};
use zstd_safe::{CCtx, CParameter, DCtx, DParameter, InBuffer, OutBuffer, get_error_name};

use crate::delta::{DELTA_HEADER_LEN, delta_fits, header, window_log_max};

/// The version of the bytes that a base, a NAR and a level give, for one version of the zstd library.
pub const DELTA_FORMAT: u32 = 1;
/// From this size of a NAR on, matches are looked for with zstd's long distance matcher. Its table covers the whole base;
/// those of the fast levels only its end.
const LONG_DISTANCE_MIN: usize = 256 * 1024;
/// The smallest window that zstd has, as a binary logarithm.
const WINDOW_LOG_MIN: u32 = 10;
/// Bytes verified at once.
const PIECE_BYTES: usize = 256 * 1024;

/// Makes the delta from `base` (whose hash is `base_hash`) to `nar`. `None` if it would have more than `len_max` bytes, or
/// if the window that RFC 9842 allows is too small.
///
/// Takes about 1 s for 45 MB at level 9, and besides its arguments and its result 64 MB of memory at most.
///
/// # Errors
/// If zstd has no memory, or does not know the level.
pub fn make_delta(
    (base, base_hash): (&[u8], &NarHash),
    nar: &[u8],
    level: i32,
    len_max: usize,
) -> io::Result<Option<Vec<u8>>> {
    if !delta_fits(base.len() as u64, nar.len() as u64) || len_max <= DELTA_HEADER_LEN {
        return Ok(None);
    }
    let mut context = CCtx::try_create().ok_or(ErrorKind::OutOfMemory)?;
    // As the size is known, the frame's window is exactly the NAR's size.
    let window_log = (nar.len() as u64).next_power_of_two().ilog2().max(WINDOW_LOG_MIN);
    for parameter in [
        CParameter::CompressionLevel(level),
        CParameter::WindowLog(window_log),
        CParameter::EnableLongDistanceMatching(nar.len() >= LONG_DISTANCE_MIN),
        CParameter::ContentSizeFlag(true),
        CParameter::DictIdFlag(false),
    ] {
        context.set_parameter(parameter).map_err(failed)?;
    }
    context.ref_prefix(base).map_err(failed)?;
    let mut frame = Vec::with_capacity(len_max - DELTA_HEADER_LEN);
    match context.compress2(&mut frame, nar) {
        Ok(_) => Ok(Some([&header(base_hash)[..], &frame].concat())),
        // Whatever the reason was, there is no delta of this size. The NAR is sent without one.
        Err(code) if get_error_name(code).contains("too small") => Ok(None),
        Err(code) => Err(failed(code)),
    }
}

/// Whether undoing a delta gives the NAR of this size and hash. Takes no memory for the base, but as much as the NAR's size.
pub fn is_delta_of(delta: &[u8], base: &[u8], (nar_size, nar_hash): (u64, &NarHash)) -> io::Result<bool> {
    let mut context = DCtx::try_create().ok_or(ErrorKind::OutOfMemory)?;
    let window = DParameter::WindowLogMax(window_log_max(base.len() as u64));
    context.set_parameter(window).map_err(failed)?;
    context.ref_prefix(base).map_err(failed)?;
    let (mut hasher, mut made, mut piece) = (Sha256Hasher::new(), 0, vec![0; PIECE_BYTES]);
    let mut input = InBuffer::around(delta.get(DELTA_HEADER_LEN..).unwrap_or_default());
    loop {
        let mut output = OutBuffer::around(&mut *piece);
        let Ok(left) = context.decompress_stream(&mut output, &mut input) else { return Ok(false) };
        hasher.update(output.as_slice());
        let len = output.as_slice().len() as u64;
        made += len;
        if left == 0 {
            return Ok(made == nar_size && hasher.finish() == *nar_hash);
        }
        if made > nar_size || (len == 0 && input.pos() == input.src.len()) {
            return Ok(false);
        }
    }
}

fn failed(code: usize) -> io::Error {
    io::Error::other(format!("zstd: {}", get_error_name(code)))
}
