//! Sizes: what a cache may hold, what counts towards it, and who makes room.

use super::super::*;
use super::retention::{age, exists};

#[test]
fn the_size_limit_and_the_quota() {
    let fixture = Fixture::new();
    let cache = &fixture.cache;
    let paths: Vec<TestPath> = (0..4).map(|number| TestPath::new(&format!("path-{number}"), &[])).collect();
    paths.iter().for_each(|path| drop(path.push(cache).unwrap()));
    let bytes = cache.usage().unwrap().bytes;
    for (at, path) in paths.iter().enumerate() {
        let used = now() - 1000 + at as u64;
        fixture.folder.sql(&format!("update paths set used = {used} where hash_part = '{}'", path.part()));
    }
    cache.set_settings(&CacheSettings { size_max: Some(bytes * 3 / 4), ..CacheSettings::default() }).unwrap();
    let collected = cache.collect(&CollectOptions { grace: 0, ..CollectOptions::default() }, &pusher()).unwrap();
    assert!(collected.forgotten.len() == 1 && collected.forgotten[0].for_size);
    assert!(!exists(cache, &paths[0]) && exists(cache, &paths[1]));
    cache.set_settings(&CacheSettings { quota: Some(bytes), ..CacheSettings::default() }).unwrap();
    let rejection = TestPath::with_contents("large", &[], &[7; 5000]).send(cache, Compression::None).unwrap_err();
    assert!(rejection.kind == RejectionKind::NoSpace && rejection.message.contains("quota"));
    // Nor when its size is not known beforehand.
    let large = TestPath::with_contents("large", &[], &[8; 5000]);
    cache.set_settings(&CacheSettings { quota: Some(bytes + 1000), ..CacheSettings::default() }).unwrap();
    let Begin::Receive(upload) = cache.begin_nar(&large.file_name(Compression::None), None, &pusher()).unwrap() else {
        panic!()
    };
    assert_eq!(upload.receive(&mut &large.nar[..]).unwrap_err().kind, RejectionKind::NoSpace);
    assert!(fixture.files("incoming").is_empty());
}

#[test]
fn a_full_quota_removes_the_nars_of_abandoned_pushes() {
    let first = TestPath::with_contents("first", &[], &[1; 10_000]);
    let second = TestPath::with_contents("second", &[], &[2; 10_000]);
    let size = first.nar.len() as u64;
    let fixture = Fixture::with(&CacheSettings { quota: Some(size * 3 / 2), ..CacheSettings::default() });
    let cache = &fixture.cache;
    first.send(cache, Compression::None).unwrap();
    // Its narinfo may be on its way.
    assert_eq!(second.send(cache, Compression::None).unwrap_err().kind, RejectionKind::NoSpace);
    age(&fixture, UNFINISHED_GRACE);
    // A client that is told that it is here counts as one that has sent it.
    assert!(first.send(cache, Compression::None).unwrap().is_none());
    fixture.cache.shared().shortage.forget_sweep();
    assert_eq!(second.send(cache, Compression::None).unwrap_err().kind, RejectionKind::NoSpace);
    age(&fixture, UNFINISHED_GRACE + 60);
    fixture.cache.shared().shortage.forget_sweep();
    assert!(second.send(cache, Compression::None).unwrap().is_some());
    assert_eq!(cache.usage().unwrap().files, 1);
    // What a path has stays.
    cache.commit_narinfos(&[second.narinfo(Compression::None)], &pusher()).unwrap();
    age(&fixture, UNFINISHED_GRACE);
    fixture.cache.shared().shortage.forget_sweep();
    assert_eq!(first.send(cache, Compression::None).unwrap_err().kind, RejectionKind::NoSpace);
    assert!(exists(cache, &second));
}

#[test]
fn logs_and_listings_count_towards_the_quota() {
    let fixture = Fixture::with(&CacheSettings { quota: Some(10_000), ..CacheSettings::default() });
    if fixture.folder.is_in_bucket() {
        // It stores no listings.
        return;
    }
    let cache = &fixture.cache;
    let path = TestPath::with_contents("a", &[], &[1; 2_000]);
    path.send(cache, Compression::None).unwrap();
    let listing = fixture.files("caches/default/nar").into_iter().find(|name| name.ends_with(".ls")).unwrap();
    let listing = std::fs::metadata(object_of(cache, &listing)).unwrap().len();
    assert!(listing > 0);
    assert_eq!(cache.usage().unwrap().bytes, path.nar.len() as u64 + listing);
    let log = |name: &str, len: usize| {
        let name = store_path(&format!("{name}.drv"));
        cache.put_small(SmallKind::Log, name.base_name(), &mut &vec![b'x'; len][..], &pusher())
    };
    log("one", 5_000).unwrap();
    assert_eq!(log("two", 5_000).unwrap_err().kind, RejectionKind::NoSpace);
    assert_eq!(cache.usage().unwrap().small_bytes, 5_000);
    // NARs have no more room either.
    let large = TestPath::with_contents("b", &[], &[2; 3_000]);
    assert_eq!(large.send(cache, Compression::None).unwrap_err().kind, RejectionKind::NoSpace);
    // It is counted again from the files.
    let fixture = fixture.reopen();
    assert_eq!(fixture.cache.usage().unwrap().small_bytes, 5_000);
    fixture.cache.set_settings(&CacheSettings { quota: Some(20_000), ..CacheSettings::default() }).unwrap();
    assert!(large.send(&fixture.cache, Compression::None).unwrap().is_some());
}

/// Two servers, and one quota: what one has stored, the other counts.
#[test]
fn all_servers_share_one_quota() {
    let paths: Vec<TestPath> =
        (0..8).map(|at| TestPath::with_contents(&format!("p-{at}"), &[], &[at; 5_000])).collect();
    let quota = paths[0].nar.len() as u64 * 7 / 2;
    let fixture = Fixture::with(&CacheSettings { quota: Some(quota), ..CacheSettings::default() });
    let other = fixture.folder.open();
    let caches = [fixture.cache.clone(), other.cache(&CacheName::default()).unwrap().unwrap()];
    let mut stored = 0;
    for (at, path) in paths.iter().enumerate() {
        match path.send(&caches[at % 2], Compression::None) {
            Ok(_) => stored += 1,
            Err(rejection) => assert_eq!(rejection.kind, RejectionKind::NoSpace, "{rejection}"),
        }
    }
    assert_eq!((stored, caches[0].usage().unwrap()), (3, caches[1].usage().unwrap()));
    assert!(caches[0].usage().unwrap().bytes <= quota);
}

#[test]
fn logs_do_not_evict_paths() {
    let fixture = Fixture::with(&CacheSettings { size_max: Some(20_000), ..CacheSettings::default() });
    let cache = &fixture.cache;
    let path = TestPath::with_contents("a", &[], &[1; 2_000]);
    path.push(cache).unwrap();
    for number in 0..10 {
        let name = store_path(&format!("log-{number}.drv"));
        cache.put_small(SmallKind::Log, name.base_name(), &mut &[b'x'; 2_000][..], &pusher()).unwrap();
    }
    cache.collect(&CollectOptions::default(), &pusher()).unwrap();
    let usage = cache.usage().unwrap();
    assert_eq!((usage.small_bytes, fixture.files("caches/default/log").len()), (4_000, 2));
    assert!(exists(cache, &path));
}
