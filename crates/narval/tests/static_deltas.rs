//! Deltas of sites (RFC 9842): `narval static compress --previous` and `narval static --dictionary`, with plain sockets and
//! with Debian's chromium over TLS.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that fails may say so")]

#[path = "page/browser.rs"]
#[allow(dead_code, unreachable_pub, reason = "it can do more than this test needs")]
mod browser;
mod support;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use browser::Browser;
use support::{Answer, NARVAL, Server};

/// A script of about 1 MB that adds numbers up, and the sum. In the second release, one line of a hundred is another.
fn script(release: u64) -> (String, u64) {
    let mut state = 7_u64;
    let mut text = format!("window.release = {release}; window.sum = 0;\n");
    let mut sum = 0;
    for line in 0..26_000 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let number = state >> 40;
        let added = if line % 100 == 0 { number + release } else { number };
        text.push_str(&format!("window.sum += {added}; // line {:x}\n", (state >> 20) & 0xfff_ffff));
        sum += added;
    }
    (text, sum)
}

/// A folder with two releases and a link `site` to the first; the second has deltas from it.
fn releases() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (release, name) in [(1, "one"), (2, "two")] {
        let root = folder.path().join(name);
        fs::create_dir(&root).unwrap();
        let app = format!("app.{release}{release}a{release}.js");
        fs::write(root.join(&app), script(release).0).unwrap();
        fs::write(root.join("index.html"), format!("<!doctype html><body>hello<script src={app}></script>")).unwrap();
        let mut command = Command::new(NARVAL);
        // brotli's highest level takes long without optimization.
        command.args(["static", "compress", "--encodings", "zstd,gzip"]).arg(&root);
        if release == 2 {
            command.arg("--previous").arg(folder.path().join("one"));
        }
        let made = command.output().unwrap();
        let message = String::from_utf8_lossy(&made.stdout);
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        assert_eq!(message.contains("deltas from previous releases: 1 written"), release == 2, "{message}");
    }
    symlink("one", folder.path().join("site")).unwrap();
    folder
}

fn switch(folder: &Path) {
    symlink("two", folder.join("next")).unwrap();
    fs::rename(folder.join("next"), folder.join("site")).unwrap();
}

fn serve(root: &Path, args: &[&str]) -> Server {
    let mut command = Command::new(NARVAL);
    command.arg("static").arg(root).args(["--listen", "127.0.0.1:0", "--dictionary", "/site/*.js"]).args(args);
    Server::start(command, &[])
}

/// What a shell command prints.
fn shell(command: &str, folder: &Path) -> String {
    let output = Command::new("sh").args(["-ec", command]).current_dir(folder).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

fn delta_file(folder: &Path) -> PathBuf {
    let mut names = fs::read_dir(folder.join("two")).unwrap().map(|entry| entry.unwrap().path());
    names.find(|name| name.extension().is_some_and(|extension| extension == "dcz")).unwrap()
}

#[test]
fn a_delta_answers_who_has_the_previous_version() {
    let folder = releases();
    let delta = fs::read(delta_file(folder.path())).unwrap();
    let hash = shell("sha256sum one/app.11a1.js | cut -d' ' -f1", folder.path());
    assert!(delta_file(folder.path()).to_str().unwrap().ends_with(&format!("/app.22a2.js.{hash}.dcz")));
    let hash = shell("openssl dgst -sha256 -binary one/app.11a1.js | base64", folder.path());
    let available = format!("Available-Dictionary: :{hash}:");
    let server = serve(folder.path(), &["--revalidate-after", "1", "--compress"]);
    let accept = "Accept-Encoding: gzip, deflate, br, zstd, dcb, dcz";
    let first = server.ask("GET", "/site/app.11a1.js", &[accept]);
    assert_eq!(first.field("use-as-dictionary"), Some(r#"match="/site/app.*.js""#));
    assert_eq!((first.field("content-encoding"), first.field("etag").is_some()), (Some("zstd"), true));
    switch(folder.path());
    let path = "/site/app.22a2.js";
    let ask = |method: &str, fields: &[&str]| server.ask(method, path, &[&[accept, &available], fields].concat());
    let coding = |answer: &Answer| answer.field("content-encoding").map(str::to_owned);
    // From the disk, from memory, and from the disk again.
    for pause_ms in [0, 0, 5] {
        std::thread::sleep(Duration::from_millis(pause_ms));
        let answer = ask("GET", &[]);
        assert_eq!((answer.status, coding(&answer).as_deref()), (200, Some("dcz")));
        assert!(answer.body == delta && answer.complete);
        assert_eq!(answer.field("vary"), Some("accept-encoding, available-dictionary"));
        assert_eq!(answer.field("use-as-dictionary"), Some(r#"match="/site/app.*.js""#));
        assert_eq!(answer.field("content-type"), Some("text/javascript; charset=utf-8"));
        assert_eq!(answer.field("accept-ranges"), None);
        let head = ask("HEAD", &[]);
        assert_eq!(head.field("content-length").unwrap(), delta.len().to_string());
        assert_eq!(
            (coding(&head).as_deref(), head.field("etag"), head.body.len()),
            (Some("dcz"), answer.field("etag"), 0)
        );
    }
    let whole = |fields: &[&str]| {
        let answer = server.ask("GET", path, fields);
        assert_eq!((answer.status, coding(&answer).as_deref()), (200, Some("zstd")), "{fields:?}");
        assert_eq!(answer.field("vary"), Some("accept-encoding, available-dictionary"));
        answer
    };
    // Other dictionaries, other encodings, other origins, and what is no hash.
    let plain = whole(&[accept]);
    let unknown = format!("Available-Dictionary: :{}=:", "A".repeat(43));
    whole(&[accept, &unknown]);
    whole(&["Accept-Encoding: zstd, gzip", &available]);
    whole(&["Accept-Encoding: zstd, dcz;q=0.5", &available]);
    whole(&[accept, &available, "Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: no-cors"]);
    whole(&[accept, &available, &available]);
    for value in ["", ":", "::", ":AAAA:", "\"x\"", &":".repeat(4000), &format!(":{}:", "../".repeat(15))] {
        whole(&[accept, &format!("Available-Dictionary: {value}")]);
    }
    let same = ask("GET", &["Sec-Fetch-Site: same-origin", "Sec-Fetch-Mode: no-cors"]);
    assert_eq!(coding(&same).as_deref(), Some("dcz"));
    // Each encoding has its tag. With that of the delta, the file is unchanged whatever the browser has as dictionary now.
    let (tag, other) = (same.field("etag").unwrap().to_owned(), plain.field("etag").unwrap().to_owned());
    assert_ne!(tag, other);
    let condition = format!("If-None-Match: \"x\", W/{tag}");
    for fields in [&[accept, &available, &condition][..], &[accept, &condition], &[accept, &unknown, &condition]] {
        let answer = server.ask("GET", path, fields);
        assert_eq!((answer.status, answer.field("etag"), answer.body.len()), (304, Some(&*tag), 0), "{fields:?}");
    }
    assert_eq!(coding(&ask("GET", &[&format!("If-None-Match: {other}")])).as_deref(), Some("dcz"));
    let forged = tag.replace("-dcz-", "1-dcz-");
    assert_eq!(ask("GET", &[&format!("If-None-Match: {forged}")]).status, 200);
    // Ranges are of the encoding without a dictionary.
    let part = ask("GET", &["Range: bytes=5-9"]);
    assert_eq!((part.status, &part.body[..]), (206, &plain.body[5..10]));
    assert_eq!((part.field("etag"), coding(&part).as_deref()), (Some(&*other), Some("zstd")));
    // A file that is newer than its delta, and a delta that names another dictionary inside.
    let mut damaged = delta.clone();
    damaged[20] ^= 1;
    let modified = fs::metadata(delta_file(folder.path())).unwrap().modified().unwrap();
    fs::write(delta_file(folder.path()), damaged).unwrap();
    std::thread::sleep(Duration::from_millis(20));
    whole(&[accept, &available]);
    fs::write(delta_file(folder.path()), &delta).unwrap();
    fs::File::open(delta_file(folder.path())).unwrap().set_modified(modified).unwrap();
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(coding(&ask("GET", &[])).as_deref(), Some("dcz"));
    let app = folder.path().join("two/app.22a2.js");
    fs::write(&app, script(3).0).unwrap();
    std::thread::sleep(Duration::from_millis(20));
    assert_ne!(coding(&ask("GET", &[])).as_deref(), Some("dcz"));
    assert_eq!(ask("GET", &[&condition]).status, 200);
}

#[test]
fn options_that_are_wrong() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().to_str().unwrap();
    let nine = ["--previous", "x"].repeat(9);
    for (args, message) in [
        (&["static", root, "--dictionary", "a["][..], "the glob 'a[' is invalid"),
        (&["static", root, "--dictionary", "*", "--no-sidecars"], "cannot be used with"),
        (&[&["static", "compress", root], &nine[..]].concat(), "at most 8 previous releases"),
        (&["static", "compress", root, "--previous", "/no/such"], "cannot read '/no/such"),
    ] {
        let out = Command::new(NARVAL).args(args).output().unwrap();
        let stderr = String::from_utf8_lossy(&out.stderr);
        assert!(!out.status.success() && stderr.contains(message), "{args:?}: {stderr}");
    }
}

/// The second release of a script arrives in less than a twentieth of its size, and runs.
#[test]
fn chromium_fetches_the_second_release_as_a_delta() {
    let folder = releases();
    let [cert, key] = support::certificate(folder.path()).map(|path| path.to_str().unwrap().to_owned());
    let spki = "openssl x509 -in cert.pem -pubkey -noout | openssl pkey -pubin -outform der |
        openssl dgst -sha256 -binary | base64";
    // Chromium has no dictionaries over connections with ignored errors; with this option, there is no error.
    let trusted = format!("--ignore-certificate-errors-spki-list={}", shell(spki, folder.path()));
    let Some(mut browser) = Browser::start_with(&[&trusted]) else { return };
    let log = folder.path().join("access.log");
    let tls = ["--tls-cert", &cert, "--tls-key", &key, "--revalidate-after", "1"];
    let logged = ["--access-log", log.to_str().unwrap()];
    let cached = ["--cache-control", "**/*.js=public, max-age=31536000, immutable", "--cache-control", "**=no-cache"];
    let server = serve(folder.path(), &[&tls[..], &logged, &cached].concat());
    let url = format!("https://localhost:{}/site/", server.address.port());
    let runs = |browser: &mut Browser, release: u64| {
        browser.open(&url, "hello");
        browser.wait(&format!("window.release === {release}"));
        assert_eq!(browser.eval("String(window.sum)"), script(release).1.to_string());
    };
    runs(&mut browser, 1);
    // The dictionary is kept beside the page: once it is, requests for what it matches name it.
    let until = Instant::now() + Duration::from_secs(60);
    for number in 0.. {
        browser.eval(&format!("fetch('app.probe{number}.js').then((answer) => answer.status)"));
        if browser.dictionaries_named > 0 {
            break;
        }
        assert!(Instant::now() < until, "chromium keeps no dictionary");
        std::thread::sleep(Duration::from_millis(50));
    }
    switch(folder.path());
    runs(&mut browser, 2);
    let entry = "performance.getEntriesByType('resource').find((entry) => entry.name.endsWith('app.22a2.js'))";
    let seen = [browser.eval(&format!("{entry}.encodedBodySize")), browser.eval(&format!("{entry}.decodedBodySize"))];
    let text = fs::read_to_string(&log).unwrap();
    let bytes = |name: &str| -> u64 {
        let line = text.lines().find(|line| line.contains(name)).unwrap_or_else(|| panic!("{name}: {text}"));
        line.split("\" 200 ").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap()
    };
    let (first, second, size) = (bytes("/app.11a1.js"), bytes("/app.22a2.js"), script(2).0.len() as u64);
    eprintln!("script: {size} bytes; first release {first} bytes, second {second} bytes; chromium saw {seen:?}");
    assert!(size > 950_000 && second * 20 < size, "{second} of {size} bytes: {text}");
    // The log counts the head, too.
    assert_eq!(seen, [fs::metadata(delta_file(folder.path())).unwrap().len(), size]);
}
