//! The other commands of `narval`, against what real Nix does.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that fails may say so")]

mod support;

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use support::{NARVAL, Nix, Store, stdout};

fn narval(args: &[&str], input: &[u8]) -> Output {
    let mut child = Command::new(NARVAL)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    // A program that refuses its arguments reads nothing.
    let writer = std::thread::spawn(move || drop(stdin.write_all(&input)));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    output
}

#[test]
fn keys_are_nixs_keys() {
    let store = Store::new();
    let (file, public) = store.key("test-1");
    let mode = std::fs::metadata(&file).unwrap().permissions();
    assert_eq!(mode.mode() & 0o777, 0o600);
    let secret = std::fs::read(&file).unwrap();
    assert_eq!(stdout(narval(&["key", "public", file.to_str().unwrap()], b"")), public);
    assert_eq!(stdout(narval(&["key", "public"], &secret)), public);
    let nix = Command::new("sh")
        .args(["-c", "nix --extra-experimental-features nix-command key convert-secret-to-public < \"$0\""])
        .arg(&file)
        .output()
        .unwrap();
    assert_eq!(stdout(nix), public);
    let again = narval(&["key", "generate", "test-1", "--out", file.to_str().unwrap()], b"");
    assert_eq!(again.status.code(), Some(1), "an existing key is not overwritten");
    assert_eq!(std::fs::read(&file).unwrap(), secret);
    assert_eq!(narval(&["key", "generate", "a b"], b"").status.code(), Some(2));
    assert_eq!(narval(&["key", "public"], b"nonsense").status.code(), Some(2));
}

#[test]
fn nars_are_nixs_nars() {
    let store = Store::new();
    let path = store.add_tree("tree");
    let (real, nar) = (store.real(&path), store.dump(&path));
    let real = real.to_str().unwrap();
    assert!(narval(&["nar", "dump", real], b"").stdout == nar);
    let file = store.path("tree.nar");
    stdout(narval(&["nar", "dump", real, "--out", file.to_str().unwrap()], b""));
    assert!(std::fs::read(&file).unwrap() == nar);

    let copy = store.path("copy");
    stdout(narval(&["nar", "restore", copy.to_str().unwrap()], &nar));
    assert!(Command::new("diff").args(["-r", "--no-dereference", real]).arg(&copy).status().unwrap().success());
    let again = narval(&["nar", "restore", copy.to_str().unwrap()], &nar);
    assert_eq!(again.status.code(), Some(1), "what is there is not overwritten");
    let cut = narval(&["nar", "restore", store.path("cut").to_str().unwrap()], &nar[..nar.len() - 8]);
    assert_eq!(cut.status.code(), Some(1));

    let nix = |args: &[&str]| stdout(Nix::Newest.nix(store.dir.path(), args));
    assert_eq!(stdout(narval(&["nar", "hash", real, "--form", "sri"], b"")), nix(&["hash", "path", real]));
    assert_eq!(
        stdout(narval(&["nar", "hash", real, "--form", "nix32"], b"")),
        stdout(store.nix_store(&["--query", "--hash", &path]))
    );
}

#[test]
fn listings_are_nixs_listings() {
    let store = Store::new();
    let tree = store.path("listed");
    std::fs::create_dir_all(tree.join("bin")).unwrap();
    std::fs::write(tree.join("bin/a"), "a").unwrap();
    std::os::unix::fs::symlink("bin/a", tree.join("link")).unwrap();
    let file = store.path("listed.nar");
    stdout(narval(&["nar", "dump", tree.to_str().unwrap(), "--out", file.to_str().unwrap()], b""));
    let plain = stdout(narval(&["nar", "ls", file.to_str().unwrap()], b""));
    let names: Vec<_> = plain.lines().filter_map(|line| line.split_whitespace().nth(2)).collect();
    assert_eq!(names, [".", "./bin", "./bin/a", "./link"]);
    let ours = stdout(narval(&["nar", "ls", "--json", file.to_str().unwrap()], b""));
    let nix =
        stdout(Nix::Newest.nix(store.dir.path(), &["nar", "ls", "--json", "--recursive", file.to_str().unwrap(), "/"]));
    // A .ls file holds what Nix prints, and its version.
    assert_eq!(ours, format!("{{\"root\":{nix},\"version\":1}}"));
    assert_eq!(narval(&["nar", "ls"], b"nonsense").status.code(), Some(1));
}

#[test]
fn an_interrupted_demo_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let mut demo = Command::new(NARVAL)
        .args(["demo", "--keep"])
        .env_clear()
        .env("TMPDIR", folder.path())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let entries = || std::fs::read_dir(folder.path()).unwrap().count();
    while entries() == 0 {
        assert!(demo.try_wait().unwrap().is_none(), "the demo ended by itself");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(Command::new("kill").args(["-INT", &demo.id().to_string()]).status().unwrap().success());
    let code = demo.wait().unwrap().code();
    assert!(matches!(code, Some(130 | 0)), "{code:?}");
    assert_eq!(entries(), 0);
}

#[test]
fn a_nar_that_does_not_fit_on_the_disk_leaves_no_part() {
    let folder = tempfile::tempdir().unwrap();
    let dump = format!("ulimit -f 8; trap '' XFSZ; exec '{NARVAL}' nar dump '{NARVAL}' --out here.nar");
    let output = Command::new("bash").args(["-c", &dump]).current_dir(folder.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.starts_with("narval: cannot write 'here.nar': "), "{error}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    // Where there is room, the file is as any other; a device is written to as it is. What a killed one left goes.
    std::fs::write(folder.path().join(".narval-part-0123456789abcdef"), "half a NAR").unwrap();
    for out in ["here.nar", "here.nar", "/dev/null"] {
        assert!(
            Command::new(NARVAL)
                .args(["nar", "dump", file!(), "--out"])
                .arg(folder.path().join(out))
                .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
                .status()
                .unwrap()
                .success()
        );
    }
    let made = std::fs::metadata(folder.path().join("here.nar")).unwrap();
    assert_ne!(made.permissions().mode() & 0o044, 0);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn the_demo_runs_anywhere() {
    let empty = tempfile::tempdir().unwrap();
    // Without Nix, a home, or anything on the PATH.
    let output = Command::new(NARVAL).arg("demo").env_clear().env("TMPDIR", empty.path()).output().unwrap();
    let text = stdout(output);
    assert!(text.contains("all are right"), "{text}");
    assert_eq!(std::fs::read_dir(empty.path()).unwrap().count(), 0, "nothing is left");
}

#[test]
fn help_and_version() {
    for (args, want) in [
        (&["--help"][..], "narval demo"),
        (&["serve", "--help"], "narval serve --sign-key"),
        (&["key", "generate", "--help"], "Example"),
        (&["--version"], env!("CARGO_PKG_VERSION")),
    ] {
        assert!(stdout(narval(args, b"")).contains(want), "{args:?}");
    }
    assert_eq!(narval(&["nonsense"], b"").status.code(), Some(2));
}

/// Output to a closed pipe or a full disk: no panic, and the loss is reported.
#[test]
fn output_that_cannot_be_written() {
    let run = |stdout: Stdio, stderr: Stdio, arguments: &[&str]| {
        let mut command = Command::new(NARVAL);
        command.args(arguments).stdin(Stdio::null()).stdout(stdout).stderr(stderr);
        command.spawn().unwrap().wait_with_output().unwrap()
    };
    // A pipe whose reader is gone.
    let unread = || Stdio::from(std::io::pipe().unwrap().1);
    let full = || Stdio::from(std::fs::File::options().write(true).open("/dev/full").unwrap());
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("a.txt"), "text ".repeat(1000)).unwrap();
    let compress = ["static", "compress", folder.path().to_str().unwrap()];

    assert_eq!(run(unread(), unread(), &compress).status.code(), Some(0));
    assert_eq!(run(Stdio::null(), full(), &compress).status.code(), Some(0));
    let lost = run(full(), Stdio::piped(), &compress);
    let said = String::from_utf8(lost.stderr).unwrap();
    assert_eq!((lost.status.code(), said.lines().count()), (Some(1), 1), "{said}");
    assert!(said.contains("cannot write to standard output: No space left on device"), "{said}");
    let failed = ["static", "compress", "/nowhere/at/all"];
    assert_eq!(run(unread(), unread(), &failed).status.code(), Some(1));
}

#[test]
fn help_that_cannot_be_written_is_a_failure() {
    for args in [&["--help"][..], &["--version"], &["install", "--help"]] {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let output = Command::new(NARVAL).args(args).stdout(full).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("cannot write to standard output"));
    }
}

#[test]
fn restored_files_have_the_modes_that_nix_gives_them() {
    let store = Store::new();
    let tree = store.path("tree");
    std::fs::create_dir_all(tree.join("bin")).unwrap();
    std::fs::write(tree.join("bin/run"), "run").unwrap();
    std::fs::set_permissions(tree.join("bin/run"), PermissionsExt::from_mode(0o755)).unwrap();
    std::fs::write(tree.join("plain"), "plain").unwrap();
    let nar = store.path("nar");
    stdout(narval(&["nar", "dump", tree.to_str().unwrap(), "--out", nar.to_str().unwrap()], b""));
    let restore = |umask: &str, name: &str, program: &str| {
        let script = format!("umask {umask}; exec {program} {name} < nar");
        stdout(Command::new("sh").args(["-c", &script]).current_dir(store.dir.path()).output().unwrap());
        ["", "bin", "bin/run", "plain"]
            .map(|below| std::fs::metadata(store.path(name).join(below)).unwrap().permissions().mode() & 0o777)
    };
    let ours = format!("{NARVAL} nar restore");
    // Nix has an umask of its own, whatever its caller's is.
    assert_eq!(restore("022", "ours", &ours), restore("077", "nixs", "nix-store --restore"));
    assert_eq!(restore("077", "private", &ours), [0o700, 0o700, 0o700, 0o600]);
}

#[test]
fn a_missing_store_is_not_served() {
    let folder = tempfile::tempdir().unwrap();
    let args = ["serve", "--listen", "127.0.0.1:0", "--store", folder.path().to_str().unwrap()];
    let output = narval(&args, b"");
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("there is no store in"));
}

/// Without its daemon, the garbage of a store given as a daemon's URI is not collected.
#[test]
fn garbage_of_a_daemons_store_is_left_to_its_daemon() {
    let store = Store::new();
    let path = store.add_tree("garbage");
    let dir = store.dir.path().display();
    let real = Path::new(&path).exists();
    let query =
        store.uri().split_once('?').map(|(_, query)| query.to_owned()).unwrap_or_else(|| format!("root={dir}/root"));
    let output = narval(&["gc", "--store", &format!("unix://{dir}/nonexistent?{query}")], b"");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("cannot connect to the Nix daemon"), "{said}");
    assert_eq!(Path::new(&path).exists(), real);
    stdout(Nix::Newest.nix_store(store.dir.path(), &["--store", &store.uri(), "--check-validity", &path]));
}

#[test]
fn waiting_for_a_lock_times_out() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path().to_str().unwrap();
    stdout(narval(&["gc", "--quiet", "--store", root], b""));
    // Of another process: flock(1) holds it until its child has ended.
    let gc = format!("{} gc --quiet --lock-timeout 0 --store {root}", NARVAL);
    let script = format!("exec 9<>{root}/nix/var/nix/gc.lock; flock 9; {gc} 9>&-");
    let output = Command::new("sh").args(["-c", &script]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(7), "{said}");
    assert!(said.contains("locked by another process"), "{said}");
}

#[test]
fn small_words_say_what_to_do() {
    let said = |args: &[&str]| {
        let output = narval(args, b"");
        assert_eq!(output.status.code(), Some(2), "{args:?}: {output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let path = "/nix/store/00bgd045z0d4icpbc2yyz4gx48ak44la-net-tools";
    assert!(said(&["run", path, "--version"]).contains("narval run PATH -- PROGRAM --version"));
    assert!(said(&["shell", path, "-V"]).contains("narval shell PATH -- PROGRAM --version"));
    assert!(said(&["uninstall", "x"]).contains("narval remove"));
    let demo = stdout(narval(&["demo"], b""));
    let last = demo.lines().next_back().unwrap();
    assert!(last.contains("has ended") && last.contains("--keep") && last.contains("browser"), "{demo}");
}

#[test]
fn a_home_that_cannot_be_entered_is_named() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o700)).unwrap();
    let mut command = Command::new("setpriv");
    // Somebody else, with the home of this user; root enters every folder.
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", NARVAL, "install", "--from", "file:///nowhere"]);
    command.arg("/nix/store/00bgd045z0d4icpbc2yyz4gx48ak44la-net-tools");
    command.env("HOME", folder.path()).env_remove("XDG_DATA_HOME").env_remove("NARVAL_STORE");
    let Ok(output) = command.output() else {
        eprintln!("note: skipped: there is no setpriv");
        return;
    };
    let said = String::from_utf8(output.stderr).unwrap();
    if said.starts_with("setpriv: ") {
        eprintln!("note: skipped: this user may not become another one, who may run the program");
        return;
    }
    let home = folder.path().display();
    let line =
        format!("default store because HOME is '{home}': set that, or give a store with --store DIR or NARVAL_STORE");
    assert!(!output.status.success() && said.contains(&line), "{said}");
}
