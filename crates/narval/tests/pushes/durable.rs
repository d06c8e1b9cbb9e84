//! What a push has the disk do, counted by strace: docs/performance.md says why it is this much and not less.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::lab::{Lab, Nar};
use crate::support::{NARVAL, Server, Store, hash_part};

/// Calls so far that make something durable, by what they are for.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
struct Calls {
    nars: usize,
    folders: usize,
    logs: usize,
    others: Vec<String>,
}

fn calls(trace: &Path) -> Calls {
    let mut calls = Calls::default();
    for line in std::fs::read_to_string(trace).unwrap().lines() {
        // Another thread's call came in between: it is counted where it begins.
        if line.contains(" resumed>") || !line.contains("sync") {
            continue;
        }
        // The descriptor's path, as `-y` prints it.
        let path = line.split_once('<').and_then(|(_, rest)| rest.split_once('>')).map_or("", |(path, _)| path);
        match path {
            _ if path.contains("/incoming/") => calls.nars += 1,
            _ if path.ends_with("/nar") => calls.folders += 1,
            _ if path.ends_with("-wal") => calls.logs += 1,
            _ => calls.others.push(line.to_owned()),
        }
    }
    calls
}

/// Waits until strace has written down what was done before an answer.
fn settled(trace: &Path) -> Calls {
    let until = Instant::now() + Duration::from_secs(60);
    let mut before = calls(trace);
    loop {
        std::thread::sleep(Duration::from_millis(200));
        let now = calls(trace);
        if now == before {
            return now;
        }
        assert!(Instant::now() < until, "{now:?}");
        before = now;
    }
}

#[test]
fn one_sync_for_a_nar_and_two_for_a_commit() {
    if !Command::new("strace").args(["-f", "true"]).output().is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: there is no strace, or it may not trace");
        return;
    }
    let store = Store::new();
    let trace = store.path("calls");
    let mut command = Command::new("strace");
    // -D: the server is our child, not strace's.
    command
        .args(["-D", "-f", "-qq", "-y", "-e", "trace=fsync,fdatasync,syncfs,sync,sync_file_range,msync", "-o"])
        .arg(&trace);
    command.args([NARVAL, "serve", "--listen", "127.0.0.1:0", "--data"]).arg(store.path("data"));
    let server = Server::start(command, &[("XDG_CACHE_HOME", store.path("cache").to_str().unwrap())]);
    let lab = Lab { store, server };
    let token = lab.token("push");
    // With some work done, the log of the index begins where it was.
    push(&lab, &token, 0, 1);
    let before = settled(&trace);
    for (round, nars) in [1_u8, 3, 8].into_iter().enumerate() {
        let earlier = settled(&trace);
        push(&lab, &token, round as u8 + 1, nars);
        let now = settled(&trace);
        let done = (now.nars - earlier.nars, now.folders - earlier.folders, now.logs - earlier.logs);
        assert_eq!(done, (usize::from(nars), 1, 1), "NARs, folders, logs for {nars} NARs: {now:?}");
    }
    // The same again: everything is known, and nothing is made durable that is.
    let earlier = settled(&trace);
    push(&lab, &token, 1, 1);
    let now = settled(&trace);
    assert_eq!((now.nars, now.folders, &now.others), (earlier.nars, earlier.folders, &before.others));
}

/// Pushes so many paths, with one commit, as `narval push` does.
fn push(lab: &Lab, token: &str, round: u8, nars: u8) {
    let (mut commit, mut count) = (String::new(), 0);
    for number in 0..nars {
        let nar = Nar::of(&[round, number].repeat(50_000));
        let answer = lab.put(&format!("/_narval/v1/nar/{}.nar", nar.hash.to_nix32()), token, &nar.bytes);
        assert!(matches!(answer.status, 200 | 201), "{}: {}", answer.status, answer.text());
        let digest = narval_nix::Sha256::of(&[round, number]);
        let part = narval_nix::HashPart::from_digest(digest.as_bytes()[..20].try_into().unwrap());
        let narinfo = format!("StorePath: /nix/store/{part}-x\n{}References: \n", answer.text());
        commit.push_str(&format!("{} {}\n{narinfo}", hash_part(&format!("{part}-x")), narinfo.len()));
        count += 1;
    }
    commit.push_str(&format!("end {count}\n"));
    let answer = lab.post("/_narval/v1/commit", token, commit.as_bytes());
    assert_eq!(answer.status, 200, "{}", answer.text());
}
