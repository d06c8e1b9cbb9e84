//! What checks something can fail: `/health` of a server, `narval doctor`.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that fails may say so")]

mod support;

use std::fs;
use std::process::{Command, Output};

use support::{NARVAL, Server, Store};

/// A health check that says 200 while every download fails is worse than none.
#[test]
fn health_is_that_of_the_store() {
    let store = Store::new();
    let path = store.add_file("file", "contents");
    let mut server = Server::narval(&store, &[]);
    assert_eq!(server.get("/health").status, 200);

    // The file system of the store is gone, its mount point is not.
    let folder = store.real(&path).parent().unwrap().to_owned();
    let aside = folder.with_extension("aside");
    fs::rename(&folder, &aside).unwrap();
    assert_eq!(server.get("/health").status, 503, "without a folder");
    fs::create_dir(&folder).unwrap();
    let answer = server.get("/health");
    assert_eq!((answer.status, answer.field("Cache-Control")), (503, Some("no-store")), "with an empty folder");
    server.wait_for(|log| log.contains("health check: store: cannot find").then_some(()));
    fs::remove_dir(&folder).unwrap();
    fs::rename(&aside, &folder).unwrap();
    assert_eq!(server.get("/health").status, 200, "with the folder back");

    // One path that somebody deleted by hand is for `narval verify`.
    store.add_file("another", "contents of another");
    fs::remove_file(store.real(&path)).unwrap();
    assert_eq!(server.get("/health").status, 200, "with a path missing");

    let database = store.path("root/nix/var/nix/db/db.sqlite");
    fs::rename(&database, database.with_extension("aside")).unwrap();
    assert_eq!(server.get("/health").status, 503, "without a database");
    fs::rename(database.with_extension("aside"), &database).unwrap();
    assert_eq!(server.get("/health").status, 200, "with the database back");
}

/// A server that cannot write can still be read from: `/health` says so, and `/ready` says what is wrong.
#[test]
fn a_server_that_takes_no_uploads_is_healthy_but_not_ready() {
    let store = Store::new();
    store.add_file("file", "contents");
    let data = store.path("data");
    let mut server = Server::narval(&store, &["--data", data.to_str().unwrap()]);
    let ready = server.get("/ready");
    assert_eq!((ready.status, ready.text()), (200, "store: ok\nindex: ok\nuploads: ok\n"));
    assert_eq!(ready.field("Cache-Control"), Some("no-store"));
    fs::rename(data.join("incoming"), data.join("aside")).unwrap();
    let ready = server.get("/ready");
    assert_eq!((ready.status, ready.text()), (503, "store: ok\nindex: ok\nuploads: failed\n"));
    assert_eq!(server.get("/health").status, 200);
    server.wait_for(|log| log.contains("readiness check: uploads: ").then_some(()));
    fs::rename(data.join("aside"), data.join("incoming")).unwrap();
    assert_eq!(server.get("/ready").status, 200);
    assert_eq!(fs::read_dir(data.join("incoming")).unwrap().count(), 0, "nothing is left behind");

    // Without a store there is no line for one, and strangers may ask a private cache, too: load balancers have no token.
    let mut command = Command::new(NARVAL);
    command.args(["serve", "--listen", "127.0.0.1:0", "--private", "--data"]).arg(store.path("private"));
    let server = Server::start(command, &[]);
    assert_eq!(server.get("/ready").text(), "index: ok\nuploads: ok\n");
    assert_eq!(server.get("/nix-cache-info").status, 401);
}

/// An empty store is a healthy one.
#[test]
fn health_of_an_empty_store() {
    let store = Store::new();
    store.add_file("file", "contents");
    let server = Server::narval(&store, &[]);
    assert!(store.nix_store(&["--gc"]).status.success());
    assert_eq!(server.get("/health").status, 200);
}

fn doctor(certificates: &str) -> Output {
    let mut command = Command::new(NARVAL);
    command.args(["doctor", "--json", "--offline", "--from", "file:///nowhere"]).env("NIX_SSL_CERT_FILE", certificates);
    command.output().unwrap()
}

/// The certificates are read as for a connection, not looked at.
#[test]
fn doctor_reads_the_certificates() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, contents: &str| {
        let path = folder.path().join(name);
        fs::write(&path, contents).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let certificate = |until: i32| {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut wanted = rcgen::CertificateParams::new(vec!["cache.example.org".to_owned()]).unwrap();
        wanted.not_before = rcgen::date_time_ymd(2000, 1, 1);
        wanted.not_after = rcgen::date_time_ymd(until, 1, 1);
        wanted.self_signed(&key).unwrap().pem()
    };
    let (valid, expired) = (certificate(2999), certificate(2001));
    let broken = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    for (contents, ok, message) in [
        (valid.clone(), true, "1 of "),
        (format!("{valid}{broken}{expired}"), true, "2 of"),
        (expired.clone(), false, "1 expired"),
        (broken.to_owned(), false, "contains no certificate"),
        (String::new(), false, "contains no certificate"),
        ("nothing of the kind".to_owned(), false, "contains no certificate"),
    ] {
        finds(&doctor(&file("ca.pem", &contents)), ok, message);
    }
    finds(&doctor(folder.path().to_str().unwrap()), false, "cannot be read");
    finds(&doctor("/nowhere.pem"), false, "cannot be read");
}

fn finds(output: &Output, ok: bool, message: &str) {
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().find(|line| line.contains("certificates")).unwrap_or_else(|| panic!("{text}"));
    let found: serde_json::Value = serde_json::from_str(line).unwrap();
    assert_eq!(found["ok"], ok, "{line}");
    assert!(found["text"].as_str().unwrap().contains(message), "{message}: {line}");
}
