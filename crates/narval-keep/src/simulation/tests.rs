//! The simulation finds nothing, and finds what is missing when a rule is taken out.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use super::run::run;
use crate::simulator::rule::Rule;
use crate::simulator::state::Plan;
#[cfg(feature = "postgres")]
use crate::tests_on_postgres::postgres::PostgresServer;

/// Steps of one seed.
const STEPS: u64 = 4_000;

/// The same in PostgreSQL: three seeds.
#[cfg(feature = "postgres")]
const STEPS_IN_ALL_ON_POSTGRES: u64 = 10_000;

/// The last events, for the report. Set the seed, and all of them are printed.
const EVENTS_SHOWN: usize = 300;

/// Steps in all, unless the environment says otherwise.
const STEPS_IN_ALL: u64 = 20_000;

fn report(plan: Plan) -> String {
    let report = run(Plan { is_traced: true, ..plan });
    let from = report.events.len().saturating_sub(EVENTS_SHOWN);
    format!("seed {}: {:?}\n{}", plan.seed, report.violation, report.events[from..].join("\n"))
}

fn plan(seed: u64) -> Plan {
    let without = std::env::var("NARVAL_SIMULATION_WITHOUT").ok();
    let without = without.and_then(|name| RULES.iter().find(|rule| format!("{rule:?}") == name));
    let without = without.map(std::slice::from_ref).unwrap_or_default();
    // Faults that are rare and faults that are common find different things.
    let chaos = variable("NARVAL_SIMULATION_CHAOS").unwrap_or([1, 4, 12][(seed % 3) as usize]);
    Plan {
        seed,
        steps: STEPS,
        without,
        chaos,
        has_accidents: seed.is_multiple_of(2),
        has_releases: seed % 4 == 3,
        has_failovers: seed % 8 == 5,
        is_focused: variable("NARVAL_SIMULATION_FOCUS").is_some(),
        is_traced: false,
        on_postgres: false,
    }
}

/// The same with the index in PostgreSQL, where a statement is a step.
#[cfg(feature = "postgres")]
fn plan_on_postgres(seed: u64) -> Plan {
    Plan { on_postgres: true, has_failovers: false, ..plan(seed) }
}

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|number| number.parse().unwrap())
}

/// What has to happen: a simulation in which nothing happens finds nothing.
const HAPPENS: [&str; 7] = ["committed", "gone", "kill", "pause", "late", "remove", "released"];

#[test]
fn nothing_is_lost_and_nothing_dangles() {
    runs(plan, STEPS_IN_ALL, &HAPPENS);
}

/// One connection for each task of a node, each statement a step, a lost connection at any of them, and a server that ends transactions of nodes
/// that were paused.
#[cfg(feature = "postgres")]
#[test]
fn nothing_is_lost_and_nothing_dangles_on_postgres() {
    let Some(_server) = PostgresServer::shared() else { return };
    let happens = [&HAPPENS[..], &["broken", "idle", "locked", "late commit", "answer lost", "restart"]].concat();
    runs(plan_on_postgres, STEPS_IN_ALL_ON_POSTGRES, &happens);
}

fn runs(plan: impl Fn(u64) -> Plan + Sync, steps_in_all: u64, happens: &[&str]) {
    if let Some(seed) = variable("NARVAL_SIMULATION_SEED") {
        let report = run(Plan { is_traced: true, ..plan(seed) });
        println!("{}\nseed {seed}: {:?}", report.events.join("\n"), report.violation);
        return;
    }
    let (steps_max, begun) = (variable("NARVAL_SIMULATION_STEPS").unwrap_or(steps_in_all), Instant::now());
    let first = variable("NARVAL_SIMULATION_FIRST").unwrap_or(1);
    let (seeds, steps, found) = (AtomicU64::new(first), AtomicU64::new(0), AtomicU64::new(0));
    let counts = std::sync::Mutex::new(std::collections::BTreeMap::<&str, u64>::new());
    let work = || {
        while steps.load(Ordering::Relaxed) < steps_max && found.load(Ordering::Relaxed) == 0 {
            let seed = seeds.fetch_add(1, Ordering::Relaxed);
            let report = run(plan(seed));
            steps.fetch_add(report.steps, Ordering::Relaxed);
            if report.violation.is_some() {
                found.store(seed, Ordering::Relaxed);
            }
            let mut counts = counts.lock().unwrap();
            report.counts.into_iter().for_each(|(what, count)| *counts.entry(what).or_default() += count);
        }
    };
    std::thread::scope(|scope| (0..2).for_each(|_| drop(scope.spawn(work))));
    let (steps, counts) = (steps.into_inner(), counts.into_inner().unwrap());
    println!("{steps} steps of {} seeds in {:?}: {counts:?}", seeds.into_inner() - first, begun.elapsed());
    match found.into_inner() {
        0 => {}
        seed => panic!("{}", report(plan(seed))),
    }
    for what in happens {
        assert!(counts.get(what).is_some_and(|count| *count > 0), "{what}: {counts:?}");
    }
}

#[test]
fn a_seed_always_runs_the_same() {
    let digests: Vec<u64> = (0..3).map(|_| run(plan(7)).digest).collect();
    assert_eq!(digests[0], digests[1]);
    assert_eq!(digests[0], digests[2]);
}

#[cfg(feature = "postgres")]
#[test]
fn a_seed_always_runs_the_same_on_postgres() {
    let Some(_server) = PostgresServer::shared() else { return };
    let digests = [(); 2].map(|()| run(Plan { steps: 1_000, ..plan_on_postgres(7) }).digest);
    assert_eq!(digests[0], digests[1]);
}

/// Without these rules, this seed shows what goes wrong. Where there are two, the second one changes when things happen, and nothing goes wrong
/// without it alone.
fn is_found(without: &'static [Rule], (seed, chaos): (u64, u64)) {
    let report = run(Plan { without, chaos, ..plan(seed) });
    assert!(report.violation.is_some(), "seed {seed} does not find the absence of {without:?}");
    let [_, others @ ..] = without else { return };
    let report = run(Plan { without: others, chaos, ..plan(seed) });
    assert_eq!(report.violation, None, "seed {seed} without {others:?}");
}

macro_rules! absence_is_found {
    ($($name:ident: [$($rule:ident)+] in $seed:expr,)*) => {
        $(#[test]
        fn $name() {
            is_found(&[$(Rule::$rule),+], $seed);
        })*
    };
}

absence_is_found! {
    two_collections_at_a_time_are_found: [Fence] in (4, 12),
    a_narinfo_that_others_publish_too_early_is_found: [Takeover] in (2, 12),
    an_absence_in_another_bucket_is_found: [Control] in (2, 12),
    a_collection_by_a_clock_that_nobody_has_set_is_found: [DatabaseTime] in (2, 12),
    a_request_for_a_release_that_records_two_is_found: [Requested] in (3, 12),
    a_release_that_keeps_nothing_is_found: [Held] in (19, 12),
    a_row_before_its_bytes_is_found: [Follows] in (1, 12),
    a_name_that_is_used_again_is_found: [Unique] in (1, 12),
    a_narinfo_that_others_change_is_found: [SettleAlone] in (27, 12),
    a_path_that_was_pushed_again_and_is_collected_is_found: [Unchanged] in (24, 12),
}

/// Seeds that find the absence of a rule in PostgreSQL, and whether clients use one path in them. Nothing goes wrong in them otherwise.
#[cfg(feature = "postgres")]
const FOUND_ON_POSTGRES: [(&[Rule], u64, bool); 5] = [
    (&[Rule::Fence], 5, false),
    (&[Rule::Control], 2, true),
    (&[Rule::DatabaseTime], 2, true),
    (&[Rule::Follows], 1, false),
    (&[Rule::Held], 3, false),
];

#[cfg(feature = "postgres")]
#[test]
#[ignore = "takes ten minutes"]
fn absences_are_found_on_postgres() {
    let Some(_server) = PostgresServer::shared() else { return };
    for (without, seed, is_focused) in FOUND_ON_POSTGRES {
        let plan = |without| Plan { without, chaos: 12, is_focused, ..plan_on_postgres(seed) };
        let (report, intact) = (run(plan(without)), run(plan(&[])));
        println!("{without:?}: after {} steps, {:?}", report.steps, report.violation);
        assert!(report.violation.is_some(), "seed {seed} does not find the absence of {without:?}");
        assert_eq!(intact.violation, None, "seed {seed}");
    }
}

/// By name, for the environment.
static RULES: [Rule; 21] = [
    Rule::Requested,
    Rule::Held,
    Rule::DatabaseTime,
    Rule::Boottime,
    Rule::Control,
    Rule::Hidden,
    Rule::Stored,
    Rule::Promised,
    Rule::Follows,
    Rule::Unique,
    Rule::Waits,
    Rule::Old,
    Rule::SettleOwn,
    Rule::Fence,
    Rule::Needed,
    Rule::PinPresent,
    Rule::Takeover,
    Rule::SettleAlone,
    Rule::Renumbered,
    Rule::Unchanged,
    Rule::Answered,
];
