//! The work that cannot be left out, in one thread and with the server's own decoders: the floor for a verified push and for
//! a pushing client. Only the processor time of this thread counts.

use std::fs;
use std::io::{self, Read, Write};
use std::path::Path;
use std::time::Duration;

use narval_codec::decode::Decoder;
use narval_nix::Compression;
use narval_store::NarReader;
use rustix::time::{ClockId, clock_gettime};
use sha2::{Digest, Sha256};

use super::trace::Trace;
use crate::{Context, Result, failure};

/// Bytes that are decoded and hashed at a time, as in the server.
pub const PIECE_LEN: usize = 64 * 1024;

/// The level of `zstd -1`.
const ZSTD_LEVEL: i32 = 1;

/// Processor time of this thread so far.
fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    // both are never negative for this clock
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// For each file of the trace, from memory: its SHA-256, its decoding, and the SHA-256 of the NAR (without compression, that is the file's).
///
/// # Errors
/// If a file cannot be read or decoded.
pub fn verification(trace: &Trace) -> Result<Duration> {
    let mut total = Duration::ZERO;
    let mut buffer = vec![0; PIECE_LEN];
    for nar in &trace.nars {
        let doing = || nar.file.display().to_string();
        let file = fs::read(&nar.file).context(doing)?;
        let compression = nar.compression.parse::<Compression>().context(doing)?;
        let began = thread_time();
        // in pieces of the decoder's input size, so that the decoder finds them in the processor's cache, as in a server
        let source = Hashed { file: &file, hash: Sha256::new() };
        let source = io::BufReader::with_capacity(narval_codec::decode::INPUT_LEN, source);
        let mut decoder = Decoder::new(&compression, source, 1).context(doing)?;
        let (mut hash, mut length) = ((compression != Compression::None).then(Sha256::new), 0);
        loop {
            let count = decoder.read(&mut buffer).context(doing)?;
            if count == 0 {
                break;
            }
            if let Some(hash) = &mut hash {
                hash.update(buffer.get(..count).unwrap_or_default());
            }
            length += count as u64;
        }
        let hashes = (decoder.source_mut().get_mut().hash.clone().finalize(), hash.map(Digest::finalize));
        std::hint::black_box(hashes);
        total += thread_time() - began;
        if length != nar.nar_size {
            return Err(failure!("{}: {length} bytes in place of {}", doing(), nar.nar_size));
        }
    }
    Ok(total)
}

/// A file in memory that is hashed as it is read.
struct Hashed<'a> {
    file: &'a [u8],
    hash: Sha256,
}

impl Read for Hashed<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read(out)?;
        self.hash.update(out.get(..count).unwrap_or_default());
        Ok(count)
    }
}

/// Makes the NARs of these store paths and compresses them like `zstd -1`.
///
/// # Errors
/// If a path cannot be read.
pub fn compression(paths: &[String]) -> Result<Duration> {
    let began = thread_time();
    for path in paths {
        let mut nar = NarReader::open(Path::new(path)).context(|| path.clone())?;
        let mut encoder = zstd::Encoder::new(Counted(0), ZSTD_LEVEL).context(|| path.clone())?;
        io::copy(&mut nar, &mut encoder).context(|| path.clone())?;
        std::hint::black_box(encoder.finish().context(|| path.clone())?.0);
    }
    Ok(thread_time() - began)
}

/// Receives compressed bytes.
struct Counted(u64);

impl Write for Counted {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
