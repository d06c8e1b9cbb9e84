//! The contract of nix-serve, route by route, under both dialects.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that fails may say so")]

mod support;

use std::process::Command;

use support::{NARVAL, NIX_SERVE, Server, Store, hash_part, stdout, value};

const ABSENT: &str = "00000000000000000000000000000000";

#[test]
fn nix_cache_info() {
    let store = Store::new();
    let server = Server::nix_serve(&store, &[], &[]);
    for method in ["GET", "POST", "DELETE", "OPTIONS"] {
        let answer = server.ask(method, "/nix-cache-info?x=y", &[]);
        assert_eq!(answer.status, 200, "{method}");
        assert_eq!(answer.text(), "StoreDir: /nix/store\nWantMassQuery: 1\nPriority: 30\n");
        assert_eq!(answer.field("content-type"), Some("text/plain"));
    }
    let server = Server::nix_serve(&store, &["--priority", "7"], &[]);
    assert!(server.get("/nix-cache-info").text().ends_with("Priority: 7\n"));
}

#[test]
fn narinfo_is_byte_for_byte_that_of_nix_serve() {
    let store = Store::new();
    let path = store.add_tree("tree");
    let (file, public) = store.key("test-1");
    let hash = hash_part(&path);
    let info = stdout(store.nix_store(&["--query", "--hash", &path]));
    let size = stdout(store.nix_store(&["--query", "--size", &path]));
    let nar_hash = info.strip_prefix("sha256:").unwrap();

    let plain = Server::nix_serve(&store, &[], &[]).get(&format!("/{hash}.narinfo"));
    let want = format!(
        "StorePath: {path}\nURL: nar/{hash}-{nar_hash}.nar\nCompression: none\nNarHash: sha256:{nar_hash}\nNarSize: {size}\n"
    );
    assert_eq!((plain.status, plain.text()), (200, want.as_str()));
    assert_eq!(plain.field("content-type"), Some("text/x-nix-narinfo"));

    let signed = Server::nix_serve(&store, &[], &[("NIX_SECRET_KEY_FILE", file.to_str().unwrap())]);
    let signed = signed.get(&format!("/{hash}.narinfo"));
    let sig = signed.text().strip_prefix(&want).and_then(|rest| rest.strip_prefix("Sig: ")).unwrap();
    let key: narval_nix::PublicKey = public.parse().unwrap();
    let fingerprint = format!("1;{path};sha256:{nar_hash};{size};");
    assert!(key.verify(fingerprint.as_bytes(), &sig.trim_end().parse().unwrap()));
}

#[test]
fn references_and_stored_signatures() {
    let store = Store::new();
    let base = store.add_file("base", "base");
    let (file, _) = store.key("stored-1");
    let expression = store.path("default.nix");
    std::fs::write(&expression, format!(r#"builtins.toFile "referrer" "see ${{builtins.storePath "{base}"}}""#))
        .unwrap();
    let uri = store.uri();
    let made = support::Nix::Newest
        .nix(store.dir.path(), &["eval", "--raw", "--impure", "--store", &uri, "--file", expression.to_str().unwrap()]);
    let path = stdout(made);
    let signed = support::Nix::Newest
        .nix(store.dir.path(), &["store", "sign", "--store", &uri, "--key-file", file.to_str().unwrap(), &path]);
    stdout(signed);
    let answer = Server::nix_serve(&store, &[], &[]).get(&format!("/{}.narinfo", hash_part(&path)));
    let base_name = base.strip_prefix("/nix/store/").unwrap();
    assert_eq!(value(answer.text(), "References"), Some(base_name));
    assert!(value(answer.text(), "Sig").unwrap().starts_with("stored-1:"));
    assert_eq!(value(answer.text(), "CA"), None);

    let (own, _) = store.key("own-1");
    let (second, _) = store.key("own-2");
    let args = ["--sign-key", own.to_str().unwrap(), "--sign-key", second.to_str().unwrap()];
    let rich = Server::narval(&store, &args).get(&format!("/{}.narinfo", hash_part(&path)));
    let names: Vec<_> = rich.text().lines().filter_map(|line| line.strip_prefix("Sig: ")?.split(':').next()).collect();
    assert_eq!(names, ["own-1", "own-2", "stored-1"]);
    assert!(value(rich.text(), "CA").unwrap().starts_with("text:sha256:"));
    assert_eq!(value(rich.text(), "FileSize"), value(rich.text(), "NarSize"));
    assert_eq!(value(rich.text(), "FileHash"), value(rich.text(), "NarHash"));
}

#[test]
fn requests_for_absent_files() {
    let store = Store::new();
    let path = store.add_file("a", "a");
    let hash = hash_part(&path);
    let other = "0mdqa9w1p6cmli6976v4wi0sw9r4p5prkj7lzfd1877wk11c9c73";
    // nix-serve's has no charset.
    let both = [
        (Server::nix_serve(&store, &[], &[]), "text/plain"),
        (Server::narval(&store, &[]), "text/plain; charset=utf-8"),
    ];
    for (server, content_type) in both {
        let cases = [
            (format!("/{ABSENT}.narinfo"), 404, "No such path.\n"),
            (format!("/nar/{ABSENT}.nar"), 404, "No such path.\n"),
            (format!("/nar/{ABSENT}-{other}.nar"), 404, "No such path.\n"),
            (format!("/nar/{hash}-{other}.nar"), 404, "Incorrect NAR hash. Maybe the path has been recreated.\n"),
            (format!("/nar/{other}.nar?hash={hash}"), 404, "Incorrect NAR hash. Maybe the path has been recreated.\n"),
            (format!("/log/{ABSENT}-a.drv"), 404, "No such path.\n"),
            (format!("/log/{hash}-a"), 404, "No such path.\n"),
            ("/nothing".to_owned(), 404, "File not found.\n"),
            ("/abc.narinfo".to_owned(), 400, "Invalid path.\n"),
            (format!("/{}.narinfo", "e".repeat(32)), 400, "Invalid path.\n"),
            ("/nar/abc.nar".to_owned(), 400, "Invalid path.\n"),
        ];
        for (path, status, text) in cases {
            // Twice: the first answer comes from the store, the second from memory.
            for _ in 0..2 {
                let answer = server.get(&path);
                assert_eq!((answer.status, answer.text()), (status, text), "{path}");
                assert_eq!(answer.field("content-type"), Some(content_type), "{path}");
                if status == 404 {
                    assert_eq!(answer.field("cache-control"), Some("no-store"), "{path}");
                }
            }
        }
    }
}

#[test]
fn nars_under_every_url() {
    let store = Store::new();
    let path = store.add_tree("tree");
    let (hash, nar) = (hash_part(&path), store.dump(&path));
    for server in [Server::nix_serve(&store, &[], &[]), Server::narval(&store, &[])] {
        let narinfo = server.get(&format!("/{hash}.narinfo"));
        let nar_hash = value(narinfo.text(), "NarHash").unwrap().strip_prefix("sha256:").unwrap().to_owned();
        for url in [
            format!("/{}", value(narinfo.text(), "URL").unwrap()),
            format!("/nar/{hash}-{nar_hash}.nar"),
            format!("/nar/{hash}.nar"),
            format!("/nar/{nar_hash}.nar?hash={hash}"),
        ] {
            for _ in 0..2 {
                let answer = server.get(&url);
                assert_eq!(answer.status, 200, "{url}");
                assert!(answer.complete && answer.body == nar, "{url}");
                assert_eq!(answer.field("content-length"), Some(nar.len().to_string().as_str()));
            }
        }
    }
    let plain = Server::nix_serve(&store, &[], &[]).get(&format!("/nar/{hash}.nar"));
    assert_eq!(plain.field("content-type"), Some("text/plain"));
}

#[test]
fn small_nars_from_memory_are_the_same() {
    let store = Store::new();
    let path = store.add_file("small", "small enough to be remembered");
    let (hash, nar) = (hash_part(&path), store.dump(&path));
    for server in [Server::nix_serve(&store, &[], &[]), Server::narval(&store, &[])] {
        let url = format!("/{}", value(server.get(&format!("/{hash}.narinfo")).text(), "URL").unwrap());
        for _ in 0..3 {
            // Not worth compressing.
            for fields in [&[][..], &["Accept-Encoding: zstd"]] {
                let answer = server.ask("GET", &url, fields);
                assert!(answer.status == 200 && answer.complete && answer.body == nar);
                assert_eq!(answer.field("content-encoding"), None);
                assert_eq!(answer.field("accept-ranges"), Some("bytes"));
            }
            let part = server.ask("GET", &url, &["Range: bytes=5-9"]);
            assert!(part.status == 206 && part.body == nar[5..10]);
            let etag = server.get(&url).field("etag").unwrap().to_owned();
            assert_eq!(server.ask("GET", &url, &[&format!("If-None-Match: {etag}")]).status, 304);
            assert!(server.ask("HEAD", &url, &[]).body.is_empty());
            let other = url.replace(".nar", "0.nar");
            assert_eq!(server.get(&other).status, 400);
        }
    }
}

#[test]
fn head_responses_have_the_head_of_get_and_no_body() {
    let store = Store::new();
    let path = store.add_tree("tree");
    let hash = hash_part(&path);
    for server in [Server::nix_serve(&store, &[], &[]), Server::narval(&store, &[])] {
        for path in [
            "/nix-cache-info".to_owned(),
            format!("/{hash}.narinfo"),
            format!("/{ABSENT}.narinfo"),
            format!("/nar/{hash}.nar"),
            "/nothing".to_owned(),
        ] {
            for _ in 0..2 {
                let (get, head) = (server.get(&path), server.ask("HEAD", &path, &[]));
                assert_eq!(head.status, get.status, "{path}");
                assert!(head.body.is_empty(), "{path}");
                assert_eq!(head.field("content-length"), get.field("content-length"), "{path}");
                assert_eq!(head.field("content-type"), get.field("content-type"), "{path}");
            }
        }
    }
}

#[test]
fn ranges_of_a_nar() {
    let store = Store::new();
    let path = store.add_tree("tree");
    let (url, nar) = (format!("/nar/{}.nar", hash_part(&path)), store.dump(&path));
    let server = Server::narval(&store, &[]);
    let whole = server.get(&url);
    assert_eq!(whole.field("accept-ranges"), Some("bytes"));
    let etag = whole.field("etag").unwrap().to_owned();
    let size = nar.len();
    for (start, end) in [(0, 0), (0, 999), (55, 57), (1000, 200_000), (300_001, 300_002), (size - 1, size - 1)] {
        let answer = server.ask("GET", &url, &[&format!("Range: bytes={start}-{end}")]);
        assert_eq!(answer.status, 206);
        assert_eq!(answer.field("content-range"), Some(format!("bytes {start}-{end}/{size}").as_str()));
        assert!(answer.complete && answer.body == nar[start..=end], "{start}-{end}");
    }
    let resumed = server.ask("GET", &url, &["Range: bytes=1000-", &format!("If-Range: {etag}")]);
    assert!(resumed.status == 206 && resumed.body == nar[1000..]);
    let changed = server.ask("GET", &url, &["Range: bytes=1000-", "If-Range: \"other\""]);
    assert!(changed.status == 200 && changed.body == nar);
    let beyond = server.ask("GET", &url, &[&format!("Range: bytes={size}-")]);
    assert_eq!(beyond.status, 416);
    assert_eq!(beyond.field("content-range"), Some(format!("bytes */{size}").as_str()));
    let several = server.ask("GET", &url, &["Range: bytes=0-9,500-509,-5"]);
    assert_eq!(several.status, 206);
    assert!(several.complete && several.field("content-type").unwrap().starts_with("multipart/byteranges; boundary="));
    for part in [&nar[..10], &nar[500..510], &nar[size - 5..]] {
        assert!(several.body.windows(part.len()).any(|window| window == part));
    }
    let not_modified = server.ask("GET", &url, &[&format!("If-None-Match: {etag}")]);
    assert!(not_modified.status == 304 && not_modified.body.is_empty());
}

#[test]
fn every_range_of_a_small_nar() {
    let store = Store::new();
    let tree = store.path("small");
    std::fs::create_dir(&tree).unwrap();
    std::fs::write(tree.join("a"), "0123456789").unwrap();
    std::os::unix::fs::symlink("a", tree.join("b")).unwrap();
    let path = store.add(&tree);
    let (url, nar) = (format!("/nar/{}.nar", hash_part(&path)), store.dump(&path));
    let server = Server::narval(&store, &[]);
    for start in 0..nar.len() {
        let answer = server.ask("GET", &url, &[&format!("Range: bytes={start}-")]);
        assert!(answer.status == 206 && answer.body == nar[start..], "{start}");
    }
}

#[test]
fn narinfos_are_validated_by_etag() {
    let store = Store::new();
    let path = store.add_file("a", "a");
    let server = Server::narval(&store, &[]);
    let url = format!("/{}.narinfo", hash_part(&path));
    for _ in 0..2 {
        let etag = server.get(&url).field("etag").unwrap().to_owned();
        let again = server.ask("GET", &url, &[&format!("If-None-Match: \"x\", {etag}")]);
        assert!(again.status == 304 && again.body.is_empty());
        assert_eq!(server.ask("GET", &url, &["If-None-Match: \"x\""]).status, 200);
    }
}

#[test]
fn the_routes_of_the_full_interface() {
    let store = Store::new();
    let tree = store.path("listed");
    std::fs::create_dir(&tree).unwrap();
    std::fs::write(tree.join("bar"), "foo\n").unwrap();
    std::os::unix::fs::symlink("xyzzy", tree.join("link")).unwrap();
    let path = store.add(&tree);
    let server = Server::narval(&store, &[]);
    let listing = server.get(&format!("/{}.ls", hash_part(&path)));
    assert_eq!(listing.field("content-type"), Some("application/json"));
    assert_eq!(
        listing.text(),
        r#"{"root":{"entries":{"bar":{"narOffset":232,"size":4,"type":"regular"},"link":{"target":"xyzzy","type":"symlink"}},"type":"directory"},"version":1}"#
    );
    assert_eq!(server.get("/health").text(), "ok\n");
    assert!(server.get("/").text().contains("/nix/store"));
    let refused = server.ask("DELETE", &format!("/{}.narinfo", hash_part(&path)), &[]);
    assert_eq!((refused.status, refused.field("allow")), (405, Some("GET, HEAD")));
    let plain = Server::nix_serve(&store, &[], &[]);
    for path in ["/health", "/", "/metrics"] {
        assert_eq!(plain.get(path).text(), "File not found.\n");
    }
}

#[test]
fn logs_plain_and_compressed() {
    let store = Store::new();
    let drv = "1ck49y25b3d5rywcg7a8fk0s4i8rc2d6-a+b.drv";
    let folder = store.path("root/nix/var/log/nix/drvs/1c");
    std::fs::create_dir_all(&folder).unwrap();
    let text = "building\n".repeat(100_000);
    std::fs::write(folder.join(&drv[2..]), &text).unwrap();
    for server in [Server::nix_serve(&store, &[], &[]), Server::narval(&store, &[])] {
        for path in [format!("/log/{drv}"), format!("/log/{}", drv.replace('+', "%2B"))] {
            let answer = server.get(&path);
            assert!(answer.status == 200 && answer.complete && answer.text() == text);
            assert_eq!(answer.field("content-type"), Some("text/plain"));
        }
    }
    assert!(Command::new("bzip2").arg(folder.join(&drv[2..])).status().unwrap().success());
    let answer = Server::nix_serve(&store, &[], &[]).get(&format!("/log/{drv}"));
    assert!(answer.status == 200 && answer.complete && answer.text() == text);
}

#[test]
fn everything_below_a_path() {
    let store = Store::new();
    let path = store.add_file("a", "a");
    let server = Server::nix_serve(&store, &["--path", "/cache"], &[]);
    assert_eq!(server.get("/cache/nix-cache-info").status, 200);
    assert_eq!(server.get(&format!("/cache/{}.narinfo", hash_part(&path))).status, 200);
    assert_eq!(server.get("/nix-cache-info").status, 404);
    assert_eq!(server.get("/cachenix-cache-info").status, 404);
}

#[test]
fn several_listeners_and_a_graceful_shutdown() {
    let store = Store::new();
    let socket = store.path("socket");
    let mut server = Server::nix_serve(&store, &["--listen", socket.to_str().unwrap(), "--workers", "50"], &[]);
    server.wait_for(|log| log.contains("unix socket").then_some(()));
    assert!(server.log().contains("--workers 50 means nothing here"));
    let curl = Command::new("curl")
        .args(["-s", "--unix-socket", socket.to_str().unwrap(), "http://x/nix-cache-info"])
        .output()
        .unwrap();
    assert!(stdout(curl).starts_with("StoreDir: /nix/store"));
    assert!(server.is_alive());
    assert_eq!(server.terminate(), Some(0));
    assert!(!socket.exists());
}

#[test]
#[allow(clippy::type_complexity, reason = "a table")]
fn a_wrong_start_is_one_line_and_exit_code_2() {
    let missing = "/nonexistent/key.sec";
    let cases: [(&str, &[&str], &[(&str, &str)], &str); 7] = [
        (NIX_SERVE, &["--port", "http"], &[], "option --port: 'http'"),
        (NIX_SERVE, &["--listen", "127.0.0.1:0"], &[("NIX_SECRET_KEY_FILE", missing)], missing),
        (NIX_SERVE, &["--store", "ssh://host"], &[], "ssh://host"),
        (NIX_SERVE, &["--listen", "192.0.2.1:5000"], &[], "192.0.2.1:5000"),
        (NIX_SERVE, &["--user", "no such user"], &[], "no such user"),
        (NARVAL, &["serve", "--sign-key", missing], &[], missing),
        (NARVAL, &["serve", "--listen", ":http"], &[], "'http'"),
    ];
    for (program, args, env, want) in cases {
        let output = Command::new(program).args(args).envs(env.iter().copied()).output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}: {error}");
        assert!(error.contains(want), "{args:?}: {error}");
    }
}

#[test]
fn access_logs() {
    let store = Store::new();
    let file = store.path("access.log");
    let server = Server::nix_serve(&store, &["--access-log", file.to_str().unwrap()], &[]);
    server.ask("GET", "/nix-cache-info", &["User-Agent: curl/8 Nix/2.34"]);
    assert_eq!(server.terminate(), Some(0));
    let log = std::fs::read_to_string(file).unwrap();
    assert!(log.contains("\"GET /nix-cache-info HTTP/1.1\" 200 "), "{log}");
    assert!(log.ends_with("\"curl/8 Nix/2.34\"\n"), "{log}");
}

#[test]
fn the_signals_of_starman() {
    let store = Store::new();
    let mut server = Server::nix_serve(&store, &[], &[]);
    let pid = server.pid().to_string();
    for signal in ["-HUP", "-TTIN", "-TTOU"] {
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
        std::thread::sleep(std::time::Duration::from_millis(50));
        assert!(server.is_alive(), "{signal}");
    }
    assert_eq!(server.end("-QUIT"), Some(0));
}
