//! An in-flight compression of a NAR, shared by all requests for it.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use narval_codec::encode::{EncodeError, FRAMES_AT_ONCE_MAX, FrameEncoder};
use narval_files::{Background, TemporaryFile};
use narval_http::{BodySource, Fill, SegmentBuf};
use narval_nix::Sha256Hasher;
use narval_store::{NarReader, ReadAhead};
use parking_lot::{Condvar, Mutex};

use super::folder::Folder;
use crate::metrics::Metrics;
use crate::nar::damaged::{DamagedPaths, NOT_AS_REGISTERED};
use crate::nar::growing::push_piece;
use crate::nar::plan::PathNar;
use crate::watch::GaugeGuard;

/// See the module's description.
pub(crate) struct InFlight {
    path_nar: Arc<PathNar>,
    ahead: Arc<ReadAhead>,
    level: i32,
    /// The file that is filled; `None` if each client compresses alone.
    file: Option<Arc<File>>,
    /// Bytes of the file that may be sent.
    produced: AtomicU64,
    /// Makes the next piece; `None` once the compression has ended.
    producer: Mutex<Option<Producer>>,
    outcome: OnceLock<Outcome>,
    damaged: Arc<DamagedPaths>,
    /// Called when the file was renamed to its final name.
    stored: Box<dyn Fn() + Send + Sync>,
    /// Whether that succeeded; `None` while it is not known.
    is_stored: (Mutex<Option<bool>>, Condvar),
}

/// How a compression ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The file is complete and verified.
    Finished,
    /// The NAR could not be read.
    BadNar(String),
    /// The NAR does not match its hash.
    Corrupt,
    /// The folder could not be written to: each client compresses alone.
    NoRoom,
}

impl Outcome {
    /// What is wrong with the NAR, if that ended it.
    pub(crate) fn trouble_with_nar(&self) -> Option<String> {
        match self {
            Self::BadNar(reason) => Some(reason.clone()),
            Self::Corrupt => Some(NOT_AS_REGISTERED.to_owned()),
            Self::Finished | Self::NoRoom => None,
        }
    }
}

struct Producer {
    nar: NarReader,
    encoder: FrameEncoder,
    file_hash: Sha256Hasher,
    filling: TemporaryFile,
    folder: Arc<Folder>,
    writer: Arc<Background>,
    _under_way: GaugeGuard,
}

/// Where the compressed NAR is written.
pub(super) struct FillTarget {
    pub(super) folder: Arc<Folder>,
    pub(super) filling: TemporaryFile,
    /// Syncs and renames it.
    pub(super) writer: Arc<Background>,
    pub(super) under_way: GaugeGuard,
}

impl std::fmt::Debug for Producer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Producer({:?})", self.filling)
    }
}

impl InFlight {
    /// Starts to compress into a file; without a `place`, each client compresses alone.
    pub(super) fn begin(
        path_nar: &Arc<PathNar>,
        ahead: &Arc<ReadAhead>,
        place: Option<FillTarget>,
        level: i32,
        damaged: Arc<DamagedPaths>,
        stored: impl Fn() + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let size = path_nar.layout.size_bytes();
        let file = place.as_ref().map(|place| place.filling.file().try_clone().map(Arc::new)).transpose()?;
        let producer = |FillTarget { folder, filling, writer, under_way }| {
            Ok::<_, io::Error>(Producer {
                nar: NarReader::of(path_nar.stream(0..size, ahead)?),
                encoder: FrameEncoder::new(level, size, path_nar.nar_hash, FRAMES_AT_ONCE_MAX)?,
                file_hash: Sha256Hasher::new(),
                filling,
                folder,
                writer,
                _under_way: under_way,
            })
        };
        let producer = place.map(producer).transpose()?;
        let outcome = if producer.is_some() { OnceLock::new() } else { OnceLock::from(Outcome::NoRoom) };
        Ok(Self {
            path_nar: Arc::clone(path_nar),
            ahead: Arc::clone(ahead),
            level,
            file,
            produced: AtomicU64::new(0),
            producer: Mutex::new(producer),
            outcome,
            damaged,
            stored: Box::new(stored),
            is_stored: Default::default(),
        })
    }

    /// Whether it failed.
    pub(super) fn has_failed(&self) -> bool {
        self.outcome.get().is_some_and(|outcome| *outcome != Outcome::Finished)
    }

    /// Whether each client compresses alone.
    pub(crate) fn has_no_room(&self) -> bool {
        self.outcome.get() == Some(&Outcome::NoRoom)
    }

    /// Compresses the rest, waits until the file was renamed, and returns how it ended.
    pub(crate) fn finish_and_store(self: &Arc<Self>) -> Outcome {
        loop {
            match self.outcome.get() {
                None => {}
                Some(Outcome::Finished) if !self.wait_until_stored() => return Outcome::NoRoom,
                Some(outcome) => return outcome.clone(),
            }
            self.advance(self.produced.load(Ordering::Acquire));
        }
    }

    /// Waits until the file was synced and renamed; returns whether that succeeded.
    fn wait_until_stored(&self) -> bool {
        let (is_stored, changed) = &self.is_stored;
        let mut is_stored = is_stored.lock();
        changed.wait_while(&mut is_stored, |is_stored| is_stored.is_none());
        is_stored.unwrap_or(false)
    }

    /// Makes the first piece, before a status line is sent: a NAR of one frame is verified by then. Returns the size of the file if
    /// that completed it.
    ///
    /// # Errors
    /// What is wrong with the NAR.
    pub(crate) fn begin_answer(self: &Arc<Self>) -> Result<Option<u64>, String> {
        self.advance(0);
        match self.outcome.get() {
            Some(Outcome::Finished) => Ok(Some(self.produced.load(Ordering::Acquire))),
            Some(outcome) => outcome.trouble_with_nar().map_or(Ok(None), Err),
            None => Ok(None),
        }
    }

    /// Makes pieces until there are more than `beyond` bytes, or until it has ended. While another thread makes a piece, this one waits
    /// for it.
    fn advance(self: &Arc<Self>, beyond: u64) {
        let mut guard = self.producer.lock();
        while self.produced.load(Ordering::Acquire) <= beyond && self.outcome.get().is_none() {
            let Some(producer) = guard.as_mut() else { return };
            let outcome = match producer.turn(&self.produced) {
                Ok(false) => continue,
                Ok(true) => Outcome::Finished,
                Err(outcome) => outcome,
            };
            self.note(&outcome);
            if let Some(producer) = guard.take()
                && outcome == Outcome::Finished
            {
                self.store(producer);
            }
            // Cannot fail: only the holder of the lock gets here, and only while it is not set.
            let _ = self.outcome.set(outcome);
        }
    }

    /// Logs and records what is wrong with the NAR, if that ended it.
    fn note(&self, outcome: &Outcome) {
        if let Some(reason) = outcome.trouble_with_nar() {
            tracing::error!("compressing the NAR of {} was aborted: {reason}", self.path_nar.path);
        }
        if *outcome == Outcome::Corrupt {
            self.damaged.add(self.path_nar.path.hash_part(), &self.path_nar.nar_hash, &self.path_nar.real_path);
        }
    }

    /// Syncs and renames the file on a thread: no client waits for the disk. Meanwhile new requests are still answered from here.
    fn store(self: &Arc<Self>, producer: Producer) {
        let this = Arc::clone(self);
        let Producer { filling, folder, writer, file_hash, .. } = producer;
        let job = move || {
            let finished = folder.finish(filling, &this.path_nar.nar_hash, &file_hash.finish());
            match &finished {
                Ok(_) => (this.stored)(),
                Err(error) => folder.pause(error),
            }
            *this.is_stored.0.lock() = Some(finished.is_ok());
            this.is_stored.1.notify_all();
        };
        writer.run(Box::new(job));
    }
}

impl std::fmt::Debug for InFlight {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "InFlight({}, {:?})", self.path_nar.path, self.outcome.get())
    }
}

impl Producer {
    /// Compresses the next piece; returns whether it was the last.
    fn turn(&mut self, produced: &AtomicU64) -> Result<bool, Outcome> {
        let Self { nar, encoder, file_hash, filling, .. } = self;
        let mut sink = |made: &[u8]| {
            file_hash.update(made);
            let at = produced.load(Ordering::Relaxed);
            filling.file().write_all_at(made, at)?;
            produced.store(at + made.len() as u64, Ordering::Release);
            Ok(())
        };
        let made = encoder.advance(nar, &mut sink);
        made.map_err(|error| {
            if let EncodeError::Sink(error) = &error {
                self.folder.pause(error);
            }
            Outcome::from(error)
        })?;
        Ok(self.encoder.is_complete())
    }
}

impl From<EncodeError> for Outcome {
    fn from(error: EncodeError) -> Self {
        match error {
            EncodeError::Nar(error) => Self::BadNar(error.to_string()),
            EncodeError::Corrupt => Self::Corrupt,
            EncodeError::Sink(_) => Self::NoRoom,
        }
    }
}

/// The body of an answer that is compressed while it is sent.
pub(crate) struct InFlightSource {
    in_flight: Arc<InFlight>,
    sent: u64,
    alone: Option<Alone>,
    metrics: Arc<Metrics>,
}

/// Compression for one client alone, when the folder cannot be written to: the same bytes again, from the start.
struct Alone {
    nar: NarReader,
    encoder: FrameEncoder,
    skip: u64,
    _under_way: GaugeGuard,
}

impl InFlightSource {
    /// The body for one client.
    pub(crate) fn new(in_flight: Arc<InFlight>, metrics: Arc<Metrics>) -> Self {
        Self { in_flight, sent: 0, alone: None, metrics }
    }

    fn fill_alone(&mut self, out: &mut SegmentBuf) -> io::Result<Fill> {
        if self.alone.is_none() {
            let (path_nar, size) = (&self.in_flight.path_nar, self.in_flight.path_nar.layout.size_bytes());
            self.alone = Some(Alone {
                nar: NarReader::of(path_nar.stream(0..size, &self.in_flight.ahead)?),
                encoder: FrameEncoder::new(self.in_flight.level, size, path_nar.nar_hash, 1)?,
                skip: self.sent,
                _under_way: self.metrics.compressions.begin(),
            });
        }
        let Some(Alone { nar, encoder, skip, .. }) = &mut self.alone else { return Ok(Fill::Done) };
        let memory = out.memory();
        let before = memory.len();
        let mut sink = |made: &[u8]| {
            let skipped = usize::try_from(*skip).unwrap_or(usize::MAX).min(made.len());
            *skip -= skipped as u64;
            memory.extend_from_slice(made.get(skipped..).unwrap_or_default());
            Ok(())
        };
        let made = encoder.advance(nar, &mut sink);
        self.metrics.nar_bytes_zstd.inc_by((memory.len() - before) as u64);
        made.map_err(|error| {
            let outcome = Outcome::from(error);
            self.in_flight.note(&outcome);
            aborted(&self.metrics, &outcome)
        })?;
        Ok(if encoder.is_complete() { Fill::Done } else { Fill::More })
    }
}

/// Counts an aborted answer.
fn aborted(metrics: &Metrics, outcome: &Outcome) -> io::Error {
    metrics.stream_aborts.inc();
    io::Error::new(io::ErrorKind::InvalidData, outcome.trouble_with_nar().unwrap_or_default())
}

impl BodySource for InFlightSource {
    fn fill(&mut self, out: &mut SegmentBuf) -> io::Result<Fill> {
        if self.alone.is_some() {
            return self.fill_alone(out);
        }
        loop {
            // In this order: once it has ended, nothing more is produced.
            let outcome = self.in_flight.outcome.get().cloned();
            let produced = self.in_flight.produced.load(Ordering::Acquire);
            // Without a file, nothing is ever produced.
            if let Some(file) = self.in_flight.file.as_ref().filter(|_| produced > self.sent) {
                let length = push_piece(file, self.sent, produced - self.sent, out)?;
                self.sent += length;
                self.metrics.nar_bytes_zstd.inc_by(length);
                return Ok(Fill::More);
            }
            match outcome {
                None => self.in_flight.advance(self.sent),
                Some(Outcome::Finished) => return Ok(Fill::Done),
                Some(Outcome::NoRoom) => return self.fill_alone(out),
                Some(outcome) => return Err(aborted(&self.metrics, &outcome)),
            }
        }
    }
}
