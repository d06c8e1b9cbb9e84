//! Stores an object while its bytes arrive: parts are sent while the next one is filled.
//!
//! Nothing is visible before [`ObjectWriter::finish`]. Dropping a writer before that aborts the upload.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use narval_client::{Payload, Url};
use narval_nix::Sha256;
use parking_lot::Mutex;

use crate::objects::Objects;
use crate::put::Part;
use crate::put_error::PutError;

/// The length of a part in bytes; longer ones are needed for objects of more than 80 GB. S3's minimum is 5 MiB.
const PART_LEN: usize = 8 * 1024 * 1024;

/// The maximum number of parts of an object.
const PARTS_MAX: u64 = 10_000;

/// Parts of one object that are being sent at the same time. One more is being filled, so an upload takes at most three times
/// [`PART_LEN`].
const IN_FLIGHT_MAX: usize = 2;

/// An object that is being written.
pub struct ObjectWriter {
    objects: Arc<Objects>,
    url: Url,
    key: String,
    part_len: usize,
    buffer: Vec<u8>,
    /// Only objects of more than one part have it.
    parts: Option<Parts>,
}

/// The parts that one thread has sent, with their numbers.
type Sent = Result<Vec<(usize, Part)>, PutError>;

/// An upload in parts.
struct Parts {
    upload: String,
    number: usize,
    queue: Option<SyncSender<(usize, Vec<u8>)>>,
    senders: Vec<JoinHandle<Sent>>,
}

impl ObjectWriter {
    /// Starts an object with this key and at most `len_max` bytes.
    pub fn new(objects: &Arc<Objects>, key: String, len_max: u64) -> io::Result<Self> {
        let url = objects.object(&key).map_err(io::Error::other)?;
        let part_len = usize::try_from(len_max.div_ceil(PARTS_MAX)).unwrap_or(usize::MAX).max(PART_LEN);
        Ok(Self { objects: Arc::clone(objects), url, key, part_len, buffer: Vec::new(), parts: None })
    }

    /// Completes the upload: the object appears. `hash` is the SHA-256 of all bytes.
    pub fn finish(mut self, hash: Sha256) -> io::Result<()> {
        let Some(mut parts) = self.parts.take() else {
            return self.objects.put(&self.key, "application/x-nix-nar", Payload::Bytes(&self.buffer), hash);
        };
        let last = std::mem::take(&mut self.buffer);
        let sent = if last.is_empty() { Ok(()) } else { parts.send(last) };
        let stored = self.objects.counted_io(|| {
            let sent_parts = parts.end()?;
            sent.map_err(PutError::File)?;
            self.objects.storing(&self.url).complete(&parts.upload, &sent_parts)
        });
        if stored.is_err() {
            self.objects.storing(&self.url).abort(&parts.upload);
        }
        stored
    }

    /// Sends the buffer as a part.
    fn send_buffer(&mut self) -> io::Result<()> {
        let full = std::mem::take(&mut self.buffer);
        let parts = match &mut self.parts {
            Some(parts) => parts,
            None => {
                let upload = self.objects.counted_io(|| self.objects.storing(&self.url).begin())?;
                self.parts.insert(Parts::start(&self.objects, &self.url, upload)?)
            }
        };
        if let Err(error) = parts.send(full) {
            // The thread that failed knows why.
            return Err(match parts.end() {
                Err(PutError::Http(error)) => io::Error::other(error),
                Err(cause) => io::Error::other(cause),
                Ok(_) => error,
            });
        }
        Ok(())
    }
}

impl Write for ObjectWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.buffer.len() >= self.part_len {
            self.send_buffer()?;
        }
        let len = bytes.len().min(self.part_len - self.buffer.len());
        self.buffer.extend_from_slice(bytes.get(..len).unwrap_or_default());
        Ok(len)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for ObjectWriter {
    fn drop(&mut self) {
        if let Some(mut parts) = self.parts.take() {
            // Parts that are still being sent end first.
            parts.end().ok();
            self.objects.storing(&self.url).abort(&parts.upload);
        }
    }
}

impl Parts {
    fn start(objects: &Arc<Objects>, url: &Url, upload: String) -> io::Result<Self> {
        // No queue: a part in a queue would take memory, too.
        let (queue, receiver) = sync_channel(0);
        let receiver = Arc::new(Mutex::new(receiver));
        let mut senders = Vec::new();
        for _ in 0..IN_FLIGHT_MAX {
            let (objects, url, upload, receiver) =
                (Arc::clone(objects), url.clone(), upload.clone(), Arc::clone(&receiver));
            let run = move || send_parts(&objects, &url, &upload, &receiver);
            senders.push(std::thread::Builder::new().name("part".into()).spawn(run)?);
        }
        Ok(Self { upload, number: 0, queue: Some(queue), senders })
    }

    fn send(&mut self, part: Vec<u8>) -> io::Result<()> {
        self.number += 1;
        // A thread that ends before the queue has failed.
        let has_failed = self.senders.iter().any(JoinHandle::is_finished);
        let queue = self.queue.as_ref().filter(|_| !has_failed).ok_or(io::ErrorKind::BrokenPipe)?;
        queue.send((self.number, part)).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }

    /// Waits until all parts are sent; returns them in order.
    fn end(&mut self) -> Result<Vec<Part>, PutError> {
        self.queue = None;
        let (mut all, mut failed) = (Vec::new(), None);
        for sender in self.senders.drain(..) {
            match sender.join() {
                Ok(Ok(sent)) => all.extend(sent),
                Ok(Err(error)) => failed = Some(error),
                Err(_) => failed = Some(PutError::File(io::Error::other("a thread that sends parts has ended"))),
            }
        }
        all.sort_unstable_by_key(|(number, _)| *number);
        failed.map_or_else(|| Ok(all.into_iter().map(|(_, part)| part).collect()), Err)
    }
}

fn send_parts(objects: &Objects, url: &Url, upload: &str, receiver: &Mutex<Receiver<(usize, Vec<u8>)>>) -> Sent {
    let mut sent = Vec::new();
    loop {
        let next = receiver.lock().recv();
        let Ok((number, bytes)) = next else { return Ok(sent) };
        let hash = Sha256::of(&bytes);
        sent.push((number, objects.storing(url).part(upload, number, Payload::Bytes(&bytes), hash)?));
    }
}
