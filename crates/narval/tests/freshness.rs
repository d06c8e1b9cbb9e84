//! Nothing stale, ever: what `nix-store` has done when it returns is what the next request sees.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that fails may say so")]

mod support;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use narval_http::{Listen, ListenAddress};
use narval_serve::{Config, Dialect, Service};
use narval_store::{Environment, StoreConfig};
use support::{Answer, Nix, Server, Store, hash_part, value};

/// Rounds of add, ask, delete and ask: 1,000 in all. `NARVAL_FRESHNESS_ROUNDS` sets another number for a hurry.
fn rounds() -> usize {
    std::env::var("NARVAL_FRESHNESS_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(1000)
}

/// Threads that work at the same time, each in its own store.
const LANES: usize = 4;

fn lane(store: &Store, server: &Server, rounds: usize) {
    for round in 0..rounds {
        let contents = format!("round {round}\n");
        let file = store.path("changing");
        std::fs::write(&file, &contents).unwrap();
        // Each path is asked for before it is there, so that its absence is what is remembered.
        let expected = support::stdout(store.nix_store(&["--add", file.to_str().unwrap()]));
        let (hash, url) = (hash_part(&expected), format!("/{}.narinfo", hash_part(&expected)));

        let narinfo = server.get(&url);
        assert_eq!(narinfo.status, 200, "round {round}: added, and not seen");
        assert_eq!(value(narinfo.text(), "StorePath"), Some(expected.as_str()));
        let nar = server.get(&format!("/{}", value(narinfo.text(), "URL").unwrap()));
        assert!(nar.status == 200 && nar.complete, "round {round}");
        assert!(nar.body.windows(contents.len()).any(|window| window == contents.as_bytes()), "round {round}");

        let deleted = store.nix_store(&["--delete", &expected]);
        assert!(deleted.status.success(), "{}", String::from_utf8_lossy(&deleted.stderr));
        assert_eq!(server.get(&url).status, 404, "round {round}: deleted, and still told");
        assert_eq!(server.get(&format!("/nar/{hash}.nar")).status, 404, "round {round}");

        // The same path again: absence must not stick either.
        if round % 10 == 0 {
            assert_eq!(store.add(&file), expected);
            assert_eq!(server.get(&url).status, 200, "round {round}: added again, and not seen");
            store.nix_store(&["--delete", &expected]);
            assert_eq!(server.get(&url).status, 404, "round {round}");
        }
    }
}

#[test]
fn paths_added_and_deleted_a_thousand_times_are_always_answered_correctly() {
    std::thread::scope(|scope| {
        for number in 0..LANES {
            scope.spawn(move || {
                let store = Store::new();
                store.add_file("first", "so that the database is there");
                // Several shards would mean nothing to one client, so every request has a connection of its own.
                let server =
                    if number % 2 == 0 { Server::nix_serve(&store, &[], &[]) } else { Server::narval(&store, &[]) };
                lane(&store, &server, rounds().div_ceil(LANES));
            });
        }
    });
}

#[test]
fn correct_under_constant_requests() {
    let store = Store::new();
    let steady = store.add_file("steady", "always there");
    let server = Server::narval(&store, &[]);
    let stop = AtomicBool::new(false);
    let url = format!("/{}.narinfo", hash_part(&steady));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    assert_eq!(server.get(&url).status, 200);
                }
            });
        }
        lane(&store, &server, 30);
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn stores_of_nix_2_8_change_as_well() {
    let store = Store::made_by(Nix::Old);
    store.add_file("first", "so that the database is there");
    let server = Server::nix_serve(&store, &[], &[]);
    lane(&store, &server, 30);
}

#[test]
fn new_signatures_are_seen() {
    let store = Store::new();
    let path = store.add_file("a", "a");
    let server = Server::nix_serve(&store, &[], &[]);
    let url = format!("/{}.narinfo", hash_part(&path));
    for number in 0..5 {
        let before = server.get(&url).text().matches("\nSig: ").count();
        let (key, _) = store.key(&format!("key-{number}"));
        let args = ["store", "sign", "--store", &store.uri(), "--key-file", key.to_str().unwrap(), &path];
        support::stdout(Nix::Newest.nix(store.dir.path(), &args));
        assert_eq!(server.get(&url).text().matches("\nSig: ").count(), before + 1);
    }
}

#[test]
fn a_vacuumed_and_a_replaced_database() {
    let store = Store::new();
    let path = store.add_file("a", "a");
    let later = store.path("later");
    std::fs::write(&later, "later").unwrap();
    let server = Server::nix_serve(&store, &[], &[]);
    let database = store.path("root/nix/var/nix/db/db.sqlite");
    let sqlite = |sql: &str| assert!(Command::new("sqlite3").arg(&database).arg(sql).status().unwrap().success());
    let status = |path: &str| server.get(&format!("/{}.narinfo", hash_part(path))).status;

    assert_eq!(status(&path), 200);
    sqlite("vacuum");
    assert_eq!(status(&path), 200);
    let later_path = store.add(&later);
    assert_eq!(status(&later_path), 200);

    // A database from a backup, put in the place of the one in use.
    sqlite(&format!("vacuum into '{}'", store.path("backup").display()));
    support::stdout(store.nix_store(&["--delete", &later_path]));
    assert_eq!(status(&later_path), 404);
    for suffix in ["-wal", "-shm"] {
        let _ = std::fs::remove_file(format!("{}{suffix}", database.display()));
    }
    std::fs::rename(store.path("backup"), &database).unwrap();
    assert_eq!(status(&path), 200);
    assert_eq!(status(&later_path), 200, "the backup has it");
    // Its files went with the deletion, so there is no NAR, and no clean answer that looks like one.
    assert_eq!(server.get(&format!("/nar/{}.nar", hash_part(&later_path))).status, 404);
}

#[test]
fn a_missing_database_is_an_error_and_not_an_absence() {
    let store = Store::new();
    let path = store.add_file("a", "a");
    let server = Server::nix_serve(&store, &[], &[]);
    let url = format!("/{}.narinfo", hash_part(&path));
    assert_eq!(server.get(&url).status, 200);
    let (database, aside) = (store.path("root/nix/var/nix/db"), store.path("root/nix/var/nix/aside"));
    std::fs::rename(&database, &aside).unwrap();
    let answer = server.get(&url);
    assert_eq!(answer.status, 500, "{}", answer.text());
    assert!(!answer.text().contains("sqlite") && !answer.text().contains(&store.uri()), "{}", answer.text());
    std::fs::rename(&aside, &database).unwrap();
    assert_eq!(server.get(&url).status, 200);
}

/// How many shards a machine of many processors would have.
const SHARDS: usize = 4;

/// A connection that is kept, and so stays with its shard.
struct Kept(TcpStream);

impl Kept {
    fn status(&mut self, path: &str) -> u16 {
        write!(self.0, "GET {path} HTTP/1.1\r\nHost: test\r\n\r\n").unwrap();
        let (mut raw, mut piece) = (Vec::new(), [0; 4096]);
        loop {
            let got = self.0.read(&mut piece).unwrap();
            assert!(got > 0, "the server closed a connection that is kept: {:?}", String::from_utf8_lossy(&raw));
            raw.extend_from_slice(&piece[..got]);
            if let Some(answer) = Answer::parse(&raw).filter(|answer| answer.complete) {
                return answer.status;
            }
        }
    }
}

/// A server with several shards in this process; it ends with the process.
fn sharded(store: &Store) -> impl Fn() -> Kept + Sync {
    let config = StoreConfig::parse(&store.uri(), &Environment::default()).unwrap();
    let service = Service::new(Config::new(Dialect::Narval), narval_store::Store::new(config)).unwrap();
    let listen = Listen::Tcp("127.0.0.1:0".parse().unwrap());
    let server = narval_http::Server::builder(service).listen(listen).shards(SHARDS).workers(8).build().unwrap();
    let handle = server.spawn().unwrap();
    let [ListenAddress::Tcp(address)] = handle.addresses() else { panic!("{:?}", handle.addresses()) };
    let address = *address;
    move || {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        Kept(stream)
    }
}

fn narinfo_url(path: &str) -> String {
    format!("/{}.narinfo", hash_part(path))
}

#[test]
fn every_shard_is_correct_under_load_and_when_the_database_is_vacuumed_or_replaced() {
    let store = Store::new();
    let steady = narinfo_url(&store.add_file("steady", "always there"));
    let connect = sharded(&store);
    let (stop, answered) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..SHARDS {
            scope.spawn(|| {
                let mut kept = connect();
                while !stop.load(Ordering::Relaxed) {
                    // While the database is being replaced it may be unreadable for a moment (500), but never without.
                    let status = kept.status(&steady);
                    assert!(matches!(status, 200 | 500), "{status} for what was always there");
                    let status = kept.status("/00000000000000000000000000000000.narinfo");
                    assert!(matches!(status, 404 | 500), "{status} for what was never there");
                    answered.fetch_add(2, Ordering::Relaxed);
                }
            });
        }
        // Connections are dealt out to the shards in turn.
        let mut kept: Vec<Kept> = (0..2 * SHARDS).map(|_| connect()).collect();
        let mut all = |url: &str, want: u16, what: &str| {
            for (number, kept) in kept.iter_mut().enumerate() {
                assert_eq!(kept.status(url), want, "connection {number}: {what}");
            }
        };
        let database = store.path("root/nix/var/nix/db/db.sqlite");
        let sqlite = |sql: &str| {
            let done = Command::new("sqlite3").arg("-cmd").arg(".timeout 20000").arg(&database).arg(sql).output();
            let done = done.unwrap();
            assert!(done.status.success(), "{sql}: {}", String::from_utf8_lossy(&done.stderr));
        };
        let file = store.path("changing");
        let mut last = String::new();
        for round in 0..15 {
            std::fs::write(&file, format!("round {round}")).unwrap();
            let path = store.add(&file);
            all(&narinfo_url(&path), 200, "added, and not seen");
            if round % 5 == 4 {
                sqlite("vacuum");
                all(&narinfo_url(&path), 200, "vacuumed");
            }
            support::stdout(store.nix_store(&["--delete", &path]));
            all(&narinfo_url(&path), 404, "deleted, and still told");
            last = path;
        }
        // Back to a database that has the last one.
        std::fs::write(&file, "round 14").unwrap();
        assert_eq!(store.add(&file), last);
        all(&narinfo_url(&last), 200, "added again");
        sqlite(&format!("vacuum into '{}'", store.path("backup").display()));
        support::stdout(store.nix_store(&["--delete", &last]));
        all(&narinfo_url(&last), 404, "deleted again");
        let directory = database.parent().unwrap();
        let fresh = store.path("root/nix/var/nix/db-new");
        std::fs::create_dir(&fresh).unwrap();
        std::fs::rename(store.path("backup"), fresh.join("db.sqlite")).unwrap();
        std::fs::rename(directory, store.path("root/nix/var/nix/db-old")).unwrap();
        std::fs::rename(&fresh, directory).unwrap();
        all(&narinfo_url(&last), 200, "the backup has it");
        all(&steady, 200, "the backup has this, too");
        stop.store(true, Ordering::Relaxed);
    });
    assert!(answered.into_inner() > 0);
}

#[test]
fn correct_when_the_daemon_is_restarted() {
    let store = Store::new();
    let first = narinfo_url(&store.add_file("first", "so that the database is there"));
    let socket = store.path("socket");
    let uri = format!("unix://{}?root={}", socket.display(), store.uri());
    let by_database = Server::narval(&store, &[]);
    let mut by_daemon: Option<Server> = None;
    for round in 0..4 {
        let _ = std::fs::remove_file(&socket);
        let daemon = Nix::Newest.daemon(store.dir.path(), &socket, &store.uri(), "");
        let by_daemon = by_daemon.get_or_insert_with(|| {
            let mut command = Command::new(support::NIX_SERVE);
            command.args(["--listen", "127.0.0.1:0", "--store", &uri]);
            Server::start(command, &[])
        });
        let file = store.path("changing");
        std::fs::write(&file, format!("round {round}")).unwrap();
        let nix_store = |args: &[&str]| {
            let args = [&["--store", uri.as_str()], args].concat();
            support::stdout(Nix::Newest.nix_store(store.dir.path(), &args))
        };
        let path = nix_store(&["--add", file.to_str().unwrap()]);
        for server in [&by_database, by_daemon] {
            assert_eq!(server.get(&narinfo_url(&path)).status, 200, "round {round}: added, and not seen");
            assert_eq!(server.get(&first).status, 200);
        }
        nix_store(&["--delete", &path]);
        for server in [&by_database, by_daemon] {
            assert_eq!(server.get(&narinfo_url(&path)).status, 404, "round {round}: deleted, and still told");
        }
        drop(daemon);
        assert_eq!(by_database.get(&first).status, 200);
        assert_eq!(by_database.get(&narinfo_url(&path)).status, 404);
    }
}
