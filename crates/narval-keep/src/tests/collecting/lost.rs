//! NARs that are not where they should be, and object stores that only say so.

use narval_files::Work;
use std::fs;

use super::super::s3::S3Server;
use super::super::s3::proxy::{Fault, Proxy};
use super::super::*;

/// What is answered instead of `NoSuchKey`.
const NOT_FOUND: [&str; 3] = [
    "<html><body>404 Not Found</body></html>",
    "",
    "<Error><Code>NoSuchBucket</Code><Message>The specified bucket does not exist</Message></Error>",
];

fn in_bucket() -> Option<Fixture> {
    let fixture = Fixture::new();
    fixture.folder.is_in_bucket().then_some(fixture)
}

/// The same cache as another node sees it, through a proxy.
fn behind(proxy: &Proxy, fixture: &Fixture) -> (tempfile::TempDir, Data, Cache) {
    let own = format!(":{}", S3Server::shared().unwrap().port);
    let address = fixture.folder.address().replace(&own, &format!(":{}", proxy.port));
    assert_ne!(address, fixture.folder.address());
    let local = tempfile::tempdir().unwrap();
    let mut options = fixture.folder.options();
    if options.database.is_none() {
        // Its index is in the folder.
        for file in ["index.sqlite", "index.sqlite-wal", "bucket.id"] {
            fs::copy(fixture.folder.path().join(file), local.path().join(file)).ok();
        }
    }
    options.must_exist = true;
    let place =
        StorageLocation::Bucket { url: address.parse().unwrap(), folder: local.path().to_owned(), cache_size: None };
    let data = Data::open(place, options).unwrap();
    let cache = data.cache(&CacheName::default()).unwrap().unwrap();
    (local, data, cache)
}

fn are_there(cache: &Cache, paths: &[TestPath]) {
    for path in paths {
        assert!(cache.narinfo(&path.part()).unwrap().is_some(), "{}", path.info.path);
        let nar = cache.nar_file(&path.file_name(Compression::Zstd)).unwrap().unwrap();
        assert_eq!(read_all(nar.file), path.file(Compression::Zstd));
    }
}

fn closure() -> Vec<TestPath> {
    let mut paths = vec![TestPath::new("path-0", &[])];
    for number in 1..5 {
        let path = TestPath::new(&format!("path-{number}"), &[paths.last().unwrap()]);
        paths.push(path);
    }
    paths
}

#[test]
fn an_answer_404_that_does_not_name_the_object_removes_nothing() {
    let Some(fixture) = in_bucket() else { return };
    let paths = closure();
    for path in &paths {
        path.push(&fixture.cache).unwrap();
    }
    for body in NOT_FOUND {
        let proxy = Proxy::to(S3Server::shared().unwrap().port);
        let (_local, data, cache) = behind(&proxy, &fixture);
        proxy.set(move |_, _| Fault::NotFound(body));
        for path in &paths {
            let rejection = cache.nar_file(&path.file_name(Compression::Zstd)).unwrap_err();
            assert_eq!(rejection.kind, RejectionKind::Unavailable, "{body}: {rejection}");
        }
        // After three failures, nobody is asked for a while.
        proxy.take_requests();
        cache.nar_file(&paths[0].file_name(Compression::Zstd)).unwrap_err();
        assert_eq!(proxy.take_requests(), Vec::<String>::new(), "{body}");
        for path in &paths {
            assert!(cache.narinfo(&path.part()).unwrap().is_some(), "{body}");
        }
        drop((cache, data));
        are_there(&fixture.cache, &paths);
    }
    assert_eq!(fixture.data.fsck(FsckOptions::default(), Work::unwatched()).unwrap().problems, Vec::<String>::new());
}

/// A `HEAD` has no body that says what is missing, and a `DELETE` that reaches another server has removed nothing.
#[test]
fn an_answer_404_to_other_requests_is_an_error() {
    let Some(fixture) = in_bucket() else { return };
    let path = TestPath::new("path", &[]);
    path.push(&fixture.cache).unwrap();
    let proxy = Proxy::to(S3Server::shared().unwrap().port);
    let (_local, _data, cache) = behind(&proxy, &fixture);
    let nar = cache.index().file(cache.id(), &path.file_name(Compression::Zstd));
    let (name, nar) = nar.unwrap().unwrap();
    proxy.set(|method, _| if method == "HEAD" { Fault::NotFound("") } else { Fault::None });
    assert!(cache.files().check_nar(&name, &nar).unwrap(), "it is asked for again");
    proxy.set(|method, _| if method == "DELETE" { Fault::NotFound(NOT_FOUND[0]) } else { Fault::None });
    assert!(cache.files().remove(&format!("{}.narinfo", path.part())).is_err());
}

#[test]
fn an_empty_bucket_removes_nothing() {
    let Some(fixture) = in_bucket() else { return };
    let paths = closure();
    for path in &paths {
        path.push(&fixture.cache).unwrap();
    }
    let (place, aside) = (fixture.folder.stored("caches/default"), fixture.folder.path().join("aside"));
    fs::rename(&place, &aside).unwrap();
    fs::create_dir(&place).unwrap();
    for path in &paths {
        let rejection = fixture.cache.nar_file(&path.file_name(Compression::Zstd)).unwrap_err();
        assert_eq!(rejection.kind, RejectionKind::Unavailable, "{rejection}");
    }
    fs::remove_dir_all(&place).unwrap();
    fs::rename(&aside, &place).unwrap();
    // Nobody is asked for a while after failures.
    let fixture = fixture.reopen();
    are_there(&fixture.cache, &paths);
}

/// Of many NARs that are lost, readers have a few removed; all of them come back when their objects do.
#[test]
fn paths_whose_nars_come_back_are_restored() {
    let Some(fixture) = in_bucket() else { return };
    let mut paths: Vec<TestPath> = (0..7).map(|number| TestPath::new(&format!("lost-{number}"), &[])).collect();
    paths.push(TestPath::new("referrer", &[&paths[0]]));
    for path in &paths {
        path.push(&fixture.cache).unwrap();
    }
    let narinfos: Vec<_> = paths.iter().map(|path| fixture.cache.narinfo(&path.part()).unwrap().unwrap()).collect();
    let (nars, aside) = (fixture.folder.stored("caches/default/nar"), fixture.folder.path().join("aside"));
    fs::rename(&nars, &aside).unwrap();
    // A referrer first: it cannot come back before its reference.
    let read = |path: &TestPath| fixture.cache.nar_file(&path.file_name(Compression::Zstd));
    let outcomes: Vec<_> = paths.iter().rev().map(|path| read(path).map(|file| file.is_some())).collect();
    let removed = outcomes.iter().filter(|outcome| matches!(outcome, Ok(false))).count();
    let refused = outcomes
        .iter()
        .filter(|outcome| matches!(outcome, Err(rejection) if rejection.kind == RejectionKind::Unavailable));
    assert_eq!((removed, refused.count()), (5, 3), "{outcomes:?}");
    assert_eq!(fixture.cache.list().unwrap().len(), 3);
    fixture.data.restore_lost();
    assert_eq!(fixture.cache.list().unwrap().len(), 3, "they are not there");
    fs::rename(&aside, &nars).unwrap();
    fixture.data.restore_lost();
    are_there(&fixture.cache, &paths);
    let after: Vec<_> = paths.iter().map(|path| fixture.cache.narinfo(&path.part()).unwrap().unwrap()).collect();
    assert_eq!(narinfos, after);
    assert_eq!(fixture.cache.index().lost(fixture.cache.id()).unwrap(), []);
    assert_eq!(fixture.data.fsck(FsckOptions::default(), Work::unwatched()).unwrap().problems, Vec::<String>::new());
}

#[test]
fn a_server_over_a_store_that_takes_no_sha256_keeps_what_is_pushed() {
    const REFUSED: &str = "<Error><Code>InvalidArgument</Code><Message>Unsupported header 'x-amz-checksum-sha256' received for this API call.</Message></Error>";
    let Some(fixture) = in_bucket() else { return };
    let proxy = Proxy::to(S3Server::shared().unwrap().port);
    proxy.set(|_, _| Fault::NoChecksums("400 Bad Request", REFUSED));
    let (_local, data, cache) = behind(&proxy, &fixture);
    let paths = closure();
    for path in &paths {
        path.push(&cache).unwrap();
    }
    are_there(&cache, &paths);
    assert_eq!(
        data.fsck(FsckOptions { contents: true, repair: false }, Work::unwatched()).unwrap().problems,
        Vec::<String>::new()
    );
    for path in &paths {
        assert!(fs::exists(folder_of(&fixture.cache).join(format!("{}.narinfo", path.part()))).unwrap());
    }
}
