//! The units under a real systemd, as the first process of namespaces of its own (`boot`).

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Output, Stdio};
use std::time::Instant;

use super::support::NARVAL;
use super::{PATIENCE, UNITS};

/// Ends with its last user: systemd and all that it started.
pub(crate) struct Booted {
    child: Child,
    /// Its end is the end of the machine.
    stdin: Option<ChildStdin>,
    pid: String,
}

impl Booted {
    /// `None`: there can be no such namespaces here. `packages` is /packages there.
    pub(crate) fn new(folder: &Path, units: &Path, packages: &Path) -> Option<Self> {
        if !rustix::process::geteuid().is_root() || !Path::new("/lib/systemd/systemd").exists() {
            eprintln!("note: skipped: needs root, and systemd");
            return None;
        }
        let mut boot = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/systemd/boot"));
        boot.arg(folder).arg(units).arg(NARVAL).arg(packages).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = boot.spawn().unwrap();
        let stdin = child.stdin.take();
        let mut pid = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut pid).unwrap();
        if pid.trim().is_empty() {
            assert_eq!(child.wait().unwrap().code(), Some(77));
            eprintln!("note: skipped: systemd can't have namespaces of its own here");
            return None;
        }
        let booted = Self { child, stdin, pid: pid.trim().to_owned() };
        booted.wait_for("systemctl is-system-running");
        Some(booted)
    }

    /// Runs a script on that machine.
    fn try_run(&self, script: &str) -> Output {
        let mut command = Command::new("nsenter");
        command.args(["-t", &self.pid, "-m", "-p", "-u", "-i", "-n", "-C", "-r", "/bin/sh", "-euc", script]);
        command.env_clear().env("PATH", "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin").env("HOME", "/root");
        command.stdin(Stdio::null()).output().unwrap()
    }

    pub(crate) fn run(&self, script: &str) -> String {
        let output = self.try_run(script);
        assert!(
            output.status.success(),
            "{script}: {}{}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr),
            String::from_utf8_lossy(&self.try_run("cat /run/log").stdout)
        );
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs a script until it succeeds.
    fn wait_for(&self, script: &str) {
        let until = Instant::now() + PATIENCE;
        while Instant::now() < until {
            if self.try_run(script).status.success() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
        self.run(script);
    }
}

impl Drop for Booted {
    fn drop(&mut self) {
        drop(self.stdin.take());
        let _ = self.child.wait();
    }
}

/// What docs/operating.md describes: secrets, folders, reloads, restarts, and a watcher with a hook, all as users without rights.
#[test]
fn the_units_run_as_the_operators_page_says() {
    let folder = tempfile::tempdir().unwrap();
    let Some(machine) = Booted::new(folder.path(), Path::new(UNITS), Path::new(UNITS)) else { return };
    machine.run(
        "install -d -m 755 /etc/narval && install -d -m 700 /etc/narval/keys /etc/narval/tokens
        narval key generate cache.example.org-1 --out /etc/narval/keys/cache.sec
        cat > /etc/narval/serve.toml <<'END'
sign-keys = '/run/credentials/narval-serve.service/key_cache.sec'
data = '/var/lib/narval'
priority = 11
[access-log]
file = '/var/log/narval/access.log'
END
        systemctl start narval-serve.service",
    );
    // Both families are listened on, and the key could be read by a user that is not root.
    let info =
        machine.run("curl -sSf http://127.0.0.1:5000/nix-cache-info && curl -sSf http://[::1]:5000/nix-cache-info");
    assert_eq!(
        (info.matches("Priority: 11\n").count(), info.matches("PublicKey: cache.example.org-1:").count()),
        (2, 2)
    );
    let main_pid = "pid=$(systemctl show -P MainPID narval-serve.service)";
    let status = machine.run(&format!("{main_pid}; cat /proc/$pid/status"));
    assert!(status.contains("CapEff:\t0000000000000000\n") && status.contains("NoNewPrivs:\t1\n"), "{status}");
    assert!(!status.contains("Uid:\t0\t"), "{status}");
    assert_eq!(machine.run("stat -c %U /var/lib/narval/index.sqlite /var/log/narval/access.log"), "narval\nnarval\n");

    // A reload, and one that fails.
    machine.run("sed -i 's/= 11/= 12/' /etc/narval/serve.toml && systemctl reload narval-serve.service");
    machine.wait_for("curl -sSf http://127.0.0.1:5000/nix-cache-info | grep -x 'Priority: 12'");
    machine.run("sed -i 's/= 12/= -1/' /etc/narval/serve.toml && systemctl reload narval-serve.service");
    machine
        .wait_for("systemctl status narval-serve.service | grep 'last reload failed: .*serve.toml:3: priority = -1'");
    // The old file is still in force, whatever else the wrong one has.
    machine.run(
        "printf '[[cache]]\\nname = \"team\"\\n' >> /etc/narval/serve.toml && systemctl reload narval-serve.service",
    );
    machine.wait_for("[ $(grep -c 'SIGHUP: .*priority = -1.*the old configuration stays in effect' /run/log) = 2 ]");
    let ask = "curl -s -o /dev/null -w '%{http_code}' http://127.0.0.1:5000/team/nix-cache-info";
    machine
        .run(&format!("curl -sSf http://127.0.0.1:5000/nix-cache-info | grep -x 'Priority: 12'; [ $({ask}) = 404 ]"));
    machine.run("systemctl is-active narval-serve.service && sed -i 's/= -1/= 13/' /etc/narval/serve.toml");
    // Caches come and go with a reload, and the process stays.
    let pid = machine.run("systemctl show -P MainPID narval-serve.service");
    machine.run("systemctl reload narval-serve.service");
    machine.wait_for(&format!("[ $({ask}) = 200 ]"));
    machine.run("sed -i '/^.[[]cache/,$d' /etc/narval/serve.toml && systemctl reload narval-serve.service");
    machine.wait_for(&format!("[ $({ask}) = 404 ]"));
    assert_eq!(machine.run("systemctl show -P MainPID narval-serve.service"), pid);

    // A secret that is replaced: systemd passes the new one when it starts the service, not when it reloads it.
    machine.run(
        "rm /etc/narval/keys/cache.sec && narval key generate cache.example.org-2 --out /etc/narval/keys/cache.sec
        systemctl reload narval-serve.service",
    );
    machine.wait_for("[ $(grep -c 'SIGHUP: configuration, keys and certificates reloaded' /run/log) = 4 ]");
    machine.run("curl -sSf http://127.0.0.1:5000/nix-cache-info | grep 'PublicKey: cache.example.org-1:'");
    machine.run("systemctl restart narval-serve.service");
    machine.wait_for("curl -sSf http://127.0.0.1:5000/nix-cache-info | grep 'PublicKey: cache.example.org-2:'");

    // Root's commands leave nothing that the server could not write to.
    machine.run("narval token create --push --sign ci > /etc/narval/tokens/ci");
    assert_eq!(machine.run("find /var/lib/narval/ ! -user narval"), "");

    // With the socket unit, a restart refuses no connection.
    machine.run("systemctl stop narval-serve.service && systemctl start narval-serve.socket");
    // curl ends with 7 where nothing listens, and with 52 where a connection is closed before its first request arrives.
    machine.run(
        "systemctl reset-failed
        (for _ in 1 2 3; do systemctl restart narval-serve.service; done; touch /run/restarted) &
        until [ -e /run/restarted ]; do curl -sSf http://127.0.0.1:5000/nix-cache-info > /run/info || [ $? = 52 ]; done
        wait; grep -x 'Priority: 13' /run/info",
    );

    // A build's hook, as root; the watcher, as a user of its own, pushes what it queued.
    machine.run(
        "cat > /etc/narval/watch-store.env <<'END'
WATCH_STORE_OPTIONS='--to http://127.0.0.1:5000 --queue-only'
NARVAL_TOKEN_FILE=/run/credentials/narval-watch-store.service/token_ci
END
        systemctl start narval-watch-store.service
        mkdir -p /run/built && echo hello > /run/built/greeting",
    );
    let path = machine.run("nix-store --add /run/built/greeting").trim().to_owned();
    machine.run(&format!("OUT_PATHS={path} narval hook"));
    let hash = &path.split('/').next_back().unwrap()[..32];
    machine.wait_for(&format!("curl -sSf http://127.0.0.1:5000/{hash}.narinfo | grep 'Sig: cache.example.org-2:'"));
    machine.wait_for("[ -z \"$(ls /var/lib/narval-push/queue)\" ]");
    machine.run("systemctl stop narval-watch-store.service narval-serve.service narval-serve.socket");
    let ended = machine.run("systemctl show -P Result narval-watch-store.service narval-serve.service");
    assert_eq!(ended.split_whitespace().collect::<Vec<_>>(), ["success", "success"]);
}
