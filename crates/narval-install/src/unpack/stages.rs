//! A large NAR on several threads, when there are cores that would have nothing to do: one decodes (and may have helpers,
//! where the file allows it), one hashes, one writes.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::ScopedJoinHandle;

use narval_cache::Found;
use narval_cache::decode::{Decoder, OUTPUT_LEN};
use narval_store::{Hashed, Hashes, Incoming};

use super::one::Job;
use crate::Error;
use crate::fetch::Input;
use crate::trace::{Span, Trace};

/// Buffers that go round: 4 MiB.
const BUFFERS: usize = 16;

/// A buffer, and how much of it is filled.
type Filled = (Vec<u8>, usize);

impl Job<'_> {
    /// As the loop on one thread, with the same checks: bytes and hashes of the NAR.
    pub(super) fn pump_in_stages(
        &self,
        found: &Found,
        decoder: &mut Decoder<Input<'_>>,
        incoming: &mut Incoming<'_>,
    ) -> Result<(u64, Hashed), Error> {
        let (to_hash, decoded) = sync_channel::<Filled>(BUFFERS);
        let (to_write, hashed) = sync_channel::<Filled>(BUFFERS);
        let (give_back, empty) = sync_channel::<Vec<u8>>(BUFFERS);
        for _ in 0..BUFFERS {
            // There is room for all of them, and the other end is here.
            let _ = give_back.send(vec![0; OUTPUT_LEN]);
        }
        let number = Trace::thread_number();
        std::thread::scope(|scope| {
            let hashing = scope.spawn(move || {
                Trace::name_thread(number);
                self.hash(self.hashes(found), &decoded, &to_write)
            });
            let writing = scope.spawn(move || -> Result<(), Error> {
                Trace::name_thread(number);
                for (buffer, len) in hashed {
                    self.write(found, incoming, buffer.get(..len).unwrap_or_default())?;
                    // There is room for all buffers, and the other end lives as long as this thread.
                    let _ = give_back.send(buffer);
                }
                Ok(())
            });
            let total = self.decode_all(found, decoder, &empty, to_hash);
            let (hash, written) = (joined(hashing)?, joined(writing)?);
            // Where the writer failed the decoder had to stop, and knows no reason.
            written?;
            Ok((total?, hash))
        })
    }

    fn decode_all(
        &self,
        found: &Found,
        decoder: &mut Decoder<Input<'_>>,
        empty: &Receiver<Vec<u8>>,
        to_hash: SyncSender<Filled>,
    ) -> Result<u64, Error> {
        let mut total = 0;
        // No more buffers come when the writer has failed.
        while let Ok(mut buffer) = empty.recv() {
            let len = self.decode(found, decoder, &mut buffer, &mut total)?;
            if len == 0 || to_hash.send((buffer, len)).is_err() {
                break;
            }
        }
        Ok(total)
    }

    fn hash(&self, mut hashes: Hashes, decoded: &Receiver<Filled>, to_write: &SyncSender<Filled>) -> Hashed {
        while let Ok((buffer, len)) = decoded.recv() {
            let span = self.pipeline.trace.begin();
            hashes.update(buffer.get(..len).unwrap_or_default());
            self.pipeline.trace.end(span, Span::Hash);
            if to_write.send((buffer, len)).is_err() {
                break;
            }
        }
        hashes.finish()
    }
}

fn joined<T>(thread: ScopedJoinHandle<'_, T>) -> Result<T, Error> {
    thread.join().map_err(|_| Error::Died)
}
