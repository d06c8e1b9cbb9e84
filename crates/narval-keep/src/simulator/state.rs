//! What is true: the database, the objects, the time, and who is alive.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rusqlite::Connection;

use super::history::{History, Standby};
use super::rule::Rule;
#[cfg(feature = "postgres")]
use super::server::Shared;

/// Two caches, to which clients push the same NARs: with what the keys of their objects begin.
pub(crate) const CACHES: [&str; 2] = ["", "other/"];

/// When the simulation begins, in milliseconds since 1970.
pub(crate) const BEGINNING: u64 = 1_700_000_000_000;

/// By how much the clock of a node or of the object store may be wrong, in milliseconds: two of them differ by at most a minute.
pub(crate) const SKEW_MAX: u64 = 30_000;

/// By how much the clock of a machine may be wrong that nobody has set, in milliseconds.
const WRONG_BY: [i64; 4] = [0, 100 * DAY, 0, -100 * DAY];

const DAY: i64 = 24 * 3600 * 1000;

/// How long a server takes to notice changes of others, at most (`watch::LOOK_EVERY` of PostgreSQL's index).
const NOTICED_AFTER: u64 = 250;

/// The events that are kept for the report.
const EVENTS_MAX: usize = 1 << 16;

/// What to simulate.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) steps: u64,
    pub(crate) without: &'static [Rule],
    /// How many times more often than usual something fails; from 2, clients also use fewer paths, and sign them.
    pub(crate) chaos: u64,
    /// Whether machines are suspended, and the address of the object store leads elsewhere at times.
    pub(crate) has_accidents: bool,
    /// Whether clients record releases.
    pub(crate) has_releases: bool,
    /// Whether standbys take over without the last transactions.
    pub(crate) has_failovers: bool,
    /// Whether clients use one path, and collect often: more of them meet.
    pub(crate) is_focused: bool,
    pub(crate) is_traced: bool,
    /// Whether the index is in PostgreSQL.
    pub(crate) on_postgres: bool,
}

/// Random numbers from a seed (SplitMix64).
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }

    /// Whether something happens that happens once in so many times.
    pub(crate) fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    pub(crate) fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }
}

/// What a task is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Op {
    Push,
    Ask,
    Read,
    Pin,
    Delete,
    Collect,
    Publish,
    Open,
    Release,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Everything can happen.
    Running,
    /// Everybody is dead, and ends.
    Ending,
    /// One node is alive, and nothing fails.
    Quiet,
}

pub(crate) struct TaskState {
    pub(crate) node: usize,
    pub(crate) wakes: u64,
    pub(crate) is_done: bool,
}

pub(crate) struct NodeState {
    pub(crate) generation: u32,
    pub(crate) is_up: bool,
    pub(crate) paused_until: u64,
    /// How long its machine was suspended, in milliseconds. Its monotonic clock stood still meanwhile.
    pub(crate) suspended: u64,
    /// Added to the time that its clock shows.
    pub(crate) skew: u64,
    /// Added to that, too, in milliseconds: nobody has set its clock.
    pub(crate) wrong_by: i64,
    /// When it has last looked for changes, and when it looks next.
    seen: u64,
    looks: u64,
    own_changes: u64,
    /// The failovers that it knows of.
    noticed: usize,
}

/// A transaction.
pub(crate) type Transaction = Box<dyn FnOnce(&Connection) + Send>;

/// What takes effect later.
pub(crate) enum Effect {
    Put(String, Vec<u8>),
    /// Sent at this time.
    Remove(String, u64),
    Transaction(Transaction, By),
}

/// Whose transaction it is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct By {
    pub(crate) op: Op,
    pub(crate) node: usize,
    /// In which cache, unless it is done for all.
    pub(crate) cache: &'static str,
    /// The lease of the collection that it belongs to.
    pub(crate) fence: Option<i64>,
    /// Whether its task was told that there is no such object when there was, and was not told since which store it asks.
    pub(crate) is_misled: bool,
}

/// A transaction that is under way.
#[cfg(feature = "postgres")]
pub(crate) struct Open {
    pub(crate) task: usize,
    /// The process of the server that has it.
    pub(crate) process: i32,
    /// When it last did something, in milliseconds.
    pub(crate) at: u64,
}

pub(crate) struct State {
    pub(crate) rng: Rng,
    pub(crate) clock: Arc<AtomicU64>,
    pub(crate) steps: u64,
    pub(crate) steps_max: u64,
    pub(crate) phase: Phase,
    /// How many times more often than usual something fails.
    pub(crate) chaos: u64,
    /// Whether machines are suspended, and the address of the object store leads elsewhere at times.
    pub(crate) has_accidents: bool,
    /// Whether clients record releases.
    pub(crate) has_releases: bool,
    /// Whether standbys take over; what the next one has, and until when the database is away then.
    pub(crate) has_failovers: bool,
    pub(crate) is_focused: bool,
    pub(crate) standby: Option<Standby>,
    pub(crate) away_until: u64,
    /// Until when requests to the object store reach an empty one, which takes nothing.
    pub(crate) elsewhere_until: u64,
    pub(crate) tasks: Vec<TaskState>,
    pub(crate) nodes: Vec<NodeState>,
    /// As those of nodes: that of the object store.
    pub(crate) skew_of_store: u64,
    /// What the checks look at: the database, or a copy of the one in PostgreSQL.
    pub(crate) database: Connection,
    #[cfg(feature = "postgres")]
    pub(crate) shared: Option<Shared>,
    /// Transactions in PostgreSQL that are under way.
    #[cfg(feature = "postgres")]
    pub(crate) open: Vec<Open>,
    pub(crate) objects: BTreeMap<String, Vec<u8>>,
    /// When objects were stored, by the clock of the object store, in seconds.
    pub(crate) modified: BTreeMap<String, u64>,
    pub(crate) in_flight: Vec<(u64, Effect)>,
    /// When something changed that readers can see, and which node did it.
    changes: Vec<(u64, usize)>,
    pub(crate) history: History,
    pub(crate) violation: Option<String>,
    pub(crate) counts: HashMap<&'static str, u64>,
    pub(crate) events: Option<VecDeque<String>>,
    /// The rows of NARs, for the report.
    files: BTreeMap<String, String>,
    /// Of all that happened: two runs of one seed have the same.
    pub(crate) digest: u64,
}

impl State {
    /// `clock` is the time of the database, in milliseconds since 1970.
    pub(crate) fn new(plan: Plan, nodes: usize, database: Connection, clock: Arc<AtomicU64>) -> Self {
        let Plan { seed, chaos, has_accidents, .. } = plan;
        let mut rng = Rng(seed.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ 0x6e61_7276_616c);
        let node = |rng: &mut Rng, number: usize| NodeState {
            generation: 0,
            is_up: false,
            paused_until: 0,
            suspended: 0,
            skew: rng.below(2 * SKEW_MAX + 1),
            wrong_by: if has_accidents { WRONG_BY[(number + (seed / 2) as usize) % WRONG_BY.len()] } else { 0 },
            seen: 0,
            looks: 0,
            own_changes: 0,
            noticed: 0,
        };
        let nodes = (0..nodes).map(|number| node(&mut rng, number)).collect();
        let skew_of_store = rng.below(2 * SKEW_MAX + 1);
        Self {
            rng,
            steps: 0,
            steps_max: plan.steps,
            phase: Phase::Running,
            chaos,
            has_accidents,
            has_releases: plan.has_releases,
            has_failovers: plan.has_failovers,
            is_focused: plan.is_focused,
            standby: None,
            away_until: 0,
            elsewhere_until: 0,
            tasks: Vec::new(),
            nodes,
            skew_of_store,
            database,
            #[cfg(feature = "postgres")]
            shared: None,
            #[cfg(feature = "postgres")]
            open: Vec::new(),
            clock,
            objects: BTreeMap::new(),
            modified: BTreeMap::new(),
            in_flight: Vec::new(),
            changes: Vec::new(),
            history: History::default(),
            violation: None,
            counts: HashMap::new(),
            events: plan.is_traced.then(VecDeque::new),
            files: BTreeMap::new(),
            digest: 0,
        }
    }

    pub(crate) fn now(&self) -> u64 {
        self.clock.load(Ordering::Relaxed)
    }

    /// Whether requests reach another store.
    pub(crate) fn is_elsewhere(&self) -> bool {
        self.phase == Phase::Running && self.now() < self.elsewhere_until
    }

    /// What the clock of a node shows.
    pub(crate) fn now_of(&self, node: usize) -> u64 {
        self.database_time_of(node).saturating_add_signed(self.nodes[node].wrong_by)
    }

    /// The time of the database, as far as a node knows it.
    pub(crate) fn database_time_of(&self, node: usize) -> u64 {
        self.now() + self.nodes[node].skew - SKEW_MAX
    }

    /// Lets time pass; what was on its way takes effect.
    pub(crate) fn pass_until(&mut self, time: u64) {
        while let Some(at) = (0..self.in_flight.len()).min_by_key(|at| self.in_flight[*at].0) {
            if self.in_flight[at].0 > time {
                break;
            }
            let (due, effect) = self.in_flight.swap_remove(at);
            self.clock.fetch_max(due, Ordering::Relaxed);
            self.note("late", String::new);
            self.take_effect(effect);
        }
        self.clock.fetch_max(time, Ordering::Relaxed);
    }

    pub(crate) fn take_effect(&mut self, effect: Effect) {
        match effect {
            Effect::Put(key, bytes) => {
                self.note("put", || key.clone());
                self.objects.insert(key.clone(), bytes);
                let shown = (self.now() + self.skew_of_store - SKEW_MAX) / 1000;
                self.modified.insert(key.clone(), shown);
                self.check_object(&key);
            }
            Effect::Remove(key, sent) => {
                self.note("remove", || key.clone());
                self.check_removal(&key, sent);
                self.objects.remove(&key);
                self.check_object(&key);
            }
            Effect::Transaction(transaction, by) => self.transact(transaction, by),
        }
    }

    /// Runs a transaction, and checks what it did.
    pub(crate) fn transact(&mut self, transaction: Transaction, by: By) {
        let stamp = self.stamp();
        let before = self.database.total_changes();
        transaction(&self.database);
        if self.stamp() != stamp {
            self.changes.push((self.now(), by.node));
            self.nodes[by.node].own_changes += 1;
        }
        if self.database.total_changes() != before {
            self.trace_files();
            self.check_rows(by);
        }
    }

    /// A transaction in PostgreSQL is committed.
    #[cfg(feature = "postgres")]
    pub(crate) fn is_changed(&mut self, by: By) {
        if let Some(shared) = &self.shared {
            shared.copy_to(&self.database);
        }
        self.trace_files();
        self.check_rows(by);
    }

    /// Reports what became of the rows of NARs.
    fn trace_files(&mut self) {
        if self.events.is_none() {
            return;
        }
        let all = "select cache || ' ' || name, format('orphaned %s, used %s', orphaned, used) from nars \
             union all select cache || ' ' || name, 'garbage' from garbage";
        let files: BTreeMap<String, String> = {
            let mut statement = self.database.prepare_cached(all).unwrap();
            let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
            rows.collect::<Result<_, _>>().unwrap()
        };
        let old = std::mem::replace(&mut self.files, files.clone());
        for (name, state) in files.iter().filter(|(name, state)| old.get(*name) != Some(*state)) {
            self.note("  row", || format!("{name}: {state}"));
        }
        for name in old.keys().filter(|name| !files.contains_key(*name)) {
            self.note("  no row", || name.clone());
        }
    }

    fn stamp(&self) -> u64 {
        self.database.query_row("select value from meta where key = 'stamp'", [], |row| row.get(0)).unwrap()
    }

    /// The stamp as a node knows it: its own changes at once, those of others when it has looked.
    pub(crate) fn stamp_of(&mut self, node: usize) -> u64 {
        self.looks(node);
        let NodeState { seen, own_changes, .. } = self.nodes[node];
        let others = self.changes.iter().filter(|(time, by)| *by != node && *time <= seen).count();
        own_changes + others as u64
    }

    /// Another server has taken over: nothing that nodes have seen counts.
    pub(crate) fn is_changed_for_all(&mut self) {
        self.changes.push((self.now(), usize::MAX));
    }

    /// How many failovers a node knows of.
    pub(crate) fn server_of(&mut self, node: usize) -> u64 {
        if self.has_failovers {
            self.looks(node);
        }
        self.nodes[node].noticed as u64
    }

    /// Whether the database is away for a node, which notices that.
    pub(crate) fn is_unavailable(&mut self, node: usize) -> bool {
        let is_unavailable = self.phase == Phase::Running && self.now() < self.away_until;
        if is_unavailable {
            self.nodes[node].noticed = self.history.failovers.at.len();
        }
        is_unavailable
    }

    /// Whether a node looks for changes of others now.
    pub(crate) fn looks(&mut self, node: usize) -> bool {
        let now = self.now();
        let looks = now >= self.nodes[node].looks && self.rng.once_in(2);
        if looks {
            let after = 1 + self.rng.below(NOTICED_AFTER);
            let node = &mut self.nodes[node];
            (node.seen, node.looks) = (now, now + after);
            node.noticed = self.history.failovers.at.len();
        }
        looks
    }

    pub(crate) fn note(&mut self, what: &'static str, detail: impl Fn() -> String) {
        *self.counts.entry(what).or_default() += 1;
        let word = what.bytes().fold(self.now() ^ self.steps, |sum, byte| sum.rotate_left(7) ^ u64::from(byte));
        self.digest = (self.digest.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let (now, steps) = (self.now() - BEGINNING, self.steps);
        if let Some(events) = &mut self.events {
            if events.len() == EVENTS_MAX {
                events.pop_front();
            }
            events.push_back(format!("{steps:>6} {:>10}.{:03}  {what} {}", now / 1000, now % 1000, detail()));
        }
    }

    pub(crate) fn violate(&mut self, what: String) {
        self.note("VIOLATION", || what.clone());
        if self.violation.is_none() {
            self.violation = Some(what);
        }
    }
}
