//! One run: a seed, its nodes, and a quiet end.

use std::cell::Cell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

#[cfg(feature = "postgres")]
use super::database::Database;
use super::node::{INDEX_ID, Node, open};
use crate::access::grant::Grant;
use crate::cache::Cache;
use crate::data::Data;
use crate::index::Simulated;
use crate::name::CacheName;
use crate::push::pending::WhichPending;
use crate::retention::CollectOptions;
use crate::settings::CacheSettings;
use crate::simulator::history::Lost;
use crate::simulator::rule::WITHOUT;
use crate::simulator::state::{BEGINNING, CACHES, Op, Phase, Plan, State, TaskState};
use crate::simulator::task::{CURRENT, Sim, Task};
use crate::upkeep::FsckOptions;
use narval_client::clock::{VIRTUAL, Virtual};
use narval_files::Work;

/// Nodes, and the clients that each of them serves at a time.
const NODES: usize = 3;
const CLIENTS: usize = 2;

/// What happened.
#[derive(Debug)]
pub(super) struct Report {
    pub(super) violation: Option<String>,
    pub(super) steps: u64,
    pub(super) counts: HashMap<&'static str, u64>,
    pub(super) events: Vec<String>,
    pub(super) digest: u64,
}

impl Task {
    fn run(sim: Arc<Sim>, (id, node): (usize, usize), work: impl FnOnce(&Self)) {
        let (generation, op, cache) = (Cell::new(0), Cell::new(Op::Open), Cell::new(CACHES[0]));
        let (fence, is_fenced, is_misled) = (Cell::new(None), Cell::new(false), Cell::new(false));
        let task = Rc::new(Self {
            sim,
            id,
            node,
            generation,
            op,
            cache,
            fence,
            is_fenced,
            is_misled,
            #[cfg(feature = "postgres")]
            change: Cell::new(None),
            #[cfg(feature = "postgres")]
            begun: Cell::new(0),
        });
        CURRENT.set(Some(Rc::clone(&task)));
        VIRTUAL.set(Some(Rc::<Self>::clone(&task)));
        work(&task);
        VIRTUAL.set(None);
        CURRENT.set(None);
    }

    /// The last thing that a task does.
    fn ends(&self) {
        let mut state = self.sim.state.lock().unwrap();
        state.tasks[self.id].is_done = true;
        if let Some(next) = state.next(self.id) {
            drop(state);
            self.sim.give_turn(next);
        }
    }

    /// Everything that was on its way has arrived, and one node collects.
    fn ends_quietly(&self) {
        {
            let mut state = self.sim.state.lock().unwrap();
            state.phase = Phase::Quiet;
            self.generation.set(state.nodes[self.node].generation);
            state.note("quiet", String::new);
        }
        self.sleep(Duration::from_secs(30 * 60));
        let (data, caches) = open(&self.sim).expect("nothing fails any more");
        let grant = Grant::administrator("test");
        self.op.set(Op::Read);
        data.restore_lost();
        if self.sim.state.lock().unwrap().has_failovers {
            self.repairs_all(&data, &caches);
        }
        for wait in [100, 26 * 3600, 26 * 3600, 26 * 3600, 9 * 24 * 3600, 700, 100] {
            self.op.set(Op::Collect);
            for (cache, name) in caches.iter().zip(CACHES) {
                self.cache.set(name);
                cache.collect(&CollectOptions::default(), &grant).expect("nothing fails any more");
            }
            self.op.set(Op::Publish);
            data.publish_pending(WhichPending::Due).expect("nothing fails any more");
            self.sleep(Duration::from_secs(wait));
        }
        data.publish_pending(WhichPending::Due).expect("nothing fails any more");
        drop((data, caches));
        self.sim.state.lock().unwrap().check_end();
    }

    /// As an operator does after a failover. What the bucket and the index do not have in common is named, and nothing of it is left afterwards.
    fn repairs_all(&self, data: &Data, caches: &[Cache; 2]) {
        self.sleep(Duration::from_secs(5 * 24 * 3600));
        self.op.set(Op::Publish);
        data.publish_pending(WhichPending::Due).expect("nothing fails any more");
        for (cache, name) in caches.iter().zip(CACHES) {
            self.cache.set(name);
            self.op.set(Op::Collect);
            cache.remove_garbage(cache.now()).expect("nothing fails any more");
            self.op.set(Op::Read);
            let work = Work::unwatched();
            let report = cache.fsck(FsckOptions::default(), work).expect("nothing fails any more");
            self.sim.state.lock().unwrap().check_named(name, &report.problems);
            cache.fsck(FsckOptions { repair: true, ..FsckOptions::default() }, work).expect("nothing fails any more");
            let report = cache.fsck(FsckOptions::default(), work).expect("nothing fails any more");
            for problem in report.problems {
                self.sim.state.lock().unwrap().violate(format!("after a repair, {problem}"));
            }
        }
        let mut state = self.sim.state.lock().unwrap();
        state.history.strays.clear();
        state.history.failovers = Lost::default();
    }
}

/// Runs a plan.
pub(super) fn run(plan: Plan) -> Report {
    let Plan { without, on_postgres, .. } = plan;
    let clock = Arc::new(AtomicU64::new(BEGINNING));
    let mut state = State::new(plan, NODES, Simulated::database(Arc::clone(&clock)), clock);
    for node in 0..NODES {
        let task = || TaskState { node, wakes: 0, is_done: false };
        state.tasks.extend(std::iter::repeat_with(task).take(CLIENTS + 1));
    }
    let settings = CacheSettings { retention_days: Some(1), keep_releases: 2, ..CacheSettings::default() };
    state.objects.insert("_narval/index.id".to_owned(), INDEX_ID.as_bytes().to_vec());
    let default = CacheName::default();
    let caches = [default.as_str(), CACHES[1].trim_end_matches('/')];
    #[cfg(feature = "postgres")]
    let _database = on_postgres.then(|| Database::fill(&mut state, caches, &settings.to_json()));
    if !on_postgres {
        let add = "insert into caches (name, settings, created) values (?, ?, 0)";
        for name in caches {
            state.database.execute(add, [name, &settings.to_json()]).unwrap();
        }
    }
    let tasks = state.tasks.len();
    let sim = Arc::new(Sim { state: Mutex::new(state), turn: AtomicUsize::new(usize::MAX), threads: OnceLock::new() });
    let nodes: &[Node; NODES] = &Default::default();
    std::thread::scope(|scope| {
        let spawn = |id: usize| {
            let sim = Arc::clone(&sim);
            scope.spawn(move || {
                WITHOUT.set(without);
                sim.wait_for_turn(id);
                Task::run(sim, (id, id / (CLIENTS + 1)), |task| {
                    match id % (CLIENTS + 1) {
                        0 => task.keeps_house(nodes),
                        _ => task.serves_clients(nodes),
                    }
                    task.ends();
                });
            })
        };
        let threads: Vec<_> = (0..tasks).map(spawn).collect();
        sim.threads.set(threads.iter().map(|thread| thread.thread().clone()).collect()).unwrap();
        sim.give_turn(0);
    });
    WITHOUT.set(without);
    let ended = Arc::clone(&sim);
    Task::run(Arc::clone(&sim), (0, 0), move |task| {
        nodes.iter().for_each(|node| drop(node.lock().unwrap().take()));
        if ended.state.lock().unwrap().violation.is_none() {
            task.ends_quietly();
        }
    });
    WITHOUT.set(&[]);
    let mut state = sim.state.lock().unwrap();
    Report {
        violation: state.violation.take(),
        steps: state.steps,
        counts: std::mem::take(&mut state.counts),
        events: state.events.take().into_iter().flatten().collect(),
        digest: state.digest,
    }
}
