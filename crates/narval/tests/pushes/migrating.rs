//! `narval cache migrate`: a folder that Nix has filled goes to a bucket and a database, and back to a folder, with the command killed on the way.

use std::ffi::OsStr;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::lab::{Lab, Nar};
use crate::postgres::PostgresServer;
use crate::s3::S3Server;
use crate::s3::proxy::{Fault, Proxy};
use crate::support::{Answer, NARVAL, Nix, Server, hash_part, stdout, value};

/// Files that one path refers to.
const FILES: usize = 40;

/// NARs that a migration copies at the same time.
const THREADS: usize = 8;

/// What was counted by a migration that ended well.
fn migrate(command: &mut Command) -> serde_json::Value {
    let output = command.output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{message}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Kills a migration with SIGKILL when it has sent so many requests of this kind. Returns the requests of this kind until then.
fn kill_after(proxy: &Proxy, method: &'static str, requests: usize, command: &mut Command) -> usize {
    let seen = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&seen);
    proxy.set(move |asked, target| {
        let is_nar = asked == method && target.contains("/nar/");
        count.fetch_add(usize::from(is_nar), Ordering::SeqCst);
        Fault::None
    });
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let until = Instant::now() + Duration::from_secs(60);
    while seen.load(Ordering::SeqCst) < requests {
        assert!(child.try_wait().unwrap().is_none(), "it ended before {requests} requests");
        assert!(Instant::now() < until, "it has not sent {requests} requests");
        std::thread::sleep(Duration::from_millis(1));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    seen.load(Ordering::SeqCst)
}

/// The hash of the NAR of each path at a server.
fn hashes(server: &Server, paths: &[String]) -> Vec<String> {
    let hash = |path: &String| {
        let narinfo = server.get(&format!("/{}.narinfo", hash_part(path)));
        assert_eq!(narinfo.status, 200, "{path}");
        value(narinfo.text(), "NarHash").unwrap().to_owned()
    };
    paths.iter().map(hash).collect()
}

#[test]
fn a_folder_goes_to_a_bucket_and_back_while_the_command_is_killed() {
    let (Some(s3), Some(postgres)) = (S3Server::versitygw(), PostgresServer::new()) else { return };
    let lab = Lab::new();
    let token = lab.token("push,pull");
    let mut paths: Vec<String> = (0..FILES)
        .map(|at| lab.store.add_file(&format!("file-{at}"), format!("contents {at} ").repeat(2000)))
        .collect();
    paths.push(lab.store.add_tree("tree"));
    let stored: Vec<String> = paths.iter().map(|path| format!("(builtins.storePath \"{path}\")")).collect();
    let text = format!("builtins.toFile \"root\" (toString [ {} ])", stored.join(" "));
    let eval = ["eval", "--impure", "--raw", "--store", &lab.store.uri(), "--expr", &text];
    let root = stdout(Nix::Newest.nix(lab.store.dir.path(), &eval));
    lab.push(Nix::Newest, &token, "", &root).unwrap();
    paths.push(root.clone());
    let administer = |args: &[&str]| {
        stdout(Command::new(NARVAL).args(args).arg("--data").arg(lab.data_path()).output().unwrap());
    };
    administer(&["pin", "add", "release", &root]);
    let before = hashes(&lab.server, &paths);

    // There, with the source's server running.
    let (proxy, database) = (Proxy::to(s3.port), postgres.database());
    let bucket =
        s3.bucket("moved").replace("moved", "moved/prefix").replace(&s3.port.to_string(), &proxy.port.to_string());
    let environment = [s3.environment(), vec![("NO_PROXY".to_owned(), "127.0.0.1".to_owned())]].concat();
    let there = || {
        let mut command = Command::new(NARVAL);
        command.args(["cache", "migrate", "--json", "--from"]).arg(lab.data_path()).args(["--to", &bucket]);
        command.args(["--database", &database, "--cache-dir"]).arg(lab.store.path("node"));
        command.envs(environment.iter().cloned());
        command
    };
    let sent: usize =
        [THREADS + 4, THREADS + 6].map(|requests| kill_after(&proxy, "PUT", requests, &mut there())).iter().sum();
    proxy.set(|_, _| Fault::None);
    let done = migrate(&mut there());
    let (copied, nars) = (done["paths"].as_u64().unwrap(), done["nars"].as_u64().unwrap() as usize);
    assert_eq!((copied, done["pins"].as_u64()), (paths.len() as u64, Some(1)), "{done}");
    // What a killed one had completed is not sent again: all but those that were on their way.
    assert!(nars <= paths.len() + 2 * THREADS - sent, "{nars} NARs after {sent}: {done}");
    let again = migrate(&mut there());
    assert_eq!((again["nars"].as_u64(), again["present"].as_u64()), (Some(0), Some(paths.len() as u64)), "{again}");
    let serve = |data: &str, more: &[&str]| {
        let mut command = Command::new(NARVAL);
        command.args(["serve", "--listen", "127.0.0.1:0", "--data", data]).args(more);
        let environment: Vec<_> = environment.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        Server::start(command, &environment)
    };
    let node = lab.store.path("node").display().to_string();
    let server = serve(&bucket, &["--database", &database, "--cache-dir", &node, "--cache-size", "1G"]);
    assert_eq!(hashes(&server, &paths), before);
    lab.pull_from(&server, Nix::Newest, &root);
    lab.pull_from(&server, Nix::Newest, &paths[FILES]);

    // And back, with that one running. It has NARs in its disk cache; the command has none.
    let folder = lab.store.path("data-2");
    let back = || {
        let mut command = Command::new(NARVAL);
        command.args(["cache", "migrate", "--json", "--from", &bucket, "--from-database", &database]);
        command.arg("--from-cache-dir").arg(lab.store.path("node-2")).arg("--to").arg(&folder);
        command.envs(environment.iter().cloned());
        command
    };
    kill_after(&proxy, "GET", THREADS + 4, &mut back());
    proxy.set(|_, _| Fault::None);
    let done = migrate(&mut back());
    assert_eq!((done["paths"].as_u64(), done["pins"].as_u64()), (Some(paths.len() as u64), Some(1)), "{done}");
    let returned = serve(folder.to_str().unwrap(), &[]);
    assert_eq!(hashes(&returned, &paths), before);
    for nix in Nix::BOTH {
        lab.pull_from(&returned, nix, &root);
        lab.pull_from(&returned, nix, &paths[FILES]);
    }
    // The token is valid there, and the pin holds.
    let fsck = Command::new(NARVAL).args(["cache", "fsck", "--contents", "--data"]).arg(&folder).output().unwrap();
    assert_eq!(stdout(fsck), "");
    let why = Command::new(NARVAL).args(["cache", "why", &paths[0], "--data"]).arg(&folder).output().unwrap();
    assert!(stdout(why).contains("pin 'release'"));
    let moved = Lab { store: crate::support::Store::new(), server: returned };
    let new = moved.store.add_file("new", "pushed to the new place");
    moved.push(Nix::Newest, &token, "", &new).unwrap();
}

/// Reads a path with its NAR from a server, as a client does.
fn read(address: SocketAddr, part: &str) -> Result<(), String> {
    let get = |path: &str| -> Option<Answer> {
        let mut stream = TcpStream::connect(address).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(60))).ok()?;
        write!(stream, "GET {path} HTTP/1.1\r\nHost: cache\r\nConnection: close\r\n\r\n").ok()?;
        let mut raw = Vec::new();
        stream.read_to_end(&mut raw).ok()?;
        Answer::parse(&raw).filter(|answer| answer.status == 200 && answer.complete)
    };
    let narinfo = get(&format!("/{part}.narinfo")).ok_or_else(|| format!("{address}: no narinfo of {part}"))?;
    let url = value(narinfo.text(), "URL").unwrap().to_owned();
    let nar = get(&format!("/{url}")).ok_or_else(|| format!("{address}: no {url} of {part}"))?;
    let hash = format!("sha256:{}", narval_nix::Sha256::of(&nar.body).to_nix32());
    if value(narinfo.text(), "NarHash") == Some(&hash) { Ok(()) } else { Err(format!("{part} is damaged")) }
}

/// Sets it when it is dropped.
struct Ended<'a>(&'a AtomicBool);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// From a folder with its index in SQLite into a bucket with its index in PostgreSQL, and back, as docs/scale-out.md says.
#[test]
fn a_cache_moves_while_a_reader_reads() {
    let (Some(s3), Some(postgres)) = (S3Server::versitygw(), PostgresServer::new()) else { return };
    let lab = Lab::new();
    let token = lab.token("push,pull");
    let part = |number: usize| format!("{number:032}");
    let push = |number: usize| {
        let nar = Nar::of(format!("contents of {number} ").repeat(3000).as_bytes());
        assert!(lab.put(&nar.url(), &token, &nar.bytes).status < 300);
        let narinfo = nar.narinfo(&format!("{}-file", part(number)), &[]);
        assert!(lab.put(&format!("/{}.narinfo", part(number)), &token, narinfo.as_bytes()).status < 300);
    };
    (0..FILES).for_each(push);
    let (database, bucket) = (postgres.database(), s3.bucket("moving").replace("moving", "moving/prefix"));
    let environment = [s3.environment(), vec![("NO_PROXY".to_owned(), "127.0.0.1".to_owned())]].concat();
    let (node, back) = (lab.store.path("node"), lab.store.path("back"));
    let copy = |args: &[&OsStr]| {
        let mut command = Command::new(NARVAL);
        command.args(["cache", "migrate", "--json"]).args(args).envs(environment.iter().cloned());
        migrate(&mut command)["paths"].as_u64().unwrap()
    };
    let data = lab.data_path();
    let there: [&OsStr; 8] = [
        "--from".as_ref(),
        data.as_ref(),
        "--to".as_ref(),
        bucket.as_ref(),
        "--database".as_ref(),
        database.as_ref(),
        "--cache-dir".as_ref(),
        node.as_ref(),
    ];
    let serve = |args: &[&OsStr]| {
        let mut command = Command::new(NARVAL);
        command.args(["serve", "--listen", "127.0.0.1:0"]).args(args);
        let environment: Vec<_> = environment.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        Server::start(command, &environment)
    };
    let (balancer, is_done, reads) = (Mutex::new(lab.server.address), AtomicBool::new(false), AtomicUsize::new(0));
    let lead_to = |server: &Server| {
        let before = reads.load(Ordering::SeqCst);
        *balancer.lock().unwrap() = server.address;
        // What is being read from the old one is read to its end.
        let until = Instant::now() + Duration::from_secs(120);
        while reads.load(Ordering::SeqCst) < before + 3 * FILES && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    std::thread::scope(|scope| {
        // Also if this panics: otherwise the reader is waited for, which reads for ever.
        let _ended = Ended(&is_done);
        let reader = scope.spawn(|| -> Result<(), String> {
            for number in (0..FILES).cycle() {
                if is_done.load(Ordering::SeqCst) {
                    break;
                }
                let address = *balancer.lock().unwrap();
                let outcome = read(address, &part(number));
                reads.fetch_add(1, Ordering::SeqCst);
                outcome?;
            }
            Ok(())
        });
        assert_eq!(copy(&there), FILES as u64);
        push(FILES);
        assert_eq!(copy(&there), 1);
        let new = serve(&[
            "--data".as_ref(),
            bucket.as_ref(),
            "--database".as_ref(),
            database.as_ref(),
            "--cache-dir".as_ref(),
            node.as_ref(),
        ]);
        push(FILES + 1);
        lead_to(&new);
        assert_eq!(copy(&there), 1);
        assert!(Command::new("kill").arg(lab.server.pid().to_string()).status().unwrap().success());
        (0..FILES + 2).for_each(|number| read(new.address, &part(number)).unwrap());
        // And back.
        let node = lab.store.path("node-2");
        let away: [&OsStr; 8] = [
            "--from".as_ref(),
            bucket.as_ref(),
            "--from-database".as_ref(),
            database.as_ref(),
            "--from-cache-dir".as_ref(),
            node.as_ref(),
            "--to".as_ref(),
            back.as_ref(),
        ];
        assert_eq!(copy(&away), FILES as u64 + 2);
        let returned = serve(&["--data".as_ref(), back.as_ref()]);
        lead_to(&returned);
        new.terminate();
        is_done.store(true, Ordering::SeqCst);
        reader.join().unwrap().unwrap();
        (0..FILES + 2).for_each(|number| read(returned.address, &part(number)).unwrap());
    });
    eprintln!("{} reads", reads.into_inner());
}
