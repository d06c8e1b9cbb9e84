//! Whose time counts, and what a crash of the database may take.

use super::*;
use crate::access::grant::Grant;
use crate::retention::CollectOptions;
use crate::tests_on_postgres::{Fixture, TestPath};
use narval_client::clock::{self, Jumping, VIRTUAL};

/// A path that was just pushed is new, whatever the machine's clock says that collects, or that pushes.
#[test]
fn a_machine_with_a_wrong_clock_collects_nothing_that_is_new() {
    if PostgresServer::shared().is_none() {
        return;
    }
    for days in [-100_i64, 100] {
        let fixture = Fixture::new();
        TestPath::new("before", &[]).push(&fixture.cache).unwrap();
        let (elapsed, shown) = (clock::elapsed(), clock::now());
        let clocks = Jumping::begin();
        clocks.elapsed.set(elapsed);
        clocks.shown.set(Duration::from_secs(shown.saturating_add_signed(days * 24 * 60 * 60)));
        TestPath::new("with-it", &[]).push(&fixture.cache).unwrap();
        let collect = || {
            let collected = fixture.cache.collect(&CollectOptions::default(), &Grant::administrator("test")).unwrap();
            assert_eq!((collected.kept, collected.forgotten.len()), (2, 0), "{days} days");
        };
        collect();
        VIRTUAL.set(None);
        // By one whose clock is right.
        collect();
    }
}

/// A user, a database or a server may be set up to lose the last transactions in a crash.
#[test]
fn what_is_acknowledged_survives_a_crash_of_a_database_that_does_not_wait_for_its_disk() {
    let Some(server) = PostgresServer::new() else { return };
    let address = server.database();
    let name = address.split(['/', '?']).nth(3).unwrap();
    for set in ["alter user narval set synchronous_commit = off", "alter system set wal_writer_delay = '10s'"] {
        server.sql("postgres", set).unwrap();
    }
    server.sql("postgres", "select pg_reload_conf()").unwrap();
    let mut lost = 0;
    for round in 0..4 {
        let index = Postgres::open(&address).unwrap();
        let doubts = index.doubts().unwrap().join("\n");
        assert!(doubts.contains("synchronous_commit is 'off'") && doubts.contains("fsync is off"), "{doubts}");
        let cache = index.create_cache(&CacheName::default(), "{}", 1).unwrap().id;
        index.add_file(cache, "file", &nar("file"), 1).unwrap();
        let path = path(&format!("path-{round}"), "file");
        assert_eq!(index.commit(cache, vec![path.clone()], &[], 1).unwrap(), Commit::Done);
        // What need not survive is lost, unless the database has written it by chance.
        index.tokens_used(vec![("nobody".to_owned(), 1)]).unwrap();
        server.sql(name, &format!("create table probe_{round} ()")).unwrap();
        server.crash();
        server.start();
        drop(index);
        let index = Postgres::open(&address).unwrap();
        assert!(index.path(cache, &path.hash_part).unwrap().is_some(), "round {round}");
        lost += u32::from(server.sql(name, &format!("select from probe_{round}")).is_err());
    }
    assert!(lost > 0, "this database loses nothing");
}

/// A standby that has taken over may lack the last transactions: it gives out the number of a lease again.
#[test]
fn a_lease_that_the_database_has_forgotten_is_not_that_of_another() {
    let Some(server) = PostgresServer::shared() else { return };
    let address = server.database();
    let name = address.split(['/', '?']).nth(3).unwrap();
    let index = Postgres::open(&address).unwrap();
    let first = index.begin_collection().unwrap().unwrap();
    index.end_collection(first, None).unwrap();
    let kept = "create table kept as select * from narval.work";
    server.sql(name, kept).unwrap();
    let paused = index.begin_collection().unwrap().unwrap();
    assert!(paused > first);
    let restore = "delete from narval.work; insert into narval.work select * from kept";
    server.sql(name, restore).unwrap();
    let other = index.begin_collection().unwrap().unwrap();
    assert!(other > first && other != paused, "{first:?} {paused:?} {other:?}");
    assert!(matches!(index.continue_collection(paused), Err(IndexError::Superseded { .. })));
    index.continue_collection(other).unwrap();
}
