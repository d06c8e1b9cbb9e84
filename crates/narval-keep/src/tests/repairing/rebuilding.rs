//! The index made again: beside servers, and when it is interrupted.

use narval_files::Work;
use std::time::Duration;

use super::super::collecting::killed::{VICTIM, victim};
use super::super::*;

/// How often a rebuild is killed.
const ROUNDS: u32 = 20;

fn filled() -> (Fixture, Vec<TestPath>) {
    let fixture = Fixture::new();
    let paths: Vec<TestPath> = (0..24).map(|number| TestPath::new(&format!("path-{number}"), &[])).collect();
    for path in &paths {
        path.push(&fixture.cache).unwrap();
    }
    (fixture, paths)
}

fn visible(data: &Data, paths: &[TestPath]) -> usize {
    let Some(cache) = data.cache(&CacheName::default()).unwrap() else { return 0 };
    paths.iter().filter(|path| cache.narinfo(&path.part()).unwrap().is_some()).count()
}

#[test]
fn an_index_is_not_rebuilt_while_anybody_has_it_open() {
    let (fixture, paths) = filled();
    let rebuild = |folder: &Place| Data::rebuild(folder.place(), folder.database(), Work::unwatched());
    let refused = rebuild(&fixture.folder).unwrap_err().to_string();
    assert!(refused.contains("a server or another command has it open"), "{refused}");
    assert_eq!(visible(&fixture.data, &paths), paths.len());
    let Fixture { mut folder, data, cache } = fixture;
    drop((data, cache));
    let alone = in_use::InUse::alone(folder.path()).unwrap();
    let refused = Data::open(folder.place(), folder.options()).unwrap_err().to_string();
    assert!(refused.contains("being rebuilt"), "{refused}");
    drop(alone);
    folder.lose_index();
    let (data, report) = rebuild(&folder).unwrap();
    assert_eq!((visible(&data, &paths), report.problems), (paths.len(), Vec::new()));
}

#[test]
#[ignore = "the process that is killed"]
fn rebuilds_until_it_is_killed() {
    let Some(folder) = std::env::var_os(VICTIM) else { return };
    let (place, database) = Place::told_place(folder.as_ref());
    // In a database, the second one is refused.
    while Data::rebuild(place.clone(), database.clone(), Work::unwatched()).is_ok() {}
}

#[test]
fn a_rebuild_that_is_killed_leaves_the_old_index_or_says_so() {
    let (fixture, paths) = filled();
    let files = [fixture.files("caches"), fixture.files("blobs")];
    let Fixture { mut folder, data, cache } = fixture;
    drop((data, cache));
    let is_in_database = folder.database().is_some();
    let mut refusals = 0;
    for round in 0..ROUNDS {
        if is_in_database && round % 4 == 0 {
            // Another empty one.
            folder.lose_index();
        }
        let mut child = victim("rebuilding::rebuilds_until_it_is_killed", &folder).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(u64::from(20 + 37 * round)));
        child.kill().unwrap();
        child.wait().unwrap();
        match Data::open(folder.place(), folder.options()) {
            Ok(data) => {
                let found = visible(&data, &paths);
                let is_untouched = is_in_database && data.caches().unwrap().is_empty();
                assert!(found == paths.len() || is_untouched, "round {round}: {found} paths");
            }
            Err(error) => {
                assert!(error.to_string().contains("run 'narval cache fsck --rebuild' again"), "{error}");
                refusals += 1;
            }
        }
    }
    assert!(refusals == 0 || is_in_database, "the index in the folder stays in force");
    if is_in_database {
        folder.lose_index();
        let mut child = victim("rebuilding::rebuilds_until_it_is_killed", &folder).spawn().unwrap();
        let until = std::time::Instant::now() + Duration::from_secs(60);
        let has_begun = || {
            folder.query("select count(*) from pg_tables where schemaname = 'narval' and tablename = 'changes'").trim()
                == "1"
                && folder.query("select count(*) from changes").trim() != "0"
        };
        while !has_begun() && std::time::Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let rebuilt = Data::rebuild(folder.place(), folder.database(), Work::unwatched());
    let data = match rebuilt {
        Ok((data, _)) => data,
        // The last one was complete.
        Err(error) => {
            assert!(is_in_database && error.to_string().contains("has an index already"), "{error}");
            folder.open()
        }
    };
    assert_eq!(visible(&data, &paths), paths.len());
    let now = Fixture { cache: data.cache(&CacheName::default()).unwrap().unwrap(), data, folder };
    assert_eq!([now.files("caches"), now.files("blobs")], files, "no file was removed");
    assert_eq!(
        now.data.fsck(FsckOptions { contents: true, repair: false }, Work::unwatched()).unwrap().problems,
        Vec::<String>::new()
    );
}
