//! Caches that are copied from a folder to a bucket and from a bucket to a folder.

use narval_files::Work;
use std::process::{Command, Stdio};
use std::time::Duration;

use super::super::collecting::retention::whole;
use super::super::*;
use crate::upkeep::Migrated;

/// Says to the test program that it copies, and where to.
const DESTINATION: &str = "NARVAL_TEST_DESTINATION";

/// The object store stays as long as this.
pub(super) type Server = Option<std::sync::Arc<s3::S3Server>>;

/// A place of the other kind, with its index in SQLite; `None` where there is no object store.
pub(super) fn other_kind(place: &Place, folder: &std::path::Path, prefix: &str) -> Option<(StorageLocation, Server)> {
    if place.is_in_bucket() {
        return Some((folder.into(), None));
    }
    let server = s3::S3Server::shared()?;
    narval_s3::ENVIRONMENT.get_or_init(|| server.environment());
    let address = server.bucket("migrated");
    let prefix = format!("migrated/{prefix}-{}", std::process::id());
    let prefix = format!("{prefix}-{}", place::is_on_postgres());
    let url = address.replacen("migrated", &prefix, 1).parse().unwrap();
    Some((StorageLocation::Bucket { url, folder: folder.to_owned(), cache_size: None }, Some(server)))
}

/// The address of such a place with its query, which is not shown; empty for a folder.
pub(super) fn address_of(place: &StorageLocation) -> String {
    let StorageLocation::Bucket { url, .. } = place else { return String::new() };
    let shared = s3::S3Server::shared().unwrap().bucket("migrated");
    format!("{url}?{}", shared.split_once('?').unwrap().1)
}

fn open(place: &StorageLocation) -> Data {
    Data::open(place, DataOptions::default()).unwrap()
}

fn migrate(from: &Data, to: &Data) -> Migrated {
    from.migrate_to(to, None, &Grant::administrator("test"), Work::unwatched()).unwrap()
}

/// A path, its narinfo, and the bytes of its NAR.
pub(super) type Contents = (String, Vec<u8>, Vec<u8>);

/// All paths of a cache, with their narinfos and the bytes of their NARs.
fn contents(cache: &Cache) -> Vec<Contents> {
    let listed = cache.list().unwrap().into_iter();
    let path = listed.map(|listed| {
        let part = StorePath::parse(&listed.path).unwrap().hash_part();
        let narinfo = cache.narinfo(&part).unwrap().unwrap().to_vec();
        let info = NarInfo::parse(&narinfo, &StoreDir::default()).unwrap();
        let file = cache.nar_file(info.url.strip_prefix("nar/").unwrap()).unwrap().unwrap();
        (listed.path, plain(str::from_utf8(&narinfo).unwrap()).into_bytes(), read_all(file.file))
    });
    path.collect()
}

pub(super) fn all(data: &Data) -> Vec<(CacheName, Vec<Contents>)> {
    data.caches().unwrap().iter().map(|cache| (cache.name().clone(), contents(cache))).collect()
}

/// 150 paths, each of which refers to the ones before it in a tree, and one that refers to an upstream's.
pub(super) fn fill(cache: &Cache) -> Vec<TestPath> {
    let mut paths: Vec<TestPath> = Vec::new();
    for number in 0_usize..150 {
        let reference = (number > 0).then(|| paths[(number - 1) / 2].clone());
        paths.push(TestPath::new(&format!("path-{number}"), &reference.iter().collect::<Vec<_>>()));
    }
    for (number, path) in paths.iter().enumerate() {
        let compression = [Compression::Zstd, Compression::Xz, Compression::None][number % 3];
        path.send(cache, compression).unwrap();
        cache.commit_narinfos(&[path.narinfo(compression)], &pusher()).unwrap();
    }
    paths
}

pub(super) struct AnUpstream;

impl OtherSources for AnUpstream {
    fn contain(&self, _: &CacheName, paths: &[&StorePath]) -> Vec<bool> {
        vec![true; paths.len()]
    }

    fn shadowed(&self, _: &CacheName, paths: &[&StorePath]) -> Vec<Option<NarInfo>> {
        vec![None; paths.len()]
    }
}

#[test]
fn a_migration_copies_everything_there_and_back() {
    let settings = CacheSettings { public: false, quota: Some(1 << 30), ..CacheSettings::default() };
    let fixture = Fixture::with(&settings);
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let Some((there, _server)) = other_kind(&fixture.folder, folders[0].path(), "all") else { return };
    let (data, cache) = (&fixture.data, &fixture.cache);
    let paths = fill(cache);
    cache.set_other_sources(Some(std::sync::Arc::new(AnUpstream)));
    TestPath::new("wrapper", &[&TestPath::new("glibc-of-an-upstream", &[])]).push(cache).unwrap();
    // The same NAR in another encoding has two names.
    let twice = TestPath::with_contents("twice", &[], &b"twice".repeat(20_000));
    twice.push(cache).unwrap();
    let alias = zstd::encode_all(&twice.nar[..], 9).unwrap();
    let name = NarFileName::new(Sha256::of(&alias), Compression::Zstd).to_string();
    assert_ne!(name, twice.file_name(Compression::Zstd));
    let Begin::Receive(upload) = cache.begin_nar(&name, Some(alias.len() as u64), &pusher()).unwrap() else { panic!() };
    upload.receive(&mut &alias[..]).unwrap();
    // Another cache with one of the same NARs.
    let team = data.create_cache(&"team".parse().unwrap(), &CacheSettings::default()).unwrap();
    paths[0].push(&team).unwrap();
    let log = format!("{}-hello.drv", paths[0].part());
    for (kind, name) in [(SmallKind::Log, log.as_str()), (SmallKind::DebugInfo, "abcd"), (SmallKind::Other, "new/file")]
    {
        assert_eq!(cache.put_small(kind, name, &mut &b"small"[..], &pusher()).unwrap(), PutOutcome::Written);
    }
    let new_token = || NewToken {
        label: "ci".into(),
        scopes: "push".parse().unwrap(),
        caches: CachePatterns::all(),
        expires: None,
    };
    let (token, secret) = data.tokens().create(&new_token()).unwrap();
    data.tokens().revoke(&data.tokens().create(&new_token()).unwrap().0.id).unwrap();
    cache
        .pin("release", &paths[149].part(), PinFor { keep: Some(3), until: None }, &Grant::administrator("t"))
        .unwrap();

    let (before, saved) = (all(data), exported(data));
    let to = open(&there);
    let first = migrate(data, &to);
    assert_eq!((first.paths, first.present, first.files, first.tokens, first.pins), (153, 0, 3, 2, 1));
    assert_eq!((all(data), exported(data)), (before.clone(), saved.clone()), "the source is unchanged");
    assert_eq!(exported(&to), saved);
    assert_eq!(all(&to), before);
    let copied = to.cache(&CacheName::default()).unwrap().unwrap();
    assert_eq!(copied.settings(), cache.settings());
    assert!(copied.nar_file(&name).unwrap().is_some(), "clients may remember the other name");
    let look = FsckOptions { contents: true, repair: false };
    assert_eq!(to.fsck(look, Work::unwatched()).unwrap().problems, Vec::<String>::new());

    // Again: what is new, and what was revoked meanwhile.
    assert!(to.tokens().verify(secret.as_bytes()).unwrap().is_some());
    data.tokens().revoke(&token.id).unwrap();
    TestPath::new("later", &[&paths[3]]).push(cache).unwrap();
    let second = migrate(data, &to);
    assert_eq!((second.paths, second.present, second.nars, second.files, second.tokens), (1, 153, 1, 0, 0));
    assert!(to.tokens().verify(secret.as_bytes()).unwrap().is_none());
    assert_eq!(all(&to), all(data));

    // And back, into a folder. The token was used here.
    to.shared().record();
    let back = open(&folders[1].path().into());
    assert_eq!(migrate(&to, &back).paths, 154);
    assert_eq!((all(&back), exported(&back)), (all(data), exported(&to)));
    assert_eq!(back.fsck(look, Work::unwatched()).unwrap().problems, Vec::<String>::new());
    for (kind, name) in [(SmallKind::Log, log.as_str()), (SmallKind::DebugInfo, "abcd"), (SmallKind::Other, "new/file")]
    {
        let cache = back.cache(&CacheName::default()).unwrap().unwrap();
        assert_eq!(read_all(cache.small_file(kind, name).unwrap().unwrap().0), b"small");
    }
}

#[test]
fn a_damaged_nar_is_not_copied() {
    let fixture = Fixture::new();
    let folder = tempfile::tempdir().unwrap();
    let Some((there, _server)) = other_kind(&fixture.folder, folder.path(), "damaged") else { return };
    let path = TestPath::with_contents("a", &[], &b"contents".repeat(1000));
    path.push(&fixture.cache).unwrap();
    let file = object_of(&fixture.cache, &path.file_name(Compression::Zstd));
    let mut bytes = std::fs::read(&file).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&file, &bytes).unwrap();
    let to = open(&there);
    let error =
        fixture.data.migrate_to(&to, None, &Grant::administrator("test"), Work::unwatched()).unwrap_err().to_string();
    assert!(
        error.contains(path.info.path.base_name()) || error.contains(&path.file_name(Compression::Zstd)),
        "{error}"
    );
    assert!(to.cache(&CacheName::default()).unwrap().unwrap().list().unwrap().is_empty());
    assert!(fixture.cache.narinfo(&path.part()).unwrap().is_some(), "the source is unchanged");
}

/// Copies until it is killed.
#[test]
#[ignore = "the process that is killed"]
fn copies_until_it_is_killed() {
    let Ok(told) = std::env::var(DESTINATION) else { return };
    let [source, folder, url] = told.split('\n').collect::<Vec<_>>()[..] else { panic!("{told}") };
    let to = match url {
        "" => StorageLocation::Folder(folder.into()),
        url => StorageLocation::Bucket { url: url.parse().unwrap(), folder: folder.into(), cache_size: None },
    };
    migrate(&Place::told(source.as_ref()), &open(&to));
}

#[test]
fn a_killed_migration_resumes() {
    let fixture = Fixture::new();
    let folder = tempfile::tempdir().unwrap();
    let Some((there, _server)) = other_kind(&fixture.folder, folder.path(), "killed") else { return };
    fill(&fixture.cache);
    let url = address_of(&there);
    let before = all(&fixture.data);
    let mut partial = 0;
    for round in 0..6 {
        let mut command = Command::new(std::env::current_exe().unwrap());
        let name = format!("{}::copies_until_it_is_killed", module_path!().split_once("::").unwrap().1);
        command.args(["--exact", &name, "--ignored", "--test-threads=1"]).stdout(Stdio::null()).stderr(Stdio::null());
        if let Some(server) = s3::S3Server::shared() {
            command.envs(server.environment());
        }
        fixture.folder.tell(&mut command);
        command.env(DESTINATION, format!("{}\n{}\n{url}", fixture.folder.path().display(), folder.path().display()));
        let mut child = command.spawn().unwrap();
        std::thread::sleep(Duration::from_millis(100 + 120 * round));
        child.kill().unwrap();
        child.wait().unwrap();
        let to = open(&there);
        let Some(cache) = to.cache(&CacheName::default()).unwrap() else { continue };
        // What is visible is whole, with all references.
        whole(&cache);
        let paths = contents(&cache);
        assert!(paths.iter().all(|path| before[0].1.contains(path)));
        partial += usize::from((1..150).contains(&paths.len()));
    }
    let to = open(&there);
    migrate(&fixture.data, &to);
    assert_eq!(all(&to), before);
    assert_eq!(
        to.fsck(FsckOptions { contents: true, repair: false }, Work::unwatched()).unwrap().problems,
        Vec::<String>::new()
    );
    eprintln!("{partial} rounds ended in the middle");
}
