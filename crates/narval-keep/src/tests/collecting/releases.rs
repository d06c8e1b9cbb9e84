//! Releases: their revisions, what they keep, and who may record them.

use narval_files::Work;
use narval_nix::release::{ReleaseName, ReleaseSystem, SHARE_OF_ALL, Which};
use narval_nix::{Release, SecretKey, TrustedKeys};
use std::collections::BTreeMap;

use super::super::*;
use crate::records::releases::{RELEASES_LISTED_MAX, ReleaseRecord};

const DAY: u64 = 24 * 60 * 60;

fn signing() -> (Fixture, TrustedKeys) {
    let fixture = Fixture::with(&CacheSettings { keep_releases: 2, ..CacheSettings::default() });
    let key = SecretKey::generate("cache-1").unwrap();
    let keys = [key.public_key()].into_iter().collect();
    fixture.cache.set_sign_keys(vec![key]);
    (fixture, keys)
}

fn name(text: &str) -> ReleaseName {
    text.parse().unwrap()
}

fn new(of: &str, system: &str, path: &TestPath) -> NewRelease {
    let outputs = BTreeMap::from([("out".parse().unwrap(), path.info.path.clone())]);
    NewRelease {
        name: name(of),
        version: None,
        paths: BTreeMap::from([(system.parse().unwrap(), outputs)]),
        notes: BTreeMap::new(),
        key: None,
    }
}

fn released(cache: &Cache, of: &str, path: &TestPath) -> Release {
    cache.release(&new(of, "x86_64-linux", path), &with_scopes("release:*")).unwrap()
}

fn collect(cache: &Cache) {
    let now = Some(now() + 200 * DAY);
    let options = CollectOptions { now, grace: 0, dry_run: false, work: Work::unwatched() };
    cache.collect(&options, &Grant::administrator("test")).unwrap();
}

fn exists(cache: &Cache, path: &TestPath) -> bool {
    cache.missing(&[path.part()], None).unwrap().is_empty()
}

#[test]
fn revisions_grow_and_the_newest_releases_keep_their_closures() {
    let (fixture, keys) = signing();
    let cache = &fixture.cache;
    let library = TestPath::new("library", &[]);
    library.push(cache).unwrap();
    let paths: Vec<TestPath> = (0..4).map(|at| TestPath::new(&format!("api-{at}"), &[&library])).collect();
    for (at, path) in paths.iter().enumerate() {
        path.push(cache).unwrap();
        let release = released(cache, "api", path);
        assert_eq!(release.revision, at as u64 + 1);
        assert!(release.find_valid(&keys).is_some() && release.cache.ends_with("-default"));
        let released = release.main_path(&"x86_64-linux".parse().unwrap()).unwrap();
        assert_eq!((&released.path, released.nar_hash), (&path.info.path, path.info.nar_hash));
    }
    // Each system has its own newest ones.
    let arm = TestPath::new("api-arm", &[]);
    arm.push(cache).unwrap();
    cache.release(&new("api", "aarch64-linux", &arm), &with_scopes("release:api")).unwrap();
    cache.pin_release(&name("api"), &Which::Revision(1), true, &with_scopes("pin")).unwrap();
    collect(cache);
    let there: Vec<bool> = paths.iter().chain([&library, &arm]).map(|path| exists(cache, path)).collect();
    assert_eq!(there, [true, false, true, true, true, true]);
    assert!(matches!(cache.why(&library.part()).unwrap().unwrap().hold, Hold::Pin(pin) if pin.starts_with("@api@")));
    let refused = cache.unpin("@api@4 x86_64-linux", None, &with_scopes("pin")).unwrap_err();
    assert!(refused.message.contains("narval release"), "{refused}");
    let of = |which: &str, system: Option<&str>| {
        let system: Option<ReleaseSystem> = system.map(|system| system.parse().unwrap());
        let found = cache.find_release(&name("api"), &which.parse().unwrap(), system.as_ref()).unwrap();
        found.map(|found| found.release.revision)
    };
    assert_eq!(
        (of("latest", None), of("latest", Some("x86_64-linux")), of("latest", Some("i686-linux"))),
        (Some(5), Some(4), None)
    );
    assert_eq!((of("2", None), of("2", Some("aarch64-linux")), of("9", None)), (Some(2), None, None));
    let kept: Vec<(u64, bool, bool)> = cache
        .releases(Some(&name("api")), None)
        .unwrap()
        .releases
        .iter()
        .map(|of| (of.release.revision, of.is_pinned, of.is_kept))
        .collect();
    assert_eq!(kept, [(5, false, true), (4, false, true), (3, false, true), (2, false, false), (1, true, true)]);
    assert_eq!(
        cache.releases(None, None).unwrap().releases.iter().map(|of| of.release.revision).collect::<Vec<_>>(),
        [5, 4]
    );
    cache.pin_release(&name("api"), &Which::Revision(1), false, &with_scopes("pin")).unwrap();
    collect(cache);
    assert!(!exists(cache, &paths[0]) && exists(cache, &paths[2]));
    let gone = cache.pin_release(&name("api"), &Which::Revision(1), true, &with_scopes("pin")).unwrap_err();
    assert!(gone.kind == RejectionKind::Conflict && gone.message.contains("any more"), "{gone}");
}

#[test]
fn what_is_promoted_is_a_release_of_the_other_name() {
    let (fixture, keys) = signing();
    let cache = &fixture.cache;
    let paths: Vec<TestPath> = (0..4).map(|at| TestPath::new(&format!("api-{at}"), &[])).collect();
    paths.iter().for_each(|path| drop(path.push(cache).unwrap()));
    let mut first = new("api", "x86_64-linux", &paths[0]);
    (first.version, first.notes) = (Some("1.4.2".parse().unwrap()), BTreeMap::from([("git".into(), "0123".into())]));
    cache.release(&first, &with_scopes("release:api")).unwrap();
    paths[1..].iter().for_each(|path| drop(released(cache, "api", path)));
    let promote = |which: &str, to: &str| {
        cache.promote(
            &name("api"),
            &which.parse().unwrap(),
            &name(to),
            &Promotion::default(),
            &with_scopes(&format!("release:{to}")),
        )
    };
    let prod = promote("1.4.2", "prod").unwrap();
    assert_eq!((prod.revision, prod.promoted_from.clone()), (1, Some((name("api"), 1))));
    assert_eq!((prod.version.as_ref().unwrap().as_str(), &*prod.notes["git"]), ("1.4.2", "0123"));
    assert!(prod.find_valid(&keys).is_some());
    // What was promoted stays, however many releases come after the one that it was promoted from.
    collect(cache);
    assert_eq!(paths.iter().map(|path| exists(cache, path)).collect::<Vec<_>>(), [true, false, true, true]);
    assert_eq!(promote("4", "prod").unwrap().revision, 2);
    // Back, by a newer revision.
    assert_eq!(promote("3", "api").unwrap().revision, 5);
    assert!(promote("2", "prod").unwrap_err().message.contains("push it first"), "its path is gone");
    assert_eq!(promote("7", "prod").unwrap_err().kind, RejectionKind::NotFound);
}

/// A release for some machines is the newest one for them alone, and the one for all keeps its paths meanwhile.
#[test]
fn a_release_for_some_machines() {
    let (fixture, keys) = signing();
    let cache = &fixture.cache;
    let paths: Vec<TestPath> = (0..4).map(|at| TestPath::new(&format!("api-{at}"), &[])).collect();
    for path in &paths {
        path.push(cache).unwrap();
        released(cache, "api", path);
    }
    let promote = |which: u64, percent: u8| {
        let how = Promotion { percent: Some(percent), key: None };
        cache.promote(&name("api"), &Which::Revision(which), &name("prod"), &how, &with_scopes("release:prod"))
    };
    let newest = |share: u8| {
        let found = cache.find_release_for(share, &name("prod"), &Which::Latest, None).unwrap();
        found.map(|found| found.release.revision)
    };
    assert_eq!(promote(1, 10).unwrap().percent, Some(10));
    assert_eq!((newest(9), newest(10), newest(SHARE_OF_ALL)), (Some(1), None, None));
    let whole = promote(1, 100).unwrap();
    assert!(whole.percent.is_none() && whole.find_valid(&keys).is_some());
    // 10, 50, 100: each step is for all that had the one before.
    assert_eq!(promote(3, 10).unwrap().revision, 3);
    assert_eq!((newest(0), newest(9), newest(10), newest(99)), (Some(3), Some(3), Some(2), Some(2)));
    assert_eq!(promote(3, 50).unwrap().revision, 4);
    // Another one for fewer machines takes none back to what they had.
    let some = promote(4, 20).unwrap();
    assert!(some.revision == 5 && some.find_valid(&keys).is_some());
    assert_eq!((newest(19), newest(20), newest(49), newest(50)), (Some(5), Some(4), Some(4), Some(2)));
    // Two are kept of each name, and what all other machines run.
    collect(cache);
    assert_eq!(paths.iter().map(|path| exists(cache, path)).collect::<Vec<_>>(), [true, false, true, true]);
    let listed = cache.releases(None, None).unwrap().releases;
    let listed: Vec<String> = listed.iter().map(|of| of.release.selector().to_string()).collect();
    assert_eq!(listed, ["@api@4", "@prod@5", "@prod@4", "@prod@2"]);
    let forget = |revision| cache.forget_release(&name("prod"), Some(revision), &with_scopes("delete"));
    for revision in [2, 4, 5] {
        assert_eq!(forget(revision).unwrap_err().kind, RejectionKind::Conflict, "some machines run {revision}");
    }
    forget(3).unwrap();
    // By its revision it is found whomever it is for.
    assert!(cache.find_release(&name("prod"), &Which::Revision(5), None).unwrap().is_some());
    assert_eq!(promote(4, 100).unwrap().revision, 6);
    assert_eq!((newest(0), newest(99)), (Some(6), Some(6)));
    for bad in [0, 101, 255] {
        assert_eq!(promote(4, bad).unwrap_err().kind, RejectionKind::Malformed);
    }
}

/// A request whose answer was lost is sent again: the release is recorded once.
#[test]
fn a_request_that_is_sent_again_records_nothing_more() {
    let (fixture, _) = signing();
    let cache = &fixture.cache;
    let path = TestPath::new("api", &[]);
    path.push(cache).unwrap();
    let with = |of: &str, key: &str| {
        let new = NewRelease { key: Some(key.to_owned()), ..new(of, "x86_64-linux", &path) };
        cache.release(&new, &with_scopes("release:*"))
    };
    let first = with("api", "a-1").unwrap();
    assert_eq!(with("api", "a-2").unwrap().revision, 2);
    assert_eq!(with("api", "a-1").unwrap(), first, "the same, with its signature");
    assert_eq!(with("web", "a-1").unwrap().revision, 1, "of another name");
    let how = Promotion { percent: None, key: Some("b".to_owned()) };
    for _ in 0..2 {
        let promoted = cache.promote(&name("api"), &Which::Latest, &name("prod"), &how, &with_scopes("release:prod"));
        assert_eq!(promoted.unwrap().revision, 1);
    }
    for bad in ["", "a b", &"a".repeat(65)] {
        assert_eq!(with("api", bad).unwrap_err().kind, RejectionKind::Malformed);
    }
    cache.forget_release(&name("api"), None, &with_scopes("delete")).unwrap();
    assert_eq!(with("api", "a-1").unwrap().revision, 3, "what was forgotten is recorded again");
}

#[test]
fn revisions_are_not_used_again() {
    let (fixture, _) = signing();
    let cache = &fixture.cache;
    let path = TestPath::new("api", &[]);
    path.push(cache).unwrap();
    (0..3).for_each(|_| drop(released(cache, "api", &path)));
    let forget = |revision| cache.forget_release(&name("api"), revision, &with_scopes("delete"));
    assert_eq!(forget(Some(3)).unwrap_err().kind, RejectionKind::Conflict);
    forget(Some(2)).unwrap();
    assert_eq!(forget(Some(2)).unwrap_err().kind, RejectionKind::NotFound);
    forget(None).unwrap();
    assert!(cache.releases(None, None).unwrap().releases.is_empty() && forget(None).is_err());
    assert!(cache.pins().unwrap().is_empty(), "nothing is kept for it");
    assert_eq!(released(cache, "api", &path).revision, 4);
}

#[test]
fn who_may_record_what() {
    let (fixture, _) = signing();
    let cache = &fixture.cache;
    let path = TestPath::new("api", &[]);
    let refused =
        |of: &str, scopes: &str| cache.release(&new(of, "x86_64-linux", &path), &with_scopes(scopes)).unwrap_err();
    assert!(refused("api", "release:*").message.contains("push it first"), "only what is visible is released");
    path.push(cache).unwrap();
    for scopes in ["pull,push,sign,pin,delete,replace", "release:web,release:ap?-*"] {
        let rejection = refused("api", scopes);
        assert_eq!(rejection.kind, RejectionKind::Forbidden);
        assert!(rejection.message.contains("--add-scope release:api"), "{rejection}");
    }
    let release = cache.release(&new("api", "x86_64-linux", &path), &with_scopes("release:api")).unwrap();
    // Another name is moved by whoever may release that one.
    let promoted =
        cache.promote(&name("api"), &Which::Latest, &name("prod"), &Promotion::default(), &with_scopes("release:api"));
    assert_eq!(promoted.unwrap_err().kind, RejectionKind::Forbidden);
    let which = Which::Revision(release.revision);
    for refused in [
        cache.pin_release(&name("api"), &which, true, &with_scopes("push,release:*")).map(drop),
        cache.forget_release(&name("api"), None, &with_scopes("push,pin,release:*")),
    ] {
        assert_eq!(refused.unwrap_err().kind, RejectionKind::Forbidden);
    }
    cache.set_sign_keys(Vec::new());
    let rejection = refused("api", "release:*");
    assert!(rejection.message.contains("has no key") && rejection.message.contains("sign-keys"), "{rejection}");
    assert!(cache.pin("@api", &path.part(), PinFor::default(), &with_scopes("pin")).is_err());
}

/// Both are recorded, in one order, by several threads and openings of one folder.
#[test]
fn releases_of_one_name_at_once() {
    let (fixture, _) = signing();
    let key = SecretKey::generate("cache-1").unwrap();
    let path = TestPath::new("api", &[]);
    path.push(&fixture.cache).unwrap();
    let others: Vec<Data> = (0..2).map(|_| fixture.folder.open()).collect();
    let revisions: Vec<u64> = std::thread::scope(|scope| {
        let record = |data: &Data| {
            let cache = data.cache(&CacheName::default()).unwrap().unwrap();
            cache.set_sign_keys(vec![key.clone()]);
            let path = &path;
            scope.spawn(move || (0..20).map(|_| released(&cache, "api", path).revision).collect::<Vec<_>>())
        };
        let threads: Vec<_> = others.iter().chain([&fixture.data, &fixture.data]).map(record).collect();
        threads
            .into_iter()
            .flat_map(|thread| {
                let own = thread.join().unwrap();
                assert!(own.is_sorted());
                own
            })
            .collect()
    });
    let mut sorted = revisions.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, (1..=80).collect::<Vec<_>>());
}

#[test]
fn exported_and_taken_back() {
    let (fixture, _) = signing();
    let path = TestPath::new("api", &[]);
    path.push(&fixture.cache).unwrap();
    (0..2).for_each(|_| drop(released(&fixture.cache, "api", &path)));
    let release = released(&fixture.cache, "api", &path);
    let saved = exported(&fixture.data);
    let (other, _) = signing();
    path.push(&other.cache).unwrap();
    other.data.import(&saved).unwrap();
    let found = other.cache.find_release(&name("api"), &Which::Latest, None).unwrap().unwrap();
    assert!(found.is_kept && found.release == release, "the same release, of the same cache");
    assert_eq!(released(&other.cache, "api", &path).revision, 4);
}

#[test]
fn more_releases_than_fit_a_page_are_exported() {
    let (fixture, _) = signing();
    let path = TestPath::new("api", &[]);
    path.push(&fixture.cache).unwrap();
    let count = u64::from(RELEASES_LISTED_MAX) * 2 + 1;
    let first = released(&fixture.cache, "api", &path);
    let index = &fixture.data.shared().index;
    let record = index.find_release(fixture.cache.id(), "api", None, (None, None), 0).unwrap().unwrap();
    let id = index.id_of_releases(fixture.cache.id()).unwrap().unwrap();
    let more =
        (2..=count).map(|revision| ReleaseRecord { revision, hold: format!("@api@{revision}"), ..record.clone() });
    index.restore_releases(fixture.cache.id(), id, more.collect()).unwrap();
    let saved = exported(&fixture.data);
    assert_eq!(saved.matches(r#""revision": "#).count() as u64, count);
    let (other, _) = signing();
    other.data.import(&saved).unwrap();
    assert_eq!(exported(&other.data).matches(r#""revision": "#).count() as u64, count);
    assert_eq!(other.cache.find_release(&name("api"), &Which::Revision(1), None).unwrap().unwrap().release, first);
    // A writer that fails ends it.
    assert!(fixture.data.export(&mut &mut [0; 1000][..]).is_err());
}
