//! Into a store that belongs to a running Nix daemon, and into the same one without it.

use std::process::Command;
use std::time::{Duration, Instant};

use crate::lab::Lab;
use crate::support::{Nix, Running, stdout};

/// A store with `/nix/store` as its name, in a folder of the lab, and its daemon.
fn start(lab: &Lab, nix: Nix) -> (Running, String, String) {
    let dir = lab.folder(if nix == Nix::Old { "old" } else { "new" });
    let direct = format!("local?real={dir}/store&state={dir}/state&log={dir}/log");
    // Two processes that create a store at once get in each other's way.
    stdout(nix.nix_store(lab.store.dir.path(), &["--store", &direct, "--init"]));
    let socket = format!("{dir}/socket");
    let config = "build-users-group =\nsubstitute = false";
    let daemon = nix.daemon(lab.store.dir.path(), socket.as_ref(), &direct, config);
    (daemon, format!("unix://{socket}?real={dir}/store&state={dir}/state"), direct)
}

#[test]
fn through_the_daemon_each_path_after_what_it_refers_to() {
    for nix in Nix::BOTH {
        let lab = Lab::new();
        let (daemon, uri, direct) = start(&lab, nix);
        // One of them is there already: it is neither fetched nor sent.
        lab.install(&uri, &[&lab.tree]);
        let shown = lab.done(&["install", "--json", "--from", &lab.cache_url(), "--store", &uri, &lab.top, &lab.hello]);
        assert!(shown.contains("\"installed\":2"), "{shown}");
        let again = lab.done(&["install", "--json", "--from", &lab.cache_url(), "--store", &uri, &lab.top]);
        assert!(again.contains("\"requests\":0"), "{again}");
        let home = lab.store.dir.path();
        stdout(nix.nix_store(home, &["--store", &direct, "--verify", "--check-contents"]));
        let valid = stdout(nix.nix(home, &["path-info", "--store", &direct, "--recursive", &lab.top]));
        assert_eq!(valid.lines().count(), 2, "{valid}");
        // A profile's paths are kept by the daemon, which collects the rest.
        let profile = lab.folder("profile");
        lab.install(&uri, &["--profile", &profile, &lab.hello]);
        // What the install kept for itself goes with the daemon's process for its connection, a moment later.
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            stdout(nix.nix_store(home, &["--store", &direct, "--gc"]));
            let left = stdout(nix.nix(home, &["path-info", "--store", &direct, "--all"]));
            if left == lab.hello {
                break;
            }
            assert!(left.contains(&lab.hello) && Instant::now() < until, "{left}");
        }
        assert!(std::fs::read_to_string(format!("{profile}/bin/hello")).unwrap().contains("hello"));
        // A NAR that is not what was promised breaks off, and leaves nothing valid.
        let damaged = lab.folder("damaged");
        stdout(Command::new("cp").args(["-r", &lab.folder("cache"), &damaged]).output().unwrap());
        let narinfo = format!("{damaged}/{}.narinfo", crate::support::hash_part(&lab.tree));
        let text = std::fs::read_to_string(&narinfo).unwrap();
        let size = text.lines().find(|line| line.starts_with("NarSize: ")).unwrap();
        std::fs::write(&narinfo, text.replace(size, "NarSize: 40000000")).unwrap();
        let message = lab.fails(4, &["install", "--from", &format!("file://{damaged}"), "--store", &uri, &lab.tree]);
        assert!(message.contains("NarSize"), "{message}");
        let left = stdout(nix.nix(home, &["path-info", "--store", &direct, "--all"]));
        assert_eq!(left, lab.hello);
        // Without the daemon the store is written directly, with the same locks and database.
        drop(daemon);
        lab.fails(1, &["install", "--quiet", "--from", &lab.cache_url(), "--store", &uri, &lab.top]);
        lab.install(&direct, &[&lab.top]);
        stdout(nix.nix_store(home, &["--store", &direct, "--verify", "--check-contents"]));
        let valid = stdout(nix.nix(home, &["path-info", "--store", &direct, "--all"]));
        assert_eq!(valid.lines().count(), 3, "{valid}");
    }
}

/// `--store auto` of a user who may not write to the store: the daemon collects, as for Nix.
#[test]
fn a_user_collects_through_the_daemon() {
    use std::os::unix::fs::PermissionsExt;
    let lab = Lab::new();
    let (_daemon, uri, direct) = start(&lab, Nix::Newest);
    let state = lab.folder("new/state");
    stdout(Nix::Newest.nix(
        lab.store.dir.path(),
        &["copy", "--no-check-sigs", "--from", &lab.cache_url(), "--to", &direct, &lab.hello],
    ));
    std::fs::set_permissions(lab.store.dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    // The program may lie where this user can't look.
    let narval = lab.folder("narval");
    crate::support::copy_program(&narval);
    let socket = uri.strip_prefix("unix://").unwrap().split('?').next().unwrap();
    let run = |args: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", &narval]).args(args);
        command.env_clear().env("PATH", std::env::var_os("PATH").unwrap()).env("HOME", "/nonexistent");
        command.env("NIX_STATE_DIR", &state).env("NIX_DAEMON_SOCKET_PATH", socket);
        command.output().unwrap()
    };
    let tried = run(&["--version"]);
    if !tried.status.success() {
        eprintln!("note: skipped: this user can't become another one");
        return;
    }
    assert!(stdout(run(&["gc", "--dry-run", "--store", "auto"])).contains("would remove 1 path "));
    assert!(stdout(run(&["gc", "--store", "auto"])).contains("removed 1 path "));
    let refused = run(&["gc", "--store", "local"]);
    assert!(!refused.status.success());
}
