//! Servers and clients that are killed in the middle of pushes: a dozen rounds of `tools/kill-loop-push`, which says what it checks.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that fails may say so")]

mod support;

use std::path::Path;
use std::process::Command;

const ROUNDS: &str = "12";

#[test]
fn visible_paths_verify_after_every_kill() {
    let Some(hello) = support::made_closure() else {
        eprintln!("skipped: tools/make-closure has not made its closure in /nix/store");
        return;
    };
    let tool = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tools/kill-loop-push");
    let output = Command::new(tool).arg(env!("CARGO_BIN_EXE_narval")).arg(hello).arg(ROUNDS).output().unwrap();
    let message = [output.stdout, output.stderr].map(|message| String::from_utf8_lossy(&message).into_owned());
    assert!(output.status.success(), "{}\n{}", message[0], message[1]);
}
