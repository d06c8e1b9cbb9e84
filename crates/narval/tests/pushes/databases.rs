//! Servers that share a data folder and its index in a real PostgreSQL, which may go away.

use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::lab::{Lab, Nar};
use crate::postgres::PostgresServer;
use crate::support::{NARVAL, Nix, Server, Store, certificate, hash_part};

/// Two servers over one folder, one database, and the server of that.
struct Pair {
    postgres: PostgresServer,
    address: String,
    one: Lab,
    /// Its store is another.
    other: Lab,
}

impl Pair {
    fn new() -> Option<Self> {
        let postgres = PostgresServer::new()?;
        let address = postgres.database();
        let one = Lab::with(&["--database", &address]);
        let mut command = Command::new(NARVAL);
        command.args(["serve", "--listen", "127.0.0.1:0", "--data"]).arg(one.data_path());
        // By its variable, which no list of processes shows.
        let other = Server::start(command, &[("NARVAL_DATABASE", &address)]);
        Some(Self { postgres, address, one, other: Lab { store: Store::new(), server: other } })
    }

    fn run(&self, args: &[&str]) -> Output {
        let folder = self.one.data_path();
        let place = ["--data", folder.to_str().unwrap(), "--database", &self.address];
        Command::new(NARVAL).args(args).args(place).output().unwrap()
    }

    /// What a command of administration prints.
    fn narval(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
    }
}

/// How long anything may take before a test gives up.
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until something is so.
fn soon(mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "not within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn narinfo(path: &str) -> String {
    format!("/{}.narinfo", hash_part(path))
}

/// The address of the narinfo of a path of this name, and its text.
fn path_of(name: &str, nar: &Nar) -> (String, String) {
    let digest = narval_nix::Sha256::of(name.as_bytes());
    let part = narval_nix::HashPart::from_digest(digest.as_bytes()[..20].try_into().unwrap());
    (format!("/{part}.narinfo"), nar.narinfo(&format!("{part}-{name}"), &[]))
}

#[test]
fn two_servers_share_paths_tokens_and_pins() {
    let Some(pair) = Pair::new() else { return };
    let (one, other) = (&pair.one, &pair.other);
    let token = pair.narval(&["token", "create", "--push", "--pull", "ci"]);
    for (at, nix) in [Nix::Newest, Nix::Old].into_iter().enumerate() {
        let path = one.store.add_tree(&format!("tree-{at}"));
        one.push(nix, &token, "", &path).unwrap();
        one.pull_from(&other.server, nix, &path);
        pair.narval(&["pin", "add", &format!("pin-{at}"), &path]);
    }
    // The next request to the other sees what is committed, although that has just said that it is not there.
    for number in 0..20 {
        let nar = Nar::of(format!("{number}").as_bytes());
        let (part, text) = path_of(&format!("made-{number}"), &nar);
        assert_eq!(one.put(&nar.url(), &token, &nar.bytes).status, 201);
        assert_eq!(other.get(&part).status, 404);
        assert_eq!(one.put(&part, &token, text.as_bytes()).status, 201);
        assert_eq!(other.get(&part).status, 200);
    }
    let path = other.store.add_tree("from-the-other");
    other.push(Nix::Newest, &token, "", &path).unwrap();
    other.pull_from(&one.server, Nix::Newest, &path);
    assert_eq!(pair.narval(&["pin", "list"]).lines().filter(|line| line.contains("pin-")).count(), 2);
    assert!(pair.narval(&["cache", "fsck", "--contents"]).is_empty());
    // Deleted at one, it is gone at the other, which has it in memory.
    assert_eq!(other.get(&narinfo(&path)).status, 200);
    pair.narval(&["cache", "delete", &path]);
    assert_eq!((one.get(&narinfo(&path)).status, other.get(&narinfo(&path)).status), (404, 404));
}

/// How often a token is revoked until it is refused within two seconds: other programs may need the processors meanwhile.
const ROUNDS_MAX: usize = 12;

/// Neither server is asked to look: both notice it themselves.
#[test]
fn a_revoked_token_is_refused_by_both_within_two_seconds() {
    let Some(pair) = Pair::new() else { return };
    let nar = Nar::of(b"contents");
    let data = pair.one.data_path();
    let mut least = Duration::MAX;
    for _ in 0..ROUNDS_MAX {
        let token = pair.narval(&["token", "create", "--push", "ci"]);
        for lab in [&pair.one, &pair.other] {
            assert!(matches!(lab.put(&nar.url(), &token, &nar.bytes).status, 200 | 201));
        }
        // By its row alone: no command waits until others have noticed.
        let id = token.split('_').nth(1).unwrap();
        let begun = Instant::now();
        let mut revoke = Command::new(NARVAL)
            .args(["token", "revoke", id, "--database", &pair.address, "--data", data.to_str().unwrap()])
            .spawn()
            .unwrap();
        for lab in [&pair.one, &pair.other] {
            soon(|| lab.put(&nar.url(), &token, &nar.bytes).status == 401);
        }
        least = least.min(begun.elapsed());
        assert!(revoke.wait().unwrap().success());
        if least < Duration::from_secs(2) {
            return;
        }
    }
    panic!("refused after {least:?} at best");
}

#[test]
fn the_database_goes_away_and_comes_back() {
    let Some(pair) = Pair::new() else { return };
    let (one, other) = (&pair.one, &pair.other);
    let token = pair.narval(&["token", "create", "--push", "--pull", "ci"]);
    let path = one.store.add_tree("known");
    one.push(Nix::Newest, &token, "", &path).unwrap();
    one.pull(Nix::Newest, &path);
    let text = one.get(&narinfo(&path)).text().to_owned();
    let (new, unknown) = (one.store.add_tree("pushed-later"), one.store.add_tree("unknown"));
    let nar = Nar::of(b"sent while the database is away");

    pair.postgres.stop();
    // What a server knows, it serves on: narinfos, NARs, and what tokens allow.
    one.pull(Nix::Newest, &path);
    let asked = |lab: &Lab, path: &str| {
        let answer = lab.get(path);
        (answer.status, answer.field("Retry-After").is_some())
    };
    assert_eq!(asked(one, &narinfo(&path)), (200, false));
    // What it does not know is not said to be absent.
    assert_eq!(asked(one, &narinfo(&unknown)), (503, true));
    assert_eq!(asked(other, &narinfo(&path)), (503, true));
    // Nobody waits for the database: if each request did for a fifth of a second, they would take twice as long.
    let begun = Instant::now();
    (0..600).for_each(|_| assert_eq!(asked(one, &narinfo(&unknown)), (503, true)));
    assert!(begun.elapsed() < PATIENCE, "{:?}", begun.elapsed());
    let refused = one.put(&nar.url(), &token, &nar.bytes);
    assert_eq!((refused.status, refused.field("Retry-After").is_some()), (503, true));
    assert!(refused.text().contains("the cache's database cannot be reached"), "{}", refused.text());
    // A token that this server does not know is neither accepted nor called wrong.
    assert_eq!(other.put(&nar.url(), &token, &nar.bytes).status, 503);
    let complaint = one.push(Nix::Newest, &token, "", &new).unwrap_err();
    assert!(complaint.contains("503"), "{complaint}");
    let admin = pair.run(&["token", "list"]);
    let output_text = String::from_utf8(admin.stderr).unwrap();
    assert!(
        !admin.status.success() && output_text.contains("cannot be reached") && output_text.lines().count() == 1,
        "{output_text}"
    );

    pair.postgres.start();
    // No server is started again.
    soon(|| other.get(&narinfo(&path)).status == 200);
    soon(|| one.get(&narinfo(&unknown)).status == 404);
    assert_eq!(other.get(&narinfo(&path)).text(), text);
    one.push(Nix::Newest, &token, "", &new).unwrap();
    for lab in [other, one] {
        one.pull_from(&lab.server, Nix::Newest, &new);
        one.pull_from(&lab.server, Nix::Newest, &path);
    }
    assert!(pair.narval(&["cache", "fsck", "--contents"]).is_empty(), "nothing is lost, and nothing half");
}

/// Pushes that run while the database is stopped and started, again and again: what was answered with success is there.
#[test]
fn pushes_while_the_database_restarts() {
    let Some(pair) = Pair::new() else { return };
    let token = pair.narval(&["token", "create", "--push", "--pull", "ci"]);
    let labs = [&pair.one, &pair.other];
    let (kept_in_all, refused_in_all) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let done = AtomicBool::new(false);
    let kept = std::thread::scope(|scope| {
        // Also if an assertion fails: the threads would go on for ever.
        let _done = SetWhenDropped(&done);
        let push = |number: usize| {
            let (token, done, kept_in_all, refused_in_all) = (&token, &done, &kept_in_all, &refused_in_all);
            move || {
                let mut kept = Vec::new();
                for round in 0.. {
                    if done.load(Ordering::Relaxed) {
                        break;
                    }
                    let name = format!("{number}-{round}");
                    let nar = Nar::of(name.as_bytes());
                    let (narinfo, text) = path_of(&name, &nar);
                    let lab = labs[number % 2];
                    let statuses = [
                        lab.put(&nar.url(), token, &nar.bytes).status,
                        lab.put(&narinfo, token, text.as_bytes()).status,
                    ];
                    match statuses {
                        // A NAR may have been recorded although the connection was lost before its server knew.
                        [200 | 201 | 503, 200 | 201] => {
                            kept.push((narinfo, nar));
                            kept_in_all.fetch_add(1, Ordering::Relaxed);
                        }
                        // The narinfo of a NAR that was not taken is refused with 409.
                        [200 | 201 | 503, 503 | 409] => drop(refused_in_all.fetch_add(1, Ordering::Relaxed)),
                        other => panic!("{name}: {other:?}"),
                    }
                }
                kept
            }
        };
        let threads: Vec<_> = (0..4).map(|number| scope.spawn(push(number))).collect();
        let grows = |count: &AtomicUsize, by: usize| {
            let before = count.load(Ordering::Relaxed);
            soon(|| count.load(Ordering::Relaxed) >= before + by);
        };
        for _ in 0..4 {
            grows(&kept_in_all, 6);
            std::thread::sleep(Duration::from_millis(300));
            pair.postgres.stop();
            grows(&refused_in_all, 1);
            std::thread::sleep(Duration::from_millis(300));
            pair.postgres.start();
        }
        grows(&kept_in_all, 6);
        done.store(true, Ordering::Relaxed);
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    for (narinfo, nar) in &kept {
        for lab in labs {
            soon(|| lab.get(narinfo).status != 503);
            assert_eq!(lab.get(narinfo).status, 200, "{narinfo}");
            assert_eq!(lab.get(&nar.url()).body, nar.bytes);
        }
    }
    assert!(pair.narval(&["cache", "fsck", "--contents"]).is_empty());
}

/// Uploads of NARs and of narinfos at the same time while another session has the lock: more than a server has connections to the database. They
/// wait for it one after another, as many at a time as there are workers.
const NARS: usize = 4;
const PUSHES: usize = 22;

/// Ends the session that has the lock.
struct Held<'a>(&'a Pair, &'a AtomicBool);

impl Pair {
    fn sql(&self, statement: &str) -> String {
        self.postgres.sql(self.address.split(['/', '?']).nth(3).unwrap(), statement).unwrap()
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.1.store(true, Ordering::Relaxed);
        let all = "from pg_stat_activity where query like '%pg_sleep(600)' and pid <> pg_backend_pid()";
        self.0.sql(&format!("select pg_terminate_backend(pid) {all}"));
    }
}

/// Whoever locks rows for long, as an operator in psql, has those wait who change them: they are told to try again, and nothing is left of it afterwards.
#[test]
fn a_lock_that_is_held_for_long_is_answered_with_503() {
    let Some(pair) = Pair::new() else { return };
    let token = pair.narval(&["token", "create", "--push", "--pull", "ci"]);
    let labs = [&pair.one, &pair.other];
    let nars: Vec<Nar> = (0..=PUSHES).map(|number| Nar::of(format!("{number}").as_bytes())).collect();
    // NARs that are here already are committed, and others are uploaded.
    let push = |number: usize| {
        let (lab, nar) = (labs[number % 2], &nars[number]);
        match number < NARS {
            true => lab.put(&nar.url(), &token, &nar.bytes),
            false => {
                let (narinfo, text) = path_of(&format!("{number}"), nar);
                lab.put(&narinfo, &token, text.as_bytes())
            }
        }
    };
    for nar in &nars[NARS..] {
        assert_eq!(pair.one.put(&nar.url(), &token, &nar.bytes).status, 201);
    }
    assert_eq!(push(PUSHES).status, 201);
    let (known, _) = path_of(&format!("{PUSHES}"), &nars[0]);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (pair, push, is_over, known) = (&pair, &push, &is_over, &known);
        let _held = Held(pair, is_over);
        let name = pair.address.split(['/', '?']).nth(3).unwrap();
        scope.spawn(move || {
            pair.postgres
                .sql(name, "begin; lock table narval.paths, narval.caches in exclusive mode; select pg_sleep(600)")
        });
        let granted = "select count(*) from pg_locks where relation = 'narval.caches'::regclass and mode = 'ExclusiveLock' and granted";
        soon(|| pair.sql(granted) == "1");
        for lab in labs {
            scope.spawn(move || {
                for number in 0.. {
                    if is_over.load(Ordering::Relaxed) {
                        break;
                    }
                    let (unknown, _) = path_of(&format!("unknown {number}"), &Nar::of(b"any"));
                    assert_eq!(
                        (lab.get(known).status, lab.get(&unknown).status),
                        (200, 404),
                        "who reads waits for nobody"
                    );
                }
            });
        }
        let pushes: Vec<_> = (0..PUSHES).map(|number| scope.spawn(move || push(number))).collect();
        for pushed in pushes {
            let answer = pushed.join().unwrap();
            assert_eq!((answer.status, answer.field("Retry-After").is_some()), (503, true), "{}", answer.text());
        }
    });
    let aborted = "select count(*) from pg_stat_activity where datname = current_database() and state like '%aborted%'";
    assert_eq!(pair.sql(aborted), "0");
    for number in 0..PUSHES {
        assert_eq!(push(number).status, 201);
    }
    assert!(pair.narval(&["cache", "fsck", "--contents"]).is_empty());
}

struct SetWhenDropped<'a>(&'a AtomicBool);

impl Drop for SetWhenDropped<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A folder and a database that do not belong together would forget all of each other.
#[test]
fn a_folder_and_a_database_belong_together() {
    let Some(pair) = Pair::new() else { return };
    let fails = |data: &std::path::Path, database: Option<&str>| {
        let mut command = Command::new(NARVAL);
        command.args(["token", "create", "--push", "x", "--data"]).arg(data);
        if let Some(database) = database {
            command.args(["--database", database]);
        }
        let output = command.output().unwrap();
        assert!(!output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    let data = pair.one.data_path();
    assert!(fails(&data, None).contains("its index is in a database"));
    let elsewhere = pair.other.store.path("elsewhere");
    assert!(fails(&elsewhere, Some(&pair.address)).contains("the index of another data folder"));
    // A folder with its own index, which is taken over.
    let alone = Lab::new();
    let path = alone.store.add_tree("tree");
    alone.push(Nix::Newest, &alone.token("push"), "", &path).unwrap();
    let empty = pair.postgres.database();
    assert!(fails(&alone.data_path(), Some(&empty)).contains("cache restore"));
    let Lab { store, server } = alone;
    server.end("-TERM");
    let folder = store.path("data");
    let rebuild = |database: &str| {
        let command = ["cache", "fsck", "--rebuild", "--database", database, "--data", folder.to_str().unwrap()];
        Command::new(NARVAL).args(command).output().unwrap()
    };
    let output = rebuild(&pair.address);
    assert!(!output.status.success() && folder.join("index.sqlite").exists(), "{output:?}");
    let output = rebuild(&empty);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut command = Command::new(NARVAL);
    command.args(["serve", "--listen", "127.0.0.1:0", "--data"]).arg(&folder).args(["--database", &empty]);
    let lab = Lab { store, server: Server::start(command, &[]) };
    lab.pull(Nix::Newest, &path);
    // No password is in any message.
    let secret = format!("postgres://narval:secret@127.0.0.1:{}/none?sslmode=nonsense", pair.postgres.port);
    let output_text = fails(&folder, Some(&secret));
    assert!(!output_text.contains("secret") && output_text.contains("127.0.0.1"), "{output_text}");
}

/// Passwords go to the server that the certificate is of, and to no other.
#[test]
fn the_certificate_of_the_database_is_verified() {
    let Some(postgres) = PostgresServer::new() else { return };
    let folder = tempfile::tempdir().unwrap();
    let [certificate, key] = certificate(folder.path());
    postgres.require_tls(&certificate, &key, "a password");
    let name = postgres.database().split(['/', '?']).nth(3).unwrap().to_owned();
    postgres.stop();
    postgres.start();
    let create = |parameters: &str, trusted: bool, password: &str| {
        let address = format!("postgres://narval@127.0.0.1:{}/{name}?{parameters}", postgres.port);
        let mut command = Command::new(NARVAL);
        command.args(["token", "create", "--push", "x", "--database", &address, "--data"]);
        command.arg(folder.path().join("data")).env("PGPASSWORD", password);
        command.env_remove("NIX_SSL_CERT_FILE").env_remove("SSL_CERT_FILE");
        if trusted {
            command.env("SSL_CERT_FILE", &certificate);
        }
        let output = command.output().unwrap();
        match output.status.success() {
            true => Ok(()),
            false => Err(String::from_utf8(output.stderr).unwrap()),
        }
    };
    assert_eq!(create("sslmode=require", true, "a password"), Ok(()));
    assert_eq!(create("sslmode=verify-full", true, "a password"), Ok(()));
    assert_eq!(create("", true, "a password"), Ok(()));
    for parameters in ["sslmode=require", ""] {
        let complaint = create(parameters, false, "a password").unwrap_err();
        assert!(complaint.contains("certificate") && complaint.lines().count() == 1, "{complaint}");
    }
    let complaint = create("sslmode=require", true, "a wrong one").unwrap_err();
    assert!(complaint.contains("password authentication failed"), "{complaint}");
    assert!(create("sslmode=disable", true, "a password").is_err(), "the server refuses connections without TLS");
}
