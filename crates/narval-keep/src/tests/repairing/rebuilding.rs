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

/// Versions before had one file for all caches, to which theirs were hard links.
#[test]
fn a_folder_in_which_caches_shared_files_is_taken_over() {
    let fixture = Fixture::new();
    if fixture.folder.is_in_bucket() {
        // There is nothing else in a bucket than before.
        return;
    }
    let other: CacheName = "other".parse().unwrap();
    let path = TestPath::new("a", &[]);
    path.push(&fixture.cache).unwrap();
    path.push(&fixture.data.create_cache(&other, &CacheSettings::default()).unwrap()).unwrap();
    let (usage, name) = (fixture.cache.usage().unwrap(), path.file_name(Compression::Zstd));
    let Fixture { mut folder, data, cache } = fixture;
    drop((data, cache));
    let [first, second] = ["default", "other"].map(|cache| folder.path().join("caches").join(cache).join("nar"));
    let shared = folder.path().join("blobs/xx");
    std::fs::create_dir_all(&shared).unwrap();
    for place in [&first, &second] {
        let own = object_in(place, &name);
        std::fs::remove_file(own.with_file_name(format!("{}.ls", own.file_name().unwrap().to_str().unwrap()))).unwrap();
        std::fs::rename(own, place.join(&name)).unwrap();
    }
    for cache in ["default", "other"] {
        let narinfo = folder.path().join(format!("caches/{cache}/{}.narinfo", path.part()));
        std::fs::write(&narinfo, plain(&std::fs::read_to_string(&narinfo).unwrap())).unwrap();
    }
    std::fs::remove_file(second.join(&name)).unwrap();
    for place in [second.join(&name), shared.join("x.nar.zst")] {
        std::fs::hard_link(first.join(&name), place).unwrap();
    }
    folder.lose_index();
    let data = Data::rebuild(folder.place(), folder.database(), Work::unwatched()).unwrap().0;
    assert!(!folder.path().join("blobs").exists());
    let report = data.fsck(FsckOptions { contents: true, repair: false }, Work::unwatched()).unwrap();
    assert_eq!(report.problems, Vec::<String>::new());
    let [cache, other] = [CacheName::default(), other].map(|name| data.cache(&name).unwrap().unwrap());
    assert_eq!((cache.usage().unwrap(), other.usage().unwrap()), (usage, usage));
    other.delete(&path.part(), false, &Grant::administrator("test")).unwrap();
    assert!(!second.join(&name).exists());
    assert_eq!(read_all(cache.nar_file(&name).unwrap().unwrap().file), path.file(Compression::Zstd));
    assert_eq!(path.push(&other).unwrap().outcome, Outcome::Added);
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
    let files = fixture.files("caches");
    let Fixture { mut folder, data, cache } = fixture;
    drop((data, cache));
    let is_in_database = folder.database().is_some();
    let mut rejections = 0;
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
                rejections += 1;
            }
        }
    }
    assert!(rejections == 0 || is_in_database, "the index in the folder stays in force");
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
    assert_eq!(now.files("caches"), files, "no file was removed");
    assert_eq!(
        now.data.fsck(FsckOptions { contents: true, repair: false }, Work::unwatched()).unwrap().problems,
        Vec::<String>::new()
    );
}
