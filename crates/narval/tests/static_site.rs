//! `narval static` as a program, with plain sockets and curl.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that fails may say so")]

mod support;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use support::{Answer, NARVAL, Server};

fn site() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    for (name, content) in [
        ("index.html", "<!doctype html>home"),
        ("a b.txt", "with a space"),
        ("sub/index.html", "sub"),
        ("list/<x>&.txt", "odd"),
        ("list/.secret", "hidden"),
        (".env", "PASSWORD=1"),
        (".well-known/security.txt", "contact"),
        ("assets/app.1234.js", "js"),
        ("404.html", "custom 404"),
    ] {
        let path = root.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
    fs::write(root.join("big.bin"), big()).unwrap();
    folder
}

fn big() -> Vec<u8> {
    (0..400_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

fn serve(root: &Path, args: &[&str]) -> Server {
    let mut command = Command::new(NARVAL);
    command.arg("static").arg(root).args(["--listen", "127.0.0.1:0"]).args(args);
    Server::start(command, &[])
}

fn text(answer: &Answer) -> String {
    String::from_utf8_lossy(&answer.body).into_owned()
}

#[test]
fn the_log_names_the_client_that_a_trusted_proxy_names() {
    let folder = site();
    let log = folder.path().join(".log");
    let named = |args: &[&str], line: usize| {
        let args = [args, &["--access-log", log.to_str().unwrap()]].concat();
        let server = serve(folder.path(), &args);
        server.ask("GET", "/", &["X-Forwarded-For: 1.1.1.1, 192.0.2.9"]);
        loop {
            let text = fs::read_to_string(&log).unwrap();
            if let Some(line) = text.lines().nth(line).filter(|_| text.ends_with('\n')) {
                return line.split(' ').next().unwrap().to_owned();
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    };
    assert_eq!(named(&["--trusted-proxy", "127.0.0.1"], 0), "192.0.2.9");
    assert_eq!(named(&["--trusted-proxy", "10.0.0.0/8", "--trusted-proxy", "unix"], 1), "127.0.0.1");
    assert_eq!(named(&["--trusted-proxy", "10.0.0.0/8", "--access-log-format", "real-ip"], 2), "127.0.0.1");
}

#[test]
fn files_folders_and_absent_names() {
    let folder = site();
    let server = serve(folder.path(), &["--not-found", "404.html"]);
    // Twice: from the disk, then from memory.
    for _ in 0..2 {
        let home = server.get("/");
        assert_eq!((home.status, text(&home).as_str()), (200, "<!doctype html>home"));
        assert_eq!(home.field("content-type").unwrap(), "text/html; charset=utf-8");
        assert_eq!(text(&server.get("/a%20b.txt")), "with a space");
        assert_eq!(text(&server.get("/sub/?query=1")), "sub");
        assert!(server.get("/big.bin").body == big());
        let head = server.ask("HEAD", "/big.bin", &[]);
        assert_eq!((head.status, head.field("content-length").unwrap(), head.body.len()), (200, "400000", 0));
        for gone in ["/none", "/list/", "/.env", "/list/.secret", "/index.html/", "/none/index.html"] {
            let answer = server.get(gone);
            assert_eq!((answer.status, text(&answer).as_str()), (404, "custom 404"), "{gone}");
        }
        assert_eq!(server.get("/.well-known/security.txt").status, 200);
        let moved = server.get("/sub?q");
        assert_eq!((moved.status, moved.field("location").unwrap()), (301, "/sub/?q"));
        // Not another host's name.
        assert_eq!(server.get("//sub").field("location").unwrap(), "/sub/");
    }
    let refused = server.ask("POST", "/", &["Content-Length: 0"]);
    assert_eq!((refused.status, refused.field("allow").unwrap()), (405, "GET, HEAD, OPTIONS"));
    assert_eq!(server.ask("OPTIONS", "/", &[]).status, 204);
}

#[test]
fn nothing_outside_the_folder() {
    let folder = site();
    let root = folder.path();
    fs::write(root.parent().unwrap().join("narval-static-outside"), "outside").unwrap();
    symlink("/etc/passwd", root.join("passwd")).unwrap();
    symlink("../narval-static-outside", root.join("up")).unwrap();
    symlink("/etc", root.join("etc")).unwrap();
    symlink("a b.txt", root.join("inside")).unwrap();
    symlink("loop", root.join("loop")).unwrap();
    assert!(Command::new("mkfifo").arg(root.join("fifo")).status().unwrap().success());
    let server = serve(root, &["--hidden", "--listing"]);
    for path in ["/passwd", "/up", "/etc/passwd", "/etc/", "/loop", "/fifo"] {
        let answer = server.get(path);
        assert_eq!(answer.status, 404, "{path}: {}", text(&answer));
    }
    for path in ["/../etc/passwd", "/%2e%2e/etc/passwd", "/..%2fetc/passwd", "/a%00b", "/sub/../../etc/passwd"] {
        assert_eq!(server.get(path).status, 400, "{path}");
    }
    assert_eq!(text(&server.get("/inside")), "with a space");
    // Another run of the tests may have had the same idea.
    let _ = fs::remove_file(root.parent().unwrap().join("narval-static-outside"));
}

#[test]
fn conditions_and_ranges() {
    let folder = site();
    let server = serve(folder.path(), &[]);
    for path in ["/a%20b.txt", "/big.bin"] {
        let content = server.get(path).body;
        let etag = server.get(path).field("etag").unwrap().to_owned();
        let modified = server.get(path).field("last-modified").unwrap().to_owned();
        let ask = |fields: &[&str]| server.ask("GET", path, fields);
        assert_eq!(ask(&[&format!("If-None-Match: \"x\", {etag}")]).status, 304);
        assert_eq!(ask(&[&format!("If-Modified-Since: {modified}")]).status, 304);
        assert_eq!(ask(&["If-Match: \"x\""]).status, 412);
        assert_eq!(ask(&["If-Unmodified-Since: Thu, 01 Jan 1970 00:00:00 GMT"]).status, 412);
        let part = ask(&["Range: bytes=2-5"]);
        assert_eq!((part.status, &part.body[..]), (206, &content[2..6]));
        assert_eq!(part.field("content-range").unwrap(), format!("bytes 2-5/{}", content.len()));
        assert_eq!(ask(&["Range: bytes=-4"]).body, &content[content.len() - 4..]);
        let resumed = ask(&["Range: bytes=5-", &format!("If-Range: {etag}")]);
        assert!(resumed.status == 206 && resumed.body == content[5..]);
        let changed = ask(&["Range: bytes=5-", "If-Range: \"other\""]);
        assert!(changed.status == 200 && changed.body == content);
        assert_eq!(ask(&["Range: bytes=9999999-"]).status, 416);
        let several = ask(&["Range: bytes=0-0,3-4"]);
        assert_eq!(several.status, 206);
        let boundary = several.field("content-type").unwrap().split("boundary=").nth(1).unwrap().to_owned();
        let parts = several.body.windows(boundary.len()).filter(|w| *w == boundary.as_bytes()).count();
        assert_eq!(parts, 3, "two parts and the end");
    }
}

#[test]
fn listings_for_people_and_programs() {
    let folder = site();
    let server = serve(folder.path(), &["--listing"]);
    let page = server.get("/list/");
    let html = text(&page);
    assert!(html.contains("&lt;x&gt;&amp;.txt") && !html.contains("<x>") && !html.contains(".secret"), "{html}");
    assert!(html.contains("name=viewport"));
    let json = text(&server.get("/list/?format=json"));
    assert!(json.contains(r#""name":"<x>&.txt""#) && json.contains(r#""size":3"#), "{json}");
    assert_eq!(text(&server.get("/list/%3Cx%3E%26.txt")), "odd");
    assert!(text(&server.get("/")).contains("home"), "an index file comes before the list");
}

#[test]
fn files_compressed_in_advance() {
    let folder = site();
    let long = "body { color: red }\n".repeat(2000);
    fs::write(folder.path().join("a.css"), &long).unwrap();
    let made = Command::new(NARVAL).args(["static", "compress"]).arg(folder.path()).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    assert!(String::from_utf8_lossy(&made.stdout).contains("3 encodings written"), "{:?}", made.stdout);
    let server = serve(folder.path(), &["--compress", "--cors", "https://a.example"]);
    for _ in 0..2 {
        let plain = server.get("/a.css");
        assert!(text(&plain) == long && plain.field("vary").unwrap().contains("accept-encoding"));
        for coding in ["zstd", "br", "gzip"] {
            let field = format!("Accept-Encoding: {coding}");
            let answer = server.ask("GET", "/a.css", &[&field, "Origin: https://a.example"]);
            assert_eq!(answer.field("content-encoding"), Some(coding));
            assert!(answer.body.len() < 500);
            assert_ne!(answer.field("etag"), plain.field("etag"));
            assert_eq!(answer.field("access-control-allow-origin"), Some("https://a.example"));
        }
        let refused = server.ask("GET", "/a.css", &["Accept-Encoding: zstd;q=0, br;q=0, gzip;q=0, deflate;q=0"]);
        assert_eq!(text(&refused), long);
    }
    // A file that is newer than its forms is served itself (or compressed on its way).
    std::thread::sleep(std::time::Duration::from_millis(1100));
    let new = "p { color: blue }\n".repeat(2000);
    fs::write(folder.path().join("a.css"), &new).unwrap();
    assert!(text(&server.get("/a.css")) == new);
}

#[test]
fn applications_and_cache_rules() {
    let folder = site();
    let rules = ["--cache-control", "assets/**=public, max-age=31536000, immutable", "--cache-control", "**=no-cache"];
    let server = serve(folder.path(), &[&["--spa", "index.html"], &rules[..]].concat());
    let page = server.ask("GET", "/some/route", &["Accept: text/html"]);
    assert_eq!((page.status, text(&page).as_str()), (200, "<!doctype html>home"));
    assert_eq!(server.get("/missing.js").status, 404);
    let asset = server.get("/assets/app.1234.js");
    assert_eq!(asset.field("cache-control"), Some("public, max-age=31536000, immutable"));
    assert_eq!(server.get("/a%20b.txt").field("cache-control"), Some("no-cache"));
}

#[test]
fn a_file_that_is_replaced_is_never_served_mixed() {
    let folder = site();
    // From memory with the head and behind it, by the shard's sendfile and by a worker's.
    for size in [2_000, 20_000, 60_000, 300_000, 1_200_000] {
        let name = folder.path().join("swap");
        let content = |version: u8| vec![version; size + usize::from(version)];
        fs::write(&name, content(1)).unwrap();
        let server = serve(folder.path(), &["--revalidate-after", "1"]);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut version = 1;
                while !stop.load(Ordering::Relaxed) {
                    version = version % 200 + 1;
                    let next = folder.path().join("next");
                    fs::write(&next, content(version)).unwrap();
                    fs::rename(next, &name).unwrap();
                }
            });
            let readers: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(|| {
                        for _ in 0..100 {
                            let body = server.get("/swap").body;
                            assert!(body == content(body[0]), "mixed or cut: {} bytes of {}", body.len(), body[0]);
                        }
                    })
                })
                .collect();
            let outcomes: Vec<_> = readers.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
            stop.store(true, Ordering::Relaxed);
            assert!(outcomes.iter().all(Result::is_ok));
        });
    }
}

/// A cached file is checked again after `--revalidate-after`.
#[test]
fn changes_are_seen_at_the_next_check() {
    let folder = site();
    let name = |name: &str| folder.path().join(name);
    let server = serve(folder.path(), &["--revalidate-after", "1", "--index", "first.html", "--index", "index.html"]);
    let looked_at_again = || std::thread::sleep(std::time::Duration::from_millis(5));
    let is = |path: &str, body: &str| {
        // Once by a worker, perhaps, and once from what it left.
        for _ in 0..2 {
            looked_at_again();
            assert_eq!(text(&server.get(path)), body, "{path}");
        }
    };
    fs::create_dir(name("one")).unwrap();
    fs::create_dir(name("two")).unwrap();
    fs::write(name("one/page"), "of one").unwrap();
    fs::write(name("two/page"), "of two!").unwrap();
    symlink("one", name("current")).unwrap();
    is("/current/page", "of one");
    // As a deployment does it: the file that was found is as it was.
    symlink("two", name("next")).unwrap();
    fs::rename(name("next"), name("current")).unwrap();
    is("/current/page", "of two!");
    // An index file that comes before the one that was found.
    fs::write(name("two/index.html"), "second").unwrap();
    is("/two/", "second");
    fs::write(name("two/first.html"), "first").unwrap();
    is("/two/", "first");
    fs::remove_file(name("two/first.html")).unwrap();
    is("/two/", "second");
    // An encoding that comes to be.
    let zstd = || {
        looked_at_again();
        let answer = server.ask("GET", "/two/page", &["Accept-Encoding: zstd"]);
        answer.field("content-encoding").map(str::to_owned)
    };
    assert_eq!(zstd(), None);
    fs::write(name("two/page.zst"), "small").unwrap();
    assert_eq!(zstd().as_deref(), Some("zstd"));
    assert_eq!(zstd().as_deref(), Some("zstd"));
    fs::remove_file(name("two/page.zst")).unwrap();
    assert_eq!(zstd(), None);
    // What leads out of the folder, or is gone.
    fs::remove_file(name("current")).unwrap();
    symlink("/etc", name("current")).unwrap();
    looked_at_again();
    assert_eq!(server.get("/current/page").status, 404);
    fs::remove_file(name("two/page")).unwrap();
    looked_at_again();
    assert_eq!(server.get("/two/page").status, 404);
}

#[test]
fn https_for_a_first_try_and_wrong_options() {
    let folder = site();
    let server = serve(folder.path(), &["--tls-self-signed"]);
    let url = format!("https://127.0.0.1:{}/big.bin", server.address.port());
    let out = Command::new("curl").args(["--silent", "--insecure", "--max-time", "60", &url]).output().unwrap();
    assert!(out.status.success() && out.stdout == big());
    for (args, message) in [
        (&["--tls-cert", "none.pem", "--tls-key", "none.key"][..], "cannot read certificate 'none.pem'"),
        (&["--tls-cert", "none.pem"], "option --tls-cert: give one --tls-key for each"),
        (&["--cache-control", "no equals sign"], "has no '='"),
        (&["--listen", "127.0.0.1:99999"], "99999"),
    ] {
        let out = Command::new(NARVAL).arg("static").arg(folder.path()).args(args).output().unwrap();
        let stderr = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.code() == Some(2) && stderr.contains(message), "{args:?}: {stderr}");
    }
    let out = Command::new(NARVAL).args(["static", "/no/such/folder"]).output().unwrap();
    assert!(out.status.code() == Some(2) && String::from_utf8_lossy(&out.stderr).contains("'/no/such/folder'"));
}

/// An authority's word that the certificate is good goes out with it, to clients that ask, in both versions of TLS.
#[test]
fn an_ocsp_response_is_stapled() {
    let folder = site();
    let made = tempfile::tempdir().unwrap();
    let script = "set -e; new='-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes'
        openssl req -x509 $new -days 2 -subj '/CN=an authority' -keyout ca.key -out ca.pem
        openssl req $new -subj /CN=localhost -keyout key.pem -out request.pem
        echo 'subjectAltName=DNS:localhost' > names
        openssl x509 -req -in request.pem -CA ca.pem -CAkey ca.key -set_serial 4096 -days 2 -extfile names -out cert.pem
        openssl ocsp -issuer ca.pem -cert cert.pem -reqout ask.der
        printf 'V\\t351231235959Z\\t\\t1000\\tunknown\\t/CN=localhost\\n' > index
        openssl ocsp -index index -CA ca.pem -rsigner ca.pem -rkey ca.key -reqin ask.der -respout good.der -ndays 2";
    let out = Command::new("sh").args(["-c", script]).current_dir(made.path()).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let file = |name: &str| made.path().join(name).to_str().unwrap().to_owned();
    let (cert, key, response) = (file("cert.pem"), file("key.pem"), file("good.der"));
    let tls = ["--tls-cert", &cert, "--tls-key", &key];
    let asked = |server: &Server, version: &str| {
        let mut client = Command::new("openssl");
        client.args(["s_client", "-status", version, "-servername", "localhost", "-CAfile", &file("ca.pem")]);
        let address = format!("127.0.0.1:{}", server.address.port());
        let out = client.args(["-connect", &address]).stdin(std::process::Stdio::null()).output().unwrap();
        String::from_utf8_lossy(&out.stdout).into_owned()
    };
    let (with, without) =
        (serve(folder.path(), &[&tls[..], &["--tls-ocsp", &response]].concat()), serve(folder.path(), &tls));
    for version in ["-tls1_2", "-tls1_3"] {
        let message = asked(&with, version);
        assert!(message.contains("Verify return code: 0 (ok)"), "{version}: {message}");
        assert!(
            message.contains("OCSP Response Status: successful") && message.contains("Cert Status: good"),
            "{version}: {message}"
        );
        assert!(asked(&without, version).contains("OCSP response: no response sent"), "{version}");
    }
}
