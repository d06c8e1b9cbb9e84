//! A disk that is full of what pushes that were given up have left: the server gives the room back by itself.

use std::path::PathBuf;
use std::process::Command;

use narval_keep::UNFINISHED_GRACE;

use crate::lab::{Lab, Nar};
use crate::support::{Answer, NARVAL, Server, Store, hash_part};

const PATH: &str = "00bgd045z0d4icpbc2yyz4gx48ak44la-test";

/// A server whose data folder is on a file system of its own, of 24 MiB, that no other process sees.
struct SmallDisk {
    lab: Lab,
    data: PathBuf,
    token: String,
}

impl SmallDisk {
    fn new() -> Option<Self> {
        let may_mount = Command::new("unshare").args(["-m", "mount", "-t", "tmpfs", "none", "/mnt"]).output();
        if !may_mount.is_ok_and(|output| output.status.success()) {
            eprintln!("skipped: a file system of the test's own can't be mounted");
            return None;
        }
        let store = Store::new();
        let small = store.path("small");
        std::fs::create_dir(&small).unwrap();
        let data = small.join("data");
        let script = "mount -t tmpfs -o size=24m none \"$0\" && exec \"$@\"";
        let mut command = Command::new("unshare");
        command.args(["-m", "sh", "-c", script, small.to_str().unwrap(), NARVAL, "serve", "--listen", "127.0.0.1:0"]);
        command.args(["--data", data.to_str().unwrap()]);
        let server = Server::start(command, &[("XDG_CACHE_HOME", store.path("cache").to_str().unwrap())]);
        let mut disk = Self { lab: Lab { store, server }, data, token: String::new() };
        disk.token = disk.run(NARVAL, &["token", "create", "--push", "--data", disk.data.to_str().unwrap(), "test"]);
        Some(disk)
    }

    /// Runs a program that sees the disk; what it prints.
    fn run(&self, program: &str, args: &[&str]) -> String {
        let namespace = format!("--mount=/proc/{}/ns/mnt", self.lab.server.pid());
        let output = Command::new("nsenter").args([&namespace, program]).args(args).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    fn put(&self, nar: &Nar) -> Answer {
        self.lab.put(&nar.url(), &self.token, &nar.bytes)
    }

    /// As if all NARs had been uploaded so much earlier.
    fn age(&self, seconds: u64) {
        let index = self.data.join("index.sqlite");
        let change = format!("update nars set used = used - {seconds}, orphaned = orphaned - {seconds}");
        self.run("sqlite3", &["-cmd", ".timeout 60000", index.to_str().unwrap(), &change]);
    }

    /// Files and bytes that `narval cache gc` has removed.
    fn gc(&self, args: &[&str]) -> (u64, u64) {
        let args = [&["cache", "gc", "--json", "--data", self.data.to_str().unwrap()], args].concat();
        let json: serde_json::Value = serde_json::from_str(&self.run(NARVAL, &args)).unwrap();
        (json["files"].as_u64().unwrap(), json["bytes"].as_u64().unwrap())
    }
}

#[test]
fn a_full_disk_frees_what_abandoned_pushes_left() {
    let Some(disk) = SmallDisk::new() else { return };
    let kept = Nar::of(&vec![250; 1 << 20]);
    assert_eq!(disk.put(&kept).status, 201);
    let narinfo = format!("/{}.narinfo", hash_part(PATH));
    assert_eq!(disk.lab.put(&narinfo, &disk.token, kept.narinfo(PATH, &[]).as_bytes()).status, 201);
    let nars: Vec<Nar> = (0..40_u8).map(|number| Nar::of(&vec![number; 1 << 20])).collect();
    let mut taken = 0;
    let refused = nars.iter().find_map(|nar| {
        let answer = disk.put(nar);
        taken += u64::from(answer.status == 201);
        (answer.status != 201).then_some(answer)
    });
    let refused = refused.expect("40 MiB on a disk of 24 MiB");
    assert!(refused.status == 507 && refused.text().contains("disk is full"), "{}: {}", refused.status, refused.text());
    // They were uploaded a moment ago: their push may go on.
    assert_eq!(disk.gc(&["--unfinished"]), (0, 0));
    disk.age(UNFINISHED_GRACE);
    assert_eq!(disk.gc(&["--dry-run"]), (0, 0), "for a day, as long as nobody needs the room");
    let all = disk.gc(&["--unfinished", "--dry-run"]);
    assert_eq!((all.0, all.1 > taken << 20), (taken, true));
    // Longer than the server waits before it looks again.
    let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
    let fresh = Nar::of(&vec![200; 12 << 20]);
    while disk.put(&fresh).status != 201 {
        assert!(std::time::Instant::now() < until, "{}", disk.lab.server.log());
        std::thread::sleep(std::time::Duration::from_secs(1));
    }
    assert!(disk.lab.server.log().contains("without a path"), "{}", disk.lab.server.log());
    assert_eq!(disk.lab.get(&nars[0].url()).status, 404);
    // What a path has stays.
    assert_eq!(disk.lab.get(&kept.url()).body, kept.bytes);
    assert_eq!(disk.gc(&["--unfinished"]), (0, 0));
}

#[test]
fn a_full_disk_is_emptied_on_demand() {
    let Some(disk) = SmallDisk::new() else { return };
    let nars: Vec<Nar> = (0..40_u8).map(|number| Nar::of(&vec![number; 1 << 20])).collect();
    let taken = nars.iter().take_while(|nar| disk.put(nar).status == 201).count();
    disk.age(UNFINISHED_GRACE);
    let (files, bytes) = disk.gc(&["--unfinished"]);
    assert_eq!((files, bytes > (taken as u64) << 20), (taken as u64, true));
    assert_eq!(disk.put(&nars[taken]).status, 201);
}
