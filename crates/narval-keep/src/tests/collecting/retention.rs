//! Pins, leases, uses, collections, deletions.

use narval_files::Work;
use std::time::{Duration, Instant};

use super::super::*;
use crate::records::paths::{NarRecord, PathRecord};

const DAY: u64 = 24 * 60 * 60;

/// A collection so many days from now, with no grace for NARs.
fn collect_after(cache: &Cache, days: u64) -> Collected {
    let options = CollectOptions { now: Some(now() + days * DAY), grace: 0, dry_run: false, work: Work::unwatched() };
    cache.collect(&options, &Grant::administrator("test")).unwrap()
}

#[test]
fn a_collection_that_is_interrupted_is_continued_by_the_next_one() {
    let fixture = Fixture::new();
    let path = TestPath::new("old", &[]);
    path.push(&fixture.cache).unwrap();
    let work = Work::new();
    work.stop();
    let options = CollectOptions { now: Some(now() + 1000 * DAY), grace: 0, dry_run: false, work: &work };
    let rejection = fixture.cache.collect(&options, &Grant::administrator("test")).unwrap_err();
    assert!(rejection.to_string().contains("interrupted") && exists(&fixture.cache, &path), "{rejection}");
    assert_eq!(collect_after(&fixture.cache, 1000).forgotten.len(), 1);
    assert!(!exists(&fixture.cache, &path));
}

pub(super) fn exists(cache: &Cache, path: &TestPath) -> bool {
    let is_indexed = cache.missing(&[path.part()], None).unwrap().is_empty();
    let file = folder_of(cache).join(format!("{}.narinfo", path.part()));
    assert_eq!(is_indexed, file.exists(), "the index and the files agree");
    is_indexed
}

fn pin(cache: &Cache, name: &str, path: &TestPath, holds: PinFor) {
    cache.pin(name, &path.part(), holds, &with_scopes("pin")).unwrap();
}

/// `nix copy` pushes nothing that a server has answered for. A collection in another process does not know what is in the server's memory.
#[test]
fn a_path_that_was_asked_for_is_not_collected_by_another_process() {
    let long_ago = |fixture: &Fixture, path: &TestPath, seconds: u64| {
        let used = now() - seconds;
        fixture
            .folder
            .sql(&format!("update paths set used = {used}, added = {used} where hash_part = '{}'", path.part()));
    };
    let paths = ["asked-for", "other"].map(|name| TestPath::new(name, &[]));
    let collects = |fixture: &Fixture| {
        let other = fixture.folder.open();
        let other = other.cache(&CacheName::default()).unwrap().unwrap();
        let forgotten = other.collect(&CollectOptions::default(), &pusher()).unwrap().forgotten;
        assert_eq!(forgotten.iter().map(|path| &*path.path).collect::<Vec<_>>(), [paths[1].info.path.to_string()]);
        assert!(fixture.cache.narinfo(&paths[0].part()).unwrap().is_some());
    };
    for age in [100 * DAY, 90 * DAY + 60] {
        let fixture = Fixture::new();
        paths.iter().for_each(|path| drop(path.push(&fixture.cache).unwrap()));
        paths.iter().for_each(|path| long_ago(&fixture, path, age));
        let until = fixture.cache.narinfo_until(&paths[0].part()).unwrap().unwrap().until;
        assert!(fixture.cache.note_hit(&paths[0].part(), until), "it may be answered from memory now");
        collects(&fixture);
    }
    // The one that was asked for is the newest.
    let fixture = Fixture::new();
    paths.iter().for_each(|path| drop(path.push(&fixture.cache).unwrap()));
    let size_max = Some(fixture.cache.usage().unwrap().bytes - 1);
    fixture.cache.set_settings(&CacheSettings { size_max, ..CacheSettings::default() }).unwrap();
    long_ago(&fixture, &paths[0], 2 * DAY);
    long_ago(&fixture, &paths[1], DAY);
    fixture.cache.narinfo(&paths[0].part()).unwrap().unwrap();
    collects(&fixture);
}

/// A path whose retention ends soon is not answered from memory for longer than that.
#[test]
fn what_is_in_memory_is_answered_while_no_collection_removes_it() {
    let path = TestPath::new("a", &[]);
    let until = |settings: CacheSettings, age: u64| {
        let fixture = Fixture::with(&settings);
        path.push(&fixture.cache).unwrap();
        let used = now() - age;
        fixture.folder.sql(&format!("update paths set used = {used}"));
        let until = fixture.cache.narinfo_until(&path.part()).unwrap().unwrap().until;
        let recorded = fixture.cache.index().narinfo(fixture.cache.id(), &path.part()).unwrap().unwrap().1;
        (until, recorded, used)
    };
    let kept_for =
        |days: Option<u32>, size_max| CacheSettings { retention_days: days, size_max, ..CacheSettings::default() };
    let (end, recorded, used) = until(kept_for(Some(90), None), 88 * DAY);
    assert_eq!((end, recorded), (used + 89 * DAY, used), "without a statement");
    let (end, recorded, _) = until(kept_for(Some(90), None), 89 * DAY);
    assert!(recorded + 60 > now() && end == recorded + 89 * DAY);
    let (end, recorded, used) = until(kept_for(Some(1), None), DAY / 4);
    assert_eq!((end, recorded), (used + DAY / 2, used));
    let (end, recorded, used) = until(kept_for(None, None), 1000 * DAY);
    assert_eq!((end, recorded), (u64::MAX, used));
    let (end, recorded, _) = until(kept_for(None, Some(1 << 30)), 120);
    assert!(recorded + 60 > now() && end == recorded + 60);
}

/// attic#83, #227: objects were collected one by one, by age, and closures that were needed had holes.
#[test]
fn attic_83_closures_are_kept_whole() {
    let fixture = Fixture::new();
    let cache = &fixture.cache;
    let library = TestPath::new("library", &[]);
    let program = TestPath::new("program", &[&library]);
    let other = TestPath::new("other", &[&library]);
    for path in [&library, &program, &other] {
        path.push(cache).unwrap();
    }
    pin(cache, "release", &program, PinFor::default());
    let before = cache.stamp();
    assert!(collect_after(cache, 89).forgotten.is_empty());
    let collected = collect_after(cache, 91);
    assert_eq!(
        collected.forgotten.iter().map(|path| path.path.clone()).collect::<Vec<_>>(),
        [other.info.path.to_string()]
    );
    assert!(exists(cache, &program) && exists(cache, &library) && !exists(cache, &other));
    assert_ne!(cache.stamp(), before);
    assert_eq!((collected.kept, collected.files), (2, 1));
    assert_eq!(cache.unpin("release", None, &with_scopes("pin")).unwrap(), 1);
    assert_eq!(collect_after(cache, 91).forgotten.len(), 2);
    // Not a file is left of it.
    assert_eq!(cache.usage().unwrap(), Usage::default());
    assert_eq!(fixture.files("caches/default/nar"), Vec::<String>::new());
    assert_eq!(fixture.files("caches/default"), ["nix-cache-info"]);
}

/// cachix#338: asking for a narinfo was no use of it.
#[test]
fn cachix_338_every_use_counts() {
    let uses: [fn(&Cache, &TestPath); 4] = [
        |cache, path| drop(cache.narinfo(&path.part()).unwrap().unwrap()),
        |cache, path| drop(cache.nar_file(&path.file_name(Compression::Zstd)).unwrap().unwrap()),
        |cache, path| cache.note_used(&path.part()),
        |cache, path| assert_eq!(path.push(cache).unwrap().outcome, Outcome::Unchanged),
    ];
    for use_it in uses {
        let fixture = Fixture::new();
        let cache = &fixture.cache;
        let path = TestPath::new("a", &[]);
        path.push(cache).unwrap();
        // As if it had been pushed long ago.
        fixture.folder.sql("update paths set used = 1000, added = 1000");
        let options = CollectOptions { dry_run: true, ..CollectOptions::default() };
        let forgotten = |cache: &Cache| cache.collect(&options, &pusher()).unwrap().forgotten.len();
        assert_eq!(forgotten(cache), 1);
        use_it(cache, &path);
        assert_eq!(forgotten(cache), 0);
        assert!(exists(cache, &path));
    }
}

#[test]
fn pins_expire() {
    let fixture = Fixture::new();
    let cache = &fixture.cache;
    let revisions: Vec<TestPath> = (0..4).map(|number| TestPath::new(&format!("app-{number}"), &[])).collect();
    for revision in &revisions {
        revision.push(cache).unwrap();
        pin(cache, "app", revision, PinFor { keep: Some(2), until: None });
    }
    let days = TestPath::new("days", &[]);
    days.push(cache).unwrap();
    pin(cache, "days", &days, PinFor { keep: None, until: Some(now() + 200 * DAY) });
    let names: Vec<String> = cache.pins().unwrap().into_iter().map(|pin| pin.path).collect();
    let path = |at: usize| revisions[at].info.path.to_string();
    assert_eq!(names, [path(3), path(2), days.info.path.to_string()]);
    collect_after(cache, 100);
    assert!(!exists(cache, &revisions[1]) && exists(cache, &revisions[2]) && exists(cache, &days));
    collect_after(cache, 201);
    assert!(exists(cache, &revisions[3]) && !exists(cache, &days));
    let absent = cache.pin("x", &store_path("absent").hash_part(), PinFor::default(), &with_scopes("pin"));
    assert_eq!(absent.unwrap_err().kind, RejectionKind::NotFound);
    let forbidden = cache.pin("x", &revisions[3].part(), PinFor::default(), &pusher());
    assert_eq!(forbidden.unwrap_err().kind, RejectionKind::Forbidden);
}

/// A client that was told that a path exists may push what refers to it a while later.
#[test]
fn paths_reported_as_present_stay_for_a_day() {
    let fixture = Fixture::new();
    let cache = &fixture.cache;
    let library = TestPath::new("library", &[]);
    library.push(cache).unwrap();
    cache.set_settings(&CacheSettings { retention_days: Some(0), ..CacheSettings::default() }).unwrap();
    assert!(cache.missing(&[library.part()], Some(LEASE_SECONDS)).unwrap().is_empty());
    let almost = CollectOptions { now: Some(now() + DAY - 60), grace: 0, dry_run: false, work: Work::unwatched() };
    assert!(cache.collect(&almost, &pusher()).unwrap().forgotten.is_empty());
    assert_eq!(collect_after(cache, 2).forgotten.len(), 1);
}

/// A NAR that was uploaded, and whose narinfo comes later, is not collected in between; nor one whose narinfo somebody has.
#[test]
fn nars_have_a_grace_period() {
    let fixture = Fixture::new();
    let cache = &fixture.cache;
    let (early, late) = (TestPath::new("early", &[]), TestPath::new("late", &[]));
    early.push(cache).unwrap();
    late.send(cache, Compression::Xz).unwrap();
    let at = |hours: u64| CollectOptions { now: Some(now() + hours * 3600), ..CollectOptions::default() };
    assert_eq!(cache.collect(&at(23), &pusher()).unwrap().files, 0);
    cache.set_settings(&CacheSettings { retention_days: Some(0), ..CacheSettings::default() }).unwrap();
    let collected = cache.collect(&at(23), &pusher()).unwrap();
    assert_eq!((collected.forgotten.len(), collected.files), (1, 0));
    assert!(!exists(cache, &early));
    assert!(cache.nar_file(&early.file_name(Compression::Zstd)).unwrap().is_some());
    // Its narinfo comes, after all.
    cache.commit_narinfos(&[late.narinfo(Compression::Xz)], &pusher()).unwrap();
    cache.set_settings(&CacheSettings::default()).unwrap();
    assert_eq!(cache.collect(&at(46), &pusher()).unwrap().files, 0);
    assert_eq!(cache.collect(&at(48), &pusher()).unwrap().files, 1);
    assert!(cache.nar_file(&early.file_name(Compression::Zstd)).unwrap().is_none());
    assert!(exists(cache, &late));
}

/// attic#265: one path with a secret in it could not be removed.
#[test]
fn attic_265_a_leaked_path_is_deleted_at_once() {
    let fixture = Fixture::new();
    let cache = &fixture.cache;
    let secret = TestPath::new("secret", &[]);
    let program = TestPath::new("program", &[&secret]);
    secret.push(cache).unwrap();
    secret.send(cache, Compression::Xz).unwrap();
    program.push(cache).unwrap();
    pin(cache, "release", &secret, PinFor::default());
    let grant = with_scopes("delete");
    assert_eq!(cache.delete(&secret.part(), false, &pusher()).unwrap_err().kind, RejectionKind::Forbidden);
    let rejection = cache.delete(&secret.part(), false, &grant).unwrap_err();
    assert!(rejection.kind == RejectionKind::Conflict && rejection.message.contains(program.info.path.base_name()));
    let deleted = cache.delete(&secret.part(), true, &grant).unwrap();
    assert_eq!((deleted.paths.len(), deleted.files), (2, 3));
    assert_eq!(fixture.files("caches/default/nar"), Vec::<String>::new());
    assert_eq!(fixture.files("caches/default"), ["nix-cache-info"]);
    assert_eq!(cache.delete(&secret.part(), true, &grant).unwrap_err().kind, RejectionKind::NotFound);
    // And pushed again, it is there again.
    secret.push(cache).unwrap();
    assert!(exists(cache, &secret));
}

/// ncps#470: what two caches share is counted, and removed, once.
#[test]
fn ncps_470_a_shared_nar_stays_for_the_other_paths() {
    let fixture = Fixture::new();
    let other = fixture.data.create_cache(&"other".parse().unwrap(), &CacheSettings::default()).unwrap();
    let path = TestPath::new("a", &[]);
    path.push(&fixture.cache).unwrap();
    path.push(&other).unwrap();
    fixture.cache.delete(&path.part(), false, &with_scopes("delete")).unwrap();
    assert!(!exists(&fixture.cache, &path) && exists(&other, &path));
    let file = other.nar_file(&path.file_name(Compression::Zstd)).unwrap().unwrap();
    assert_eq!(zstd::decode_all(file.file).unwrap(), path.nar);
    path.push(&fixture.cache).unwrap();
    assert_eq!(fixture.cache.usage().unwrap(), other.usage().unwrap());
}

#[test]
fn why_names_the_pin_and_the_chain_that_keep_a_path() {
    let fixture = Fixture::new();
    let cache = &fixture.cache;
    let library = TestPath::new("library", &[]);
    let program = TestPath::new("program", &[&library]);
    library.push(cache).unwrap();
    program.push(cache).unwrap();
    pin(cache, "release", &program, PinFor::default());
    let why = cache.why(&library.part()).unwrap().unwrap();
    assert_eq!(why.hold, Hold::Pin("release".into()));
    assert_eq!(why.chain, [program.info.path.to_string(), library.info.path.to_string()]);
    assert_eq!(cache.why(&store_path("absent").hash_part()).unwrap(), None);
}

/// Between the snapshot of a collection and its steps, others push, pin and ask: what they hold is not hidden.
#[test]
fn paths_needed_since_the_snapshot_are_not_hidden() {
    let fixture = Fixture::new();
    let cache = &fixture.cache;
    let paths: Vec<TestPath> =
        ["used", "leased", "pinned", "referred", "free"].map(|name| TestPath::new(name, &[])).into();
    paths.iter().for_each(|path| drop(path.push(cache).unwrap()));
    let [_, leased, pinned, referred, free] = &paths[..] else { panic!() };
    cache.missing(&[leased.part()], Some(1000)).unwrap();
    pin(cache, "release", pinned, PinFor::default());
    TestPath::new("program", &[referred]).push(cache).unwrap();
    let before: Vec<_> =
        paths.iter().enumerate().map(|(at, path)| (path.part(), if at == 0 { 1 } else { now() })).collect();
    let fence = cache.index().begin_collection().unwrap().unwrap();
    assert_eq!(cache.index().hide(fence, cache.id(), &before, now()).unwrap(), [free.part()]);
}

/// Pushes while collections take all they can: whatever is visible has its closure and its NARs.
#[test]
fn concurrent_pushes_and_collections() {
    let fixture = Fixture::new();
    let cache = &fixture.cache;
    cache.set_settings(&CacheSettings { retention_days: Some(0), ..CacheSettings::default() }).unwrap();
    let is_over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                collect_after(cache, 1);
                whole(cache);
            }
        });
        let pushers: Vec<_> = (0..3)
            .map(|pusher: usize| {
                scope.spawn(move || {
                    for round in 0..20 {
                        let library = TestPath::new(&format!("library-{round}"), &[]);
                        let program = TestPath::new(&format!("program-{pusher}-{round}"), &[&library]);
                        // What is collected in between is refused, with the advice to push it again.
                        if let Err(rejection) = library.push(cache).and_then(|_| program.push(cache)) {
                            assert_eq!(rejection.kind, RejectionKind::Conflict, "{rejection}");
                        }
                    }
                })
            })
            .collect();
        let pushed: Vec<_> = pushers.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        is_over.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(pushed.iter().all(Result::is_ok));
    });
    whole(cache);
    collect_after(cache, 1);
    assert_eq!(fixture.files("caches/default/nar"), Vec::<String>::new());
}

/// Every path in the index has what it refers to, and its NAR, at that moment.
pub(in super::super) fn whole(cache: &Cache) {
    let _alone = cache.storage().lock_exclusive().unwrap();
    for path in cache.index().list(cache.id(), "", usize::MAX >> 1).unwrap() {
        let Some(record) = cache.index().path(cache.id(), &path.hash_part).unwrap() else {
            // There is no lock in a bucket: it was collected since.
            assert!(!cache.is_local());
            continue;
        };
        let nar = match cache.index().file(cache.id(), &record.file).unwrap() {
            Some((_, nar)) => nar,
            None if !cache.is_local() && cache.index().path(cache.id(), &path.hash_part).unwrap().is_none() => continue,
            None => panic!("{} has no NAR", record.path),
        };
        assert!(cache.files().has_nar(&record.file, nar.file_size).unwrap());
        let present = cache.index().present(cache.id(), &record.references).unwrap();
        let is_gone = || !cache.is_local() && cache.index().path(cache.id(), &path.hash_part).unwrap().is_none();
        assert!(present.iter().all(|present| *present) || is_gone());
    }
}

/// Logs go with age; what describes a path that is here stays.
#[test]
fn small_files_are_collected_too() {
    let fixture = Fixture::new();
    let cache = &fixture.cache;
    let path = TestPath::new("a", &[]);
    path.push(cache).unwrap();
    pin(cache, "release", &path, PinFor::default());
    let drv = |name: &str| store_path(&format!("{name}.drv")).to_string();
    let put = |kind, name: &str, text: &str| cache.put_small(kind, name, &mut text.as_bytes(), &pusher()).unwrap();
    put(SmallKind::Log, &drv("log"), "built");
    put(SmallKind::BuildTrace, &format!("{}/out.doi", drv("a")), &format!("{{\"outPath\":\"{}\"}}", path.info.path));
    put(
        SmallKind::BuildTrace,
        &format!("{}/out.doi", drv("b")),
        &format!("{{\"outPath\":\"{}\"}}", store_path("gone")),
    );
    let archive = format!("{{\"archive\":\"../nar/{}\"}}", path.file_name(Compression::Zstd));
    put(SmallKind::DebugInfo, &"ab".repeat(20), &archive);
    collect_after(cache, 89);
    assert_eq!(fixture.files("caches/default/log").len() + fixture.files("caches/default/build-trace-v2").len(), 3);
    collect_after(cache, 91);
    assert!(fixture.files("caches/default/log").is_empty());
    assert_eq!(fixture.files("caches/default/build-trace-v2"), [format!("{}/out.doi", drv("a"))]);
    assert_eq!(fixture.files("caches/default/debuginfo").len(), 1);
}

/// Makes all names of NARs so much older.
pub(super) fn age(fixture: &Fixture, seconds: u64) {
    fixture.folder.sql(&format!(
        "update nars set used = used - {seconds}, added = added - {seconds}, orphaned = orphaned - {seconds}"
    ));
}

#[test]
fn a_dry_run_shows_what_would_be_removed() {
    let fixture = Fixture::new();
    let cache = &fixture.cache;
    let path = TestPath::new("a", &[]);
    path.send(cache, Compression::None).unwrap();
    let collect = |dry_run| {
        let options = CollectOptions { dry_run, grace: UNFINISHED_GRACE, now: None, work: Work::unwatched() };
        let collected = cache.collect(&options, &pusher()).unwrap();
        (collected.files, collected.bytes)
    };
    assert_eq!((collect(true), collect(false)), ((0, 0), (0, 0)));
    age(&fixture, UNFINISHED_GRACE);
    let all = (1, path.nar.len() as u64);
    assert_eq!((collect(true), collect(true), collect(false), collect(false)), (all, all, all, (0, 0)));
}

fn pushed(cache: &Cache) -> (TestPath, PathRecord, NarRecord) {
    let path = TestPath::new("a", &[]);
    path.push(cache).unwrap();
    let record = cache.index().path(cache.id(), &path.part()).unwrap().unwrap();
    let (_, nar) = cache.index().file(cache.id(), &record.file).unwrap().unwrap();
    (path, record, nar)
}

/// A process that was paused before it asks the object store to remove something finds its time over.
#[test]
fn an_object_is_not_removed_after_the_deadline() {
    let fixture = Fixture::new();
    let cache = &fixture.cache;
    if cache.is_local() {
        return;
    }
    let (path, record, _) = pushed(cache);
    let over = Instant::now();
    let error = cache.files().unlink_nar(&record.file, over).unwrap_err().to_string();
    assert!(error.contains("too long"), "{error}");
    assert!(cache.files().withdraw(&path.part(), over).is_err());
    assert!(cache.files().publish(&record, None, over).is_err());
    assert!(exists(cache, &path) && cache.nar_file(&record.file).unwrap().is_some());
    cache.files().unlink_nar(&record.file, Instant::now() + Duration::from_secs(60)).unwrap();
    assert_eq!(fixture.files("caches/default/nar"), Vec::<String>::new());
}

/// A client may ask for any number of paths that nobody has.
#[test]
fn only_paths_that_are_there_are_leased() {
    let fixture = Fixture::new();
    let path = TestPath::new("a", &[]);
    path.push(&fixture.cache).unwrap();
    let leases = || fixture.folder.rows("leases");
    let mut asked: Vec<HashPart> =
        (0..3000).map(|number| store_path(&format!("absent-{number}")).hash_part()).collect();
    assert_eq!(fixture.cache.missing(&asked, Some(LEASE_SECONDS)).unwrap(), asked);
    assert_eq!(leases(), 0);
    asked.push(path.part());
    // However often it is asked for, by whomever.
    for _ in 0..3 {
        assert_eq!(fixture.cache.missing(&asked, Some(LEASE_SECONDS)).unwrap(), asked[..3000]);
    }
    assert_eq!(leases(), 1);
}
