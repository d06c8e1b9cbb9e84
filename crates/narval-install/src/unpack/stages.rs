//! Unpacks a large NAR on several threads if there are idle cores: one decodes (with helpers, if the file's format
//! allows it), one hashes, one writes.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::ScopedJoinHandle;

use narval_store::{Hashed, Hashes, Incoming, LocalStoreError, NarInput};

use super::{BUFFER_LEN, Failure, ToStore, hash, write};

/// The number of circulating buffers: 4 MiB.
const BUFFERS: usize = 16;

/// A buffer and its filled length.
type Filled = (Vec<u8>, usize);

impl ToStore<'_> {
    /// Like the loop on one thread, with the same checks. Returns the NAR's size and hashes.
    pub(super) fn pump_in_stages<E>(
        &self,
        nar: &mut dyn NarInput<Error = E>,
        hashes: Hashes,
        incoming: &mut Incoming<'_>,
    ) -> Result<(u64, Hashed), Failure<E>> {
        let (to_hash, decoded) = sync_channel::<Filled>(BUFFERS);
        let (to_write, hashed) = sync_channel::<Filled>(BUFFERS);
        let (give_back, empty) = sync_channel::<Vec<u8>>(BUFFERS);
        for _ in 0..BUFFERS {
            // The channel has room for all of them, and the other end is here.
            let _ = give_back.send(vec![0; BUFFER_LEN]);
        }
        std::thread::scope(|scope| {
            let hashing = scope.spawn(move || hash_all(hashes, &decoded, &to_write));
            let writing = scope.spawn(move || -> Result<(), LocalStoreError> {
                for (buffer, len) in hashed {
                    write(incoming, buffer.get(..len).unwrap_or_default())?;
                    // The channel has room for all buffers, and the other end lives as long as this thread.
                    let _ = give_back.send(buffer);
                }
                Ok(())
            });
            let total = decode_all(nar, &empty, to_hash);
            let (hash, written) = (joined(hashing)?, joined(writing)?);
            // If the writer failed, the decoder had to stop without knowing why.
            written.map_err(Failure::Store)?;
            Ok((total.map_err(Failure::Source)?, hash))
        })
    }
}

fn hash_all(mut hashes: Hashes, decoded: &Receiver<Filled>, to_write: &SyncSender<Filled>) -> Hashed {
    while let Ok((buffer, len)) = decoded.recv() {
        hash(&mut hashes, buffer.get(..len).unwrap_or_default());
        if to_write.send((buffer, len)).is_err() {
            break;
        }
    }
    hashes.finish()
}

fn decode_all<E>(
    nar: &mut dyn NarInput<Error = E>,
    empty: &Receiver<Vec<u8>>,
    to_hash: SyncSender<Filled>,
) -> Result<u64, E> {
    let mut total = 0;
    // There are no more buffers if the writer has failed.
    while let Ok(mut buffer) = empty.recv() {
        let len = nar.read(&mut buffer)?;
        total += len as u64;
        if len == 0 || to_hash.send((buffer, len)).is_err() {
            break;
        }
    }
    Ok(total)
}

fn joined<T, E>(thread: ScopedJoinHandle<'_, T>) -> Result<T, Failure<E>> {
    thread.join().map_err(|_| Failure::Died)
}
