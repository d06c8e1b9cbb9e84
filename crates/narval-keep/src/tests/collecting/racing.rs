//! Servers that push and collect at the same time over one index, while some of them are paused or killed.

use narval_files::Work;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::super::*;
use crate::records::leases::collection_lease;

/// How long; ten minutes by `NARVAL_RACE_SECONDS=600`.
const SECONDS: u64 = 12;

/// How much longer, until a push was pinned.
const PATIENCE: Duration = Duration::from_secs(120);

/// How much longer than its lease a collection is paused.
const OVERTAKEN: Duration = Duration::from_secs(3);

/// Says to the test program that it is to collect, and in which folder.
const COLLECTOR: &str = "NARVAL_TEST_COLLECTOR";

/// Paths that are pushed again and again: what one collection dooms the next push wants.
const NAMES: usize = 12;

/// It would go on when the test has failed.
struct Collector(Child);

impl Collector {
    fn end(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.end();
    }
}

fn collector(place: &Place) -> Collector {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let name = format!("{}::collects_until_it_is_killed", module_path!().split_once("::").unwrap().1);
    command.args(["--exact", &name, "--ignored", "--test-threads=1"]);
    place.tell(&mut command);
    Collector(command.env(COLLECTOR, place.path()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
}

/// Collects whatever it may, as if all had been pushed long ago; NARs sometimes at once, sometimes in two steps.
#[test]
#[ignore = "the process that is paused and killed"]
fn collects_until_it_is_killed() {
    let Some(folder) = std::env::var_os(COLLECTOR) else { return };
    let data = Place::told(folder.as_ref());
    let cache = data.cache(&CacheName::default()).unwrap().unwrap();
    for round in 1.. {
        let later = now() + 100 * 24 * 60 * 60 * (round % 2 + 1);
        let grace = if round % 4 < 2 { COLLECT_GRACE } else { 0 };
        let options = CollectOptions { now: Some(later), grace, dry_run: false, work: Work::unwatched() };
        // Another may be at it, or have taken over.
        cache.collect(&options, &Grant::administrator("test")).ok();
    }
}

fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

/// What a pusher was told is there, and has pinned since, must stay.
fn push_and_pin(cache: &Cache, round: usize, pusher_number: usize) -> Option<TestPath> {
    let library = TestPath::new(&format!("library-{}", round % 3), &[]);
    let program = TestPath::new(&format!("program-{}", round % NAMES), &[&library]);
    for path in [&library, &program] {
        match path.push(cache) {
            Ok(_) => {}
            // What is collected in between is refused, with the advice to push it again.
            Err(rejection) if matches!(rejection.kind, RejectionKind::Conflict | RejectionKind::Unavailable) => {
                return None;
            }
            Err(rejection) => panic!("{rejection}"),
        }
    }
    let name = format!("pin-{pusher_number}-{round}");
    match cache.pin(&name, &program.part(), PinFor::default(), &with_scopes("pin")) {
        Ok(_) => Some(program),
        Err(rejection) if matches!(rejection.kind, RejectionKind::NotFound | RejectionKind::Unavailable) => None,
        Err(rejection) => panic!("{rejection}"),
    }
}

/// How many leases for collections there have been.
fn leases(fixture: &Fixture) -> u64 {
    let fence = fixture.folder.query("select fence from work where name = 'collection'");
    fence.parse().unwrap_or(0)
}

#[test]
fn pushes_race_collections_of_other_servers() {
    if !place::is_on_postgres() {
        // One machine has one server.
        return;
    }
    let seconds = std::env::var("NARVAL_RACE_SECONDS").ok().and_then(|seconds| seconds.parse().ok());
    let seconds = Duration::from_secs(seconds.unwrap_or(SECONDS));
    let fixture = Fixture::new();
    let paused = collector(&fixture.folder);
    let mut killed = collector(&fixture.folder);
    let (is_over, pushed, held) = (AtomicBool::new(false), AtomicUsize::new(0), AtomicUsize::new(0));
    let pauses = std::thread::scope(|scope| {
        for pusher_number in 0..3 {
            let (cache, is_over, pushed, held) = (fixture.cache.clone(), &is_over, &pushed, &held);
            scope.spawn(move || {
                let mut round = pusher_number;
                while !is_over.load(Ordering::Relaxed) {
                    round += 1;
                    pushed.fetch_add(1, Ordering::Relaxed);
                    let Some(path) = push_and_pin(&cache, round, pusher_number) else { continue };
                    held.fetch_add(1, Ordering::Relaxed);
                    std::thread::sleep(Duration::from_millis((round % 7) as u64 * 10));
                    let text = cache.narinfo(&path.part()).unwrap().expect("a pinned path stays");
                    let info = NarInfo::parse(&text, &StoreDir::default()).unwrap();
                    let name = info.url.strip_prefix("nar/").unwrap();
                    let file = cache.nar_file(name).unwrap().expect("a narinfo has its NAR");
                    assert_eq!(zstd::decode_all(file.file).unwrap(), path.nar);
                    let name = format!("pin-{pusher_number}-{round}");
                    cache.unpin(&name, None, &with_scopes("pin")).unwrap();
                }
            });
        }
        let (mut pauses, begun) = (0, Instant::now());
        // On a busy machine it takes a while until anything happens.
        let is_enough = || {
            let was_raced = held.load(Ordering::Relaxed) > 0 && leases(&fixture) > 2;
            was_raced || begun.elapsed() > seconds + PATIENCE
        };
        while begun.elapsed() < seconds || pauses < 4 || !is_enough() {
            // Every third time for so long that another process takes over.
            let pause = if pauses % 3 == 2 { collection_lease() + OVERTAKEN } else { Duration::from_millis(200) };
            signal(&paused.0, Signal::STOP);
            std::thread::sleep(pause);
            signal(&paused.0, Signal::CONT);
            std::thread::sleep(Duration::from_millis(150 + pauses * 37 % 300));
            if pauses % 4 == 3 {
                killed.end();
                killed = collector(&fixture.folder);
            }
            pauses += 1;
        }
        is_over.store(true, Ordering::Relaxed);
        pauses
    });
    drop((paused, killed));
    super::retention::whole(&fixture.cache);
    let (pushed, held) = (pushed.into_inner(), held.into_inner());
    let leases = leases(&fixture);
    eprintln!("{pushed} pushes, {held} pinned in time, {pauses} pauses, {leases} leases for collections");
    assert!(held > 0 && leases > 2);
    // Nothing is left that belongs to nobody.
    let fixture = fixture.reopen();
    let mut problems =
        fixture.data.fsck(FsckOptions { contents: true, repair: false }, Work::unwatched()).unwrap().problems;
    if place::wants_bucket() {
        // What was about to be finished is left to its node for a while.
        problems.retain(|problem| !problem.ends_with("is a file that the index does not have"));
    }
    assert_eq!(problems, Vec::<String>::new());
}
