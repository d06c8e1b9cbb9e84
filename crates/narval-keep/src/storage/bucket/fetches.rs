//! In-flight fetches of NARs from the bucket to the disk cache: one per NAR of a cache, however many requests wait for it. NARs are verified
//! while they are passed on. Those that another node keeps come from there, and are not kept here, unless they are popular.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use narval_client::{HttpError, request_id};
use narval_files::TemporaryFile;
use narval_nix::Sha256Hasher;
use quick_cache::sync::Cache as Remembered;

use super::source::{FromPeer, NarSource};
use crate::name::CacheName;
use crate::nodes::{Holder, Peers};
use crate::records::paths::NarRecord;
use crate::storage::{Asker, NarBytes, TEMPORARY};
use narval_client::Trouble;
use narval_files::{DiskCache, Fetcher, Fetches, FetchesLocked, FillEnd, GrowingFile, Permit, Permits, Start};
use narval_s3::Objects;

/// The maximum number of concurrent fetches from the bucket. Each has a thread and a buffer.
const FETCHES_MAX: usize = 64;

/// The same for those from other nodes: two nodes whose fetches all wait for each other can still read from the bucket.
const PEER_FETCHES_MAX: usize = 64;

/// From this request on, a NAR that another node keeps is also kept here, if this node is the next one to keep it.
const POPULAR_FROM: u32 = 3;

/// The maximum number of NARs of which is remembered how often they came from other nodes.
const PASSED_MAX: usize = 16_384;

/// The maximum number of requests that wait for a first byte. Others fail immediately: threads must stay free for NARs on disk.
const WAITING_MAX: usize = 128;
/// The maximum number of them that wait for one client.
const WAITING_OF_ONE_MAX: usize = 64;

/// How long a request waits for the first byte.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long a caller waits for the whole file.
const WHOLE_PATIENCE: Duration = Duration::from_secs(24 * 3600);

/// A damaged object is not fetched again for this long.
const DAMAGED_FOR: Duration = Duration::from_secs(60);

/// The maximum number of damaged objects that are remembered.
const DAMAGED_MAX: usize = 4096;

/// The maximum number of NARs that are remembered as redirected.
const SENT_AWAY_MAX: usize = 16_384;

/// How often a damaged object is fetched before it is given up.
const ATTEMPTS_MAX: u32 = 2;

const BUFFER_LEN: usize = 256 * 1024;

pub(super) struct BucketFetches {
    objects: Arc<Objects>,
    kept: Option<DiskCache>,
    incoming: PathBuf,
    running: Fetches,
    fetches: Permits,
    peer_fetches: Permits,
    waiting: Permits,
    /// When objects were found to be damaged.
    damaged: Remembered<String, Instant>,
    /// NARs for which a client was sent to the store.
    sent_away: Remembered<String, ()>,
    /// The other nodes, if this one takes part in sharing disk caches.
    peers: OnceLock<Arc<Peers>>,
    /// How often NARs came from other nodes.
    passed: Remembered<String, u32>,
}

/// A NAR that is asked for.
#[derive(Clone, Copy)]
pub(super) struct NarRequest<'a> {
    pub(super) cache: &'a CacheName,
    /// The key of its object.
    pub(super) key: &'a str,
    /// The name of its object below `nar/`.
    pub(super) name: &'a str,
    pub(super) nar: &'a NarRecord,
    pub(super) asker: Asker,
}

/// What a thread fetches.
struct Fetch {
    key: String,
    /// The name in the disk cache.
    name: String,
    nar: NarRecord,
    /// The node that keeps it, if that is another one.
    peer: Option<FromPeer>,
    /// Whether it is kept here.
    is_kept: bool,
    /// Whether this node keeps it if that one is gone.
    is_next: bool,
}

/// Why a fetch failed.
struct Failed {
    trouble: Trouble,
    /// Whether bytes are wrong of which another node has sent at least a part.
    from_peer: bool,
}

impl BucketFetches {
    pub(super) fn new(objects: Arc<Objects>, kept: Option<DiskCache>, incoming: PathBuf) -> Self {
        Self {
            objects,
            kept,
            incoming,
            running: Fetches::default(),
            fetches: Permits::new(FETCHES_MAX),
            peer_fetches: Permits::new(PEER_FETCHES_MAX),
            waiting: Permits::shared(WAITING_MAX, WAITING_OF_ONE_MAX),
            damaged: Remembered::new(DAMAGED_MAX),
            sent_away: Remembered::new(SENT_AWAY_MAX),
            peers: OnceLock::new(),
            passed: Remembered::new(PASSED_MAX),
        }
    }

    /// From now on, other nodes are asked for the NARs that they keep.
    pub(super) fn set_peers(&self, peers: Arc<Peers>) {
        // A bucket is opened once.
        let _ = self.peers.set(peers);
    }

    pub(super) fn peers(&self) -> Option<&Arc<Peers>> {
        self.peers.get()
    }

    /// The file of a NAR: complete, or still growing. `None` if there is no such object.
    pub(super) fn nar(self: &Arc<Self>, request: &NarRequest<'_>) -> io::Result<Option<NarBytes>> {
        let name = kept_name(request.cache, request.name);
        let fill = {
            let mut fetches = self.running.lock();
            if let Some(fill) = fetches.get(&name) {
                Arc::clone(fill)
            } else if let Some(file) = self.kept_file(&name, request.nar) {
                return Ok(Some(NarBytes::File(file)));
            } else {
                self.begin(request, name, &mut fetches)?
            }
        };
        let busy = || unavailable("too many requests are already waiting for the bucket".to_owned());
        let start = fill.start(PATIENCE, || self.waiting.take().ok_or_else(busy))?;
        match start {
            Some(Start::Comes(_)) => Ok(Some(NarBytes::Growing(fill))),
            Some(Start::Absent) => Ok(None),
            Some(Start::Unavailable(reason)) => Err(unavailable(reason)),
            None => Err(unavailable("the bucket takes too long".to_owned())),
        }
    }

    /// Whether a NAR is neither in the disk cache nor being fetched, and this is the first request for it.
    pub(super) fn is_first(&self, cache: &CacheName, name: &str, nar: &NarRecord) -> bool {
        let name = kept_name(cache, name);
        if self.running.lock().get(&name).is_some() || self.kept_file(&name, nar).is_some() {
            return false;
        }
        let is_first = self.sent_away.get(&name).is_none();
        self.sent_away.insert(name, ());
        is_first
    }

    /// Like [`nar`](Self::nar), but waits for the whole file.
    pub(super) fn whole(self: &Arc<Self>, request: &NarRequest<'_>) -> io::Result<Option<File>> {
        match self.nar(request)? {
            None => Ok(None),
            Some(NarBytes::File(file)) => Ok(Some(file)),
            Some(NarBytes::Redirect(_)) => Err(unavailable("the client is redirected".to_owned())),
            Some(NarBytes::Growing(fill)) => {
                fill.wait_for_end(WHOLE_PATIENCE);
                match fill.progress().end {
                    Some(FillEnd::Complete) => {
                        // Opened again: a duplicate of the descriptor shares its position with the other readers.
                        let opened = File::open(format!("/proc/self/fd/{}", fill.file().as_raw_fd()))?;
                        Ok(Some(opened))
                    }
                    Some(FillEnd::Failed(reason)) => Err(io::Error::other(reason.to_string())),
                    None => Err(unavailable("the bucket takes too long".to_owned())),
                }
            }
        }
    }

    /// A file that is kept, if it has the right length.
    fn kept_file(&self, name: &str, nar: &NarRecord) -> Option<File> {
        Some(self.kept.as_ref()?.get_whole(name, Some(nar.file_size))?.0)
    }

    fn create(&self) -> io::Result<TemporaryFile> {
        match &self.kept {
            Some(kept) => kept.create(),
            None => TemporaryFile::create(&self.incoming, TEMPORARY, 0o644),
        }
    }

    /// Starts to fetch, on a thread of its own.
    fn begin(
        self: &Arc<Self>,
        request: &NarRequest<'_>,
        name: String,
        fetches: &mut FetchesLocked<'_>,
    ) -> io::Result<Arc<GrowingFile>> {
        if self.damaged.get(&name).is_some_and(|since| since.elapsed() < DAMAGED_FOR) {
            return Err(io::Error::other("the object is damaged, and was so when it was fetched again"));
        }
        let fetch = self.plan(request, name);
        let permits = if fetch.peer.is_some() { &self.peer_fetches } else { &self.fetches };
        let permit = permits.take().ok_or_else(|| unavailable("too many NARs are being fetched".to_owned()))?;
        // The request id is that of the first request: others may wait for the same NAR.
        let (this, id, name) = (Arc::clone(self), request_id::current(), fetch.name.clone());
        let run = move |fetcher: Fetcher, file: TemporaryFile| {
            let _entered = request_id::enter(id);
            this.run(fetch, fetcher, file, permit);
        };
        fetches.begin(&name, self.create()?, "bucket", run)
    }

    /// Where a NAR comes from, and whether it is kept. Another node asks whoever keeps a NAR, and nobody else is asked then.
    fn plan(&self, request: &NarRequest<'_>, name: String) -> Fetch {
        let (key, nar) = (request.key.to_owned(), request.nar.clone());
        let own = |key, name, nar| Fetch { key, name, nar, peer: None, is_kept: true, is_next: true };
        let Some(peers) = self.peers.get().filter(|_| request.asker == Asker::Client) else {
            return own(key, name, nar);
        };
        let Holder::Other { member, is_next } = peers.holder(&nar.file_hash) else { return own(key, name, nar) };
        let passed = self.passed.get(&name).unwrap_or_default().saturating_add(1);
        self.passed.insert(name.clone(), passed);
        let (peers, cache) = (Arc::clone(peers), request.cache.clone());
        let peer = Some(FromPeer { peers, member, cache, name: request.name.to_owned() });
        Fetch { key, name, nar, peer, is_kept: is_next && passed >= POPULAR_FROM, is_next }
    }

    fn run(&self, mut fetch: Fetch, mut fetcher: Fetcher, mut file: TemporaryFile, _permit: Permit) {
        let mut attempt = 0;
        loop {
            let failed = match self.fetch(&mut fetch, file.file(), fetcher.fill()) {
                Ok(()) => {
                    let Some(kept) = self.kept.as_ref().filter(|_| fetch.is_kept) else {
                        // Its readers have it open. Nothing is left when they have all of it.
                        drop(file);
                        return fetcher.fill().ends(FillEnd::Complete);
                    };
                    fetcher.fill().ends(FillEnd::Complete);
                    if let Err(error) = kept.keep(&fetch.name, file) {
                        tracing::error!("disk cache: '{}' cannot be kept: {error}", fetch.name);
                    }
                    return;
                }
                Err(failed) => failed,
            };
            let (key, name) = (&fetch.key, &fetch.name);
            let Failed { trouble, from_peer } = failed;
            // The bytes of another node say nothing about the object.
            attempt += u32::from(!from_peer);
            let (start, reason, is_wrong) = match trouble {
                Trouble::Absent => (Start::Absent, "there is no such object".to_owned(), false),
                Trouble::Unavailable(error) => {
                    tracing::warn!("'{key}' was not fetched: {error}");
                    (Start::Unavailable(error.to_string()), error.to_string(), false)
                }
                Trouble::Disk(error) => {
                    tracing::error!("disk cache: '{name}' cannot be written: {error}");
                    (Start::Unavailable("it cannot be written".to_owned()), error.to_string(), false)
                }
                Trouble::Wrong(reason) if from_peer => (Start::Unavailable(reason.clone()), reason, true),
                Trouble::Wrong(reason) => {
                    let next = if attempt < ATTEMPTS_MAX { "it is fetched again" } else { "it is not served" };
                    tracing::error!("'{key}' is damaged: {reason}; {next}");
                    (Start::Unavailable(reason.clone()), reason, true)
                }
            };
            // Clients that retry after the first fetch has failed follow the next one.
            let again = (is_wrong && attempt < ATTEMPTS_MAX).then(|| self.create()).and_then(|created| {
                let created = created.ok()?;
                Some((fetcher.again(&created).ok()?, created))
            });
            if again.is_none() && is_wrong {
                self.damaged.insert(name.clone(), Instant::now());
            }
            let (fill, next) = match again {
                Some((fill, next)) => (fill, Some(next)),
                None => (Arc::clone(fetcher.fill()), None),
            };
            drop(file);
            fill.starts(start);
            fill.ends(FillEnd::Failed(reason.into()));
            match next {
                Some(next) => file = next,
                None => return,
            }
        }
    }

    /// Removes what the disk cache has not needed for longest, until so many bytes fit on the disk.
    pub(super) fn make_disk_room(&self, bytes: u64) {
        if let Some(kept) = &self.kept {
            kept.make_disk_room(bytes);
        }
    }

    /// Writes a piece of a NAR of this size. If the disk is full, what the disk cache has not needed for longest makes room.
    fn write_at(&self, file: &File, piece: &[u8], at: u64, size: u64) -> io::Result<()> {
        match (file.write_all_at(piece, at), &self.kept) {
            (Err(error), Some(kept)) if error.kind() == io::ErrorKind::StorageFull => {
                kept.make_disk_room(size.saturating_sub(at));
                file.write_all_at(piece, at)
            }
            (written, _) => written,
        }
    }

    /// Fetches a NAR into a file while its readers follow. They get the last byte once the whole file is verified.
    fn fetch(&self, fetch: &mut Fetch, file: &File, fill: &GrowingFile) -> Result<(), Failed> {
        let Fetch { key, nar, peer, .. } = &*fetch;
        let of_bucket = |trouble| Failed { trouble, from_peer: false };
        let source = NarSource::open(&self.objects, key, nar.file_size, peer.as_ref());
        let source = source.map_err(Trouble::Unavailable).and_then(|source| source.ok_or(Trouble::Absent));
        let mut source = source.map_err(of_bucket)?;
        let fetched = self.fetch_from(&mut source, nar, file, fill);
        let (from_peer, from_bucket) = (source.is_from_peer(), source.is_from_bucket());
        // It is asked once.
        let peer = fetch.peer.take().filter(|_| from_peer);
        // It is gone, or not to be trusted.
        fetch.is_kept |= fetch.is_next && (from_bucket || fetched.is_err());
        fetched.map_err(|trouble| match (trouble, peer) {
            (Trouble::Wrong(reason), Some(peer)) => {
                peer.peers.is_wrong(&peer.member, &peer.name, &reason);
                Failed { trouble: Trouble::Wrong(reason), from_peer: true }
            }
            (trouble, _) => of_bucket(trouble),
        })
    }

    fn fetch_from(
        &self,
        source: &mut NarSource<'_>,
        nar: &NarRecord,
        file: &File,
        fill: &GrowingFile,
    ) -> Result<(), Trouble> {
        let differs = |len: u64| Trouble::Wrong(format!("it has {len} bytes instead of {}", nar.file_size));
        if let Some(len) = source.total_len().filter(|len| *len != nar.file_size) {
            return Err(differs(len));
        }
        fill.starts(Start::Comes(Some(nar.file_size)));
        let (mut hasher, mut buffer, mut written) = (Sha256Hasher::new(), vec![0; BUFFER_LEN], 0);
        loop {
            let len = match source.read_some(&mut buffer) {
                Ok(0) => break,
                Ok(len) => len,
                Err(HttpError::Changed) => return Err(Trouble::Wrong("it changed while it was fetched".to_owned())),
                Err(error) => return Err(Trouble::Unavailable(error)),
            };
            let piece = buffer.get(..len).unwrap_or_default();
            if written + len as u64 > nar.file_size {
                return Err(differs(written + len as u64));
            }
            hasher.update(piece);
            self.write_at(file, piece, written, nar.file_size).map_err(Trouble::Disk)?;
            written += len as u64;
            fill.wrote(written);
        }
        if written != nar.file_size {
            return Err(differs(written));
        }
        let hash = hasher.finish();
        if hash != nar.file_hash {
            return Err(Trouble::Wrong(format!("its SHA-256 is {} instead of {}", hash, nar.file_hash)));
        }
        Ok(())
    }
}

/// The name of a NAR in the disk cache. Each cache has its own: how fast one answers says nothing about what another has.
fn kept_name(cache: &CacheName, name: &str) -> String {
    format!("nar/{cache}.{name}")
}

/// A temporary error.
pub(super) fn unavailable(message: String) -> io::Error {
    io::Error::other(HttpError::Bucket { status: 503, message, retry_after: None, is_retryable: true })
}
