//! The writer's transactions.

use super::*;
use crate::index::schema::VERSION;
use crate::name::CacheName;

fn index() -> (tempfile::TempDir, Sqlite) {
    let folder = tempfile::tempdir().unwrap();
    let index = Sqlite::open(&folder.path().join("index.sqlite")).unwrap();
    (folder, index)
}

/// A change that fails is undone; the others in its transaction are not.
#[test]
fn a_change_that_fails_does_not_fail_others() {
    let (_folder, index) = index();
    let index = &index;
    let cache = index.create_cache(&CacheName::default(), "{}", 1).unwrap();
    std::thread::scope(|scope| {
        for number in 0..64_u64 {
            scope.spawn(move || {
                let done = index.writer.write(Durability::Full, move |connection| {
                    connection.execute("insert into leases values (?, ?, 1)", (1, format!("{number}")))?;
                    connection.execute(if number % 2 == 0 { "select" } else { "delete from pins" }, []).map(drop)
                });
                assert_eq!(done.is_ok(), number % 2 == 1);
            });
        }
    });
    let count =
        index.read(|connection| connection.query_row("select count(*) from leases", [], |row| row.get::<_, i64>(0)));
    assert_eq!((count.unwrap(), cache.id), (32, CacheId(1)));
}

#[test]
fn changes_of_others_are_noticed() {
    let (folder, index) = index();
    let other = Sqlite::open(&folder.path().join("index.sqlite")).unwrap();
    let before = index.stamp();
    other.create_cache(&CacheName::default(), "{}", 1).unwrap();
    assert_ne!(other.stamp(), before, "its own at once");
    std::thread::sleep(2 * NOTICED_AFTER);
    assert_eq!(index.stamp(), other.stamp());
    // A change that no reader can see leaves the stamp as it is.
    let before = index.stamp();
    index.lease(CacheId(1), &[], 5).unwrap();
    assert_eq!(index.stamp(), before);
}

#[test]
fn another_version_is_refused() {
    let (folder, index) = index();
    let path = folder.path().join("index.sqlite");
    drop(index);
    for other in [VERSION - 1, VERSION + 1] {
        connect(&path).unwrap().pragma_update(None, "user_version", other).unwrap();
        assert!(matches!(Sqlite::open(&path), Err(IndexError::Version { found, .. }) if found == other));
    }
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
        let (folder, index) = index();
        check([&index, &Sqlite::open(&folder.path().join("index.sqlite")).unwrap()]);
    }
}

#[test]
fn a_commit_takes_time_in_proportion_to_its_narinfos() {
    let (_folder, index) = index();
    // All statements run on the writer's thread.
    let thread = |_: &Connection| Ok(rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime));
    let cpu_time = || Duration::try_from(index.writer.write(Durability::Full, thread).unwrap()).unwrap();
    crate::index::tests::commits_take_time_in_proportion(&index, cpu_time);
}
