//! Releases: clients record, promote, pin and forget them, and send requests again whose answers they did not get. What was acknowledged stays, and
//! revisions have one order.

use std::collections::BTreeMap;

use narval_nix::release::{ReleaseName, Which};
use narval_nix::{Release, StorePath};

use super::clients::PATHS;
use crate::access::grant::Grant;
use crate::cache::Cache;
use crate::rejection::Rejection;
use crate::releases::{NewRelease, Promotion};
use crate::simulator::history::{Asked, What};
use crate::simulator::releases::NAMES;
use crate::simulator::state::Op;
use crate::simulator::task::Task;

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
