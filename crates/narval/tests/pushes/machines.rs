//! docs/follow.md: machines that follow a release of a real server, and report to it what they run.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output, Stdio};

use narval_nix::release::share_of;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::lab::Lab;
use crate::releases::{done, failed, narval, said, signing};
use crate::support::{NARVAL, hash_part};

const MACHINES: &str = "/_narval/v1/machines";
const LISTED: &str = "/_narval/api/v1/caches/default/machines";

fn report(lab: &Lab, name: &str, token: &str, body: &Value) -> u16 {
    lab.post(&format!("{MACHINES}/{name}"), token, body.to_string().as_bytes()).status
}

fn listed(lab: &Lab, token: &str) -> Vec<Value> {
    let answer = lab.send("GET", LISTED, token, &[], b"");
    assert_eq!(answer.status, 200, "{}", said(&answer));
    let page: Value = serde_json::from_slice(&answer.body).unwrap();
    page["items"].as_array().unwrap().clone()
}

#[test]
fn machines_report_and_nobody_believes_them() {
    let (lab, _) = signing(&["--private"]);
    let (web, any, admin) = (lab.token("report:web-*"), lab.token("report"), lab.token("admin"));
    let good = json!({"release": "@web", "state": "running", "revision": 41, "since": 7, "unknown": [1]});
    assert_eq!(report(&lab, "web-1", &web, &good), 200);
    // Whose token, and what it may.
    for (name, token, status) in [
        ("api-1", web.as_str(), 403),
        ("web-1", "", 401),
        ("web-1", &lab.token("push,pull,release:*"), 403),
        ("api-1", &any, 200),
        ("a%20b", &any, 400),
        (&"x".repeat(65), &any, 400),
    ] {
        assert_eq!(report(&lab, name, token, &good), status, "{name}");
    }
    for (method, below) in [
        ("GET", "/releases"),
        ("GET", LISTED),
        ("DELETE", &*format!("{LISTED}/web-1")),
        ("GET", &*format!("/{}.narinfo", hash_part("/nix/store/0i4073ldk2aplbmaarmp5c8gf3wmbl84-api-1.4.2"))),
    ] {
        let status = lab.send(method, below, &any, &[], b"").status;
        assert!([403, 404].contains(&status), "{method} {below}: {status}: it may report, and nothing else");
    }
    // What is said is limited.
    for (bad, with) in [
        ("release", json!("web")),
        ("release", json!("@web@\n")),
        ("state", json!("fine")),
        ("revision", json!(-1)),
        ("error", json!("a\u{1b}[2Jb")),
        ("error", json!("x".repeat(1025))),
        ("path", json!("x".repeat(513))),
        ("version", json!("x".repeat(65))),
    ] {
        let mut body = good.clone();
        body[bad] = with;
        assert_eq!(report(&lab, "web-1", &any, &body), 400, "{bad}");
    }
    let large = lab.post(&format!("{MACHINES}/web-1"), &any, &vec![b' '; 9 * 1024]);
    assert_eq!(large.status, 413, "{}", said(&large));
    let machines = listed(&lab, &admin);
    assert_eq!(machines.len(), 2);
    assert_eq!((&machines[1]["name"], &machines[1]["revision"]), (&"web-1".into(), &41.into()));
    assert_eq!(
        (&machines[1]["unknown"], &machines[1]["token"]),
        (&Value::Null, &web.split('_').nth(1).unwrap().into())
    );

    // Who administers sees them, at the cache and elsewhere.
    fs::write(lab.store.path("token"), &admin).unwrap();
    let (url, data) = (lab.server.url(), lab.data_path().display().to_string());
    for at in [["--at", &*url], ["--data", &*data]] {
        let run = |args: &[&str]| narval(&lab, "admin", &[&["machines"], args, &at].concat());
        let text = done(&run(&[]));
        assert!(text.contains("web-1  @web  41 since") && text.contains("running  seen"), "{text}");
        let events = done(&run(&["--json"]));
        let lines: Vec<Value> = events.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert!(lines.len() == 3 && lines[1]["name"] == "web-1" && lines[2]["machines"] == 2, "{events}");
        done(&run(&["forget", "web-1"]));
        assert!(failed(&run(&["forget", "web-1"]), 2).contains("there is no machine 'web-1'"));
        assert_eq!(listed(&lab, &admin).len(), 1);
        assert_eq!(report(&lab, "web-1", &web, &good), 200);
    }
    let audit = fs::read_to_string(lab.store.path("data/audit.jsonl")).unwrap();
    for (action, times) in [("new machine", 4), ("forget machine", 2)] {
        assert_eq!(audit.matches(&format!("\"action\":\"{action}\"")).count(), times, "{audit}");
    }
}

/// A cache, and a machine that follows `web` of it.
struct Followed {
    lab: Lab,
}

impl Followed {
    fn new() -> Self {
        let (lab, _) = signing(&[]);
        fs::write(lab.store.path("token"), lab.token("push,sign,release:web")).unwrap();
        fs::write(lab.store.path("report"), lab.token("report:m-*")).unwrap();
        Self { lab }
    }

    /// Pushes a path whose switch does this, and releases it.
    fn release(&self, revision: u64, script: &str) {
        let source = self.lab.store.path(&format!("web-{revision}"));
        fs::create_dir_all(source.join("bin")).unwrap();
        let switch = source.join("bin/switch");
        fs::write(&switch, format!("#!/bin/sh\n{script}\necho {revision} > {}\n", self.running().display())).unwrap();
        fs::set_permissions(&switch, PermissionsExt::from_mode(0o755)).unwrap();
        let path = self.lab.store.add(&source);
        let (uri, url) = (self.lab.store.uri(), self.lab.server.url());
        done(&narval(&self.lab, "ci", &["push", "--store", &uri, "--to", &url, &path, "--release", "web"]));
    }

    fn running(&self) -> std::path::PathBuf {
        self.lab.store.path("running")
    }

    fn command(&self, args: &[&str]) -> Command {
        let key = fs::read_to_string(self.lab.store.path("cache.sec")).unwrap();
        let key = narval_nix::SecretKey::parse_file(&key).unwrap().public_key().to_string();
        let mut command = Command::new(NARVAL);
        command.args(["follow", "@web", "--json", "--from", &self.lab.server.url(), "--trusted-public-key", &key]);
        command
            .arg("--store")
            .arg(self.lab.store.path("machine"))
            .arg("--profile")
            .arg(self.lab.store.path("profiles/web"));
        command.args(["--switch", "bin/switch", "--report", "--name", "m-1", "--token-file"]);
        command.arg(self.lab.store.path("report")).args(args);
        command.env("HOME", self.lab.store.path("home")).env_remove("NARVAL_STORE").env("NARVAL_LOG", "info");
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn once(&self) -> Output {
        self.command(&["--once"]).output().unwrap()
    }

    /// What the cache knows of the machine.
    fn seen(&self) -> Value {
        let machines = listed(&self.lab, &self.lab.token("admin"));
        assert!(machines.len() < 2, "{machines:?}");
        machines.into_iter().next().unwrap_or_default()
    }

    fn wait_for(&self, is_so: impl Fn(&Value) -> bool) -> Value {
        for _ in 0..600 {
            let seen = self.seen();
            if is_so(&seen) {
                return seen;
            }
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
        panic!("{}", self.seen())
    }
}

#[test]
fn the_cache_knows_what_a_machine_runs_round_after_round() {
    let machine = Followed::new();
    for revision in 1..=4 {
        // Every other one fails, and the one before runs again.
        let fails = revision % 2 == 0;
        machine.release(revision, if fails { "exit 3" } else { "" });
        let output = machine.once();
        assert_eq!(output.status.code(), Some(i32::from(fails)), "{}", String::from_utf8_lossy(&output.stderr));
        let (seen, good) = (machine.seen(), if fails { revision - 1 } else { revision });
        let state = if fails { "wentBack" } else { "running" };
        assert_eq!((&seen["state"], &seen["revision"]), (&state.into(), &good.into()), "{seen}");
        assert_eq!(seen["error"].as_str().is_some_and(|error| error.contains("exit code 3")), fails, "{seen}");
        assert!(
            seen["path"].as_str().unwrap().ends_with(&format!("web-{good}")) && seen["generation"].is_u64(),
            "{seen}"
        );
        assert_eq!(fs::read_to_string(machine.running()).unwrap().trim(), good.to_string());
    }
    // A service says what it tries, and when it ends.
    machine.release(5, "while [ ! -e $NARVAL_PROFILE.go ]; do sleep 0.05; done");
    let service = machine.command(&["--every", "100ms"]).spawn().unwrap();
    let seen = machine.wait_for(|seen| seen["state"] == "trying");
    assert_eq!((&seen["trying"], &seen["revision"]), (&5.into(), &3.into()), "{seen}");
    fs::write(machine.lab.store.path("profiles/web.go"), "").unwrap();
    let seen = machine.wait_for(|seen| seen["state"] == "running" && seen["revision"] == 5);
    assert!(seen["error"].is_null() && seen["nextWithin"].is_u64(), "{seen}");
    kill_process(Pid::from_child(&service), Signal::TERM).unwrap();
    assert!(service.wait_with_output().unwrap().status.success());
    let seen = machine.seen();
    assert_eq!((&seen["state"], &seen["revision"]), (&"stopped".into(), &5.into()), "{seen}");
}

/// A release for a share of machines: those that are not in it have the one before, until it is for all.
#[test]
fn a_release_goes_to_more_and_more_machines() {
    let machine = Followed::new();
    fs::write(machine.lab.store.path("token"), machine.lab.token("push,sign,release:*")).unwrap();
    for revision in 1..=2 {
        machine.release(revision, "");
    }
    let promote = |which: &str, percent: &str| {
        let to = ["--as", "prod", "--percent", percent, "--to", &machine.lab.server.url()];
        done(&narval(&machine.lab, "ci", &[&["release", "promote", "web", which], &to[..]].concat()));
    };
    let name = "prod".parse().unwrap();
    let with_share = |range: std::ops::Range<u8>| {
        (0..).map(|at| format!("m-{at}")).find(|machine| range.contains(&share_of(machine, &name))).unwrap()
    };
    let machines = [with_share(0..10), with_share(10..50), with_share(50..100)];
    // What each of them runs after it has asked.
    let runs = || {
        machines.each_ref().map(|name| {
            let mut command = Command::new(NARVAL);
            let key = fs::read_to_string(machine.lab.store.path("cache.sec")).unwrap();
            let key = narval_nix::SecretKey::parse_file(&key).unwrap().public_key().to_string();
            let place = machine.lab.store.path(name);
            command.args([
                "follow",
                "@prod",
                "--once",
                "--from",
                &machine.lab.server.url(),
                "--trusted-public-key",
                &key,
            ]);
            command.arg("--store").arg(place.join("store")).arg("--profile").arg(place.join("web"));
            let output = command.args(["--name", name]).env("HOME", &place).output().unwrap();
            done(&output);
            let generation = place.join(fs::read_link(place.join("web")).unwrap());
            let target = fs::read_link(generation).unwrap().display().to_string();
            target.rsplit('-').next().unwrap().parse::<u64>().unwrap()
        })
    };
    promote("1", "100");
    assert_eq!(runs(), [1, 1, 1]);
    for (percent, expected) in [("10", [2, 1, 1]), ("50", [2, 2, 1]), ("100", [2, 2, 2])] {
        promote("2", percent);
        assert_eq!(runs(), expected, "{percent} %");
    }
}

/// A token that may not report, or no cache at all, is said and changes nothing else.
#[test]
fn a_report_that_is_not_taken_disturbs_nothing() {
    let machine = Followed::new();
    fs::write(machine.lab.store.path("report"), machine.lab.token("pull")).unwrap();
    machine.release(1, "");
    let output = machine.once();
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && log.contains("--add-scope report:m-1"), "{log}");
    assert_eq!(fs::read_to_string(machine.running()).unwrap(), "1\n");
    assert_eq!(machine.seen(), Value::Null);
}
