//! `nix copy --to` and its relatives.

use std::process::Command;

use crate::lab::Lab;
use crate::support::{Nix, Store, hash_part, stdout, value};

/// Two paths, one referring to the other and to itself.
fn closure(store: &Store) -> (String, String) {
    let base = store.add_tree("base");
    let expression = store.path("default.nix");
    let text = format!(r#"builtins.toFile "referrer" "see ${{builtins.storePath "{base}"}}""#);
    std::fs::write(&expression, text).unwrap();
    let uri = store.uri();
    let output = Command::new("nix-instantiate")
        .args(["--store", &uri, "--eval", "--json", "--read-write-mode", expression.to_str().unwrap()])
        .env("HOME", store.dir.path())
        .output()
        .unwrap();
    (base, stdout(output).trim_matches('"').to_owned())
}

/// harmonia#739, attic#7: what users want is `nix copy --to`, without a client of the cache's own.
#[test]
fn harmonia_739_attic_7_a_closure_is_pushed_and_pulled_by_both_nixes_in_every_compression() {
    for nix in Nix::BOTH {
        for compression in ["none", "zstd", "xz", "bzip2", "br"] {
            let lab = Lab::new();
            let (_, top) = closure(&lab.store);
            let parameters = format!("compression={compression}");
            lab.push(nix, &lab.token("push,pull"), &parameters, &top).unwrap();
            for puller in Nix::BOTH {
                lab.pull(puller, &top);
            }
        }
    }
}

/// Rarely used, and without an extension of their own, most of them: only the narinfo says how to decode the file.
#[test]
fn the_other_compressions_of_nix() {
    let lab = Lab::new();
    let token = lab.token("push");
    for compression in ["gzip", "lz4", "lzip", "lzma", "compress"] {
        let path = lab.store.add_tree(&format!("tree-{compression}"));
        lab.push(Nix::Newest, &token, &format!("compression={compression}"), &path).unwrap();
        let narinfo = lab.get(&format!("/{}.narinfo", hash_part(&path)));
        assert_eq!(value(narinfo.text(), "Compression"), Some(compression));
        lab.pull(Nix::Newest, &path);
    }
}

#[test]
fn every_parameter_of_the_url_works() {
    let lab = Lab::new();
    let token = lab.token("push");
    let (secret, public) = lab.store.key("push-1");
    let (other, _) = lab.store.key("push-2");
    let (secret, other) = (secret.to_str().unwrap(), other.to_str().unwrap());
    let certificates = lab.store.path("unused.pem");
    std::fs::write(&certificates, "").unwrap();
    let all = [
        (Nix::BOTH.to_vec(), "write-nar-listing=1".to_owned()),
        (Nix::BOTH.to_vec(), "index-debug-info=1".to_owned()),
        (Nix::BOTH.to_vec(), "compression=zstd&compression-level=3&parallel-compression=true".to_owned()),
        (Nix::BOTH.to_vec(), format!("secret-key={secret}")),
        (Nix::BOTH.to_vec(), format!("local-nar-cache={}", lab.store.path("nars").display())),
        (vec![Nix::Newest], format!("secret-keys={secret},{other}")),
        (
            vec![Nix::Newest],
            "narinfo-compression=gzip&ls-compression=br&log-compression=xz&write-nar-listing=1".to_owned(),
        ),
        (vec![Nix::Newest], "narinfo-compression=zstd&ls-compression=bzip2&write-nar-listing=1".to_owned()),
    ];
    for (number, (nixes, parameters)) in all.iter().enumerate() {
        for nix in nixes {
            let path = lab.store.add_file(&format!("file-{number}-{nix:?}"), format!("{number} {nix:?}"));
            lab.push(*nix, &token, parameters, &path).unwrap_or_else(|error| panic!("{nix:?} {parameters}: {error}"));
            lab.pull(*nix, &path);
            let hash = hash_part(&path);
            let narinfo = lab.get(&format!("/{hash}.narinfo"));
            assert_eq!(narinfo.status, 200, "{parameters}");
            if parameters.contains("secret-key") {
                let signer = value(narinfo.text(), "Sig").unwrap();
                assert!(public.starts_with(signer.split_once(':').unwrap().0), "{signer}");
            }
            // The cache makes listings itself.
            let listing = lab.get(&format!("/{hash}.ls"));
            assert_eq!((listing.status, listing.text().contains(r#""version":1"#)), (200, true), "{parameters}");
        }
    }
}

#[test]
fn nix_store_sign_adds_signatures() {
    let lab = Lab::new();
    let token = lab.token("push");
    let (secret, public) = lab.store.key("later-1");
    let path = lab.store.add_file("signed", "signed");
    lab.push(Nix::Newest, &token, "", &path).unwrap();
    assert_eq!(value(lab.get(&format!("/{}.narinfo", hash_part(&path))).text(), "Sig"), None);
    let url = lab.server.url();
    lab.nix(
        Nix::Newest,
        &token,
        &["store", "sign", "--refresh", "--store", &url, "-k", secret.to_str().unwrap(), &path],
    )
    .unwrap();
    let narinfo = lab.get(&format!("/{}.narinfo", hash_part(&path)));
    assert!(value(narinfo.text(), "Sig").unwrap().starts_with(public.split_once(':').unwrap().0));
}

#[test]
fn nix_store_copy_log_uploads_a_log_that_nix_log_shows() {
    let lab = Lab::new();
    let token = lab.token("push");
    // A log of the local store, as Nix keeps it.
    let expression = r#"derivation { name = "x"; system = "any"; builder = "/bin/sh"; }"#;
    let output = Command::new("nix-instantiate")
        .args(["--store", &lab.store.uri(), "-E", expression])
        .env("HOME", lab.store.dir.path())
        .output();
    let derivation = stdout(output.unwrap());
    let name = derivation.rsplit('/').next().unwrap();
    let folder = lab.store.path("root/nix/var/log/nix/drvs").join(&name[..2]);
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join(&name[2..]), "the build said this\n").unwrap();
    let url = lab.server.url();
    lab.nix(Nix::Newest, &token, &["store", "copy-log", "--from", &lab.store.uri(), "--to", &url, &derivation])
        .unwrap();
    let log = lab.get(&format!("/log/{name}"));
    assert_eq!((log.status, log.text()), (200, "the build said this\n"));
    let shown = lab.nix(Nix::Newest, &token, &["log", "--store", &url, &derivation]).unwrap();
    assert_eq!(shown, "the build said this\n");
}

#[test]
fn without_a_valid_token_the_copy_fails_with_a_hint() {
    let lab = Lab::new();
    let path = lab.store.add_file("file", "contents");
    let wrong = format!("nv1_{}_{}", "0".repeat(16), "0".repeat(52));
    for nix in Nix::BOTH {
        let home = lab.store.dir.path();
        let url = lab.server.url();
        let args = [
            "copy",
            "--refresh",
            "--to",
            &url,
            "--from",
            &lab.store.uri(),
            &path,
            "--option",
            "netrc-file",
            "/dev/null",
        ];
        let output = nix.nix(home, &args);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && error.contains("netrc"), "{nix:?}: {error}");
        let error = lab.push(nix, &wrong, "", &path).unwrap_err();
        assert!(error.contains("401") || error.contains("revoked"), "{nix:?}: {error}");
    }
    assert_eq!(lab.get(&format!("/{}.narinfo", hash_part(&path))).status, 404);
}

#[test]
fn a_large_path_is_pushed_with_expect_100_continue() {
    let lab = Lab::new();
    // Not compressible: Nix sends such a NAR with `Expect: 100-continue`.
    let mut contents = Vec::new();
    let mut hash = narval_nix::Sha256::of(b"seed");
    while contents.len() < 5 << 20 {
        contents.extend_from_slice(hash.as_bytes());
        hash = narval_nix::Sha256::of(hash.as_bytes());
    }
    let path = lab.store.add_file("large", contents);
    let token = lab.token("push");
    for nix in Nix::BOTH {
        for compression in ["none", "zstd"] {
            lab.push(nix, &token, &format!("compression={compression}"), &path).unwrap();
        }
        lab.pull(nix, &path);
    }
}

#[test]
fn the_live_store_is_served_first_and_the_cache_beside_it() {
    let store = Store::new();
    let other = Store::new();
    let live = store.add_tree("live");
    let lab = Lab::with(&["--store", &store.uri()]);
    let token = lab.token("push");
    // The path is in the live store: a push has nothing to do, and what refers to it can be pushed.
    let (base, top) = closure(&lab.store);
    let _ = other;
    lab.push(Nix::Newest, &token, "compression=zstd", &top).unwrap();
    lab.pull(Nix::Newest, &top);
    lab.pull(Nix::Old, &base);
    let narinfo = lab.get(&format!("/{}.narinfo", hash_part(&live)));
    assert_eq!(narinfo.status, 200);
    assert!(value(narinfo.text(), "URL").unwrap().starts_with(&format!("nar/{}-", hash_part(&live))));
    // The live store is never stale, whatever is remembered of the cache.
    let added = store.add_file("added", "added");
    assert_eq!(lab.get(&format!("/{}.narinfo", hash_part(&added))).status, 200);
    assert!(store.nix_store(&["--delete", &added]).status.success());
    assert_eq!(lab.get(&format!("/{}.narinfo", hash_part(&added))).status, 404);
}

/// ncps#937: NARs that are kept as xz are slow to decompress for ever after. Nix remembers the narinfo of a file that is another one now: it
/// gets what it remembers. Whoever asks now gets zstd.
#[test]
fn ncps_937_recompressed_nars_reach_clients_that_remember_the_old_ones() {
    let config = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(config.path(), "[[cache]]\nname = 'default'\nrecompress = 'zstd'\n").unwrap();
    let lab = Lab::with(&["--config", config.path().to_str().unwrap()]);
    let (_, top) = closure(&lab.store);
    lab.push(Nix::Newest, &lab.token("push"), "compression=xz", &top).unwrap();
    let narinfo = || lab.get(&format!("/{}.narinfo", hash_part(&top)));
    assert_eq!(value(narinfo().text(), "Compression"), Some("xz"));
    let old_url = value(narinfo().text(), "URL").unwrap().to_owned();
    let url = lab.server.url();
    let homes: Vec<_> = Nix::BOTH.iter().map(|nix| (nix, tempfile::tempdir().unwrap())).collect();
    for (nix, home) in &homes {
        stdout(nix.nix(home.path(), &["path-info", "--recursive", "--store", &url, &top]));
    }
    // The server looks every 20 s.
    let until = std::time::Instant::now() + std::time::Duration::from_secs(180);
    while value(narinfo().text(), "Compression") != Some("zstd") {
        assert!(std::time::Instant::now() < until, "{}", lab.server.log());
        std::thread::sleep(std::time::Duration::from_millis(500));
    }
    assert_ne!(value(narinfo().text(), "URL"), Some(&*old_url));
    assert_eq!(lab.get(&format!("/{old_url}")).body[..6], *b"\xfd7zXZ\0");
    for (nix, home) in &homes {
        let to = home.path().join("store");
        let args = ["copy", "--from", &url, "--to", to.to_str().unwrap(), "--no-check-sigs", &top];
        stdout(nix.nix(home.path(), &args));
        Command::new("chmod").args(["-R", "u+w", to.to_str().unwrap()]).status().unwrap();
        lab.pull(**nix, &top);
    }
}
