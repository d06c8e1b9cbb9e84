//! Cache folders that Nix writes and we read, and the other way round.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails so")]

#[path = "../../narval-store/tests/lab/mod.rs"]
mod lab;

use std::io::Write;
use std::sync::Arc;

use lab::{Lab, Nix, odd_tree, run};
use narval_cache::{CacheFile, CacheFolder, CacheFolderError};
use narval_client::{ClientOptions, Url};
use narval_nix::{Compression, HashPart, NarHash, NarInfo, StoreDir};
use narval_store::{NarReader, Store};

#[test]
fn what_nix_writes() {
    let lab = Lab::new(Nix::New);
    let tree = lab.dir.path().join("tree");
    odd_tree(&tree);
    let path = lab.add(&tree);
    let cache = lab.dir.path().join("cache");
    let to = format!("file://{}?compression=none", cache.display());
    run(Nix::New.command("nix").args(["copy", "--no-check-sigs", "--from"]).arg(lab.root()).args([
        "--to",
        &to,
        &lab.full(&path),
    ]));
    let folder = CacheFolder::open(&cache, StoreDir::default()).unwrap();
    assert_eq!(folder.cache_info().unwrap().unwrap().store_dir, StoreDir::default());
    assert_eq!(folder.hash_parts().unwrap(), [path.hash_part()]);
    let info = folder.narinfo(&path.hash_part()).unwrap().unwrap();
    assert_eq!(info.path, path);
    let (client, url) = (Arc::new(narval_s3::client(ClientOptions::default())), Url::from_folder(&cache).unwrap());
    let mut file = CacheFile::open(&client, &url.child(&info.url).unwrap()).unwrap().unwrap();
    let mut nar = vec![0; usize::try_from(info.nar_size).unwrap()];
    let mut filled = 0;
    while filled < nar.len() {
        filled += file.read_some(&mut nar[filled..]).unwrap();
    }
    assert_eq!((file.read_some(&mut [0]).unwrap(), NarHash::of(&nar)), (0, info.nar_hash));
    assert_eq!(folder.narinfo(&HashPart::parse(&[b'0'; 32]).unwrap()).unwrap(), None);
    assert!(CacheFile::open(&client, &url.child("nar/none.nar").unwrap()).unwrap().is_none());
    std::os::unix::fs::symlink("/etc/hostname", cache.join("nar/out.nar")).unwrap();
    std::os::unix::fs::symlink(cache.join(&info.url).file_name().unwrap(), cache.join("nar/in.nar")).unwrap();
    assert!(CacheFile::open(&client, &url.child("nar/in.nar").unwrap()).unwrap().is_some());
    for name in ["../tree/a", "nar/../../tree/a", "%2e%2e/tree/a", "nar/out.nar", "nar"] {
        let opened = url.child(name).map(|url| CacheFile::open(&client, &url));
        assert!(!matches!(opened, Ok(Ok(Some(_)))), "{name}");
    }
    let other = CacheFolder::open(&cache, "/gnu/store".parse().unwrap());
    assert!(matches!(other, Err(CacheFolderError::StoreDir { .. })));
}

#[test]
fn what_nix_reads() {
    let lab = Lab::new(Nix::New);
    let tree = lab.dir.path().join("tree");
    odd_tree(&tree);
    let path = lab.add(&tree);
    let store = Store::new(lab.config());
    let info = store.path_info(&path).unwrap().unwrap();
    let cache = lab.dir.path().join("cache");
    let folder = CacheFolder::create(&cache, StoreDir::default()).unwrap();
    let abandoned = folder.write_nar().unwrap();
    drop(abandoned);
    let mut encoder = zstd::Encoder::new(folder.write_nar().unwrap(), 1).unwrap();
    std::io::copy(&mut NarReader::open(&store.real_path(&path)).unwrap(), &mut encoder).unwrap();
    let mut incoming = encoder.finish().unwrap();
    incoming.flush().unwrap();
    let written = incoming.commit(Compression::Zstd).unwrap();
    let mut narinfo = NarInfo::new(&info, written.url, Compression::Zstd);
    narinfo.file_hash = Some(written.file_hash.into());
    narinfo.file_size = Some(written.file_size);
    folder.write_narinfo(&narinfo).unwrap();
    assert_eq!(
        folder.narinfo(&path.hash_part()).unwrap().unwrap().render(store.store_dir()),
        narinfo.render(store.store_dir())
    );
    assert_eq!(std::fs::read_dir(cache.join("nar")).unwrap().count(), 1);
    let from = format!("file://{}", cache.display());
    for judge in [Nix::New, Nix::Old] {
        let to = lab.dir.path().join(format!("{judge:?}"));
        run(judge
            .command("nix")
            .args(["copy", "--no-check-sigs", "--from", &from, "--to"])
            .arg(&to)
            .arg(lab.full(&path)));
        run(judge.command("nix-store").arg("--store").arg(&to).args(["--verify", "--check-contents"]));
    }
}
