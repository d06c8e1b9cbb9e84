//! Checks, repairs, and the index made again.

use narval_files::Work;
use std::fs;
use std::path::Path;

use super::super::*;

const REPAIR: FsckOptions = FsckOptions { contents: true, repair: true };
const LOOK: FsckOptions = FsckOptions { contents: true, repair: false };

fn problems(data: &Data, options: FsckOptions) -> usize {
    data.fsck(options, Work::unwatched()).unwrap().problems.len()
}

/// A cache with a closure, an alias, a NAR without a narinfo, and a second cache.
fn filled() -> (Fixture, TestPath, TestPath) {
    let fixture = Fixture::new();
    let library = TestPath::new("library", &[]);
    let program = TestPath::new("program", &[&library]);
    for path in [&library, &program] {
        path.push(&fixture.cache).unwrap();
    }
    library.send(&fixture.cache, Compression::Xz).unwrap();
    let again = zstd::encode_all(&library.nar[..], 19).unwrap();
    let name = NarFileName::new(Sha256::of(&again), Compression::Zstd).to_string();
    if let Begin::Receive(upload) = fixture.cache.begin_nar(&name, None, &pusher()).unwrap() {
        upload.receive(&mut &again[..]).unwrap();
    }
    let other = fixture.data.create_cache(&"other".parse().unwrap(), &CacheSettings::default()).unwrap();
    library.push(&other).unwrap();
    assert_eq!(problems(&fixture.data, LOOK), 0);
    (fixture, library, program)
}

#[test]
fn damage_is_found_and_repaired() {
    let (fixture, library, program) = filled();
    if fixture.folder.is_in_bucket() {
        // See `in_bucket`.
        return;
    }
    let root = fixture.folder.path().to_owned();
    let nar = || object_of(&fixture.cache, &program.file_name(Compression::Zstd));
    let breakages: [(&str, &dyn Fn()); 6] = [
        ("narinfo", &|| fs::write(root.join(format!("caches/default/{}.narinfo", program.part())), "x").unwrap()),
        ("stray narinfo", &|| {
            fs::write(root.join(format!("caches/default/{}.narinfo", store_path("x").hash_part())), "x").unwrap()
        }),
        ("stray nar", &|| fs::write(root.join("caches/other/nar/x"), "x").unwrap()),
        ("stray listing", &|| fs::write(root.join("caches/other/nar/x.ls"), "x").unwrap()),
        ("damaged", &|| flip(&nar())),
        ("lost", &|| fs::remove_file(nar()).unwrap()),
    ];
    for (what, break_it) in breakages {
        break_it();
        assert!(problems(&fixture.data, LOOK) >= 1, "{what}");
        problems(&fixture.data, REPAIR);
        assert_eq!(problems(&fixture.data, LOOK), 0, "{what}");
        // What was lost with it can be pushed again, and is whole.
        program.push(&fixture.cache).unwrap();
        assert_eq!(problems(&fixture.data, LOOK), 0, "{what}");
    }
    // What one cache has lost, another still has.
    fs::remove_file(object_in(&root.join("caches/other/nar"), &library.file_name(Compression::Zstd))).unwrap();
    problems(&fixture.data, REPAIR);
    let other = fixture.data.cache(&"other".parse().unwrap()).unwrap().unwrap();
    assert_eq!(other.missing(&[library.part()], None).unwrap(), [library.part()]);
    assert!(fixture.cache.missing(&[library.part()], None).unwrap().is_empty());
    assert_eq!(problems(&fixture.data, LOOK), 0);
}

/// As a database has the row of one that has lost its last transactions, and in them the end of that NAR.
#[test]
fn a_nar_without_a_path_whose_bytes_are_gone_is_named_and_not_used() {
    let fixture = Fixture::new();
    let (there, gone) = (TestPath::new("there", &[]), TestPath::new("gone", &[]));
    for path in [&there, &gone] {
        path.send(&fixture.cache, Compression::Zstd).unwrap();
    }
    fixture.folder.sql("update nars set orphaned = orphaned - 3600, used = used - 3600");
    let unused = || fixture.folder.rows("nars where used = orphaned");
    assert_eq!((problems(&fixture.data, LOOK), unused()), (0, 2));
    let object = object_of(&fixture.cache, &gone.file_name(Compression::Zstd));
    fs::remove_file(&object).unwrap();
    let report = fixture.data.fsck(LOOK, Work::unwatched()).unwrap();
    let name = object.file_name().unwrap().to_str().unwrap();
    assert!(report.problems.len() == 1 && report.problems[0].contains(name), "{:?}", report.problems);
    assert_eq!(unused(), 2, "who only looks keeps nothing from being collected");
    problems(&fixture.data, REPAIR);
    assert_eq!((problems(&fixture.data, LOOK), unused()), (0, 1));
    gone.push(&fixture.cache).unwrap();
    assert_eq!(problems(&fixture.data, LOOK), 0);
}

/// A command that is killed beside a server, between its transaction and the narinfos.
#[test]
fn narinfos_that_a_killed_process_has_not_written_are_written_by_another_one() {
    let fixture = Fixture::new();
    if fixture.folder.is_in_bucket() {
        return;
    }
    let (cache, path) = (&fixture.cache, TestPath::new("a", &[]));
    path.push(cache).unwrap();
    fixture.data.settle().unwrap();
    assert_eq!(cache.index().pending().unwrap(), []);
    let narinfo = folder_of(cache).join(format!("{}.narinfo", path.part()));
    let stray = folder_of(cache).join(format!("{}.narinfo", store_path("x").hash_part()));
    fs::rename(&narinfo, &stray).unwrap();
    for part in [path.part(), store_path("x").hash_part()] {
        cache.index().note_pending(cache.id(), part).unwrap();
    }
    fixture.data.settle().unwrap();
    assert_eq!(cache.index().pending().unwrap().len(), 2, "its process may be about to write them");
    fixture.data.settle().unwrap();
    assert_eq!(cache.index().pending().unwrap(), []);
    assert_eq!(fs::read(&narinfo).unwrap(), *cache.narinfo(&path.part()).unwrap().unwrap());
    assert!(!stray.exists());
}

fn flip(path: &Path) {
    let mut bytes = fs::read(path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(path, bytes).unwrap();
}

/// attic#125: without the database, the files were worth nothing.
#[test]
fn attic_125_the_index_is_rebuilt_from_the_files() {
    let (fixture, library, program) = filled();
    let grant = fixture.data.tokens().create(&NewToken {
        label: "ci".into(),
        caches: CachePatterns::all(),
        scopes: "push".parse().unwrap(),
        expires: None,
    });
    let (_, token) = grant.unwrap();
    fixture.cache.pin("release", &program.part(), PinFor { keep: Some(3), until: None }, &with_scopes("pin")).unwrap();
    fixture.cache.set_settings(&CacheSettings { retention_days: Some(7), ..CacheSettings::default() }).unwrap();
    let saved = exported(&fixture.data);
    let narinfo = fixture.cache.narinfo(&program.part()).unwrap().unwrap();
    let usage = fixture.cache.usage().unwrap();
    let Fixture { mut folder, data, cache } = fixture;
    drop((data, cache));
    folder.lose_index();
    let damaged = object_in(&folder.stored("caches/other/nar"), &library.file_name(Compression::Zstd));
    let copy = fs::read(&damaged).unwrap();
    fs::remove_file(&damaged).unwrap();
    fs::write(&damaged, copy).unwrap();
    flip(&damaged);
    let (data, report) = Data::rebuild(folder.place(), folder.database(), Work::unwatched()).unwrap();
    let cache = data.cache(&CacheName::default()).unwrap().unwrap();
    assert_eq!(cache.narinfo(&program.part()).unwrap().unwrap(), narinfo);
    assert_eq!(cache.usage().unwrap(), usage);
    assert_eq!(report.problems.len(), 2, "{:?}", report.problems);
    let other = data.cache(&"other".parse().unwrap()).unwrap().unwrap();
    assert_eq!(other.missing(&[library.part()], None).unwrap(), [library.part()], "its NAR is damaged");
    assert!(cache.pins().unwrap().is_empty() && data.tokens().verify(token.as_bytes()).unwrap().is_none());
    assert_eq!(data.import(&saved).unwrap(), Imported { tokens: 1, pins: 1 });
    assert!(data.tokens().verify(token.as_bytes()).unwrap().is_some());
    assert_eq!(cache.pins().unwrap()[0].holds.keep, Some(3));
    assert_eq!(cache.settings().retention_days, Some(7));
    assert!(data.import("{}").is_err());
    library.push(&other).unwrap();
    program.push(&other).unwrap();
}
