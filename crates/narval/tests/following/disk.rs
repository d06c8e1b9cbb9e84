//! A machine whose store and profile are on a file system of the test's own.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

use crate::machine::{Machine, Said};

/// A machine whose store and profile are on another file system, in a mount namespace of its own.
pub(crate) struct Disk {
    pub(crate) machine: Machine,
    namespace: Child,
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.end();
    }
}

impl Disk {
    /// Mounts a file system with `mount` and these arguments, and its mount point after them. `None` where a test cannot mount it.
    pub(crate) fn new(machine: Machine, mount: &[&str]) -> Option<Self> {
        let [disk, root, profiles] = ["disk", "root", "profiles"].map(|name| machine.path(name));
        [&disk, &root, &profiles].into_iter().for_each(|folder| fs::create_dir_all(folder).unwrap());
        let Some(namespace) = mounted(&machine, mount) else {
            eprintln!("skipped: a file system of the test's own can't be mounted");
            return None;
        };
        Some(Self { machine, namespace })
    }

    /// Ends the namespace, and mounts another file system in a new one.
    pub(crate) fn mount_instead(&mut self, mount: &[&str]) {
        self.end();
        self.namespace = mounted(&self.machine, mount).unwrap();
    }

    fn end(&mut self) {
        // It may have ended.
        let _ = self.namespace.kill();
        let _ = self.namespace.wait();
    }

    /// The disk, for this process.
    pub(crate) fn disk(&self) -> PathBuf {
        let disk = self.machine.path("disk");
        PathBuf::from(format!("/proc/{}/root{}", self.namespace.id(), disk.display()))
    }

    /// The command, inside of the namespace. It becomes that process.
    pub(crate) fn inside(&self, command: &Command) -> Command {
        let mut inside = Command::new("nsenter");
        inside.args(["-m", "-t", &self.namespace.id().to_string(), "--"]).arg(command.get_program());
        inside.args(command.get_args()).env_clear();
        inside.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        inside.env("PATH", std::env::var_os("PATH").unwrap());
        inside
    }

    pub(crate) fn once(&self) -> Said {
        Said::of(&self.inside(&self.machine.follow(&["--once", "--attempts", "1"])).output().unwrap())
    }

    /// The revision that the profile leads to, which has all its files.
    pub(crate) fn current(&self) -> u64 {
        let script = "cd \"$0\"; path=$(readlink -f profiles/web); number=${path##*-web-}; \
             diff -r \"$path\" \"source-$number\" >&2 && echo $number";
        let mut command = Command::new("sh");
        command.args(["-c", script]).arg(self.machine.folder.path());
        said(&self.inside(&command).output().unwrap()).parse().unwrap()
    }
}

/// What a command that succeeded has said.
pub(crate) fn said(output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    assert!(output.status.success(), "{said} {}", String::from_utf8_lossy(&output.stderr));
    said
}

/// A process in a namespace with the file system. `None` if it cannot be mounted.
fn mounted(machine: &Machine, mount: &[&str]) -> Option<Child> {
    let script = "disk=$1 root=$2 profiles=$3; shift 3; mount \"$@\" \"$disk\" && mkdir -p \"$disk/root\" \"$disk/profiles\" \
         && mount --bind \"$disk/root\" \"$root\" && mount --bind \"$disk/profiles\" \"$profiles\" && echo mounted && exec sleep 1000";
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", script, "sh"]).args(["disk", "root", "profiles"].map(|name| machine.path(name)));
    let mut child = command.args(mount).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    if line.is_empty() {
        child.wait().unwrap();
        return None;
    }
    Some(child)
}
