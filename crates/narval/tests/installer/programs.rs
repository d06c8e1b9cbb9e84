//! `narval run` and `narval shell`: programs of a store that is not at `/nix/store`.

use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::lab::Lab;
use crate::support::stdout;

/// Whether this machine lets this user (or the one named) make namespaces, and mount in them: what the tests of the
/// running itself depend on. Some machines allow only root, and some allow the namespace and no mount (AppArmor).
fn namespaces_allowed(user: Option<u32>) -> bool {
    let mut probe = Command::new("unshare");
    probe.args(["--user", "--map-root-user", "--mount", "mount", "-t", "tmpfs", "probe", "/tmp"]).current_dir("/");
    if let Some(user) = user {
        probe.uid(user).gid(user);
    }
    let allowed = probe.output().is_ok_and(|output| output.status.success());
    if !allowed {
        eprintln!("note: skipped: namespaces are refused here");
    }
    allowed
}

/// A user of no name.
const NOBODY: u32 = 65_534;

#[test]
fn programs_run_from_any_folder() {
    let lab = Lab::new();
    let (root, url) = (lab.folder("mine"), lab.cache_url());
    if !namespaces_allowed(None) {
        return;
    }
    let inside = format!("{}/bin/hello", lab.hello);
    // Installed on the way, from the cache; the main program by its name, and its own exit code.
    let args = ["run", "--quiet", "--from", &url, "--store", &root, &lab.hello];
    assert_eq!(lab.done(&args), format!("hello  from {inside}"));
    let args = ["run", "--store", &root, &lab.hello, "--", "hello", "a", "b"];
    assert_eq!(lab.done(&args), format!("hello a b from {inside}"));
    let code = lab.run(&["run", "--store", &root, &lab.hello, "--", "sh", "-c", "exit 42"]);
    assert_eq!(code.status.code(), Some(42));
    let said = lab.fails(127, &["run", "--store", &root, &lab.hello, "--", "no-such-program"]);
    assert!(said.contains("cannot run no-such-program"), "{said}");
    // The rest of the system stays: working directory, user, files.
    let script = format!("pwd; id -u; cat {}/bin/run | head -n 1", lab.tree);
    let mut command = lab.command(&["shell", "--quiet", "--from", &url, "--store", &root, &lab.hello, &lab.tree]);
    command.args(["--", "sh", "-c", &script]).current_dir("/usr/bin");
    let user = rustix::process::getuid().as_raw();
    assert_eq!(stdout(command.output().unwrap()), format!("/usr/bin\n{user}\n#!/bin/sh"));
    // Both are on PATH.
    let args = ["shell", "--store", &root, &lab.hello, &lab.tree, "--", "sh", "-c", "hello; run"];
    assert_eq!(lab.done(&args), format!("hello  from {inside}\nhello"));
}

/// A folder with a comma in its name cannot be a layer of an overlay.
#[test]
fn what_cannot_be_seen_without_an_overlay_is_said() {
    let lab = Lab::new();
    if !namespaces_allowed(None) || !std::path::Path::new("/nix/store").is_dir() {
        return;
    }
    let [plain, comma] = ["mine", "my,store"].map(|name| lab.folder(name));
    for (root, is_said) in [(plain, false), (comma, true)] {
        lab.install(&root, &[&lab.hello]);
        let output = lab.run(&["run", "--store", &root, &lab.hello]);
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{said}");
        assert_eq!(said.contains("this machine's paths in /nix/store cannot be seen"), is_said, "{said}");
    }
}

#[test]
fn programs_run_for_users_without_rights() {
    let lab = Lab::new();
    let root = lab.folder("mine");
    lab.install(&root, &[&lab.hello]);
    if !rustix::process::getuid().is_root() {
        eprintln!("note: skipped: only root can become somebody else; the other test ran without rights");
        return;
    }
    if !namespaces_allowed(Some(NOBODY)) {
        return;
    }
    // Somebody who owns nothing but the folder that is covered.
    for folder in [lab.store.dir.path().to_owned(), lab.store.path("mine"), lab.store.path("mine/nix/var/nix")] {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        std::fs::set_permissions(folder, mode).unwrap();
    }
    // The program of the tests may lie where only root can go.
    let narval = lab.store.path("narval");
    crate::support::copy_program(&narval);
    let mut command = Command::new(&narval);
    command.args(["run", "--store", &root, &lab.hello, "--", "sh", "-c", "hello $(id -u)"]).current_dir("/");
    command.env("HOME", lab.store.dir.path()).uid(NOBODY).gid(NOBODY);
    assert_eq!(stdout(command.output().unwrap()), format!("hello {NOBODY} from {}/bin/hello", lab.hello));
    // root's own rights reach below a folder that is closed to all but that user; those of a namespace of its own would not.
    let mount =
        Command::new("unshare").args(["--mount", "mount", "-t", "tmpfs", "probe", "/tmp"]).current_dir("/").output();
    if mount.is_ok_and(|output| output.status.success()) {
        std::os::unix::fs::chown(lab.store.dir.path(), Some(NOBODY), None).unwrap();
        std::fs::set_permissions(lab.store.dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
        assert_eq!(lab.done(&["run", "--store", &root, &lab.hello]), format!("hello  from {}/bin/hello", lab.hello));
    }
}

#[test]
fn where_namespaces_are_refused_the_message_says_what_helps() {
    let lab = Lab::new();
    let root = lab.folder("mine");
    lab.install(&root, &[&lab.hello]);
    if !namespaces_allowed(None) {
        return;
    }
    // A user namespace in which no more of them may be made, and a process that has lost all its rights there.
    let script = "echo 0 > /proc/sys/user/max_user_namespaces && \
                  exec setpriv --bounding-set=-all --inh-caps=-all --no-new-privs env PATH=\"$helpers\" \"$@\"";
    let refused = |helpers: &str| {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "sh", "-c", script, "sh", crate::support::NARVAL]);
        command.args(["run", "--store", &root, &lab.hello]).env("helpers", helpers).output().unwrap()
    };
    let output = refused("/nowhere");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if !said.contains("narval: ") {
        eprintln!("note: skipped: the limit cannot be set here: {said}");
        return;
    }
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("user namespace") && said.contains("sysctl user.max_user_namespaces"), "{said}");
    // bwrap is refused as well, unless it is setuid; proot needs no namespace.
    if ["/usr/bin/proot", "/usr/bin/bwrap"].iter().any(|helper| std::path::Path::new(helper).exists()) {
        let output = refused("/usr/bin:/bin");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.success() {
            assert!(said.contains("instead"), "{said}");
            assert!(String::from_utf8_lossy(&output.stdout).starts_with("hello"), "{output:?}");
        } else {
            assert!(said.contains("sysctl user.max_user_namespaces"), "{said}");
        }
    }
}
