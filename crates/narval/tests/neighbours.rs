//! Near caches that are neighbours: machines of one network, as namespaces on one bridge, with real Nix behind a slow line.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that fails may say so")]

mod support;

use std::process::Command;

use support::{NARVAL, Server, Store, hash_part};

const BENCH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../bench/near/neighbours");

/// Whether namespaces can be made here.
fn has_namespaces() -> bool {
    let name = format!("narval-probe-{}", std::process::id());
    let run = |args: &[&str]| Command::new("ip").args(args).output().is_ok_and(|output| output.status.success());
    let made = run(&["netns", "add", &name]) && run(&["netns", "delete", &name]);
    if !made {
        eprintln!("note: skipped: no network namespaces here");
    }
    made
}

/// All of them at once load the line about as much as one of them, also while some lie, stall, promise what never comes, or are silent; nothing
/// wrong arrives, and nothing fails. Times are for the bench: this machine may be busy.
#[test]
fn a_line_carries_once_what_several_machines_fetch_at_once() {
    if !has_namespaces() {
        return;
    }
    let output = Command::new(BENCH)
        .args(["--narval", NARVAL, "--machines", "7", "--bad", "4", "--mb", "4", "--paths", "20"])
        .args(["--bar", "1000", "--bytes-bar", "3.5", "--absent-after", "30s", "--patience", "3s"])
        .output()
        .unwrap();
    let (out, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}{error}");
    assert_eq!(out.matches(" 0 wrong, 0 failed").count(), 3, "{out}{error}");
}

/// On a network without IPv4, machines find each other, too, and take paths from each other.
#[test]
fn neighbours_share_over_ipv6() {
    if !has_namespaces() {
        return;
    }
    let output = Command::new(BENCH)
        .args(["--narval", NARVAL, "--ipv6", "--machines", "3", "--mb", "2", "--paths", "10"])
        .args(["--bar", "1000", "--bytes-bar", "2.5", "--absent-after", "30s", "--patience", "3s"])
        .output()
        .unwrap();
    let (out, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}{error}");
    assert_eq!(out.matches(" 0 wrong, 0 failed").count(), 2, "{out}{error}");
}

/// What is fetched through a near cache is there when its upstream is not, and outside of its window nothing is fetched.
#[test]
fn a_near_cache_fetches_in_advance() {
    let store = Store::new();
    let (file, key) = store.key("up-1");
    let path = store.add_file("needed", "at work");
    let upstream = Server::narval(&store, &["--sign-key", file.to_str().unwrap()]);
    let mut command = Command::new(NARVAL);
    command.args(["serve", "--listen", "127.0.0.1:0", "--data"]).arg(store.path("near"));
    command.args(["--upstream", &upstream.url(), "--upstream-key", &key]);
    let near = Server::start(command, &[]);
    let warm = |at: &str| {
        let mut command = Command::new(NARVAL);
        command.args(["warm", "--through", &near.url(), "--once", "--at", at, &path]).env("NARVAL_TRUSTED_KEYS", &key);
        let output = command.env("HOME", store.path("home")).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let day = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs() / 86_400 + 3;
    let days = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];
    assert!(warm(days[usize::try_from((day + 3) % 7).unwrap()]).contains("waiting for the time"));
    let narinfo = format!("/{}.narinfo", hash_part(&path));
    assert!(warm("00:00-24:00").contains("1 path fetched"));
    drop(upstream);
    let answer = near.get(&narinfo);
    assert_eq!(answer.status, 200);
    let url = support::value(answer.text(), "URL").unwrap();
    assert_eq!(near.get(&format!("/{url}")).status, 200);
}
