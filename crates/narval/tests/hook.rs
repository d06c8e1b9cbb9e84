//! `narval hook` as the post-build hook of real Nix, which builds into a store of the test's own.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that fails may say so")]

mod support;

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use support::{NARVAL, Nix, stdout};

/// A store with a name of its own, so that Nix can build into it without a sandbox, and a hook.
struct Builder {
    dir: tempfile::TempDir,
    nix: Nix,
}

impl Builder {
    fn new(nix: Nix) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let hook = dir.path().join("hook");
        std::fs::write(&hook, format!("#!/bin/sh\nexec {NARVAL} hook\n")).unwrap();
        std::fs::set_permissions(&hook, PermissionsExt::from_mode(0o755)).unwrap();
        Self { dir, nix }
    }

    fn path(&self, below: &str) -> PathBuf {
        self.dir.path().join(below)
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        for (name, below) in [
            ("NIX_STORE_DIR", "store"),
            ("NIX_STATE_DIR", "var"),
            ("NIX_LOG_DIR", "log"),
            ("NIX_CONF_DIR", "etc"),
            ("HOME", "home"),
            ("NARVAL_STATE", "state"),
        ] {
            command.env(name, self.path(below));
        }
        command.env_remove("NIX_REMOTE").env_remove("NIX_CONFIG");
        command
    }

    /// Builds two outputs, and gives the output of `nix-build`.
    fn build(&self, name: &str) -> Output {
        let expression = format!(
            "derivation {{ name = \"{name}\"; system = builtins.currentSystem; builder = \"/bin/sh\"; outputs = [ \"out\" \"dev\" ]; \
             args = [ \"-c\" \"echo built > $out; echo dev > $dev\" ]; }}"
        );
        let mut command = self.command(if self.nix == Nix::Old { "nix-old-build" } else { "nix-build" });
        let options = ["sandbox", "false", "--option", "build-users-group", "", "--option", "post-build-hook"];
        command.args(["--no-out-link", "-E", &expression, "--option"]).args(options).arg(self.path("hook"));
        command.args(["--option", "substitute", "false"]).output().unwrap()
    }

    /// What is in the queue.
    fn queued(&self) -> Vec<String> {
        lines(&self.path("state/queue"))
    }
}

fn lines(folder: &Path) -> Vec<String> {
    let files = std::fs::read_dir(folder).into_iter().flatten().map(|entry| entry.unwrap().path());
    // What a killed hook was writing is in no queue.
    let is_whole = |path: &PathBuf| !path.file_name().unwrap().to_str().unwrap().starts_with(".incoming-");
    let mut files: Vec<_> = files.filter(is_whole).collect();
    files.sort();
    files
        .iter()
        .flat_map(|file| std::fs::read_to_string(file).unwrap().lines().map(str::to_owned).collect::<Vec<_>>())
        .collect()
}

#[test]
fn what_real_nix_builds_is_queued() {
    for nix in Nix::BOTH {
        let builder = Builder::new(nix);
        let out = stdout(builder.build("one"));
        let name = out.rsplit('/').next().unwrap().to_owned();
        let mut queued = builder.queued();
        queued.sort_by_key(|path| path.ends_with("-dev"));
        assert_eq!(queued.len(), 2, "{nix:?}: {queued:?}");
        assert_eq!(queued[0], name, "{nix:?}");
        assert!(queued[1].ends_with("-one-dev"), "{nix:?}");
        stdout(builder.build("one"));
        assert_eq!(builder.queued().len(), 2, "nothing was built");
        stdout(builder.build("two"));
        assert_eq!(builder.queued().len(), 4, "{nix:?}");
        let cache = builder.path("cache");
        let mut watcher = builder.command(NARVAL);
        watcher.args(["watch-store", "--queue-only", "--once", "--to"]).arg(&cache);
        let output = watcher.output().unwrap();
        assert!(output.status.success(), "{nix:?}: {}", String::from_utf8_lossy(&output.stderr));
        assert!(builder.queued().is_empty() && cache.join(format!("{}.narinfo", &name[..32])).exists(), "{nix:?}");
    }
}

/// nix#7141: a hook that fails stops all builds.
#[test]
fn a_queue_that_cannot_be_written_fails_no_build() {
    let builder = Builder::new(Nix::Newest);
    // No folder can be made where a file is.
    std::fs::write(builder.path("state"), "").unwrap();
    let built = builder.build("one");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    assert!(String::from_utf8_lossy(&built.stderr).contains("narval hook: cannot"));
    let hook = |args: &[&str], paths: Option<&str>| {
        let mut command = builder.command(NARVAL);
        command.arg("hook").args(args).envs(paths.map(|paths| ("OUT_PATHS", paths))).output().unwrap()
    };
    for (args, paths, message) in [
        (&["--no-such-option"][..], Some(""), "--no-such-option"),
        (&[], None, "OUT_PATHS is not set"),
        (&[], Some("/etc/passwd nonsense"), "'/etc/passwd'"),
    ] {
        let output = hook(args, paths);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success() && text.contains(message), "{args:?}: {text}");
    }
    // A disk that is full.
    let output =
        hook(&["--state", "/dev/full"], Some(&format!("{}/{}-a", builder.path("store").display(), "0".repeat(32))));
    assert!(output.status.success() && !output.stderr.is_empty());
}

/// A hook that is killed at any moment leaves a whole file or none.
#[test]
fn killed_hooks_leave_no_partial_entries() {
    let builder = Builder::new(Nix::Newest);
    let paths: Vec<String> = (0..200).map(|number| format!("{}-{number}", "0".repeat(32))).collect();
    let store = builder.path("store");
    let list: Vec<String> = paths.iter().map(|path| format!("{}/{path}", store.display())).collect();
    for round in 0..60 {
        let mut child = builder.command(NARVAL).arg("hook").env("OUT_PATHS", list.join(" ")).spawn().unwrap();
        std::thread::sleep(std::time::Duration::from_micros(round * 150));
        // It may have ended.
        let _ = child.kill();
        child.wait().unwrap();
    }
    let mut whole = 0;
    for entry in std::fs::read_dir(builder.path("state/queue")).into_iter().flatten() {
        let entry = entry.unwrap();
        if entry.file_name().to_str().unwrap().starts_with(".incoming-") {
            continue;
        }
        let text = std::fs::read_to_string(entry.path()).unwrap();
        assert_eq!(text.lines().collect::<Vec<_>>(), paths);
        whole += 1;
    }
    stdout(builder.command(NARVAL).arg("hook").env("OUT_PATHS", list.join(" ")).output().unwrap());
    assert_eq!(lines(&builder.path("state/queue")).len() % paths.len(), 0);
    assert!(whole < 60, "none was killed early enough");
}
