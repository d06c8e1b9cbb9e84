//! Transactions in PostgreSQL, a statement a step.

use std::time::Duration;

use super::state::{Open, Phase, State};
use super::task::Task;
use narval_client::clock::Virtual;

/// How long a transaction may do nothing on the server, in milliseconds (`IDLE_TIMEOUT` of real ones).
const IDLE_MAX: u64 = 10_000;

impl Task {
    pub(crate) fn true_time(&self) -> u64 {
        self.sim.state.lock().unwrap().now()
    }

    /// Whether its node looks for changes of others now.
    pub(crate) fn looks(&self, is_first: bool) -> bool {
        self.sim.state.lock().unwrap().looks(self.node) || is_first
    }

    /// Before the first statement of a transaction, or of something that only asks.
    pub(crate) fn begins_transaction(&self, is_change: bool) {
        self.change.set(is_change.then(|| self.by()));
        self.begun.set(0);
    }

    pub(crate) fn ends_transaction(&self) {
        self.change.set(None);
        self.sim.state.lock().unwrap().open.retain(|open| open.task != self.id);
    }

    /// Before a statement: whether it reaches the server.
    pub(crate) fn reaches_the_server(&self, is_commit: bool) -> bool {
        let mut is_sent = self.step().is_ok();
        let mut state = self.sim.state.lock().unwrap();
        if is_sent && state.phase == Phase::Running {
            let (chaos, may_be_late) = (state.chaos, is_commit && self.change.get().is_some());
            if state.rng.below(1_200) < chaos {
                state.note("broken", String::new);
                is_sent = false;
            } else if may_be_late && state.rng.below(250) < chaos {
                // It is on its way, with all its locks, whatever happens to its node.
                let lasts = state.rng.below(IDLE_MAX);
                state.note("late commit", || format!("by {lasts} ms"));
                drop(state);
                self.sleep(Duration::from_millis(lasts));
                state = self.sim.state.lock().unwrap();
            }
        }
        let is_idle = |state: &State, open: &Open| open.at + IDLE_MAX < state.now();
        for at in (0..state.open.len()).rev().filter(|at| is_idle(&state, &state.open[*at])).collect::<Vec<_>>() {
            let open = state.open.swap_remove(at);
            state.note("idle", || format!("transaction of task {}", open.task));
            state.shared.as_ref().unwrap().end(open.process);
        }
        if !is_sent {
            state.open.retain(|open| open.task != self.id);
        }
        is_sent
    }

    /// What time it is, and when the transaction began, in milliseconds.
    pub(crate) fn times(&self) -> (u64, u64) {
        let now = self.true_time();
        if self.begun.get() == 0 || self.change.get().is_none() {
            self.begun.set(now);
        }
        (now, self.begun.get())
    }

    pub(crate) fn is_served_by(&self, process: i32) {
        let mut state = self.sim.state.lock().unwrap();
        let (task, at) = (self.id, state.now());
        state.open.retain(|open| open.task != task);
        if self.change.get().is_some() {
            state.open.push(Open { task, process, at });
        }
    }

    /// Others have locked a row.
    pub(crate) fn is_in_the_way(&self) {
        self.sim.state.lock().unwrap().note("locked", String::new);
    }

    /// After a commit. Returns `false` if the node does not hear of it.
    pub(crate) fn has_committed(&self) -> bool {
        let mut state = self.sim.state.lock().unwrap();
        let Some(by) = self.change.get() else { return true };
        state.open.retain(|open| open.task != self.id);
        state.is_changed(by);
        if state.phase != Phase::Running {
            return true;
        }
        let chaos = state.chaos;
        if state.rng.below(250) < chaos {
            state.note("answer lost", String::new);
            return false;
        }
        drop(state);
        self.may_die().is_ok()
    }
}

impl State {
    /// The server is started again now and then: all transactions that are under way are undone.
    pub(crate) fn maybe_restarts(&mut self) {
        if self.has_accidents && self.shared.is_some() && self.rng.once_in(500) {
            self.note("restart", String::new);
            self.open.clear();
            self.shared.as_ref().unwrap().end_all();
        }
    }
}
