//! The units under a real systemd, on a machine of their own.

use std::fs;
use std::path::Path;

use super::UNITS;
use super::machine::Machine;

/// What docs/operating.md describes: secrets, folders, reloads, restarts, and a watcher with a hook, all as users without rights.
#[test]
fn the_units_run_as_the_operators_page_says() {
    let shared = tempfile::tempdir().unwrap();
    let Some(machine) = Machine::boot(shared.path()) else { return };
    let page = fs::read_to_string(Path::new(UNITS).join("../../docs/operating.md")).unwrap();
    let (_, install) = page.split_once("\n```sh server\n").unwrap();
    machine.run(install.split("```").next().unwrap());
    machine.run(
        "systemctl stop narval-serve.service
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
        (trap 'touch /run/restarted' EXIT; for _ in 1 2 3; do systemctl restart narval-serve.service; done) &
        until [ -e /run/restarted ]; do curl -sSf http://127.0.0.1:5000/nix-cache-info > /run/info || [ $? = 52 ]; done
        wait $!; grep -x 'Priority: 13' /run/info",
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
