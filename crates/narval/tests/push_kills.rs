//! Servers and clients that are killed in the middle of pushes: a dozen rounds of `tools/kill-loop-push`, which says what it checks.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that fails may say so")]

use std::path::Path;
use std::process::Command;

const ROUNDS: &str = "12";

#[test]
fn visible_paths_verify_after_every_kill() {
    // The closure that tools/make-closure puts into the system's store, and tools/test has made.
    let entries = std::fs::read_dir("/nix/store").into_iter().flatten().flatten().map(|entry| entry.path());
    let is_hello = |path: &std::path::PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        path.is_dir() && name.get(32..).is_some_and(|rest| rest.starts_with("-hello-"))
    };
    let Some(hello) = entries.filter(is_hello).min() else {
        eprintln!("skipped: there is no hello in /nix/store; tools/make-closure makes one");
        return;
    };
    let tool = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tools/kill-loop-push");
    let output = Command::new(tool).arg(env!("CARGO_BIN_EXE_narval")).arg(hello).arg(ROUNDS).output().unwrap();
    let said = [output.stdout, output.stderr].map(|said| String::from_utf8_lossy(&said).into_owned());
    assert!(output.status.success(), "{}\n{}", said[0], said[1]);
}
