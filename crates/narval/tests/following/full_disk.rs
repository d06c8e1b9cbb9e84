//! A disk that is full: what runs goes on, nothing is half there, and the next round succeeds when there is room.

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

use crate::machine::{Kind, Machine, Said, wait_until};

/// The size of the disk, in bytes.
const SIZE: u64 = 64 << 20;
/// What a release adds that does not fit.
const PAYLOAD: usize = 6 << 20;

/// A machine whose store and profile are on a small disk, in a mount namespace of its own.
struct Small {
    machine: Machine,
    namespace: Child,
}

impl Drop for Small {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.namespace.kill();
        let _ = self.namespace.wait();
    }
}

impl Small {
    /// `None` where a test cannot mount anything.
    fn new() -> Option<Self> {
        let may_mount = Command::new("unshare").args(["-m", "mount", "-t", "tmpfs", "none", "/mnt"]).output();
        if !may_mount.is_ok_and(|output| output.status.success()) {
            eprintln!("skipped: a file system of the test's own can't be mounted");
            return None;
        }
        let machine = Machine::new();
        let [disk, root, profiles] = ["disk", "root", "profiles"].map(|name| machine.path(name));
        [&disk, &root, &profiles].into_iter().for_each(|folder| fs::create_dir(folder).unwrap());
        let script = "mount -t tmpfs -o size=$1 none \"$2\" && mkdir \"$2/root\" \"$2/profiles\" && mount --bind \"$2/root\" \"$3\" \
             && mount --bind \"$2/profiles\" \"$4\" && touch \"$2/mounted\" && exec sleep 1000";
        let mut command = Command::new("unshare");
        command.args(["-m", "sh", "-c", script, "sh", &SIZE.to_string()]).args([&disk, &root, &profiles]);
        let namespace = command.stdout(Stdio::null()).spawn().unwrap();
        let this = Self { machine, namespace };
        wait_until(|| this.disk().join("mounted").exists());
        Some(this)
    }

    /// The disk, for this process.
    fn disk(&self) -> PathBuf {
        let disk = self.machine.path("disk");
        PathBuf::from(format!("/proc/{}/root{}", self.namespace.id(), disk.display()))
    }

    fn inside(&self, command: &Command) -> Output {
        let mut inside = Command::new("nsenter");
        inside.args(["-m", "-t", &self.namespace.id().to_string(), "--"]).arg(command.get_program());
        inside.args(command.get_args()).env_clear();
        inside.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        inside.env("PATH", std::env::var_os("PATH").unwrap()).output().unwrap()
    }

    fn once(&self) -> Said {
        Said::of(&self.inside(&self.machine.follow(&["--once", "--attempts", "1"])))
    }

    /// The revision that the profile leads to, which has all its files, and runs.
    fn current(&self) -> u64 {
        let script = "cd \"$0\"; path=$(readlink -f profiles/web); number=${path##*-web-}; \
             diff -r \"$path\" \"source-$number\" >&2 && echo $number";
        let mut command = Command::new("sh");
        command.args(["-c", script]).arg(self.machine.folder.path());
        let output = self.inside(&command);
        let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        assert!(output.status.success(), "{said} {}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(self.machine.running(), said);
        said.parse().unwrap()
    }

    /// Temporary names that were left.
    fn left(&self) -> Vec<String> {
        let output = Command::new("find").arg(self.disk()).args(["-name", ".narval-tmp-*"]).output().unwrap();
        String::from_utf8(output.stdout).unwrap().lines().map(ToOwned::to_owned).collect()
    }

    /// Fills the disk but for so many bytes.
    fn fill(&self, free: usize) {
        let path = self.disk().join("filler");
        let mut file = fs::File::create(&path).unwrap();
        let mut len = 0;
        while let Ok(written) = file.write(&[0; 4096]) {
            len += written as u64;
        }
        file.set_len(len.saturating_sub(free as u64)).unwrap();
    }
}

#[test]
fn a_full_disk_changes_nothing() {
    let Some(small) = Small::new() else { return };
    let machine = &small.machine;
    machine.release(1, Kind::Good);
    let said = small.once();
    assert_eq!(said.outcome(), ("switched", Some(0)), "{}", said.log);
    let (mut runs, mut random) = (1, 7_u64);
    // From no room at all to nearly enough of it.
    for (revision, free) in (2..).zip([0, 4096, 64 << 10, 1 << 20, PAYLOAD / 2]) {
        let source = machine.path(&format!("source-{revision}"));
        fs::create_dir(&source).unwrap();
        // It is not made smaller by compression.
        let payload = (0..PAYLOAD).map(|_| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            random.to_le_bytes()[7]
        });
        fs::write(source.join("payload"), payload.collect::<Vec<_>>()).unwrap();
        machine.release(revision, Kind::Good);
        small.fill(free);
        for _ in 0..2 {
            let said = small.once();
            assert_eq!(said.code, Some(6), "{free} bytes are free: {}", said.log);
            assert_eq!(small.current(), runs, "{free} bytes are free");
        }
        fs::remove_file(small.disk().join("filler")).unwrap();
        let said = small.once();
        assert_eq!(said.outcome(), ("switched", Some(0)), "{free} bytes were free: {}", said.log);
        assert_eq!(small.current(), revision);
        assert_eq!(small.left(), Vec::<String>::new());
        runs = revision;
    }
}
