//! `narval run` and `narval shell`: programs of a store that is not at `/nix/store`.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::lab::Lab;
use crate::support::stdout;
use crate::trouble::PATIENCE;

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
    let message = lab.fails(127, &["run", "--store", &root, &lab.hello, "--", "no-such-program"]);
    assert!(message.contains("cannot run no-such-program"), "{message}");
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

/// A program that needs the dynamic linker and the C library of another store path, which are those of this machine.
fn add_dynamic_program(lab: &Lab) -> [String; 2] {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let mapped = |part: &str| {
        let is_it = |path: &&str| path.rsplit('/').next().is_some_and(|name| name.starts_with(part));
        maps.lines().filter_map(|line| line.split_whitespace().nth(5)).find(is_it).map(std::path::PathBuf::from)
    };
    let own = lab.store.name();
    let libraries = lab.store.path(&format!("libc-{own}")).join("lib");
    std::fs::create_dir_all(&libraries).unwrap();
    for name in ["ld-", "libc.so"] {
        let file = mapped(name).expect("the tests are linked dynamically");
        std::fs::copy(&file, libraries.join(file.file_name().unwrap())).unwrap();
    }
    let linker = mapped("ld-").unwrap().file_name().unwrap().to_str().unwrap().to_owned();
    let libc = lab.store.add(libraries.parent().unwrap());
    let bin = lab.store.path(&format!("app-{own}")).join("bin");
    std::fs::create_dir_all(&bin).unwrap();
    let source = lab.store.path("app.c");
    std::fs::write(
        &source,
        "#include <stdio.h>\nint main(int n, char **a) { printf(\"%s %d\\n\", a[0], n - 1); return 7; }\n",
    )
    .unwrap();
    let flags = [format!("-Wl,--dynamic-linker={libc}/lib/{linker}"), format!("-Wl,-rpath,{libc}/lib")];
    let built = Command::new("cc").args(flags).arg("-o").arg(bin.join("app")).arg(&source).status().unwrap();
    assert!(built.success());
    std::fs::write(bin.join("notes.txt"), "no program\n").unwrap();
    std::os::unix::fs::symlink("app", bin.join("app-too")).unwrap();
    let app = lab.store.add(bin.parent().unwrap());
    lab.done(&["copy", "--store", &lab.store.uri(), "--to", &lab.cache_url(), &app, &libc]);
    [app, libc]
}

/// What is in a profile's `bin` starts by its name, although the store is not at `/nix/store`.
#[test]
fn programs_of_a_profile_start_by_their_names() {
    let lab = Lab::new();
    if !namespaces_allowed(None) {
        return;
    }
    let (root, profile) = (lab.folder("it's mine"), lab.folder("p"));
    let [app, libc] = add_dynamic_program(&lab);
    lab.install(&root, &["--profile", &profile, &app, &libc, &lab.hello]);
    let start = |folder: &str, name: &str, args: &[&str]| {
        let path = format!("{profile}/{folder}:{}", std::env::var("PATH").unwrap());
        Command::new("sh")
            .arg("-c")
            .arg(format!("{name} \"$@\""))
            .arg("sh")
            .args(args)
            .env_clear()
            .env("PATH", path)
            .output()
            .unwrap()
    };
    assert!(!Path::new(&app).exists(), "it would start without a launcher");
    for name in ["app", "app-too"] {
        let output = start("bin", name, &["a b", "*"]);
        assert_eq!(output.status.code(), Some(7), "{output:?}");
        assert_eq!(String::from_utf8(output.stdout).unwrap(), format!("{app}/bin/{name} 2\n"));
    }
    // A program that starts another one of the profile.
    assert_eq!(stdout(start("bin", "hello", &["'"])), format!("hello ' from {}/bin/hello", lab.hello));
    let output = start("bin", "hello; exec app", &[]);
    assert_eq!(output.status.code(), Some(7), "{output:?}");
    // A launcher that an earlier version wrote.
    let launcher = format!("{profile}/bin/app");
    let text = std::fs::read_to_string(&launcher).unwrap();
    let before = lab.folder("before");
    std::fs::create_dir_all(&before).unwrap();
    let former = format!("{before}/app");
    std::fs::copy(&launcher, &former).unwrap();
    std::fs::write(&former, text.replace(" internal-enter ", " __enter ")).unwrap();
    assert_eq!(Command::new(&former).output().unwrap().status.code(), Some(7));
    // What is no program stays a link.
    assert_eq!(std::fs::read_to_string(format!("{profile}/bin/notes.txt")).unwrap(), "no program\n");
    // A profile is a name for its paths.
    let args = ["run", "--store", &root, &profile, "--", "hello", "x"];
    assert_eq!(lab.done(&args), format!("hello x from {}/bin/hello", lab.hello));
    let args = ["shell", "--store", &root, &profile, "--", "sh", "-c", "hello; app || true"];
    assert_eq!(lab.done(&args), format!("hello  from {}/bin/hello\napp 0", lab.hello));
    let message = lab.fails(2, &["run", "--store", &root, &profile]);
    assert!(message.contains("say what to run after --"), "{message}");
    lab.done(&["remove", "--store", &root, "--profile", &profile, &app, &libc]);
    assert_eq!(lab.done(&["run", "--store", &root, &profile]), format!("hello  from {}/bin/hello", lab.hello));
    // A change of the profile's own program: the launchers are made anew.
    let before = std::fs::read_link(&profile).unwrap();
    let other = lab.folder("narval");
    std::fs::copy(crate::support::NARVAL, &other).unwrap();
    let args = ["install", "--quiet", "--from", &lab.cache_url(), "--store", &root, "--profile", &profile, &lab.hello];
    let mut command = Command::new(&other);
    command.args(args).env_clear().env("PATH", std::env::var_os("PATH").unwrap()).env("HOME", lab.store.dir.path());
    stdout(command.output().unwrap());
    assert_ne!(std::fs::read_link(&profile).unwrap(), before);
    assert_eq!(stdout(start("bin", "hello", &[])), format!("hello  from {}/bin/hello", lab.hello));
}

/// A folder with a comma in its name cannot be a layer of an overlay.
#[test]
fn what_cannot_be_seen_without_an_overlay_is_said() {
    let lab = Lab::new();
    if !namespaces_allowed(None) || !Path::new("/nix/store").is_dir() {
        return;
    }
    let [plain, comma] = ["mine", "my,store"].map(|name| lab.folder(name));
    for (root, is_said) in [(plain, false), (comma, true)] {
        lab.install(&root, &[&lab.hello]);
        let output = lab.run(&["run", "--store", &root, &lab.hello]);
        let message = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{message}");
        assert_eq!(message.contains("this machine's paths in /nix/store cannot be seen"), is_said, "{message}");
    }
}

/// The host's store is a folder of this test, mounted over the machine's for the host's processes; as root, or as a user who needs a namespace of their own.
#[test]
fn a_path_that_the_host_adds_is_seen_whether_looked_up_before_or_not() {
    let lab = Lab::new();
    let root = lab.folder("mine");
    lab.install(&root, &[&lab.hello]);
    if !namespaces_allowed(None) || !Path::new("/nix/store").is_dir() {
        return;
    }
    let host = lab.store.path("host");
    std::fs::create_dir(&host).unwrap();
    let narval = lab.store.path("narval");
    crate::support::copy_program(&narval);
    for folder in
        [lab.store.dir.path().to_owned(), lab.store.path("mine"), lab.store.path("mine/nix/var/nix"), host.clone()]
    {
        std::fs::set_permissions(folder, PermissionsExt::from_mode(0o777)).unwrap();
    }
    let is_root = rustix::process::getuid().is_root();
    for (round, as_root) in [true, false].into_iter().enumerate() {
        if !(as_root || is_root && namespaces_allowed(Some(NOBODY))) {
            continue;
        }
        let path = |kind: &str| format!("{}-{round}-{kind}", "0".repeat(32));
        let [moved, in_place, replaced] = ["moved", "in-place", "replaced"].map(path);
        std::fs::write(host.join(&replaced), "old").unwrap();
        let script = format!(
            "cd /nix/store; has() {{ test -e $1; }}; wait_for() {{ until has $1; do sleep 0.02; done; echo $1; }}
            has {moved} || has {in_place} || echo absent; cat {replaced}; echo; read line
            wait_for {moved}/file; mkdir -p /tmp; has {in_place}/file || echo empty; read line
            wait_for {in_place}/file; until grep -q new {replaced}; do sleep 0.02; done; hello"
        );
        let mut command = Command::new("unshare");
        command.args(if as_root { &["--user", "--map-root-user", "--mount"][..] } else { &["--mount"] });
        command.args(["sh", "-c", "mount --bind \"$0\" /nix/store && exec \"$@\""]).arg(&host);
        if !as_root {
            command.args(["setpriv", &format!("--reuid={NOBODY}"), &format!("--regid={NOBODY}"), "--clear-groups"]);
        }
        command.arg(&narval).args(["run", "--store", &root, &lab.hello, "--", "sh", "-c", &script]);
        command.env("HOME", lab.store.dir.path()).current_dir("/").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut program = Ended(command.spawn().unwrap());
        let mut input = program.0.stdin.take().unwrap();
        let mut lines = BufReader::new(program.0.stdout.take().unwrap()).lines().map(Result::unwrap);
        let mut next = || lines.next().unwrap_or_default();
        assert_eq!((next(), next()), ("absent".to_owned(), "old".to_owned()));
        // As Nix adds a path: unpacked elsewhere and renamed, or in place.
        let elsewhere = lab.store.path("elsewhere");
        std::fs::create_dir(&elsewhere).unwrap();
        std::fs::write(elsewhere.join("file"), "").unwrap();
        std::fs::rename(&elsewhere, host.join(&moved)).unwrap();
        std::fs::create_dir(host.join(&in_place)).unwrap();
        input.write_all(b"\n").unwrap();
        assert_eq!((next(), next()), (format!("{moved}/file"), "empty".to_owned()));
        std::fs::write(host.join(&in_place).join("file"), "").unwrap();
        std::fs::set_permissions(host.join(&in_place), PermissionsExt::from_mode(0o555)).unwrap();
        std::fs::remove_file(host.join(&replaced)).unwrap();
        std::fs::write(host.join(&replaced), "new").unwrap();
        input.write_all(b"\n").unwrap();
        assert_eq!((next(), next()), (format!("{in_place}/file"), format!("hello  from {}/bin/hello", lab.hello)));
        assert!(program.0.wait().unwrap().success());
        std::fs::set_permissions(host.join(&in_place), PermissionsExt::from_mode(0o755)).unwrap();
    }
}

/// Programs that wait for all their children have none that they did not start, and what shows them the host's paths ends with them.
#[test]
fn a_program_has_no_children_that_it_did_not_start() {
    let lab = Lab::new();
    let root = lab.folder("mine");
    lab.install(&root, &[&lab.hello]);
    if !namespaces_allowed(None) || !Path::new("/nix/store").is_dir() {
        return;
    }
    let others = || {
        let processes = std::fs::read_dir("/proc").unwrap().flatten();
        let command = |entry: std::fs::DirEntry| std::fs::read_to_string(entry.path().join("cmdline")).ok();
        processes.filter_map(command).filter(|line| line.contains("internal-follow\0/nix/store")).count()
    };
    let script = "read -r children < /proc/$$/task/$$/children; echo \"$children.\"; ls -l /proc/$$/fd | grep -c -e pidfd -e inotify";
    let output = lab.run(&["run", "--store", &root, &lab.hello, "--", "sh", "-c", script]);
    let message = String::from_utf8(output.stdout).unwrap();
    assert_eq!(message.split_whitespace().collect::<Vec<_>>(), [".", "0"], "{message}");
    let before = others();
    let mut command = lab.command(&["run", "--store", &root, &lab.hello, "--", "sh", "-c", "echo; read line"]);
    let mut program = Ended(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap());
    BufReader::new(program.0.stdout.take().unwrap()).lines().next().unwrap().unwrap();
    drop(program.0.stdin.take());
    program.0.wait().unwrap();
    let until = Instant::now() + PATIENCE;
    while others() > before {
        assert!(Instant::now() < until, "a process stays");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Ends with the test, however that ends.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
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
        let mode = PermissionsExt::from_mode(0o777);
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
        std::fs::set_permissions(lab.store.dir.path(), PermissionsExt::from_mode(0o700)).unwrap();
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
    let refused_to = |helpers: &str, args: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "sh", "-c", script, "sh", crate::support::NARVAL]).args(args);
        for variable in ["NARVAL_STORE", "XDG_DATA_HOME", "XDG_STATE_HOME"] {
            command.env_remove(variable);
        }
        command.env("helpers", helpers).env("HOME", lab.folder("home")).output().unwrap()
    };
    let refused = |helpers: &str| refused_to(helpers, &["run", "--store", &root, &lab.hello]);
    let output = refused("/nowhere");
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    if !message.contains("narval: ") {
        eprintln!("note: skipped: the limit cannot be set here: {message}");
        return;
    }
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(message.contains("user namespace") && message.contains("sysctl user.max_user_namespaces"), "{message}");
    // Whoever installs it is told then.
    let output = refused_to("/nowhere", &["install", "--no-check-sigs", "--from", &lab.cache_url(), &lab.hello]);
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        output.status.success() && message.contains("cannot be started here: cannot make a user namespace"),
        "{message}"
    );
    // bwrap is refused as well, unless it is setuid; proot needs no namespace.
    if ["/usr/bin/proot", "/usr/bin/bwrap"].iter().any(|helper| Path::new(helper).exists()) {
        let output = refused("/usr/bin:/bin");
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.success() {
            assert!(message.contains("instead"), "{message}");
            assert!(String::from_utf8_lossy(&output.stdout).starts_with("hello"), "{output:?}");
        } else {
            assert!(message.contains("sysctl user.max_user_namespaces"), "{message}");
        }
    }
}
