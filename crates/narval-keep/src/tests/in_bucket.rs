//! What is different in a bucket: lost and damaged objects, uploads in parts, one object for each NAR, narinfos that are published later.

use narval_files::Work;
use std::fs;
use std::io::Read;
use std::time::Duration;

use super::*;
use narval_s3::Objects;

fn in_bucket() -> Option<Fixture> {
    let fixture = Fixture::new();
    fixture.folder.is_in_bucket().then_some(fixture)
}

fn objects(fixture: &Fixture) -> Objects {
    Objects::new(&fixture.folder.address().parse().unwrap()).unwrap()
}

fn info(cache: &Cache, path: &TestPath) -> NarInfo {
    NarInfo::parse(&cache.narinfo(&path.part()).unwrap().unwrap(), &StoreDir::default()).unwrap()
}

/// Contents that do not compress.
fn noise(len: usize) -> Vec<u8> {
    let (mut contents, mut digest) = (Vec::new(), Sha256::of(b"noise"));
    while contents.len() < len {
        digest = Sha256::of(digest.as_bytes());
        contents.extend_from_slice(digest.as_bytes());
    }
    contents
}

#[test]
fn a_lost_object_is_noticed_on_read_and_can_be_pushed_again() {
    let Some(fixture) = in_bucket() else { return };
    let (cache, path) = (&fixture.cache, TestPath::new("a", &[]));
    path.push(cache).unwrap();
    let name = path.file_name(Compression::Zstd);
    fs::remove_file(object_of(cache, &name)).unwrap();
    assert!(cache.nar_file(&name).unwrap().is_none());
    assert_eq!(cache.narinfo(&path.part()).unwrap(), None);
    assert_eq!(cache.missing(&[path.part()], None).unwrap(), [path.part()]);
    assert!(!folder_of(cache).join(format!("{}.narinfo", path.part())).exists(), "nobody reads it without its NAR");
    assert_eq!(path.push(cache).unwrap().outcome, Outcome::Added);
    assert_eq!(read_all(cache.nar_file(&name).unwrap().unwrap().file), path.file(Compression::Zstd));
}

#[test]
fn a_damaged_object_is_never_served() {
    let Some(fixture) = in_bucket() else { return };
    let (cache, path) = (&fixture.cache, TestPath::with_contents("a", &[], &noise(600_000)));
    path.push(cache).unwrap();
    let name = path.file_name(Compression::Zstd);
    let object = object_of(cache, &name);
    let good = fs::read(&object).unwrap();
    let mut bad = good.clone();
    bad[300_000] ^= 1;
    fs::write(&object, &bad).unwrap();
    // Those who follow are cut off before the last byte.
    if let Ok(Some((head, NarBytes::Growing(growing)))) = cache.nar(&name, Redirect::Off) {
        while growing.progress().end.is_none() {
            std::thread::yield_now();
        }
        let progress = growing.progress();
        assert!(matches!(progress.end, Some(narval_files::FillEnd::Failed(_))));
        assert!(progress.readable < head.len);
    }
    // It is fetched once more, and then not for a minute.
    let until = std::time::Instant::now() + Duration::from_secs(60);
    while cache.nar_file(&name).unwrap_err().message.is_empty() && std::time::Instant::now() < until {}
    assert_eq!(cache.nar_file(&name).unwrap_err().kind, RejectionKind::Failed);
    assert!(cache.narinfo(&path.part()).unwrap().is_some(), "it is repaired by fsck, or by another push");
    let look = FsckOptions { contents: true, repair: false };
    let repair = FsckOptions { contents: true, repair: true };
    assert_eq!(fixture.data.fsck(look, Work::unwatched()).unwrap().problems.len(), 1);
    fixture.data.fsck(repair, Work::unwatched()).unwrap();
    assert_eq!(fixture.data.fsck(look, Work::unwatched()).unwrap().problems, Vec::<String>::new());
    assert_eq!(cache.narinfo(&path.part()).unwrap(), None);
    path.push(cache).unwrap();
    assert_eq!(fs::read(object_of(cache, &name)).unwrap(), good);
}

#[test]
fn a_narinfo_leaves_the_bucket_before_its_nar() {
    let Some(fixture) = in_bucket() else { return };
    let (cache, path, later) = (&fixture.cache, TestPath::new("a", &[]), now() + 30 * 24 * 60 * 60);
    path.push(cache).unwrap();
    let narinfo = folder_of(cache).join(format!("{}.narinfo", path.part()));
    let nar = object_of(cache, &path.file_name(Compression::Zstd));
    // A collection is killed after the path is gone from the index.
    let index = cache.index();
    let fence = index.begin_collection().unwrap().unwrap();
    assert_eq!(index.hide(fence, cache.id(), &[(path.part(), later)], later).unwrap(), [path.part()]);
    index.end_collection(fence, None).unwrap();
    assert!(narinfo.exists() && nar.exists());
    let options = CollectOptions { now: Some(later + 60 * 60), grace: 0, dry_run: false, work: Work::unwatched() };
    assert_eq!(cache.collect(&options, &Grant::administrator("test")).unwrap().files, 1);
    assert!(!nar.exists());
    assert!(!narinfo.exists(), "whoever reads it from the bucket would get no NAR");
}

/// A body that looks at the bucket while it is read.
struct Watched<'a> {
    rest: &'a [u8],
    look: &'a mut dyn FnMut(usize),
}

impl Read for Watched<'_> {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        (self.look)(self.rest.len());
        self.rest.read(out)
    }
}

#[test]
fn an_upload_in_parts_is_invisible_until_it_is_verified() {
    let Some(fixture) = in_bucket() else { return };
    let (cache, path) = (&fixture.cache, TestPath::with_contents("a", &[], &noise(30 << 20)));
    let name = path.file_name(Compression::None);
    let exists = || object_of(cache, &name).exists();
    let store = objects(&fixture);
    for is_good in [false, true] {
        let mut sent = path.nar.clone();
        if !is_good {
            // At its end, when most of it is in the bucket already.
            *sent.last_mut().unwrap() ^= 1;
        }
        let Begin::Receive(upload) = cache.begin_nar(&name, Some(sent.len() as u64), &pusher()).unwrap() else {
            panic!()
        };
        let mut begun = false;
        let mut look = |rest: usize| {
            assert!(!exists());
            if rest < 2 << 20 && !begun {
                begun = true;
                assert_eq!(store.unfinished().unwrap().len(), 1, "it is sent while it arrives");
            }
        };
        let result = upload.receive(&mut Watched { rest: &sent, look: &mut look });
        assert!(begun);
        assert_eq!(result.is_ok(), is_good, "{result:?}");
        assert_eq!(exists(), is_good);
        assert_eq!(store.unfinished().unwrap(), [], "it is completed or dropped");
        assert_eq!(cache.nar_head(&name).unwrap().is_some(), is_good);
    }
    cache.commit_narinfos(&[path.narinfo(Compression::None)], &pusher()).unwrap();
    assert_eq!(Sha256::of(&read_all(cache.nar_file(&name).unwrap().unwrap().file)), path.info.nar_hash);
}

#[test]
fn abandoned_multipart_uploads_are_aborted() {
    let Some(fixture) = in_bucket() else { return };
    let store = objects(&fixture);
    let url = store.object("nar/x").unwrap();
    store.storing(&url).begin().unwrap();
    let storage = fixture.cache.storage();
    assert_eq!(storage.end_unfinished(now() - 3600).unwrap(), 0, "it may be on its way");
    assert_eq!(store.unfinished().unwrap().len(), 1);
    assert_eq!(storage.end_unfinished(now() + 3600).unwrap(), 1);
    assert_eq!(store.unfinished().unwrap(), []);
}

#[test]
fn each_nar_is_one_object_named_by_its_narinfos() {
    let Some(fixture) = in_bucket() else { return };
    let (cache, path) = (&fixture.cache, TestPath::with_contents("a", &[], &b"contents ".repeat(10_000)));
    path.push(cache).unwrap();
    let again = zstd::encode_all(&path.nar[..], 19).unwrap();
    let alias = NarFileName::new(Sha256::of(&again), Compression::Zstd).to_string();
    let upload = |cache: &Cache| match cache.begin_nar(&alias, None, &pusher()).unwrap() {
        Begin::Receive(upload) => Some(upload.receive(&mut &again[..]).unwrap()),
        Begin::Known(_) => None,
    };
    assert_eq!(upload(cache).unwrap().file_hash, Sha256::of(&path.file(Compression::Zstd)), "the first one is kept");
    assert!(upload(cache).is_none(), "it is known by this name, too");
    assert_eq!(fixture.files("caches/default/nar"), [path.file_name(Compression::Zstd)]);
    assert_eq!(zstd::decode_all(cache.nar_file(&alias).unwrap().unwrap().file).unwrap(), path.nar);
    // Another path with the same NAR, whose client names what it has uploaded.
    let twin = TestPath::with_contents("twin", &[], &b"contents ".repeat(10_000));
    let mut claimed = NarInfo::new(&twin.info, format!("nar/{alias}"), Compression::Zstd);
    claimed.file_size = Some(again.len() as u64);
    let text = claimed.render(&StoreDir::default()).into_bytes();
    cache.commit_narinfos(&[(twin.part(), text)], &pusher()).unwrap();
    assert_eq!(plain(&info(cache, &twin).url), format!("nar/{}", path.file_name(Compression::Zstd)));
    // Another cache has its own objects.
    let other = fixture.data.create_cache(&"other".parse().unwrap(), &CacheSettings::default()).unwrap();
    assert!(other.nar_file(&alias).unwrap().is_none());
    upload(&other).unwrap();
    assert_eq!(zstd::decode_all(other.nar_file(&alias).unwrap().unwrap().file).unwrap(), path.nar);
    assert!(!object_of(&other, &path.file_name(Compression::Zstd)).exists());
    assert!(object_of(&other, &alias).exists());
    let report = fixture.data.fsck(FsckOptions { contents: true, repair: false }, Work::unwatched()).unwrap();
    assert_eq!(report.problems, Vec::<String>::new());
}

/// A node that dies after its commit leaves narinfos to publish.
#[test]
fn other_nodes_finish_what_a_dead_node_began() {
    let Some(fixture) = in_bucket() else { return };
    let (cache, path) = (&fixture.cache, TestPath::new("a", &[]));
    path.push(cache).unwrap();
    assert_eq!(cache.index().pending().unwrap(), [], "who publishes what it has changed leaves nothing");
    let narinfo = folder_of(cache).join(format!("{}.narinfo", path.part()));
    fs::remove_file(&narinfo).unwrap();
    fixture.folder.sql(&format!(
        "insert into pending (cache, name) select id, '{}' from caches where name = 'default'",
        path.part()
    ));
    // Another process opens it.
    let other = fixture.folder.open();
    assert_eq!(fs::read(&narinfo).unwrap(), *cache.narinfo(&path.part()).unwrap().unwrap());
    // It may still be on its way from the first one: it is looked at again later.
    assert_eq!(other.cache(&CacheName::default()).unwrap().unwrap().index().pending().unwrap().len(), 1);
}

#[test]
fn the_disk_cache_answers_while_the_bucket_is_unreachable() {
    let Some(Fixture { folder, data, cache }) = in_bucket() else { return };
    drop((cache, data));
    let data = Data::open(folder.place_with_cache(1 << 30), folder.options()).unwrap();
    let cache = data.cache(&CacheName::default()).unwrap().unwrap();
    let (kept, other) = (TestPath::new("kept", &[]), TestPath::new("other", &[]));
    for path in [&kept, &other] {
        path.push(&cache).unwrap();
    }
    let name = kept.file_name(Compression::Zstd);
    cache.nar_file(&name).unwrap().unwrap();
    // As if it were away: an object that is gone is asked for nowhere.
    let object = object_of(&cache, &name);
    let own = object.file_name().unwrap().to_str().unwrap();
    let until = std::time::Instant::now() + Duration::from_secs(60);
    while !folder.path().join("nar").join(format!("default.{own}")).exists() && std::time::Instant::now() < until {
        std::thread::sleep(Duration::from_millis(5));
    }
    fs::remove_file(&object).unwrap();
    assert_eq!(read_all(cache.nar_file(&name).unwrap().unwrap().file), kept.file(Compression::Zstd));
}

#[test]
fn an_index_belongs_to_one_bucket() {
    let Some(fixture) = in_bucket() else { return };
    let elsewhere = tempfile::tempdir().unwrap();
    let url = fixture.folder.address().parse().unwrap();
    let place = StorageLocation::Bucket { url, folder: elsewhere.path().to_owned(), cache_size: None };
    let error = Data::open(&place, DataOptions::default()).unwrap_err().to_string();
    assert!(error.contains("its index is not in the local folder"), "{error}");
    assert!(!elsewhere.path().join("index.sqlite").exists());
}

/// An index in PostgreSQL that has caches is never taken for that of a bucket without an id: the address of the bucket may be wrong.
#[test]
fn an_index_is_taken_whose_process_was_killed_before_the_bucket_had_its_id() {
    let Some(fixture) = in_bucket() else { return };
    if fixture.folder.database().is_some() {
        return;
    }
    let path = TestPath::new("a", &[]);
    path.push(&fixture.cache).unwrap();
    fs::remove_file(folder_of(&fixture.cache).join("_narval/index.id")).unwrap();
    let fixture = fixture.reopen();
    assert!(fixture.cache.narinfo(&path.part()).unwrap().is_some());
}

/// Two servers with an index of their own each start on an empty bucket at the same moment.
#[test]
fn one_of_two_servers_that_start_at_once_creates_the_index() {
    /// So many tries side by side, one after another.
    const LANES: u32 = 10;
    const TRIES: u32 = 10;
    let fixture = Fixture::new();
    if !fixture.folder.is_in_bucket() || fixture.folder.database().is_some() {
        return;
    }
    let server = s3::S3Server::shared().unwrap();
    let start = |number: u32| {
        let url = server.bucket(&format!("at-once-{number}"));
        let starts = || {
            let folder = tempfile::tempdir().unwrap();
            let url = url.parse().unwrap();
            let place = StorageLocation::Bucket { url, folder: folder.path().to_owned(), cache_size: None };
            Data::open(place, DataOptions::default()).map(|data| (folder, data))
        };
        let both = std::thread::scope(|scope| {
            let both = [(); 2].map(|()| scope.spawn(starts));
            both.map(|thread| thread.join().unwrap())
        });
        let refused: Vec<String> =
            both.iter().filter_map(|started| Some(started.as_ref().err()?.to_string())).collect();
        assert_eq!(refused.len(), 1, "{number}: {refused:?}");
        // The one that has started can start again.
        let [(folder, data)] = <[_; 1]>::try_from(both.into_iter().flatten().collect::<Vec<_>>()).unwrap();
        drop(data);
        let url = url.parse().unwrap();
        let place = StorageLocation::Bucket { url, folder: folder.path().to_owned(), cache_size: None };
        Data::open(place, DataOptions::default()).unwrap();
    };
    let starts = |lane: u32| (0..TRIES).for_each(|number| start(lane * TRIES + number));
    std::thread::scope(|scope| (0..LANES).for_each(|lane| drop(scope.spawn(move || starts(lane)))));
}
