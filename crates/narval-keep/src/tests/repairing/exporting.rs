//! A cache that is copied to a plain binary cache, as a reader without an index finds it.

use std::collections::HashSet;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use narval_client::Url;
use narval_codec::decode::Decoder;
use narval_files::Work;

use super::super::*;
use super::migrating::{AnUpstream, Server, fill, other_kind};

/// A destination of the other kind: its address, where its files are, and what must stay until the end.
fn destination(fixture: &Fixture, prefix: &str) -> Option<(Url, PathBuf, (tempfile::TempDir, Server))> {
    let folder = tempfile::tempdir().unwrap();
    let (place, server) = other_kind(&fixture.folder, folder.path(), prefix)?;
    let (url, files) = match place {
        StorageLocation::Folder(folder) => (format!("file://{}", folder.display()).parse().unwrap(), folder),
        StorageLocation::Bucket { url, .. } => {
            let (bucket, key) = url.bucket_and_key();
            (url.clone(), s3::S3Server::shared().unwrap().root().join(bucket).join(&*key))
        }
    };
    Some((url, files.join("default"), (folder, server)))
}

/// What a reader finds: the base names of all paths, each with a NAR that its narinfo describes, and with its references.
fn read(files: &Path) -> HashSet<String> {
    let mut found = HashSet::new();
    let mut references = HashSet::new();
    for entry in std::fs::read_dir(files).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "narinfo") {
            continue;
        }
        let info = NarInfo::parse(&std::fs::read(&path).unwrap(), &StoreDir::default()).unwrap();
        let file = std::fs::read(files.join(&info.url)).unwrap();
        assert_eq!(info.file_hash, Some(Sha256::of(&file).into()));
        let mut nar = Vec::new();
        Decoder::new(&info.compression, &file[..], 1).unwrap().read_to_end(&mut nar).unwrap();
        assert_eq!((Sha256::of(&nar), nar.len() as u64), (info.nar_hash, info.nar_size), "{path:?}");
        references.extend(info.references.iter().map(|path| path.base_name().to_owned()));
        found.insert(info.path.base_name().to_owned());
    }
    references.retain(|path| !found.contains(path) && !path.ends_with("-of-an-upstream"));
    assert!(references.is_empty(), "{references:?}");
    found
}

#[test]
fn an_export_is_a_cache_at_every_moment_and_whole_at_its_end() {
    let fixture = Fixture::new();
    let Some((url, files, _kept)) = destination(&fixture, "exported") else { return };
    let cache = &fixture.cache;
    fill(cache);
    cache.set_other_sources(Some(std::sync::Arc::new(AnUpstream)));
    TestPath::new("wrapper", &[&TestPath::new("glibc-of-an-upstream", &[])]).push(cache).unwrap();
    assert_eq!(
        cache.put_small(SmallKind::Other, "new/file", &mut &b"small"[..], &pusher()).unwrap(),
        PutOutcome::Written
    );
    // Stopped again and again.
    let (mut stops, mut last) = (0, 0);
    loop {
        let work = Work::new();
        let copied = std::thread::scope(|scope| {
            scope.spawn(|| {
                let end = std::time::Instant::now() + Duration::from_secs(60);
                while work.done().count <= last && std::time::Instant::now() < end {
                    std::thread::sleep(Duration::from_millis(1));
                }
                if work.done().count < 151 {
                    work.stop();
                }
            });
            cache.copy_to(&url, &work)
        });
        let there = read(&files).len() as u64;
        assert!(there >= last);
        last = there;
        match copied {
            Ok(copied) => {
                assert_eq!((copied.paths + copied.present, there), (151, 151), "{copied:?}");
                break;
            }
            Err(rejection) => assert!(rejection.message.contains("interrupted"), "{rejection}"),
        }
        stops += 1;
    }
    assert!(stops > 0);
    let there = std::fs::read(files.join("nix-cache-info")).unwrap();
    assert!(String::from_utf8(there).unwrap().contains("StoreDir: /nix/store"));
    let again = cache.copy_to(&url, Work::unwatched()).unwrap();
    assert_eq!((again.paths, again.present, again.nars, again.files), (0, 151, 0, 0));
    // A narinfo that has changed, and a path more.
    cache.set_sign_keys(vec![narval_nix::SecretKey::generate("k-1").unwrap()]);
    TestPath::new("later", &[]).push(cache).unwrap();
    cache.sign(None, false, &Grant::administrator("t"), |_| std::ops::ControlFlow::Continue(())).unwrap();
    let again = cache.copy_to(&url, Work::unwatched()).unwrap();
    assert_eq!((again.paths, again.nars), (152, 1));
    assert_eq!(read(&files).len(), 152);
}

#[test]
fn a_damaged_nar_is_not_exported() {
    let fixture = Fixture::new();
    let Some((url, files, _kept)) = destination(&fixture, "exported-damaged") else { return };
    let path = TestPath::with_contents("a", &[], &b"contents".repeat(1000));
    path.push(&fixture.cache).unwrap();
    let file = object_of(&fixture.cache, &path.file_name(Compression::Zstd));
    let mut bytes = std::fs::read(&file).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&file, &bytes).unwrap();
    let error = fixture.cache.copy_to(&url, Work::unwatched()).unwrap_err();
    assert!(error.message.contains(path.info.path.base_name()), "{error}");
    assert!(read(&files).is_empty());
    for wrong in ["http://127.0.0.1:1", "https://cache.example.org"] {
        let error = fixture.cache.copy_to(&wrong.parse().unwrap(), Work::unwatched()).unwrap_err();
        assert_eq!(error.kind, RejectionKind::Malformed);
    }
}
