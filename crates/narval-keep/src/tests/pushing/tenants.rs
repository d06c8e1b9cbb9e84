//! What one cache uploads, loses or reads is not seen in another.

use std::fs;
use std::sync::Barrier;

use narval_files::Work;

use super::super::*;
use crate::storage::NarBytes;

/// The same NAR in another file than that of [`TestPath::file`].
fn other_file(path: &TestPath) -> Vec<u8> {
    let file = zstd::encode_all(&path.nar[..], 19).unwrap();
    assert_ne!(file, path.file(Compression::Zstd));
    file
}

fn name_of(file: &[u8]) -> NarFileName {
    NarFileName::new(Sha256::of(file), Compression::Zstd)
}

fn send(cache: &Cache, target: NarTarget, file: &[u8]) -> Result<Stored, Rejection> {
    match cache.begin(target, Some(file.len() as u64), &pusher())? {
        Begin::Known(stored) => Ok(stored),
        Begin::Receive(upload) => upload.receive(&mut &file[..]),
    }
}

fn push(cache: &Cache, path: &TestPath, file: &[u8]) {
    let name = name_of(file);
    send(cache, NarTarget::File(name), file).unwrap();
    let mut info = NarInfo::new(&path.info, format!("nar/{name}"), Compression::Zstd);
    (info.file_hash, info.file_size) = (Some(Sha256::of(file).into()), Some(file.len() as u64));
    cache.commit_narinfos(&[(path.part(), info.render(&StoreDir::default()).into_bytes())], &pusher()).unwrap();
}

fn tenants(settings: &CacheSettings) -> (Fixture, Cache, Cache) {
    let fixture = Fixture::new();
    let cache = |name: &str| fixture.data.create_cache(&name.parse().unwrap(), settings).unwrap();
    let (evil, good) = (cache("evil"), cache("good"));
    (fixture, evil, good)
}

/// What another cache has done with the same NARs before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Before {
    Nothing,
    SameFiles,
    OtherFiles,
    Lost,
    Deleted,
}

/// All that a cache says while somebody pushes to it.
fn said(before: Before) -> Vec<String> {
    let contents = |number: u8| [number; 9_000].iter().zip(0..).map(|(byte, at)| byte ^ at as u8).collect::<Vec<u8>>();
    let paths: Vec<TestPath> =
        (0..5).map(|number| TestPath::with_contents(&format!("path-{number}"), &[], &contents(number))).collect();
    let files: Vec<Vec<u8>> = paths.iter().map(|path| path.file(Compression::Zstd)).collect();
    // Room for three of them and their listings.
    let quota = files.iter().map(|file| file.len() as u64).sum::<u64>() * 3 / 5 + 400;
    let (_fixture, evil, good) = tenants(&CacheSettings { quota: Some(quota), ..CacheSettings::default() });
    evil.set_settings(&CacheSettings::default()).unwrap();
    for path in paths.iter().filter(|_| before != Before::Nothing) {
        let file = if before == Before::SameFiles { path.file(Compression::Zstd) } else { other_file(path) };
        push(&evil, path, &file);
        match before {
            Before::Lost => fs::remove_file(object_of(&evil, &name_of(&file).to_string())).unwrap(),
            Before::Deleted => drop(evil.delete(&path.part(), false, &Grant::administrator("test")).unwrap()),
            _ => {}
        }
    }
    let mut said = Vec::new();
    let mut say = |what: &str, answer: &dyn std::fmt::Debug| said.push(plain(&format!("{what}: {answer:?}")));
    for (path, file) in paths.iter().zip(&files) {
        let (name, part) = (name_of(file), path.part());
        say("missing", &good.missing(&[part], Some(60)).unwrap());
        say("head", &good.nar_head(&name.to_string()).unwrap());
        say("head of the other file", &good.nar_head(&name_of(&other_file(path)).to_string()).unwrap());
        let by_hash = NarTarget::Nar { nar_hash: path.info.nar_hash, compression: Compression::Zstd };
        for target in [NarTarget::File(name), by_hash] {
            let begun = good.begin(target, Some(file.len() as u64), &pusher());
            say("begin", &begun.map(|begun| matches!(begun, Begin::Known(_))));
        }
        let stored = good.receive_nars(&[(by_hash, &file[..])], &pusher());
        let narinfo = path.narinfo(Compression::Zstd).1;
        let stored = stored.map(|all| {
            let one = |one: Stored| (one.name.to_string(), one.nar_size, one.compression, one.file_hash, one.file_size);
            all.into_iter().map(one).collect::<Vec<_>>()
        });
        say("stored", &stored);
        say("committed", &good.commit_narinfos(&[(part, narinfo)], &pusher()));
        say("again", &send(&good, NarTarget::File(name), file).map(|stored| stored.file_size));
        say("narinfo", &good.narinfo(&part).unwrap().map(|text| String::from_utf8(text.to_vec()).unwrap()));
        say("bytes", &good.nar_file(&name.to_string()).unwrap().map(|nar| Sha256::of(&read_all(nar.file))));
        say("usage", &good.usage().unwrap());
    }
    say("deleted", &good.delete(&paths[0].part(), false, &Grant::administrator("test")).unwrap());
    say("usage", &good.usage().unwrap());
    said
}

/// `before` decides only what the other cache has.
#[test]
fn what_a_cache_serves_counts_and_answers_is_its_own() {
    let alone = said(Before::Nothing);
    assert!(alone.iter().any(|line| line.starts_with("narinfo: Some")), "{alone:#?}");
    assert!(alone.iter().any(|line| line.contains("of 2") || line.contains("bytes are used")), "{alone:#?}");
    for before in [Before::SameFiles, Before::OtherFiles, Before::Lost, Before::Deleted] {
        for (with, without) in said(before).iter().zip(&alone) {
            assert_eq!(with, without, "after {before:?}");
        }
    }
}

#[test]
fn what_a_cache_loses_another_keeps() {
    for is_same in [true, false] {
        let (fixture, evil, good) = tenants(&CacheSettings::default());
        let path = TestPath::new("a", &[]);
        let file = path.file(Compression::Zstd);
        let of_evil = if is_same { file.clone() } else { other_file(&path) };
        push(&evil, &path, &of_evil);
        push(&good, &path, &file);
        let name = name_of(&of_evil).to_string();
        // In place: a hard link would show it.
        let place = object_of(&evil, &name);
        fs::write(&place, vec![0; of_evil.len()]).unwrap();
        let options = FsckOptions { contents: true, repair: true };
        assert!(!fixture.data.fsck(options, Work::unwatched()).unwrap().problems.is_empty());
        assert_eq!(evil.narinfo(&path.part()).unwrap(), None);
        push(&evil, &path, &of_evil);
        fs::remove_file(object_of(&evil, &name)).unwrap();
        assert!(evil.nar_file(&name).unwrap().is_none());
        assert_eq!(evil.narinfo(&path.part()).unwrap(), None);
        // Another encoding takes the place of what is lost.
        push(&evil, &path, &zstd::encode_all(&path.nar[..], 7).unwrap());
        assert!(good.missing(&[path.part()], None).unwrap().is_empty());
        let there = good.nar_file(&name_of(&file).to_string()).unwrap().unwrap();
        assert_eq!(read_all(there.file), file);
        assert!(evil.delete(&path.part(), false, &Grant::administrator("test")).unwrap().paths.len() == 1);
        assert!(good.nar_file(&name_of(&file).to_string()).unwrap().is_some());
        let report = fixture.data.fsck(FsckOptions { contents: true, repair: false }, Work::unwatched()).unwrap();
        assert_eq!(report.problems, Vec::<String>::new());
    }
}

#[test]
fn two_caches_take_the_same_nar_at_the_same_time() {
    let (fixture, evil, good) = tenants(&CacheSettings::default());
    for round in 0..8 {
        let path = TestPath::new(&format!("path-{round}"), &[]);
        let files = [
            path.file(Compression::Zstd),
            if round % 2 == 0 { other_file(&path) } else { path.file(Compression::Zstd) },
        ];
        let barrier = Barrier::new(2);
        std::thread::scope(|scope| {
            for (cache, file) in [&evil, &good].into_iter().zip(&files) {
                let (path, barrier) = (&path, &barrier);
                scope.spawn(move || {
                    barrier.wait();
                    push(cache, path, file);
                });
            }
        });
        for (cache, file) in [&evil, &good].into_iter().zip(&files) {
            let info = NarInfo::parse(&cache.narinfo(&path.part()).unwrap().unwrap(), &StoreDir::default()).unwrap();
            assert_eq!(plain(&info.url), format!("nar/{}", name_of(file)));
            assert_eq!(read_all(cache.nar_file(&name_of(file).to_string()).unwrap().unwrap().file), *file);
            assert!(folder_of(cache).join(&info.url).exists());
        }
    }
    let report = fixture.data.fsck(FsckOptions { contents: true, repair: false }, Work::unwatched()).unwrap();
    assert_eq!(report.problems, Vec::<String>::new());
}

/// With `redirect = auto`, the first request of a NAR that is not in the disk cache is redirected.
#[test]
fn what_a_cache_has_in_the_disk_cache_another_has_not() {
    let (Fixture { folder, data, cache }, evil, good) = tenants(&CacheSettings::default());
    if !folder.is_in_bucket() {
        return;
    }
    drop((data, cache, evil, good));
    let data = Data::open(folder.place_with_cache(1 << 30), folder.options()).unwrap();
    let cache = |name: &str| data.cache(&name.parse().unwrap()).unwrap().unwrap();
    let (evil, good) = (cache("evil"), cache("good"));
    let mut state = 1_u64;
    let noise = std::iter::repeat_with(|| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 56) as u8
    });
    let path = TestPath::with_contents("a", &[], &noise.take(9 << 20).collect::<Vec<u8>>());
    let file = path.file(Compression::Zstd);
    let name = name_of(&file).to_string();
    for cache in [&evil, &good] {
        push(cache, &path, &file);
    }
    assert_eq!(read_all(evil.nar_file(&name).unwrap().unwrap().file), file);
    let redirected = |cache: &Cache| {
        let (_, bytes) = cache.nar(&name, Redirect::Auto).unwrap().unwrap();
        matches!(bytes, NarBytes::Redirect(_))
    };
    assert_eq!((redirected(&evil), redirected(&good), redirected(&good)), (false, true, false));
}

/// A token for one cache uploads a NAR that another has: nobody gets at it by its name alone.
#[test]
fn a_nar_of_another_cache_must_be_sent() {
    let (_fixture, evil, good) = tenants(&CacheSettings::default());
    let path = TestPath::new("a", &[]);
    let file = path.file(Compression::Zstd);
    push(&evil, &path, &file);
    let name = name_of(&file);
    assert!(good.nar_file(&name.to_string()).unwrap().is_none());
    assert!(matches!(good.begin_nar(&name.to_string(), None, &pusher()).unwrap(), Begin::Receive(_)));
    let narinfo = path.narinfo(Compression::Zstd);
    assert_eq!(good.commit_narinfos(&[narinfo], &pusher()).unwrap_err().kind, RejectionKind::Conflict);
    // Another file of the same NAR gets another name of the first one, within a cache.
    let again = other_file(&path);
    let stored = send(&evil, NarTarget::File(name_of(&again)), &again).unwrap();
    assert_eq!((stored.file_hash, stored.file_size), (Sha256::of(&file), file.len() as u64));
    assert_eq!(evil.usage().unwrap().files, 1);
    let alias = evil.nar_file(&name_of(&again).to_string()).unwrap().unwrap();
    assert_eq!(read_all(alias.file), file);
}
