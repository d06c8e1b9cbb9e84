//! The worker protocol, with real daemons: the newest and an old one.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails so")]

mod lab;

use std::io::{Read, Write};
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;

use lab::{Lab, Nix, odd_tree};
use narval_nix::{HashPart, NarHash, PathInfo, StorePath};
use narval_store::{Daemon, DaemonError, Environment, NarReader, Store, StoreConfig, StoreError, Trust};

fn nar_of(lab: &Lab, path: &StorePath) -> Vec<u8> {
    let mut nar = Vec::new();
    NarReader::open(&lab.config().real_store_dir.join(path.base_name())).unwrap().read_to_end(&mut nar).unwrap();
    nar
}

fn absent() -> StorePath {
    StorePath::parse("00000000000000000000000000000000-absent").unwrap()
}

#[test]
fn the_same_answers_as_the_database() {
    for nix in Nix::BOTH {
        let lab = Lab::physical(nix);
        let source = lab.add_file("source", "source");
        let built = lab.build("built", "mkdir $out; echo $1 $out > $out/refs", &[&source]);
        let running = lab.daemon();
        let uri = format!(
            "unix://{}?store={}&real={}",
            running.socket.display(),
            lab.config().store_dir,
            lab.config().store_dir
        );
        let by_daemon = Store::new(StoreConfig::parse(&uri, &Environment::default()).unwrap());
        let by_database = Store::new(lab.config());
        for path in by_database.all_valid_paths().unwrap() {
            let info = by_database.path_info(&path).unwrap();
            assert_eq!(by_daemon.path_info(&path).unwrap(), info, "{nix:?}");
            assert_eq!(by_daemon.path_info_by_hash_part(&path.hash_part()).unwrap(), info);
            assert_eq!(by_daemon.references(&path).unwrap(), by_database.references(&path).unwrap());
            assert_eq!(by_daemon.referrers(&path).unwrap(), by_database.referrers(&path).unwrap());
        }
        let mut all = by_daemon.all_valid_paths().unwrap();
        all.sort();
        let mut expected = by_database.all_valid_paths().unwrap();
        expected.sort();
        assert_eq!(all, expected);
        assert_eq!(by_daemon.path_from_hash_part(&HashPart::parse(&[b'z'; 32]).unwrap()).unwrap(), None);
        assert_eq!(by_daemon.path_info(&absent()).unwrap(), None);
        assert!(!by_daemon.is_valid(&absent()).unwrap() && by_daemon.is_valid(&built).unwrap());
        assert_eq!(by_daemon.stamp(), None);

        let daemon = by_daemon.daemon().unwrap();
        assert_eq!(daemon.valid_paths(&[source.clone(), absent(), built.clone()]).unwrap().len(), 2);
        // What is kept is not deleted; afterwards it is.
        let other = lab.add_file("other", "kept");
        let kept = daemon.keep(std::slice::from_ref(&other)).unwrap();
        let delete =
            || nix.command("nix-store").args(["--delete", &lab.full(&other), "--store", &lab.uri()]).output().unwrap();
        assert!(!delete().status.success());
        drop(kept);
        let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while !delete().status.success() {
            assert!(std::time::Instant::now() < until, "the daemon keeps it for ever");
        }
        let (version, trust) = daemon.hello().unwrap();
        match nix {
            Nix::New => assert_eq!((version.is_empty(), trust), (false, Trust::Trusted)),
            Nix::Old => assert_eq!(trust, Trust::Unknown),
        }
    }
}

#[test]
fn the_daemon_answers_where_the_database_can_not_be_read() {
    let lab = Lab::physical(Nix::New);
    let path = lab.add_file("file", "1");
    let running = lab.daemon();
    let nowhere = lab.dir.path().join("nowhere");
    let environment = Environment::of(&[
        ("NIX_STORE_DIR", lab.config().store_dir.as_str()),
        ("NIX_STATE_DIR", nowhere.to_str().unwrap()),
        ("NIX_DAEMON_SOCKET_PATH", running.socket.to_str().unwrap()),
    ]);
    let store = Store::new(StoreConfig::from_environment(&environment).unwrap());
    assert!(store.path_info_by_hash_part(&path.hash_part()).unwrap().is_some());
    drop(running);
    // The first store's connection is served by its own process, which keeps running.
    let store = Store::new(store.config().clone());
    assert!(matches!(store.path_info(&path), Err(StoreError::NoWay { .. } | StoreError::Daemon(_))));
    let error = store.path_info(&path).unwrap_err().to_string();
    assert!(error.contains("nowhere") && error.contains("socket"), "{error}");
}

#[test]
fn a_daemon_that_was_restarted() {
    let lab = Lab::physical(Nix::New);
    let path = lab.add_file("file", "1");
    let mut running = lab.daemon();
    let daemon = Daemon::new(&running.socket, lab.config().store_dir);
    assert!(daemon.is_valid(&path).unwrap());
    // The daemon serves each connection in a process of its own; those end with their connection.
    running.child.kill().unwrap();
    running.child.wait().unwrap();
    drop(running);
    let _again = lab.daemon();
    for _ in 0..3 {
        assert!(daemon.is_valid(&path).unwrap());
    }
}

#[test]
fn adding_paths() {
    for nix in Nix::BOTH {
        let lab = Lab::physical(nix);
        let tree = lab.dir.path().join("tree");
        odd_tree(&tree);
        let tree = lab.add(&tree);
        let top = lab.build("top", "echo $1 > $out", &[&tree]);
        let from = Store::new(lab.config());
        let infos: Vec<PathInfo> = [&tree, &top].map(|path| from.path_info(path).unwrap().unwrap()).into();
        let other = Other::new(&lab, nix);
        let daemon = Daemon::new(&other.running.socket, lab.config().store_dir);
        let nar = nar_of(&lab, &tree);
        // What is wrong is refused, in the daemon's words.
        let wrong = PathInfo { nar_hash: NarHash::of(b""), ..infos[0].clone() };
        let refused = daemon.add_to_store_nar(&wrong, &nar[..], false);
        assert!(matches!(refused, Err(DaemonError::Refused { .. })), "{refused:?}");
        let cut = Read::chain(&nar[..1000], Failing);
        let cut = daemon.add_to_store_nar(&infos[0], cut, false);
        assert!(matches!(cut, Err(DaemonError::Source(_))), "{cut:?}");
        assert!(!daemon.is_valid(&tree).unwrap());
        let many = infos.iter().map(|info| Ok((info.clone(), std::io::Cursor::new(nar_of(&lab, &info.path)))));
        daemon.add_multiple_to_store(2, many, false).unwrap();
        let added = daemon.path_info(&top).unwrap().unwrap();
        assert_eq!((added.nar_hash, added.references), (infos[1].nar_hash, infos[1].references.clone()));
        // What is valid already is no matter.
        daemon.add_to_store_nar(&infos[0], &nar[..], false).unwrap();
        let link = lab.dir.path().join("result");
        symlink(lab.full(&top), &link).unwrap();
        daemon.add_indirect_root(&link).unwrap();
    }
}

struct Failing;

impl Read for Failing {
    fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
        Err(std::io::Error::other("a broken source"))
    }
}

/// A second store with the same logical directory, and its daemon.
struct Other {
    running: lab::TestDaemon,
}

impl Other {
    fn new(lab: &Lab, nix: Nix) -> Self {
        let dir = lab.dir.path().join("other");
        std::fs::create_dir(&dir).unwrap();
        let dir = dir.display();
        let uri = format!("local?store={}&real={dir}/store&state={dir}/state&log={dir}/log", lab.config().store_dir);
        // The daemon opens the store in a process per connection; two that create it at once get in each other's way.
        assert!(nix.command("nix-store").arg("--init").env("NIX_REMOTE", &uri).status().unwrap().success());
        Self { running: lab::start_daemon(nix, &lab.dir.path().join("other/socket"), &uri) }
    }
}

#[test]
fn a_peer_that_is_not_a_daemon() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("socket");
    let daemon = Daemon::new(&socket, narval_nix::StoreDir::default());
    assert!(matches!(daemon.is_valid(&absent()), Err(DaemonError::Connect { .. })));
    let listener = UnixListener::bind(&socket).unwrap();
    let magic = 0x6478_696f_u64.to_le_bytes();
    let answers: [&[u8]; 4] = [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        &[&magic[..], &0x0110_u64.to_le_bytes()].concat(),
        &[&magic[..], &0x0226_u64.to_le_bytes()].concat(),
        &[&magic[..], &0x0126_u64.to_le_bytes(), &u64::MAX.to_le_bytes()].concat(),
    ];
    for answer in answers {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (mut stream, _) = listener.accept().unwrap();
                stream.read_exact(&mut [0; 16]).unwrap();
                stream.write_all(answer).unwrap();
            });
            let error = daemon.is_valid(&absent()).unwrap_err();
            assert!(matches!(error, DaemonError::Version { .. } | DaemonError::Wire(_)), "{error}");
        });
    }
}

/// A daemon that is busy for longer than a question may take: here it is stopped while a path is sent to it.
#[test]
fn a_busy_daemon_is_waited_for_by_those_who_write() {
    let from = Lab::physical(Nix::New);
    let big = from.dir.path().join("big");
    std::fs::write(&big, vec![7; 8 << 20]).unwrap();
    let path = from.add(&big);
    let info = Store::new(from.config()).path_info(&path).unwrap().unwrap();
    let nar = nar_of(&from, &path);
    for nix in Nix::BOTH {
        let lab = Lab::new(nix);
        let to = lab.dir.path().join("to").display().to_string();
        let uri = format!("local?store={}&real={to}/store&state={to}/state&log={to}/log", from.config().store_dir);
        lab::run(nix.command("nix-store").args(["--store", &uri, "--init"]));
        let running = lab::start_daemon(nix, &lab.dir.path().join("socket"), &uri);
        let brief = std::time::Duration::from_secs(2);
        let daemon = Daemon::new(&running.socket, from.config().store_dir).with_reply_timeout(brief);
        let sent = std::iter::once(Ok((info.clone(), Stopping { rest: &nar, daemon: running.child.id(), brief })));
        daemon.add_multiple_to_store(1, sent, false).unwrap();
        let patient = Daemon::new(&running.socket, from.config().store_dir);
        assert!(patient.is_valid(&path).unwrap(), "{nix:?}");
        let dead = patient.collect_garbage(true).unwrap();
        assert_eq!(dead.paths, [from.full(&path)], "{nix:?}");
        assert!(patient.is_valid(&path).unwrap());
        assert_eq!(patient.collect_garbage(false).unwrap().paths.len(), 1);
        assert!(!patient.is_valid(&path).unwrap());
    }
}

/// A NAR that stops the daemon's process for this connection half way, for twice as long as a question may take.
struct Stopping<'a> {
    rest: &'a [u8],
    daemon: u32,
    brief: std::time::Duration,
}

impl Read for Stopping<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if self.rest.len() < 4 << 20 && !self.brief.is_zero() {
            let wait = std::mem::take(&mut self.brief) * 2;
            let children = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", self.daemon)).unwrap();
            // Those of connections that have ended may be gone meanwhile.
            let signal = |name: &str, child: &str| {
                let status =
                    std::process::Command::new("kill").args([name, child]).stderr(std::process::Stdio::null()).status();
                status.unwrap().success()
            };
            let stopped: Vec<String> =
                children.split_whitespace().filter(|child| signal("-STOP", child)).map(str::to_owned).collect();
            assert!(!stopped.is_empty());
            std::thread::spawn(move || {
                std::thread::sleep(wait);
                for child in stopped {
                    signal("-CONT", &child);
                }
            });
        }
        self.rest.read(buffer)
    }
}
