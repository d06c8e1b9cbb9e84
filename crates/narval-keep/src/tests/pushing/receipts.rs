//! NARs that are stored before they are recorded, in a bucket.

use super::super::*;
use narval_files::Work;

fn in_bucket() -> Option<Fixture> {
    let fixture = Fixture::new();
    fixture.folder.is_in_bucket().then_some(fixture)
}

/// Uploads the NAR of a path as a client that brings receipts. Returns the narinfo to commit.
fn upload(cache: &Cache, path: &TestPath, compression: Compression) -> (HashPart, Vec<u8>) {
    let file = path.file(compression);
    let target = NarTarget::Nar { nar_hash: path.info.nar_hash, compression };
    let begun = cache.begin_with(target, Some(file.len() as u64), Receipts::Wanted, &pusher()).unwrap();
    let stored = match begun {
        Begin::Known(stored) => stored,
        Begin::Receive(upload) => upload.receive(&mut &file[..]).unwrap(),
    };
    with_receipt(path.narinfo(compression), &stored)
}

fn with_receipt((part, mut narinfo): (HashPart, Vec<u8>), stored: &Stored) -> (HashPart, Vec<u8>) {
    let receipt = stored.receipt.as_deref().expect("it is not recorded");
    narinfo.extend(format!("{RECEIPT_KEY}: {receipt}\n").into_bytes());
    (part, narinfo)
}

fn files(cache: &Cache) -> u64 {
    cache.usage().unwrap().files
}

fn is_object(cache: &Cache, path: &TestPath) -> bool {
    folder_of(cache).join("nar").join(path.file_name(Compression::Zstd)).exists()
}

#[test]
fn nars_are_recorded_by_the_commit_that_brings_their_receipts() {
    let Some(fixture) = in_bucket() else { return };
    let cache = &fixture.cache;
    let one = TestPath::new("one", &[]);
    let two = TestPath::new("two", &[&one]);
    let (zstd, token) = (Compression::Zstd, pusher());
    let first = upload(cache, &one, zstd);
    // The same again, and in another encoding: it is known.
    assert_eq!(upload(cache, &one, zstd), first);
    let target = |path: &TestPath| NarTarget::Nar { nar_hash: path.info.nar_hash, compression: zstd };
    let file = two.file(zstd);
    let stored = cache.receive_nars(&[(target(&two), &file[..])], Receipts::Wanted, &token).unwrap();
    let second = with_receipt(two.narinfo(zstd), &stored[0]);
    assert_eq!((files(cache), is_object(cache, &one), is_object(cache, &two)), (0, true, true));
    let refusal = cache.commit_narinfos(&[one.narinfo(zstd)], &token).unwrap_err();
    assert_eq!(refusal.kind, RefusalKind::Conflict, "without a receipt");
    assert_eq!(
        fixture.data.fsck(FsckOptions { contents: false, repair: true }, Work::unwatched()).unwrap().problems,
        Vec::<String>::new()
    );
    for _ in 0..2 {
        assert_eq!(cache.commit_narinfos(&[first.clone(), second.clone()], &token).unwrap().len(), 2);
        assert_eq!(files(cache), 2);
    }
    // The index of a cache needs no receipt any more.
    cache.commit_narinfos(&[one.narinfo(zstd)], &token).unwrap();
    let text = cache.narinfo(&one.part()).unwrap().unwrap();
    assert!(!String::from_utf8_lossy(&text).contains(RECEIPT_KEY));
    assert_eq!(
        fixture.data.fsck(FsckOptions { contents: true, repair: false }, Work::unwatched()).unwrap().problems,
        Vec::<String>::new()
    );
}

#[test]
fn a_client_that_brings_no_receipts_finds_what_another_one_has_sent() {
    let Some(fixture) = in_bucket() else { return };
    let (cache, path) = (&fixture.cache, TestPath::new("one", &[]));
    upload(cache, &path, Compression::Zstd);
    assert_eq!(files(cache), 0);
    assert!(path.send(cache, Compression::Zstd).unwrap().is_none(), "it need not be sent");
    assert_eq!(files(cache), 1);
    cache.commit_narinfos(&[path.narinfo(Compression::Zstd)], &pusher()).unwrap();
}

#[test]
fn a_receipt_is_of_one_cache() {
    let Some(fixture) = in_bucket() else { return };
    let team = fixture.data.create_cache(&"team".parse().unwrap(), &CacheSettings::default()).unwrap();
    let path = TestPath::new("one", &[]);
    let narinfo = upload(&fixture.cache, &path, Compression::Zstd);
    let refusal = team.commit_narinfos(std::slice::from_ref(&narinfo), &pusher()).unwrap_err();
    assert_eq!(refusal.kind, RefusalKind::Conflict);
    fixture.cache.commit_narinfos(&[narinfo], &pusher()).unwrap();
}

/// A collection that has begun since may have removed the object: then it is looked for.
#[test]
fn objects_are_looked_for_when_somebody_has_collected_since() {
    let Some(fixture) = in_bucket() else { return };
    let (cache, path, other) = (&fixture.cache, TestPath::new("one", &[]), TestPath::new("other", &[]));
    let (narinfo, kept) = (upload(cache, &path, Compression::Zstd), upload(cache, &other, Compression::Zstd));
    cache.commit_narinfos(std::slice::from_ref(&narinfo), &pusher()).unwrap();
    let administrator = Grant::administrator("test");
    cache.delete(&path.part(), false, &administrator).unwrap();
    assert!(!is_object(cache, &path) && is_object(cache, &other));
    let refusal = cache.commit_narinfos(&[narinfo], &pusher()).unwrap_err();
    assert!(refusal.kind == RefusalKind::Conflict && refusal.message.contains("is missing"), "{refusal}");
    cache.commit_narinfos(&[kept], &pusher()).unwrap();
    assert!(is_object(cache, &other));
}

/// The same NAR in two encodings: the second one is another name of the first.
#[test]
fn two_encodings_of_a_nar_are_one_nar() {
    let Some(fixture) = in_bucket() else { return };
    let (cache, path) = (&fixture.cache, TestPath::new("one", &[]));
    let here = upload(cache, &path, Compression::Zstd);
    // As at another server, which does not know of it.
    let elsewhere = fixture.folder.open();
    let there = elsewhere.cache(cache.name()).unwrap().unwrap();
    let file = zstd::encode_all(&path.nar[..], 19).unwrap();
    let target = NarTarget::Nar { nar_hash: path.info.nar_hash, compression: Compression::Zstd };
    let begun = there.begin_with(target, None, Receipts::Wanted, &pusher()).unwrap();
    let Begin::Receive(receive) = begun else { panic!() };
    let stored = receive.receive(&mut &file[..]).unwrap();
    let mut info = NarInfo::new(&path.info, format!("nar/{}", stored.name), Compression::Zstd);
    (info.file_hash, info.file_size) = (Some(stored.file_hash.into()), Some(stored.file_size));
    let other = with_receipt((path.part(), info.render(&StoreDir::default()).into_bytes()), &stored);
    cache.commit_narinfos(&[here], &pusher()).unwrap();
    there.commit_narinfos(&[other], &pusher()).unwrap();
    let text = there.narinfo(&path.part()).unwrap().unwrap();
    assert!(String::from_utf8_lossy(&text).contains(&path.file_name(Compression::Zstd)), "the first one is served");
}
