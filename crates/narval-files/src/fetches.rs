//! Files that are being fetched: each once, however many ask for it.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::thread;

use parking_lot::{Mutex, MutexGuard};

use crate::growing_file::{FillEnd, GrowingFile};
use crate::temporary::TemporaryFile;

type ByName = HashMap<Arc<str>, Arc<GrowingFile>>;

/// The fetches under way, by the name of their file. Cheap to clone: clones share them.
#[derive(Clone, Debug, Default)]
pub struct Fetches(Arc<Mutex<ByName>>);

/// The fetches, of which none begins or ends until this is dropped.
#[derive(Debug)]
pub struct FetchesLocked<'a> {
    fetches: &'a Fetches,
    by_name: MutexGuard<'a, ByName>,
}

/// A fetch, in the hands of its thread. When this is dropped before the [`GrowingFile`] has ended, the readers get an error.
#[derive(Debug)]
pub struct Fetcher {
    fetches: Fetches,
    name: Arc<str>,
    fill: Arc<GrowingFile>,
}

impl Fetches {
    /// Keeps others from beginning a fetch: to look for the file first.
    pub fn lock(&self) -> FetchesLocked<'_> {
        FetchesLocked { fetches: self, by_name: self.0.lock() }
    }
}

impl FetchesLocked<'_> {
    /// The running fetch of a file.
    pub fn get(&self, name: &str) -> Option<&Arc<GrowingFile>> {
        self.by_name.get(name)
    }

    /// Has `fetch` fill a file on a thread of its own. Until that returns, the file is found by its name.
    ///
    /// # Errors
    /// There are too few descriptors, or no thread can be started.
    pub fn begin(
        &mut self,
        name: &str,
        file: TemporaryFile,
        thread_name: &str,
        fetch: impl FnOnce(Fetcher, TemporaryFile) + Send + 'static,
    ) -> io::Result<Arc<GrowingFile>> {
        let (name, fill): (Arc<str>, _) = (Arc::from(name), fill_of(&file)?);
        let parts = (self.fetches.clone(), Arc::clone(&name), Arc::clone(&fill));
        let run = move || {
            // Here, because it takes the lock when it is dropped: also if no thread can be started.
            let (fetches, name, fill) = parts;
            fetch(Fetcher { fetches, name, fill }, file);
        };
        thread::Builder::new().name(thread_name.to_owned()).spawn(run)?;
        // The thread cannot have removed it yet.
        self.by_name.insert(name, Arc::clone(&fill));
        Ok(fill)
    }
}

impl Fetcher {
    /// The growing file.
    pub const fn fill(&self) -> &Arc<GrowingFile> {
        &self.fill
    }

    /// Begins again, with another file. Whoever asks from now on follows that one; the caller ends the one before, which is returned.
    ///
    /// # Errors
    /// There are too few descriptors.
    pub fn again(&mut self, file: &TemporaryFile) -> io::Result<Arc<GrowingFile>> {
        let next = fill_of(file)?;
        self.fetches.0.lock().insert(Arc::clone(&self.name), Arc::clone(&next));
        Ok(std::mem::replace(&mut self.fill, next))
    }
}

impl Drop for Fetcher {
    fn drop(&mut self) {
        self.fill.ends(FillEnd::Failed("the fetch was aborted".into()));
        let mut by_name = self.fetches.0.lock();
        // One that was abandoned may have a successor.
        if by_name.get(&self.name).is_some_and(|current| Arc::ptr_eq(current, &self.fill)) {
            by_name.remove(&self.name);
        }
    }
}

fn fill_of(file: &TemporaryFile) -> io::Result<Arc<GrowingFile>> {
    Ok(Arc::new(GrowingFile::new(file.file().try_clone()?)))
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use super::*;
    use crate::growing_file::{Progress, Start};

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn a_file_is_found_while_it_is_fetched_and_its_successor_stays() {
        let (folder, fetches) = (tempfile::tempdir().unwrap(), Fetches::default());
        let file = || TemporaryFile::create(folder.path(), "incoming-", 0o644).unwrap();
        let ((go, gate), (ended, has_ended)) = (channel::<()>(), channel::<()>());
        let first = fetches.lock().begin("nar/a", file(), "test", move |mut fetcher, first_file| {
            gate.recv().unwrap();
            let other = TemporaryFile::create(first_file.path().parent().unwrap(), "incoming-", 0o644).unwrap();
            let before = fetcher.again(&other).unwrap();
            before.ends(FillEnd::Failed("it is damaged".into()));
            gate.recv().unwrap();
            fetcher.fill().ends(FillEnd::Complete);
            drop((fetcher, ended));
        });
        let first = first.unwrap();
        assert!(fetches.lock().get("nar/a").is_some_and(|fill| Arc::ptr_eq(fill, &first)));
        assert!(fetches.lock().get("nar/b").is_none());
        go.send(()).unwrap();
        first.wait_for_end(LONG);
        let second = Arc::clone(fetches.lock().get("nar/a").unwrap());
        assert!(!Arc::ptr_eq(&first, &second) && second.progress().end.is_none());
        // As if the second one had been abandoned.
        let third = fetches.lock().begin("nar/a", file(), "test", |fetcher, _| std::mem::forget(fetcher)).unwrap();
        go.send(()).unwrap();
        second.wait_for_end(LONG);
        assert!(has_ended.recv().is_err());
        assert!(fetches.lock().get("nar/a").is_some_and(|fill| Arc::ptr_eq(fill, &third)));
        assert_eq!(second.progress(), Progress { readable: 0, end: Some(FillEnd::Complete) });
    }

    #[test]
    fn a_fetch_that_panics_fails_and_is_forgotten() {
        let (folder, fetches) = (tempfile::tempdir().unwrap(), Fetches::default());
        let file = TemporaryFile::create(folder.path(), "incoming-", 0o644).unwrap();
        let fill = fetches.lock().begin("nar/a", file, "test", |fetcher, _| {
            fetcher.fill().starts(Start::Comes(None));
            panic!("a test");
        });
        let fill = fill.unwrap();
        fill.wait_for_end(LONG);
        assert_eq!(fill.progress().end, Some(FillEnd::Failed("the fetch was aborted".into())));
        while fetches.lock().get("nar/a").is_some() {
            thread::yield_now();
        }
    }
}
