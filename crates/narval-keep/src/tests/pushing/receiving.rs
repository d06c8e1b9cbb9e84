//! Uploads of NARs.

use std::os::unix::fs::MetadataExt;

use super::super::*;

fn send(cache: &Cache, name: &str, bytes: &[u8]) -> Result<Stored, Rejection> {
    match cache.begin_nar(name, Some(bytes.len() as u64), &pusher())? {
        Begin::Known(_) => panic!("'{name}' is known"),
        Begin::Receive(upload) => upload.receive(&mut &bytes[..]),
    }
}

fn named(bytes: &[u8], extension: &str) -> String {
    format!("{}.nar{extension}", Sha256::of(bytes).to_nix32())
}

#[test]
fn every_compression() {
    let fixture = Fixture::new();
    let kinds = [
        Compression::None,
        Compression::Zstd,
        Compression::Xz,
        Compression::Bzip2,
        Compression::Gzip,
        Compression::Lz4,
    ];
    for compression in kinds {
        let path = TestPath::with_contents("a", &[], &compression.to_string().repeat(50_000).into_bytes());
        let stored = path.send(&fixture.cache, compression).unwrap().unwrap();
        assert_eq!((stored.nar_hash, stored.nar_size), (path.info.nar_hash, path.info.nar_size), "{compression}");
        assert_eq!(stored.compression, compression);
        assert_eq!(path.send(&fixture.cache, compression).unwrap(), None, "it is known now");
        let file = fixture.cache.nar_file(&path.file_name(compression)).unwrap().unwrap();
        assert_eq!(read_all(file.file), path.file(compression));
        // A NAR without a narinfo is no path.
        assert_eq!(fixture.cache.narinfo(&path.part()).unwrap(), None);
    }
    assert!(fixture.files("incoming").is_empty());
}

/// cachix#251: corrupt or truncated uploads were accepted.
#[test]
fn cachix_251_damaged_uploads_are_refused_and_leave_nothing() {
    let fixture = Fixture::new();
    let nar = nar_of(&b"contents ".repeat(50_000));
    let zstd = compress(&nar, Compression::Zstd);
    let mut flipped = nar.clone();
    flipped[200] ^= 1;
    let mut magic = nar.clone();
    magic[10] ^= 1;
    let padded = [&nar[..], b"\0"].concat();
    let trailing = [&zstd[..], b"trailing"].concat();
    let cases: [(String, &[u8]); 9] = [
        // Not what the name says.
        (named(&nar, ""), &flipped),
        (named(&nar, ""), &nar[..nar.len() - 8]),
        (named(&zstd, ".zst"), &zstd[..zstd.len() - 1]),
        // What the name says, and no NAR.
        (named(&magic, ""), &magic),
        (named(&padded, ""), &padded),
        (named(&nar[..nar.len() - 8], ""), &nar[..nar.len() - 8]),
        (named(&zstd[..zstd.len() - 1], ".zst"), &zstd[..zstd.len() - 1]),
        (named(&trailing, ".zst"), &trailing),
        (named(&nar, ".zst"), &nar),
    ];
    for (name, bytes) in cases {
        let rejection = send(&fixture.cache, &name, bytes).unwrap_err();
        assert_eq!(rejection.kind, RejectionKind::Unprocessable, "{name}: {rejection}");
        assert!(fixture.cache.nar_file(&name).unwrap().is_none());
    }
    for (announced, sent) in [(nar.len() + 1, nar.len()), (nar.len() - 1, nar.len())] {
        let Begin::Receive(upload) =
            fixture.cache.begin_nar(&named(&nar, ""), Some(announced as u64), &pusher()).unwrap()
        else {
            panic!()
        };
        assert_eq!(upload.receive(&mut &nar[..sent]).unwrap_err().kind, RejectionKind::Malformed);
    }
    let empty: Vec<String> = Vec::new();
    assert_eq!((fixture.files("incoming"), fixture.files("caches/default/nar")), (empty.clone(), empty));
    assert_eq!(fixture.cache.usage().unwrap(), Usage::default());
}

#[test]
fn decompression_bombs_stop_at_the_limit() {
    let settings = CacheSettings { nar_size_max: 1 << 20, ..CacheSettings::default() };
    let fixture = Fixture::with(&settings);
    let nar = nar_of(&vec![0; 8 << 20]);
    for compression in [Compression::Zstd, Compression::Xz, Compression::Bzip2, Compression::Gzip] {
        let bomb = compress(&nar, compression);
        assert!(bomb.len() < 1 << 20);
        let name = NarFileName::new(Sha256::of(&bomb), compression).to_string();
        assert_eq!(send(&fixture.cache, &name, &bomb).unwrap_err().kind, RejectionKind::TooLarge, "{compression}");
    }
    // What is announced as too large is refused before it is sent.
    let rejection = fixture.cache.begin_nar(&named(&nar, ""), Some(nar.len() as u64), &pusher()).unwrap_err();
    assert_eq!(rejection.kind, RejectionKind::TooLarge);
    let Begin::Receive(upload) = fixture.cache.begin_nar(&named(&nar, ""), None, &pusher()).unwrap() else { panic!() };
    assert_eq!(upload.receive(&mut &nar[..]).unwrap_err().kind, RejectionKind::TooLarge);
}

#[test]
fn names_and_links_that_leave_the_folder_are_refused() {
    let fixture = Fixture::new();
    for name in
        ["", "..", "../../etc/passwd", "a.nar", "/etc/passwd", "x.nar.xz\0", &format!("{}.nar.exe", "0".repeat(52))]
    {
        assert_eq!(
            fixture.cache.begin_nar(name, None, &pusher()).unwrap_err().kind,
            RejectionKind::Malformed,
            "{name:?}"
        );
        assert!(fixture.cache.nar_file(name).unwrap().is_none());
    }
    if fixture.folder.is_in_bucket() {
        return;
    }
    let link = fixture.folder.path().join("caches/default/log").join(store_path("a.drv").to_string());
    std::os::unix::fs::symlink("/etc/passwd", link).unwrap();
    let name = store_path("a.drv").to_string();
    assert!(fixture.cache.small_file(SmallKind::Log, &name).unwrap().is_none());
    for name in ["", "../nix-cache-info", "..", "a"] {
        let put = fixture.cache.put_small(SmallKind::Log, name, &mut &b""[..], &pusher());
        assert_eq!(put.unwrap_err().kind, RejectionKind::NotFound);
    }
}

#[test]
fn uploads_need_the_scope() {
    let fixture = Fixture::new();
    let path = TestPath::new("a", &[]);
    let grant = with_scopes("pull,sign,delete");
    let name = path.file_name(Compression::None);
    assert_eq!(fixture.cache.begin_nar(&name, None, &grant).unwrap_err().kind, RejectionKind::Forbidden);
    let narinfo = path.narinfo(Compression::None);
    assert_eq!(fixture.cache.commit_narinfos(&[narinfo], &grant).unwrap_err().kind, RejectionKind::Forbidden);
    let put = fixture.cache.put_small(SmallKind::CacheInfo, "", &mut &b"StoreDir: /nix/store\n"[..], &grant);
    assert_eq!(put.unwrap_err().kind, RejectionKind::Forbidden);
}

#[test]
fn small_files() {
    let fixture = Fixture::new();
    let (cache, grant) = (&fixture.cache, pusher());
    let put = |kind, name: &str, text: &str| cache.put_small(kind, name, &mut text.as_bytes(), &grant).unwrap();
    let get = |kind, name: &str| cache.small_file(kind, name).unwrap().map(|(file, _)| read_all(file));
    let log = store_path("a.drv").to_string();
    assert_eq!(put(SmallKind::Log, &log, "built"), PutOutcome::Written);
    assert_eq!(put(SmallKind::Log, &log, "other"), PutOutcome::Kept);
    assert_eq!(get(SmallKind::Log, &log).unwrap(), b"built");
    let trace = format!("{log}/out.doi");
    let json = |path: &str, signatures: &str| format!("{{\"outPath\":\"{path}\",\"signatures\":[{signatures}]}}");
    assert_eq!(put(SmallKind::BuildTrace, &trace, &json("x", "")), PutOutcome::Written);
    assert_eq!(put(SmallKind::BuildTrace, &trace, &json("y", "")), PutOutcome::Kept);
    assert_eq!(put(SmallKind::BuildTrace, &trace, &json("x", "1")), PutOutcome::Written, "signatures are added");
    assert_eq!(get(SmallKind::BuildTrace, &trace).unwrap(), json("x", "1").into_bytes());
    assert_eq!(put(SmallKind::Realisation, &format!("sha256:{}!out.doi", "0".repeat(64)), "{}"), PutOutcome::Written);
    assert_eq!(put(SmallKind::DebugInfo, &"ab".repeat(20), "{}"), PutOutcome::Written);
    assert_eq!(put(SmallKind::CacheInfo, "", "StoreDir: /elsewhere\n"), PutOutcome::Kept);
    assert!(get(SmallKind::CacheInfo, "").unwrap().starts_with(b"StoreDir: /nix/store\n"));
    let huge = vec![b'x'; 2 << 20];
    let rejection = cache.put_small(SmallKind::DebugInfo, &"cd".repeat(20), &mut &huge[..], &grant).unwrap_err();
    assert_eq!(rejection.kind, RejectionKind::TooLarge);
    assert!(fixture.files("incoming").is_empty());
}

/// A client that compresses while it sends knows the hash of the NAR beforehand, and of the file afterwards.
#[test]
fn a_nar_can_be_named_by_its_nar_hash() {
    let fixture = Fixture::new();
    let cache = &fixture.cache;
    let path = TestPath::new("a", &[]);
    let target = |compression| NarTarget::Nar { nar_hash: path.info.nar_hash, compression };
    let begin = |compression| cache.begin(target(compression), None, &pusher()).unwrap();
    let Begin::Receive(upload) = begin(Compression::Zstd) else { panic!() };
    let rejection = upload.receive(&mut &compress(&nar_of(b"other"), Compression::Zstd)[..]).unwrap_err();
    assert_eq!(rejection.kind, RejectionKind::Unprocessable);
    let Begin::Receive(upload) = begin(Compression::Zstd) else { panic!() };
    // What was received before is taken as it is.
    let mut parts = cache.incoming_file().unwrap();
    path.file(Compression::Zstd).chunks(10).for_each(|part| parts.file().write_all(part).unwrap());
    let inode = parts.file().metadata().unwrap().ino();
    let stored = upload.adopt(std::mem::replace(&mut parts, cache.incoming_file().unwrap())).unwrap();
    assert_eq!(plain(&stored.name.to_string()), NarFileName::new(path.info.nar_hash, Compression::Zstd).to_string());
    let file = cache.nar_file(&stored.name.to_string()).unwrap().unwrap();
    assert!(fixture.folder.is_in_bucket() || file.file.metadata().unwrap().ino() == inode);
    // In whichever form.
    let Begin::Known(known) = begin(Compression::Xz) else { panic!() };
    assert_eq!(known, stored);
    cache.commit_narinfos(&[path.narinfo(Compression::Zstd)], &pusher()).unwrap();
}

#[test]
fn several_nars_are_received_together() {
    let fixture = Fixture::new();
    let paths: Vec<TestPath> = (0..5)
        .map(|at| TestPath::with_contents(&format!("path-{at}"), &[], format!("contents {at}").repeat(100).as_bytes()))
        .collect();
    paths[0].send(&fixture.cache, Compression::Zstd).unwrap().unwrap();
    let files: Vec<Vec<u8>> = paths.iter().map(|path| path.file(Compression::None)).collect();
    let target = |path: &TestPath| NarTarget::Nar { nar_hash: path.info.nar_hash, compression: Compression::None };
    let nars: Vec<(NarTarget, &[u8])> =
        paths.iter().zip(&files).map(|(path, file)| (target(path), &file[..])).collect();
    // One is there in another compression, and one is given twice.
    let given = [&nars[..], &nars[2..3]].concat();
    let stored = fixture.cache.receive_nars(&given, &pusher()).unwrap();
    let hashes: Vec<_> = stored.iter().map(|stored| stored.nar_hash).collect();
    assert_eq!(hashes, [0, 1, 2, 3, 4, 2].map(|at: usize| paths[at].info.nar_hash));
    assert_eq!((stored[0].compression, stored[1].compression), (Compression::Zstd, Compression::None));
    for (stored, path) in stored.iter().zip(&paths) {
        let file = fixture.cache.nar_file(&stored.name.to_string()).unwrap().unwrap();
        assert_eq!(read_all(file.file), path.file(stored.compression));
    }
    // Again: all are known. A damaged one is refused by name.
    assert_eq!(fixture.cache.receive_nars(&given, &pusher()).unwrap(), stored);
    let new = TestPath::with_contents("new", &[], b"new");
    let rejection = fixture.cache.receive_nars(&[nars[0], (target(&new), &files[1])], &pusher()).unwrap_err();
    assert!(rejection.to_string().contains(&new.info.nar_hash.to_nix32()), "{rejection}");
    assert!(fixture.cache.receive_nars(&[], &pusher()).unwrap().is_empty());
}
