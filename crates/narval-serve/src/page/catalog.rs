//! Search by name, in a table of the names of all paths in memory. It is built when somebody opens the page, and dropped when it is not used.
//!
//! A scan of the names of a million paths takes a few milliseconds, and no database index finds parts of words. The names of
//! a live store could not be indexed anyway: its database belongs to Nix.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use memchr::memmem::Finder;
use parking_lot::{Condvar, Mutex};
use serde::Serialize;

use super::Places;
use super::paths::{is_accepted, look_up};
use super::usage::package_name;
use crate::error::ServeError;

/// The maximum number of searched paths, the newest ones: about 100 bytes of memory each.
const PATHS_MAX: usize = 4_000_000;
/// Results are counted up to this number: words that most names have would take 0.2 s for a million paths.
const TOTAL_MAX: usize = 10_000;
/// Results in one answer.
const PAGE_LEN: usize = 50;
/// The maximum length of a query in bytes, and of its words.
const QUERY_LEN_MAX: usize = 256;
const WORDS_MAX: usize = 16;
/// How long an unused table is kept.
const IDLE_MAX: Duration = Duration::from_secs(300);
/// If building took longer than this, an outdated table is searched until another thread has built the next one.
const WAIT_MAX: Duration = Duration::from_millis(30);
/// An outdated table is rebuilt, but at most one twentieth of the time is spent on that.
const REST_FACTOR: u32 = 20;
/// How many names tell which word is the rarest.
const SAMPLE_LEN: usize = 2_000;
/// Length of a hash part and the dash after it.
const HASH_LEN: usize = 33;

/// A search query.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Asked {
    /// In lower case; all of them must be in the name.
    words: Vec<String>,
    /// Only paths of this package: names that are equal up to the version.
    package: Option<String>,
    /// How many results to skip.
    from: usize,
}

impl Asked {
    /// Parses a query such as `q=hello%20world&from=50`. Unknown parameters are ignored.
    pub(super) fn parse(query: Option<&str>) -> Self {
        let mut asked = Self::default();
        for (key, value) in query.unwrap_or_default().split('&').filter_map(|pair| pair.split_once('=')) {
            match key {
                "q" => {
                    let value = value.replace('+', " ");
                    let text = percent_encoding::percent_decode_str(&value).decode_utf8_lossy().to_lowercase();
                    let mut text = text.as_str();
                    while text.len() > QUERY_LEN_MAX {
                        text = text
                            .get(..text.len() - 1)
                            .unwrap_or_else(|| text.trim_end_matches(|c: char| !c.is_ascii()));
                    }
                    // A whole store path may be pasted.
                    let text = text.rsplit('/').next().unwrap_or_default();
                    asked.words = text.split_whitespace().take(WORDS_MAX).map(str::to_owned).collect();
                }
                "package" => {
                    let value = percent_encoding::percent_decode_str(value).decode_utf8_lossy();
                    let package = value.get(..value.len().min(QUERY_LEN_MAX)).unwrap_or_default();
                    asked.words = vec![package.to_lowercase()];
                    asked.package = Some(package.to_owned());
                }
                "from" => asked.from = value.parse().unwrap_or(0),
                _ => {}
            }
        }
        asked
    }
}

/// What was searched for, as it was typed.
pub(super) fn query_text(query: Option<&str>) -> String {
    let typed = query.unwrap_or_default().split('&').find_map(|pair| pair.strip_prefix("q="));
    let typed = typed.unwrap_or_default().replace('+', " ");
    percent_encoding::percent_decode_str(&typed).decode_utf8_lossy().chars().take(QUERY_LEN_MAX).collect()
}

/// One result.
#[derive(Debug, Serialize, PartialEq, Eq)]
pub(super) struct Found {
    hash: String,
    name: String,
    /// Size in bytes: of the NAR in a live store, of its file in a writable cache.
    size: u64,
    /// When it was registered, or last pushed or requested, in seconds since 1970.
    time: u64,
    #[serde(skip_serializing_if = "is_false")]
    pinned: bool,
    /// Whether it lacks a signature of this server, which has a key.
    #[serde(skip_serializing_if = "is_false")]
    unsigned: bool,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_false(value: &bool) -> bool {
    !value
}

/// The answer to a search.
#[derive(Debug, Serialize)]
pub(super) struct Results {
    /// The number of results.
    total: usize,
    /// Whether there are more, which were not counted.
    more: bool,
    /// The number of searched paths.
    of: usize,
    paths: Vec<Found>,
}

/// The states of the sources when a table was built.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Stamps(Option<Option<narval_store::Stamp>>, Option<narval_keep::Stamp>);

impl Stamps {
    fn of(places: &Places) -> Self {
        Self(places.store.as_ref().map(|store| store.stamp()), places.written.as_ref().map(|cache| cache.stamp()))
    }
}

struct Made {
    stamps: Stamps,
    at: Instant,
    took: Duration,
    used: Instant,
    table: Arc<Table>,
}

/// The table, while it is used.
#[derive(Default)]
pub(super) struct Catalog {
    state: Mutex<State>,
    /// Notified when a table was built, or could not be.
    built: Condvar,
}

#[derive(Default)]
struct State {
    made: Option<Made>,
    /// Whether a thread builds the table, or the next one. It does not hold the lock meanwhile.
    is_building: bool,
}

/// The right to build the table.
struct Building(Arc<Catalog>);

impl Drop for Building {
    fn drop(&mut self) {
        self.0.state.lock().is_building = false;
        self.0.built.notify_all();
    }
}

impl fmt::Debug for Catalog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Catalog")
    }
}

impl Catalog {
    /// Searches; builds the table first if there is none.
    pub(super) fn search(self: &Arc<Self>, places: &Arc<Places>, asked: &Asked) -> Result<Results, ServeError> {
        let mut results = self.table(places)?.search(asked);
        let pins = places.written.as_ref().map(|cache| cache.pins()).transpose()?.unwrap_or_default();
        let pinned: HashSet<&str> = pins.iter().filter_map(|pin| pin.path.split('-').next()).collect();
        for found in &mut results.paths {
            found.pinned = pinned.contains(found.hash.as_str());
            let info = found.hash.parse().ok().map(|hash| look_up(places, hash)).transpose()?.flatten();
            found.unsigned = info.is_some_and(|info| is_accepted(places, &info) == Some(false));
        }
        Ok(results)
    }

    /// Begins to build the table, if there is none: who opens the page may search soon, and with a million paths building takes seconds.
    pub(super) fn prepare(self: &Arc<Self>, places: &Arc<Places>) {
        let mut state = self.state.lock();
        if state.made.is_none() && !state.is_building {
            let building = self.begin(&mut state);
            drop(state);
            self.build_on_a_thread(building, places);
        }
    }

    /// Requests that arrive while the first table is built wait for it.
    fn table(self: &Arc<Self>, places: &Arc<Places>) -> Result<Arc<Table>, ServeError> {
        let stamps = Stamps::of(places);
        let mut state = self.state.lock();
        let building = loop {
            if let Some(known) = state.made.as_mut() {
                known.used = Instant::now();
                let is_known = known.stamps == stamps && !matches!(known.stamps.0, Some(None));
                let is_slow = known.took > WAIT_MAX;
                let table = Arc::clone(&known.table);
                if is_known || known.at.elapsed() < known.took * REST_FACTOR || (is_slow && state.is_building) {
                    return Ok(table);
                }
                if is_slow {
                    let building = self.begin(&mut state);
                    drop(state);
                    self.build_on_a_thread(building, places);
                    return Ok(table);
                }
            }
            if !state.is_building {
                break self.begin(&mut state);
            }
            self.built.wait(&mut state);
        };
        drop(state);
        self.build(&building, places)
    }

    fn begin(self: &Arc<Self>, state: &mut State) -> Building {
        state.is_building = true;
        Building(Arc::clone(self))
    }

    fn build_on_a_thread(self: &Arc<Self>, building: Building, places: &Arc<Places>) {
        let (this, places) = (Arc::clone(self), Arc::clone(places));
        let build = move || {
            if let Err(error) = this.build(&building, &places) {
                tracing::warn!("the names of all paths cannot be read: {error}");
            }
        };
        if let Err(error) = std::thread::Builder::new().name("catalog".into()).spawn(build) {
            tracing::debug!("the next search has to build its table: cannot start a thread: {error}");
        }
    }

    /// Builds the table, without the lock: the databases are read.
    fn build(self: &Arc<Self>, _building: &Building, places: &Places) -> Result<Arc<Table>, ServeError> {
        let new = Made::now(places);
        let mut state = self.state.lock();
        let new = new.inspect_err(|_| {
            // The outdated one is used, and the next attempt is not made at once.
            if let Some(known) = state.made.as_mut() {
                known.at = Instant::now();
            }
        })?;
        let table = Arc::clone(&new.table);
        let is_first = state.made.replace(new).is_none();
        drop(state);
        if is_first {
            let catalog = Arc::downgrade(self);
            let spawned = std::thread::Builder::new().name("catalog".into()).spawn(move || drop_when_idle(&catalog));
            if let Err(error) = spawned {
                tracing::warn!("the names of all paths stay in memory: cannot start a thread: {error}");
            }
        }
        Ok(table)
    }
}

impl Made {
    fn now(places: &Places) -> Result<Self, ServeError> {
        // Before anything is read: a table can only be newer than its stamps.
        let (stamps, began) = (Stamps::of(places), Instant::now());
        let table = Arc::new(Table::read(places)?);
        let at = Instant::now();
        Ok(Self { stamps, at, took: at - began, used: at, table })
    }
}

fn drop_when_idle(catalog: &Weak<Catalog>) {
    loop {
        std::thread::sleep(IDLE_MAX / 10);
        let Some(catalog) = catalog.upgrade() else { return };
        let mut state = catalog.state.lock();
        if state.made.as_ref().is_none_or(|made| made.used.elapsed() > IDLE_MAX) {
            let unused = state.made.take();
            drop(state);
            drop(unused);
            return;
        }
    }
}

/// The names of all paths, the newest first.
#[derive(Default)]
struct Table {
    /// Base names in lower case, each after a newline.
    names: Vec<u8>,
    rows: Vec<Row>,
    /// Names that are not in lower case, by row.
    originals: HashMap<usize, Box<str>>,
}

struct Row {
    /// Offset of its name.
    start: usize,
    size: u64,
    time: u64,
}

impl Table {
    fn read(places: &Places) -> Result<Self, ServeError> {
        let mut paths = Vec::new();
        if let Some(database) = places.store.as_ref().and_then(|store| store.database()) {
            let listed = database.newest_listed(PATHS_MAX)?;
            paths.extend(listed.into_iter().map(|path| (path.path, path.nar_size, path.registration_time)));
        } else if let Some(store) = &places.store {
            let valid = store.all_valid_paths()?;
            paths.extend(valid.into_iter().map(|path| (path.base_name().to_owned(), 0, 0)));
        }
        if let Some(cache) = &places.written {
            paths.extend(cache.list()?.into_iter().map(|path| (path.path, path.file_size, path.used)));
        }
        Ok(Self::of(paths))
    }

    fn of(mut paths: Vec<(String, u64, u64)>) -> Self {
        // If two sources have a path, that of the first is kept.
        paths.sort_by(|one, other| one.0.cmp(&other.0));
        paths.dedup_by(|later, first| later.0 == first.0);
        paths.sort_by_key(|path| std::cmp::Reverse(path.2));
        paths.truncate(PATHS_MAX);
        let mut table = Self::default();
        for (at, (path, size, time)) in paths.into_iter().enumerate() {
            table.names.push(b'\n');
            table.rows.push(Row { start: table.names.len(), size, time });
            let lower = path.to_ascii_lowercase();
            table.names.extend_from_slice(lower.as_bytes());
            if lower != path {
                table.originals.insert(at, path.into());
            }
        }
        table
    }

    fn name(&self, at: usize) -> &[u8] {
        let start = self.rows.get(at).map_or(0, |row| row.start);
        let end = self.rows.get(at + 1).map_or(self.names.len(), |row| row.start - 1);
        self.names.get(start..end).unwrap_or_default()
    }

    fn search(&self, asked: &Asked) -> Results {
        let mut results = Results { total: 0, more: false, of: self.rows.len(), paths: Vec::new() };
        let words = self.rarest_first(asked.words.iter().map(|word| Finder::new(word.as_bytes())).collect());
        let Some((first, others)) = words.split_first() else {
            let rows = self.rows.len();
            results.total = rows;
            results.paths = (asked.from.min(rows)..rows).take(PAGE_LEN).filter_map(|at| self.found(at)).collect();
            return results;
        };
        let total_max = TOTAL_MAX.max(asked.from.saturating_add(PAGE_LEN));
        let (mut from, mut at) = (0, 0);
        while let Some(hit) = self.names.get(from..).and_then(|names| first.find(names)) {
            at = self.row_of(at, from + hit);
            let name = self.name(at);
            if others.iter().all(|word| word.find(name).is_some()) && self.is_of(at, asked) {
                if results.total == total_max {
                    results.more = true;
                    break;
                }
                if results.total >= asked.from && results.paths.len() < PAGE_LEN {
                    results.paths.extend(self.found(at));
                }
                results.total += 1;
            }
            at += 1;
            let Some(next) = self.rows.get(at) else { break };
            from = next.start;
        }
        results
    }

    /// The words, ordered by how many names of a sample have them; of those that none has, the longest first.
    ///
    /// Each hit of the first word costs more than a hundred bytes of scanning.
    fn rarest_first<'a>(&self, words: Vec<Finder<'a>>) -> Vec<Finder<'a>> {
        if words.len() < 2 {
            return words;
        }
        let step = self.rows.len().div_ceil(SAMPLE_LEN).max(1);
        let sample: Vec<&[u8]> = (0..self.rows.len()).step_by(step).map(|at| self.name(at)).collect();
        let mut words: Vec<_> = words
            .into_iter()
            .map(|word| (sample.iter().filter(|name| word.find(name).is_some()).count(), word))
            .collect();
        words.sort_by_key(|(hits, word)| (*hits, std::cmp::Reverse(word.needle().len())));
        words.into_iter().map(|(_, word)| word).collect()
    }

    /// The row with this position in the names, from row `at` on. Hits are often in one of the next rows.
    fn row_of(&self, at: usize, position: usize) -> usize {
        let starts_before = |row: usize| self.rows.get(row).is_some_and(|row| row.start <= position);
        let (mut low, mut step) = (at, 1);
        while starts_before(low + step) {
            low += step;
            step *= 2;
        }
        let rows = self.rows.get(low..).unwrap_or_default();
        let rows = rows.get(..step).unwrap_or(rows);
        low + rows.partition_point(|row| row.start <= position).saturating_sub(1)
    }

    /// Whether a row is of the package that was asked for, if one was.
    fn is_of(&self, at: usize, asked: &Asked) -> bool {
        let Some(package) = &asked.package else { return true };
        self.found(at).is_some_and(|found| package_name(&found.name) == package)
    }

    fn found(&self, at: usize) -> Option<Found> {
        let row = self.rows.get(at)?;
        let base = match self.originals.get(&at) {
            Some(original) => original.to_string(),
            None => String::from_utf8_lossy(self.name(at)).into_owned(),
        };
        let (hash, name) = base.split_at_checked(HASH_LEN)?;
        Some(Found {
            hash: hash.trim_end_matches('-').to_owned(),
            name: name.to_owned(),
            size: row.size,
            time: row.time,
            pinned: false,
            unsigned: false,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(number: u64) -> String {
        format!("{number:032}")
    }

    fn table(names: &[&str]) -> Table {
        let paths = names.iter().enumerate();
        Table::of(paths.map(|(at, name)| (format!("{}-{name}", hash(at as u64)), 1, at as u64)).collect())
    }

    fn names(table: &Table, query: &str) -> Vec<String> {
        table.search(&Asked::parse(Some(query))).paths.into_iter().map(|found| found.name).collect()
    }

    #[test]
    fn words_are_found_in_any_order_and_case_the_newest_first() {
        let table = table(&["hello-2.10", "hello-2.12", "Hello-World-1", "world", "python3.11-hello"]);
        assert_eq!(names(&table, "q=hello"), ["python3.11-hello", "Hello-World-1", "hello-2.12", "hello-2.10"]);
        assert_eq!(names(&table, "q=WORLD+hello"), ["Hello-World-1"]);
        assert_eq!(names(&table, "q=2.1%30"), ["hello-2.10"]);
        assert_eq!(names(&table, "q=nothing"), [""; 0]);
        assert_eq!(names(&table, "").len(), 5);
        assert_eq!(names(&table, "from=4"), ["hello-2.10"]);
        assert_eq!(names(&table, "from=400"), [""; 0]);
        assert_eq!(names(&table, &format!("q=/nix/store/{}", hash(3))), ["world"]);
        assert_eq!(names(&table, "package=hello"), ["hello-2.12", "hello-2.10"]);
        assert_eq!(names(&table, "package=Hello-World"), ["Hello-World-1"]);
        // a newline is in no name
        assert_eq!(names(&table, "q=%0A"), names(&table, ""));
    }

    #[test]
    fn the_rarest_word_is_looked_for_first() {
        let mut many: Vec<_> = (0..5_000).map(|number| format!("package-with-a-long-name-{number}")).collect();
        many.push("package-with-a-long-name-zig".to_owned());
        let table = table(&many.iter().map(String::as_str).collect::<Vec<_>>());
        let order = |words: &[&str]| -> Vec<Vec<u8>> {
            let words = words.iter().map(|word| Finder::new(word.as_bytes()).into_owned()).collect();
            table.rarest_first(words).iter().map(|word| word.needle().to_vec()).collect()
        };
        assert_eq!(order(&["long-name", "package-with", "zig"])[0], b"zig");
        assert_eq!(order(&["no", "nothing"])[0], b"nothing");
        assert_eq!(names(&table, "q=package-with+zig+long-name"), ["package-with-a-long-name-zig"]);
    }

    #[test]
    fn pages_are_parts_of_the_whole() {
        let many: Vec<_> = (0..120).map(|number| format!("package-{number}")).collect();
        let table = table(&many.iter().map(String::as_str).collect::<Vec<_>>());
        let page = |from: usize| table.search(&Asked::parse(Some(&format!("q=package&from={from}"))));
        assert_eq!((page(0).total, page(0).paths.len()), (120, 50));
        assert_eq!(page(100).paths.len(), 20);
        assert_eq!(page(50).paths[0].name, "package-69");
    }

    #[test]
    fn common_words_are_not_counted_to_the_end() {
        let many: Vec<_> = (0..TOTAL_MAX + 100).map(|number| format!("package-{number}")).collect();
        let table = table(&many.iter().map(String::as_str).collect::<Vec<_>>());
        let asked = |query: &str| table.search(&Asked::parse(Some(query)));
        let first = asked("q=package");
        assert_eq!((first.total, first.more, first.paths.len()), (TOTAL_MAX, true, PAGE_LEN));
        let last = asked(&format!("q=package&from={}", TOTAL_MAX + 50));
        assert_eq!((last.total, last.more, last.paths.len()), (TOTAL_MAX + 100, false, PAGE_LEN));
        assert_eq!(asked("").total, TOTAL_MAX + 100);
    }

    #[test]
    fn a_path_in_two_sources_is_found_once() {
        let path = format!("{}-twice", hash(1));
        let table = Table::of(vec![(path.clone(), 5, 10), (path, 3, 20)]);
        assert_eq!(
            table.search(&Asked::default()).paths,
            [Found { hash: hash(1), name: "twice".into(), size: 5, time: 10, pinned: false, unsigned: false }]
        );
    }

    #[test]
    fn queries_are_bounded() {
        let long = "ä".repeat(10_000);
        assert!(Asked::parse(Some(&format!("q={long}"))).words.iter().all(|word| word.len() <= QUERY_LEN_MAX));
        assert_eq!(Asked::parse(Some(&format!("q={}", "a+".repeat(100)))).words.len(), WORDS_MAX);
    }
}
