//! The invariants.

use std::collections::{BTreeMap, HashSet};

use narval_nix::HashPart;

use super::state::{By, CACHES, Op, Phase, SKEW_MAX, State};

const DAY: u64 = 24 * 3600 * 1000;

/// How long the database is away until the standby answers, at most.
pub(crate) const AWAY_MAX: u64 = 20_000;

/// With what the keys of a row's cache begin.
macro_rules! of_cache {
    () => {
        "(case t.cache when 1 then '' else 'other/' end)"
    };
}
pub(crate) use of_cache;

/// The key of the object of a name.
macro_rules! object {
    ($name:literal) => {
        concat!(of_cache!(), " || 'nar/' || t.", $name)
    };
}

/// What is the same only for one cache.
pub(crate) const PATHS: &str = concat!("select ", of_cache!(), " || hash_part, ", object!("file"), " from paths t");
const NARINFOS: &str = concat!("select ", of_cache!(), " || hash_part, cast(narinfo as text) from paths t");
/// The names that paths have, and what they mean.
pub(crate) const NAMED: &str = concat!(
    "select ",
    object!("name"),
    ", hex(t.nar_hash) || hex(t.file_hash) || t.file_size from nars t where t.orphaned is null"
);
pub(crate) const HAS_OBJECT: &str = concat!("select 1 from nars t where ", object!("name"), " = ?");

pub(crate) fn is_nar(key: &str) -> bool {
    CACHES.iter().any(|cache| key.strip_prefix(cache).is_some_and(|name| name.starts_with("nar/")))
}

/// That of the cache that something belongs to.
fn cache_of(key: &str) -> &'static str {
    CACHES.into_iter().rfind(|cache| key.starts_with(cache)).unwrap_or_default()
}

impl State {
    /// After a transaction: every visible path has its NAR and its references, nothing is gone that nobody deleted or collected, and no
    /// collection has taken what is pinned, leased or new.
    pub(crate) fn check_rows(&mut self, by: By) {
        let By { op, node, cache, fence, is_misled } = by;
        self.find_discarded(op);
        if is_misled {
            self.find_strays();
        }
        if let (Some(fence), Some(latest)) = (fence, self.lease())
            && fence != latest
        {
            self.violate(format!("{op:?} of {node} changes rows with the lease {fence}, and {latest} is the latest"));
        }
        let visible: BTreeMap<String, String> = self.pairs(PATHS).into_iter().collect();
        let now = self.now();
        // Nodes publish for all caches.
        let is_of_one = ![Op::Publish, Op::Open].contains(&op);
        let named: BTreeMap<String, String> = self.pairs(NAMED).into_iter().collect();
        for (name, nar) in std::mem::replace(&mut self.history.named, named.clone()) {
            if is_of_one && cache_of(&name) != cache && named.get(&name) != Some(&nar) {
                self.violate(format!("{op:?} in '{cache}' changes {name}, which is of another cache"));
            }
        }
        for (part, file) in std::mem::replace(&mut self.history.visible, visible.clone()) {
            if visible.contains_key(&part) {
                continue;
            }
            self.note("gone", || format!("{part} by {op:?} of {node}"));
            if is_of_one && cache_of(&part) != cache {
                self.violate(format!("{part} is gone by {op:?} in '{cache}'"));
            }
            let is_remembered = concat!("select 1 from lost t where ", of_cache!(), " || hash_part = ?");
            let is_remembered = self.database.prepare_cached(is_remembered).unwrap().exists([&part]).unwrap();
            if !self.database.prepare_cached(HAS_OBJECT).unwrap().exists([&file]).unwrap()
                && (is_misled || !is_remembered)
                && op != Op::Delete
            {
                self.violate(format!("{part} is lost: {op:?} has removed its NAR from the index"));
            }
            match op {
                // Its NAR seemed to be lost, and it comes back.
                _ if is_remembered => drop(self.history.lost.insert(part.clone())),
                Op::Delete => {
                    self.history.deleted.insert(part.clone(), now);
                }
                _ => self.check_collected(&part),
            }
            self.history.failovers.returned.remove(&part);
            self.history.removed.insert(part, now);
        }
        let unknown = visible.keys().find(|part| !self.history.ever.contains(*part));
        if let Some(part) = unknown.cloned() {
            self.violate(format!("{part} is visible, and nobody has pushed it"));
        }
        let dangling = "select hash_part, file from paths p where not exists (select 1 from nars f \
             where f.cache = p.cache and f.name = p.file and f.orphaned is null)";
        for (part, file) in self.pairs(dangling) {
            self.violate(format!("{part} is visible, and its NAR {file} is not used in the index"));
        }
        let open = concat!(
            "select hash_part, ",
            of_cache!(),
            " || reference from paths t join refs r on r.referrer = t.id where reference <> hash_part \
             and not exists (select 1 from paths q where q.cache = t.cache and q.hash_part = reference)"
        );
        for (part, reference) in self.pairs(open) {
            // What refers to a path stays if the NAR of that is lost, as one that comes back after it was deleted in the moment that a standby lacks.
            if !self.history.lost.contains(&reference) {
                self.violate(format!("{part} is visible, and its reference {reference} is not"));
            }
        }
        let unpinned = concat!(
            "select ",
            of_cache!(),
            " || hash_part, name from pins t where not exists \
             (select 1 from paths p where p.cache = t.cache and p.hash_part = t.hash_part)"
        );
        for (part, name) in self.pairs(unpinned) {
            // A pin stays if the NAR of its path is lost.
            if !self.history.lost.contains(&part) {
                self.violate(format!("{part} is pinned as {name}, and is gone"));
            }
        }
        for (part, file) in visible {
            if !self.objects.contains_key(&file) && !self.history.failovers.returned.contains(&part) {
                self.violate(format!("{part} is visible, and there is no object of its NAR {file}"));
            }
        }
        self.check_published();
        self.check_releases(by);
    }

    /// The number of the latest lease of a collection.
    fn lease(&self) -> Option<i64> {
        let query = "select fence from work where name = 'collection'";
        self.database.prepare_cached(query).unwrap().query_row([], |row| row.get(0)).ok()
    }

    /// Before an object is removed: a NAR has no row any more.
    pub(crate) fn check_removal(&mut self, key: &str, sent: u64) {
        // The server that said so is lost, which a node notices some time later; the path of the NAR, if it has one by now, is looked at afterwards.
        let was_sent_before = self.history.failovers.began_before(sent.saturating_sub(AWAY_MAX + 10_000));
        if is_nar(key) && !was_sent_before && self.database.prepare_cached(HAS_OBJECT).unwrap().exists([key]).unwrap() {
            self.violate(format!("{key} is removed, and it has a row"));
        }
    }

    /// After every change: where a narinfo in the bucket is not the one of the index, a pending entry says so.
    fn check_published(&mut self) {
        let rows = self.pairs(NARINFOS);
        let pending: HashSet<String> = self
            .pairs(concat!("select ", of_cache!(), " || name, id || '' from pending t"))
            .into_iter()
            .map(|(name, _)| name)
            .collect();
        let rows: BTreeMap<String, String> = rows.into_iter().collect();
        let narinfos = self.objects.iter().filter_map(|(key, text)| Some((key.strip_suffix(".narinfo")?, text)));
        let published: BTreeMap<&str, &Vec<u8>> = narinfos.collect();
        let parts: std::collections::BTreeSet<&str> =
            rows.keys().map(String::as_str).chain(published.keys().copied()).collect();
        let differs = |part: &&str| published.get(part).map(|text| &text[..]) != rows.get(*part).map(String::as_bytes);
        let is_known = |part: &str| pending.contains(part) || self.history.failovers.changed.contains(part);
        let wrong = parts.into_iter().filter(differs).find(|part| !is_known(part)).map(str::to_owned);
        if let Some(part) = wrong {
            self.violate(format!("{part}.narinfo is not that of the index, and no entry is pending"));
        }
    }

    fn check_collected(&mut self, part: &str) {
        let now = self.now();
        if self.history.leased.get(part).is_some_and(|until| now + 2 * SKEW_MAX < *until) {
            self.violate(format!("{part} was collected while it was leased"));
        }
        if self.history.pushed.get(part).is_some_and(|pushed| now + 2 * SKEW_MAX < pushed + DAY) {
            self.violate(format!("{part} was collected less than its retention after it was pushed"));
        }
    }

    /// Whether NARs were removed by somebody who does not care what clients were told.
    fn find_discarded(&mut self, op: Op) {
        let all = "select cache, name from garbage union select cache, file from lost";
        let mut statement = self.database.prepare_cached(all).unwrap();
        let all = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
        let all: HashSet<(i64, String)> = all.map(Result::unwrap).collect();
        drop(statement);
        let is_more = !all.is_subset(&self.history.discards);
        self.history.discards = all;
        if is_more && op != Op::Collect {
            self.history.discarded = self.now();
        }
    }

    /// Objects that have lost their rows, in a failover or because the store said that they are not there, are for `fsck` to remove.
    pub(crate) fn find_strays(&mut self) {
        let has_row = |key: &str| self.database.prepare_cached(HAS_OBJECT).unwrap().exists([key]).unwrap();
        let strays: Vec<String> = self.objects.keys().filter(|key| is_nar(key) && !has_row(key)).cloned().collect();
        self.history.strays.extend(strays);
    }

    /// After a change of an object: no visible path has lost its NAR, and no narinfo in the bucket names one that is not there.
    pub(crate) fn check_object(&mut self, key: &str) {
        if is_nar(key) {
            if self.objects.contains_key(key) {
                return;
            }
            let of_it = format!("{PATHS} where {} = ?", object!("file"));
            let parts: Vec<String> = {
                let mut statement = self.database.prepare_cached(&of_it).unwrap();
                let rows = statement.query_map([key], |row| row.get(0)).unwrap();
                rows.collect::<Result<_, _>>().unwrap()
            };
            let returned = &self.history.failovers.returned;
            if let Some(part) = parts.into_iter().find(|part| !returned.contains(part)) {
                self.violate(format!("{part} is visible, and the object of its NAR {key} was removed"));
            }
        }
        let (now, mut dangling) = (self.now(), Vec::new());
        for (key, text) in self.objects.iter().filter(|(key, _)| key.ends_with(".narinfo")) {
            let part = key.trim_end_matches(".narinfo");
            let is_deleted = self.history.deleted.get(part).is_some_and(|at| now < at + DAY);
            let nar = format!("{}{}", cache_of(key), url_of(text));
            let is_old = self.history.failovers.changed.contains(part);
            if !is_deleted && !is_old && !self.objects.contains_key(&nar) {
                dangling.push(format!("{key} is in the bucket, and its NAR {nar} is not"));
            }
        }
        dangling.into_iter().for_each(|what| self.violate(what));
        self.check_published();
    }

    pub(crate) fn pairs(&self, query: &str) -> Vec<(String, String)> {
        let mut statement = self.database.prepare_cached(query).unwrap();
        let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
        rows.collect::<Result<_, _>>().unwrap()
    }

    /// A client begins to commit these.
    pub(crate) fn are_pushed(&mut self, cache: &str, parts: &[HashPart]) {
        self.history.ever.extend(parts.iter().map(|part| format!("{cache}{part}")));
    }

    /// A client was told that these are committed, since it began to push.
    pub(crate) fn were_pushed(&mut self, cache: &str, parts: &[HashPart], begun: u64) {
        for part in parts.iter().map(|part| format!("{cache}{part}")) {
            self.check_promised(&part, begun, "committed");
            if !self.history.failovers.began_before(begun) {
                self.history.pushed.insert(part, begun);
            }
        }
    }

    /// A client was told that these are here and stay for a day.
    pub(crate) fn were_leased(&mut self, cache: &str, parts: &[HashPart], begun: u64) {
        if self.history.failovers.began_before(begun) {
            return;
        }
        for part in parts.iter().map(|part| format!("{cache}{part}")) {
            let is_deleted = self.history.deleted.get(&part).is_some_and(|at| *at >= begun);
            if !is_deleted {
                self.check_promised(&part, u64::MAX, "here");
                self.history.leased.insert(part, begun + DAY);
            }
        }
    }

    /// A client commits nine minutes at most after it has asked for the NAR, and was told that it is here.
    pub(crate) fn was_refused(&mut self, told: u64, why: &str) {
        let is_broken = why.contains("is missing; push the path again") && self.now() < told + 540_000;
        // By a deletion, or with a server.
        let is_gone =
            self.history.discarded >= told.saturating_sub(60_000) || self.history.failovers.began_before(told);
        if is_broken && !is_gone {
            self.violate(format!("a client was told that a NAR is here, and then: {why}"));
        }
    }

    fn check_promised(&mut self, part: &str, since: u64, what: &str) {
        let is_removed = self.history.removed.get(part).is_some_and(|at| *at >= since);
        if !self.history.visible.contains_key(part) && !is_removed {
            self.violate(format!("a client was told that {part} is {what}, and it is not"));
        }
    }

    pub(crate) fn were_deleted(&mut self, cache: &str, parts: &[HashPart]) {
        for part in parts.iter().map(|part| format!("{cache}{part}")) {
            self.history.pushed.remove(&part);
            self.history.leased.remove(&part);
        }
    }

    /// What a check of a cache has said names each object that its index does not have, and each that it lacks.
    pub(crate) fn check_named(&mut self, cache: &str, problems: &[String]) {
        let rows: BTreeMap<String, String> =
            self.pairs(NARINFOS).into_iter().map(|(part, text)| (format!("{part}.narinfo"), text)).collect();
        let names = self.pairs(concat!("select ", object!("name"), ", name from nars t"));
        let names: HashSet<String> = names.into_iter().map(|(name, _)| name).collect();
        let is_stored = |key: &String| key.ends_with(".narinfo") || is_nar(key);
        let differs = |key: &&String| match self.objects.get(*key) {
            Some(text) if key.ends_with(".narinfo") => rows.get(*key).map(String::as_bytes) != Some(text),
            Some(_) => !names.contains(*key),
            None => true,
        };
        let all = self.objects.keys().filter(|key| is_stored(key)).chain(rows.keys()).chain(&names);
        let wrong: HashSet<&String> = all.filter(differs).filter(|key| cache_of(key) == cache).collect();
        let is_named = |key: &&String| problems.iter().any(|problem| problem.contains(&format!("/{key}'")));
        let count = wrong.len();
        let silent: Vec<String> = wrong.into_iter().filter(|key| !is_named(key)).cloned().collect();
        self.note("named", || format!("{count} in '{cache}'"));
        for key in silent {
            self.violate(format!("{key} is not as in the index, and fsck does not say so: {problems:?}"));
        }
    }

    /// At the end, when everything was collected: the bucket has what the index has, and nothing else.
    pub(crate) fn check_end(&mut self) {
        assert_eq!(self.phase, Phase::Quiet);
        let rows = self.pairs(NARINFOS).into_iter().map(|(part, text)| (format!("{part}.narinfo"), text));
        let mut expected: BTreeMap<String, String> = rows.collect();
        expected.insert("_narval/index.id".to_owned(), String::new());
        for (name, _) in self.pairs(concat!("select ", object!("name"), ", name from nars t where orphaned is null")) {
            expected.insert(name, String::new());
        }
        let mut wrong = Vec::new();
        for (key, bytes) in &self.objects {
            match expected.get(key) {
                None if self.history.strays.contains(key) => {}
                None => wrong.push(format!("{key} is left in the bucket at the end")),
                Some(text) if key.ends_with(".narinfo") && text.as_bytes() != bytes => {
                    wrong.push(format!("{key} is old at the end"));
                }
                Some(_) => {}
            }
        }
        for (part, file) in self.pairs(concat!("select hash_part, ", object!("file"), " from lost t")) {
            if self.objects.contains_key(&file) {
                wrong.push(format!("{part} is lost at the end, and its NAR {file} is in the bucket"));
            }
        }
        for key in expected.keys().filter(|key| !self.objects.contains_key(*key)) {
            wrong.push(format!("{key} is not in the bucket at the end"));
        }
        for (name, _) in self.pairs(
            "select name, name from nars where orphaned is not null union all select name, name from garbage \
             union all select 'writer', id || '' from writers",
        ) {
            wrong.push(format!("{name} is left in the index at the end"));
        }
        for (name, _) in self.pairs("select name, name from pending") {
            wrong.push(format!("{name} is pending at the end"));
        }
        wrong.into_iter().for_each(|what| self.violate(what));
    }
}

/// The NAR that a narinfo names.
fn url_of(text: &[u8]) -> &str {
    let text = std::str::from_utf8(text).unwrap();
    text.lines().find_map(|line| line.strip_prefix("URL: ")).unwrap()
}
