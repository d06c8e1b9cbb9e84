//! What must hold of releases: what was acknowledged stays, and revisions have one order.

use std::collections::BTreeMap;

use narval_nix::{HashPart, Release};

use super::history::{Asked, Id};
use super::state::{By, Op, State};

/// The names of releases. Nobody forgets one of the first name; single ones of the second are forgotten, and all of the third.
pub(crate) const NAMES: [&str; 3] = ["kept", "single", "dropped"];

impl State {
    /// A client was told that a release is recorded.
    pub(crate) fn was_released(&mut self, asked: &Asked, release: &Release, newest: u64) {
        let Asked { cache, name, key, .. } = asked;
        let (record, revision) = (release.to_json(), release.revision);
        self.note("released", || format!("{cache}@{name}@{revision} by {key}"));
        if revision <= newest {
            self.violate(format!("@{name}@{revision} was recorded after @{name}@{newest} was acknowledged"));
        }
        let id = |revision| ((*cache).to_owned(), (*name).to_owned(), revision);
        let releases = &mut self.history.releases;
        let before = releases.of_request.insert(key.clone(), revision).filter(|before| *before != revision);
        let twice = before.filter(|before| *name != NAMES[2] && !releases.forgotten.contains(&id(*before)));
        let other = releases.told.insert(id(revision), record.clone()).filter(|told| *told != record);
        if let Some(before) = twice {
            self.violate(format!("{key} has recorded @{name}@{before} and @{name}@{revision}"));
        }
        if other.is_some() {
            self.violate(format!("@{name}@{revision} was acknowledged for two releases"));
        }
    }

    /// After a transaction: no release is gone that was acknowledged, revisions grow by one, no request has two, and the paths of the newest one
    /// are there.
    pub(crate) fn check_releases(&mut self, by: By) {
        if !self.has_releases {
            return;
        }
        let all = "select (case cache when 1 then '' else 'other/' end), name, revision, record from releases";
        let rows: Vec<(Id, String)> = {
            let mut statement = self.database.prepare_cached(all).unwrap();
            let row = |row: &rusqlite::Row<'_>| Ok(((row.get(0)?, row.get(1)?, row.get(2)?), row.get(3)?));
            statement.query_map([], row).unwrap().collect::<Result<_, _>>().unwrap()
        };
        let rows: BTreeMap<Id, String> = rows.into_iter().collect();
        let mut wrong = Vec::new();
        for (id, record) in &self.history.releases.told {
            let (cache, name, revision) = id;
            let may_be_gone = name == NAMES[2] || self.history.releases.forgotten.contains(id);
            if rows.get(id) != Some(record) && !may_be_gone {
                wrong.push(format!("{cache}@{name}@{revision} was acknowledged, and is gone or another one"));
            }
        }
        let mut newest: BTreeMap<(String, String), u64> = BTreeMap::new();
        for (cache, name, revision) in rows.keys() {
            let newest = newest.entry((cache.clone(), name.clone())).or_default();
            *newest = (*newest).max(*revision);
        }
        for (of, before) in std::mem::take(&mut self.history.releases.newest) {
            let now = newest.get(&of).copied().unwrap_or(0);
            if !(before..=before + 1).contains(&now) || (now > before && by.op != Op::Release) {
                wrong.push(format!("the newest revision of {of:?} is {now} by {:?}, and was {before}", by.op));
            }
        }
        let twice = "select name, request from releases where request is not null and record <> '' group by cache, name, request \
             having count(distinct revision) > 1";
        for (name, request) in self.pairs(twice) {
            wrong.push(format!("{request} has recorded two releases {name}"));
        }
        for ((cache, name), revision) in &newest {
            let Some(record) = rows.get(&(cache.clone(), name.clone(), *revision)).filter(|record| !record.is_empty())
            else {
                continue;
            };
            let release = Release::parse(record.as_bytes()).unwrap();
            let paths = release.paths.values().flat_map(BTreeMap::values).map(|one| one.path.hash_part());
            for part in paths.map(|part: HashPart| format!("{cache}{part}")) {
                let history = &self.history;
                let may_be_gone = history.deleted.contains_key(&part) || history.lost.contains(&part);
                if !history.visible.contains_key(&part) && !may_be_gone {
                    wrong.push(format!("{part} is gone, and @{name}@{revision} is the newest release"));
                }
            }
        }
        self.history.releases.newest = newest;
        wrong.into_iter().for_each(|what| self.violate(what));
    }
}
