//! A dump of the database, and the files, are a backup.

use super::super::*;
use narval_files::Work;

#[test]
fn a_database_dump_and_the_files_are_a_backup() {
    let Fixture { folder, data, cache } = Fixture::new();
    let paths: Vec<TestPath> = (0..20).map(|number| TestPath::new(&format!("path-{number}"), &[])).collect();
    paths.iter().for_each(|path| drop(path.push(&cache).unwrap()));
    let root = TestPath::new("root", &paths.iter().collect::<Vec<_>>());
    root.push(&cache).unwrap();
    cache.pin("release", &root.part(), PinFor { keep: None, until: None }, &Grant::administrator("test")).unwrap();
    let log = format!("{}-hello.drv", root.part());
    cache.put_small(SmallKind::Log, &log, &mut &b"log"[..], &pusher()).unwrap();
    let new =
        NewToken { label: "ci".into(), scopes: "push".parse().unwrap(), caches: CachePatterns::all(), expires: None };
    let (_, secret) = data.tokens().create(&new).unwrap();
    // Only with the index in a database.
    let Some(dump) = folder.dump() else { return };
    let saved = exported(&data);
    // Pushed after the dump, and before the files are copied.
    let later = TestPath::new("later", &[&root]);
    later.push(&cache).unwrap();
    drop((cache, data));

    let restored = folder.restored(&dump);
    let data = restored.open();
    let cache = data.cache(&CacheName::default()).unwrap().unwrap();
    assert_eq!(exported(&data), saved);
    assert!(data.tokens().verify(secret.as_bytes()).unwrap().is_some());
    assert_eq!(read_all(cache.small_file(SmallKind::Log, &log).unwrap().unwrap().0), b"log");
    assert_eq!(cache.list().unwrap().len(), 21);
    for path in paths.iter().chain([&root]) {
        let file = cache.nar_file(&path.file_name(Compression::Zstd)).unwrap().unwrap().file;
        assert_eq!(read_all(file), path.file(Compression::Zstd));
        assert!(cache.narinfo(&path.part()).unwrap().is_some());
    }
    // What the dump does not have is absent, its files are removed by a repair, and it can be pushed again.
    assert_eq!(cache.narinfo(&later.part()).unwrap(), None);
    data.fsck(FsckOptions { contents: true, repair: true }, Work::unwatched()).unwrap();
    let look = FsckOptions { contents: true, repair: false };
    assert_eq!(data.fsck(look, Work::unwatched()).unwrap().problems, Vec::<String>::new());
    assert!(!folder_of(&cache).join(format!("{}.narinfo", later.part())).exists());
    assert_eq!(later.push(&cache).unwrap().outcome, Outcome::Added);
    assert_eq!(data.fsck(look, Work::unwatched()).unwrap().problems, Vec::<String>::new());
}
