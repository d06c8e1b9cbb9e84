//! The Nix database as Nix makes it: newest and old, in every state of its write-ahead log, for root and for nobody.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails so")]

mod lab;

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use lab::{Lab, Nix, run};
use narval_nix::{ContentsCheck, HashPart, PathInfo, StorePath};
use narval_store::{Environment, Stamp, Store, StoreConfig, StoreError};

fn absent() -> HashPart {
    HashPart::parse(b"00000000000000000000000000000000").unwrap()
}

/// Checks what we read against what Nix says.
fn compare(lab: &Lab, info: &PathInfo) {
    let path = lab.full(&info.path);
    assert_eq!(format!("sha256:{}", info.nar_hash.to_nix32()), lab.nix_store(&["-q", "--hash", &path]));
    assert_eq!(info.nar_size.to_string(), lab.nix_store(&["-q", "--size", &path]));
    let references: Vec<String> = lab.nix_store(&["-q", "--references", &path]).lines().map(str::to_owned).collect();
    let mut sorted = references.clone();
    sorted.sort();
    assert_eq!(info.references.iter().map(|path| lab.full(path)).collect::<Vec<_>>(), sorted);
    let deriver = lab.nix_store(&["-q", "--deriver", &path]);
    assert_eq!(info.deriver.as_ref().map_or("unknown-deriver".into(), |path| lab.full(path)), deriver);
}

#[test]
fn everything_nix_knows_of_a_path() {
    for nix in Nix::BOTH {
        let lab = Lab::physical(nix);
        let source = lab.add_file("source", "source");
        let built = lab.build("built", "mkdir $out; echo $1 $out > $out/refs", &[&source]);
        let key = lab.dir.path().join("key");
        std::fs::write(&key, run(Nix::New.command("nix").args(["key", "generate-secret", "--key-name", "test-1"])))
            .unwrap();
        run(nix
            .command("nix")
            .args(["store", "sign", "-k"])
            .arg(&key)
            .arg("--store")
            .arg(lab.uri())
            .arg(lab.full(&built)));

        let store = Store::new(lab.config());
        let info = store.path_info_by_hash_part(&built.hash_part()).unwrap().unwrap();
        compare(&lab, &info);
        assert!(info.ultimate && info.ca.is_none() && info.registration_time > 1_600_000_000);
        assert_eq!(info.signatures.iter().map(|signature| signature.key_name()).collect::<Vec<_>>(), ["test-1"]);
        assert_eq!(info.references, [source.clone(), built.clone()].into());
        let source_info = store.path_info(&source).unwrap().unwrap();
        compare(&lab, &source_info);
        assert_eq!(source_info.check_by_contents(store.store_dir()), Some(ContentsCheck::Nar));

        assert_eq!(store.path_from_hash_part(&built.hash_part()).unwrap(), Some(built.clone()));
        assert_eq!(store.references(&built).unwrap(), info.references.iter().cloned().collect::<Vec<_>>());
        assert!(store.is_valid(&built).unwrap());
        let deriver = info.deriver.clone().unwrap();
        let mut referrers = [built.clone(), deriver.clone()];
        referrers.sort();
        assert_eq!(store.referrers(&source).unwrap(), referrers);
        let mut all = store.all_valid_paths().unwrap();
        all.sort();
        let mut expected = vec![source.clone(), built.clone(), deriver.clone()];
        expected.sort();
        assert_eq!(all, expected);
        let both = store.path_infos(&[source.clone(), built.clone()]).unwrap();
        assert_eq!(both, [Some(source_info), Some(info)]);

        let none = StorePath::parse(&format!("{}-none", absent())).unwrap();
        assert_eq!(store.path_info_by_hash_part(&absent()).unwrap(), None);
        assert_eq!(store.path_from_hash_part(&HashPart::parse(&[b'z'; 32]).unwrap()).unwrap(), None);
        assert_eq!(store.path_info(&none).unwrap(), None);
        assert!(!store.is_valid(&none).unwrap());
        assert_eq!(store.references(&none).unwrap(), []);
        assert_eq!(store.realisation(&deriver, "out").unwrap(), None);
        assert_eq!(store.realisation_by_hash("sha256:00", "out").unwrap(), None);
    }
}

#[test]
fn realisations_of_content_addressed_derivations() {
    let lab = Lab::physical(Nix::New);
    let expression = "derivation { name = \"ca\"; system = builtins.currentSystem; builder = \"/bin/sh\"; \
        args = [ \"-c\" \"echo hi > $out\" ]; __contentAddressed = true; outputHashMode = \"recursive\"; outputHashAlgo = \"sha256\"; }";
    let built = lab.build_expression(expression);
    let config = lab.config();
    let database = rusqlite::Connection::open(config.database()).unwrap();
    let tables: i64 = database
        .query_row("select count(*) from sqlite_master where name in ('BuildTraceV3', 'Realisations')", (), |row| {
            row.get(0)
        })
        .unwrap();
    assert_eq!(tables, 1);
    let store = Store::new(config);
    let legacy = database.query_row("select drvPath, outputName from Realisations", (), |row| {
        Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?))
    });
    let found = match legacy {
        Ok((derivation, output)) => store.realisation_by_hash(&derivation, &output).unwrap(),
        Err(_) => {
            let (derivation, output): (String, String) = database
                .query_row("select drvPath, outputName from BuildTraceV3", (), |row| Ok((row.get(0)?, row.get(1)?)))
                .unwrap();
            store.realisation(&StorePath::parse(&derivation).unwrap(), &output).unwrap()
        }
    };
    assert_eq!(found.unwrap().output_path, built);
    let info = store.path_info(&built).unwrap().unwrap();
    assert!(info.ca.is_some());
}

/// A process of another user that answers: each line a root and a hash part, each answer a word. Its store stays open.
struct Nobody {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Nobody {
    fn start() -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "nobody_answers", "--nocapture"]).env("NARVAL_TEST_NOBODY", "1").current_dir("/");
        if rustix::process::geteuid().is_root() {
            command.uid(65534).gid(65534);
        }
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (to, from) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Self { child, to, from }
    }

    fn ask(&mut self, root: &Path, hash_part: HashPart) -> String {
        writeln!(self.to, "{} {hash_part}", root.display()).unwrap();
        loop {
            let mut line = String::new();
            assert!(self.from.read_line(&mut line).unwrap() > 0, "the other process ended");
            if let Some((_, answer)) = line.trim_end().rsplit_once("answer: ") {
                return answer.to_owned();
            }
        }
    }
}

impl Drop for Nobody {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// The other side of [`Nobody`]; alone it does nothing.
#[test]
fn nobody_answers() {
    if std::env::var_os("NARVAL_TEST_NOBODY").is_none() {
        return;
    }
    let mut stores: HashMap<String, Store> = HashMap::new();
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let (root, hash_part) = line.split_once(' ').unwrap();
        let store = stores
            .entry(root.to_owned())
            .or_insert_with(|| Store::new(StoreConfig::parse(root, &Environment::default()).unwrap()));
        let answer = match store.path_info_by_hash_part(&hash_part.parse().unwrap()) {
            Ok(Some(_)) => "valid".to_owned(),
            Ok(None) => "absent".to_owned(),
            Err(StoreError::DatabaseUnavailable { .. }) => "unavailable".to_owned(),
            Err(error) => error.to_string(),
        };
        println!("answer: {answer}");
    }
}

#[test]
fn every_state_of_the_log_for_an_unprivileged_user() {
    for nix in Nix::BOTH {
        let lab = Lab::new(nix);
        let first = lab.add_file("first", "1");
        let root = lab.root();
        let mut nobody = Nobody::start();
        // At rest: with a log that stays (new), or none at all (old).
        assert_eq!(nobody.ask(&root, first.hash_part()), "valid", "{nix:?}");
        assert_eq!(nobody.ask(&root, absent()), "absent");
        // Committed by a process that has ended.
        let second = lab.add_file("second", "2");
        assert_eq!(nobody.ask(&root, second.hash_part()), "valid", "{nix:?}");
        lab.delete(&second);
        assert_eq!(nobody.ask(&root, second.hash_part()), "absent", "{nix:?}");
        // Committed by a process that is still there: the rows are in the log alone.
        let writer = rusqlite::Connection::open(lab.config().database()).unwrap();
        writer.pragma_update(None, "wal_autocheckpoint", 0).unwrap();
        writer.execute("update ValidPaths set path = replace(path, 'first', 'third')", ()).unwrap();
        writer
            .execute(
                "insert into ValidPaths (path, hash, registrationTime) values (?1, ?2, 1)",
                [
                    "/nix/store/zzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzz-added",
                    "sha256:77ac62e2629d8e45f624589c0c8bf99e24b3a722349bf1e79bc186008534e246",
                ],
            )
            .unwrap();
        let added = HashPart::parse(&[b'z'; 32]).unwrap();
        assert_eq!(nobody.ask(&root, added), "valid", "{nix:?}");
        // A process that holds the write lock does not stop readers.
        writer.execute_batch("begin immediate; delete from ValidPaths where registrationTime = 1").unwrap();
        assert_eq!(nobody.ask(&root, added), "valid", "{nix:?}");
        assert_eq!(Nobody::start().ask(&root, added), "valid", "{nix:?}, a new process");
        writer.execute_batch("commit").unwrap();
        assert_eq!(nobody.ask(&root, added), "absent", "{nix:?}");
        drop(writer);
        assert_eq!(nobody.ask(&root, first.hash_part()), "valid", "{nix:?}");
    }
}

#[test]
fn a_database_whose_log_cannot_be_read_gives_no_answer() {
    let lab = Lab::new(Nix::Old);
    let first = lab.add_file("first", "1");
    let database = lab.config().database();
    let writer = rusqlite::Connection::open(&database).unwrap();
    writer.execute("delete from ValidPaths", ()).unwrap();
    // As after a crash that lost the index: rows in the log, and nobody who may read them.
    let crashed = lab.dir.path().join("crashed");
    std::fs::create_dir_all(crashed.join("nix/var/nix/db")).unwrap();
    for file in ["db.sqlite", "db.sqlite-wal"] {
        std::fs::copy(database.with_file_name(file), crashed.join("nix/var/nix/db").join(file)).unwrap();
    }
    drop(writer);
    assert!(std::fs::metadata(crashed.join("nix/var/nix/db/db.sqlite-wal")).unwrap().len() > 0);
    if rustix::process::geteuid().is_root() {
        assert_eq!(Nobody::start().ask(&crashed, first.hash_part()), "unavailable");
        // Who may write recovers, and sees the deletion.
        let store = Store::new(StoreConfig::for_root(&crashed).unwrap());
        assert_eq!(store.path_info(&first).unwrap(), None);
    }
    let nowhere = Store::new(StoreConfig::for_root(&lab.dir.path().join("nowhere")).unwrap());
    assert!(matches!(nowhere.path_info(&first), Err(StoreError::DatabaseUnavailable { .. })));
    assert_eq!(nowhere.stamp(), None);
}

#[test]
fn damage_is_an_error_and_never_an_absence() {
    let lab = Lab::new(Nix::New);
    let first = lab.add_file("first", "1");
    let writer = rusqlite::Connection::open(lab.config().database()).unwrap();
    let store = Store::new(lab.config());
    for column in ["hash", "ca", "deriver"] {
        let before: Option<String> =
            writer.query_row(&format!("select {column} from ValidPaths"), (), |row| row.get(0)).unwrap();
        writer.execute(&format!("update ValidPaths set {column} = 'damaged'"), ()).unwrap();
        let error = store.path_info(&first).expect_err(column).to_string();
        assert!(error.contains(column) && error.contains(&lab.full(&first)), "{error}");
        writer.execute(&format!("update ValidPaths set {column} = ?1"), [before]).unwrap();
    }
    // A signature of a kind that does not exist yet leaves the others.
    writer.execute("update ValidPaths set sigs = 'key:post-quantum'", ()).unwrap();
    assert_eq!(store.path_info(&first).unwrap().unwrap().signatures, []);
    drop(writer);
    drop(store);
    let database = lab.config().database();
    for suffix in ["-wal", "-shm"] {
        std::fs::remove_file(format!("{}{suffix}", database.display())).ok();
    }
    std::fs::write(&database, vec![b'x'; 8192]).unwrap();
    let store = Store::new(lab.config());
    assert!(matches!(store.path_info(&first), Err(StoreError::Database { .. })));
}

/// A path that is absent is looked up at the next row there is, whatever is wrong with that.
#[test]
fn a_damaged_row_does_not_affect_others() {
    let lab = Lab::new(Nix::New);
    let first = lab.add_file("first", "1");
    let writer = rusqlite::Connection::open(lab.config().database()).unwrap();
    let store = Store::new(lab.config());
    let absent_before = |first: &StorePath| {
        let neighbour = HashPart::parse(b"00000000000000000000000000000000").unwrap();
        assert!(neighbour.to_string().as_str() < first.base_name());
        assert_eq!(store.path_from_hash_part(&neighbour).unwrap(), None);
        assert_eq!(store.path_info_by_hash_part(&neighbour).unwrap(), None);
    };
    let damages = [
        "hash = 'damaged'",
        "hash = 7",
        "hash = x'ff'",
        "ca = 'damaged'",
        "deriver = 'damaged'",
        "narSize = -1",
        "narSize = 'many'",
        "registrationTime = -1",
        "sigs = x'ff'",
        "path = path || '/'",
        "path = path || cast(x'ff' as text)",
        "path = cast(path as blob)",
    ];
    for damage in damages {
        writer
            .execute_batch(&format!(
                "create temp table kept as select * from ValidPaths; update ValidPaths set {damage}"
            ))
            .unwrap();
        absent_before(&first);
        // The row itself is never "absent" for being damaged, unless it has no path any more.
        if damage != "path = cast(path as blob)" {
            assert!(store.path_info_by_hash_part(&first.hash_part()).is_err(), "{damage}");
        }
        writer
            .execute_batch("delete from ValidPaths; insert into ValidPaths select * from kept; drop table kept")
            .unwrap();
        assert!(store.path_info(&first).unwrap().is_some());
    }
}

#[test]
fn a_replaced_or_vacuumed_database_is_noticed() {
    let (lab, other) = (Lab::new(Nix::New), Lab::new(Nix::Old));
    let first = lab.add_file("first", "1");
    let second = other.add_file("second", "2");
    let store = Store::new(lab.config());
    assert!(store.is_valid(&first).unwrap() && !store.is_valid(&second).unwrap());
    let before = store.stamp();
    rusqlite::Connection::open(lab.config().database()).unwrap().execute("vacuum", ()).unwrap();
    assert_ne!(before, store.stamp(), "vacuumed");
    assert!(store.is_valid(&first).unwrap());
    let before = store.stamp();
    // The whole directory replaced by another, as when a backup is put back.
    let directory = lab.root().join("nix/var/nix/db");
    std::fs::rename(&directory, lab.dir.path().join("old-db")).unwrap();
    std::fs::rename(other.root().join("nix/var/nix/db"), &directory).unwrap();
    assert_ne!(before, store.stamp(), "replaced");
    assert!(!store.is_valid(&first).unwrap() && store.is_valid(&second).unwrap());
    std::fs::rename(&directory, lab.dir.path().join("other-db")).unwrap();
    assert!(matches!(store.is_valid(&first), Err(StoreError::DatabaseUnavailable { .. })));
    assert_eq!(store.stamp(), None);
}

/// A thousand, in four stores at the same time: Nix waits for the disk after each.
#[test]
fn a_thousand_changes_and_nothing_stale() {
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| changes_and_nothing_stale(125));
        }
    });
}

/// So many paths are added and deleted again in a store.
fn changes_and_nothing_stale(rounds: usize) {
    let lab = Lab::new(Nix::New);
    lab.add_file("first", "1");
    let store = Store::new(lab.config());
    // What a server remembers: the answer, and the stamp from before it was asked for.
    let mut memory: HashMap<HashPart, (Stamp, bool)> = HashMap::new();
    let (mut hits, mut asked) = (0, 0);
    let mut look = |hash_part: HashPart| {
        let stamp = store.stamp();
        if let (Some(now), Some((then, valid))) = (stamp, memory.get(&hash_part))
            && now == *then
        {
            hits += 1;
            return *valid;
        }
        let valid = store.path_info_by_hash_part(&hash_part).unwrap().is_some();
        asked += 1;
        if let Some(stamp) = stamp {
            memory.insert(hash_part, (stamp, valid));
        }
        valid
    };
    for round in 0..rounds {
        let path = lab.add_file("file", &round.to_string());
        assert!(look(path.hash_part()), "round {round}: added and not seen");
        assert!(look(path.hash_part()));
        lab.delete(&path);
        assert!(!look(path.hash_part()), "round {round}: deleted and still seen");
        assert!(!look(path.hash_part()));
    }
    assert!(hits * 10 >= rounds * 18, "remembered answers were used: {hits} of {}", hits + asked);
}
