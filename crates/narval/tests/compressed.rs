//! Compressed NARs: as a coding, under URLs of their own, from the cache, and by many clients at once.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that fails may say so")]

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use narval_nix::Sha256;
use support::{Answer, NARVAL, Nix, Server, Store, hash_part, stdout, value};

const ZSTD: &str = "Accept-Encoding: gzip, zstd";

/// Waits until the narinfo names the compressed NAR.
fn compressed_narinfo(server: &Server, hash: &str) -> String {
    let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while std::time::Instant::now() < until {
        let narinfo = server.get(&format!("/{hash}.narinfo")).text().to_owned();
        if value(&narinfo, "Compression") == Some("zstd") {
            return narinfo;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!("the compressed NAR did not come into the cache: {}", server.log());
}

fn files_in_cache(store: &Store) -> usize {
    let count = |path: &str| {
        Command::new("find").args([store.path(path).to_str().unwrap(), "-type", "f"]).output().unwrap().stdout
    };
    String::from_utf8(count("cache/narval/nars")).unwrap().lines().count()
}

fn metric(server: &Server, name: &str) -> u64 {
    let metrics = server.get("/metrics");
    metrics.figure(name).unwrap_or_else(|| panic!("no {name} in {}", metrics.text()))
}

#[test]
fn served_while_it_is_compressed_and_then_from_the_cache() {
    let store = Store::new();
    let path = store.add_tree("tree");
    let (hash, nar) = (hash_part(&path), store.dump(&path));
    let server = Server::narval(&store, &[]);
    let url = format!("/nar/{hash}.nar");
    assert_eq!(value(server.get(&format!("/{hash}.narinfo")).text(), "Compression"), Some("none"));
    let check = |answer: &Answer| {
        assert_eq!((answer.status, answer.field("content-encoding")), (200, Some("zstd")));
        assert_eq!(answer.field("vary"), Some("accept-encoding"));
        assert!(answer.complete && zstd::decode_all(&answer.body[..]).unwrap() == nar);
    };
    let first = server.ask("GET", &url, &[ZSTD]);
    check(&first);
    let narinfo = compressed_narinfo(&server, hash);
    let second = server.ask("GET", &url, &[ZSTD]);
    check(&second);
    assert!(first.body == second.body && second.field("content-length").is_some());
    // The advertised file is exactly what the narinfo says.
    let file = server.get(&format!("/{}", value(&narinfo, "URL").unwrap()));
    assert_eq!((file.status, file.field("content-encoding")), (200, None));
    assert_eq!(value(&narinfo, "FileSize"), Some(file.body.len().to_string().as_str()));
    assert_eq!(value(&narinfo, "FileHash"), Some(Sha256::of(&file.body).to_string().as_str()));
    // Ranges of it, and of the NAR without compression.
    let part = server.ask("GET", &format!("/{}", value(&narinfo, "URL").unwrap()), &["Range: bytes=10-99"]);
    assert!(part.status == 206 && part.body == file.body[10..100]);
    let part = server.ask("GET", &url, &["Range: bytes=10-99", ZSTD]);
    assert!(part.status == 206 && part.field("content-encoding").is_none() && part.body == nar[10..100]);
    // A client that already has it gets 304, whether it is cached or would have to be compressed.
    let condition = format!("If-None-Match: {}", first.field("etag").unwrap());
    assert_eq!(server.ask("GET", &url, &[ZSTD, &condition]).status, 304);
    fs::remove_dir_all(store.path("cache/narval/nars")).unwrap();
    assert_eq!(server.ask("GET", &url, &[ZSTD, &condition]).status, 304);
    // A client that does not ask for zstd does not get it.
    assert!(server.get(&url).body == nar);
    assert!(server.ask("GET", &url, &["Accept-Encoding: zstd;q=0"]).body == nar);
}

#[test]
fn real_nix_copies_compressed_nars() {
    let store = Store::new();
    let path = store.add_tree("tree");
    let (key, public) = store.key("test-1");
    let server = Server::narval(&store, &["--sign-key", key.to_str().unwrap()]);
    for (number, nix) in [Nix::Newest, Nix::Newest, Nix::Old].into_iter().enumerate() {
        let home = Store::new();
        let to = home.path("copy");
        let url = server.url();
        let args =
            ["copy", "--from", &url, "--to", to.to_str().unwrap(), "--option", "trusted-public-keys", &public, &path];
        stdout(nix.nix(home.dir.path(), &args));
        if number == 0 {
            // The first copy made it; the later ones get it.
            compressed_narinfo(&server, hash_part(&path));
        }
    }
}

#[test]
fn a_hundred_clients_at_once_cause_one_compression() {
    let store = Store::new();
    let path = store.add_tree("tree");
    let (hash, nar) = (hash_part(&path), store.dump(&path));
    let server = Server::narval(&store, &[]);
    let url = format!("/nar/{hash}.nar");
    std::thread::scope(|scope| {
        for _ in 0..100 {
            scope.spawn(|| {
                let answer = server.ask("GET", &url, &[ZSTD]);
                assert!(answer.complete && zstd::decode_all(&answer.body[..]).unwrap() == nar);
            });
        }
    });
    assert_eq!(metric(&server, "narval_nar_cache_misses_total"), 1);
    compressed_narinfo(&server, hash);
    assert_eq!(files_in_cache(&store), 1);
}

#[test]
fn wrong_contents_end_in_an_error_and_are_not_kept() {
    let store = Store::new();
    let path = store.add_tree("tree");
    let hash = hash_part(&path);
    let large = store.real(&path).join("large");
    let contents = fs::read(&large).unwrap();
    fs::set_permissions(&large, PermissionsExt::from_mode(0o644)).unwrap();
    let mut changed = contents.clone();
    changed[1000] ^= 1;
    // The same size: only a hash can tell.
    fs::write(&large, &changed).unwrap();
    let mut server = Server::narval(&store, &[]);
    // A NAR of one frame is known to be wrong before anything of it is sent: it is not there, for any of those who wait.
    std::thread::scope(|scope| {
        for _ in 0..5 {
            scope.spawn(|| assert_eq!(server.ask("GET", &format!("/nar/{hash}.nar"), &[ZSTD]).status, 404));
        }
    });
    for gone in [format!("/nar/{hash}.nar"), format!("/nar/{hash}.nar.zst"), format!("/{hash}.narinfo")] {
        assert_eq!(server.get(&gone).status, 404, "{gone}");
    }
    assert_eq!(metric(&server, "narval_corrupt_paths_total"), 1);
    assert_eq!(metric(&server, "narval_stream_aborts_total"), 0);
    server.wait_for(|log| log.contains(hash).then_some(()));
    assert_eq!(files_in_cache(&store), 0);
}

#[test]
fn a_wrong_nar_of_several_frames_is_aborted() {
    let store = Store::new();
    let noise =
        |length: u32| -> Vec<u8> { (0..length).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect() };
    let path = store.add_file("noise", noise(9 << 20));
    let real = store.real(&path);
    fs::set_permissions(&real, PermissionsExt::from_mode(0o644)).unwrap();
    let mut changed = noise(9 << 20);
    changed[1000] ^= 1;
    fs::write(&real, &changed).unwrap();
    let server = Server::narval(&store, &[]);
    let url = format!("/nar/{}.nar", hash_part(&path));
    let first = server.ask("GET", &url, &[ZSTD]);
    assert!(first.status == 200 && !first.complete, "the first frame was sent before anybody knew");
    assert_eq!(server.ask("GET", &url, &[ZSTD]).status, 404);
    assert_eq!(server.get(&url).status, 404);
    assert_eq!(metric(&server, "narval_corrupt_paths_total"), 1);
    assert_eq!(metric(&server, "narval_stream_aborts_total"), 1);
    assert_eq!(files_in_cache(&store), 0);
}

#[test]
fn verified_nars() {
    let store = Store::new();
    let (good, bad) = (store.add_tree("good"), store.add_tree("bad"));
    let large = store.real(&bad).join("large");
    fs::set_permissions(&large, PermissionsExt::from_mode(0o644)).unwrap();
    let contents = fs::read(&large).unwrap();
    let mut changed = contents.clone();
    changed[1000] ^= 1;
    fs::write(&large, &changed).unwrap();
    let server = Server::narval(&store, &["--verify-nars", "--no-nar-cache"]);
    let url = |path: &str| format!("/nar/{}.nar", hash_part(path));
    assert!(server.get(&url(&good)).body == store.dump(&good));
    assert_eq!(server.get(&format!("/{}.narinfo", hash_part(&bad))).status, 200, "nobody knows yet");
    assert!(!server.get(&url(&bad)).complete);
    assert_eq!(server.get(&url(&bad)).status, 404);
    // What is one piece is known to be wrong before the status line.
    let one = store.add_file("one", vec![7; 100_000]);
    fs::set_permissions(store.real(&one), PermissionsExt::from_mode(0o644)).unwrap();
    fs::write(store.real(&one), vec![8; 100_000]).unwrap();
    assert_eq!(server.ask("HEAD", &url(&one), &[]).status, 200, "nobody knows yet");
    assert_eq!(server.get(&url(&one)).status, 404);
    assert_eq!(server.get(&format!("/{}.narinfo", hash_part(&one))).status, 404);
    assert_eq!(server.get(&format!("/{}.narinfo", hash_part(&bad))).status, 404);
    assert_eq!(metric(&server, "narval_corrupt_paths_total"), 2);
    // Put right, in place of the old one as `nix-store --repair-path` does.
    let root = store.real(&bad);
    let aside = store.path("aside");
    assert!(Command::new("cp").arg("-a").args([&root, &aside]).status().unwrap().success());
    fs::write(aside.join("large"), &contents).unwrap();
    fs::set_permissions(&root, PermissionsExt::from_mode(0o755)).unwrap();
    fs::remove_dir_all(root.join("bin"))
        .or_else(|_| fs::set_permissions(root.join("bin"), PermissionsExt::from_mode(0o755)))
        .unwrap();
    assert!(Command::new("rm").arg("-rf").arg(&root).status().unwrap().success());
    fs::rename(&aside, &root).unwrap();
    assert!(server.get(&url(&bad)).complete);
    assert_eq!(server.get(&format!("/{}.narinfo", hash_part(&bad))).status, 200);
}

#[test]
fn nars_are_warmed_before_the_first_request() {
    let store = Store::new();
    let path = store.add_tree("tree");
    let warm = |args: &[&str]| {
        let mut command = Command::new(NARVAL);
        command.args(["warm", "--store", &store.uri()]).args(args).env("XDG_CACHE_HOME", store.path("cache"));
        command.output().unwrap()
    };
    let server = Server::narval(&store, &[]);
    assert_eq!(value(server.get(&format!("/{}.narinfo", hash_part(&path))).text(), "Compression"), Some("none"));
    let first = warm(&[&path]);
    assert!(String::from_utf8_lossy(&first.stderr).contains("1 compressed, 0 already present"));
    // A server that knew the path before it was compressed finds that out when it is asked for it compressed.
    assert!(server.ask("GET", &format!("/nar/{}.nar", hash_part(&path)), &[ZSTD]).field("content-length").is_some());
    assert_eq!(metric(&server, "narval_nar_cache_misses_total"), 0);
    compressed_narinfo(&server, hash_part(&path));
    let second = warm(&["--all"]);
    assert!(String::from_utf8_lossy(&second.stderr).contains("0 compressed, 1 already present"));
    assert_eq!(warm(&["/nix/store/nothing"]).status.code(), Some(2));
    let server = Server::narval(&store, &[]);
    let narinfo = server.get(&format!("/{}.narinfo", hash_part(&path)));
    assert_eq!(value(narinfo.text(), "Compression"), Some("zstd"));
    assert_eq!(server.ask("GET", &format!("/nar/{}.nar", hash_part(&path)), &[ZSTD]).status, 200);
    assert_eq!(metric(&server, "narval_nar_cache_hits_total"), 1);
}

#[test]
fn two_servers_share_one_cache_and_a_killed_one_leaves_nothing() {
    let store = Store::new();
    let root = store.path("big");
    fs::create_dir(&root).unwrap();
    let noise: Vec<u8> = (0..40_000_000_u32).map(|number| (number.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    fs::write(root.join("noise"), noise).unwrap();
    let path = store.add(&root);
    let url = format!("/nar/{}.nar", hash_part(&path));
    let killed = Server::narval(&store, &[]);
    {
        use std::io::{Read, Write};
        let mut stream = killed.connect();
        write!(stream, "GET {url} HTTP/1.1\r\nHost: a\r\n{ZSTD}\r\n\r\n").unwrap();
        stream.read_exact(&mut [0; 100_000]).unwrap();
        // kill -9 in the middle of it.
        drop(killed);
    }
    let (one, two) = (Server::narval(&store, &[]), Server::narval(&store, &[]));
    let dump = store.dump(&path);
    std::thread::scope(|scope| {
        for server in [&one, &two] {
            let (url, dump) = (&url, &dump);
            scope.spawn(move || {
                let answer = server.ask("GET", url, &[ZSTD]);
                assert!(answer.complete && zstd::decode_all(&answer.body[..]).unwrap() == *dump);
            });
        }
    });
    compressed_narinfo(&one, hash_part(&path));
    compressed_narinfo(&two, hash_part(&path));
    assert_eq!(files_in_cache(&store), 1, "the same NAR and level make the same file");
}

/// `narval serve` in a PID namespace of its own, where it is process 1; `None` where namespaces are refused.
fn contained(store: &Store) -> Option<Server> {
    let unshare = ["--user", "--map-root-user", "--pid", "--fork", "--kill-child"];
    let tried = Command::new("unshare").args(unshare).arg("true").output();
    if !tried.is_ok_and(|output| output.status.success()) {
        eprintln!("note: skipped: namespaces are refused here");
        return None;
    }
    let mut command = Command::new("unshare");
    command.args(unshare).args([NARVAL, "serve", "--listen", "127.0.0.1:0", "--store", &store.uri()]);
    Some(Server::start(command, &[("XDG_CACHE_HOME", store.path("cache").to_str().unwrap())]))
}

/// Two servers that are both process 1 write their first files into one cache at once: each stores its own bytes under its name,
/// whichever is done first. What is left of killed ones goes, though the next one has the same number.
#[test]
fn servers_in_two_containers_share_one_cache() {
    use std::io::{Read, Write};
    let store = Store::new();
    let paths = ["one", "two"].map(|name| {
        let root = store.path(name);
        fs::create_dir(&root).unwrap();
        let seed = u32::from(name.as_bytes()[0]);
        let noise = (0..40_000_000_u32).map(|number| ((number ^ seed).wrapping_mul(2_654_435_761) >> 13) as u8);
        fs::write(root.join("noise"), noise.collect::<Vec<u8>>()).unwrap();
        store.add(&root)
    });
    let request = |path: &str| {
        format!("GET /nar/{}.nar HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{ZSTD}\r\n\r\n", hash_part(path))
    };
    let begin = || {
        // Both are there before either begins: a file is made in less time than a server starts in.
        let [one, two] = [contained(&store)?, contained(&store)?];
        let begin = |(server, path): (Server, &String)| {
            let mut stream = server.connect();
            stream.write_all(request(path).as_bytes()).unwrap();
            stream.read_exact(&mut [0; 100_000]).unwrap();
            (server, stream)
        };
        Some([(one, &paths[0]), (two, &paths[1])].map(begin))
    };
    let folder = store.path("cache/narval/nars");
    let Some(mut begun) = begin() else { return };
    for (_, stream) in &mut begun {
        std::io::copy(stream, &mut std::io::sink()).unwrap();
    }
    for ((server, _), path) in begun.iter().zip(&paths) {
        compressed_narinfo(server, hash_part(path));
    }
    drop(begun);
    let listed = Command::new("find").arg(&folder).args(["-name", "*.nar.zst"]).output().unwrap();
    let listed = stdout(listed);
    assert_eq!(listed.lines().count(), 2);
    for file in listed.lines() {
        let name = file.rsplit('/').next().unwrap();
        assert_eq!(name.split('.').nth(1), Some(Sha256::of(&fs::read(file).unwrap()).to_nix32().as_str()), "{name}");
    }

    let left = || fs::read_dir(folder.join("filling")).unwrap().count();
    let begin_both = || {
        // One that was killed just now may still make a file.
        fs::remove_dir_all(&folder).ok();
        // On a busy machine, one may be done before the other one is seen.
        begin().filter(|_| left() == 2)
    };
    drop((0..20).find_map(|_| begin_both()).expect("two files that are made at once"));
    // `unshare` has taken its child with it, which takes a moment.
    let until = std::time::Instant::now() + std::time::Duration::from_secs(120);
    while left() > 0 {
        assert!(std::time::Instant::now() < until, "{} left", left());
        drop(contained(&store).unwrap());
    }
}

#[test]
fn the_cache_stays_within_its_size() {
    let store = Store::new();
    let mut paths = Vec::new();
    for number in 0..8_u32 {
        let noise: Vec<u8> =
            (0..200_000_u32).map(|at| (at.wrapping_add(number).wrapping_mul(2_654_435_761) >> 11) as u8).collect();
        paths.push(store.add_file(&format!("noise-{number}"), noise));
    }
    let server = Server::narval(&store, &["--nar-cache-size", "500K"]);
    for path in &paths {
        assert!(server.ask("GET", &format!("/nar/{}.nar", hash_part(path)), &[ZSTD]).complete);
    }
    let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while std::time::Instant::now() < until {
        let output =
            Command::new("du").args(["-sb", store.path("cache/narval/nars").to_str().unwrap()]).output().unwrap();
        let bytes: u64 = stdout(output).split_whitespace().next().unwrap().parse().unwrap();
        // Folders count for 4 KiB each.
        if bytes < 500 * 1024 + 64 * 1024 {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!("the cache stays above its size");
}

#[test]
fn a_folder_that_cannot_be_used_is_refused() {
    let store = Store::new();
    let path = store.add_file("a", "a");
    // Asked for by name: an error before anything listens.
    fs::write(store.path("file"), "").unwrap();
    let folder = store.path("file/nars");
    let output = Command::new(NARVAL)
        .args(["serve", "--listen", "127.0.0.1:0", "--store", &store.uri(), "--nar-cache", folder.to_str().unwrap()])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("cannot use the NAR cache"));
    // The default: the server continues without a cache.
    let mut command = Command::new(NARVAL);
    command.args(["serve", "--listen", "127.0.0.1:0", "--store", &store.uri()]);
    let server = Server::start(command, &[("XDG_CACHE_HOME", store.path("file").to_str().unwrap())]);
    assert!(server.log().contains("compressed NARs are not stored"));
    let answer = server.ask("GET", &format!("/nar/{}.nar", hash_part(&path)), &[ZSTD]);
    assert_eq!((answer.status, answer.field("content-encoding")), (200, None));
}

#[test]
fn a_folder_that_is_lost_while_it_serves() {
    let store = Store::new();
    let (one, two) = (store.add_tree("one"), store.add_tree("two"));
    let server = Server::narval(&store, &[]);
    let folder = store.path("cache/narval/nars");
    let url = |path: &str| format!("/nar/{}.nar", hash_part(path));
    assert_eq!(server.ask("GET", &url(&one), &[ZSTD]).field("content-encoding"), Some("zstd"));
    compressed_narinfo(&server, hash_part(&one));
    // Emptied: it is made anew.
    fs::remove_dir_all(&folder).unwrap();
    let again = server.ask("GET", &url(&one), &[ZSTD]);
    assert!(again.complete && zstd::decode_all(&again.body[..]).unwrap() == store.dump(&one));
    compressed_narinfo(&server, hash_part(&one));
    // Not to be had any more: NARs come as they are, and what a narinfo may have named comes all the same.
    fs::remove_dir_all(&folder).unwrap();
    fs::write(&folder, "").unwrap();
    for path in [&one, &two] {
        let answer = server.ask("GET", &url(path), &[ZSTD]);
        assert_eq!((answer.status, answer.field("content-encoding")), (200, None));
        assert!(answer.complete && answer.body == store.dump(path));
        let answer = server.get(&format!("{}.zst", url(path)));
        assert!(answer.complete && zstd::decode_all(&answer.body[..]).unwrap() == store.dump(path));
    }
    assert_eq!(server.log().matches("cannot write to the NAR cache").count(), 1);
}

#[test]
fn a_tree_of_small_files_is_packed_for_the_next_request() {
    let store = Store::new();
    let path = store.add_tree("tree");
    let (nar, url) = (store.dump(&path), format!("/nar/{}.nar", hash_part(&path)));
    for server in [Server::narval(&store, &[]), Server::narval(&store, &["--no-nar-cache"])] {
        let until = std::time::Instant::now() + std::time::Duration::from_secs(120);
        while metric(&server, "narval_flat_nar_hits_total") == 0 {
            assert!(std::time::Instant::now() < until, "it was never kept: {}", server.log());
            assert!(server.get(&url).body == nar);
        }
        let part = server.ask("GET", &url, &["Range: bytes=1000-299999"]);
        assert!(part.status == 206 && part.body == nar[1000..300_000]);
        let parts = server.ask("GET", &url, &["Range: bytes=0-9,100-199"]);
        assert!(parts.status == 206 && parts.complete && parts.body.windows(100).any(|part| part == &nar[100..200]));
    }
    // A cached NAR is not served any more when its path is gone from the database.
    let server = Server::narval(&store, &[]);
    let until = std::time::Instant::now() + std::time::Duration::from_secs(120);
    while metric(&server, "narval_flat_nar_hits_total") == 0 {
        assert!(std::time::Instant::now() < until);
        assert_eq!(server.get(&url).status, 200);
    }
    stdout(store.nix_store(&["--delete", &path]));
    assert_eq!(server.get(&url).status, 404);
}

#[test]
fn metrics_of_the_service_and_of_its_engine_are_one_text() {
    let store = Store::new();
    let path = store.add_file("a", "a");
    let server = Server::narval(&store, &[]);
    for _ in 0..2 {
        assert_eq!(server.get(&format!("/{}.narinfo", hash_part(&path))).status, 200);
    }
    let metrics = server.get("/metrics");
    assert_eq!(metrics.field("content-type"), Some("application/openmetrics-text; version=1.0.0; charset=utf-8"));
    let text = metrics.text();
    for name in [
        "narval_requests_total{route=\"narinfo\",status=\"200\"}",
        "narval_nar_bytes_total{encoding=\"identity\"}",
        "narval_nar_bytes_total{encoding=\"zstd\"}",
        "narval_narinfo_memo_hits_total",
        "narval_nar_cache_hits_total",
        "narval_single_flight_waits_total",
        "narval_layout_hits_total",
        "narval_stream_aborts_total",
        "narval_store_errors_total",
        "narval_worker_seconds_count",
        "narval_http_requests_total{where=\"inline\"}",
        "narval_http_responses_total{code=\"200\"}",
        "narval_http_inline_seconds_count",
        "narval_http_sent_bytes_total",
    ] {
        assert!(metrics.figure(name).is_some(), "{name} is not in {text}");
    }
    assert_eq!(metrics.figure("narval_requests_total{route=\"narinfo\",status=\"200\"}"), Some(2));
    assert_eq!(metrics.figure("narval_http_responses_total{code=\"200\"}"), Some(2));
    // OpenMetrics: each family once, and the mark of the end once, at the end.
    let mut families: Vec<_> = text.lines().filter(|line| line.starts_with("# TYPE ")).collect();
    families.sort_unstable();
    assert!(families.windows(2).all(|pair| pair[0] != pair[1]));
    assert!(text.ends_with("# EOF\n") && text.matches("# EOF").count() == 1);
}
