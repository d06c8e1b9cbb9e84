//! Stores on disks that are full, mounted read-only, or hold what cannot be removed; and without a write-ahead log.

use std::path::Path;
use std::process::{Command, Output};

use crate::lab::Lab;
use crate::support::{NARVAL, Nix, stdout};
use crate::trouble::PATIENCE;

/// Whether this user may mount file systems in a namespace; otherwise says that the test is skipped.
pub(crate) fn may_mount() -> bool {
    let mounted = Command::new("unshare").args(["-m", "mount", "-t", "tmpfs", "none", "/mnt"]).output();
    let may = mounted.is_ok_and(|output| output.status.success());
    if !may {
        eprintln!("skipped: file systems cannot be mounted");
    }
    may
}

/// Runs a script in a mount namespace, with `$narval`, and `$S` as the store's root.
pub(crate) fn script(lab: &Lab, root: &str, text: &str) -> Output {
    // Not in the environment: a path there would be a root.
    let paths = [("hello", &lab.hello), ("top", &lab.top), ("tree", &lab.tree)];
    let paths: String = paths.iter().map(|(name, path)| format!("{name}={path}\n")).collect();
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-euc", &(paths + text)]).env("narval", NARVAL).env("S", root);
    command.env("HOME", lab.store.dir.path()).env("cache", lab.cache_url()).env_remove("NIX_REMOTE");
    command.env("NIX_CONFIG", "substitute = false\nbuild-users-group =");
    command.output().unwrap()
}

fn connection(root: &str) -> rusqlite::Connection {
    let connection = rusqlite::Connection::open(format!("{root}/nix/var/nix/db/db.sqlite")).unwrap();
    connection.busy_timeout(PATIENCE).unwrap();
    connection
}

fn rows(root: &str) -> u64 {
    connection(root).query_row("select count(*) from ValidPaths", (), |row| row.get::<_, i64>(0)).unwrap() as u64
}

/// On a file system without a free block, the reserved space lets the collection begin, in a store of either maker.
#[test]
fn a_collection_on_a_full_disk() {
    if !may_mount() {
        return;
    }
    let lab = Lab::new();
    let root = lab.folder("mine");
    std::fs::create_dir(&root).unwrap();
    let made_by = [
        "nix-store --store $S --add $HOME/many/* >/dev/null 2>&1",
        "nix-old-store --store $S --add $HOME/many/* >/dev/null 2>&1",
        "$narval copy --quiet --store $HOME/root --to $S $(cat $HOME/paths)",
    ];
    // So many that their rows alone need more than the reserve if the log is never written back.
    let many = Path::new(&lab.folder("many")).to_owned();
    std::fs::create_dir(&many).unwrap();
    for number in 0..600 {
        std::fs::write(many.join(format!("file-{number}")), format!("{number}")).unwrap();
    }
    let files: Vec<String> =
        std::fs::read_dir(&many).unwrap().map(|entry| entry.unwrap().path().to_str().unwrap().to_owned()).collect();
    let add: Vec<&str> = files.iter().map(String::as_str).collect();
    let paths = stdout(lab.store.nix_store(&[&["--add"], &add[..]].concat()));
    std::fs::write(lab.folder("paths"), paths).unwrap();
    for make in made_by {
        let output = script(
            &lab,
            &root,
            &format!(
                "mount -t tmpfs -o size=64m none $S
                 {make}
                 test -s $S/nix/var/nix/db/reserved
                 cat /dev/zero >$S/filler 2>/dev/null || :
                 ! echo x 2>/dev/null >>$S/filler
                 $narval verify --no-check-sigs --store $S
                 $narval gc --dry-run --store $S | tail -n 1
                 $narval gc --store $S
                 $narval gc --store $S
                 ls $S/nix/store"
            ),
        );
        let message = stdout(output);
        let lines: Vec<&str> = message.lines().collect();
        assert_eq!(lines.len(), 4, "{make}: {message}");
        assert_eq!(lines[0], "600 paths checked, 0 faulty, 0 repaired", "{make}");
        assert_eq!(lines[1].replace("would remove", "removed"), lines[2], "{make}");
        assert!(lines[2].starts_with("removed 600 paths (") && lines[3].starts_with("removed 0 paths"), "{message}");
    }
    // Without a reserve there may be no way; the advice is not the command that just failed.
    let output = script(
        &lab,
        &root,
        "mount -t tmpfs -o size=16m none $S
         $narval copy --quiet --no-check-sigs --store $HOME/root --to $S $hello
         rm -f $S/nix/var/nix/db/reserved
         cat /dev/zero >$S/filler 2>/dev/null || :
         $narval gc --store $S",
    );
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(6), "{message}");
    assert!(message.contains("run the same command again") && !message.contains("'narval gc'"), "{message}");
}

/// As on NixOS, `/nix/store` is mounted read-only: root remounts it for itself, as Nix does.
#[test]
fn a_store_that_is_mounted_read_only() {
    if !may_mount() {
        return;
    }
    let lab = Lab::new();
    for bound in ["nix/store", "nix"] {
        let root = lab.folder(&format!("mine-{}", bound.len()));
        lab.install(&root, &[&lab.hello]);
        let mount = format!("mount --bind $S/{bound} $S/{bound} && mount -o remount,ro,bind $S/{bound}");
        // The state must be writable.
        let state = if bound == "nix" { "mount --bind $S/state $S/nix/var" } else { ":" };
        std::fs::create_dir_all(format!("{root}/state")).unwrap();
        let output = script(
            &lab,
            &root,
            &format!(
                "cp -r $S/nix/var/. $S/state
                 {mount}; {state}
                 ! touch $S/nix/store/x 2>/dev/null
                 $narval gc --dry-run --store $S
                 $narval install --quiet --no-check-sigs --from $cache --store $S $top
                 $narval copy --quiet --no-check-sigs --from $cache --to $S $tree
                 $narval gc --store $S
                 ! touch $S/nix/store/x 2>/dev/null
                 ls -A $S/nix/store"
            ),
        );
        let message = stdout(output);
        assert!(message.contains("would remove 1 path ") && message.contains("removed 3 paths ("), "{message}");
        assert_eq!(message.lines().last(), Some(".links"), "{message}");
    }
    // A file system that cannot be written at all: the database stays as it is.
    let root = lab.folder("mine");
    let state = lab.folder("state");
    let uri = format!("local?real={root}&state={state}");
    std::fs::create_dir(&root).unwrap();
    let output = script(
        &lab,
        &root,
        &format!(
            "mount -t tmpfs none $S
             $narval install --quiet --no-check-sigs --from $cache --store '{uri}' $hello
             mount -o remount,ro $S
             for command in 'gc' 'install --from $cache $top'; do
                 eval $narval $command --no-check-sigs --store \"'{uri}'\" && exit 9 || test $? = 1
             done
             $narval gc --store '{uri}'"
        )
        .replace("'gc' 'install", "'install"),
    );
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert_eq!(message.matches("is read-only").count(), 2, "{message}");
    assert_eq!(message.matches("--store daemon").count(), 2, "{message}");
    let database = rusqlite::Connection::open(format!("{state}/db/db.sqlite")).unwrap();
    let rows: i64 = database.query_row("select count(*) from ValidPaths", (), |row| row.get(0)).unwrap();
    assert_eq!(rows, 1);
}

/// One file that cannot be removed does not keep the rest.
#[test]
fn a_file_that_cannot_be_removed() {
    if !may_mount() {
        return;
    }
    let lab = Lab::new();
    let root = lab.folder("mine");
    lab.install(&root, &[&lab.hello, &lab.top]);
    // A mount point can be neither renamed nor unlinked.
    let output = script(
        &lab,
        &root,
        "mount --bind /dev/null $S$hello/bin/hello
         for round in 1 2; do $narval gc --store $S && exit 9 || test $? = 1; done",
    );
    let (printed, message) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{message}");
    assert!(printed.starts_with("removed 2 paths ("), "{printed}");
    let line = format!("cannot remove '{root}{}/bin/hello': ", lab.hello);
    assert_eq!(message.matches(&line).count(), 2, "{message}");
    assert_eq!(message.matches("1 path that nothing needs is left").count(), 2, "{message}");
    assert_eq!(rows(&root), 0);
    assert!(lab.done(&["gc", "--store", &root]).starts_with("removed 0 paths and 1 leftover ("));
}

/// `use-sqlite-wal = false`: no command changes the journal of an existing database, a new one has none, and the lock
/// that Nix uses then is used.
#[test]
fn a_database_without_a_write_ahead_log() {
    const SETTING: &str = "use-sqlite-wal = false\nsubstitute = false\nbuild-users-group =";
    let lab = Lab::new();
    let home = lab.store.dir.path();
    let mode = |root: &str| {
        let connection = connection(root);
        connection.query_row("pragma journal_mode", (), |row| row.get::<_, String>(0)).unwrap()
    };
    let add = |nix: Nix, root: &str, contents: &str| {
        let file = lab.folder("added");
        std::fs::write(&file, contents).unwrap();
        let mut command = Command::new(nix.program("nix-store"));
        command.args(["--store", root, "--add", &file]).env("NIX_CONFIG", SETTING).env("HOME", home);
        stdout(command.env_remove("NIX_REMOTE").output().unwrap())
    };
    let cache = lab.cache_url();
    for nix in Nix::BOTH {
        let root = lab.folder(&format!("by-{nix:?}"));
        add(nix, &root, "first");
        let commands: [&[&str]; 6] = [
            &["gc", "--dry-run", "--store", &root],
            &["install", "--quiet", "--from", &cache, "--store", &root, &lab.top],
            &["copy", "--quiet", "--from", &cache, "--to", &root, &lab.hello],
            &["verify", "--repair", "--no-check-sigs", "--from", &cache, "--store", &root],
            &["gc", "--store", &root],
            &["gc", "--store", &root],
        ];
        for (number, command) in commands.into_iter().enumerate() {
            for setting in [None, Some("use-sqlite-wal = false")] {
                let damaged = format!("{root}{}/bin/hello", lab.hello);
                if command[0] == "verify" {
                    // So that there is something to repair.
                    use std::os::unix::fs::PermissionsExt;
                    std::fs::set_permissions(&damaged, PermissionsExt::from_mode(0o755)).unwrap();
                    std::fs::write(&damaged, "damaged").unwrap();
                }
                let output = lab.command(command).envs(setting.map(|setting| ("NIX_CONFIG", setting))).output();
                stdout(output.unwrap());
                assert_eq!(mode(&root), "delete", "{nix:?} {command:?} {setting:?}");
                add(nix, &root, &format!("{number} {setting:?}"));
            }
        }
        // A Nix with the setting, in the middle of a transaction.
        let lock = format!("{root}/nix/var/nix/db/db.sqlite.lock");
        std::fs::create_dir(&lock).unwrap();
        let message = lab.fails(7, &["gc", "--lock-timeout", "1", "--store", &root]);
        assert!(message.contains("db.sqlite.lock"), "{message}");
        std::fs::remove_dir(&lock).unwrap();
    }
    // A new store.
    let root = lab.folder("new");
    let install = ["install", "--quiet", "--from", &cache, "--store", &root, &lab.hello];
    stdout(lab.command(&install).env("NIX_CONFIG", SETTING).output().unwrap());
    assert_eq!(mode(&root), "delete");
    add(Nix::Newest, &root, "first");
    // A log that the setting excludes is neither used nor removed.
    let root = lab.folder("with-log");
    lab.install(&root, &[&lab.hello]);
    let gc = ["gc", "--store", &root];
    let refused = lab.command(&gc).env("NIX_CONFIG", SETTING).output().unwrap();
    let message = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(1) && message.contains("use-sqlite-wal"), "{message}");
    assert_eq!(mode(&root), "wal");
}
