//! URLs that clients remember for 30 days, entity tags that they resume with, and files that change on disk.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that fails may say so")]

mod support;

use std::fs;
use std::net::TcpStream;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use narval_nix::Sha256;
use support::{NARVAL, NIX_SERVE, Server, Store, hash_part, noise, stdout, value};

const ZSTD: &str = "Accept-Encoding: zstd";
const PATIENCE: Duration = Duration::from_secs(60);

fn warm(store: &Store, arguments: &[&str]) {
    let mut command = Command::new(NARVAL);
    command.args(["warm", "--all", "--store", &store.uri()]).args(arguments).env("XDG_CACHE_HOME", store.path("cache"));
    stdout(command.output().unwrap());
}

fn compressed_files(folder: &Path) -> Vec<PathBuf> {
    let found = Command::new("find").arg(folder).args(["-name", "*.nar.zst"]).output().unwrap();
    stdout(found).lines().map(PathBuf::from).collect()
}

/// A server whose environment names no folder to keep anything in.
fn without_home(store: &Store, program: &str) -> Server {
    let mut command = Command::new(program);
    if program == NARVAL {
        command.arg("serve");
    }
    command.args(["--listen", "127.0.0.1:0", "--store", &store.uri()]);
    for name in ["HOME", "XDG_CACHE_HOME", "CACHE_DIRECTORY"] {
        command.env_remove(name);
    }
    Server::start(command, &[])
}

#[test]
fn every_url_that_was_handed_out_is_answered() {
    let store = Store::new();
    let (tree, file) = (store.add_tree("tree"), store.add_file("file", "contents"));
    warm(&store, &[]);
    let with_cache = Server::narval(&store, &[]);
    let mut urls = Vec::new();
    for path in [&tree, &file] {
        let (hash, nar) = (hash_part(path), store.dump(path));
        let narinfo = with_cache.get(&format!("/{hash}.narinfo"));
        let url = format!("/{}", value(narinfo.text(), "URL").unwrap());
        urls.push((path.clone(), nar.clone(), url));
        let nar_hash = Sha256::of(&nar).to_nix32();
        for dialect in [
            format!("/nar/{hash}-{nar_hash}.nar"),
            format!("/nar/{hash}.nar"),
            format!("/nar/{nar_hash}.nar?hash={hash}"),
            format!("/nar/{hash}-{nar_hash}.nar.zst"),
            format!("/nar/{hash}.nar.zst"),
            format!("/nar/{nar_hash}.nar.zst?hash={hash}"),
        ] {
            urls.push((path.clone(), nar.clone(), dialect));
        }
    }
    assert!(urls[0].2.ends_with(".nar.zst"), "the tree's compressed NAR is handed out: {}", urls[0].2);
    let mut servers = vec![
        ("with its cache", with_cache),
        ("another level", Server::narval(&store, &["--nar-cache-level", "5"])),
        ("--no-nar-cache", Server::narval(&store, &["--no-nar-cache"])),
        ("--verify-nars", Server::narval(&store, &["--no-nar-cache", "--verify-nars"])),
        ("nix-serve", Server::nix_serve(&store, &[], &[])),
        ("narval serve without HOME", without_home(&store, NARVAL)),
        ("nix-serve without HOME", without_home(&store, NIX_SERVE)),
    ];
    for (which, server) in &mut servers {
        for (path, nar, url) in &urls {
            // Twice: from the files, and from what is kept then.
            for _ in 0..2 {
                let answer = server.get(url);
                assert_eq!(answer.status, 200, "{which}: {url} of {path}");
                let is_zstd = url.contains(".nar.zst");
                let got = if is_zstd { zstd::decode_all(&answer.body[..]).unwrap() } else { answer.body.clone() };
                assert!(answer.complete && got == *nar, "{which}: {url} of {path}");
                assert_eq!(server.ask("HEAD", url, &[]).status, 200, "{which}: {url}");
            }
        }
        // As long as the path is there.
        let none = format!("/nar/{}.nar.zst", "0".repeat(32));
        assert_eq!(server.get(&none).status, 404, "{which}");
    }
    stdout(store.nix_store(&["--delete", &file]));
    for (which, server) in &servers {
        for (_, _, url) in urls.iter().filter(|(path, ..)| *path == file) {
            assert_eq!(server.get(url).status, 404, "{which}: {url}");
        }
    }
}

/// Real Nix that remembers a narinfo of a server with a cache, and comes back when that has none.
#[test]
fn nix_returns_to_a_server_without_its_cache() {
    let store = Store::new();
    let path = store.add_tree("tree");
    warm(&store, &[]);
    let port;
    {
        let server = Server::narval(&store, &[]);
        port = server.address;
        let info = store_info(&store, &server, &path);
        assert!(info.contains(&path), "{info}");
    }
    for program in [NARVAL, NIX_SERVE] {
        let mut command = Command::new(program);
        if program == NARVAL {
            command.args(["serve", "--no-nar-cache"]);
        }
        let log = store.path("access.log");
        command.args(["--listen", &port.to_string(), "--store", &store.uri()]).arg("--access-log").arg(&log);
        let server = Server::start(command, &[]);
        let copy = store.path("copy");
        let arguments = ["copy", "--no-check-sigs", "--from", &server.url(), "--to", copy.to_str().unwrap(), &path];
        stdout(support::Nix::Newest.nix(store.dir.path(), &arguments));
        assert!(copy.join(path.strip_prefix('/').unwrap()).join("large").exists());
        assert!(Command::new("chmod").args(["-R", "u+w"]).arg(&copy).status().unwrap().success());
        fs::remove_dir_all(copy).unwrap();
        server.terminate();
        let log = fs::read_to_string(log).unwrap();
        assert!(log.contains(".nar.zst HTTP/1.1\" 200"), "Nix asks by the URL that it remembers: {log}");
    }
}

fn store_info(store: &Store, server: &Server, path: &str) -> String {
    stdout(support::Nix::Newest.nix(store.dir.path(), &["path-info", "--store", &server.url(), path]))
}

/// What is resumed with an entity tag is what the tag was given for.
#[test]
fn an_entity_tag_tells_level_and_library() {
    let store = Store::new();
    let path = store.add_tree("tree");
    let url = format!("/nar/{}.nar.zst", hash_part(&path));
    let mut seen: Vec<(String, Vec<u8>)> = Vec::new();
    for level in ["1", "9", "3"] {
        let folder = store.path(&format!("nars-{level}"));
        let server = Server::narval(&store, &["--nar-cache-level", level, "--nar-cache", folder.to_str().unwrap()]);
        for round in 0..3 {
            let answer = server.get(&url);
            assert!(answer.status == 200 && answer.complete);
            let etag = answer.field("etag").unwrap().to_owned();
            match seen.iter().find(|(known, _)| *known == etag) {
                Some((_, body)) => assert!(*body == answer.body, "{etag}: other bytes, level {level}, round {round}"),
                None => seen.push((etag.clone(), answer.body.clone())),
            }
            // Resumed: a part of the same bytes, or all of the others.
            for (etag, body) in &seen {
                let resumed = server.ask("GET", &url, &["Range: bytes=100-", &format!("If-Range: {etag}")]);
                match resumed.status {
                    206 => assert!(resumed.body == body[100..], "{etag} resumed at level {level} with other bytes"),
                    status => assert!(status == 200 && resumed.body == answer.body),
                }
            }
            wait_for_file(&folder);
        }
        // A client that saw it being made resumes it from the file.
        let (etag, body) = seen.last().unwrap();
        let resumed = server.ask("GET", &url, &["Range: bytes=100-", &format!("If-Range: {etag}")]);
        assert!(resumed.status == 206 && resumed.body == body[100..]);
        // As a coding it has the same tag only if it is the same bytes.
        let coded = server.ask("GET", &url.replace(".zst", ""), &[ZSTD]);
        assert_eq!(coded.field("content-encoding"), Some("zstd"));
        assert_eq!(coded.field("etag") == Some(etag.as_str()), coded.body == *body);
    }
    assert_eq!(seen.len(), 3, "each level has its own tag");
    let alone = Server::narval(&store, &["--no-nar-cache"]).get(&url);
    for (etag, body) in &seen {
        assert_eq!(alone.field("etag") == Some(etag.as_str()), alone.body == *body, "{etag}");
    }
}

fn wait_for_file(folder: &Path) {
    let until = Instant::now() + PATIENCE;
    while compressed_files(folder).is_empty() {
        assert!(Instant::now() < until);
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn nars_warmed_at_a_higher_level_are_sent() {
    let store = Store::new();
    let path = store.add_tree("tree");
    warm(&store, &["--nar-cache-level", "9"]);
    let folder = store.path("cache/narval/nars");
    let files = compressed_files(&folder);
    let file = files.iter().find(|file| file.to_str().unwrap().contains("zstd-9-")).unwrap();
    let server = Server::narval(&store, &[]);
    let narinfo = server.get(&format!("/{}.narinfo", hash_part(&path)));
    assert_eq!(value(narinfo.text(), "Compression"), Some("zstd"));
    let answer = server.get(&format!("/{}", value(narinfo.text(), "URL").unwrap()));
    assert!(answer.body == fs::read(file).unwrap(), "the file of level 9 is sent");
    assert_eq!(compressed_files(&folder).len(), files.len(), "nothing was made a second time");
    // The other way round it was asked for something better.
    drop(server);
    let store = Store::new();
    let path = store.add_tree("tree");
    warm(&store, &[]);
    let server = Server::narval(&store, &["--nar-cache-level", "9"]);
    let narinfo = server.get(&format!("/{}.narinfo", hash_part(&path)));
    assert_eq!(value(narinfo.text(), "Compression"), Some("none"));
}

/// A bit that changes on disk costs one compression, and no client its download.
#[test]
fn a_file_that_changed_on_disk_is_compressed_again() {
    let store = Store::new();
    // The second one is too large to be checked before it is sent.
    let (tree, large) = (store.add_tree("tree"), store.add_file("large", noise(1, 17 << 20)));
    warm(&store, &[]);
    let folder = store.path("cache/narval/nars");
    for file in compressed_files(&folder) {
        let file = fs::OpenOptions::new().read(true).write(true).open(file).unwrap();
        let middle = file.metadata().unwrap().len() / 2;
        let mut byte = [0];
        file.read_exact_at(&mut byte, middle).unwrap();
        file.write_all_at(&[byte[0] ^ 1], middle).unwrap();
    }
    let server = Server::narval(&store, &[]);
    let is_right = |path: &str| {
        let answer = server.get(&format!("/nar/{}.nar.zst", hash_part(path)));
        assert_eq!(answer.status, 200);
        answer.complete && zstd::decode_all(&answer.body[..]).is_ok_and(|nar| nar == store.dump(path))
    };
    assert!(is_right(&tree), "the first client gets it right");
    let until = Instant::now() + PATIENCE;
    while !is_right(&large) {
        assert!(Instant::now() < until, "{}", server.log());
        std::thread::sleep(Duration::from_millis(20));
    }
    for path in [&tree, &large] {
        assert!(is_right(path), "and it stays so");
    }
    assert!(server.log().contains("is damaged"), "{}", server.log());
    assert_eq!(server.get("/metrics").figure("narval_nar_cache_damaged_total"), Some(2));
}

/// Kept NARs leave the descriptors that connections and files being sent need.
#[test]
fn few_descriptors_are_enough() {
    const DESCRIPTORS: usize = 256;
    let store = Store::new();
    // Worth it when they are asked for again, and too large for memory.
    let roots: Vec<String> = (0..150)
        .map(|number| {
            let root = store.path(&format!("tree-{number}"));
            fs::create_dir(&root).unwrap();
            ["a", "b"].iter().for_each(|name| fs::write(root.join(name), format!("{number:020}").repeat(500)).unwrap());
            root.to_str().unwrap().to_owned()
        })
        .collect();
    let arguments: Vec<&str> = std::iter::once("--add").chain(roots.iter().map(String::as_str)).collect();
    let paths: Vec<String> = stdout(store.nix_store(&arguments)).lines().map(str::to_owned).collect();
    for program in [NARVAL, NIX_SERVE] {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("ulimit -n {DESCRIPTORS}; exec \"$@\""), "sh", program]);
        if program == NARVAL {
            command.args(["serve", "--no-nar-cache"]);
        }
        command.args(["--listen", "127.0.0.1:0", "--store", &store.uri()]);
        let server = Server::start(command, &[]);
        // Sent, kept, and sent from what is kept.
        for _ in 0..3 {
            for path in &paths {
                let answer = server.get(&format!("/nar/{}.nar", hash_part(path)));
                assert!(answer.status == 200 && answer.complete, "{path}: {}", server.log());
            }
        }
        // As many idle connections as come; some may be refused.
        let idle: Vec<TcpStream> = (0..DESCRIPTORS).map_while(|_| TcpStream::connect(server.address).ok()).collect();
        let mut idle = idle.into_iter();
        idle.by_ref().take(DESCRIPTORS / 4).for_each(drop);
        let until = Instant::now() + PATIENCE;
        for path in &paths {
            // A client that is refused tries again.
            loop {
                let mut request = format!("GET /nar/{}.nar HTTP/1.1\r\nHost: x\r\n", hash_part(path));
                request.push_str("Connection: close\r\n\r\n");
                let answer = support::Answer::parse(&server.send(request.as_bytes()));
                if answer.is_some_and(|answer| answer.status == 200 && answer.complete) {
                    break;
                }
                assert!(Instant::now() < until, "{}", server.log());
            }
        }
        assert!(!server.log().contains("Too many open files"), "{}", server.log());
    }
}
