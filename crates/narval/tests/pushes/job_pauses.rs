//! Nodes of one database and one bucket that are paused, or killed, while they do a job: another one ends it, and a paused one that continues writes nothing any more.

use std::collections::HashSet;
use std::process::Command;
use std::time::{Duration, Instant};

use narval_http::Method;
use narval_keep::{CacheName, Job, JobKind, JobState};
use narval_nix::{Compression, NarInfo, StoreDir, StorePath};
use serde_json::json;

use crate::job_kills::{Cluster, PATHS, PATIENCE, Way, admin, alone, exported};
use crate::support::Server;

#[test]
fn a_node_that_was_paused_for_longer_than_its_lease_changes_nothing() {
    alone("job_pauses::a_node_is_paused_for_longer_than_its_lease", &[]);
}

#[test]
fn a_node_that_was_paused_for_longer_than_its_lease_writes_nothing_to_a_destination() {
    alone("job_pauses::a_node_is_paused_while_it_copies", &[]);
}

fn signal(name: &str, server: &Server) {
    assert!(Command::new("kill").args([name, &server.pid().to_string()]).status().unwrap().success());
}

fn until(what: &str, mut is: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !is() {
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The destination was emptied meanwhile, so whatever is there was written by the one that was paused.
#[test]
#[ignore = "the process of the test above"]
fn a_node_is_paused_while_it_copies() {
    let Some(mut cluster) = Cluster::new(Way { servers: 2, on_postgres: true, in_bucket: true }, 9) else { return };
    let name: CacheName = "team".parse().unwrap();
    cluster.ask(&Method::PUT, "caches/team", &json!({}));
    let cache = cluster.cache(&name);
    let paths = cluster.fill(&cache, 6 * PATHS);
    let folder = cluster.files("mirror", &name);
    let count = |below: &str| std::fs::read_dir(folder.join(below)).map_or(0, Iterator::count);
    let id = cache.start_job(JobKind::Export, &json!({"to": "mirror"}), None, &admin()).unwrap().0.id;
    let job = || cache.job(&id).unwrap().unwrap();
    until("it copies", || count("nar") > 10);
    let paused = cluster.server_of(&job()).unwrap();
    signal("-STOP", &cluster.servers[paused]);
    assert!(job().ended.is_none(), "it was too fast for this test: {:?}", job());
    until("another node ends it", || job().ended.is_some());
    assert_eq!(job().state, JobState::Done, "{:?}", job());
    let all: HashSet<&str> = paths.iter().map(|(path, _)| path.base_name()).collect();
    assert_eq!(exported(&folder), all);
    cluster.clear("mirror");
    signal("-CONT", &cluster.servers[paused]);
    until("it notices", || cluster.servers[paused].log().contains("another server goes on with it"));
    std::thread::sleep(Duration::from_secs(1));
    // Requests that were sent before may end.
    assert!(count("nar") <= 8 && count("") <= 1, "{} NARs, {} entries", count("nar"), count(""));
}

#[test]
#[ignore = "the process of the test above"]
fn a_node_is_paused_for_longer_than_its_lease() {
    let way = Way { servers: 2, on_postgres: true, in_bucket: true };
    let Some(mut cluster) = Cluster::new(way, 7) else { return };
    let name: CacheName = "team".parse().unwrap();
    cluster.ask(&Method::PUT, "caches/team", &json!({}));
    let cache = cluster.cache(&name);
    let paths = cluster.fill(&cache, 3 * PATHS);
    let id = cache.start_job(JobKind::Recompress, &json!({}), None, &admin()).unwrap().0.id;
    let job = || cache.job(&id).unwrap().unwrap();
    let wait = |what: &str, is: &dyn Fn(&Job) -> bool| {
        let begun = Instant::now();
        while !is(&job()) {
            assert!(begun.elapsed() < PATIENCE, "{what}: {:?}", job());
            std::thread::sleep(Duration::from_millis(2));
        }
        begun.elapsed()
    };
    let is_zstd = |part: &StorePath| {
        let text = cache.narinfo(&part.hash_part()).unwrap().unwrap();
        NarInfo::parse(&text, &StoreDir::default()).unwrap().compression == Compression::Zstd
    };
    // In the middle of it.
    wait("it begins", &|job| job.server.is_some() && is_zstd(&paths[0].0));
    let paused = cluster.server_of(&job()).unwrap();
    signal("-STOP", &cluster.servers[paused]);
    assert!(job().ended.is_none(), "it was too fast for this test: {:?}", job());
    let taken = wait("another node takes over", &|job| cluster.server_of(job) == Some(1 - paused));
    assert!(taken < Duration::from_secs(30), "{taken:?}");
    wait("it ends there", &|job| job.ended.is_some());
    let seen = || {
        let mut narinfos: Vec<_> =
            paths.iter().map(|(path, _)| cache.narinfo(&path.hash_part()).unwrap().unwrap().to_vec()).collect();
        let files = std::fs::read_dir(cluster.files("data", &name).join("nar")).unwrap();
        let mut files: Vec<_> = files.map(|file| file.unwrap().file_name().into_encoded_bytes()).collect();
        files.sort();
        narinfos.extend(files);
        (narinfos, job())
    };
    let before = seen();
    assert_eq!(before.1.state, JobState::Done, "{:?}", before.1);
    assert!(paths.iter().all(|(path, _)| is_zstd(path)));
    signal("-CONT", &cluster.servers[paused]);
    let log = |server: &Server| server.log();
    let until = Instant::now() + PATIENCE;
    while !log(&cluster.servers[paused]).contains("another server") {
        assert!(Instant::now() < until, "it does not notice: {}", log(&cluster.servers[paused]));
        std::thread::sleep(Duration::from_millis(50));
    }
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(seen(), before);
    // And one that is killed.
    let keys = cache.keys().unwrap().len();
    let id = cache.start_job(JobKind::Rotate, &json!({}), None, &admin()).unwrap().0.id;
    let job = || cache.job(&id).unwrap().unwrap();
    let until = Instant::now() + PATIENCE;
    while job().server.is_none() {
        assert!(Instant::now() < until, "{:?}", job());
        std::thread::sleep(Duration::from_millis(1));
    }
    if let Some(at) = cluster.server_of(&job()) {
        signal("-KILL", &cluster.servers[at]);
    }
    while job().ended.is_none() {
        assert!(Instant::now() < until, "{:?}", job());
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!((job().state, cache.keys().unwrap().len()), (JobState::Done, keys + 1), "{:?}", job());
}
