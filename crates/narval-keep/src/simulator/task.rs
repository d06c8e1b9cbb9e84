//! Threads that run one at a time.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::thread::Thread;
use std::time::Duration;

use rusqlite::Connection;

use super::rule::{Rule, holds};
use super::state::{BEGINNING, By, Effect, Op, Phase, State, TaskState, Transaction};
use narval_client::clock::Virtual;

thread_local! {
    pub(crate) static CURRENT: RefCell<Option<Rc<Task>>> = const { RefCell::new(None) };
}

/// The simulated task that is running on this thread.
pub(crate) fn current() -> Option<Rc<Task>> {
    CURRENT.with_borrow(Option::clone)
}

/// A random number, in a simulation.
pub(crate) fn random() -> Option<u64> {
    current().map(|task| task.random())
}

/// There is no answer: the node is dead, what it asks is away, or the simulation ends.
#[derive(Debug)]
pub(crate) struct Dead;

pub(crate) struct Sim {
    pub(crate) state: Mutex<State>,
    /// Whose turn it is.
    pub(crate) turn: AtomicUsize,
    pub(crate) threads: OnceLock<Vec<Thread>>,
}

/// A simulated thread of a node.
pub(crate) struct Task {
    pub(crate) sim: Arc<Sim>,
    pub(crate) id: usize,
    pub(crate) node: usize,
    /// That of the node that it belongs to: a node that was killed has another one.
    pub(crate) generation: Cell<u32>,
    pub(crate) op: Cell<Op>,
    /// In which cache.
    pub(crate) cache: Cell<&'static str>,
    /// The lease of the collection that it is doing, and whether its next transaction has it.
    pub(crate) fence: Cell<Option<i64>>,
    pub(crate) is_fenced: Cell<bool>,
    /// See [`By`].
    pub(crate) is_misled: Cell<bool>,
    /// In PostgreSQL: whose transaction is under way, and when it began, in milliseconds.
    #[cfg(feature = "postgres")]
    pub(crate) change: Cell<Option<By>>,
    #[cfg(feature = "postgres")]
    pub(crate) begun: Cell<u64>,
}

impl Virtual for Task {
    fn shown(&self) -> Duration {
        Duration::from_millis(self.sim.state.lock().unwrap().now_of(self.node))
    }

    fn elapsed(&self) -> Duration {
        let state = self.sim.state.lock().unwrap();
        let stood = if holds(Rule::Boottime) { 0 } else { state.nodes[self.node].suspended };
        Duration::from_millis((state.now() - BEGINNING).saturating_sub(stood))
    }

    /// Others run for so long.
    fn sleep(&self, duration: Duration) {
        let mut state = self.sim.state.lock().unwrap();
        let wakes = state.now() + duration.as_millis() as u64;
        if state.phase == Phase::Quiet {
            return state.pass_until(wakes);
        }
        state.tasks[self.id].wakes = wakes;
        self.yield_turn(state);
    }
}

impl Task {
    pub(crate) fn is_fenced(&self, fence: i64) {
        self.fence.set(Some(fence));
        self.is_fenced.set(true);
    }

    pub(crate) fn random(&self) -> u64 {
        self.sim.state.lock().unwrap().rng.next()
    }

    pub(crate) fn database_time(&self) -> u64 {
        self.sim.state.lock().unwrap().database_time_of(self.node) / 1000
    }

    pub(crate) fn stamp(&self) -> u64 {
        self.sim.state.lock().unwrap().stamp_of(self.node)
    }

    pub(crate) fn server(&self) -> u64 {
        self.sim.state.lock().unwrap().server_of(self.node)
    }

    pub(crate) fn read(&self, ask: &mut dyn FnMut(&Connection)) -> Result<(), Dead> {
        self.step()?;
        let mut state = self.sim.state.lock().unwrap();
        let chaos = state.chaos;
        if state.is_unavailable(self.node) || (state.phase == Phase::Running && state.rng.below(400) < chaos) {
            return Err(Dead);
        }
        ask(&state.database);
        Ok(())
    }

    pub(crate) fn by(&self) -> By {
        let fence = self.fence.get().filter(|_| self.is_fenced.take());
        By { op: self.op.get(), node: self.node, cache: self.cache.get(), fence, is_misled: self.is_misled.get() }
    }

    pub(crate) fn write(&self, transaction: Transaction) -> Result<(), Dead> {
        let by = self.by();
        self.step()?;
        let mut state = self.sim.state.lock().unwrap();
        if state.phase == Phase::Quiet {
            state.transact(transaction, by);
            return Ok(());
        }
        if state.is_unavailable(self.node) {
            return Err(Dead);
        }
        let chaos = state.chaos;
        match state.rng.below(250) / chaos {
            0 => Err(Dead),
            // It takes effect, and the answer is lost.
            1 => {
                state.transact(transaction, by);
                Err(Dead)
            }
            // Nobody waits for it any more when it takes effect.
            2 => {
                let due = state.now() + state.rng.below(20_000);
                state.in_flight.push((due, Effect::Transaction(transaction, by)));
                Err(Dead)
            }
            _ => {
                state.transact(transaction, by);
                drop(state);
                self.may_die()
            }
        }
    }

    /// The point before a request: time passes, others go on, nodes are paused and killed.
    pub(crate) fn step(&self) -> Result<(), Dead> {
        let mut state = self.sim.state.lock().unwrap();
        if state.phase == Phase::Quiet {
            return Ok(());
        }
        state.steps += 1;
        if state.steps >= state.steps_max || state.violation.is_some() {
            state.phase = Phase::Ending;
        }
        if state.phase == Phase::Ending {
            return Err(Dead);
        }
        let passes = if state.rng.once_in(64) { state.rng.below(2_500) } else { state.rng.below(20) };
        let until = state.now() + passes;
        state.pass_until(until);
        state.misfortune();
        let goes_on = state.is_runnable(self.id) && !state.rng.once_in(3);
        if !goes_on {
            self.yield_turn(state);
            state = self.sim.state.lock().unwrap();
        }
        self.is_alive(&state)
    }

    /// The point after an effect, before its answer arrives.
    pub(crate) fn may_die(&self) -> Result<(), Dead> {
        let mut state = self.sim.state.lock().unwrap();
        if state.phase == Phase::Running && state.rng.once_in(300) {
            state.kill(self.node);
        }
        self.is_alive(&state)
    }

    fn is_alive(&self, state: &State) -> Result<(), Dead> {
        let is_mine = state.nodes[self.node].generation == self.generation.get();
        if is_mine && state.phase != Phase::Ending { Ok(()) } else { Err(Dead) }
    }

    /// Gives the turn to another task, and waits for it to come back.
    pub(crate) fn yield_turn(&self, mut state: MutexGuard<'_, State>) {
        let Some(next) = state.next(self.id) else { return };
        drop(state);
        self.sim.give_turn(next);
        self.sim.wait_for_turn(self.id);
    }
}

impl Sim {
    pub(crate) fn give_turn(&self, next: usize) {
        self.turn.store(next, Ordering::Release);
        self.threads.get().unwrap()[next].unpark();
    }

    pub(crate) fn wait_for_turn(&self, id: usize) {
        while self.turn.load(Ordering::Acquire) != id {
            std::thread::park();
        }
    }
}

impl State {
    fn is_runnable(&self, id: usize) -> bool {
        let task = &self.tasks[id];
        !task.is_done && task.wakes.max(self.nodes[task.node].paused_until) <= self.now()
    }

    /// Who runs next; `None` if there is nobody else.
    pub(crate) fn next(&mut self, me: usize) -> Option<usize> {
        if self.phase == Phase::Ending {
            let others = (1..=self.tasks.len()).map(|distance| (me + distance) % self.tasks.len());
            return others.into_iter().find(|id| !self.tasks[*id].is_done && *id != me);
        }
        let mut runnable: Vec<usize> = (0..self.tasks.len()).filter(|id| self.is_runnable(*id)).collect();
        if runnable.is_empty() {
            let wakes = |task: &TaskState| task.wakes.max(self.nodes[task.node].paused_until);
            let first = self.tasks.iter().filter(|task| !task.is_done).map(wakes).min()?;
            self.pass_until(first);
            runnable = (0..self.tasks.len()).filter(|id| self.is_runnable(*id)).collect();
        }
        let next = self.rng.one_of(&runnable);
        (next != me).then_some(next)
    }

    fn misfortune(&mut self) {
        let node = self.rng.below(self.nodes.len() as u64) as usize;
        if self.rng.once_in(500) {
            self.kill(node);
        } else if self.rng.below(150) < self.chaos {
            let lasts = self.rng.one_of(&[1_000, 3_000, 5_000, 20_000, 50_000, 95_000, 1_300_000]);
            self.nodes[node].paused_until = self.now() + lasts;
            self.note("pause", || format!("{node} for {lasts} ms"));
        } else if self.has_accidents && self.rng.below(1_000) < self.chaos {
            let lasts = self.rng.one_of(&[2_000, 20_000, 200_000]);
            self.elsewhere_until = self.now() + lasts;
            self.note("elsewhere", || format!("for {lasts} ms"));
        } else if self.has_accidents && self.rng.once_in(400) {
            self.suspend(node);
        } else {
            self.maybe_fails_over();
            #[cfg(feature = "postgres")]
            self.maybe_restarts();
        }
    }

    /// Suspends a machine for longer than a lease lasts.
    pub(crate) fn suspend(&mut self, node: usize) {
        let lasts = self.rng.one_of(&[130_000, 300_000, 1_300_000]);
        self.nodes[node].paused_until = self.now() + lasts;
        self.nodes[node].suspended += lasts;
        self.note("suspend", || format!("{node} for {lasts} ms"));
    }

    fn kill(&mut self, node: usize) {
        self.note("kill", || node.to_string());
        self.nodes[node].generation += 1;
        self.nodes[node].is_up = false;
        self.nodes[node].paused_until = 0;
    }
}
