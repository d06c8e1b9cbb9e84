//! Several nodes, and a database that goes away.

mod beside;
mod clocks;
mod failover;
mod locks;
mod plans;
mod presence;
mod suspended;

use std::time::Instant;

use narval_nix::{Compression, HashPart};

use super::*;
use crate::index::schema::VERSION;
use crate::name::CacheName;
use crate::records::paths::{Commit, Cutoff, NarRecord, PathRecord, Usage, Used};
use crate::tests_on_postgres::postgres::{Pooler, PostgresServer};

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

/// How long anything may take before a test gives up.
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until something is so.
fn soon(mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < until, "not within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A sort of millions of rows would be on disk. Tables have no statistics at first, and few rows here, which PostgreSQL would rather
/// sort.
#[test]
fn a_collection_reads_tables_in_the_order_of_their_indices() {
    let Some(server) = PostgresServer::shared() else { return };
    let address = server.database();
    drop(Postgres::open(&address).unwrap());
    let name = address.split(['/', '?']).nth(3).unwrap();
    for query in crate::index::sql::snapshot::IN_ORDER {
        let query = query.postgres(false).replace("$1", "1");
        let plan = format!("{}; explain declare each no scroll cursor for {query}", tx::BEGIN_IN_ORDER);
        let plan = server.sql(name, &plan).unwrap();
        assert!(plan.contains("Index") && !plan.contains("Sort"), "{plan}");
    }
}

#[test]
fn nodes_that_start_together_create_the_tables_once() {
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

/// A node that is killed while it creates the tables leaves none, and one that only stands still keeps others waiting for some seconds.
#[test]
fn a_node_that_was_killed_while_it_created_the_tables_is_not_waited_for() {
    let Some(server) = PostgresServer::shared() else { return };
    let address = server.database();
    let name = address.split(['/', '?']).nth(3).unwrap();
    let tls = || MakeRustlsConnect::new(narval_client::tls_config(&[b"postgresql"], None).unwrap());
    let mut paused = Pool::new(Address::parse(&address).unwrap(), tls()).open().unwrap();
    let begun = paused.run(DEADLINE, async |client| {
        let half = format!("{}; create schema narval; create table narval.meta (key text)", schema::BEGIN);
        Ok(client.batch_execute(&half).await?)
    });
    begun.unwrap();
    let begun = Instant::now();
    assert!(Postgres::open(&address).is_ok(), "after {:?}", begun.elapsed());
    assert!(begun.elapsed() < PATIENCE / 2, "{:?}", begun.elapsed());
    assert_eq!(server.sql(name, "select count(*) from narval.meta").unwrap().trim(), "1");
}

#[test]
fn another_version_is_refused() {
    let Some(server) = PostgresServer::shared() else { return };
    let address = server.database();
    drop(Postgres::open(&address).unwrap());
    let name = address.split(['/', '?']).nth(3).unwrap();
    for other in [VERSION - 1, VERSION + 1] {
        server.sql(name, &format!("update narval.meta set value = '{other}' where key = 'version'")).unwrap();
        for is_rebuild in [false, true] {
            let refused = Postgres::open_for(&address, is_rebuild).err();
            assert!(matches!(&refused, Some(IndexError::Version { found, .. }) if *found == other), "{refused:?}");
        }
    }
}

#[test]
fn changes_of_others_are_noticed_whatever_the_order_of_commits() {
    let Some(server) = PostgresServer::shared() else { return };
    let address = server.database();
    let (one, other) = (Postgres::open(&address).unwrap(), Postgres::open(&address).unwrap());
    let before = (one.stamp(), other.stamp());
    one.create_cache(&CacheName::default(), "{}", 1).unwrap();
    assert_ne!(one.stamp(), before.0, "its own at once");
    soon(|| other.stamp() != before.1);
    // A transaction that began before another, and ends after it was noticed.
    let mut slow = one.database.pool.open().unwrap();
    let begun = slow.run(DEADLINE, async |client| {
        client.batch_execute("begin; insert into narval.changes (node) values ('slow')").await?;
        Ok(())
    });
    begun.unwrap();
    let before = other.stamp();
    one.set_settings(CacheId(1), "{}").unwrap();
    soon(|| other.stamp() != before);
    std::thread::sleep(one.noticed_after());
    let before = (one.stamp(), other.stamp());
    slow.run(DEADLINE, async |client| Ok(client.batch_execute("commit").await?)).unwrap();
    soon(|| one.stamp() != before.0 && other.stamp() != before.1);
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
    let fence = other.begin_collection().unwrap().unwrap();
    for round in 0..100 {
        let name = format!("file-{round}");
        one.add_file(cache, &name, &nar(&name), 1).unwrap();
        let (done, gone) = std::thread::scope(|scope| {
            let commit = scope.spawn(|| one.commit(cache, vec![path(&name, &name)], &[], 10).unwrap());
            let gone = other.discard_some(fence, cache, 5).unwrap();
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
fn the_index_recovers_when_the_database_is_restarted() {
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
    // If each of them waited for a quarter of a second, it would take four minutes.
    for _ in 0..500 {
        assert!(index.narinfos(cache, &[path("a", "file").hash_part]).unwrap_err().is_unavailable());
        assert!(index.commit(cache, vec![path("b", "file")], &[], 1).unwrap_err().is_unavailable());
    }
    assert!(begun.elapsed() < PATIENCE, "nobody waits for it: {:?}", begun.elapsed());
    assert!(index.file(cache, "file").unwrap().is_some(), "what is known is known on");
    assert_eq!(index.stamp(), stamp, "and what is remembered stays");
    server.start();
    soon(|| index.narinfo(cache, &path("a", "file").hash_part).is_ok_and(|text| text.is_some()));
    assert_ne!(index.stamp(), stamp, "it may have changed meanwhile");
    assert_eq!(index.commit(cache, vec![path("b", "file")], &[], 1).unwrap(), Commit::Done);
    // Stopped and started so quickly that nobody has noticed: what fails is done again.
    for round in 0..3 {
        server.stop();
        server.start();
        soon(|| index.narinfo(cache, &path("a", "file").hash_part).is_ok());
        assert_eq!(index.commit(cache, vec![path(&format!("c-{round}"), "file")], &[], 1).unwrap(), Commit::Done);
    }
    assert_eq!(index.usage(cache).unwrap().paths, 5);
}

#[test]
fn nobody_waits_for_a_database_that_does_not_answer() {
    let Some(server) = PostgresServer::new() else { return };
    let index = Postgres::open(&server.database()).unwrap();
    let cache = index.create_cache(&CacheName::default(), "{}", 1).unwrap().id;
    server.freeze(true);
    // Noticed by the one that watches; from then on nobody waits.
    let begun = Instant::now();
    soon(|| index.database.pool.is_known_to_be_away());
    let asked = Instant::now();
    assert!(index.caches().unwrap_err().is_unavailable());
    assert!(asked.elapsed() < address::CONNECT_TIMEOUT, "{:?}", asked.elapsed());
    server.freeze(false);
    soon(|| index.caches().is_ok());
    assert_eq!(index.usage(cache).unwrap(), Usage::default(), "after {:?}", begun.elapsed());
}

/// A collection that was paused for longer than its lease, and goes on.
#[test]
fn a_collection_that_lost_its_lease_changes_nothing() {
    let Some(server) = PostgresServer::shared() else { return };
    let address = server.database();
    let (one, other) = (Postgres::open(&address).unwrap(), Postgres::open(&address).unwrap());
    let cache = one.create_cache(&CacheName::default(), "{}", 1).unwrap().id;
    for name in ["orphan", "file"] {
        one.add_file(cache, name, &nar(name), 1).unwrap();
    }
    one.commit(cache, vec![path("a", "file")], &[], 1).unwrap();
    let slow = one.begin_collection().unwrap().unwrap();
    assert_eq!(other.begin_collection().unwrap(), None, "one at a time");
    let collector = other.collector().unwrap().unwrap();
    assert!(collector.starts_with(&format!("process {} on ", std::process::id())), "{collector}");
    let name = address.split(['/', '?']).nth(3).unwrap();
    server.sql(name, "update narval.work set until = 1").unwrap();
    let next = other.begin_collection().unwrap().unwrap();
    assert!(next > slow);
    let part = path("a", "file").hash_part;
    let refused = [
        one.hide(slow, cache, &[(part, 5)], 5).err(),
        one.end_holds(slow, cache, 5).err(),
        one.discard_some(slow, cache, 5).err(),
        one.continue_collection(slow).err(),
    ];
    assert!(refused.iter().all(|error| matches!(error, Some(IndexError::Superseded { .. }))), "{refused:?}");
    // Its end does not end the other's.
    one.end_collection(slow, None).unwrap();
    assert_eq!(other.discard_some(next, cache, 5).unwrap(), [("orphan".to_owned(), 5)]);
    assert_eq!(one.begin_collection().unwrap(), None);
    // What is discarded is absent, and its bytes are to be removed.
    assert_eq!(one.file(cache, "orphan").unwrap(), None);
    assert_eq!(one.commit(cache, vec![path("b", "orphan")], &[], 9).unwrap(), Commit::Changed);
    assert_eq!(
        (one.garbage(cache, 0, 9).unwrap(), one.garbage(cache, 1, 9).unwrap()),
        (vec![], vec!["orphan".to_owned()])
    );
    one.forget(cache, vec!["orphan".to_owned()]).unwrap();
    assert_eq!(other.garbage(cache, 1, 9).unwrap(), Vec::<String>::new());
    assert_eq!(one.usage(cache).unwrap().bytes, 5);
}

/// A NAR that is due is kept by whoever wants it, on whichever node.
#[test]
fn a_nar_that_is_due_is_kept_when_it_is_used() {
    let Some(server) = PostgresServer::shared() else { return };
    let address = server.database();
    let (one, other) = (Postgres::open(&address).unwrap(), Postgres::open(&address).unwrap());
    let cache = one.create_cache(&CacheName::default(), "{}", 1).unwrap().id;
    let uses: [fn(&Postgres, CacheId, &str); 3] = [
        |node, cache, name| drop(node.file(cache, name).unwrap().unwrap()),
        |node, cache, name| assert_eq!(node.commit(cache, vec![path(name, name)], &[], 20).unwrap(), Commit::Done),
        |node, cache, name| node.used(&[Used { cache, path: None, file: Some(name.to_owned()), time: 9 }]).unwrap(),
    ];
    let fence = other.begin_collection().unwrap().unwrap();
    for (number, use_it) in uses.into_iter().enumerate() {
        let name = format!("file-{number}");
        one.add_file(cache, &name, &nar(&name), 1).unwrap();
        assert_eq!(other.discard_some(fence, cache, 0).unwrap(), [], "not yet due");
        use_it(&one, cache, &name);
        assert_eq!(other.discard_some(fence, cache, 5).unwrap(), []);
    }
    one.add_file(cache, "nobody-wants-it", &nar("nobody-wants-it"), 1).unwrap();
    assert_eq!(other.discard_some(fence, cache, 5).unwrap().len(), 1);
}

/// A transaction of a node that is paused ends, with its locks, before others stop waiting.
#[test]
fn a_paused_transaction_blocks_others_only_briefly() {
    let Some(server) = PostgresServer::shared() else { return };
    let address = server.database();
    let (one, other) = (Postgres::open(&address).unwrap(), Postgres::open(&address).unwrap());
    let cache = one.create_cache(&CacheName::default(), "{}", 1).unwrap().id;
    let mut paused = one.database.pool.open().unwrap();
    let begin = format!("{} select 1 from narval.caches for no key update", tx::begin(LARGE));
    paused.run(DEADLINE, async |client| Ok(client.batch_execute(&begin).await?)).unwrap();
    other.add_file(cache, "file", &nar("file"), 1).unwrap();
    let done = paused.run(DEADLINE, async |client| Ok(client.batch_execute("commit").await?));
    assert!(done.unwrap_err().breaks_connection());
}

/// Every transaction may get another connection, and none has a session: pgbouncer in transaction mode, with four connections for
/// two nodes.
#[test]
fn nodes_behind_a_transaction_pooler() {
    let Some(server) = PostgresServer::shared() else { return };
    let Some(pooler) = Pooler::new(&server) else { return };
    let address = pooler.through(&server.database());
    let nodes = [Postgres::open(&address).unwrap(), Postgres::open(&address).unwrap()];
    let cache = nodes[0].create_cache(&CacheName::default(), "{}", 1).unwrap().id;
    let before = nodes[1].stamp();
    std::thread::scope(|scope| {
        for thread in 0..6 {
            let node = &nodes[thread % 2];
            scope.spawn(move || {
                for round in 0..10 {
                    let name = format!("file-{thread}-{round}");
                    node.add_file(cache, &name, &nar(&name), 1).unwrap();
                    let part = path(&name, &name).hash_part;
                    node.lease(cache, &[part], 50).unwrap();
                    assert_eq!(node.commit(cache, vec![path(&name, &name)], &[], 5).unwrap(), Commit::Done);
                    assert!(node.narinfo(cache, &part).unwrap().is_some());
                }
            });
        }
    });
    soon(|| nodes[1].stamp() > before + 30);
    let parts: Vec<_> = (0..10).map(|round| path(&format!("file-0-{round}"), "").hash_part).collect();
    assert!(nodes[1].present(cache, &parts).unwrap().iter().all(|present| *present));
    // The lease of a collection needs no session, nor does its snapshot.
    let fence = nodes[0].begin_collection().unwrap().unwrap();
    assert_eq!(nodes[1].begin_collection().unwrap(), None);
    assert_eq!(nodes[0].snapshot(cache, None).unwrap().len(), 60);
    let all: Vec<_> = parts.iter().map(|part| (*part, 5)).collect();
    assert_eq!(nodes[0].hide(fence, cache, &all, 60).unwrap().len(), 10);
    let cutoff = Cutoff { orphaned: 70, used: 70 };
    assert_eq!(nodes[0].discard(fence, cache, cutoff, (100, 70)).unwrap().len(), 10);
    nodes[0].end_collection(fence, Some(cache)).unwrap();
    assert!(nodes[1].collected(cache).unwrap().is_some());
    assert_eq!((nodes[1].usage(cache).unwrap().paths, nodes[1].usage(cache).unwrap().bytes), (50, 250));
    assert!(nodes[1].begin_collection().unwrap().is_some());
    assert!(nodes.iter().all(|node| prepared(node) == 0), "whose session it is then, nobody knows");
}

/// How many statements are prepared in the session that is used next.
fn prepared(index: &Postgres) -> i64 {
    let (mut connection, _) = index.database.pool.take().unwrap();
    let count = "select count(*) from pg_prepared_statements";
    let count = connection.run(DEADLINE, async |client| get(&sql::query(client, count, &[]).await?[0], 0)).unwrap();
    index.database.pool.give_back(connection);
    count
}

/// Where nothing is between, a statement that is sent again is prepared. One whose preparation is gone is prepared anew, and nobody notices.
#[test]
fn what_is_asked_again_is_prepared() {
    let Some(server) = PostgresServer::shared() else { return };
    let index = Postgres::open(&server.database()).unwrap();
    let cache = index.create_cache(&CacheName::default(), "{}", 1).unwrap().id;
    let ask = || (0..3).for_each(|_| assert!(index.narinfo(cache, &path("p", "f").hash_part).unwrap().is_none()));
    ask();
    assert!(prepared(&index) > 0);
    let (mut connection, _) = index.database.pool.take().unwrap();
    connection.run(DEADLINE, async |client| Ok(client.batch_execute("deallocate all").await?)).unwrap();
    index.database.pool.give_back(connection);
    ask();
    assert!(prepared(&index) > 0);
}

/// Uploads at two nodes, and each is recorded at both: it is counted once, and none is lost.
#[test]
fn nars_recorded_together_are_counted_once() {
    let Some(server) = PostgresServer::shared() else { return };
    let address = server.database();
    let nodes = [Postgres::open(&address).unwrap(), Postgres::open(&address).unwrap()];
    let cache = nodes[0].create_cache(&CacheName::default(), "{}", 1).unwrap().id;
    let (threads, names) = (8, 10);
    std::thread::scope(|scope| {
        for node in &nodes {
            for thread in 0..threads {
                scope.spawn(move || {
                    for number in 0..names {
                        let name = format!("{}-{}", (thread + number) % threads, number);
                        node.record(cache, (name.clone(), nar(&name)), (1, u64::MAX)).unwrap();
                    }
                });
            }
        }
    });
    let usage = nodes[0].usage(cache).unwrap();
    assert_eq!((usage.files, usage.bytes), (threads * names, threads * names * 5));
}

#[test]
fn what_both_databases_do() {
    for check in [
        crate::index::tests::entries_are_taken_over,
        crate::index::tests::jobs_are_done_by_one,
        crate::index::tests::nars_are_found_by_name_and_by_hash,
        crate::index::tests::releases_have_limits,
        crate::index::tests::machines_have_limits,
    ] {
        let Some(server) = PostgresServer::shared() else { return };
        let address = server.database();
        check([&Postgres::open(&address).unwrap(), &Postgres::open(&address).unwrap()]);
    }
}
