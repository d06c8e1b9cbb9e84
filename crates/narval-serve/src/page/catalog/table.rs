//! The names of all paths in memory, and searches in them.

use std::collections::HashMap;

use memchr::memmem::Finder;
use serde::Serialize;

use super::query::SearchQuery;
use crate::error::ServeError;
use crate::page::places::Places;
use crate::page::usage::package_name;

/// The maximum number of searched paths, the newest ones: about 100 bytes of memory each.
const PATHS_MAX: usize = 4_000_000;
/// Results are counted up to this number: words that most names have would take 0.2 s for a million paths.
pub(super) const TOTAL_MAX: usize = 10_000;
/// Results in one answer.
pub(in crate::page) const PAGE_LEN: usize = 50;
/// Older versions in a group.
const OLDER_MAX: usize = 20;
/// How many names tell which word is the rarest.
const SAMPLE_LEN: usize = 2_000;
/// Length of a hash part and the dash after it.
const HASH_LEN: usize = 33;
/// Packages whose names are compared with one that nothing has, and how many are named.
const NEAR_OF_MAX: usize = 200_000;
const NEAR_MAX: usize = 3;

/// One result.
#[derive(Debug, Serialize, PartialEq, Eq)]
pub(in crate::page) struct CatalogEntry {
    pub(in crate::page) hash: String,
    pub(in crate::page) name: String,
    /// Size in bytes: of the NAR in a live store, of its file in a writable cache.
    pub(in crate::page) size: u64,
    /// When it was registered or pushed first, in seconds since 1970.
    pub(in crate::page) time: u64,
    /// When it was last pushed or requested; `None` for those of a live store.
    #[serde(skip)]
    pub(in crate::page) used: Option<u64>,
    #[serde(skip_serializing_if = "is_false")]
    pub(in crate::page) pinned: bool,
    /// Whether it lacks a signature of this server, which has a key.
    #[serde(skip_serializing_if = "is_false")]
    pub(in crate::page) unsigned: bool,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_false(value: &bool) -> bool {
    !value
}

/// The answer to a search.
#[derive(Debug, Serialize)]
pub(in crate::page) struct Results {
    /// The number of results.
    pub(in crate::page) total: usize,
    /// Whether there are more, which were not counted.
    pub(in crate::page) more: bool,
    /// The number of searched paths.
    pub(in crate::page) of: usize,
    pub(in crate::page) paths: Vec<CatalogEntry>,
}

/// A package: its versions.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::page) struct Group {
    pub(in crate::page) newest: CatalogEntry,
    /// The next newest ones.
    pub(in crate::page) older: Vec<CatalogEntry>,
    /// How many older ones there are.
    pub(in crate::page) older_count: usize,
}

/// Packages that were found.
#[derive(Debug)]
pub(in crate::page) struct Groups {
    pub(in crate::page) list: Vec<Group>,
    /// How many were found, and whether there are more, which were not counted.
    pub(in crate::page) total: usize,
    pub(in crate::page) more: bool,
    /// All that were searched.
    pub(in crate::page) of_packages: usize,
    pub(in crate::page) of_paths: usize,
}

/// The names of all paths, the newest first.
#[derive(Default)]
pub(super) struct Table {
    /// Base names in lower case, each after a newline.
    names: Vec<u8>,
    rows: Vec<Row>,
    /// Names that are not in lower case, by row.
    originals: HashMap<usize, Box<str>>,
    /// The rows of each package, the newest first; the package with the newest row comes first.
    packages: Vec<Vec<u32>>,
    /// The package of each row.
    package_of: Vec<u32>,
}

struct Row {
    /// Offset of its name.
    start: usize,
    size: u64,
    time: u64,
    /// When it was used. Only the writable cache knows.
    used: Option<u64>,
}

impl Table {
    pub(super) fn read(places: &Places) -> Result<Self, ServeError> {
        let mut paths = Vec::new();
        if let Some(database) = places.store.as_ref().and_then(|store| store.database()) {
            let listed = database.newest_listed(PATHS_MAX)?;
            paths.extend(listed.into_iter().map(|path| (path.path, path.nar_size, path.registration_time, None)));
        } else if let Some(store) = &places.store {
            let valid = store.all_valid_paths()?;
            paths.extend(valid.into_iter().map(|path| (path.base_name().to_owned(), 0, 0, None)));
        }
        if let Some(cache) = &places.writable {
            paths
                .extend(cache.list()?.into_iter().map(|path| (path.path, path.file_size, path.added, Some(path.used))));
        }
        Ok(Self::of(paths))
    }

    fn of(mut paths: Vec<(String, u64, u64, Option<u64>)>) -> Self {
        // If two sources have a path, that of the first is kept.
        paths.sort_by(|one, other| one.0.cmp(&other.0));
        paths.dedup_by(|later, first| later.0 == first.0);
        paths.sort_by_key(|path| std::cmp::Reverse(path.2));
        paths.truncate(PATHS_MAX);
        let mut table = Self::default();
        for (at, (path, size, time, used)) in paths.into_iter().enumerate() {
            table.names.push(b'\n');
            table.rows.push(Row { start: table.names.len(), size, time, used });
            let lower = path.to_ascii_lowercase();
            table.names.extend_from_slice(lower.as_bytes());
            if lower != path {
                table.originals.insert(at, path.into());
            }
        }
        table.group();
        table
    }

    /// Sorts the rows into packages. There are fewer rows than a `u32` counts.
    #[allow(clippy::cast_possible_truncation, reason = "PATHS_MAX")]
    fn group(&mut self) {
        let (mut packages, mut package_of) = (Vec::<Vec<u32>>::new(), Vec::with_capacity(self.rows.len()));
        let mut known: HashMap<&[u8], u32> = HashMap::new();
        for at in 0..self.rows.len() {
            let package = *known.entry(self.package(at)).or_insert_with(|| {
                packages.push(Vec::new());
                packages.len() as u32 - 1
            });
            package_of.push(package);
            packages.get_mut(package as usize).into_iter().for_each(|rows| rows.push(at as u32));
        }
        (self.packages, self.package_of) = (packages, package_of);
    }

    /// The name of a row's package, in lower case.
    fn package(&self, at: usize) -> &[u8] {
        let name = self.name(at).get(HASH_LEN..).unwrap_or_default();
        package_name(std::str::from_utf8(name).unwrap_or_default()).as_bytes()
    }

    pub(super) fn len(&self) -> usize {
        self.rows.len()
    }

    fn name(&self, at: usize) -> &[u8] {
        let start = self.rows.get(at).map_or(0, |row| row.start);
        let end = self.rows.get(at + 1).map_or(self.names.len(), |row| row.start - 1);
        self.names.get(start..end).unwrap_or_default()
    }

    pub(super) fn search(&self, query: &SearchQuery) -> Results {
        let mut results = Results { total: 0, more: false, of: self.rows.len(), paths: Vec::new() };
        if query.words.is_empty() {
            let rows = self.rows.len();
            results.total = rows;
            results.paths = (query.from.min(rows)..rows).take(PAGE_LEN).filter_map(|at| self.found(at)).collect();
            return results;
        }
        let total_max = TOTAL_MAX.max(query.from.saturating_add(PAGE_LEN));
        self.each_hit(query, |at| {
            if results.total == total_max {
                results.more = true;
                return false;
            }
            if results.total >= query.from && results.paths.len() < PAGE_LEN {
                results.paths.extend(self.found(at));
            }
            results.total += 1;
            true
        });
        results
    }

    /// Calls `take` with each row that has all the words, the newest first, until it returns `false`.
    pub(super) fn each_hit(&self, query: &SearchQuery, mut take: impl FnMut(usize) -> bool) {
        let words = self.rarest_first(query.words.iter().map(|word| Finder::new(word.as_bytes())).collect());
        let Some((first, others)) = words.split_first() else {
            (0..self.rows.len()).all(take);
            return;
        };
        let (mut from, mut at) = (0, 0);
        while let Some(hit) = self.names.get(from..).and_then(|names| first.find(names)) {
            at = self.row_of(at, from + hit);
            let name = self.name(at);
            if others.iter().all(|word| word.find(name).is_some()) && self.is_of(at, query) && !take(at) {
                return;
            }
            at += 1;
            let Some(next) = self.rows.get(at) else { break };
            from = next.start;
        }
    }

    /// The packages of which a version has all the words, with those versions.
    pub(super) fn groups(&self, query: &SearchQuery) -> Groups {
        let (mut found, mut more) = (Vec::<Vec<u32>>::new(), false);
        let mut total = self.packages.len();
        let page: Vec<&[u32]> = if query.words.is_empty() {
            self.packages.iter().skip(query.from).take(PAGE_LEN).map(Vec::as_slice).collect()
        } else {
            let (mut places, mut hits) = (HashMap::new(), 0);
            self.each_hit(query, |at| {
                hits += 1;
                more = hits > TOTAL_MAX;
                let (Some(package), Ok(row)) = (self.package_of.get(at), u32::try_from(at)) else { return false };
                let place = *places.entry(*package).or_insert_with(|| {
                    found.push(Vec::new());
                    found.len() - 1
                });
                found.get_mut(place).into_iter().for_each(|rows| rows.push(row));
                !more
            });
            total = found.len();
            found.iter().skip(query.from).take(PAGE_LEN).map(Vec::as_slice).collect()
        };
        let list = page.into_iter().filter_map(|rows| self.group_of(rows)).collect();
        Groups { list, total, more, ..self.nothing() }
    }

    /// No packages, of all of them.
    pub(super) fn nothing(&self) -> Groups {
        Groups { list: Vec::new(), total: 0, more: false, of_packages: self.packages.len(), of_paths: self.rows.len() }
    }

    pub(super) fn group_of(&self, rows: &[u32]) -> Option<Group> {
        let mut rows = rows.iter().map(|row| *row as usize);
        let newest = self.found(rows.next()?)?;
        let older_count = rows.len();
        Some(Group { newest, older: rows.take(OLDER_MAX).filter_map(|at| self.found(at)).collect(), older_count })
    }

    /// The hash part, the size and the time of a row; the time only if it is that of its last use.
    pub(super) fn row(&self, at: usize) -> Option<(&str, u64, Option<u64>)> {
        let hash = std::str::from_utf8(self.name(at).get(..HASH_LEN - 1)?).ok()?;
        self.rows.get(at).map(|row| (hash, row.size, row.used))
    }

    /// Names of packages that differ little from what was searched for, the most similar first.
    pub(super) fn near(&self, query: &str) -> Vec<String> {
        let query = query.trim().to_lowercase();
        let query = package_name(&query).as_bytes();
        let differences_max = if query.len() > 4 { 2 } else { 1 };
        let mut near: Vec<_> = self
            .packages
            .iter()
            .take(NEAR_OF_MAX)
            .filter_map(|rows| {
                let at = *rows.first()? as usize;
                let differences = differences(query, self.package(at), differences_max)?;
                Some((differences, at))
            })
            .collect();
        near.sort_unstable();
        let name = |(_, at)| Some(package_name(&self.found(at)?.name).to_owned());
        near.into_iter().take(NEAR_MAX).filter_map(name).collect()
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
    fn is_of(&self, at: usize, query: &SearchQuery) -> bool {
        let Some(package) = &query.package else { return true };
        self.found(at).is_some_and(|found| package_name(&found.name) == package)
    }

    pub(super) fn found(&self, at: usize) -> Option<CatalogEntry> {
        let row = self.rows.get(at)?;
        let base = match self.originals.get(&at) {
            Some(original) => original.to_string(),
            None => String::from_utf8_lossy(self.name(at)).into_owned(),
        };
        let (hash, name) = base.split_at_checked(HASH_LEN)?;
        Some(CatalogEntry {
            hash: hash.trim_end_matches('-').to_owned(),
            name: name.to_owned(),
            size: row.size,
            time: row.time,
            used: row.used,
            pinned: false,
            unsigned: false,
        })
    }
}

/// How many letters of two words differ, if these are few: left out, added, replaced, or swapped with the next one (the optimal string
/// alignment distance).
fn differences(one: &[u8], other: &[u8], max: usize) -> Option<usize> {
    const LEN_MAX: usize = 64;
    if one.is_empty() || one.len().abs_diff(other.len()) > max || one.len() > LEN_MAX || other.len() > LEN_MAX {
        return None;
    }
    let width = other.len() + 1;
    let (mut before, mut last): (Vec<usize>, Vec<usize>) = (Vec::new(), (0..width).collect());
    for (at, letter) in one.iter().enumerate() {
        let mut row = Vec::with_capacity(width);
        row.push(at + 1);
        for (place, against) in other.iter().enumerate() {
            let get = |row: &[usize], at: usize| row.get(at).copied().unwrap_or(usize::MAX - 1);
            let mut least = (get(&last, place) + usize::from(letter != against))
                .min(get(&last, place + 1) + 1)
                .min(get(&row, place) + 1);
            let is_swapped =
                place > 0 && at > 0 && one.get(at - 1) == Some(against) && other.get(place - 1) == Some(letter);
            if is_swapped {
                least = least.min(get(&before, place - 1) + 1);
            }
            row.push(least);
        }
        (before, last) = (last, row);
    }
    last.last().copied().filter(|differences| *differences <= max)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(number: u64) -> String {
        format!("{number:032}")
    }

    fn table(names: &[&str]) -> Table {
        let paths = names.iter().enumerate();
        Table::of(paths.map(|(at, name)| (format!("{}-{name}", hash(at as u64)), 1, at as u64, None)).collect())
    }

    fn names(table: &Table, query: &str) -> Vec<String> {
        table.search(&SearchQuery::parse(Some(query))).paths.into_iter().map(|found| found.name).collect()
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
        let page = |from: usize| table.search(&SearchQuery::parse(Some(&format!("q=package&from={from}"))));
        assert_eq!((page(0).total, page(0).paths.len()), (120, 50));
        assert_eq!(page(100).paths.len(), 20);
        assert_eq!(page(50).paths[0].name, "package-69");
    }

    #[test]
    fn common_words_are_not_counted_to_the_end() {
        let many: Vec<_> = (0..TOTAL_MAX + 100).map(|number| format!("package-{number}")).collect();
        let table = table(&many.iter().map(String::as_str).collect::<Vec<_>>());
        let query = |query: &str| table.search(&SearchQuery::parse(Some(query)));
        let first = query("q=package");
        assert_eq!((first.total, first.more, first.paths.len()), (TOTAL_MAX, true, PAGE_LEN));
        let last = query(&format!("q=package&from={}", TOTAL_MAX + 50));
        assert_eq!((last.total, last.more, last.paths.len()), (TOTAL_MAX + 100, false, PAGE_LEN));
        assert_eq!(query("").total, TOTAL_MAX + 100);
    }

    #[test]
    fn a_path_in_two_sources_is_found_once() {
        let path = format!("{}-twice", hash(1));
        let table = Table::of(vec![(path.clone(), 5, 10, None), (path, 3, 20, Some(30))]);
        assert_eq!(
            table.search(&SearchQuery::default()).paths,
            [CatalogEntry {
                hash: hash(1),
                name: "twice".into(),
                size: 5,
                time: 10,
                used: None,
                pinned: false,
                unsigned: false
            }]
        );
    }

    #[test]
    fn versions_of_a_package_are_one_group() {
        let table = table(&["git-2.47", "glibc-2.40", "git-2.48", "git-lfs-3"]);
        let names = |query: &str| -> Vec<(String, usize)> {
            let groups = table.groups(&SearchQuery::parse(Some(query)));
            groups.list.into_iter().map(|group| (group.newest.name, group.older_count)).collect()
        };
        assert_eq!(names(""), [("git-lfs-3".into(), 0), ("git-2.48".into(), 1), ("glibc-2.40".into(), 0)]);
        assert_eq!(names("q=git"), [("git-lfs-3".into(), 0), ("git-2.48".into(), 1)]);
        assert_eq!(names("q=2.47"), [("git-2.47".into(), 0)]);
        assert_eq!(names("package=git"), [("git-2.48".into(), 1)]);
        assert_eq!(table.nothing().of_packages, 3);
    }

    #[test]
    fn names_that_are_nearly_so_are_offered() {
        let table = table(&["git-2.47", "glibc-2.40", "openssl-3", "x"]);
        for (typed, meant) in
            [("gti", "git"), ("opnessl", "openssl"), ("opensl-3", "openssl"), ("GLIB", "glibc"), ("gi", "git")]
        {
            assert_eq!(table.near(typed), [meant], "{typed}");
        }
        for typed in ["", "firefox", "gtxi"] {
            assert_eq!(table.near(typed), [""; 0], "{typed}");
        }
    }
}
