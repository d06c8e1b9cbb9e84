//! The id of a request: the same in the access log, in the log's lines about it, in what upstreams are asked, and in the
//! answer that says that the server failed.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that fails may say so")]

mod support;

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;
use support::{NARVAL, Server, Store, hash_part};

/// The entries of a JSON access log for requests that begin so, once there are some.
fn entries(file: &Path, request: &str) -> Vec<Value> {
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        let log = std::fs::read_to_string(file).unwrap_or_default();
        let entries = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let found: Vec<_> = entries.filter(|entry| entry["request"].as_str().unwrap().starts_with(request)).collect();
        if !found.is_empty() {
            return found;
        }
        assert!(Instant::now() < until, "{request} is not in {log:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn id(entry: &Value) -> &str {
    entry["request_id"].as_str().unwrap()
}

fn logs_to(file: &Path) -> [&str; 4] {
    ["--access-log", file.to_str().unwrap(), "--access-log-format", "json"]
}

#[test]
fn an_upstream_is_asked_with_the_id_of_the_request() {
    let store = Store::new();
    let path = store.add_file("file", "contents");
    let (key, public) = store.key("upstream-1");
    let (behind, front) = (store.path("behind.log"), store.path("front.log"));
    let args = [&["--sign-key", key.to_str().unwrap(), "--trust-request-ids"][..], &logs_to(&behind)].concat();
    let upstream = Server::narval(&store, &args);
    let mut command = Command::new(NARVAL);
    command.args(["serve", "--listen", "127.0.0.1:0", "--data", store.path("data").to_str().unwrap()]);
    command.args(["--upstream", &upstream.url(), "--upstream-key", &public]).args(logs_to(&front));
    let cache = Server::start(command, &[]);

    let narinfo = format!("/{}.narinfo", hash_part(&path));
    let answer = cache.ask("GET", &narinfo, &["X-Request-Id: mine"]);
    assert_eq!(answer.status, 200, "{}", cache.log());
    assert_eq!(answer.field("x-request-id"), None, "only failures tell it");
    let request = format!("GET {narinfo}");
    let (asked, asks) = (entries(&front, &request), entries(&behind, &request));
    assert_eq!(id(&asked[0]), id(&asks[0]));
    // The cache trusts nobody, and the upstream trusts the cache.
    assert_eq!(id(&asked[0]).len(), 16, "{asked:?}");

    // A thread of its own fetches the NAR.
    let url = answer.text().lines().find_map(|line| line.strip_prefix("URL: ")).unwrap();
    assert_eq!(cache.get(&format!("/{url}")).status, 200);
    let (asked, asks) = (entries(&front, "GET /nar/"), entries(&behind, "GET /nar/"));
    assert!(asks.iter().any(|entry| id(entry) == id(&asked[0])), "{asked:?} {asks:?}");
}

#[test]
fn a_failure_is_found_in_the_log_by_the_id_of_its_answer() {
    for (format, expected) in [
        ("json", "\"level\":\"error\",\"request_id\":\"from-proxy_1\""),
        ("logfmt", " request_id=from-proxy_1 "),
        ("text", " request_id=from-proxy_1\n"),
    ] {
        let store = Store::new();
        let path = store.add_file("file", "contents");
        let access = store.path("access.log");
        let mut command = Command::new(NARVAL);
        command.args(["serve", "--listen", "127.0.0.1:0", "--store", &store.uri(), "--trust-request-ids"]);
        command.args(logs_to(&access));
        let folder = store.path("cache");
        let mut server =
            Server::start(command, &[("NARVAL_LOG_FORMAT", format), ("XDG_CACHE_HOME", folder.to_str().unwrap())]);
        // The database is there, but is none.
        std::fs::write(store.real("/nix/var/nix/db/db.sqlite"), "no database").unwrap();
        let narinfo = format!("/{}.narinfo", hash_part(&path));
        let answer = server.ask("GET", &narinfo, &["X-Request-Id: from-proxy_1"]);
        assert_eq!((answer.status, answer.field("x-request-id")), (500, Some("from-proxy_1")), "{}", server.log());
        let log = server.wait_for(|log| log.contains(expected).then(|| log.to_owned()));
        let line = log.lines().find(|line| line.contains("from-proxy_1")).unwrap();
        match format {
            "json" => assert_eq!(serde_json::from_str::<Value>(line).unwrap()["level"], "error"),
            "logfmt" => assert!(line.starts_with("time=") && line.contains(" level=error "), "{line}"),
            _ => assert!(line.contains("ERROR"), "{line}"),
        }
        assert_eq!(id(&entries(&access, &format!("GET {narinfo}"))[0]), "from-proxy_1");
        // Answers from memory have one, too; an id that is none is not taken.
        let answer = server.ask("GET", "/nix-cache-info", &["X-Request-Id: a b"]);
        assert_eq!((answer.status, answer.field("x-request-id")), (200, None));
        assert_eq!(id(&entries(&access, "GET /nix-cache-info")[0]).len(), 16);
    }
}

#[test]
fn nix_serve_answers_without_an_id() {
    let store = Store::new();
    let path = store.add_file("file", "contents");
    let server = Server::nix_serve(&store, &[], &[]);
    std::fs::write(store.real("/nix/var/nix/db/db.sqlite"), "no database").unwrap();
    let answer = server.get(&format!("/{}.narinfo", hash_part(&path)));
    assert_eq!((answer.status, answer.field("x-request-id")), (500, None));
}

#[test]
fn an_unknown_format_of_the_log_is_refused() {
    let output =
        Command::new(NARVAL).args(["serve", "--listen", "127.0.0.1:0"]).env("NARVAL_LOG_FORMAT", "xml").output();
    let output = output.unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(
        String::from_utf8(output.stderr).unwrap(),
        "narval: NARVAL_LOG_FORMAT is 'xml'; set it to text, logfmt or json\n"
    );
}
