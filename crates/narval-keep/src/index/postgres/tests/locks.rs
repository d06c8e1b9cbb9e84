//! Rows that others have locked: what becomes of those who wait for them, and who does not.

use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use crate::index::tests::commits_take_time_in_proportion;

/// Writers at the same time: more than connections.
const WRITERS: usize = 20;

/// Does something while another session has locked rows.
fn while_held(index: &Postgres, lock: &str, work: impl FnOnce()) {
    let mut holder = index.database.pool.open().unwrap();
    let begin = format!("begin; select 1 from narval.{lock}");
    holder.run(DEADLINE, async |client| Ok(client.batch_execute(&begin).await?)).unwrap();
    work();
    holder.run(DEADLINE, async |client| Ok(client.batch_execute("rollback").await?)).unwrap();
}

fn aborted(server: &PostgresServer, address: &str) -> String {
    let name = address.split(['/', '?']).nth(3).unwrap();
    let all = "select count(*) from pg_stat_activity where datname = current_database() and state like '%aborted%'";
    server.sql(name, all).unwrap().trim().to_owned()
}

#[test]
fn a_lock_that_is_held_for_long_leaves_no_connection_in_a_transaction() {
    let Some(server) = PostgresServer::shared() else { return };
    let address = server.database();
    let index = Postgres::open(&address).unwrap();
    let cache = index.create_cache(&CacheName::default(), "{}", 1).unwrap().id;
    index.add_file(cache, "file", &nar("file"), 1).unwrap();
    let commit = |number: usize| index.commit(cache, vec![path(&format!("path-{number}"), "file")], &[], 1);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (commit, is_over, index) = (&commit, &is_over, &index);
        scope.spawn(move || {
            while !is_over.load(Ordering::Relaxed) {
                index.narinfos(cache, &[path("path-0", "file").hash_part]).expect("who reads waits for nobody");
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        while_held(index, "nars for update", || {
            let writers: Vec<_> = (0..WRITERS).map(|number| scope.spawn(move || commit(number))).collect();
            for writer in writers {
                let refused = writer.join().unwrap();
                assert!(matches!(refused, Err(IndexError::Busy { .. })), "{refused:?}");
            }
        });
        is_over.store(true, Ordering::Relaxed);
    });
    assert_eq!(aborted(&server, &address), "0");
    for number in 0..WRITERS {
        assert_eq!(commit(number).unwrap(), Commit::Done);
        assert_eq!(index.usage(cache).unwrap().paths, number as u64 + 1);
    }
}

/// Whatever a statement does that fails, the next one finds the connection as new.
#[test]
fn a_connection_in_the_middle_of_something_is_not_used_again() {
    let Some(server) = PostgresServer::shared() else { return };
    let address = server.database();
    let index = Postgres::open(&address).unwrap();
    for _ in 0..4 {
        let failed =
            index.database.read(DEADLINE, async |client| Ok(client.batch_execute("begin; select 1 / 0").await?));
        assert!(matches!(failed, Err(IndexError::Database { .. })), "{failed:?}");
        assert!(index.caches().is_ok());
    }
    assert_eq!(aborted(&server, &address), "0");
}

/// Who deletes a path to which others commit referrers for long gives up, and pushes go by meanwhile.
#[test]
fn nobody_waits_behind_one_who_waits_for_a_row() {
    let Some(server) = PostgresServer::shared() else { return };
    let address = server.database();
    let index = Postgres::open(&address).unwrap();
    let cache = index.create_cache(&CacheName::default(), "{}", 1).unwrap().id;
    index.add_file(cache, "file", &nar("file"), 1).unwrap();
    let first = path("path-0", "file").hash_part;
    let commit = |number: usize| {
        let needed = if number == 0 { &[][..] } else { &[first] };
        index.commit(cache, vec![path(&format!("path-{number}"), "file")], needed, 1)
    };
    assert_eq!(commit(0).unwrap(), Commit::Done);
    while_held(&index, "paths for key share", || {
        std::thread::scope(|scope| {
            let delete = scope.spawn(|| index.delete(cache, &[first], 1));
            let mut pushed = 0;
            while !delete.is_finished() {
                pushed += 1;
                assert_eq!(commit(pushed).unwrap(), Commit::Done);
            }
            let refused = delete.join().unwrap();
            assert!(matches!(refused, Err(IndexError::Busy { .. })), "{refused:?}");
            // Behind the deletion, there would be one.
            assert!(pushed > 5, "{pushed}");
        });
    });
    assert!(index.delete(cache, &[first], 1).unwrap().is_some());
}

/// A collection waits for nobody: what others have locked stays, and goes the next time.
#[test]
fn a_collection_leaves_alone_what_others_have_locked() {
    let Some(server) = PostgresServer::shared() else { return };
    let address = server.database();
    let index = Postgres::open(&address).unwrap();
    let cache = index.create_cache(&CacheName::default(), "{}", 1).unwrap().id;
    for name in ["a", "b"] {
        index.add_file(cache, name, &nar(name), 1).unwrap();
        index.commit(cache, vec![path(name, name)], &[], 1).unwrap();
        index.add_file(cache, &format!("orphan of {name}"), &nar(&format!("orphan of {name}")), 1).unwrap();
    }
    let (a, b) = (path("a", "a").hash_part, path("b", "b").hash_part);
    let fence = index.begin_collection().unwrap().unwrap();
    let hide = || index.hide(fence, cache, &[(a, 5), (b, 5)], 5).unwrap();
    let discard = || index.discard_some(fence, cache, 9).unwrap();
    // As a commit that refers to a path, and one that names its file.
    let name_of_b = format!("paths where hash_part = '{b}' for key share");
    while_held(&index, &name_of_b, || assert_eq!(hide(), [a]));
    while_held(&index, "nars where name = 'b' for no key update", || assert_eq!(hide(), []));
    while_held(&index, "nars for no key update", || assert_eq!(discard(), []));
    while_held(&index, "nars where name like 'orphan%' for no key update", || {
        assert_eq!(discard(), [("a".to_owned(), 5)]);
    });
    assert_eq!(hide(), [b]);
    assert_eq!(discard().len(), 3);
}

#[test]
fn a_commit_takes_time_in_proportion_to_its_narinfos() {
    let Some(server) = PostgresServer::shared() else { return };
    let address = server.database();
    // The server has a process for each connection.
    let processes = "select pid from pg_stat_activity where datname = current_database() and backend_type = 'client backend' and pid <> pg_backend_pid()";
    let name = address.split(['/', '?']).nth(3).unwrap();
    let time_of = |process: &str| {
        let text = std::fs::read_to_string(format!("/proc/{process}/schedstat")).unwrap();
        Duration::from_nanos(text.split(' ').next().unwrap().parse().unwrap())
    };
    let cpu_time = || server.sql(name, processes).unwrap().lines().map(time_of).sum();
    commits_take_time_in_proportion(&Postgres::open(&address).unwrap(), cpu_time);
}

/// Rows that are added look at no row that every push changes.
#[test]
fn no_table_refers_to_caches() {
    let Some(server) = PostgresServer::shared() else { return };
    let address = server.database();
    drop(Postgres::open(&address).unwrap());
    let all = "select conname from pg_constraint where confrelid = 'narval.caches'::regclass";
    assert_eq!(server.sql(address.split(['/', '?']).nth(3).unwrap(), all).unwrap(), "");
}
