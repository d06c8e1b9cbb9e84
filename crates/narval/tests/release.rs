//! The tools that make a release: `tools/release` and `tools/sbom`, with small inputs and a key of the test's own.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that fails may say so")]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

fn release(arguments: &[&str]) -> Output {
    Command::new(format!("{ROOT}/tools/release")).args(arguments).stdin(Stdio::null()).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn key(folder: &Path) -> String {
    let file = folder.join("key");
    let made =
        Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-C", "test", "-f"]).arg(&file).status();
    assert!(made.unwrap().success());
    file.to_str().unwrap().to_owned()
}

/// What docs/operating.md and the release's own help say to do with a release.
fn verifies(folder: &Path) -> bool {
    let page = fs::read_to_string(format!("{ROOT}/docs/operating.md")).unwrap();
    let check = page.split("release.rs -->\n```sh\n").nth(1).unwrap().split("```").next().unwrap();
    Command::new("sh").args(["-ec", check]).current_dir(folder).status().unwrap().success()
}

#[test]
fn a_signed_release_verifies_until_a_file_changes() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    fs::create_dir_all(out.join("crates")).unwrap();
    fs::write(out.join("program"), "a program").unwrap();
    fs::write(out.join("crates/narval.crate"), "a crate").unwrap();
    let key = key(folder.path());
    let output = release(&["--key", &key, "--out", out.to_str().unwrap(), "--only", "sums,sign"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let sums = fs::read_to_string(out.join("SHA256SUMS")).unwrap();
    let names: Vec<_> = sums.lines().map(|line| line.split_once("  ").unwrap().1).collect();
    assert_eq!(names, ["crates/narval.crate", "program"]);
    assert!(verifies(&out));

    fs::write(out.join("program"), "another program").unwrap();
    assert!(!verifies(&out), "a changed file is accepted");
    // Sums that fit the changed file are not signed.
    let output = release(&["--unsigned", "--out", out.to_str().unwrap(), "--only", "sums,sign"]);
    assert!(output.status.success() && text(&output.stdout).contains("not signed"), "{}", text(&output.stderr));
    assert!(!verifies(&out), "changed sums are accepted");
}

#[test]
fn without_a_key_nothing_begins() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    for (arguments, says) in [
        (&[][..], "no key to sign with: give --key FILE"),
        (&["--key", "/nonexistent"], "cannot read the key '/nonexistent'"),
        (&["--unsigned", "--only", "sums,x"], "no step 'x'; the steps are: check source"),
    ] {
        let output = release(&[arguments, &["--out", out.to_str().unwrap()]].concat());
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        let message = text(&output.stderr);
        assert!(
            message.starts_with("release: ") && message.contains(says) && message.lines().count() == 1,
            "{message}"
        );
        assert!(!out.exists());
    }
}

fn sbom(arguments: &[&str]) -> Value {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("sbom.json");
    let mut command = Command::new(format!("{ROOT}/tools/sbom"));
    let output = command.args(arguments).arg(&file).env("SOURCE_DATE_EPOCH", "1700000000").output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    serde_json::from_slice(&fs::read(&file).unwrap()).unwrap()
}

#[test]
fn the_sbom_names_every_crate_that_is_built_in() {
    let bom = sbom(&[]);
    assert_eq!((&bom["bomFormat"], &bom["specVersion"]), (&"CycloneDX".into(), &"1.5".into()));
    assert_eq!(bom["metadata"]["timestamp"], "2023-11-14T22:13:20Z");
    let components = bom["components"].as_array().unwrap();
    let mut refs: BTreeSet<&str> = components.iter().map(|component| component["bom-ref"].as_str().unwrap()).collect();
    assert!(refs.len() == components.len() && refs.len() > 100, "{}", refs.len());
    for component in components {
        let name = component["name"].as_str().unwrap();
        assert!(component["licenses"][0]["expression"].is_string(), "{name} has no licence");
        // Those of this repository are in no registry yet.
        assert!(
            name.starts_with("narval-") || component["hashes"][0]["content"].as_str().unwrap().len() == 64,
            "{name}"
        );
    }
    for expected in ["rustls@", "libsqlite3-sys@", "aws-lc-sys@", "narval-http@"] {
        assert!(refs.iter().any(|one| one.contains(expected)), "{expected} is missing");
    }
    // What only tests and benchmarks use is not in the program.
    for other in ["proptest@", "narval-bench@", "tungstenite@"] {
        assert!(!refs.iter().any(|one| one.contains(other)), "{other} is not built in");
    }
    refs.insert(bom["metadata"]["component"]["bom-ref"].as_str().unwrap());
    for dependency in bom["dependencies"].as_array().unwrap() {
        assert!(refs.contains(dependency["ref"].as_str().unwrap()), "{dependency}");
        assert!(
            dependency["dependsOn"].as_array().unwrap().iter().all(|one| refs.contains(one.as_str().unwrap())),
            "{dependency}"
        );
    }
}

#[test]
fn the_sbom_says_what_the_programs_are_built_for_and_with() {
    for libc in ["gnu", "musl"] {
        let target = format!("x86_64-unknown-linux-{libc}");
        let bom = sbom(&["--target", &target]);
        assert!(bom["components"].as_array().unwrap().len() > 100);
        let properties = bom["metadata"]["properties"].as_array().unwrap();
        let property = |name| &properties.iter().find(|one| one["name"] == name).unwrap()["value"];
        assert_eq!(property("narval:target"), &Value::from(target));
        for tool in ["narval:rustc", "narval:cc"] {
            assert!(property(tool).as_str().unwrap().contains(char::is_numeric), "{tool} has no version");
        }
    }
}
