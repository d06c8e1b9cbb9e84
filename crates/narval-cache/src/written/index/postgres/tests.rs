//! Several nodes, and a database that goes away.

use std::time::Instant;

use super::*;
use crate::written::tests_on_postgres::postgres::PostgresServer;

fn path(name: &str, file: &str) -> PathRecord {
    let digest = narval_nix::Sha256::of(name.as_bytes());
    let hash_part = HashPart::from_digest(digest.as_bytes()[..20].try_into().unwrap());
    let narinfo = name.as_bytes().to_vec();
    PathRecord {
        hash_part,
        path: format!("{hash_part}-{name}"),
        nar_hash: digest,
        file: file.to_owned(),
        narinfo,
        references: Vec::new(),
        listing_size: None,
        version: 0,
    }
}

fn nar(name: &str) -> NarRecord {
    let hash = narval_nix::Sha256::of(name.as_bytes());
    NarRecord {
        nar_hash: hash,
        nar_size: 10,
        compression: Compression::Zstd,
        file_hash: hash,
        file_size: 5,
        listing_size: None,
        found: Vec::new(),
    }
}

/// Waits until something is so, for less time than a change may take to be noticed.
fn soon(within: Duration, mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + within;
    while !is_so() {
        assert!(Instant::now() < until, "not within {within:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn nodes_that_start_at_the_same_time_make_the_tables_once() {
    let Some(server) = PostgresServer::shared() else { return };
    let address = server.database();
    let caches: Vec<CacheId> = std::thread::scope(|scope| {
        let open = || {
            let index = Postgres::open(&address).unwrap();
            index.create_cache(&CacheName::default(), "{}", 1).unwrap().id
        };
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(open)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(caches.iter().all(|cache| *cache == caches[0]));
}

#[test]
fn a_later_version_is_refused_unless_it_is_compatible() {
    let Some(server) = PostgresServer::shared() else { return };
    let address = server.database();
    drop(Postgres::open(&address).unwrap());
    let name = address.split(['/', '?']).nth(3).unwrap();
    let set = |key: &str, value: u32| {
        server.sql(name, &format!("update narval.meta set value = '{value}' where key = '{key}'")).unwrap();
    };
    // A node of the version after this one has changed the tables in a way that this one need not know.
    set("version", 2);
    drop(Postgres::open(&address).unwrap());
    set("compatible", 2);
    assert!(matches!(Postgres::open(&address), Err(IndexError::Newer { found: 2, known: 1, .. })));
}

#[test]
fn changes_of_others_are_noticed_whatever_the_order_of_commits() {
    let Some(server) = PostgresServer::shared() else { return };
    let address = server.database();
    let (one, other) = (Postgres::open(&address).unwrap(), Postgres::open(&address).unwrap());
    let before = (one.stamp(), other.stamp());
    one.create_cache(&CacheName::default(), "{}", 1).unwrap();
    assert_ne!(one.stamp(), before.0, "its own at once");
    soon(one.noticed_after(), || other.stamp() != before.1);
    // A transaction that began before another, and ends after it was noticed.
    let mut slow = one.pool.open().unwrap();
    let begun = slow.run(DEADLINE, async |client| {
        client.batch_execute("begin; insert into narval.changes (node) values ('slow')").await?;
        Ok(())
    });
    begun.unwrap();
    let before = other.stamp();
    one.set_settings(CacheId(1), "{}").unwrap();
    soon(one.noticed_after(), || other.stamp() != before);
    std::thread::sleep(one.noticed_after());
    let before = other.stamp();
    slow.run(DEADLINE, async |client| Ok(client.batch_execute("commit").await?)).unwrap();
    soon(one.noticed_after(), || other.stamp() != before);
    // What no reader can see changes no stamp.
    std::thread::sleep(one.noticed_after());
    let before = (one.stamp(), other.stamp());
    one.lease(CacheId(1), &[], 5).unwrap();
    std::thread::sleep(one.noticed_after());
    assert_eq!((one.stamp(), other.stamp()), before);
}

/// Each path is there with the contents of one commit, and nobody waits for anybody in a circle.
#[test]
fn nodes_that_commit_the_same_paths_do_not_overwrite_each_other() {
    let Some(server) = PostgresServer::shared() else { return };
    let address = server.database();
    let nodes: Vec<Postgres> = (0..3).map(|_| Postgres::open(&address).unwrap()).collect();
    let cache = nodes[0].create_cache(&CacheName::default(), "{}", 1).unwrap().id;
    nodes[0].add_file(cache, "file", &nar("file"), 1).unwrap();
    let names: Vec<String> = (0..20).map(|number| format!("path-{number}")).collect();
    let done: Vec<usize> = std::thread::scope(|scope| {
        let commits = |node: usize| {
            let (nodes, names) = (&nodes, &names);
            move || {
                let count = |round: usize| {
                    // Each in another order, and overlapping.
                    let some = names.iter().cycle().skip(round * 3 + node * 7).take(8);
                    let paths = some.map(|name| {
                        let part = path(name, "file").hash_part;
                        let version = nodes[node].path(cache, &part).unwrap().map_or(0, |path| path.version);
                        PathRecord { version, ..path(name, "file") }
                    });
                    nodes[node].commit(cache, paths.collect(), &[], 5).unwrap()
                };
                (0..30).filter(|round| count(*round) == Commit::Done).count()
            }
        };
        let threads: Vec<_> = (0..6).map(|number| scope.spawn(commits(number % 3))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    // Versions count the commits: none was lost.
    let parts = names.iter().map(|name| path(name, "file").hash_part);
    let versions: i64 = parts.map(|part| nodes[0].path(cache, &part).unwrap().map_or(0, |path| path.version)).sum();
    let done: usize = done.iter().sum();
    assert_eq!(versions, 8 * i64::try_from(done).unwrap());
    // A commit is only refused because another has changed its paths. Which threads are first is not promised.
    assert!(done > 0);
}

/// A NAR that is swept while its narinfo is committed: one of the two does not happen.
#[test]
fn a_path_never_names_a_file_that_is_swept() {
    let Some(server) = PostgresServer::shared() else { return };
    let address = server.database();
    let (one, other) = (Postgres::open(&address).unwrap(), Postgres::open(&address).unwrap());
    let cache = one.create_cache(&CacheName::default(), "{}", 1).unwrap().id;
    let (mut committed, mut swept) = (0, 0);
    for round in 0..100 {
        let name = format!("file-{round}");
        one.add_file(cache, &name, &nar(&name), 1).unwrap();
        let cutoff = Cutoff { orphaned: 5, used: 5 };
        let (done, gone) = std::thread::scope(|scope| {
            let commit = scope.spawn(|| one.commit(cache, vec![path(&name, &name)], &[], 10).unwrap());
            let gone = other.sweep_files(cache, cutoff, 10, 10).unwrap();
            (commit.join().unwrap(), gone)
        });
        assert_eq!(gone.is_empty(), done == Commit::Done, "round {round}: {done:?}, {gone:?}");
        committed += usize::from(done == Commit::Done);
        swept += gone.len();
    }
    assert_eq!(committed + swept, 100);
    assert_eq!(other.usage(cache).unwrap().paths, committed as u64);
    assert_eq!(other.usage(cache).unwrap().bytes, 5 * committed as u64);
}

#[test]
fn a_database_that_is_stopped_and_started() {
    let Some(server) = PostgresServer::new() else { return };
    let index = Postgres::open(&server.database()).unwrap();
    let cache = index.create_cache(&CacheName::default(), "{}", 1).unwrap().id;
    index.add_file(cache, "file", &nar("file"), 1).unwrap();
    assert!(index.file(cache, "file").unwrap().is_some());
    assert_eq!(index.commit(cache, vec![path("a", "file")], &[], 1).unwrap(), Commit::Done);
    assert!(index.file(cache, "file").unwrap().is_some());
    let stamp = index.stamp();
    server.stop();
    let begun = Instant::now();
    for _ in 0..50 {
        assert!(index.narinfos(cache, &[path("a", "file").hash_part]).unwrap_err().is_away());
        assert!(index.commit(cache, vec![path("b", "file")], &[], 1).unwrap_err().is_away());
    }
    assert!(begun.elapsed() < Duration::from_secs(2), "nobody waits for it: {:?}", begun.elapsed());
    assert!(index.file(cache, "file").unwrap().is_some(), "what is known is known on");
    assert_eq!(index.stamp(), stamp, "and what is remembered stays");
    server.start();
    soon(Duration::from_secs(3), || {
        index.narinfo(cache, &path("a", "file").hash_part).is_ok_and(|text| text.is_some())
    });
    assert_ne!(index.stamp(), stamp, "it may have changed meanwhile");
    assert_eq!(index.commit(cache, vec![path("b", "file")], &[], 1).unwrap(), Commit::Done);
    // Stopped and started so quickly that nobody has noticed: what fails is done again.
    for round in 0..3 {
        server.stop();
        server.start();
        soon(Duration::from_secs(3), || index.narinfo(cache, &path("a", "file").hash_part).is_ok());
        assert_eq!(index.commit(cache, vec![path(&format!("c-{round}"), "file")], &[], 1).unwrap(), Commit::Done);
    }
    assert_eq!(index.usage(cache).unwrap().paths, 5);
}

#[test]
fn a_database_that_says_nothing() {
    let Some(server) = PostgresServer::new() else { return };
    let index = Postgres::open(&server.database()).unwrap();
    let cache = index.create_cache(&CacheName::default(), "{}", 1).unwrap().id;
    server.freeze(true);
    // Noticed by the one that watches; from then on nobody waits.
    let begun = Instant::now();
    std::thread::sleep(watch::LOOK_EVERY + Duration::from_secs(2) + Duration::from_millis(500));
    let asked = Instant::now();
    assert!(index.caches().unwrap_err().is_away());
    assert!(asked.elapsed() < Duration::from_millis(100), "{:?}", asked.elapsed());
    server.freeze(false);
    soon(Duration::from_secs(10), || index.caches().is_ok());
    assert_eq!(index.usage(cache).unwrap(), Usage::default(), "after {:?}", begun.elapsed());
}
