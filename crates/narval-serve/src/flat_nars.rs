//! NARs of many small files, kept whole for the next one who asks.
//!
//! Opening, reading and closing a file costs about 3 µs however small it is, so that a tree of 30,000 files takes a tenth
//! of a second of processor time; the same bytes from one file take a third of that. So when such a NAR has been sent
//! to its end, a thread makes it once more, into a file without a name, checks it against the NAR hash, and from then
//! on it goes by `sendfile(2)`.
//!
//! What is kept is named by its NAR hash and nothing else: it is sent only as the NAR of a path that has that hash in the
//! store's database now, and whose root is the one that was planned. The files have no names, so that nothing is left
//! behind, by a killed process either.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use narval_nix::{NarHash, Sha256Hasher};
use narval_store::{NarLayout, NarReader, NarStream};

use crate::corrupt::Corrupt;
use crate::layouts::Planned;
use crate::metrics::Metrics;

/// What all of them may take on disk, in bytes.
const BYTES_MAX: u64 = 512 * 1024 * 1024;
/// What one may take.
const ONE_BYTES_MAX: u64 = BYTES_MAX / 4;
/// The fewest entries that are worth it.
const ENTRIES_MIN: usize = 128;
/// The most bytes per entry that are worth it: sending 32 KiB takes as long as opening a file.
const BYTES_PER_ENTRY_MAX: u64 = 32 * 1024;
/// NARs that wait to be made. What finds no place is made when it is sent the next time.
const QUEUE_LEN_MAX: usize = 16;
/// How far the thread that makes them stands back. Not further: on a machine that is never idle it would never end.
const NICENESS: i32 = 5;
/// Bytes that are made at once.
const PIECE_BYTES: usize = 256 * 1024;

/// See the module's description.
#[derive(Debug)]
pub(crate) struct FlatNars {
    folder: PathBuf,
    state: Mutex<State>,
    corrupt: Arc<Corrupt>,
    metrics: Arc<Metrics>,
}

#[derive(Debug, Default)]
struct State {
    /// Used last, first.
    kept: VecDeque<Kept>,
    /// To be made; the first one is being made if there is a thread.
    wanted: VecDeque<Arc<Planned>>,
    has_thread: bool,
    /// The folder takes no files.
    is_off: bool,
}

#[derive(Debug)]
struct Kept {
    nar_hash: NarHash,
    size: u64,
    file: Arc<File>,
    /// How often it was sent, less when others wanted its room.
    uses: u32,
}

/// Why a NAR is not kept.
enum NotKept {
    Folder(io::Error),
    Nar(io::Error),
    OtherHash,
}

impl FlatNars {
    /// Keeps files in this folder (or rather in its file system).
    pub(crate) fn new(folder: &Path, corrupt: Arc<Corrupt>, metrics: Arc<Metrics>) -> Self {
        Self { folder: folder.to_owned(), state: Mutex::default(), corrupt, metrics }
    }

    /// The file of the NAR with this hash, if it is kept.
    pub(crate) fn get(&self, nar_hash: &NarHash) -> Option<Arc<File>> {
        let mut state = self.lock();
        let at = state.kept.iter().position(|kept| kept.nar_hash == *nar_hash)?;
        let mut kept = state.kept.remove(at)?;
        kept.uses = kept.uses.saturating_add(1);
        let file = Arc::clone(&kept.file);
        state.kept.push_front(kept);
        self.metrics.flat_nar_hits.inc();
        Some(file)
    }

    /// Has a NAR that was just sent made for the next time, if that is worth it.
    pub(crate) fn was_sent(self: &Arc<Self>, planned: &Arc<Planned>) {
        if !is_worth_it(&planned.layout) {
            return;
        }
        let mut state = self.lock();
        let is_known = state.kept.iter().any(|kept| kept.nar_hash == planned.nar_hash)
            || state.wanted.iter().any(|wanted| wanted.nar_hash == planned.nar_hash);
        if is_known
            || state.is_off
            || state.wanted.len() >= QUEUE_LEN_MAX
            || !state.has_room(planned.layout.size_bytes())
        {
            return;
        }
        state.wanted.push_back(Arc::clone(planned));
        if !state.has_thread {
            let this = Arc::clone(self);
            let thread = std::thread::Builder::new().name("flat-nars".to_owned()).spawn(move || this.work());
            state.has_thread = thread.is_ok();
            if let Err(error) = thread {
                state.wanted.clear();
                tracing::error!("a NAR of small files is not kept: no thread can be started: {error}");
            }
        }
    }

    /// Makes what is wanted, and ends when nothing is.
    fn work(&self) {
        // Whoever waits for an answer comes first (a thread has a priority of its own, sched(7)); without this it is
        // only less polite.
        let _ = rustix::process::setpriority_process(None, NICENESS);
        loop {
            let next = {
                let mut state = self.lock();
                let next = state.wanted.front().cloned();
                state.has_thread = next.is_some();
                next
            };
            let Some(planned) = next else { return };
            let made = self.make(&planned);
            let mut state = self.lock();
            state.wanted.pop_front();
            match made {
                Ok(file) => state.keep(Kept {
                    nar_hash: planned.nar_hash,
                    size: planned.layout.size_bytes(),
                    file: Arc::new(file),
                    uses: 0,
                }),
                Err(NotKept::Folder(error)) => {
                    state.is_off = true;
                    state.wanted.clear();
                    tracing::warn!(
                        "NARs of many small files are not kept: cannot write to '{}': {error}",
                        self.folder.display()
                    );
                }
                // Who asks for it next is told.
                Err(NotKept::Nar(error)) => tracing::debug!("NAR of {} is not kept: {error}", planned.path),
                Err(NotKept::OtherHash) => {
                    self.corrupt.add(planned.path.hash_part(), &planned.nar_hash, &planned.real_path);
                    tracing::error!("NAR of {}: {}", planned.path, crate::corrupt::NOT_AS_REGISTERED);
                }
            }
        }
    }

    fn make(&self, planned: &Planned) -> Result<File, NotKept> {
        let file = tempfile::tempfile_in(&self.folder).map_err(NotKept::Folder)?;
        let layout = Arc::clone(&planned.layout);
        let size = layout.size_bytes();
        let stream = NarStream::open(layout, &planned.real_path, 0..size, None);
        let mut nar = NarReader::of(stream.map_err(|error| NotKept::Nar(error.into()))?);
        let mut hasher = Sha256Hasher::new();
        let mut piece = vec![0; PIECE_BYTES];
        let mut at = 0;
        loop {
            let got = nar.read(&mut piece).map_err(NotKept::Nar)?;
            let bytes = piece.get(..got).unwrap_or_default();
            if bytes.is_empty() {
                break;
            }
            hasher.update(bytes);
            file.write_all_at(bytes, at).map_err(NotKept::Folder)?;
            at += got as u64;
        }
        if at == size && hasher.finish() == planned.nar_hash { Ok(file) } else { Err(NotKept::OtherHash) }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Whether there is room for so many bytes, or something that nobody uses in its place. A file that is used loses
    /// half of its claim each time: who sends more than there is room for, in turn, finds a part of it kept, and not
    /// none.
    fn has_room(&mut self, size: u64) -> bool {
        let bytes: u64 = self.kept.iter().map(|kept| kept.size).sum();
        match self.kept.back_mut() {
            Some(last) if bytes + size > BYTES_MAX && last.uses > 0 => {
                last.uses /= 2;
                false
            }
            _ => true,
        }
    }

    /// Keeps one more, and lets go of what was used longest ago as far as that needs room. Whoever is being sent one
    /// holds on to it.
    fn keep(&mut self, kept: Kept) {
        self.kept.push_front(kept);
        let mut bytes: u64 = self.kept.iter().map(|kept| kept.size).sum();
        while bytes > BYTES_MAX
            && let Some(last) = self.kept.pop_back()
        {
            bytes -= last.size;
        }
    }
}

fn is_worth_it(layout: &NarLayout) -> bool {
    let (size, entries) = (layout.size_bytes(), layout.entry_count());
    entries >= ENTRIES_MIN && size <= ONE_BYTES_MAX && size / entries as u64 <= BYTES_PER_ENTRY_MAX
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use narval_nix::{Sha256, StorePath};

    use super::*;
    use crate::layouts::Layouts;
    use crate::memo::Memo;

    const NAME: &str = "00bgd045z0d4icpbc2yyz4gx48ak44la-tree";

    fn tree(root: &Path, files: usize) -> PathBuf {
        let path = root.join(NAME);
        std::fs::create_dir(&path).unwrap();
        (0..files).for_each(|number| std::fs::write(path.join(number.to_string()), vec![7; number]).unwrap());
        path
    }

    fn planned(path: &Path) -> Arc<Planned> {
        let layout = Arc::new(NarLayout::plan(path).unwrap());
        let mut nar = Vec::new();
        NarReader::open(path).unwrap().read_to_end(&mut nar).unwrap();
        let (nar_hash, real_path) = (Sha256::of(&nar), path.to_owned());
        Arc::new(Planned { path: StorePath::parse(NAME).unwrap(), real_path, nar_hash, layout })
    }

    fn flat(folder: &Path) -> Arc<FlatNars> {
        let metrics = Arc::new(Metrics::new());
        let corrupt = Corrupt::new(Memo::new(1 << 20).into(), Layouts::new().into(), Arc::clone(&metrics));
        Arc::new(FlatNars::new(folder, Arc::new(corrupt), metrics))
    }

    fn idle(flat: &FlatNars) {
        let until = Instant::now() + Duration::from_secs(60);
        while flat.lock().has_thread {
            assert!(Instant::now() < until);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn what_was_sent_is_kept_and_nothing_is_seen_of_it() {
        let dir = tempfile::tempdir().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let planned = planned(&tree(dir.path(), 200));
        let flat = flat(folder.path());
        assert!(flat.get(&planned.nar_hash).is_none());
        flat.was_sent(&planned);
        idle(&flat);
        let mut nar = vec![0; usize::try_from(planned.layout.size_bytes()).unwrap()];
        let file = flat.get(&planned.nar_hash).unwrap();
        file.read_exact_at(&mut nar, 0).unwrap();
        assert_eq!(Sha256::of(&nar), planned.nar_hash);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn what_is_not_as_registered_is_not_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = tree(dir.path(), 200);
        let planned = planned(&path);
        std::fs::write(path.join("100"), vec![8; 100]).unwrap();
        let flat = flat(dir.path());
        flat.was_sent(&planned);
        idle(&flat);
        assert!(flat.get(&planned.nar_hash).is_none());
        assert_eq!(flat.metrics.corrupt_paths.get(), 1);
        // A file that is gone is no judgement of the path.
        std::fs::remove_file(path.join("100")).unwrap();
        flat.was_sent(&planned);
        idle(&flat);
        assert!(flat.get(&planned.nar_hash).is_none());
        assert_eq!(flat.metrics.corrupt_paths.get(), 1);
    }

    #[test]
    fn few_files_are_not_worth_it_and_a_folder_that_is_not_there_ends_it() {
        let dir = tempfile::tempdir().unwrap();
        let flat = flat(&dir.path().join("none"));
        std::fs::create_dir(dir.path().join("few")).unwrap();
        flat.was_sent(&planned(&tree(&dir.path().join("few"), 20)));
        assert!(!flat.lock().has_thread);
        flat.was_sent(&planned(&tree(dir.path(), 200)));
        idle(&flat);
        assert!(flat.lock().is_off);
    }

    #[test]
    fn the_longest_unused_goes_first() {
        let mut state = State::default();
        for number in 0..5_u8 {
            let file = Arc::new(tempfile::tempfile().unwrap());
            assert!(state.has_room(BYTES_MAX / 4));
            state.keep(Kept { nar_hash: Sha256::of(&[number]), size: BYTES_MAX / 4, file, uses: 0 });
        }
        let kept: Vec<_> = state.kept.iter().map(|kept| kept.nar_hash).collect();
        assert_eq!(kept, [4, 3, 2, 1].map(|number: u8| Sha256::of(&[number])));
        // What is used stays for a while.
        state.kept.back_mut().unwrap().uses = 2;
        assert_eq!([(); 3].map(|()| state.has_room(BYTES_MAX / 4)), [false, false, true]);
    }
}
