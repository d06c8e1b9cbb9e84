//! Zstandard files of many frames on several threads. Frames are independent, and writers of such files (Nix 2.35,
//! `narval serve`) put the size of the contents into each header. So whole frames are passed to threads, and their
//! contents are returned in order.
//!
//! A frame's end is found by walking its block headers (RFC 8878, 3.1.1); only libzstd parses the blocks.

use std::collections::VecDeque;
use std::io::{self, BufRead};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use parking_lot::Mutex;
use zstd_safe::get_error_name;

use super::error::{DecodeError, corrupt, truncated};
use super::memory::PARALLEL_MEMORY_MAX;
use super::zstd_context::context;

/// The maximum size of the contents of a frame that is decoded as a whole. Larger ones are decoded as a stream, on one
/// thread.
const FRAME_CONTENTS_MAX: u64 = 32 * 1024 * 1024;
/// The maximum number of threads per file.
const THREADS_MAX: usize = 16;
/// A frame's magic number (RFC 8878, 3.1.1).
pub(super) const MAGIC: u32 = 0xFD2F_B528;
/// The first of the sixteen magic numbers of skippable frames (3.1.2).
pub(super) const SKIPPABLE_MAGIC: u32 = 0x184D_2A50;
/// Magic number and frame header descriptor.
pub(super) const PREFIX_LEN: usize = 5;
/// The longest frame header, with its prefix (3.1.1.1).
pub(super) const HEADER_LEN_MAX: usize = PREFIX_LEN + 13;
pub(super) const BLOCK_HEADER_LEN: usize = 3;
pub(super) const CHECKSUM_LEN: usize = 4;

/// The next part of a file.
#[derive(Debug)]
pub(super) enum Next {
    /// A whole frame, and the length of its contents.
    Frame(Vec<u8>, usize),
    /// The start of something that must be decoded as a stream.
    Start(Vec<u8>),
    /// The end of the file.
    End,
}

/// Takes one frame from the source, or as much as is needed to see that it cannot be taken as a whole.
pub(super) fn collect(source: &mut impl BufRead) -> io::Result<Next> {
    let mut frame = Vec::new();
    if take(source, &mut frame, PREFIX_LEN)? < PREFIX_LEN {
        return Ok(if frame.is_empty() { Next::End } else { Next::Start(frame) });
    }
    let magic = little_endian(&frame, 0, 4);
    let descriptor = frame.get(4).copied().unwrap_or_default();
    if magic & 0xFFFF_FFF0 == u64::from(SKIPPABLE_MAGIC) || magic != u64::from(MAGIC) {
        return Ok(Next::Start(frame));
    }
    let header = Header::of(descriptor);
    if take(source, &mut frame, header.len)? < header.len {
        return Ok(Next::Start(frame));
    }
    let Some(contents) = header.contents(&frame).filter(|len| *len <= FRAME_CONTENTS_MAX) else {
        return Ok(Next::Start(frame));
    };
    // No encoder writes frames that are much longer than their contents.
    let frame_max = contents + contents / 64 + 64 * 1024;
    loop {
        if take(source, &mut frame, BLOCK_HEADER_LEN)? < BLOCK_HEADER_LEN {
            return Ok(Next::Start(frame));
        }
        let block = little_endian(&frame, frame.len() - BLOCK_HEADER_LEN, BLOCK_HEADER_LEN);
        let (last, kind, size) = (block & 1 == 1, block >> 1 & 3, block >> 3);
        // An RLE block contains only the repeated byte.
        let len = usize::try_from(if kind == 1 { 1 } else { size }).unwrap_or(usize::MAX);
        if frame.len() as u64 + len as u64 > frame_max || take(source, &mut frame, len)? < len {
            return Ok(Next::Start(frame));
        }
        if last {
            break;
        }
    }
    if header.checksum && take(source, &mut frame, CHECKSUM_LEN)? < CHECKSUM_LEN {
        return Ok(Next::Start(frame));
    }
    Ok(Next::Frame(frame, usize::try_from(contents).unwrap_or(usize::MAX)))
}

/// Appends up to this many bytes of the source; returns the number.
pub(super) fn take(source: &mut impl BufRead, to: &mut Vec<u8>, len: usize) -> io::Result<usize> {
    let mut taken = 0;
    while taken < len {
        let available = source.fill_buf()?;
        let now = available.len().min(len - taken);
        if now == 0 {
            break;
        }
        to.extend_from_slice(available.get(..now).unwrap_or_default());
        source.consume(now);
        taken += now;
    }
    Ok(taken)
}

pub(super) fn little_endian(bytes: &[u8], at: usize, len: usize) -> u64 {
    let bytes = bytes.get(at..at + len).unwrap_or_default();
    bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// The rest of the header, according to the frame header descriptor (3.1.1.1).
pub(super) struct Header {
    /// After the descriptor: window, dictionary and contents size.
    pub(super) len: usize,
    contents_at: usize,
    contents_len: usize,
    pub(super) checksum: bool,
}

impl Header {
    pub(super) fn of(descriptor: u8) -> Self {
        let single_segment = descriptor >> 5 & 1 == 1;
        let window_len = usize::from(!single_segment);
        let dictionary_len = [0, 1, 2, 4].get(usize::from(descriptor & 3)).copied().unwrap_or_default();
        let contents_len = match descriptor >> 6 {
            0 => usize::from(single_segment),
            1 => 2,
            2 => 4,
            _ => 8,
        };
        Self {
            len: window_len + dictionary_len + contents_len,
            contents_at: PREFIX_LEN + window_len + dictionary_len,
            contents_len,
            checksum: descriptor >> 2 & 1 == 1,
        }
    }

    pub(super) fn contents(&self, frame: &[u8]) -> Option<u64> {
        let found = little_endian(frame, self.contents_at, self.contents_len);
        match self.contents_len {
            0 => None,
            2 => Some(found + 256),
            _ => Some(found),
        }
    }
}

/// The size of the window that a frame header asks for (3.1.1.1.2); 0 if it is incomplete, which the decoder reports.
pub(super) fn window_len(frame: &[u8]) -> u64 {
    let Some(descriptor) = frame.get(4) else { return 0 };
    let header = Header::of(*descriptor);
    if descriptor >> 5 & 1 == 1 {
        return header.contents(frame).unwrap_or(0);
    }
    let window = frame.get(PREFIX_LEN).copied().unwrap_or_default();
    let base = 1u64 << (10 + (window >> 3));
    base + base / 8 * u64::from(window & 7)
}

type Decoded = Result<Vec<u8>, &'static str>;

struct Task {
    frame: Vec<u8>,
    contents_len: usize,
    answer: SyncSender<Decoded>,
}

/// A frame that a thread is decoding.
struct Flying {
    answer: Receiver<Decoded>,
    /// The memory it uses.
    bytes: u64,
}

/// The threads and their frames. The threads end when this is dropped.
pub(super) struct Pool {
    tasks: Option<SyncSender<Task>>,
    threads: Vec<JoinHandle<()>>,
    flying: VecDeque<Flying>,
    flying_bytes: u64,
}

impl Pool {
    /// Starts this many threads.
    pub(super) fn start(threads: usize) -> Result<Self, DecodeError> {
        let count = threads.clamp(1, THREADS_MAX);
        // Never full: there is at most one more frame in flight than there are threads.
        let (tasks, inbox) = sync_channel::<Task>(count + 1);
        let inbox = Arc::new(Mutex::new(inbox));
        let mut pool =
            Self { tasks: Some(tasks), threads: Vec::with_capacity(count), flying: VecDeque::new(), flying_bytes: 0 };
        for _ in 0..count {
            let (inbox, context) = (Arc::clone(&inbox), context()?);
            let thread = std::thread::Builder::new().name("zstd".into()).spawn(move || work(&inbox, context));
            pool.threads.push(thread.map_err(|error| DecodeError::Start("zstd", error.to_string()))?);
        }
        Ok(pool)
    }

    /// Whether there are a thread and memory for one more frame.
    pub(super) fn has_room(&self) -> bool {
        // The next frame may take half of the memory itself.
        let fits = self.flying_bytes < PARALLEL_MEMORY_MAX / 2;
        self.flying.is_empty() || (self.flying.len() <= self.threads.len() && fits)
    }

    /// Passes a frame to the next free thread.
    pub(super) fn give(&mut self, frame: Vec<u8>, contents_len: usize) -> io::Result<()> {
        let bytes = (frame.len() + contents_len) as u64;
        let (answer, decoded) = sync_channel(1);
        let task = Task { frame, contents_len, answer };
        let given = self.tasks.as_ref().is_some_and(|tasks| tasks.send(task).is_ok());
        if !given {
            return Err(io::Error::other("the zstd threads have ended"));
        }
        self.flying.push_back(Flying { answer: decoded, bytes });
        self.flying_bytes += bytes;
        Ok(())
    }

    /// Waits for the contents of the oldest frame in flight.
    pub(super) fn next(&mut self) -> io::Result<Option<Vec<u8>>> {
        let Some(oldest) = self.flying.pop_front() else { return Ok(None) };
        self.flying_bytes -= oldest.bytes;
        let decoded = oldest.answer.recv().map_err(|_| truncated("zstd"))?;
        decoded.map(Some).map_err(|reason| corrupt("zstd", reason))
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // Without a sender the threads end.
        self.tasks = None;
        for thread in self.threads.drain(..) {
            // A panic was already reported, and its frame has failed.
            let _ = thread.join();
        }
    }
}

fn work(inbox: &Mutex<Receiver<Task>>, mut context: zstd_safe::DCtx<'static>) {
    loop {
        let task = inbox.lock().recv();
        let Ok(Task { frame, contents_len, answer }) = task else { return };
        let mut contents = Vec::with_capacity(contents_len);
        let decoded = context.decompress(&mut contents, &frame).map(|_| contents).map_err(get_error_name);
        // If an earlier frame was damaged, nobody waits for this one.
        let _ = answer.send(decoded);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(contents: &[u8], checksum: bool) -> Vec<u8> {
        let mut context = zstd_safe::CCtx::create();
        context.set_parameter(zstd_safe::CParameter::ChecksumFlag(checksum)).unwrap();
        let mut out = Vec::with_capacity(zstd_safe::compress_bound(contents.len()));
        context.compress2(&mut out, contents).unwrap();
        out
    }

    #[test]
    fn a_frame_ends_before_the_bytes_after_it() {
        let noise: Vec<u8> = (0..300_000u32).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
        for contents in [&b""[..], b"a", &[b'x'; 300], &[0; 70_000], &noise] {
            for checksum in [false, true] {
                let one = frame(contents, checksum);
                let mut source = &[&one[..], b"the rest"].concat()[..];
                match collect(&mut source).unwrap() {
                    Next::Frame(found, len) => assert_eq!((found, len), (one, contents.len())),
                    other => panic!("{} bytes: {other:?}", contents.len()),
                }
                assert_eq!(source, b"the rest");
            }
        }
    }

    #[test]
    fn an_incomplete_frame_is_returned() {
        let one = frame(&[7; 5000], true);
        for cut in 1..one.len() {
            match collect(&mut &one[..cut]).unwrap() {
                Next::Start(start) => assert_eq!(start, one[..cut]),
                other => panic!("cut at {cut}: {other:?}"),
            }
        }
        let skippable = [&(SKIPPABLE_MAGIC + 3).to_le_bytes()[..], &[4, 0, 0, 0, 1, 2, 3, 4]].concat();
        assert!(matches!(collect(&mut &skippable[..]).unwrap(), Next::Start(_)));
        assert!(matches!(collect(&mut &b""[..]).unwrap(), Next::End));
    }
}
