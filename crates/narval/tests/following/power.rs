//! Power failures: on the disk is what was synced, and of the rest nobody knows.
//!
//! Each change of a name in the profile's folders is followed by a sync of that folder before the next change, or a command, begins. So a power failure
//! leaves the state before a change or after it, which is what killing the program at that system call leaves. strace shows the one and does the other.

use std::path::Path;
use std::process::Command;

use crate::machine::{Kind, Machine, NARVAL, Said};

/// The calls that change names, or make changes last, with one path of the profile's folders.
const CALLS: [&str; 6] = ["rename", "symlink", "unlink", "mkdir", "fsync", "execve"];
/// More changes than a round has.
const CHANGES_MAX: u32 = 40;

fn can_trace() -> bool {
    let can = Command::new("strace").args(["-f", "true"]).output().is_ok_and(|output| output.status.success());
    if !can {
        eprintln!("skipped: strace is not there, or may not trace");
    }
    can
}

/// `narval follow --once` under strace, with more options for it.
fn traced(machine: &Machine, options: &[&str]) -> Said {
    let follow = machine.follow(&["--once"]);
    let mut command = Command::new("strace");
    command.args(["-f", "-y", "-qq", "-s", "4096", "-o"]).arg(machine.path("trace"));
    command.args(["-e", &format!("trace={}", CALLS.join(","))]).args(options).arg(NARVAL).args(follow.get_args());
    command.env_clear().envs(follow.get_envs().filter_map(|(name, value)| Some((name, value?))));
    Said::of(&command.output().unwrap())
}

/// What is wrong with the order of calls, one line each.
fn faults(trace: &Path, profiles: &Path) -> Vec<String> {
    let (mut faults, mut unsynced): (Vec<String>, Option<(String, String)>) = (Vec::new(), None);
    let (mut synced_files, mut changes) = (Vec::new(), 0);
    for line in std::fs::read_to_string(trace).unwrap().lines() {
        if line.contains(" = -1 E") {
            continue;
        }
        let Some((name, text)) = line.split_once(' ').and_then(|(_, call)| call.trim_start().split_once('(')) else {
            continue;
        };
        if name == "fsync" {
            let file = text.split_once('<').and_then(|(_, rest)| rest.split_once('>')).unwrap().0.to_owned();
            if unsynced.as_ref().is_some_and(|(folder, _)| *folder == file) {
                unsynced = None;
            }
            synced_files.push(file);
            continue;
        }
        let paths: Vec<&str> = text.split('"').skip(1).step_by(2).collect();
        let to = match name {
            "execve" => None,
            // A temporary name is nobody's.
            _ => paths.last().filter(|path| Path::new(path).starts_with(profiles) && !path.contains(".tmp-")),
        };
        if name != "execve" && to.is_none() {
            continue;
        }
        if let Some((folder, change)) = &unsynced {
            faults.push(format!("'{folder}' was not synced between '{change}' and '{line}'"));
        }
        let Some(to) = to else { continue };
        if to.ends_with("state.json") && !synced_files.iter().any(|file| file == paths[0]) {
            faults.push(format!("the state has its name before it was synced: '{line}'"));
        }
        changes += 1;
        unsynced = Some((Path::new(to).parent().unwrap().display().to_string(), line.to_owned()));
    }
    faults.extend(unsynced.map(|(folder, change)| format!("'{folder}' was not synced after '{change}'")));
    assert!(changes > 3, "the trace shows the changes of the profile");
    faults
}

#[test]
fn each_change_is_synced_before_the_next_one() {
    if !can_trace() {
        return;
    }
    let machine = Machine::new();
    let kinds = [Kind::SwitchFails, Kind::Good, Kind::CheckFails, Kind::Good];
    for (revision, kind) in (1..).zip(kinds) {
        machine.release(revision, kind);
        let said = traced(&machine, &[]);
        assert_eq!(said.code, Some(i32::from(kind != Kind::Good)), "{}", said.log);
        let faults = faults(&machine.path("trace"), &machine.path("profiles"));
        assert!(faults.is_empty(), "revision {revision}: {}", faults.join("\n"));
    }
}

#[test]
fn the_power_may_fail_at_each_change() {
    if !can_trace() {
        return;
    }
    let machine = Machine::new();
    machine.release(1, Kind::Good);
    assert_eq!(machine.once(&[]).outcome(), ("switched", Some(0)));
    let (mut good, mut revision, mut failures) = (1, 1, 0);
    for call in ["rename", "symlink", "unlink", "fsync"] {
        for (number, kind) in (1..CHANGES_MAX).flat_map(|number| [(number, Kind::Good), (number, Kind::CheckFails)]) {
            revision += 1;
            machine.release(revision, kind);
            let said = traced(&machine, &["-e", &format!("inject={call}:signal=KILL:when={number}")]);
            let current = machine.current().unwrap();
            assert!([good, revision].contains(&current), "{current} at {call} {number} of revision {revision}");
            // What the state does not know as good, it knows as an attempt.
            let state = machine.state();
            let known = [&state["good"]["revision"], &state["trying"]["revision"]];
            assert!(known.contains(&&current.into()), "{current} is not in {state}, at {call} {number}");
            let is_over = said.code.is_some_and(|code| code < 2);
            failures += u32::from(!is_over);
            // The machine starts again.
            let said = machine.once(&[]);
            if kind == Kind::Good {
                good = revision;
            }
            assert_eq!((machine.current(), machine.running()), (Some(good), good.to_string()), "{}", said.log);
            assert!(machine.state()["trying"].is_null());
            if is_over && kind == Kind::CheckFails {
                break;
            }
        }
    }
    assert!(failures > 20, "only {failures} failures: the calls are not those that the program makes");
}
