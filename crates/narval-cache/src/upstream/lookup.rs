//! Lookups: in memory, in the stored files, then upstream by upstream.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use narval_client::{HttpError, request_id};
use narval_nix::{Compression, HashPart, NarInfo, SecretKey, StoreDir};
use parking_lot::{Condvar, Mutex, RwLock};
use quick_cache::sync::Cache as Memory;

use super::ahead::Ahead;
use super::bases::Bases;
use super::counts::UpstreamsFigures;
use super::fetch::Fetch;
use super::name::NarName;
use super::options::{UpstreamOptions, UpstreamsOptions};
use super::remote::Remote;
use super::walk::Walks;
use super::{ABSENT_FOR, ABSENT_MAX, FETCHES_MAX, FETCHES_OF_ONE_MAX, NARINFOS_MAX, Unavailable};
use crate::CacheError;
use narval_client::Trouble;
use narval_codec::delta::DELTA_NAR_BYTES_MIN;
use narval_files::{Fill, FillEnd, Kept, Permits, Start, served_client, work_for};

/// The longest wait for a narinfo that another thread requests, and for the start of a NAR.
const PATIENCE: Duration = Duration::from_secs(60);

/// The number of threads that check whether references of pushed paths exist upstream.
const ELSEWHERE_THREADS: usize = 8;

/// Upstreams and their stored files. Cheap to clone: clones share everything.
#[derive(Clone)]
pub struct Upstreams {
    pub(super) shared: Arc<Shared>,
}

/// Why upstreams cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum UpstreamsError {
    /// The folder cannot be used.
    #[error("cannot use the folder of upstreams '{}': {error}", folder.display())]
    Folder {
        /// The folder.
        folder: PathBuf,
        /// The operating system's error.
        error: io::Error,
    },
    /// No thread can be started.
    #[error("cannot start threads: {0}")]
    Threads(io::Error),
}

/// The result of a lookup.
#[derive(Clone, Debug)]
pub enum Lookup {
    /// Its narinfo, as served.
    Found(Arc<[u8]>),
    /// No upstream has it.
    Absent,
}

/// A NAR.
#[derive(Debug)]
pub enum NarAnswer {
    /// A stored file of this length.
    File(File, u64),
    /// It is being fetched; its length, if known.
    Fill(Arc<Fill>, Option<u64>),
}

pub(super) struct Shared {
    /// In order of priority.
    remotes: RwLock<Arc<[Arc<Remote>]>>,
    pub(super) kept: Kept,
    /// Permits for threads of the server that wait.
    pub(super) waiting: Permits,
    fetches: Permits,
    store_dir: StoreDir,
    sign_keys: RwLock<Vec<SecretKey>>,
    narinfos: Memory<HashPart, Arc<Known>>,
    /// When absences were recorded, by name.
    absent: Memory<Box<str>, Instant>,
    asking: Mutex<HashMap<HashPart, Arc<Question>>>,
    fills: Mutex<HashMap<String, Arc<Fill>>>,
    ahead: Ahead,
    walks: Walks,
    bases: Bases,
    forgotten: AtomicU64,
    kept_hits: AtomicU64,
    kept_misses: AtomicU64,
}

/// A narinfo that was verified.
struct Known {
    info: Arc<NarInfo>,
    remote: Arc<Remote>,
    name: NarName,
    /// Whether the narinfo and the name are those of the uncompressed NAR, which is fetched as a delta where that is possible.
    plain: bool,
    text: Arc<[u8]>,
}

/// A narinfo that a thread is requesting.
#[derive(Default)]
struct Question {
    answer: Mutex<Option<Result<Option<Arc<Known>>, Unavailable>>>,
    answered: Condvar,
}

impl Upstreams {
    /// Opens the folder. No upstream is queried yet: they may all be down.
    ///
    /// # Errors
    /// The folder cannot be used, or no thread can be started.
    pub fn open(options: UpstreamsOptions) -> Result<Self, UpstreamsError> {
        let UpstreamsOptions { folder, bytes_max, upstreams, store_dir, waiting } = options;
        let kept = Kept::open(&folder, bytes_max).map_err(|error| UpstreamsError::Folder { folder, error })?;
        let remotes = remotes(upstreams, &store_dir);
        let mut threads = Ok(());
        let shared = Arc::new_cyclic(|shared| {
            let ahead = Ahead::start(unless_closed(shared, |shared, part| shared.look_ahead(*part)));
            let walks = Walks::start(bytes_max, unless_closed(shared, Shared::fetch_ahead));
            Shared {
                remotes: RwLock::new(remotes),
                kept,
                waiting: waiting.0,
                fetches: Permits::shared(FETCHES_MAX, FETCHES_OF_ONE_MAX),
                store_dir,
                sign_keys: RwLock::default(),
                narinfos: Memory::new(NARINFOS_MAX),
                absent: Memory::new(ABSENT_MAX),
                asking: Mutex::default(),
                fills: Mutex::default(),
                ahead: ahead.unwrap_or_else(|error| {
                    threads = Err(error);
                    Ahead::none()
                }),
                walks: walks.unwrap_or_else(|error| {
                    threads = Err(error);
                    Walks::none()
                }),
                bases: Bases::default(),
                forgotten: AtomicU64::new(0),
                kept_hits: AtomicU64::new(0),
                kept_misses: AtomicU64::new(0),
            }
        });
        threads.map_err(UpstreamsError::Threads)?;
        Ok(Self { shared })
    }

    /// Replaces the upstreams and the budget. Running fetches continue; paths of removed upstreams, or without a
    /// signature by the current keys, are no longer served.
    pub fn replace(&self, upstreams: Vec<UpstreamOptions>, bytes_max: u64) {
        let shared = &self.shared;
        *shared.remotes.write() = remotes(upstreams, &shared.store_dir);
        shared.narinfos.clear();
        shared.absent.clear();
        shared.walks.set_budget(bytes_max);
        shared.kept.set_bytes_max(bytes_max);
        shared.forgotten.fetch_add(1, Ordering::AcqRel);
    }

    /// The keys whose signatures are added to narinfos that an upstream's key has signed.
    pub fn set_sign_keys(&self, keys: Vec<SecretKey>) {
        *self.shared.sign_keys.write() = keys;
        self.shared.narinfos.clear();
        self.shared.forgotten.fetch_add(1, Ordering::AcqRel);
    }

    /// A lookup only in memory: does not wait or access the disk.
    pub fn remembered(&self, hash_part: &HashPart) -> Option<Lookup> {
        if let Some(known) = self.shared.narinfos.get(hash_part) {
            return Some(Lookup::Found(Arc::clone(&known.text)));
        }
        self.shared.is_absent(hash_part.as_str()).then_some(Lookup::Absent)
    }

    /// The number of narinfos that were invalidated so far. To cache a narinfo, take this number before looking it up,
    /// and compare it later.
    pub fn forgotten(&self) -> u64 {
        self.shared.forgotten.load(Ordering::Acquire)
    }

    /// The stored narinfo of a path. Never queries an upstream: for the presence check before a push.
    pub fn kept(&self, hash_part: &HashPart) -> Option<Arc<[u8]>> {
        self.shared.known(hash_part).map(|known| Arc::clone(&known.text))
    }

    /// The narinfo of a path, for a client. May wait for the upstreams. If a client walks a closure, its NARs are
    /// prefetched.
    ///
    /// # Errors
    /// [`Unavailable`]: not all upstreams could be queried, and none of the others has it.
    pub fn narinfo(&self, hash_part: &HashPart) -> Result<Lookup, Unavailable> {
        let Some(known) = self.shared.lookup(hash_part)? else { return Ok(Lookup::Absent) };
        self.shared.walks.asked(&known.info);
        Ok(Lookup::Found(Arc::clone(&known.text)))
    }

    /// Like [`narinfo`](Self::narinfo), for inspecting paths without fetching their NARs: does not count as walking a
    /// closure.
    ///
    /// # Errors
    /// See [`narinfo`](Self::narinfo).
    pub fn narinfo_to_look_at(&self, hash_part: &HashPart) -> Result<Lookup, Unavailable> {
        let known = self.shared.lookup(hash_part)?;
        Ok(known.map_or(Lookup::Absent, |known| Lookup::Found(Arc::clone(&known.text))))
    }

    /// The length of a NAR according to its narinfo, without fetching the NAR: `None` if there is no such NAR,
    /// `Some(None)` if the length is unknown.
    ///
    /// # Errors
    /// See [`narinfo`](Self::narinfo).
    pub fn nar_length(&self, name: &str) -> Result<Option<Option<u64>>, Unavailable> {
        let known = self.shared.by_name(name)?;
        Ok(known.map(|known| known.length()))
    }

    /// A NAR by its name below `nar/`: from the stored files, from a running fetch, or from a new one.
    ///
    /// # Errors
    /// See [`narinfo`](Self::narinfo).
    pub fn nar(&self, name: &str) -> Result<Option<NarAnswer>, Unavailable> {
        match self.shared.by_name(name)? {
            Some(known) => {
                self.shared.walks.claimed(&known.name.file);
                self.shared.nar(&known)
            }
            None => Ok(None),
        }
    }

    /// How many upstreams respond, as far as their last requests have shown, and how many there are.
    pub fn available(&self) -> (usize, usize) {
        let remotes = Arc::clone(&self.shared.remotes.read());
        let failing = remotes.iter().filter(|remote| remote.cache.breaker.is_failing()).count();
        (remotes.len() - failing, remotes.len())
    }

    /// What the requests to them have come to, and what is kept.
    pub fn figures(&self) -> UpstreamsFigures {
        let figures =
            |remote: &Arc<Remote>| remote.counts.figures(remote.url().to_string(), !remote.cache.breaker.is_failing());
        UpstreamsFigures {
            upstreams: self.shared.remotes().iter().map(figures).collect(),
            kept_bytes: self.shared.kept.bytes(),
            kept_bytes_max: self.shared.kept.bytes_max(),
            kept_hits: self.shared.kept_hits.load(Ordering::Relaxed),
            kept_misses: self.shared.kept_misses.load(Ordering::Relaxed),
        }
    }

    /// The size of the stored files in bytes.
    pub fn kept_bytes(&self) -> u64 {
        self.shared.kept.bytes()
    }
}

impl Upstreams {
    /// For each hash part, whether a client can get the path from an upstream. Queries unknown ones, several at once. A path that cannot be
    /// queried counts as absent, so that closures stay complete.
    pub fn have(&self, hash_parts: &[HashPart]) -> Vec<bool> {
        self.look_up_all(hash_parts, |_| true).into_iter().map(|found| found.is_some()).collect()
    }

    /// As [`have`](Self::have): the narinfos, as served. An upstream that is down stops no pushes.
    pub fn served(&self, hash_parts: &[HashPart]) -> Vec<Option<NarInfo>> {
        let served = |known: &Known| NarInfo::parse(&known.text, &self.shared.store_dir).ok();
        self.look_up_all(hash_parts, served).into_iter().map(Option::flatten).collect()
    }

    fn look_up_all<T: Send>(&self, hash_parts: &[HashPart], take: impl Fn(&Known) -> T + Sync) -> Vec<Option<T>> {
        let size = hash_parts.len().div_ceil(ELSEWHERE_THREADS).max(1);
        let find = |hash_part: &HashPart| Some(take(&*self.shared.lookup(hash_part).ok()??));
        let (id, client) = (request_id::current(), served_client());
        thread::scope(|scope| {
            let ask = |part: &'_ [HashPart]| {
                let _client = work_for(client);
                let _entered = request_id::enter(id.clone());
                part.iter().map(find).collect::<Vec<_>>()
            };
            let threads: Vec<_> = hash_parts.chunks(size).map(|part| (part, scope.spawn(move || ask(part)))).collect();
            let none = |part: &[HashPart]| part.iter().map(|_| None).collect();
            // A thread that panicked found none.
            threads.into_iter().flat_map(|(part, thread)| thread.join().unwrap_or_else(|_| none(part))).collect()
        })
    }
}

impl std::fmt::Debug for Upstreams {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.shared.remotes().iter().map(|remote| remote.url().to_string())).finish()
    }
}

impl Known {
    /// The size of the file, if it is known.
    fn length(&self) -> Option<u64> {
        let is_plain = self.plain || self.info.compression == Compression::None;
        let file_size = self.info.file_size.filter(|_| !self.plain);
        file_size.or(is_plain.then_some(self.info.nar_size))
    }

    /// The same with the file that has this name: compressed or not, whatever the narinfo says now. Clients remember names.
    fn named(self: Arc<Self>, name: &str) -> Option<Arc<Self>> {
        if self.name.to_string() == name {
            return Some(self);
        }
        let plain = !self.plain;
        let other = if plain { NarName::plain(&self.info) } else { NarName::of(&self.info) };
        (other.to_string() == name).then(|| {
            let Self { info, remote, text, .. } = &*self;
            Arc::new(Self { info: info.clone(), remote: remote.clone(), name: other, plain, text: text.clone() })
        })
    }
}

impl Shared {
    pub(super) fn remotes(&self) -> Arc<[Arc<Remote>]> {
        Arc::clone(&self.remotes.read())
    }

    pub(super) fn busy() -> Unavailable {
        Unavailable::new(1, "too many requests are already waiting for them")
    }

    pub(super) fn is_absent(&self, what: &str) -> bool {
        self.absent.get(what).is_some_and(|since| since.elapsed() < ABSENT_FOR)
    }

    pub(super) fn note_absent(&self, what: &str) {
        self.absent.insert(what.into(), Instant::now());
    }

    /// Looks up a path that a client will probably request.
    pub(super) fn look_ahead(&self, hash_part: HashPart) {
        if self.known(&hash_part).is_none() && !self.is_absent(hash_part.as_str()) {
            // A client that requests it gets the error.
            let _ = self.ask_once(hash_part);
        }
    }

    /// Starts fetching a NAR that a client will probably request, if it is not stored and there is room.
    pub(super) fn fetch_ahead(self: &Arc<Self>, hash_part: &HashPart) -> Option<Arc<Fill>> {
        let known = self.known(hash_part)?;
        let kept = format!("nar/{}", known.name.file);
        let mut fills = self.fills.lock();
        if fills.contains_key(&kept) || self.kept.has(&kept) {
            return None;
        }
        let bytes = known.length().unwrap_or(known.info.nar_size);
        if !self.walks.may_fetch(&known.name.file, bytes) {
            return None;
        }
        let begun = self.begin(&known, &kept, &mut fills);
        if begun.is_err() {
            // A client that requests it gets the error.
            self.walks.claimed(&known.name.file);
        }
        begun.ok()
    }

    /// A lookup in memory and on disk.
    fn known(&self, hash_part: &HashPart) -> Option<Arc<Known>> {
        if let Some(known) = self.narinfos.get(hash_part) {
            return Some(known);
        }
        let bytes = self.kept.read(&kept_name(hash_part))?;
        self.take_up(*hash_part, &bytes)
    }

    /// Parses a stored narinfo; `None` if its upstream is no longer configured or its signature no longer trusted.
    fn take_up(&self, hash_part: HashPart, bytes: &[u8]) -> Option<Arc<Known>> {
        let text = str::from_utf8(bytes).ok()?;
        let (url, text) = text.strip_prefix(KEPT_FIRST)?.split_once("\n\n")?;
        let remote = self.remotes().iter().find(|remote| remote.url().to_string() == url).cloned()?;
        let info = remote.take_up(hash_part, text.as_bytes()).ok()?;
        Some(self.remember(info, &remote))
    }

    fn remember(&self, info: NarInfo, remote: &Arc<Remote>) -> Arc<Known> {
        let mut served = info.clone();
        let plain = info.nar_size >= DELTA_NAR_BYTES_MIN && remote.sends_deltas();
        let name = if plain { NarName::plain(&info) } else { NarName::of(&info) };
        if plain {
            (served.compression, served.file_hash, served.file_size) = (Compression::None, None, None);
        }
        served.url = format!("nar/{name}");
        if remote.is_signed() {
            let fingerprint = info.fingerprint(&self.store_dir);
            for key in self.sign_keys.read().iter() {
                let signature = key.sign(fingerprint.as_bytes());
                if !served.signatures.contains(&signature) {
                    served.signatures.push(signature);
                }
            }
        }
        let text = served.render(&self.store_dir).into_bytes().into();
        let known = Arc::new(Known { info: Arc::new(info), remote: Arc::clone(remote), name, plain, text });
        let hash_part = known.info.path.hash_part();
        self.narinfos.insert(hash_part, Arc::clone(&known));
        // The upstreams may have been replaced since this one was queried.
        if !self.remotes().iter().any(|current| Arc::ptr_eq(current, remote)) {
            self.narinfos.remove(&hash_part);
        }
        known
    }

    fn lookup(&self, hash_part: &HashPart) -> Result<Option<Arc<Known>>, Unavailable> {
        if let Some(known) = self.known(hash_part) {
            return Ok(Some(known));
        }
        if self.is_absent(hash_part.as_str()) {
            return Ok(None);
        }
        let _permit = self.waiting.take().ok_or_else(Self::busy)?;
        self.ask_once(*hash_part)
    }

    /// Queries the upstreams, or waits for the thread that does.
    fn ask_once(&self, hash_part: HashPart) -> Result<Option<Arc<Known>>, Unavailable> {
        let (question, is_ours) = {
            let mut asking = self.asking.lock();
            match asking.get(&hash_part) {
                Some(question) => (Arc::clone(question), false),
                None => {
                    let question = Arc::new(Question::default());
                    asking.insert(hash_part, Arc::clone(&question));
                    (question, true)
                }
            }
        };
        if is_ours {
            let answer = self.ask(hash_part);
            self.asking.lock().remove(&hash_part);
            *question.answer.lock() = Some(answer.clone());
            question.answered.notify_all();
            return answer;
        }
        let mut answer = question.answer.lock();
        question.answered.wait_while_for(&mut answer, |answer| answer.is_none(), PATIENCE);
        answer.clone().unwrap_or_else(|| Err(Unavailable::new(5, "they take too long")))
    }

    fn ask(&self, hash_part: HashPart) -> Result<Option<Arc<Known>>, Unavailable> {
        let mut failed = None;
        for remote in self.remotes().iter() {
            let url = remote.url();
            if self.is_absent(&wrong_name(remote, &hash_part)) {
                continue;
            }
            if remote.cache.breaker.is_open() {
                failed.get_or_insert_with(|| Unavailable::new(10, format!("{url} does not respond")));
                continue;
            }
            match remote.narinfo(hash_part) {
                Ok(Some(info)) => {
                    let known = self.remember(info, remote);
                    self.keep(&known);
                    self.ahead.references(&known.info);
                    return Ok(Some(known));
                }
                Ok(None) => {}
                // It leads elsewhere, which does not become better by asking again.
                Err(error @ CacheError::Fetch { source: HttpError::OutOfBounds { .. }, .. }) => {
                    tracing::warn!("upstream {error}");
                }
                // Neither says a page of a proxy, or another invalid answer, that it does not have the path.
                Err(error @ (CacheError::Fetch { .. } | CacheError::NarInfo { .. })) => {
                    tracing::warn!("upstream {error}");
                    failed.get_or_insert_with(|| Unavailable::new(5, error.to_string()));
                }
                // What it has is not accepted.
                Err(error) => tracing::warn!("upstream {error}"),
            }
        }
        match failed {
            Some(unavailable) => Err(unavailable),
            None => {
                self.note_absent(hash_part.as_str());
                Ok(None)
            }
        }
    }

    fn keep(&self, known: &Known) {
        let name = kept_name(&known.info.path.hash_part());
        let text = format!("{KEPT_FIRST}{}\n\n{}", known.remote.url(), known.info.render(&self.store_dir));
        if let Err(error) = self.kept.keep_bytes(&name, text.as_bytes()) {
            tracing::warn!("upstreams: the narinfo of {} cannot be stored: {error}", known.info.path);
        }
    }

    /// The narinfos of the paths that are kept.
    fn kept_narinfos(&self) -> Vec<NarInfo> {
        let parse = |name: Arc<str>| {
            let text = String::from_utf8(self.kept.read(&name)?).ok()?;
            NarInfo::parse(text.split_once("\n\n")?.1.as_bytes(), &self.store_dir).ok()
        };
        self.kept.names("narinfo/").into_iter().filter_map(parse).collect()
    }

    fn forget(&self, known: &Known) {
        let hash_part = known.info.path.hash_part();
        self.narinfos.remove(&hash_part);
        self.kept.forget(&kept_name(&hash_part));
        self.forgotten.fetch_add(1, Ordering::AcqRel);
    }

    /// The path of a NAR's name.
    fn by_name(&self, name: &str) -> Result<Option<Arc<Known>>, Unavailable> {
        let Some(hash_part) = NarName::hash_part(name) else { return Ok(None) };
        let known = self.lookup(&hash_part)?;
        Ok(known.and_then(|known| known.named(name)))
    }

    fn nar(self: &Arc<Self>, known: &Arc<Known>) -> Result<Option<NarAnswer>, Unavailable> {
        let kept = format!("nar/{}", known.name.file);
        let fill = {
            let mut fills = self.fills.lock();
            if let Some(fill) = fills.get(&kept) {
                Arc::clone(fill)
            } else if let Some((file, length)) = self.kept.get(&kept) {
                // Ignore a file that was truncated.
                if known.length().is_none_or(|said| said == length) {
                    self.kept_hits.fetch_add(1, Ordering::Relaxed);
                    return Ok(Some(NarAnswer::File(file, length)));
                }
                self.kept.forget(&kept);
                self.begin(known, &kept, &mut fills)?
            } else {
                self.begin(known, &kept, &mut fills)?
            }
        };
        let start = match fill.start(Duration::ZERO) {
            Some(start) => Some(start),
            None => {
                let _permit = self.waiting.take().ok_or_else(Self::busy)?;
                fill.start(PATIENCE)
            }
        };
        if let Some(FillEnd::Failed(reason)) = fill.progress().end
            && start != Some(Start::Absent)
        {
            return Err(Unavailable::new(1, &*reason));
        }
        match start {
            Some(Start::Comes(length)) => Ok(Some(NarAnswer::Fill(fill, length))),
            Some(Start::Absent) => Ok(None),
            Some(Start::Unavailable(reason)) => Err(Unavailable::new(5, reason)),
            None => Err(Unavailable::new(5, "they take too long")),
        }
    }

    /// Starts fetching a NAR, on its own thread.
    fn begin(
        self: &Arc<Self>,
        known: &Arc<Known>,
        kept: &str,
        fills: &mut HashMap<String, Arc<Fill>>,
    ) -> Result<Arc<Fill>, Unavailable> {
        if known.remote.cache.breaker.is_open() {
            return Err(Unavailable::new(10, format!("{} does not respond", known.remote.url())));
        }
        let permit = self.fetches.take().ok_or_else(Self::busy)?;
        let failed = |error: io::Error| {
            tracing::error!("upstreams: cannot fetch: {error}");
            Unavailable::new(5, error.to_string())
        };
        let file = self.kept.take().map_err(failed)?;
        let fill = Arc::new(Fill::new(file.file().try_clone().map_err(failed)?));
        let (remote, info) = (Arc::clone(&known.remote), Arc::clone(&known.info));
        let fetch = Fetch { remote, info, fill: Arc::clone(&fill), plain: known.plain };
        let (shared, known, name) = (Arc::clone(self), Arc::clone(known), kept.to_owned());
        let id = request_id::current();
        let run = move || {
            let _permit = permit;
            let _entered = request_id::enter(id);
            let base = || shared.bases.find(&known.info, &shared.kept, || shared.kept_narinfos());
            match fetch.run(&file, base) {
                Ok(()) if !shared.walks.may_keep(&known.name.file) => {}
                Ok(()) => {
                    if let Err(error) = shared.kept.keep(&name, file) {
                        tracing::error!("upstreams: the NAR of {} cannot be stored: {error}", known.info.path);
                    }
                    if known.plain {
                        shared.bases.add(&known.info, || shared.kept_narinfos());
                    }
                }
                // A narinfo without its NAR is worse than none.
                Err(Trouble::Absent | Trouble::Wrong(_)) => {
                    shared.note_absent(&wrong_name(&known.remote, &known.info.path.hash_part()));
                    shared.forget(&known);
                }
                Err(Trouble::Unavailable(_) | Trouble::Disk(_)) => {}
            }
            shared.fills.lock().remove(&name);
            shared.kept.create_spare();
        };
        thread::Builder::new().name("upstream".into()).spawn(run).map_err(failed)?;
        self.kept_misses.fetch_add(1, Ordering::Relaxed);
        fills.insert(kept.to_owned(), Arc::clone(&fill));
        Ok(fill)
    }
}

/// Calls a function for a prefetching thread; breaks once the upstreams are closed.
fn unless_closed<T>(
    shared: &Weak<Shared>,
    act: fn(&Arc<Shared>, &HashPart) -> T,
) -> impl Fn(&HashPart) -> ControlFlow<(), T> + Clone + use<T> {
    let shared = Weak::clone(shared);
    move |hash_part| match shared.upgrade() {
        Some(shared) => ControlFlow::Continue(act(&shared, hash_part)),
        None => ControlFlow::Break(()),
    }
}

/// In order of priority.
fn remotes(mut upstreams: Vec<UpstreamOptions>, store_dir: &StoreDir) -> Arc<[Arc<Remote>]> {
    upstreams.sort_by_key(|upstream| upstream.priority);
    upstreams.into_iter().map(|one| Arc::new(Remote::new(one, store_dir))).collect()
}

/// The start of a stored narinfo.
const KEPT_FIRST: &str = "Upstream: ";

fn kept_name(hash_part: &HashPart) -> String {
    format!("narinfo/{hash_part}")
}

/// The name under which a path is recorded whose NAR this upstream does not have, or has wrong.
fn wrong_name(remote: &Remote, hash_part: &HashPart) -> String {
    format!("{hash_part} {}", remote.url())
}
