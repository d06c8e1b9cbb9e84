//! The order in which a push becomes durable, observed with strace: what was answered has to survive a power failure right after the answer.
//!
//! First the calls are checked, one by one. Then the failure is simulated, on a copy of the folder: names that no `fsync` of their folder
//! covers are gone, files that were not synced are empty, and the log of the index ends where it was last synced.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::lab::{Lab, Nar};
use crate::support::{NARVAL, Server, Store, hash_part};

/// A system call: the lines of the trace where it begins and where it returns.
#[derive(Debug)]
struct Call {
    begin: usize,
    end: usize,
    name: String,
    /// All of the line after the name.
    text: String,
}

impl Call {
    /// The path of its first descriptor.
    fn file(&self) -> &str {
        self.text.split_once('<').and_then(|(_, rest)| rest.split_once('>')).map_or("", |(path, _)| path)
    }

    /// The paths among its arguments.
    fn paths(&self) -> Vec<&str> {
        self.text.split('"').skip(1).step_by(2).collect()
    }

    fn is_write(&self) -> bool {
        ["write", "pwrite64", "writev", "pwritev"].contains(&&*self.name)
    }

    fn is_sync(&self) -> bool {
        ["fsync", "fdatasync"].contains(&&*self.name)
    }
}

/// Puts calls that strace has cut in two together again.
fn calls(trace: &Path) -> Vec<Call> {
    let (mut calls, mut open) = (Vec::<Call>::new(), BTreeMap::<String, usize>::new());
    for (number, line) in std::fs::read_to_string(trace).unwrap().lines().enumerate() {
        let (thread, line) = line.split_once(' ').unwrap();
        let line = line.trim_start();
        if let Some(rest) = line.strip_prefix("<... ") {
            if let Some(call) = open.remove(thread) {
                calls[call].end = number;
                calls[call].text.push_str(rest.split_once("resumed>").map_or("", |(_, rest)| rest));
            }
        } else if let Some((name, text)) = line.split_once('(') {
            if text.ends_with("<unfinished ...>") {
                open.insert(thread.to_owned(), calls.len());
            }
            calls.push(Call { begin: number, end: number, name: name.to_owned(), text: text.to_owned() });
        }
    }
    // Not yet returned.
    open.values().for_each(|call| calls[*call].end = usize::MAX);
    calls
}

/// What is wrong with the order, one line each. `answers` are the names of NARs and the hash parts of narinfos, as they were answered.
fn faults(calls: &[Call], answers: &[(String, Vec<String>)]) -> Vec<String> {
    let mut faults = Vec::new();
    let told: Vec<&Call> = calls.iter().filter(|call| call.text.contains("\"HTTP/1.1 20")).collect();
    assert_eq!(told.len(), answers.len(), "each request was answered once, after the one before");
    let named = |name: &str| {
        // With 16 random characters.
        let hash = format!("{}-", name.split_once('.').unwrap().0);
        let is_named = |call: &&Call| {
            let place = call.paths().last().and_then(|path| path.rsplit_once("/nar/"));
            call.name.starts_with("rename")
                && place.is_some_and(|(_, own)| own.starts_with(&hash) && own.ends_with(".nar"))
        };
        calls.iter().find(is_named)
    };
    // The file of a NAR is synced before it has a name that anybody reads, and not written to later.
    let mut renames = BTreeMap::new();
    for ((what, nars), told) in std::iter::zip(answers, &told) {
        for nar in nars {
            let Some(renamed) = named(nar) else {
                faults.push(format!("{nar} has no name"));
                continue;
            };
            let (incoming, place) = (renamed.paths()[0], renamed.paths()[1]);
            let synced =
                calls.iter().find(|call| call.is_sync() && call.file() == incoming && call.end < renamed.begin);
            match synced {
                None => faults.push(format!("{nar} got its name before it was synced")),
                Some(synced)
                    if calls.iter().any(|call| {
                        call.is_write() && [incoming, place].contains(&call.file()) && call.end > synced.begin
                    }) =>
                {
                    faults.push(format!("{nar} was written to after it was synced"));
                }
                Some(_) => {}
            }
            if renamed.end > told.begin {
                faults.push(format!("{what} was answered before {nar} had its name"));
            }
            renames.insert(nar.clone(), renamed);
        }
        let Some(commit) = what.strip_prefix("commit ") else { continue };
        // Names, then the commit in the index's log, then its narinfos, then the answer.
        let names = nars.iter().filter_map(|nar| renames.get(nar)).map(|renamed| renamed.end).max().unwrap_or(0);
        let folder = calls.iter().find(|call| call.is_sync() && call.file().ends_with("/nar") && call.begin > names);
        let Some(folder) = folder else {
            faults.push(format!("{what}: the names of its NARs were never synced"));
            continue;
        };
        let is_log = |call: &&Call| call.file().ends_with("-wal");
        let log = calls.iter().filter(is_log).find(|call| call.is_sync() && call.begin > folder.end);
        let Some(log) = log else {
            faults.push(format!("{what}: the index was never synced"));
            continue;
        };
        if !calls.iter().filter(is_log).any(|call| call.is_write() && call.begin > folder.end && call.end < log.begin) {
            faults.push(format!("{what}: nothing was written to the index between the two"));
        }
        if log.end > told.begin {
            faults.push(format!("{what}: answered before the index was synced"));
        }
        for part in commit.split(' ') {
            let name = format!("{part}.narinfo");
            let named = calls.iter().find(|call| {
                call.name.starts_with("rename") && call.paths().last().is_some_and(|path| path.ends_with(&name))
            });
            match named {
                Some(named) if named.begin < log.end => {
                    faults.push(format!("{name} was there before the index knew it"))
                }
                Some(named) if named.end > told.begin => {
                    faults.push(format!("{name} was not there when it was answered"))
                }
                Some(_) => {}
                None => faults.push(format!("{name} was never there")),
            }
        }
    }
    faults
}

fn can_trace() -> bool {
    let can = Command::new("strace").args(["-f", "true"]).output().is_ok_and(|output| output.status.success());
    if !can {
        eprintln!("note: skipped: there is no strace, or it may not trace");
    }
    can
}

const TRACED: &str =
    "trace=write,pwrite64,writev,pwritev,fsync,fdatasync,linkat,rename,renameat,renameat2,ftruncate,sendto,sendmsg";

fn serve(store: &Store, trace: &Path, data: &Path, args: &[&str]) -> Server {
    let mut command = Command::new("strace");
    // -D: the server is our child, not strace's.
    command.args(["-D", "-f", "-qq", "-y", "-s", "64", "-e", TRACED, "-o"]).arg(trace);
    command.args([NARVAL, "serve", "--listen", "127.0.0.1:0", "--data"]).arg(data).args(args);
    Server::start(command, &[("XDG_CACHE_HOME", store.path("cache").to_str().unwrap())])
}

/// Waits until strace has written down what was done before an answer.
fn settle(trace: &Path) {
    let until = Instant::now() + Duration::from_secs(60);
    let len = || std::fs::metadata(trace).unwrap().len();
    let mut before = len();
    loop {
        std::thread::sleep(Duration::from_millis(300));
        let now = len();
        if now == before {
            return;
        }
        assert!(Instant::now() < until, "the server does not come to rest");
        before = now;
    }
}

fn part_of(number: u8, round: u8) -> String {
    let digest = narval_nix::Sha256::of(&[round, number]);
    narval_nix::HashPart::from_digest(digest.as_bytes()[..20].try_into().unwrap()).to_string()
}

/// Pushes one path as Nix does, then several with one commit as `narval push` does. What was answered, in order.
fn push(lab: &Lab, token: &str, round: u8) -> Vec<(String, Vec<String>)> {
    let mut answers = Vec::new();
    let contents = |number: u8| Nar::of(&[round, number].repeat(60_000));
    let (nar, part) = (contents(0), part_of(0, round));
    let name = format!("{}.nar", nar.hash.to_nix32());
    assert_eq!(lab.put(&nar.url(), token, &nar.bytes).status, 201);
    answers.push(("nar".to_owned(), vec![name.clone()]));
    let narinfo = nar.narinfo(&format!("{part}-x"), &[]);
    assert_eq!(lab.put(&format!("/{part}.narinfo"), token, narinfo.as_bytes()).status, 201);
    answers.push((format!("commit {part}"), vec![name]));
    let (mut commit, mut parts, mut names) = (String::new(), Vec::new(), Vec::new());
    for number in 1..4 {
        let (nar, part) = (contents(number), part_of(number, round));
        let name = format!("{}.nar", nar.hash.to_nix32());
        let answer = lab.put(&format!("/_narval/v1/nar/{name}"), token, &nar.bytes);
        assert_eq!(answer.status, 201, "{}", answer.text());
        answers.push(("nar".to_owned(), vec![name.clone()]));
        let narinfo = format!("StorePath: /nix/store/{part}-x\n{}References: \n", answer.text());
        commit.push_str(&format!("{part} {}\n{narinfo}", narinfo.len()));
        parts.push(part);
        names.push(name);
    }
    commit.push_str("end 3\n");
    assert_eq!(lab.post("/_narval/v1/commit", token, commit.as_bytes()).status, 200);
    answers.push((format!("commit {}", parts.join(" ")), names));
    answers
}

/// A server that makes nothing durable is found out.
#[test]
fn syncs_come_before_answers_and_in_order() {
    if !can_trace() {
        return;
    }
    for (args, is_right) in [(&[][..], true), (&["--unsafe-no-verify"][..], false)] {
        let store = Store::new();
        let (trace, data) = (store.path("calls"), store.path("data"));
        let server = serve(&store, &trace, &data, args);
        let lab = Lab { store, server };
        let token = lab.token("push");
        let answers = push(&lab, &token, 0);
        settle(&trace);
        let calls = calls(&trace);
        let faults = faults(&calls, &answers);
        assert_eq!(faults.is_empty(), is_right, "{args:?}: {faults:#?}");
    }
}

/// Several servers may share a folder, behind a balancer: the one that commits has not linked the NAR itself.
#[test]
fn a_commit_syncs_the_names_that_another_server_linked() {
    if !can_trace() {
        return;
    }
    let store = Store::new();
    let (trace, data) = (store.path("calls"), store.path("data"));
    let lab = Lab { server: serve(&store, &trace, &data, &[]), store };
    let mut command = Command::new(NARVAL);
    command.args(["serve", "--listen", "127.0.0.1:0", "--data"]).arg(&data);
    let other = Server::start(command, &[("XDG_CACHE_HOME", lab.store.path("cache").to_str().unwrap())]);
    let token = lab.token("push");
    // Everything of its own is durable.
    push(&lab, &token, 4);
    let other = Lab { store: Store::new(), server: other };
    let (nar, part) = (Nar::of(b"of the other server"), part_of(0, 5));
    assert_eq!(other.put(&nar.url(), &token, &nar.bytes).status, 201);
    settle(&trace);
    let syncs = || calls(&trace).iter().filter(|call| call.is_sync() && call.file().ends_with("/nar")).count();
    let before = syncs();
    let narinfo = nar.narinfo(&format!("{part}-x"), &[]);
    assert_eq!(lab.put(&format!("/{part}.narinfo"), &token, narinfo.as_bytes()).status, 201);
    settle(&trace);
    assert_eq!(syncs(), before + 1);
    assert_eq!(other.get(&format!("/{part}.narinfo")).status, 200);
}

/// What a power failure takes away, besides what was not synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Loss {
    /// The file system has written everything else, by chance.
    Nothing,
    /// The log of the index ends where it was synced.
    Log,
    /// Names in folders that were not synced, and the end of the log.
    NamesAndLog,
    /// Names in folders that were not synced, but not the end of the log.
    Names,
    /// The contents of files that were not synced, but not their names.
    Contents,
}

/// Takes away from a copy of a data folder what was not made durable; how many files, or bytes of the log, that was.
fn fail(copy: &Path, original: &Path, calls: &[Call], loss: Loss) -> u64 {
    let mut lost = 0;
    let inside = |path: &str| Path::new(path).strip_prefix(original).map(|path| copy.join(path)).ok();
    let synced_later = |folder: &Path, after: usize| {
        calls.iter().any(|call| call.is_sync() && Path::new(call.file()) == folder && call.begin > after)
    };
    // Where a file that has a name now was written.
    let (mut durable, mut born) = (BTreeSet::<PathBuf>::new(), BTreeMap::<PathBuf, usize>::new());
    for call in calls {
        let paths = call.paths();
        if call.is_sync() {
            durable.insert(call.file().into());
        } else if let ("linkat" | "rename" | "renameat" | "renameat2", [from, to]) = (&*call.name, &paths[..]) {
            if durable.contains(Path::new(from)) {
                durable.insert(to.into());
            }
            born.insert(to.into(), call.end);
        }
    }
    for (path, end) in &born {
        let Some(file) = inside(path.to_str().unwrap()).filter(|file| file.exists()) else { continue };
        let is_named = synced_later(path.parent().unwrap(), *end);
        if matches!(loss, Loss::Names | Loss::NamesAndLog) && !is_named {
            std::fs::remove_file(&file).unwrap();
            lost += 1;
        } else if loss == Loss::Contents && !durable.contains(path) {
            std::fs::File::options().write(true).open(&file).unwrap().set_len(0).unwrap();
            lost += 1;
        }
    }
    let log = copy.join("index.sqlite-wal");
    let is_log = |call: &&Call| call.file().ends_with("index.sqlite-wal");
    let last_sync = calls.iter().filter(is_log).filter(|call| call.is_sync()).map(|call| call.begin).max().unwrap();
    if matches!(loss, Loss::Log | Loss::NamesAndLog) {
        // `pwrite64(7</…/index.sqlite-wal>, "…"..., 4096, 32768) = 4096`
        let end = |call: &Call| {
            let arguments = call.text.rsplit_once(')').unwrap().0;
            let mut numbers = arguments.rsplit(", ");
            let offset: u64 = numbers.next().unwrap().parse().unwrap();
            offset + numbers.next().unwrap().parse::<u64>().unwrap()
        };
        let writes = calls.iter().filter(is_log).filter(|call| call.name == "pwrite64" && call.end < last_sync);
        let synced = writes.map(end).max().unwrap();
        let file = std::fs::File::options().write(true).open(&log).unwrap();
        lost += file.metadata().unwrap().len().checked_sub(synced).unwrap();
        file.set_len(synced).unwrap();
    }
    let _ = std::fs::remove_file(copy.join("index.sqlite-shm"));
    lost
}

#[test]
fn a_power_failure_loses_nothing_that_was_confirmed() {
    if !can_trace() {
        return;
    }
    let store = Store::new();
    let (trace, data) = (store.path("calls"), store.path("data"));
    // The folders, and an index with something in it, were made long ago.
    let mut lab = Lab { server: serve(&store, &trace, &data, &[]), store };
    let token = lab.token("push");
    let old = push(&lab, &token, 1);
    let second = store_trace(&mut lab, &data);
    let mut answers = push(&lab, &token, 2);
    answers.extend(push(&lab, &token, 3));
    // One that no path refers to yet: it may be forgotten, and is sent again then.
    let early = Nar::of(b"without a narinfo");
    assert_eq!(lab.put(&early.url(), &token, &early.bytes).status, 201);
    settle(&second);
    let calls = calls(&second);
    // At this moment the machine loses its power.
    let copies: Vec<_> = [Loss::Nothing, Loss::Log, Loss::NamesAndLog, Loss::Names, Loss::Contents]
        .into_iter()
        .map(|loss| (loss, tempfile::tempdir().unwrap()))
        .collect();
    for (_, copy) in &copies {
        let copied = Command::new("cp").arg("-a").arg(&data).arg(copy.path().join("data")).status().unwrap();
        assert!(copied.success());
    }
    assert_eq!(std::mem::replace(&mut lab.server, Server::narval(&lab.store, &[])).end("-KILL"), None);
    answers.extend(old);
    for (loss, folder) in copies {
        let copy = folder.path().join("data");
        let lost = fail(&copy, &data, &calls, loss);
        assert_eq!(lost == 0, loss == Loss::Nothing, "{loss:?} takes away {lost}");
        let mut command = Command::new(NARVAL);
        command.args(["serve", "--listen", "127.0.0.1:0", "--data"]).arg(&copy);
        let server = Server::start(command, &[("XDG_CACHE_HOME", lab.store.path("cache").to_str().unwrap())]);
        for (what, nars) in &answers {
            let Some(parts) = what.strip_prefix("commit ") else { continue };
            for (part, nar) in std::iter::zip(parts.split(' '), nars) {
                let narinfo = server.get(&format!("/{}.narinfo", hash_part(part)));
                assert_eq!(narinfo.status, 200, "{loss:?}: {}", server.log());
                let (hash, _) = nar.split_once('.').unwrap();
                assert!(narinfo.text().contains(&format!("URL: nar/{hash}-")), "{loss:?}: {}", narinfo.text());
                let got = server.get(&format!("/nar/{nar}"));
                assert!(
                    got.complete,
                    "{loss:?}: the connection was closed early (dmesg says if TCP has no memory left)"
                );
                let hash = narval_nix::Sha256::of(&got.body).to_nix32();
                assert_eq!((got.status, format!("{hash}.nar")), (200, nar.clone()), "{loss:?}: {}", server.log());
            }
        }
        let again = Lab { store: Store::new(), server };
        let narinfo = early.narinfo(&format!("{}-x", part_of(0, 9)), &[]);
        for (path, body) in [(early.url(), &*early.bytes), (format!("/{}.narinfo", part_of(0, 9)), narinfo.as_bytes())]
        {
            let answer = again.put(&path, &token, body);
            assert!(matches!(answer.status, 200 | 201), "{loss:?}: {} {}", answer.status, answer.text());
        }
        assert_eq!(again.get(&early.url()).body, early.bytes);
        assert_eq!(again.server.terminate(), Some(0));
        // What other programs read is whole again after a repair, and nothing is lost by it.
        let fsck = |args: &[&str]| {
            let output = Command::new(NARVAL).args(["cache", "fsck", "--data"]).arg(&copy).args(args).output().unwrap();
            let message = [output.stdout, output.stderr].concat();
            (output.status.code(), String::from_utf8(message).unwrap())
        };
        let (code, message) = fsck(&["--repair", "--contents"]);
        assert_eq!(code, Some(0), "{loss:?}: {message}");
        let (code, message) = fsck(&["--contents"]);
        assert_eq!(code, Some(0), "{loss:?}: {message}");
        let narinfos = std::fs::read_dir(copy.join("caches/default")).unwrap().filter(|entry| {
            let entry = entry.as_ref().unwrap();
            entry.file_name().to_string_lossy().ends_with(".narinfo") && entry.metadata().unwrap().len() > 0
        });
        assert_eq!(narinfos.count(), 13, "{loss:?}: {message}");
    }
}

/// Ends the server, and starts another that is traced as well, into another file.
fn store_trace(lab: &mut Lab, data: &Path) -> PathBuf {
    let trace = lab.store.path("calls-2");
    let placeholder = Server::narval(&lab.store, &[]);
    assert_eq!(std::mem::replace(&mut lab.server, placeholder).terminate(), Some(0));
    lab.server = serve(&lab.store, &trace, data, &[]);
    trace
}
