//! Files of a database that are removed, replaced or overwritten under a process that has them open, and a database
//! with a rollback journal.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails so")]

mod lab;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use lab::{Lab, Nix};
use narval_nix::{NarHash, PathInfo, Sha256, StorePath};
use narval_store::{Store, StoreConfig, StoreError};
use rusqlite::{Connection, OpenFlags};

/// This test program as another process: connections of one process share what the kernel tells apart by process.
fn another_process(test: &str, database: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]).env("NARVAL_TEST_DATABASE", database);
    command.stdin(Stdio::null());
    command
}

/// The other side of [`checkpoint`]; alone it does nothing.
#[test]
fn another_process_checkpoints() {
    let Some(path) = std::env::var_os("NARVAL_TEST_DATABASE") else { return };
    let connection = Connection::open(path).unwrap();
    connection.query_row("pragma wal_checkpoint(truncate)", (), |_| Ok(())).unwrap();
}

fn checkpoint(database: &Path) {
    lab::run(&mut another_process("another_process_checkpoints", database));
}

fn beside(database: &Path, suffix: &str) -> PathBuf {
    let mut name = database.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

fn remove(database: &Path, suffixes: &[&str]) {
    suffixes.iter().for_each(|suffix| fs::remove_file(beside(database, suffix)).unwrap());
}

/// Nix and the store agree on these paths.
fn agree(lab: &Lab, store: &Store, paths: &[&StorePath], when: &str) {
    for path in paths {
        let check = lab
            .nix
            .command("nix-store")
            .arg("--store")
            .arg(lab.uri())
            .args(["-q", "--hash"])
            .arg(lab.full(path))
            .output();
        let valid = check.unwrap().status.success();
        assert_eq!(store.is_valid(path).unwrap(), valid, "{when}: {path}");
    }
}

#[test]
fn files_that_are_removed_or_restored_are_reopened() {
    type Deed = fn(&Path, &Path);
    let deeds: [(&str, Deed); 7] = [
        ("-wal and -shm removed, backup copied", |database, backup| {
            remove(database, &["-wal", "-shm"]);
            fs::copy(backup, database).unwrap();
        }),
        ("-wal and -shm removed", |database, _| remove(database, &["-wal", "-shm"])),
        ("-shm removed", |database, _| {
            checkpoint(database);
            remove(database, &["-shm"]);
        }),
        ("-wal removed", |database, _| {
            checkpoint(database);
            remove(database, &["-wal"]);
        }),
        ("backup copied", |database, backup| {
            checkpoint(database);
            fs::copy(backup, database).unwrap();
        }),
        ("-wal and -shm removed, backup renamed", |database, backup| {
            remove(database, &["-wal", "-shm"]);
            fs::rename(backup, database).unwrap();
        }),
        ("all removed, backup copied", |database, backup| {
            remove(database, &["", "-wal", "-shm"]);
            fs::copy(backup, database).unwrap();
        }),
    ];
    for (what, deed) in deeds {
        let lab = Lab::new(Nix::New);
        let database = lab.config().database();
        let first = lab.add_file("first", "1");
        checkpoint(&database);
        let backup = lab.dir.path().join("backup");
        fs::copy(&database, &backup).unwrap();
        let second = lab.add_file("second", "2");
        let store = Store::new(lab.config());
        agree(&lab, &store, &[&first, &second], "before");
        // Threads with connections of their own, some in the middle of a query.
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    while !done.load(Ordering::Relaxed) {
                        // What they are told in the middle of it is not judged here.
                        let _ = store.all_valid_paths();
                    }
                });
            }
            let _ends = Ends(&done);
            deed(&database, &backup);
            agree(&lab, &store, &[&first, &second], what);
            let third = lab.add_file("third", "3");
            agree(&lab, &store, &[&first, &second, &third], what);
            lab.nix
                .command("nix-store")
                .arg("--store")
                .arg(lab.uri())
                .arg("--delete")
                .arg(lab.full(&first))
                .output()
                .unwrap();
            agree(&lab, &store, &[&first, &second, &third], what);
            let before = store.stamp();
            lab.add_file("fourth", "4");
            assert!(before.is_none() || store.stamp() != before, "{what}: the change is not noticed");
        });
    }
}

/// Ends the other threads of a test, also when it fails.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A backup that is put in place while nobody commits is seen, whatever a connection has read before.
#[test]
fn a_connection_does_not_answer_from_its_cache_of_an_overwritten_file() {
    let lab = Lab::new(Nix::New);
    let database = lab.config().database();
    let first = lab.add_file("first", "1");
    checkpoint(&database);
    let backup = lab.dir.path().join("backup");
    fs::copy(&database, &backup).unwrap();
    let second = lab.add_file("second", "2");
    let store = Store::new(lab.config());
    assert!(store.is_valid(&second).unwrap());
    checkpoint(&database);
    assert!(store.is_valid(&second).unwrap());
    // In place: the same file, and its -wal and -shm are the same as well.
    fs::copy(&backup, &database).unwrap();
    agree(&lab, &store, &[&first, &second], "restored in place");
}

const ROWS: usize = 2_000;
const ROUNDS: i64 = 40;
/// After so many rounds the writer waits for an answer of the reader.
const PAUSE: i64 = 3;

/// A writer as Nix is one with `use-sqlite-wal = false`: rollback journal, and a directory for a lock. In each transaction
/// all rows get the next number, and the transaction is larger than its memory, so that its pages come to the database
/// one by one. The other side of the test below; alone it does nothing.
#[test]
fn another_process_rewrites_all_rows() {
    let Some(path) = std::env::var_os("NARVAL_TEST_DATABASE") else { return };
    let connection = Connection::open_with_flags_and_vfs(path, OpenFlags::default(), c"unix-dotfile").unwrap();
    let mode: String = connection.query_row("pragma journal_mode = truncate", (), |row| row.get(0)).unwrap();
    assert_eq!(mode, "truncate");
    connection.execute_batch("pragma synchronous = off; pragma cache_size = 10").unwrap();
    for round in 1..=ROUNDS {
        // Every fifth one comes to nothing.
        let end = if round % 5 == 0 { "rollback" } else { "commit" };
        let number = if round % 5 == 0 { -round } else { round };
        let sql =
            format!("begin immediate; update ValidPaths set registrationTime = abs({number}), narSize = {number}");
        connection.execute_batch(&sql).unwrap();
        connection.execute_batch(end).unwrap();
        println!("\ndone: {round}");
        if round % PAUSE == 0 {
            // Until the reader had an answer.
            std::io::stdin().read_line(&mut String::new()).unwrap();
        }
    }
}

#[test]
fn no_torn_read_from_a_database_with_a_rollback_journal() {
    let lab = Lab::new(Nix::New);
    let nix = |arguments: &[&str]| {
        let mut command = lab.nix.command("nix-store");
        lab::run(command.arg("--store").arg(lab.uri()).args(["--option", "use-sqlite-wal", "false"]).args(arguments))
    };
    let file = lab.dir.path().join("file");
    fs::write(&file, "1").unwrap();
    nix(&["--add", file.to_str().unwrap()]);
    let database = lab.config().database();
    assert!(!beside(&database, "-wal").exists(), "Nix made it without a write-ahead log");
    let paths = fill(&database);

    let store = Store::new(lab.config());
    let mut command = another_process("another_process_rewrites_all_rows", &database);
    let mut writer = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut to_writer = writer.stdin.take().unwrap();
    let lines = BufReader::new(writer.stdout.take().unwrap()).lines();
    let (committed, over) = (AtomicI64::new(0), AtomicI64::new(0));
    let done = AtomicBool::new(false);
    let mut paused = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for line in lines {
                if let Some(round) = line.unwrap().strip_prefix("done: ") {
                    let round: i64 = round.parse().unwrap();
                    if round % 5 != 0 {
                        committed.store(round, Ordering::SeqCst);
                    }
                    over.store(round, Ordering::SeqCst);
                }
            }
            done.store(true, Ordering::SeqCst);
        });
        loop {
            let is_last = done.load(Ordering::SeqCst);
            let round = over.load(Ordering::SeqCst);
            let at_least = committed.load(Ordering::SeqCst);
            match store.path_infos(&paths) {
                Ok(infos) => {
                    let times: Vec<i64> = infos.iter().flatten().map(time_and_size).collect();
                    assert_eq!(times.len(), paths.len(), "every row is there");
                    assert!(
                        times.iter().all(|time| *time == times[0]),
                        "torn: {:?}",
                        times.iter().min().zip(times.iter().max())
                    );
                    assert!(times[0] >= at_least, "{} told after {at_least} was committed", times[0]);
                    if round % PAUSE == 0 && round > paused {
                        paused = round;
                        writeln!(to_writer).unwrap();
                    }
                }
                // The writer leaves hardly any time between two transactions.
                Err(StoreError::NoWay { .. } | StoreError::DatabaseUnavailable { .. }) => {}
                Err(error) => panic!("{error}"),
            }
            if is_last {
                break;
            }
        }
    });
    assert!(writer.wait().unwrap().success());
    assert_eq!(paused, ROUNDS - ROUNDS % PAUSE, "it was read in each pause");
    assert!(!beside(&database, ".lock").exists(), "no lock of ours is left");
}

fn time_and_size(info: &PathInfo) -> i64 {
    assert_eq!(info.registration_time, info.nar_size, "one row is torn");
    info.registration_time.try_into().unwrap()
}

/// Many rows that all have the number 0.
fn fill(database: &Path) -> Vec<StorePath> {
    let connection = Connection::open_with_flags_and_vfs(database, OpenFlags::default(), c"unix-dotfile").unwrap();
    let transaction = connection.unchecked_transaction().unwrap();
    transaction.execute("delete from ValidPaths", ()).unwrap();
    let hash: NarHash = Sha256::of(b"");
    let paths: Vec<StorePath> =
        (0..ROWS).map(|number| StorePath::parse(&format!("{number:032}-{number}")).unwrap()).collect();
    for path in &paths {
        transaction
            .execute(
                "insert into ValidPaths (path, hash, registrationTime, narSize, ca) values (?1, ?2, 0, 0, '')",
                [format!("/nix/store/{}", path.base_name()), format!("sha256:{}", hash.to_hex())],
            )
            .unwrap();
    }
    transaction.commit().unwrap();
    paths
}

/// Each change that Nix makes without a write-ahead log is seen once Nix has returned.
#[test]
fn changes_of_nix_without_a_write_ahead_log_are_seen() {
    for nix in Nix::BOTH {
        let lab = Lab::new(nix);
        let run = |arguments: &[&str]| {
            let mut command = lab.nix.command("nix-store");
            lab::run(
                command.arg("--store").arg(lab.uri()).args(["--option", "use-sqlite-wal", "false"]).args(arguments),
            )
        };
        let file = lab.dir.path().join("file");
        let store = Store::new(StoreConfig::for_root(&lab.root()).unwrap());
        for round in 0..20 {
            fs::write(&file, format!("{round}")).unwrap();
            let full = run(&["--add", file.to_str().unwrap()]);
            let path = store.store_dir().parse(&full).unwrap();
            assert!(store.is_valid(&path).unwrap(), "{nix:?}, round {round}: added and not seen");
            let stamp = store.stamp();
            run(&["--delete", &full]);
            assert!(stamp.is_none() || store.stamp() != stamp, "{nix:?}, round {round}: the deletion is not noticed");
            assert!(!store.is_valid(&path).unwrap(), "{nix:?}, round {round}: deleted and still seen");
        }
        assert!(!beside(&lab.config().database(), ".lock").exists(), "{nix:?}");
    }
}
