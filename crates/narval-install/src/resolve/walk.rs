//! Finds the closure: a walk over the narinfos that never waits for a level to be complete. Found paths are passed on
//! immediately, so NARs can be fetched during the walk.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::thread::Scope;

use narval_cache::{BATCH_MAX, BinaryCaches, TrustedNarInfo, Wanted};
use narval_nix::{HashPart, StorePath};
use parking_lot::{Condvar, Mutex};

use narval_transfer::Error;
use narval_transfer::find_cycle;

/// The maximum number of concurrent narinfo requests: half of the connections to an origin; the other half is for NARs.
pub const LOOKUPS_MAX: usize = 32;

/// The maximum number of paths of a closure.
pub const CLOSURE_PATHS_MAX: usize = 250_000;

/// The maximum number of references of all paths of a closure.
pub const CLOSURE_REFERENCES_MAX: usize = 5_000_000;

#[derive(Default)]
struct State {
    queue: VecDeque<Wanted>,
    /// The requested paths by hash part: two names with one hash part cannot both be right.
    seen: HashMap<HashPart, Seen>,
    /// Narinfos from a batch that were not requested yet.
    early: HashMap<HashPart, TrustedNarInfo>,
    /// References of the paths found so far.
    references: usize,
    threads: usize,
    idle: usize,
    done: bool,
    error: Option<Error>,
}

/// A requested path, and a path that refers to it.
struct Seen {
    wanted: Wanted,
    referrer: Option<StorePath>,
}

impl State {
    /// Queues a path, unless it was queued before under the same name. `referrer` refers to it.
    fn want(&mut self, wanted: Wanted, referrer: Option<&StorePath>) -> Result<(), Error> {
        let referrer = referrer.cloned();
        match (self.seen.entry(wanted.hash_part()), &wanted) {
            (Entry::Vacant(entry), _) => {
                entry.insert(Seen { wanted: wanted.clone(), referrer });
                self.queue.push_back(wanted);
                Ok(())
            }
            (Entry::Occupied(entry), Wanted::Path(path)) if !entry.get().wanted.is(path) => {
                let Seen { wanted: other, referrer: first } = entry.get();
                Err(match (referrer, first, other) {
                    (Some(referrer), ..) => Error::Reference { path: referrer, reference: path.clone() },
                    (None, Some(first), Wanted::Path(other)) => {
                        Error::Reference { path: first.clone(), reference: other.clone() }
                    }
                    _ => Error::Usage(format!("{other} and {path} cannot both be store paths")),
                })
            }
            (Entry::Occupied(mut entry), Wanted::Path(_)) => {
                // It may have been known only by its hash part. The names are compared after the lookup.
                entry.insert(Seen { wanted, referrer });
                Ok(())
            }
            (Entry::Occupied(_), Wanted::HashPart(_)) => Ok(()),
        }
    }
}

/// One walk.
pub(crate) struct Walk<'a> {
    caches: &'a BinaryCaches,
    /// Whether the store already has a path with its closure.
    exists: &'a (dyn Fn(&StorePath) -> Result<bool, Error> + Sync),
    /// Called for each found path, from several threads.
    on_found: &'a (dyn Fn(TrustedNarInfo) -> Result<(), Error> + Sync),
    /// The maximum numbers of paths and of references.
    limits: [usize; 2],
    state: Mutex<State>,
    changed: Condvar,
}

impl<'a> Walk<'a> {
    pub(crate) fn new(
        caches: &'a BinaryCaches,
        roots: &[Wanted],
        exists: &'a (dyn Fn(&StorePath) -> Result<bool, Error> + Sync),
        on_found: &'a (dyn Fn(TrustedNarInfo) -> Result<(), Error> + Sync),
    ) -> Self {
        let mut state = State::default();
        for root in roots {
            if let Err(error) = state.want(root.clone(), None) {
                state.error.get_or_insert(error);
            }
        }
        let limits = [CLOSURE_PATHS_MAX, CLOSURE_REFERENCES_MAX];
        Self { caches, exists, on_found, limits, state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Walks until everything is found, or a lookup has failed. Threads are started as the queue grows.
    pub(crate) fn run<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>) -> Result<(), Error> {
        let roots: Vec<_> = self.state.lock().queue.iter().map(Wanted::hash_part).take(BATCH_MAX).collect();
        let early = self.caches.find_many(&roots);
        let mut state = self.state.lock();
        if let Some(error) = state.error.take() {
            return Err(error);
        }
        state.early.extend(early.into_iter().map(|found| (found.info.path.hash_part(), found)));
        self.start_threads(&mut state, scope);
        while !(state.done && state.threads == 0) {
            if state.threads == 0 && state.queue.is_empty() {
                state.done = true;
                break;
            }
            self.changed.wait(&mut state);
        }
        state.error.take().map_or(Ok(()), Err)
    }

    fn start_threads<'scope>(&'scope self, state: &mut State, scope: &'scope Scope<'scope, '_>) {
        while state.threads < LOOKUPS_MAX
            && state.queue.len() > state.idle
            && state.threads < state.queue.len() + state.idle
        {
            state.threads += 1;
            state.idle += 1;
            scope.spawn(move || self.work(scope));
        }
    }

    fn work<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>) {
        let mut state = self.state.lock();
        loop {
            if state.done {
                break;
            }
            let Some(wanted) = state.queue.pop_front() else {
                if state.idle == state.threads {
                    state.done = true;
                    break;
                }
                self.changed.wait(&mut state);
                continue;
            };
            state.idle -= 1;
            let early = state.early.remove(&wanted.hash_part()).filter(|found| wanted.is(&found.info.path));
            drop(state);
            let new = self.visit(&wanted, early);
            state = self.state.lock();
            state.idle += 1;
            let taken = new.and_then(|(path, references)| {
                state.want(Wanted::Path(path.clone()), None)?;
                references.into_iter().try_for_each(|one| state.want(Wanted::Path(one), Some(&path)))
            });
            match taken {
                Ok(()) => self.start_threads(&mut state, scope),
                Err(error) => {
                    state.error.get_or_insert(error);
                    state.done = true;
                }
            }
            self.changed.notify_all();
        }
        state.threads -= 1;
        state.idle -= 1;
        self.changed.notify_all();
    }

    /// Looks up one path, passes it on, and returns it with those of its references that the store lacks.
    fn visit(&self, wanted: &Wanted, early: Option<TrustedNarInfo>) -> Result<(StorePath, Vec<StorePath>), Error> {
        let found = match early {
            Some(found) => found,
            None => self.caches.find(wanted)?,
        };
        let path = found.info.path.clone();
        self.check_limits(&found)?;
        let mut missing = Vec::new();
        for reference in &found.info.references {
            let wanted = Wanted::Path(reference.clone());
            let known = self.state.lock().seen.get(&reference.hash_part()).is_some_and(|seen| seen.wanted == wanted);
            if !known && *reference != path && !(self.exists)(reference)? {
                missing.push(reference.clone());
            }
        }
        (self.on_found)(found)?;
        Ok((path, missing))
    }
}

impl Walk<'_> {
    fn check_limits(&self, found: &TrustedNarInfo) -> Result<(), Error> {
        let mut state = self.state.lock();
        state.references += found.info.references.len();
        let [paths, references] = self.limits;
        let limits = [(state.seen.len(), paths, "paths"), (state.references, references, "references")];
        drop(state);
        let exceeded = limits.into_iter().find(|(count, limit, _)| count > limit);
        let error = |(_, limit, what)| Err(Error::Closure { cache: found.cache.url().to_string(), limit, what });
        exceeded.map_or(Ok(()), error)
    }
}

/// # Errors
/// [`Error::Cycle`], if paths refer to each other.
pub(crate) fn check_cycles(all: &[TrustedNarInfo]) -> Result<(), Error> {
    let references = all.iter().map(|found| (&found.info.path, &found.info.references)).collect();
    let Some((path, reference)) = find_cycle(&references) else { return Ok(()) };
    let cache = all.iter().find(|found| found.info.path == *path).map(|found| found.cache.url().to_string());
    Err(Error::Cycle { cache: cache.unwrap_or_default(), path: path.clone(), reference: reference.clone() })
}

/// All narinfos of a closure, except for paths that are already there.
pub(crate) fn closure(
    caches: &BinaryCaches,
    roots: &[Wanted],
    exists: &(dyn Fn(&StorePath) -> Result<bool, Error> + Sync),
) -> Result<Vec<TrustedNarInfo>, Error> {
    let all = Mutex::new(Vec::new());
    let on_found = |found: TrustedNarInfo| {
        all.lock().push(found);
        Ok(())
    };
    let walk = Walk::new(caches, roots, exists, &on_found);
    std::thread::scope(|scope| walk.run(scope))?;
    drop(walk);
    let mut all = all.into_inner();
    check_cycles(&all)?;
    all.sort_by(|a, b| a.info.path.cmp(&b.info.path));
    Ok(all)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::Arc;

    use narval_client::{Client, ClientOptions, Url};
    use narval_nix::{StoreDir, TrustedKeys};

    use super::*;

    /// A cache of five paths, each of which refers to those after it: ten references.
    fn cache() -> (tempfile::TempDir, BinaryCaches, Wanted) {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("nix-cache-info"), "StoreDir: /nix/store\n").unwrap();
        let names: Vec<_> = (0..5).map(|number| format!("{}{number}-p", "0".repeat(31))).collect();
        for (at, name) in names.iter().enumerate() {
            let hash = format!("sha256:{}", "0".repeat(52));
            let text = format!(
                "StorePath: /nix/store/{name}\nURL: nar/{name}.nar\nCompression: none\nNarHash: {hash}\nNarSize: 1\nReferences: {}\n",
                names[at + 1..].join(" ")
            );
            fs::write(folder.path().join(format!("{}.narinfo", &name[..32])), text).unwrap();
        }
        let url = Url::parse(&format!("file://{}", folder.path().display())).unwrap();
        let client = Arc::new(Client::new(ClientOptions::default()));
        let caches = BinaryCaches::open(&[url], &client, &StoreDir::default(), TrustedKeys::default(), false).unwrap();
        let root = Wanted::parse(&names[0], &StoreDir::default()).unwrap();
        (folder, caches, root)
    }

    #[test]
    fn a_closure_beyond_the_limits_ends_the_walk() {
        let (_folder, caches, root) = cache();
        let walk = |limits: [usize; 2]| {
            let found = Mutex::new(0);
            let on_found = |_| {
                *found.lock() += 1;
                Ok(())
            };
            let mut walk = Walk::new(&caches, std::slice::from_ref(&root), &|_| Ok(false), &on_found);
            assert_eq!(walk.limits, [250_000, 5_000_000], "as documented");
            walk.limits = limits;
            std::thread::scope(|scope| walk.run(scope)).map(|()| *found.lock())
        };
        assert_eq!(walk([5, 10]).unwrap(), 5);
        for (limits, count) in [([4, 10], "4 paths"), ([5, 9], "9 references")] {
            let error = walk(limits).unwrap_err();
            assert!(error.to_string().contains(count) && error.exit_code() == 4, "{error}");
        }
    }
}
