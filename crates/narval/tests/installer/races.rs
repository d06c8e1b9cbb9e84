//! Installs beside real Nix, beside garbage collections, and beside each other in containers.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::lab::{Lab, leftovers};
use crate::support::stdout;
use crate::trouble::{PATIENCE, hesitant_at, hesitant_server};

fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Ends with the test, however that ends.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Running {
    fn start(command: &mut Command) -> Self {
        Self(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    }

    fn code(&mut self) -> Option<i32> {
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.0.try_wait().unwrap() {
                return status.code();
            }
            assert!(Instant::now() < until, "it does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn is_running(&mut self) -> bool {
        self.0.try_wait().unwrap().is_none()
    }
}

fn nix(lab: &Lab, program: &str, args: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(args).env_remove("NIX_REMOTE").env("HOME", lab.store.dir.path());
    command.env("NIX_CONFIG", "experimental-features = nix-command\nsubstitute = false\nbuild-users-group =");
    command
}

/// Whoever is inside of a path while Narval makes it valid: here Nix, which took the lock after Narval had unpacked the
/// path, has found it not valid, has begun to unpack it anew, and dies half way.
#[test]
fn a_path_that_nix_is_replacing_is_not_registered_half_done() {
    for program in ["nix", "nix-old"] {
        let lab = Lab::new();
        let root = lab.folder("mine");
        let (top_nar, tree_nar) = (lab.nar_of(&lab.top), lab.nar_of(&lab.tree));
        let (url, top_asked, top_goes_on) = hesitant_at(lab.cache(), move |target| target == top_nar);
        let mut install =
            Running::start(&mut lab.command(&["install", "--quiet", "--from", &url, "--store", &root, &lab.top]));
        top_asked.recv_timeout(PATIENCE).unwrap();
        let tree = format!("{root}{}", lab.tree);
        wait_until("Narval unpacks the tree", || std::fs::symlink_metadata(&tree).is_ok());
        let unpacked = std::fs::symlink_metadata(&tree).unwrap();

        let (nix_url, tree_asked, _never) = hesitant_at(lab.cache(), move |target| target == tree_nar);
        let copy = ["copy", "--no-check-sigs", "--from", &nix_url, "--to", &root, &lab.tree];
        let mut copying = Running::start(&mut nix(&lab, program, &copy));
        tree_asked.recv_timeout(PATIENCE).unwrap();
        wait_until("Nix removes what is there", || {
            std::fs::symlink_metadata(&tree).map_or(true, |found| {
                (found.ino(), found.ctime(), found.ctime_nsec())
                    != (unpacked.ino(), unpacked.ctime(), unpacked.ctime_nsec())
            })
        });
        top_goes_on.send(()).unwrap();
        // The NAR of the top arrives; what is left to do is to make both paths valid, and Nix has the lock of one.
        wait_until("the top is unpacked", || std::fs::symlink_metadata(format!("{root}{}", lab.top)).is_ok());
        assert!(install.is_running() && copying.is_running());
        copying.0.kill().unwrap();
        copying.0.wait().unwrap();
        assert_eq!(install.code(), Some(0), "{program}");
        lab.assert_accepted(&root, &[&lab.top, &lab.tree]);
    }
}

/// A collection in the middle of a download does not wait for its end, and takes nothing of it: not what is being
/// unpacked, nor what is complete and not valid yet, nor what is valid and not in the profile yet.
#[test]
fn garbage_collections_keep_what_is_being_installed() {
    let lab = Lab::new();
    for (number, collector) in ["narval", "nix-store", "nix-old-store"].into_iter().enumerate() {
        let (root, profile) = (lab.folder(&format!("mine{number}")), lab.folder(&format!("profile{number}")));
        let collect = || match collector {
            "narval" => lab.done(&["gc", "--store", &root]),
            nix_store => stdout(nix(&lab, nix_store, &["--store", &root, "--gc"]).output().unwrap()),
        };
        // Valid before, and kept by nothing but the install that needs it.
        lab.install(&root, &[&lab.tree]);
        let (url, was_asked, go_on) = hesitant_server(lab.cache());
        let args =
            ["install", "--quiet", "--from", &url, "--store", &root, "--profile", &profile, &lab.top, &lab.hello];
        let mut install = Running::start(&mut lab.command(&args));
        for _ in 0..2 {
            was_asked.recv_timeout(PATIENCE).unwrap();
        }
        collect();
        assert!(install.is_running());
        go_on.send(()).unwrap();
        wait_until("one of both is complete", || {
            [&lab.top, &lab.hello].iter().any(|path| std::fs::symlink_metadata(format!("{root}{path}")).is_ok())
        });
        collect();
        go_on.send(()).unwrap();
        assert_eq!(install.code(), Some(0), "{collector}");
        collect();
        lab.assert_accepted(&root, &[&lab.top, &lab.tree, &lab.hello]);
        // And the profile keeps it, nothing else.
        assert_eq!(std::fs::read_dir(format!("{root}/nix/var/nix/temproots")).unwrap().count(), 0);
        assert!(lab.done(&["gc", "--store", &root]).starts_with("removed 0 paths"));
    }
}

/// What an install found in the store, and did not fetch, is deleted by force meanwhile. The path that needs it does not
/// become valid, and the exit code says so.
#[test]
fn a_reference_that_is_gone_at_the_end_is_an_error() {
    let lab = Lab::new();
    let root = lab.folder("mine");
    lab.install(&root, &[&lab.tree]);
    let (url, was_asked, go_on) = hesitant_server(lab.cache());
    let args = ["install", "--quiet", "--from", &url, "--store", &root, &lab.top];
    let install = lab.command(&args).stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    was_asked.recv_timeout(PATIENCE).unwrap();
    let database = format!("{root}/nix/var/nix/db/db.sqlite");
    let connection = rusqlite::Connection::open(database).unwrap();
    connection.busy_timeout(PATIENCE).unwrap();
    assert_eq!(connection.execute("delete from ValidPaths where path = ?1", [&lab.tree]).unwrap(), 1);
    go_on.send(()).unwrap();
    let output = install.wait_with_output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(4), "{message}");
    assert!(message.contains(&format!("refers to {}", lab.tree.rsplit('/').next().unwrap())), "{message}");
    let nix_says = nix(&lab, "nix-store", &["--store", &root, "--check-validity", &lab.top]).output().unwrap();
    assert!(!nix_says.status.success());
    // The next run makes it good.
    lab.install(&root, &[&lab.top]);
    lab.assert_accepted(&root, &[&lab.top, &lab.tree]);
}

/// Real Nix and Narval make one store at the same moment: nobody is told that the database is locked. Only one Nix at once:
/// two of them read each other's half written `schema` ("is corrupt").
#[test]
fn nix_and_narval_create_one_store_at_once() {
    let lab = Lab::new();
    let url = lab.cache_url();
    for round in 0..12 {
        let root = lab.folder(&format!("made-{round}"));
        let install = ["install", "--quiet", "--from", &url, "--store", &root, &lab.top];
        let copy = ["copy", "--no-check-sigs", "--from", &url, "--to", &root, &lab.hello];
        let program = ["nix", "nix-old"][round % 2];
        let mut commands = [lab.command(&install), nix(&lab, program, &copy), lab.command(&install)];
        // Each of them is the first one in some rounds.
        commands.rotate_left(round % 3);
        let start =
            |command: &mut Command| command.stdin(Stdio::null()).stderr(Stdio::piped()).stdout(Stdio::piped()).spawn();
        for child in commands.each_mut().map(|command| start(command).unwrap()) {
            let output = child.wait_with_output().unwrap();
            let message = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.success(), "round {round}: {message}");
            assert!(!message.contains("is locked"), "round {round}: {message}");
        }
        lab.assert_accepted(&root, &[&lab.top, &lab.tree, &lab.hello]);
    }
}

/// Nix writes `schema` in place: a reader in between finds an empty file.
#[test]
fn a_schema_that_nix_is_still_writing_counts_as_missing() {
    let lab = Lab::new();
    let root = lab.folder("mine");
    assert!(nix(&lab, "nix-store", &["--store", &root, "--verify"]).output().unwrap().status.success());
    std::fs::write(format!("{root}/nix/var/nix/db/schema"), "").unwrap();
    lab.install(&root, &[&lab.top]);
    lab.assert_accepted(&root, &[&lab.top, &lab.tree]);
}

/// `narval` in a PID namespace of its own, where it is process 1 or 2; `None` where namespaces are refused.
fn contained(lab: &Lab, args: &[&str]) -> Option<Command> {
    let unshare = ["--user", "--map-root-user", "--pid", "--fork", "--kill-child"];
    let tried = Command::new("unshare").args(unshare).arg("true").output();
    if !tried.is_ok_and(|output| output.status.success()) {
        eprintln!("note: skipped: namespaces are refused here");
        return None;
    }
    let mut command = Command::new("unshare");
    command.args(unshare).arg(crate::support::NARVAL).args(args).env_clear();
    command.env("PATH", std::env::var_os("PATH").unwrap()).env("HOME", lab.store.dir.path());
    Some(command)
}

/// In two containers with one store, process ids do not tell the processes apart: both are process 1.
#[test]
fn containers_remove_only_leftovers_of_dead_processes() {
    let lab = Lab::new();
    let root = lab.folder("mine");
    let (url, was_asked, go_on) = hesitant_server(lab.cache());
    let first = ["install", "--quiet", "--from", &url, "--store", &root, &lab.tree];
    let Some(mut command) = contained(&lab, &first) else { return };
    let mut first = Running::start(&mut command);
    was_asked.recv_timeout(PATIENCE).unwrap();
    wait_until("the first one is unpacking", || leftovers(Path::new(&root)).len() == 1);
    let cache = lab.cache_url();
    let second = ["install", "--quiet", "--from", &cache, "--store", &root, &lab.hello];
    stdout(contained(&lab, &second).unwrap().output().unwrap());
    stdout(contained(&lab, &["gc", "--quiet", "--store", &root]).unwrap().output().unwrap());
    assert_eq!(leftovers(Path::new(&root)).len(), 1, "what a living process unpacks is its own");
    go_on.send(()).unwrap();
    assert_eq!(first.code(), Some(0));
    lab.assert_accepted(&root, &[&lab.tree]);

    // One that is killed leaves its names behind; the next one has the same number, and neither stumbles over them nor spares them.
    let root = lab.folder("other");
    let third = ["install", "--quiet", "--from", &url, "--store", &root, &lab.tree];
    let mut third = Running::start(&mut contained(&lab, &third).unwrap());
    was_asked.recv_timeout(PATIENCE).unwrap();
    wait_until("the third one is unpacking", || leftovers(Path::new(&root)).len() == 1);
    third.0.kill().unwrap();
    third.0.wait().unwrap();
    // `unshare` has killed its child, whose roots no longer count. Other processes then remove them.
    for path in [&lab.hello, &lab.tree] {
        let next = ["install", "--quiet", "--from", &cache, "--store", &root, path];
        wait_until("the child is gone", || {
            stdout(contained(&lab, &next).unwrap().output().unwrap());
            stdout(contained(&lab, &["gc", "--quiet", "--store", &root]).unwrap().output().unwrap());
            leftovers(Path::new(&root)).is_empty()
        });
    }
}
