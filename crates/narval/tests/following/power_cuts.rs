//! Power failures on a real file system: what was not written to the disk when the power failed is lost.
//!
//! The store and the profile are on ext4 in a file. The kernel writes to it what is synced, and the rest much later: so a copy of the file while the program is stopped is
//! the disk of a machine whose power failed at that moment, and mounting the copy is its next start.

use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::disk::{Disk, said};
use crate::kills::Random;
use crate::machine::{Kind, Machine, NARVAL, Said};

/// Rounds; `NARVAL_FOLLOW_ROUNDS` is another number.
const ROUNDS: u64 = 12;
/// The size of the disk.
const SIZE: &str = "48M";
/// Nothing is written because of its age meanwhile, and no file because another one is replaced by it.
const OPTIONS: &str = "loop,commit=300,noauto_da_alloc";

/// A machine whose power fails.
struct Cut {
    disk: Disk,
    /// The number of the disk's file.
    number: u32,
}

impl Cut {
    fn new() -> Option<Self> {
        let machine = Machine::new();
        let file = machine.path("disk-0");
        let made = Command::new("mke2fs").args(["-q", "-t", "ext4"]).arg(&file).arg(SIZE).output();
        if !made.is_ok_and(|made| made.status.success()) {
            eprintln!("skipped: mke2fs is not there");
            return None;
        }
        let disk = Disk::new(machine, &["-o", OPTIONS, file.to_str().unwrap()])?;
        // The machine was installed long ago.
        disk.machine.release(1, Kind::Good);
        assert_eq!(disk.once().outcome(), ("switched", Some(0)));
        Some(Self { disk, number: 0 })
    }

    fn spawn(&self, command: &Command) -> Child {
        self.disk.inside(command).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    }

    /// The power fails, and the machine starts with what is on its disk: what the profile leads to.
    fn cut(&mut self, mut running: Child) {
        let pid = running.id().to_string();
        assert!(Command::new("kill").args(["-STOP", &pid]).status().unwrap().success());
        // A call that has begun ends before it is stopped: the copy is of one moment.
        while running.try_wait().unwrap().is_none() && !is_stopped(&pid) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let file = self.disk.machine.path(&format!("disk-{}", self.number));
        self.number += 1;
        let next = self.disk.machine.path(&format!("disk-{}", self.number));
        said(&Command::new("cp").arg("--sparse=always").args([&file, &next]).output().unwrap());
        // It may have ended.
        let _ = running.kill();
        running.wait().unwrap();
        self.disk.mount_instead(&["-o", OPTIONS, next.to_str().unwrap()]);
        std::fs::remove_file(file).unwrap();
        std::fs::write(self.disk.machine.path("running"), self.disk.current().to_string()).unwrap();
    }

    /// Checks everything that the store says is valid, and that the profile leads to something of it.
    fn verify(&self) -> Output {
        let machine = &self.disk.machine;
        let mut command = Command::new(NARVAL);
        command.arg("verify").arg("--store").arg(machine.path("root")).arg("--offline");
        command.args(["--trusted-public-key", &machine.site.key.public_key().to_string()]);
        command.arg(format!("/nix/store/{}", Machine::name_of(self.disk.current())));
        command.env("HOME", machine.folder.path());
        self.disk.inside(&command).output().unwrap()
    }

    fn state(&self) -> Value {
        let state = self.disk.disk().join("profiles/web.follow/state.json");
        serde_json::from_slice(&std::fs::read(state).unwrap()).unwrap()
    }
}

fn is_stopped(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with(['T', 'Z']))
}

#[test]
fn after_a_power_failure_the_machine_has_a_generation_that_works() {
    let rounds = std::env::var("NARVAL_FOLLOW_ROUNDS").map_or(ROUNDS, |text| text.parse().unwrap());
    let Some(mut cut) = Cut::new() else { return };
    let mut random = Random(0x2545_f491_4f6c_dd1d);
    let (mut good, mut interrupted) = (1, 0);
    for revision in 2..2 + rounds {
        let kind = [Kind::Good, Kind::Good, Kind::SwitchFails, Kind::CheckFails][random.below(4) as usize];
        cut.disk.machine.release(revision, kind);
        for _ in 0..random.below(3) {
            let follow = cut.spawn(&cut.disk.machine.follow(&["--every", "1h"]));
            std::thread::sleep(Duration::from_millis(random.below(400)));
            cut.cut(follow);
            let current = cut.disk.current();
            assert!([good, revision].contains(&current), "{current} in round {revision}");
            said(&cut.verify());
            let state = cut.state();
            let known = [&state["good"]["revision"], &state["trying"]["revision"]];
            assert!(known.contains(&&current.into()), "{current} is not in {state}");
            interrupted += u64::from(!state["trying"].is_null());
        }
        let said = Said::of(&cut.disk.inside(&cut.disk.machine.follow(&["--once"])).output().unwrap());
        if kind == Kind::Good {
            assert!(["switched", "unchanged"].contains(&said.outcome().0), "{}", said.log);
            good = revision;
        } else {
            assert!(["wentBack", "refused"].contains(&said.outcome().0), "{}", said.log);
        }
        assert_eq!((cut.disk.current(), cut.disk.machine.running()), (good, good.to_string()), "{}", said.log);
        // A round that has ended lasts.
        let sleep = cut.spawn(Command::new("sleep").arg("100"));
        cut.cut(sleep);
        assert_eq!(cut.disk.current(), good);
        crate::disk::said(&cut.verify());
        let state = cut.state();
        assert!(state["good"]["revision"] == good && state["trying"].is_null(), "{state}");
        let failed = (kind != Kind::Good).then_some(revision);
        assert_eq!(state["failed"]["revision"].as_u64(), failed, "{state}");
    }
    eprintln!("{rounds} rounds, {interrupted} attempts lost their power in the middle");
}

/// The file system of the other test does lose what is not synced.
#[test]
fn without_syncs_a_round_that_has_ended_is_lost() {
    let Some(mut cut) = Cut::new() else { return };
    cut.disk.machine.release(2, Kind::Good);
    let follow = cut.disk.machine.follow(&["--once"]);
    let mut command = Command::new("strace");
    command.args(["-f", "-qq", "-o", "/dev/null", "-e", "trace=fsync,fdatasync,syncfs,sync_file_range"]);
    command.args(["-e", "inject=fsync,fdatasync,syncfs,sync_file_range:retval=0"]).arg(NARVAL).args(follow.get_args());
    command.env_clear().envs(follow.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let round = Said::of(&cut.disk.inside(&command).output().unwrap());
    if round.outcome() != ("switched", Some(0)) {
        eprintln!("skipped: strace is not there, or may not trace: {}", round.log);
        return;
    }
    assert_eq!(cut.disk.current(), 2);
    let sleep = cut.spawn(Command::new("sleep").arg("100"));
    cut.cut(sleep);
    assert_eq!(cut.disk.current(), 1);
}
