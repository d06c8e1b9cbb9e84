//! Recompressing NARs while they are served.

use super::super::*;
use narval_files::Work;

const DAY: u64 = 24 * 60 * 60;

fn info(cache: &Cache, path: &TestPath) -> NarInfo {
    NarInfo::parse(&cache.narinfo(&path.part()).unwrap().unwrap(), &StoreDir::default()).unwrap()
}

fn nar_of_path(cache: &Cache, path: &TestPath) -> Vec<u8> {
    let info = info(cache, path);
    let file = cache.nar_file(info.url.strip_prefix("nar/").unwrap()).unwrap().unwrap();
    let bytes = read_all(file.file);
    assert_eq!(info.file_size, Some(bytes.len() as u64));
    assert_eq!(info.file_hash, Some(Sha256::of(&bytes).into()));
    read_all(narval_codec::decode::Decoder::new(&info.compression, &bytes[..], 1).unwrap())
}

fn push_as(cache: &Cache, path: &TestPath, compression: Compression) -> Outcome {
    path.send(cache, compression).unwrap();
    cache.commit_narinfos(&[path.narinfo(compression)], &pusher()).unwrap().remove(0).outcome
}

fn check(fixture: &Fixture) {
    let report = fixture.data.fsck(FsckOptions { contents: true, repair: false }, Work::unwatched()).unwrap();
    assert_eq!(report.problems, Vec::<String>::new());
}

#[test]
fn everything_becomes_zstd_and_old_names_keep_their_bytes() {
    let fixture = Fixture::new();
    let cache = &fixture.cache;
    let kinds = [Compression::Xz, Compression::None, Compression::Bzip2, Compression::Zstd];
    let paths: Vec<TestPath> =
        (0..4_u8).map(|at| TestPath::with_contents(&format!("path-{at}"), &[], &[at; 50_000])).collect();
    // Two paths with one NAR.
    let twin = TestPath::with_contents("twin", &[], &[0; 50_000]);
    for (path, kind) in paths.iter().zip(kinds) {
        push_as(cache, path, kind);
    }
    push_as(cache, &twin, Compression::Xz);
    let before: Vec<NarInfo> = paths.iter().map(|path| info(cache, path)).collect();
    let old_use = now() - 40 * DAY;
    cache.record_uses();
    fixture.folder.sql(&format!("update paths set used = {old_use}"));
    let stamp = cache.stamp();
    let recompress = || cache.recompress(Work::unwatched()).unwrap().done;
    assert_eq!((recompress(), recompress()), (3, 0));
    assert_ne!(cache.stamp(), stamp, "what is remembered is asked for again");
    assert!(cache.list().unwrap().iter().all(|listed| listed.used == old_use), "it is no use of a path");
    for (path, before) in paths.iter().zip(&before) {
        let after = info(cache, path);
        assert_eq!((after.compression, nar_of_path(cache, path)), (Compression::Zstd, path.nar.clone()));
        let same = |info: &NarInfo| (info.path.clone(), info.nar_hash, info.nar_size, info.signatures.clone());
        assert_eq!(same(&after), same(before));
        // A client that remembers the old narinfo gets what that speaks of.
        let old = cache.nar_file(before.url.strip_prefix("nar/").unwrap()).unwrap().unwrap();
        assert_eq!(Some(Sha256::of(&read_all(old.file)).into()), before.file_hash);
        let file = folder_of(cache).join(format!("{}.narinfo", path.part()));
        assert_eq!(std::fs::read(file).unwrap(), &*cache.narinfo(&path.part()).unwrap().unwrap());
    }
    assert_eq!(info(cache, &twin).url, info(cache, &paths[0]).url);
    check(&fixture);
    // Pushed again as it was before, it stays as it is.
    assert_eq!(push_as(cache, &paths[0], Compression::Xz), Outcome::Unchanged);
    assert_eq!(info(cache, &paths[0]).compression, Compression::Zstd);
    cache.record_uses();
    let collect = |days: u64| {
        let options = CollectOptions { now: Some(now() + days * DAY), ..CollectOptions::default() };
        cache.collect(&options, &pusher()).unwrap().files
    };
    assert_eq!(collect(29), 0);
    assert_eq!((collect(31), collect(32)), (3, 0));
    for (path, before) in paths.iter().zip(&before) {
        assert_eq!(nar_of_path(cache, path), path.nar);
        let exists = cache.nar_file(before.url.strip_prefix("nar/").unwrap()).unwrap().is_some();
        assert_eq!(exists, before.compression == Compression::Zstd);
    }
    check(&fixture);
}

#[test]
fn a_damaged_file_is_not_recompressed() {
    let fixture = Fixture::new();
    let cache = &fixture.cache;
    let path = TestPath::with_contents("a", &[], &[7; 10_000]);
    push_as(cache, &path, Compression::None);
    let before = cache.narinfo(&path.part()).unwrap();
    let file = object_of(cache, &path.file_name(Compression::None));
    let mut damaged = path.nar.clone();
    damaged[5_000] ^= 1;
    std::fs::write(file, damaged).unwrap();
    assert_eq!(cache.recompress(Work::unwatched()).unwrap().done, 0);
    assert_eq!(cache.narinfo(&path.part()).unwrap(), before);
    assert_eq!(cache.usage().unwrap().files, 1);
    assert_eq!(std::fs::read_dir(fixture.folder.path().join("incoming")).unwrap().count(), 0);
}
