//! A standby that takes over without the last transactions: the database is as it was a moment ago, and the object store is not.
//!
//! What was acknowledged in that moment may be gone, and what was deleted in it is there again, perhaps without its NAR. Everything before holds, and
//! `fsck` names what is left of the moment.

use std::collections::{BTreeMap, HashSet};

use rusqlite::config::DbConfig;

use super::checks::{AWAY_MAX, NAMED, PATHS, of_cache};
use super::history::Standby;
use super::state::{Effect, Phase, State};

/// How long the lost moment lasts at most, in milliseconds.
const LOST_MAX: u64 = 5_000;

/// Paths and pending entries that one of the two databases has, and the other one has not.
const CHANGED: &str = concat!(
    "with one as (select cache, hash_part, narinfo from main.paths union all \
       select cache, name, id from main.pending), \
     other as (select cache, hash_part, narinfo from standby.paths union all \
       select cache, name, id from standby.pending) \
     select ",
    of_cache!(),
    " || hash_part, '' from (select * from (select * from one except select * from other) \
       union all select * from (select * from other except select * from one)) t"
);

impl State {
    /// Now and then, a standby stops following, and takes over soon after.
    pub(crate) fn maybe_fails_over(&mut self) {
        if !self.has_failovers || self.phase != Phase::Running {
            return;
        }
        match &self.standby {
            Some(standby) if standby.at + LOST_MAX < self.now() => self.standby = None,
            Some(_) if self.rng.once_in(16) => self.fails_over(),
            None if self.rng.once_in(40) => self.stands_by(),
            _ => {}
        }
    }

    fn tables(&self) -> Vec<String> {
        let all = "select name, name from main.sqlite_schema where type = 'table'";
        self.pairs(all).into_iter().map(|(name, _)| name).collect()
    }

    fn stands_by(&mut self) {
        let is_attached =
            self.pairs("select name, name from pragma_database_list").iter().any(|(name, _)| name == "standby");
        if !is_attached {
            self.database.execute_batch("attach ':memory:' as standby").unwrap();
        }
        for table in self.tables() {
            let copied = if table == "sqlite_sequence" { "numbers" } else { &table };
            let copy = format!(
                "drop table if exists standby.{copied}; create table standby.{copied} as select * from main.{table}"
            );
            self.database.execute_batch(&copy).unwrap();
        }
        let (pushed, leased) = (self.history.pushed.clone(), self.history.leased.clone());
        self.standby = Some(Standby { at: self.now(), pushed, leased });
    }

    fn fails_over(&mut self) {
        let Some(standby) = self.standby.take() else { return };
        let now = self.now();
        self.note("failover", || format!("{} ms are lost", now - standby.at));
        // What was on its way to the former server.
        self.in_flight.retain(|(_, effect)| !matches!(effect, Effect::Transaction(..)));
        let changed = self.pairs(CHANGED).into_iter().map(|(part, _)| part);
        let changed: HashSet<String> = changed.collect();
        self.note("lost", || format!("{changed:?}"));
        self.restore();

        let visible: BTreeMap<String, String> = self.pairs(PATHS).into_iter().collect();
        let named = self.pairs(NAMED).into_iter().collect();
        let mut wrong = Vec::new();
        let history = &mut self.history;
        for (part, file) in &visible {
            let was_deleted = history.deleted.get(part).is_some_and(|at| *at >= standby.at);
            // One that had come back from an earlier moment, and that a reader has found to be without its NAR in this one.
            let was_lost = history.lost.contains(part) && history.removed.get(part).is_some_and(|at| *at >= standby.at);
            // Not one that was deleted and pushed again in that moment, with another file.
            if history.visible.get(part) == Some(file) {
                continue;
            }
            if was_deleted || was_lost {
                history.failovers.returned.insert(part.clone());
            } else if !self.objects.contains_key(file) {
                wrong.push(format!(
                    "{part} is visible again, and its NAR {file} is gone, although nobody has deleted it"
                ));
            }
        }
        for part in history.visible.keys().filter(|part| !visible.contains_key(*part)) {
            history.removed.insert(part.clone(), now);
        }
        (history.visible, history.named) = (visible, named);
        (history.pushed, history.leased) = (standby.pushed, standby.leased);
        history.failovers.changed.extend(changed);
        history.failovers.at.push(now);
        self.find_strays();
        self.is_changed_for_all();
        self.away_until = now + self.rng.below(AWAY_MAX);
        wrong.into_iter().for_each(|what| self.violate(what));
    }

    fn restore(&self) {
        self.database.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, false).unwrap();
        self.database.execute_batch("pragma foreign_keys = off; begin").unwrap();
        for table in self.tables() {
            let copied = if table == "sqlite_sequence" { "numbers" } else { &table };
            let put_back = format!("delete from main.{table}; insert into main.{table} select * from standby.{copied}");
            self.database.execute_batch(&put_back).unwrap();
        }
        self.database.execute_batch("commit; pragma foreign_keys = on").unwrap();
        self.database.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, true).unwrap();
    }
}
