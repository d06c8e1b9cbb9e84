//! `narval token`, `pin` and `cache` beside a server, which notices what they do at once.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::{Command, Output};

use crate::lab::Lab;
use crate::support::{NARVAL, Nix, hash_part};

fn run(lab: &Lab, args: &[&str]) -> Output {
    let data = lab.data_path();
    Command::new(NARVAL).args(args).args(["--data", data.to_str().unwrap()]).output().unwrap()
}

/// What a command prints, which succeeds.
fn narval(lab: &Lab, args: &[&str]) -> String {
    let output = run(lab, args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn fails(lab: &Lab, args: &[&str]) -> String {
    let output = run(lab, args);
    assert!(!output.status.success(), "{args:?}");
    String::from_utf8(output.stderr).unwrap()
}

fn base(path: &str) -> &str {
    path.rsplit('/').next().unwrap()
}

#[test]
fn tokens() {
    let lab = Lab::new();
    let path = lab.store.add_tree("tree");
    let token = narval(&lab, &["token", "create", "--pull", "--push", "ci"]);
    let id = token.split('_').nth(1).unwrap();
    lab.push(Nix::Newest, token.trim(), "compression=none", &path).unwrap();
    let listed = narval(&lab, &["token", "list"]);
    assert!(
        listed.contains(&format!("{id}  ci  pull,push  default  valid")) && !listed.contains(token.trim()),
        "{listed}"
    );
    narval(&lab, &["token", "revoke", id]);
    assert!(narval(&lab, &["token", "list"]).contains("revoked just now"));
    assert_eq!(lab.put("/nix-cache-info", token.trim(), b"").status, 401);
    assert!(fails(&lab, &["token", "revoke", "nothing"]).contains("there is no token"));
    assert!(fails(&lab, &["token", "create", "ci"]).contains("would allow nothing"));
    assert!(fails(&lab, &["token", "create", "--push", "--expires", "soon", "ci"]).contains("such as '90s'"));
}

/// The folder is that of the server's configuration file, unless it is named.
#[test]
fn the_data_folder_is_that_of_the_configuration() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("narval.toml");
    std::fs::write(&file, "data = 'kept/here'\n").unwrap();
    let list = |args: &[&str], env: &[(&str, &str)]| {
        let mut command = Command::new(NARVAL);
        command.env_remove("NARVAL_DATA").env_remove("NARVAL_CONFIG").args(["token", "list"]).args(args);
        let output = command.envs(env.iter().copied()).output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (output.status.code(), text(output.stdout), text(output.stderr))
    };
    let config = file.to_str().unwrap();
    let create = Command::new(NARVAL).args(["token", "create", "--push", "of-the-file", "--config", config]).output();
    assert!(create.unwrap().status.success());
    assert!(folder.path().join("kept/here/index.sqlite").exists());
    for message in [list(&["--config", config], &[]), list(&[], &[("NARVAL_CONFIG", config)])] {
        assert!(message.0 == Some(0) && message.1.contains("of-the-file"), "{message:?}");
    }
    let other = folder.path().join("other");
    for message in [
        list(&["--config", config, "--data", other.to_str().unwrap()], &[]),
        list(&["--config", config], &[("NARVAL_DATA", other.to_str().unwrap())]),
    ] {
        assert!(message.0 == Some(2) && message.2.contains("other"), "{message:?}");
    }
    std::fs::write(&file, "dat = 'x'\n").unwrap();
    let message = list(&["--config", config], &[]);
    assert!(message.0 == Some(2) && message.2.contains("narval.toml:1: unknown key 'dat'"), "{message:?}");
}

#[test]
fn pins_and_the_cache() {
    let lab = Lab::new();
    let token = lab.token("push");
    let path = lab.store.add_tree("tree");
    lab.push(Nix::Newest, &token, "compression=zstd", &path).unwrap();
    let narinfo = format!("/{}.narinfo", hash_part(&path));
    assert_eq!(lab.get(&narinfo).status, 200);
    assert!(narval(&lab, &["cache", "list"]).starts_with(base(&path)));
    assert!(narval(&lab, &["cache", "stats"]).starts_with("default: 1 path, 1 NAR"));
    assert!(narval(&lab, &["cache", "why", &path]).contains("pushed or requested just now"));
    narval(&lab, &["pin", "add", "release", &path, "--keep", "3"]);
    assert!(narval(&lab, &["cache", "why", &path]).starts_with("pin 'release'"));
    let pins = narval(&lab, &["pin", "list"]);
    assert!(pins.contains(base(&path)) && pins.contains("keeps 3"), "{pins}");
    assert!(narval(&lab, &["cache", "export"]).contains("\"release\""));
    narval(&lab, &["pin", "remove", "release"]);
    assert!(fails(&lab, &["pin", "remove", "release"]).contains("there is no pin 'release'"));
    assert_eq!(narval(&lab, &["cache", "gc", "--dry-run"]), "");
    narval(&lab, &["cache", "fsck", "--contents"]);
    // The server has its narinfo in memory, and forgets it when the command has ended.
    assert_eq!(lab.get(&narinfo).status, 200);
    narval(&lab, &["cache", "delete", &path]);
    assert_eq!(lab.get(&narinfo).status, 404);
    assert!(fails(&lab, &["cache", "delete", &path]).contains("is not in the cache"));
    assert!(fails(&lab, &["cache", "why", "nonsense"]).contains("nonsense"));
    assert!(fails(&lab, &["cache", "list", "--cache", "other"]).contains("there is no cache 'other'"));
}

/// What is used is kept, from the server's memory, too.
#[test]
fn cachix_338_uses_are_counted_by_a_server() {
    let lab = Lab::new();
    let token = lab.token("push");
    let path = lab.store.add_tree("tree");
    lab.push(Nix::Newest, &token, "compression=none", &path).unwrap();
    let narinfo = format!("/{}.narinfo", hash_part(&path));
    // Into memory.
    assert_eq!(lab.get(&narinfo).status, 200);
    std::thread::sleep(std::time::Duration::from_secs(11));
    let database = rusqlite::Connection::open(lab.data_path().join("index.sqlite")).unwrap();
    database.busy_timeout(std::time::Duration::from_secs(10)).unwrap();
    database.execute("update paths set used = 1000", []).unwrap();
    assert!(narval(&lab, &["cache", "gc", "--dry-run"]).contains(base(&path)));
    // Within the minute of the push, that is the use that was noted.
    for _ in 0..180 {
        assert_eq!(lab.get(&narinfo).status, 200);
        std::thread::sleep(std::time::Duration::from_millis(500));
        if narval(&lab, &["cache", "gc", "--dry-run"]).is_empty() {
            return;
        }
    }
    panic!("the use was not recorded");
}

/// Nix pushes nothing that is here, so it must not be collected a second later.
#[test]
fn what_nix_copy_has_found_is_not_collected_by_another_process() {
    let mut lab = Lab::new();
    let token = lab.token("push");
    let path = lab.store.add_tree("tree");
    let narinfo = format!("/{}.narinfo", hash_part(&path));
    lab.push(Nix::Newest, &token, "compression=none", &path).unwrap();
    let data = lab.data_path();
    let used = |days: i64| {
        let database = rusqlite::Connection::open(data.join("index.sqlite")).unwrap();
        database.busy_timeout(std::time::Duration::from_secs(10)).unwrap();
        database.execute("update paths set used = unixepoch() - ? * 86400", [days]).unwrap();
    };
    // What it knows of the push is recorded before.
    lab.restart("-TERM");
    used(100);
    lab.push(Nix::Newest, &token, "compression=none", &path).unwrap();
    assert_eq!(narval(&lab, &["cache", "gc"]), "");
    assert_eq!(lab.get(&narinfo).status, 200);
    // The same if it is in the server's memory, and the server is killed at once.
    lab.restart("-KILL");
    assert_eq!(narval(&lab, &["cache", "gc"]), "");
    assert_eq!(lab.get(&narinfo).status, 200);
    // Without being asked for.
    lab.restart("-TERM");
    used(100);
    assert!(narval(&lab, &["cache", "gc"]).contains(base(&path)));
}

#[test]
fn without_a_data_folder() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("none");
    for args in [
        &["token", "list"][..],
        &["pin", "list"],
        &["cache", "stats"],
        &["cache", "fsck"],
        &["cache", "fsck", "--rebuild"],
    ] {
        let output = Command::new(NARVAL).args(args).arg("--data").arg(&data).output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.starts_with("narval: ") && error.lines().count() == 1 && error.contains("none"), "{error}");
    }
    assert!(!data.exists());
}

/// As with systemd's `StateDirectory=`: the folder belongs to the server's user, and root makes the first token in it.
#[test]
fn files_that_root_makes_in_another_users_folder_belong_to_that_user() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("note: skipped: only root can act for others");
        return;
    }
    const OWNER: u32 = 12345;
    let folder = tempfile::tempdir().unwrap();
    std::os::unix::fs::chown(folder.path(), Some(OWNER), Some(OWNER)).unwrap();
    // Somebody who could not even reach it by themselves.
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o700)).unwrap();
    let create = Command::new(NARVAL).args(["token", "create", "--push", "ci", "--data"]).arg(folder.path()).output();
    let output = create.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let (mut folders, mut seen) = (vec![folder.path().to_owned()], 0);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
            let meta = entry.metadata().unwrap();
            assert_eq!((meta.uid(), meta.gid()), (OWNER, OWNER), "{:?}", entry.path());
            seen += 1;
            if meta.is_dir() {
                folders.push(entry.path());
            }
        }
    }
    assert!(seen > 3, "{seen}");
}

/// The same commands at a URL, with a token: the same output.
#[test]
fn pins_deletions_and_figures_from_elsewhere() {
    let lab = Lab::new();
    let [app, lib] = [lab.store.add_file("app-1.0", "app"), lab.store.add_file("lib-2.1", "lib")];
    let push = lab.token("push");
    for path in [&app, &lib] {
        lab.push(Nix::Newest, &push, "compression=none", path).unwrap();
    }
    let with = |token: &str, args: &[&str]| {
        let file = lab.store.path("token");
        std::fs::write(&file, token).unwrap();
        let mut command = Command::new(NARVAL);
        command.args(args).args(["--at", &lab.server.url(), "--token-file", file.to_str().unwrap()]);
        command.env("HOME", lab.store.dir.path()).output().unwrap()
    };
    let admin = lab.token("pull,pin,delete,admin");
    let there = |args: &[&str]| {
        let output = with(&admin, args);
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{args:?}: {message}");
        String::from_utf8(output.stdout).unwrap() + &message
    };
    // A name that one path has is enough.
    let added = there(&["pin", "add", "release 1.0", "app", "--keep", "3", "--for", "30d"]);
    assert_eq!(added, format!("release 1.0  {}\n", base(&app)));
    narval(&lab, &["pin", "add", "local", "lib-2.1"]);
    let pins = there(&["pin", "list"]);
    assert!(pins.contains("release 1.0") && pins.contains(", keeps 3, ends in "), "{pins}");
    // The time left is rounded, and less a moment later.
    let until =
        |pins: &str| pins.lines().map(|line| line.split(", ends").next().unwrap().to_owned()).collect::<Vec<_>>();
    assert_eq!(until(&pins), until(&narval(&lab, &["pin", "list"])));
    there(&["pin", "remove", "release 1.0", "app"]);
    let absent = with(&admin, &["pin", "remove", "release 1.0"]);
    assert_eq!(absent.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&absent.stderr).contains("there is no pin 'release 1.0'"));
    assert_eq!(there(&["cache", "stats"]), narval(&lab, &["cache", "stats"]));
    assert_eq!(there(&["cache", "stats", "--json"]), narval(&lab, &["cache", "stats", "--json"]));
    let refused = with(&lab.token("pull,pin"), &["cache", "delete", "app"]);
    assert_eq!(refused.status.code(), Some(5), "{}", String::from_utf8_lossy(&refused.stderr));
    let deleted = there(&["cache", "delete", "app"]);
    assert!(deleted.starts_with("deleted 1 path and 1 NAR ("), "{deleted}");
    assert_eq!(lab.get(&format!("/{}.narinfo", hash_part(&app))).status, 404);
}

#[test]
fn a_name_of_several_paths_lists_them() {
    let lab = Lab::new();
    let paths = ["glibc-2.39", "glibc-2.40", "glibc-2.40-dev"].map(|name| lab.store.add_file(name, name));
    let push = lab.token("push");
    for path in &paths {
        lab.push(Nix::Newest, &push, "compression=none", path).unwrap();
    }
    let output = run(&lab, &["cache", "why", "glibc"]);
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{message}");
    assert!(message.contains("'glibc' is the name of 2 paths"), "{message}");
    let at = |path: &str| message.find(base(path)).unwrap_or(usize::MAX);
    assert!(at(&paths[1]) < at(&paths[0]) && at(&paths[0]) < usize::MAX && at(&paths[2]) == usize::MAX, "{message}");
    assert!(narval(&lab, &["cache", "why", "glibc-2.40"]).contains(base(&paths[1])));
    assert!(narval(&lab, &["cache", "why", "glibc-2.40-dev"]).contains(base(&paths[2])));
    assert!(fails(&lab, &["cache", "why", "nothing"]).contains("'nothing'"));
    narval(&lab, &["cache", "delete", "glibc-2.39"]);
    narval(&lab, &["pin", "add", "libc", "glibc"]);
}
