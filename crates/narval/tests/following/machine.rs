//! A machine: a store, a profile, and a file that says what runs on it.

use std::cell::Cell;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use narval_install::Destination;
use narval_nix::StorePath;
use narval_store::StoreConfig;
use serde_json::Value;
use tempfile::TempDir;

use crate::site::{SYSTEM, Site};

pub(crate) const NARVAL: &str = env!("CARGO_BIN_EXE_narval");

/// What happens to a release on the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Good,
    SwitchFails,
    CheckFails,
    /// The switch has no end.
    SwitchHangs,
}

pub(crate) struct Machine {
    pub(crate) folder: TempDir,
    pub(crate) site: Site,
    /// Where it finds the site.
    pub(crate) url: String,
    /// How long the check of the newest release may fail.
    check_timeout: Cell<&'static str>,
}

/// What `narval follow --once` says as JSON, and its exit code.
pub(crate) struct Said {
    pub(crate) code: Option<i32>,
    pub(crate) round: Value,
    pub(crate) log: String,
}

impl Machine {
    pub(crate) fn new() -> Self {
        let site = Site::new();
        Self { folder: tempfile::tempdir().unwrap(), url: site.url.clone(), site, check_timeout: Cell::new("60s") }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The base name of the store path of a revision.
    pub(crate) fn name_of(revision: u64) -> String {
        format!("{revision:032}-web-{revision}")
    }

    /// Releases a new revision. Its switch first leaves the machine in between, then makes it run the revision.
    pub(crate) fn release(&self, revision: u64, kind: Kind) {
        let (source, running) = (self.path(&format!("source-{revision}")), self.path("running"));
        fs::create_dir_all(source.join("bin")).unwrap();
        let running = running.display();
        let end = match kind {
            Kind::Good | Kind::CheckFails => "",
            Kind::SwitchFails => "exit 3",
            Kind::SwitchHangs => "sleep 600",
        };
        let switch = format!("#!/bin/sh\necho half > {running}\nsleep 0.02\n{end}\necho {revision} > {running}\n");
        self.check_timeout.set(if kind == Kind::CheckFails { "100ms" } else { "60s" });
        let check = if kind == Kind::CheckFails { "exit 1" } else { "exit 0" };
        let check = format!("#!/bin/sh\ntest \"$(cat {running})\" = {revision} && {check}\n");
        for (name, text) in [("switch", switch), ("check", check)] {
            let file = source.join("bin").join(name);
            fs::write(&file, text).unwrap();
            fs::set_permissions(&file, PermissionsExt::from_mode(0o755)).unwrap();
        }
        let path = Self::name_of(revision);
        let hash = self.site.add(&path, &source);
        self.site.release(revision, &path, hash);
    }

    /// `narval follow` for this machine.
    pub(crate) fn follow(&self, args: &[&str]) -> Command {
        let mut command = Command::new(NARVAL);
        command.args(["follow", "@web", "--json", "--system", SYSTEM, "--from", &self.url]);
        command.args(["--trusted-public-key", &self.site.key.public_key().to_string()]);
        command.arg("--store").arg(self.path("root")).arg("--profile").arg(self.path("profiles/web"));
        if !args.contains(&"--switch") {
            command.args(["--switch", "bin/switch"]);
        }
        command.args(["--check", "bin/check", "--check-timeout", self.check_timeout.get()]);
        command.args(args).env_clear().env("PATH", std::env::var_os("PATH").unwrap());
        command.env("HOME", self.folder.path()).env("TMPDIR", self.folder.path()).env("NARVAL_LOG", "info");
        command
    }

    pub(crate) fn once(&self, args: &[&str]) -> Said {
        Said::of(&self.follow(&[&["--once"], args].concat()).output().unwrap())
    }

    /// What the machine runs.
    pub(crate) fn running(&self) -> String {
        fs::read_to_string(self.path("running")).unwrap_or_default().trim().to_owned()
    }

    /// The revision that the profile leads to. That path is valid and has all its files.
    pub(crate) fn current(&self) -> Option<u64> {
        let link = self.path("profiles/web");
        let generation = fs::read_link(&link).ok()?;
        let generation = link.with_file_name(generation);
        let target = fs::read_link(&generation).unwrap_or_else(|error| panic!("{}: {error}", generation.display()));
        let destination = Destination::new(StoreConfig::for_root(&self.path("root")).unwrap());
        let path: StorePath = target.file_name().unwrap().to_str().unwrap().parse().unwrap();
        assert!(destination.is_valid(&path).unwrap(), "{path} is not valid");
        let revision: u64 = path.name().strip_prefix("web-").unwrap().parse().unwrap();
        for name in ["bin/switch", "bin/check"] {
            let source = self.path(&format!("source-{revision}")).join(name);
            assert_eq!(fs::read(target.join(name)).unwrap(), fs::read(source).unwrap(), "{name} of {path}");
        }
        Some(revision)
    }

    /// The number of the current generation.
    pub(crate) fn generation(&self) -> String {
        fs::read_link(self.path("profiles/web")).unwrap().to_str().unwrap().to_owned()
    }

    /// The file of the state.
    pub(crate) fn state(&self) -> Value {
        serde_json::from_slice(&fs::read(self.path("profiles/web.follow/state.json")).unwrap()).unwrap()
    }
}

impl Said {
    pub(crate) fn of(output: &Output) -> Self {
        let log = String::from_utf8_lossy(&output.stderr).into_owned();
        let lines = String::from_utf8_lossy(&output.stdout).into_owned();
        let mut rounds = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let round = rounds.rfind(|line| line["outcome"].is_string()).unwrap_or_default();
        Self { code: output.status.code(), round, log }
    }

    /// The outcome, and the exit code.
    pub(crate) fn outcome(&self) -> (&str, Option<i32>) {
        (self.round["outcome"].as_str().unwrap_or(&self.log), self.code)
    }
}

/// Waits for something that another process does.
pub(crate) fn wait_until(is_done: impl Fn() -> bool) {
    while !is_done() {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

pub(crate) fn links(folder: &Path) -> Vec<String> {
    let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}
