//! One round after the other: what works is switched to, and what does not is gone back from.

use std::fs;
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::machine::{Kind, Machine, Said, links, wait_until};
use crate::site::Gate;

#[test]
fn a_machine_follows_what_works() {
    let machine = Machine::new();
    machine.release(1, Kind::Good);
    let planned = machine.follow(&["--dry-run"]).output().unwrap();
    let planned = Said::of(&planned);
    assert_eq!(
        (planned.outcome(), planned.round["missing"].as_u64()),
        (("planned", Some(0)), Some(1)),
        "{}",
        planned.log
    );
    assert!(!machine.path("root").exists() && !machine.path("profiles/web").is_symlink(), "only shown");

    let message = machine.once(&[]);
    assert_eq!(message.outcome(), ("switched", Some(0)), "{}", message.log);
    assert_eq!((machine.current(), machine.running().as_str()), (Some(1), "1"));
    assert_eq!(machine.once(&[]).outcome(), ("unchanged", Some(0)));

    // Neither a switch nor a check that fails leaves anything behind.
    for (revision, kind, why) in [
        (2, Kind::SwitchFails, "the switch command ended with exit code 3"),
        (3, Kind::CheckFails, "the check command"),
    ] {
        machine.release(revision, kind);
        let message = machine.once(&[]);
        assert_eq!(message.outcome(), ("wentBack", Some(1)), "{}", message.log);
        assert!(message.log.contains(why), "{}", message.log);
        assert_eq!((machine.current(), machine.running().as_str()), (Some(1), "1"));
        assert_eq!(links(&machine.path("profiles")), ["web", "web-1-link", "web.follow", "web.lock"]);
        // It is not tried again, unless that is asked for.
        fs::remove_file(machine.path("running")).unwrap();
        let message = machine.once(&[]);
        assert_eq!(message.outcome(), ("refused", Some(1)), "{}", message.log);
        assert!(message.log.contains("--retry") && !machine.path("running").exists(), "{}", message.log);
        assert_eq!(machine.once(&["--retry"]).outcome(), ("wentBack", Some(1)));
        assert_eq!(machine.running(), "1");
    }
    machine.release(4, Kind::Good);
    assert_eq!(machine.once(&[]).outcome(), ("switched", Some(0)));
    assert_eq!(
        (machine.current(), machine.running().as_str(), machine.generation().as_str()),
        (Some(4), "4", "web-2-link")
    );
    let state = machine.state();
    assert!(state["failed"].is_null() && state["good"]["revision"] == 4, "{state}");

    // The one before stays as a generation of the profile. What somebody switches to by hand is left alone until there is something newer.
    let hand = |number: u32| {
        fs::remove_file(machine.path("profiles/web")).unwrap();
        std::os::unix::fs::symlink(format!("web-{number}-link"), machine.path("profiles/web")).unwrap();
    };
    hand(1);
    assert_eq!(machine.once(&[]).outcome(), ("unchanged", Some(0)));
    assert_eq!(machine.current(), Some(1));
    machine.release(5, Kind::SwitchFails);
    assert_eq!(machine.once(&[]).outcome(), ("wentBack", Some(1)));
    assert_eq!((machine.current(), machine.running().as_str()), (Some(1), "1"));

    // An older revision than one that was seen is not switched to.
    machine.release(4, Kind::Good);
    let message = machine.once(&[]);
    assert_eq!(message.code, Some(4), "{}", message.log);
    assert!(message.log.contains("revision 5 was seen before"), "{}", message.log);
    assert_eq!(machine.once(&["--allow-downgrade"]).outcome(), ("switched", Some(0)));
    assert_eq!((machine.current(), machine.running().as_str()), (Some(4), "4"));
}

#[test]
fn a_first_release_that_fails_leaves_no_profile() {
    let machine = Machine::new();
    machine.release(1, Kind::SwitchFails);
    assert_eq!(machine.once(&[]).outcome(), ("wentBack", Some(1)));
    assert_eq!(links(&machine.path("profiles")), ["web.follow", "web.lock"]);
}

#[test]
fn commands_and_the_network_have_a_time() {
    let mut machine = Machine::new();
    machine.release(1, Kind::Good);
    assert_eq!(machine.once(&[]).outcome(), ("switched", Some(0)));
    machine.release(2, Kind::SwitchHangs);
    let message = machine.once(&["--switch-timeout", "200ms"]);
    assert_eq!(message.outcome(), ("wentBack", Some(1)), "{}", message.log);
    assert!(message.log.contains("longer than 0.2 s"), "{}", message.log);
    assert_eq!((machine.current(), machine.running().as_str()), (Some(1), "1"));

    // The switch of this one cuts the machine off, that of the one before does not.
    machine.release(3, Kind::Good);
    let cut_off = machine.path("cut-off");
    machine.url = Gate::new(&machine.site.url, cut_off.clone()).url;
    let cut_off = cut_off.display();
    let switch = format!("bin/switch; if [ $NARVAL_REVISION = 3 ]; then touch {cut_off}; else rm {cut_off}; fi");
    let begun = Instant::now();
    let message = machine.once(&["--switch", &switch, "--network-timeout", "1s"]);
    // A server that has answered before is waited for 30 s otherwise.
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    assert_eq!(message.outcome(), ("wentBack", Some(1)), "{}", message.log);
    assert!(message.log.contains("out of reach for 1 s"), "{}", message.log);
    assert_eq!((machine.current(), machine.running().as_str()), (Some(1), "1"));
}

#[test]
fn one_profile_has_one_follower_and_a_signal_ends_it() {
    let machine = Machine::new();
    machine.release(1, Kind::Good);
    assert_eq!(machine.once(&[]).outcome(), ("switched", Some(0)));
    machine.release(2, Kind::SwitchHangs);
    let mut first = machine.follow(&["--every", "100ms"]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    wait_until(|| machine.running() == "half");
    let second = machine.once(&[]);
    assert_eq!(second.code, Some(1));
    assert!(second.log.contains("another 'narval follow' has the profile"), "{}", second.log);
    // In the middle of the switch: it goes back, then ends.
    kill_process(Pid::from_child(&first), Signal::TERM).unwrap();
    assert_eq!(first.wait().unwrap().code(), Some(0));
    assert_eq!((machine.current(), machine.running().as_str()), (Some(1), "1"));
    assert!(machine.state()["trying"].is_null());
    // In between two rounds: it ends.
    machine.release(3, Kind::Good);
    let mut idle = machine.follow(&["--every", "1h"]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    wait_until(|| machine.state()["good"]["revision"] == 3);
    kill_process(Pid::from_child(&idle), Signal::TERM).unwrap();
    assert_eq!(idle.wait().unwrap().code(), Some(0));
    assert_eq!((machine.current(), machine.running().as_str()), (Some(3), "3"));
}

#[test]
fn a_machine_waits_for_its_window() {
    let machine = Machine::new();
    machine.release(1, Kind::Good);
    let hour = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs() / 3600 % 24;
    let window = |from: u64| format!("{:02}:00-{:02}:00", from % 24, (from + 2) % 24);
    let start = |on: &str| {
        let mut command = machine.follow(&["--every", "100ms", "--on", on]);
        command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let mut waiting = start(&window(hour + 4));
    let until = Instant::now() + Duration::from_secs(1);
    while Instant::now() < until {
        assert!(!machine.path("running").exists());
        std::thread::sleep(Duration::from_millis(50));
    }
    waiting.kill().unwrap();
    waiting.wait().unwrap();
    let mut open = start(&window(hour + 23));
    wait_until(|| machine.running() == "1");
    open.kill().unwrap();
    open.wait().unwrap();
}
