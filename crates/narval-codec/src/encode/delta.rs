//! Makes deltas of NARs: the content coding `dcz` (RFC 9842, section 5).

use std::io::{self, ErrorKind};

use narval_nix::NarHash;
use zstd_safe::{CCtx, CParameter, DCtx, get_error_name};

use crate::delta::{DELTA_HEADER_LEN, delta_fits, delta_header, window_max};

/// The version of the bytes that a base and a NAR give, for one version of the zstd library.
pub const DELTA_FORMAT: u32 = 2;
/// The level of zstd. With the tables below, deltas are as small as at level 9 with its own, in a quarter of the processor time
/// (`docs/deltas.md`).
const LEVEL: i32 = 3;
/// zstd's highest level without extra memory.
const LEVEL_MAX: i32 = 19;
/// The entries of the tables of matches, as a binary logarithm. Level 3 has 2^17 and 2^16: too few for a base of megabytes.
const TABLE_LOG: u32 = 20;
/// The shortest match in the larger table, in bytes. What is similar in two versions of a program is longer than in other data.
const MATCH_BYTES_MIN: u32 = 6;
/// From this size on, matches are looked for with zstd's long distance matcher. Its table covers the whole base;
/// those of the fast levels only its end.
const LONG_DISTANCE_MIN: usize = 256 * 1024;
/// The smallest window that zstd has, as a binary logarithm.
const WINDOW_LOG_MIN: u32 = 10;

/// Makes the delta from `base` (whose hash is `base_hash`) to `nar`. `None` if it would have more than `len_max` bytes, or
/// if the window that RFC 9842 allows is too small.
///
/// Takes about 0.1 s for 45 MB, and besides its arguments and its result 64 MB of memory at most.
///
/// # Errors
/// If zstd has no memory.
pub fn make_delta((base, base_hash): (&[u8], &NarHash), nar: &[u8], len_max: usize) -> io::Result<Option<Vec<u8>>> {
    if !delta_fits(base.len() as u64, nar.len() as u64) {
        return Ok(None);
    }
    let fast = [
        CParameter::CompressionLevel(LEVEL),
        CParameter::HashLog(TABLE_LOG),
        CParameter::ChainLog(TABLE_LOG),
        CParameter::MinMatch(MATCH_BYTES_MIN),
    ];
    compress((base, base_hash), nar, len_max, &fast)
}

/// The same from any file to any other, as small as zstd can make it without extra memory: for what is made in advance.
///
/// # Errors
/// If zstd has no memory.
pub fn make_smallest_delta(
    (base, base_hash): (&[u8], &NarHash),
    content: &[u8],
    len_max: usize,
) -> io::Result<Option<Vec<u8>>> {
    if content.len() as u64 > window_max(base.len() as u64) {
        return Ok(None);
    }
    compress((base, base_hash), content, len_max, &[CParameter::CompressionLevel(LEVEL_MAX)])
}

fn compress(
    (base, base_hash): (&[u8], &NarHash),
    content: &[u8],
    len_max: usize,
    effort: &[CParameter],
) -> io::Result<Option<Vec<u8>>> {
    let Some(frame_max) = len_max.checked_sub(DELTA_HEADER_LEN).filter(|most| *most > 0) else { return Ok(None) };
    let mut context = CCtx::try_create().ok_or(ErrorKind::OutOfMemory)?;
    // The base is out of reach behind the first window. As the size is known, the frame's window is exactly that.
    let window_log = (content.len() as u64).next_power_of_two().ilog2().max(WINDOW_LOG_MIN);
    let common = [
        CParameter::WindowLog(window_log),
        CParameter::EnableLongDistanceMatching(content.len() >= LONG_DISTANCE_MIN),
        CParameter::ContentSizeFlag(true),
        CParameter::DictIdFlag(false),
    ];
    for parameter in effort.iter().chain(&common) {
        context.set_parameter(*parameter).map_err(failed)?;
    }
    context.ref_prefix(base).map_err(failed)?;
    let mut frame = Vec::with_capacity(frame_max);
    match context.compress2(&mut frame, content) {
        Ok(_) => Ok(Some([&delta_header(base_hash)[..], &frame].concat())),
        // Whatever the reason was, there is no delta of this size. The contents are sent without one.
        Err(code) if get_error_name(code).contains("too small") => Ok(None),
        Err(code) => Err(failed(code)),
    }
}

/// Whether undoing a delta gives this NAR. Takes no memory for the base, but as much as the NAR's size.
///
/// # Errors
/// If zstd has no memory.
pub fn is_delta_of(delta: &[u8], base: &[u8], nar: &[u8]) -> io::Result<bool> {
    let mut context = DCtx::try_create().ok_or(ErrorKind::OutOfMemory)?;
    context.ref_prefix(base).map_err(failed)?;
    let mut undone = Vec::with_capacity(nar.len());
    let frame = delta.get(DELTA_HEADER_LEN..).unwrap_or_default();
    Ok(context.decompress(&mut undone, frame).is_ok() && undone == nar)
}

fn failed(code: usize) -> io::Error {
    io::Error::other(format!("zstd: {}", get_error_name(code)))
}
