//! Many rounds of releases of all kinds, with `kill -9` at any moment: at no moment is the profile half, and in the end what works runs.

use std::process::Stdio;
use std::time::Duration;

use crate::machine::{Kind, Machine};

/// Rounds; `NARVAL_FOLLOW_ROUNDS` is another number.
const ROUNDS: u64 = 12;

/// Numbers without an order, the same in each run.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

#[test]
fn killed_at_any_moment_a_machine_has_a_generation_that_works() {
    let rounds = std::env::var("NARVAL_FOLLOW_ROUNDS").map_or(ROUNDS, |text| text.parse().unwrap());
    let machine = Machine::new();
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    machine.release(1, Kind::Good);
    assert_eq!(machine.once(&[]).outcome(), ("switched", Some(0)));
    let (mut good, mut interrupted) = (1, 0);
    for revision in 2..2 + rounds {
        let kind = [Kind::Good, Kind::Good, Kind::SwitchFails, Kind::CheckFails][random.below(4) as usize];
        machine.release(revision, kind);
        // At most two interruptions: after the third, a release is not tried any more.
        for _ in 0..random.below(3) {
            let command = &mut machine.follow(&["--every", "1h"]);
            let mut follow = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
            std::thread::sleep(Duration::from_millis(random.below(250)));
            follow.kill().unwrap();
            follow.wait().unwrap();
            // The profile leads to a whole path: the one before, or the new one. Which of them, the state knows.
            let current = machine.current().unwrap();
            assert!([good, revision].contains(&current), "{current} in round {revision}");
            let state = machine.state();
            let known = [&state["good"]["revision"], &state["trying"]["revision"]];
            assert!(known.contains(&&current.into()), "{current} is not in {state}");
            interrupted += u64::from(!state["trying"].is_null());
        }
        let message = machine.once(&[]);
        if kind == Kind::Good {
            assert!(["switched", "unchanged"].contains(&message.outcome().0), "{}", message.log);
            good = revision;
        } else {
            assert!(["wentBack", "refused"].contains(&message.outcome().0), "{}", message.log);
        }
        // Nothing that was killed runs on, and nothing is half.
        assert_eq!((machine.current(), machine.running()), (Some(good), good.to_string()), "{}", message.log);
        let state = machine.state();
        assert!(state["good"]["revision"] == good && state["trying"].is_null(), "{state}");
        let failed = (kind != Kind::Good).then_some(revision);
        assert_eq!(state["failed"]["revision"].as_u64(), failed, "{state}");
    }
    eprintln!("{rounds} rounds, {interrupted} attempts were killed in the middle");
}
