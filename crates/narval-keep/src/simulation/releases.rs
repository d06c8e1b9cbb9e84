//! Releases: clients record, promote, pin and forget them, and send requests again whose answers they did not get. What was acknowledged stays, and
//! revisions have one order.

use std::collections::BTreeMap;

use narval_nix::release::{ReleaseName, Which};
use narval_nix::{HashPart, Release, StorePath};

use super::clients::PATHS;
use super::history::{Asked, Id, What};
use super::state::{By, Op, State};
use super::task::Task;
use crate::cache::Cache;
use crate::rejection::Rejection;
use crate::releases::{NewRelease, Promotion};
use crate::tokens::Grant;

/// The names of releases. Nobody forgets one of the first name; single ones of the second are forgotten, and all of the third.
const NAMES: [&str; 3] = ["kept", "single", "dropped"];

fn name(name: &str) -> ReleaseName {
    name.parse().unwrap()
}

fn grant() -> Grant {
    Grant::administrator("test")
}

impl Task {
    /// Does something with releases.
    pub(super) fn releases(&self, cache: &Cache, at: usize) {
        self.begins(Op::Release);
        let of = NAMES[self.below(NAMES.len())];
        match self.below(10) {
            0..4 => {
                let more = (0..self.below(2)).map(|_| self.below(PATHS.len()));
                self.asks(cache, of, What::Paths([at].into_iter().chain(more).collect()));
            }
            4 | 5 => {
                let percent = [None, Some(50)][self.below(2)];
                self.asks(cache, of, What::Promotion(NAMES[self.below(NAMES.len())], percent));
            }
            6 | 7 => {
                let own = self.cache.get();
                let state = self.sim.state.lock().unwrap();
                let asked: Vec<Asked> =
                    state.history.releases.asked.iter().filter(|asked| asked.cache == own).cloned().collect();
                drop(state);
                if !asked.is_empty() {
                    // One of the last, mostly.
                    let from = if self.below(4) == 0 { 0 } else { asked.len().saturating_sub(3) };
                    self.sends(cache, &asked[from + self.below(asked.len() - from)], 0);
                }
            }
            8 => drop(cache.pin_release(&name(of), &Which::Latest, self.below(2) == 0, &grant())),
            _ => self.forgets(cache),
        }
    }

    fn asks(&self, cache: &Cache, of: &'static str, what: What) {
        let own = self.cache.get();
        let (asked, newest) = {
            let releases = &mut self.sim.state.lock().unwrap().history.releases;
            let asked = Asked { cache: own, name: of, key: format!("request-{}", releases.asked.len()), what };
            releases.asked.push(asked.clone());
            let told = releases.told.keys().filter(|(cache, name, _)| cache == own && name == of);
            (asked, told.map(|(.., revision)| *revision).max().unwrap_or(0))
        };
        self.sends(cache, &asked, newest);
    }

    /// Sends a request. Its revision is newer than this one, unless it was sent before.
    fn sends(&self, cache: &Cache, asked: &Asked, newest: u64) {
        let Asked { name: of, key, what, .. } = asked.clone();
        let recorded: Result<Release, Rejection> = match what {
            What::Paths(paths) => {
                let output = |at: &usize| (["out", "dev", "doc"][*at % 3].parse().unwrap(), PATHS[*at].path.clone());
                let outputs: BTreeMap<_, StorePath> = paths.iter().map(output).collect();
                let systems = [["x86_64-linux", "aarch64-linux"], ["x86_64-linux", "x86_64-linux"]][paths[0] % 2];
                let paths = systems.iter().map(|system| (system.parse().unwrap(), outputs.clone())).collect();
                let new = NewRelease { name: name(of), version: None, paths, notes: BTreeMap::new(), key: Some(key) };
                cache.release(&new, &grant())
            }
            What::Promotion(from, percent) => {
                let how = Promotion { percent, key: Some(key) };
                cache.promote(&name(from), &Which::Latest, &name(of), &how, &grant())
            }
        };
        if let Ok(release) = recorded {
            self.sim.state.lock().unwrap().was_released(asked, &release, newest);
        }
    }

    fn forgets(&self, cache: &Cache) {
        let own = self.cache.get().to_owned();
        if self.below(2) == 0 {
            cache.forget_release(&name(NAMES[2]), None, &grant()).ok();
            return;
        }
        let newest =
            self.sim.state.lock().unwrap().history.releases.newest.get(&(own.clone(), NAMES[1].to_owned())).copied();
        let revision = 1 + self.below(newest.unwrap_or(0) as usize + 1) as u64;
        self.sim.state.lock().unwrap().history.releases.forgotten.insert((own, NAMES[1].to_owned(), revision));
        cache.forget_release(&name(NAMES[1]), Some(revision), &grant()).ok();
    }
}

impl State {
    /// A client was told that a release is recorded.
    fn was_released(&mut self, asked: &Asked, release: &Release, newest: u64) {
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
    pub(super) fn check_releases(&mut self, by: By) {
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
