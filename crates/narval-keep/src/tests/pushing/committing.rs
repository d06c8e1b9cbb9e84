//! Commits of narinfos.

use std::fs;
use std::sync::Arc;

use narval_nix::{Listing, SecretKey};

use super::super::*;

fn served(cache: &Cache, path: &TestPath) -> NarInfo {
    let text = cache.narinfo(&path.part()).unwrap().unwrap();
    NarInfo::parse(&text, &StoreDir::default()).unwrap()
}

#[test]
fn a_closure_becomes_visible() {
    let fixture = Fixture::new();
    let cache = &fixture.cache;
    let library = TestPath::new("library", &[]);
    let program = TestPath::new("program", &[&library]);
    let before = cache.stamp();
    assert_eq!(library.push(cache).unwrap().outcome, Outcome::Added);
    assert_ne!(cache.stamp(), before);
    assert_eq!(program.push(cache).unwrap().outcome, Outcome::Added);
    assert_eq!(program.push(cache).unwrap().outcome, Outcome::Unchanged);
    let info = served(cache, &program);
    assert_eq!((info.nar_hash, info.references.len()), (program.info.nar_hash, 1));
    let name = info.url.strip_prefix("nar/").unwrap();
    assert_eq!(zstd::decode_all(cache.nar_file(name).unwrap().unwrap().file).unwrap(), program.nar);
    // The standard layout has the same.
    let text = fs::read(folder_of(cache).join(format!("{}.narinfo", program.part()))).unwrap();
    assert_eq!(text, *cache.narinfo(&program.part()).unwrap().unwrap());
    if !fixture.folder.is_in_bucket() {
        let (listing, _) = cache.small_file(SmallKind::Listing, program.part().as_str()).unwrap().unwrap();
        assert_eq!(read_all(listing), Listing::of_nar(&program.nar).unwrap().to_json().unwrap().into_bytes());
    }
    let absent = store_path("absent").hash_part();
    assert_eq!(cache.missing(&[program.part(), absent], None).unwrap(), [absent]);
    assert_eq!([absent, library.part()].map(|part| cache.narinfo(&part).unwrap().is_some()), [false, true]);
    let fixture = fixture.reopen();
    assert_eq!(served(&fixture.cache, &program), info);
}

/// ncps#50, ncps#1296, cachix#271: narinfo 200, NAR 404.
#[test]
fn ncps_50_no_narinfo_without_its_nar() {
    let fixture = Fixture::new();
    let path = TestPath::new("a", &[]);
    let rejection = fixture.cache.commit_narinfos(&[path.narinfo(Compression::Xz)], &pusher()).unwrap_err();
    assert_eq!(rejection.kind, RejectionKind::Conflict);
    assert!(rejection.message.contains("--refresh"), "{rejection}");
    assert_eq!(fixture.cache.narinfo(&path.part()).unwrap(), None);
    assert!(!folder_of(&fixture.cache).join(format!("{}.narinfo", path.part())).exists());
}

/// attic#110, #155, #211: the database says present, the storage has lost it, and pushing again is refused.
#[test]
fn attic_110_a_nar_that_the_storage_lost_can_be_pushed_again() {
    for damage in [
        |path: &std::path::Path| fs::remove_file(path).unwrap(),
        |path: &std::path::Path| {
            fs::OpenOptions::new().write(true).open(path).unwrap().set_len(10).unwrap();
        },
    ] {
        let fixture = Fixture::new();
        if fixture.folder.is_in_bucket() {
            // See `in_bucket`: it is noticed when the NAR is asked for.
            return;
        }
        let cache = &fixture.cache;
        let path = TestPath::new("a", &[]);
        path.push(cache).unwrap();
        let name = path.file_name(Compression::Zstd);
        damage(&object_of(cache, &name));
        assert_eq!(cache.missing(&[path.part()], None).unwrap(), [path.part()], "the client is told to send it");
        // Pushing at once helps.
        assert!(matches!(cache.begin_nar(&name, None, &pusher()).unwrap(), Begin::Receive(_)));
        path.push(cache).unwrap();
        assert_eq!(zstd::decode_all(cache.nar_file(&name).unwrap().unwrap().file).unwrap(), path.nar);
        // And if it is asked for first, it is never given out half, and is absent from then on.
        damage(&object_of(cache, &name));
        assert!(cache.nar_file(&name).unwrap().is_none());
        assert_eq!(cache.narinfo(&path.part()).unwrap(), None);
        assert_eq!(cache.missing(&[path.part()], None).unwrap(), [path.part()]);
        assert_eq!(path.push(cache).unwrap().outcome, Outcome::Added);
        assert!(cache.nar_file(&name).unwrap().is_some());
    }
}

/// nix#2035, #2210, #6056: a client believes that paths are there that were deleted; the closure would have holes.
#[test]
fn nix_2035_an_incomplete_closure_is_refused_with_advice() {
    let fixture = Fixture::new();
    let library = TestPath::new("library", &[]);
    let program = TestPath::new("program", &[&library]);
    let rejection = program.push(&fixture.cache).unwrap_err();
    assert_eq!(rejection.kind, RejectionKind::Conflict);
    assert!(
        rejection.message.contains(library.info.path.base_name()) && rejection.message.contains("nix copy --refresh")
    );
    assert_eq!(fixture.cache.narinfo(&program.part()).unwrap(), None);
}

/// The NAR of a path is lost, and what is pushed again is compressed in another way.
#[test]
fn attic_110_a_lost_nar_can_be_pushed_in_another_compression() {
    let fixture = Fixture::new();
    if fixture.folder.is_in_bucket() {
        return;
    }
    let path = TestPath::new("a", &[]);
    path.push(&fixture.cache).unwrap();
    fs::remove_file(object_of(&fixture.cache, &path.file_name(Compression::Zstd))).unwrap();
    path.send(&fixture.cache, Compression::Xz).unwrap();
    let committed = fixture.cache.commit_narinfos(&[path.narinfo(Compression::Xz)], &pusher()).unwrap();
    assert_eq!(committed[0].outcome, Outcome::Signed);
    let info = served(&fixture.cache, &path);
    assert_eq!(info.compression, Compression::Xz);
    assert!(fixture.cache.nar_file(info.url.strip_prefix("nar/").unwrap()).unwrap().is_some());
}

#[test]
fn references_may_be_in_the_same_commit_or_in_an_upstream() {
    struct Upstream(HashPart);
    impl OtherSources for Upstream {
        fn contain(&self, _: &CacheName, paths: &[&StorePath]) -> Vec<bool> {
            paths.iter().map(|path| path.hash_part() == self.0).collect()
        }

        fn shadowed(&self, _: &CacheName, paths: &[&StorePath]) -> Vec<Option<NarInfo>> {
            vec![None; paths.len()]
        }
    }
    let fixture = Fixture::new();
    let cache = &fixture.cache;
    let base = TestPath::new("base", &[]);
    let library = TestPath::new("library", &[&base]);
    let program = TestPath::new("program", &[&library]);
    cache.set_other_sources(Some(Arc::new(Upstream(base.part()))));
    for path in [&library, &program] {
        path.send(cache, Compression::None).unwrap();
    }
    let batch = [program.narinfo(Compression::None), library.narinfo(Compression::None)];
    let committed = cache.commit_narinfos(&batch, &pusher()).unwrap();
    assert!(committed.iter().all(|committed| committed.outcome == Outcome::Added) && committed.len() == 2);
    // All or none.
    let (good, bad) = (TestPath::new("good", &[]), TestPath::new("bad", &[&TestPath::new("nowhere", &[])]));
    for path in [&good, &bad] {
        path.send(cache, Compression::None).unwrap();
    }
    let batch = [good.narinfo(Compression::None), bad.narinfo(Compression::None)];
    assert_eq!(cache.commit_narinfos(&batch, &pusher()).unwrap_err().kind, RejectionKind::Conflict);
    assert_eq!(cache.narinfo(&good.part()).unwrap(), None);
    let twice = [good.narinfo(Compression::None), good.narinfo(Compression::None)];
    assert_eq!(cache.commit_narinfos(&twice, &pusher()).unwrap_err().kind, RejectionKind::Malformed);
}

#[test]
fn narinfos_that_contradict_their_nar_are_refused() {
    let fixture = Fixture::new();
    let cache = &fixture.cache;
    let path = TestPath::new("a", &[]);
    path.send(cache, Compression::None).unwrap();
    let (part, text) = path.narinfo(Compression::None);
    let text = String::from_utf8(text).unwrap();
    let other = store_path("other");
    let ca = "\nCA: fixed:r:sha256:0mdqa9w1p6cmli6976v4wi0sw9r4p5prkj7lzfd1877wk11c9c73\n";
    let cases = [
        text.replace("NarSize: ", "NarSize: 1"),
        text.replace(&path.info.nar_hash.to_string(), &Sha256::of(b"").to_string()),
        text.replace("/nix/store/", "/gnu/store/"),
        text.replace(path.info.path.base_name(), other.base_name()),
        text.replace("URL: nar/", "URL: https://example.org/nar/"),
        text.replace("URL: nar/", "URL: ../nar/"),
        text.trim_end().to_owned() + ca,
        text.trim_end().to_owned(),
        String::new(),
        "x".repeat(2 << 20),
    ];
    for case in cases {
        let rejection = cache.commit_narinfos(&[(part, case.clone().into_bytes())], &pusher()).unwrap_err();
        assert_eq!(rejection.kind, RejectionKind::Unprocessable, "{case}: {rejection}");
    }
    // What signatures do not cover is made right.
    let wrong = text.replace("FileSize: ", "FileSize: 7").replace("Compression: none", "Compression: xz");
    cache.commit_narinfos(&[(part, wrong.into_bytes())], &pusher()).unwrap();
    let info = served(cache, &path);
    assert_eq!((info.file_size, info.compression), (Some(path.info.nar_size), Compression::None));
}

#[test]
fn pushing_a_path_again_adds_signatures_and_needs_a_scope_to_replace_it() {
    let fixture = Fixture::new();
    let cache = &fixture.cache;
    let (one, two) = (SecretKey::generate("one-1").unwrap(), SecretKey::generate("two-1").unwrap());
    let mut path = TestPath::new("a", &[]);
    let fingerprint = narval_nix::fingerprint(
        &StoreDir::default(),
        &path.info.path,
        &path.info.nar_hash,
        path.info.nar_size,
        &path.info.references,
    );
    for (key, outcome) in [(&two, Outcome::Added), (&one, Outcome::Signed), (&one, Outcome::Unchanged)] {
        path.info.signatures = vec![key.sign(fingerprint.as_bytes()).unwrap()];
        assert_eq!(path.push(cache).unwrap().outcome, outcome);
    }
    let names =
        |info: &NarInfo| info.signatures.iter().map(|signature| signature.key_name().to_owned()).collect::<Vec<_>>();
    assert_eq!(names(&served(cache, &path)), ["one-1", "two-1"]);
    // Another form of the NAR changes nothing for those who have the narinfo.
    path.send(cache, Compression::Xz).unwrap();
    let again = cache.commit_narinfos(&[path.narinfo(Compression::Xz)], &pusher()).unwrap();
    assert_eq!(again[0].outcome, Outcome::Unchanged);
    assert_eq!(served(cache, &path).compression, Compression::Zstd);
    // Other contents, and other references.
    let other = TestPath::with_contents("a", &[], b"other");
    let library = TestPath::new("library", &[]);
    library.push(cache).unwrap();
    let mut linked = path.clone();
    linked.info.references = [library.info.path.clone()].into();
    for changed in [&other, &linked] {
        assert_eq!(changed.push(cache).unwrap_err().kind, RejectionKind::Conflict);
        assert_eq!(served(cache, &path).nar_hash, path.info.nar_hash);
    }
    let replaced = other.push_as(cache, &with_scopes("push,replace")).unwrap();
    assert_eq!((replaced.outcome, served(cache, &path).nar_hash), (Outcome::Replaced, other.info.nar_hash));
    assert!(served(cache, &path).signatures.is_empty(), "they were for the old contents");
}

/// ncps signed whatever anybody pushed.
#[test]
fn only_trusted_paths_are_signed_with_the_caches_keys() {
    let (own, ci) = (SecretKey::generate("own-1").unwrap(), SecretKey::generate("ci-1").unwrap());
    let settings = CacheSettings { trusted_keys: vec![ci.public_key()], ..CacheSettings::default() };
    let fixture = Fixture::with(&settings);
    let cache = &fixture.cache;
    cache.set_sign_keys(vec![own.clone()]);
    let verifies = |path: &TestPath| {
        let info = served(cache, path);
        let keys: narval_nix::TrustedKeys = [own.public_key()].into_iter().collect();
        keys.find_valid(info.fingerprint(&StoreDir::default()).as_bytes(), &info.signatures).is_some()
    };
    let anybody = TestPath::new("anybody", &[]);
    anybody.push(cache).unwrap();
    assert!(!verifies(&anybody));
    let signer = TestPath::new("signer", &[]);
    signer.push_as(cache, &with_scopes("push,sign")).unwrap();
    assert!(verifies(&signer));
    let mut signed = TestPath::new("signed", &[]);
    let fingerprint = NarInfo::new(&signed.info, "x", Compression::None).fingerprint(&StoreDir::default());
    signed.info.signatures = vec![ci.sign(fingerprint.as_bytes()).unwrap()];
    signed.push(cache).unwrap();
    assert!(verifies(&signed));
    let mut forged = TestPath::new("forged", &[]);
    forged.info.signatures = signed.info.signatures.clone();
    forged.push(cache).unwrap();
    assert!(!verifies(&forged));
    // A cache that takes nothing unsigned.
    let required = CacheSettings { required_keys: vec![ci.public_key()], ..CacheSettings::default() };
    let strict = fixture.data.create_cache(&"strict".parse().unwrap(), &required).unwrap();
    assert!(signed.push(&strict).is_ok());
    for path in [&anybody, &forged] {
        let rejection = path.push_as(&strict, &with_scopes("push,sign")).unwrap_err();
        assert!(rejection.kind == RejectionKind::Unprocessable && rejection.message.contains("ci-1"), "{rejection}");
    }
}

#[test]
fn undeclared_references_are_reported_or_refused() {
    let fixture = Fixture::new();
    let cache = &fixture.cache;
    let library = TestPath::new("library", &[]);
    library.push(cache).unwrap();
    let mut program = TestPath::new("program", &[&library]);
    program.info.references.clear();
    let committed = program.push(cache).unwrap();
    assert_eq!(committed.undeclared, [library.part()]);
    cache.set_settings(&CacheSettings { strict_references: true, ..CacheSettings::default() }).unwrap();
    let mut other = TestPath::new("other", &[&library]);
    assert!(other.push(cache).unwrap().undeclared.is_empty());
    other = TestPath::with_contents("other-2", &[], &other.nar);
    assert_eq!(other.push(cache).unwrap_err().kind, RejectionKind::Unprocessable);
    let derivation = TestPath::with_contents("library.drv", &[], &other.nar);
    assert!(derivation.push(cache).unwrap().undeclared.is_empty());
}

/// Uploads and commits of the same paths by many threads.
#[test]
fn concurrent_uploads_and_commits_of_the_same_paths() {
    let fixture = Fixture::new();
    let cache = &fixture.cache;
    let library = TestPath::new("library", &[]);
    let programs: Vec<TestPath> =
        (0..8).map(|number| TestPath::new(&format!("program-{}", number % 3), &[&library])).collect();
    library.push(cache).unwrap();
    std::thread::scope(|scope| {
        for (number, program) in programs.iter().enumerate() {
            let compression = [Compression::None, Compression::Zstd, Compression::Xz][number % 3];
            scope.spawn(move || {
                program.send(cache, compression).unwrap();
                cache.commit_narinfos(&[program.narinfo(compression)], &pusher()).unwrap();
            });
        }
    });
    for program in &programs {
        let info = served(cache, program);
        assert!(cache.nar_file(info.url.strip_prefix("nar/").unwrap()).unwrap().is_some());
    }
    assert_eq!(cache.usage().unwrap().paths, 4);
}
