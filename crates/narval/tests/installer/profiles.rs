//! Profiles: several processes at once, processes that are killed, disks that are full.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::lab::{Lab, add_program};
use crate::support::{NARVAL, hash_part, stdout};

/// System calls that change what is on the disk, or wait for a lock.
const CHANGES: [&str; 12] = [
    "mkdir",
    "mkdirat",
    "symlink",
    "symlinkat",
    "rename",
    "renameat",
    "renameat2",
    "unlink",
    "unlinkat",
    "rmdir",
    "flock",
    "write",
];

/// More than a command makes.
const STEPS_MAX: usize = 2000;

/// A lab with two programs beside `hello` in its cache.
fn lab() -> (Lab, String, String) {
    let lab = Lab::new();
    let newer = add_program(&lab.store, "hello-2.0", "hello", "echo newer");
    let other = add_program(&lab.store, "other-1.0", "other", "echo other");
    lab.done(&["copy", "--store", &lab.store.uri(), "--to", &lab.cache_url(), &newer, &other]);
    (lab, newer, other)
}

fn programs(profile: &str) -> Vec<String> {
    let Ok(entries) = fs::read_dir(Path::new(profile).join("bin")) else { return Vec::new() };
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    for name in &names {
        assert!(fs::read(Path::new(profile).join("bin").join(name)).is_ok(), "{profile}: {name} leads nowhere");
    }
    names
}

fn temporary_names(folder: &str) -> Vec<String> {
    let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.contains(".tmp-")).collect()
}

#[test]
fn packages_are_removed_from_a_profile() {
    let (lab, newer, other) = lab();
    let (root, profile) = (lab.folder("mine"), lab.folder("profile"));
    let remove = |names: &[&str]| {
        let args = ["remove", "--store", &root, "--profile", &profile].into_iter().chain(names.iter().copied());
        args.map(str::to_owned).collect::<Vec<_>>()
    };
    let fails = |code, names: &[&str]| {
        let args = remove(names);
        lab.fails(code, &args.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let done = |names: &[&str]| {
        let args = remove(names);
        lab.done(&args.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let message = fails(2, &["hello"]);
    assert!(message.contains("there is no profile"), "{message}");
    assert!(!Path::new(&format!("{profile}.lock")).exists());
    lab.install(&root, &["--profile", &profile, &newer, &other, &lab.top]);
    assert_eq!(programs(&profile), ["hello", "other"]);
    for wrong in ["git", "hello-1.0", "hell", &lab.hello] {
        let message = fails(3, &["other", wrong]);
        let has = ["hello-2.0", "other-1.0", "top", wrong];
        assert!(has.iter().all(|name| message.contains(name)) && message.lines().count() == 1, "{message}");
    }
    assert_eq!(programs(&profile), ["hello", "other"]);
    let printed = done(&["hello", "--json"]);
    let printed: serde_json::Value = serde_json::from_str(&printed).unwrap();
    assert_eq!((printed["v"].as_u64(), printed["generation"].as_u64()), (Some(1), Some(2)), "{printed}");
    assert_eq!(printed["removed"], serde_json::json!([newer.rsplit('/').next().unwrap()]));
    assert_eq!(printed["paths"].as_array().unwrap().len(), 2, "{printed}");
    assert_eq!(programs(&profile), ["other"]);
    // A path of a generation before is kept as long as there is that generation.
    assert!(lab.done(&["gc", "--store", &root]).starts_with("removed 0 paths"));
    let shown = lab.done(&["rollback", "--profile", &profile]);
    assert!(shown.ends_with("shows generation 1"), "{shown}");
    assert_eq!(programs(&profile), ["hello", "other"]);
    let message = lab.fails(2, &["rollback", "--profile", &profile]);
    assert!(message.contains("there is nothing before generation 1"), "{message}");
    // By version, whole path and hash part; then nothing is left, and that is a generation, too.
    let printed = done(&["hello-2.0", &other, hash_part(&lab.top)]);
    assert!(printed.ends_with("shows generation 3"), "{printed}");
    assert!(programs(&profile).is_empty());
    lab.done(&["rollback", "--profile", &profile, "--to", "1"]);
    lab.done(&["rollback", "--profile", &profile, "--to", "3"]);
    assert!(lab.done(&["gc", "--keep", "0", "--store", &root]).starts_with("removed 4 paths"));
    // Of another store: nothing is lost in silence.
    lab.install(&root, &["--profile", &profile, &other]);
    let elsewhere = lab.folder("elsewhere");
    let args = ["install", "--quiet", "--from", &lab.cache_url(), "--store", &elsewhere, "--profile", &profile, &newer];
    let message = lab.fails(2, &args);
    assert!(message.contains("--store") && message.contains("other-1.0"), "{message}");
    assert_eq!(programs(&profile), ["other"]);
}

/// Version 0.1.0 had no manifest: only the links that are the roots, and the priorities that are not the default.
#[test]
fn a_profile_of_an_earlier_version_is_read_and_changed() {
    let (lab, newer, other) = lab();
    let (root, profile) = (lab.folder("mine"), lab.folder("profile"));
    lab.install(&root, &["--profile", &profile, &lab.hello, &other]);
    let generation = format!("{profile}-1-link");
    fs::remove_file(format!("{generation}/manifest.json")).unwrap();
    let name = lab.hello.rsplit('/').next().unwrap();
    fs::write(format!("{generation}/.narval-priorities"), format!("3 {name}\n")).unwrap();
    let listed = lab.done(&["list", "--profile", &profile, "--json"]);
    let elements: Vec<serde_json::Value> = listed.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let shown: Vec<_> = elements[..2].iter().map(|one| (one["name"].as_str(), one["priority"].as_i64())).collect();
    assert_eq!(shown, [(Some("hello"), Some(3)), (Some("other"), Some(5))], "{listed}");
    lab.install(&root, &["--profile", &profile, &newer]);
    let listed = lab.done(&["list", "--profile", &profile, "--json"]);
    assert!(listed.contains("hello-2.0") && listed.contains("\"priority\":3"), "{listed}");
    lab.done(&["rollback", "--profile", &profile]);
    assert_eq!(programs(&profile), ["hello", "other"]);
}

#[test]
fn rollback_refuses_an_incomplete_generation() {
    let (lab, newer, _) = lab();
    let (root, profile) = (lab.folder("mine"), lab.folder("profile"));
    lab.install(&root, &["--profile", &profile, &lab.hello]);
    // What earlier versions left when they were killed, what this one leaves, and what was never a generation.
    fs::create_dir_all(format!("{profile}-2-link/.narval-roots")).unwrap();
    fs::create_dir_all(format!("{profile}-3-link/.narval-roots")).unwrap();
    for name in [".narval-unfinished", ".narval-roots/00bgd045z0d4icpbc2yyz4gx48ak44la-a"] {
        fs::write(format!("{profile}-3-link/{name}"), "").unwrap();
    }
    fs::create_dir(format!("{profile}-4-link")).unwrap();
    for number in ["2", "3", "4"] {
        let message = lab.fails(2, &["rollback", "--profile", &profile, "--to", number]);
        assert!(
            message.contains("is incomplete") && message.contains("it has [1], and the current one is 1"),
            "{message}"
        );
    }
    lab.install(&root, &["--profile", &profile, &newer]);
    let shown = lab.done(&["rollback", "--profile", &profile]);
    assert!(shown.ends_with("shows generation 1"), "{shown}");
    assert_eq!(programs(&profile), ["hello"]);
    // A profile that is not ours is left unchanged.
    let foreign = lab.folder("foreign");
    std::os::unix::fs::symlink("foreign-1-link", &foreign).unwrap();
    std::os::unix::fs::symlink(&root, format!("{foreign}-1-link")).unwrap();
    let args = ["install", "--quiet", "--from", &lab.cache_url(), "--store", &root, "--profile", &foreign, &newer];
    let message = lab.fails(2, &args);
    assert!(message.contains("not a complete generation"), "{message}");
    assert_eq!(fs::read_link(&foreign).unwrap(), Path::new("foreign-1-link"));
}

/// What `strace` needs to kill a process at the `step`th call of one kind.
fn killing(call: &str, step: usize) -> [String; 9] {
    let (trace, inject) = (format!("trace=?{call}"), format!("inject=?{call}:signal=KILL:when={step}"));
    ["strace", "-f", "-qq", "-o", "/dev/null", "-e", &trace, "-e", &inject].map(str::to_owned)
}

/// Each command that changes a profile is killed before each of its changes. The profile works, every generation that
/// `rollback` takes is whole and keeps its paths, and what was left behind goes with the next change.
#[test]
fn a_kill_at_any_step_leaves_whole_generations() {
    let tried = killing("flock", STEPS_MAX);
    if !Command::new(&tried[0]).args(&tried[1..]).arg("true").output().is_ok_and(|output| output.status.success()) {
        eprintln!("note: skipped: no strace here, or it may not trace");
        return;
    }
    let (lab, newer, other) = lab();
    let url = lab.cache_url();
    // Side by side, each in a store of its own: much of the time is waiting for a disk or a tracer.
    std::thread::scope(|scope| {
        for command in ["install", "remove", "rollback", "gc"] {
            let (lab, newer, other, url) = (&lab, &newer, &other, &url);
            scope.spawn(move || {
                let root = lab.folder(&format!("mine-{command}"));
                lab.install(&root, &[newer, other]);
                let arguments: &[&str] = match command {
                    "install" => &["install", "--quiet", "--from", url, "--store", &root, "--profile", "P", newer],
                    "remove" => &["remove", "--store", &root, "--profile", "P", "other"],
                    "rollback" => &["rollback", "--profile", "P"],
                    _ => &["gc", "--keep", "1", "--store", &root],
                };
                kill_at_every_step(lab, &root, [newer, other], arguments);
            });
        }
    });
}

/// One of these commands, with `P` for the profile.
fn kill_at_every_step(lab: &Lab, root: &str, [newer, other]: [&str; 2], command: &[&str]) {
    let (before, fewer): (&[&str], &[&str]) = (&["hello", "other"], &["hello"]);
    let mut kills = 0;
    for call in CHANGES {
        for step in 1.. {
            assert!(step < STEPS_MAX, "{command:?} never ends");
            let what = format!("{command:?}, {call} {step}");
            let folder = lab.folder(&format!("{}-{call}-{step}", command[0]));
            fs::create_dir(&folder).unwrap();
            let profile = format!("{folder}/profile");
            lab.install(root, &["--profile", &profile, &lab.hello]);
            lab.install(root, &["--profile", &profile, other]);
            // Only this one is the store's to prune.
            fs::write(format!("{root}/nix/var/nix/narval-profiles"), format!("{profile}\n")).unwrap();
            let strace = killing(call, step);
            let plain = lab.command(&[]);
            let mut traced = Command::new(&strace[0]);
            traced.args(&strace[1..]).arg(plain.get_program());
            traced.args(command.iter().map(|arg| if *arg == "P" { &profile } else { *arg }));
            traced.env_clear().envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
            let output = traced.stdin(Stdio::null()).output().unwrap();
            let was_killed = output.status.signal() == Some(9);
            assert!(was_killed || output.status.success(), "{what}: {output:?}");

            let found = programs(&profile);
            let is_changed = found == fewer && ["remove", "rollback"].contains(&command[0]);
            assert!(found == before || is_changed, "{what}: {found:?}");
            // All that rollback takes has all that belongs to it, also after a collection.
            lab.done(&["gc", "--store", root]);
            let shown = fs::read_link(&profile).unwrap();
            for number in ["1", "2", "3", "4"] {
                if lab.run(&["rollback", "--profile", &profile, "--to", number]).status.success() {
                    let has_fewer = number == "1" || (command[0], number) == ("remove", "3");
                    let expected = if has_fewer { fewer } else { before };
                    assert_eq!(programs(&profile), expected, "{what}, generation {number}");
                }
            }
            let shown = shown.to_str().unwrap().strip_prefix("profile-").unwrap().strip_suffix("-link").unwrap();
            lab.done(&["rollback", "--profile", &profile, "--to", shown]);
            // The next change works and clears up.
            lab.install(root, &["--profile", &profile, newer, other]);
            lab.done(&["remove", "--store", root, "--profile", &profile, "other"]);
            assert_eq!(programs(&profile), fewer, "{what}");
            assert_eq!(temporary_names(&folder), Vec::<String>::new(), "{what}");
            for entry in fs::read_dir(&folder).unwrap() {
                let path = entry.unwrap().path();
                assert!(!path.join(".narval-unfinished").exists(), "{what}: {}", path.display());
            }
            fs::remove_dir_all(&folder).unwrap();
            if !was_killed {
                break;
            }
            kills += 1;
        }
    }
    assert!(kills > 3, "{command:?}: killed {kills} times");
}

#[test]
fn every_change_of_a_profile_waits_for_its_lock() {
    let (lab, newer, other) = lab();
    let (root, profile, url) = (lab.folder("mine"), lab.folder("profile"), lab.cache_url());
    lab.install(&root, &["--profile", &profile, &lab.hello]);
    lab.install(&root, &["--profile", &profile, &other]);
    let commands: [&[&str]; 4] = [
        &["gc", "--keep", "0", "--store", &root],
        &["remove", "--store", &root, "--profile", &profile, "other"],
        &["rollback", "--profile", &profile],
        &["install", "--quiet", "--from", &url, "--store", &root, "--profile", &profile, &newer],
    ];
    for command in commands {
        let lock = fs::File::options().read(true).open(format!("{profile}.lock")).unwrap();
        lock.lock().unwrap();
        let before = fs::read_link(&profile).unwrap();
        let message = lab.fails(7, &[command, &["--lock-timeout", "0"]].concat());
        assert!(message.contains("locked by another process") && message.contains("profile.lock"), "{message}");
        assert_eq!(fs::read_link(&profile).unwrap(), before);
        assert!(Path::new(&format!("{profile}-2-link")).exists());
        // It waits, and continues when the lock is released.
        let waiting = lab.command(command).stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
        drop(lock);
        stdout(waiting.wait_with_output().unwrap());
    }
    assert_eq!(programs(&profile), ["hello", "other"]);
}

#[test]
fn concurrent_changes_of_a_profile_all_take_effect() {
    let lab = Lab::new();
    let names = ["a-1", "b-1", "c-1", "d-1"];
    let paths = names.map(|name| add_program(&lab.store, name, &name[..1], "true"));
    let all: Vec<&str> = paths.iter().map(String::as_str).collect();
    lab.done(&[&["copy", "--store", &lab.store.uri(), "--to", &lab.cache_url()], &all[..]].concat());
    let (root, profile, url) = (lab.folder("mine"), lab.folder("profile"), lab.cache_url());
    for round in 0..3 {
        lab.install(&root, &["--profile", &profile, paths[0].as_str(), paths[1].as_str()]);
        let own = lab.folder(&format!("own-{round}"));
        let commands: [&[&str]; 6] = [
            &["install", "--quiet", "--from", &url, "--store", &root, "--profile", &profile, &paths[2]],
            &["remove", "--quiet", "--store", &root, "--profile", &profile, "a"],
            &["gc", "--keep", "0", "--store", &root],
            &["install", "--quiet", "--from", &url, "--store", &root, "--profile", &profile, &paths[3]],
            &["remove", "--quiet", "--store", &root, "--profile", &profile, "b"],
            &["install", "--quiet", "--from", &url, "--store", &root, "--profile", &own, &paths[2]],
        ];
        let start = |args: &&[&str]| {
            lab.command(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        };
        for child in commands.iter().map(start).collect::<Vec<_>>() {
            stdout(child.wait_with_output().unwrap());
        }
        assert_eq!(programs(&profile), ["c", "d"]);
        assert_eq!(programs(&own), ["c"]);
        // Both are recorded, whichever came first.
        let listed = lab.done(&["profiles", "--store", &root]);
        assert!(listed.contains(&own) && listed.contains(&profile), "{listed}");
        lab.done(&["remove", "--quiet", "--store", &root, "--profile", &profile, "c", "d"]);
    }
}

#[test]
fn a_full_or_broken_disk_is_not_a_usage_error() {
    let (lab, newer, _) = lab();
    let (root, mount) = (lab.folder("mine"), lab.folder("small"));
    lab.install(&root, &[&lab.hello, &newer]);
    // Something else than a folder where the profile's folder is to be made, or where its list is.
    fs::write(lab.folder("file"), "").unwrap();
    let (url, below_file) = (lab.cache_url(), lab.folder("file/profile"));
    let install = ["install", "--quiet", "--from", &url, "--store", &root, &newer, "--profile"];
    let message = lab.fails(1, &[&install[..], &[&below_file]].concat());
    assert!(message.contains("file") && message.lines().count() == 1, "{message}");
    fs::create_dir(format!("{root}/nix/var/nix/narval-profiles")).unwrap();
    lab.fails(1, &[&install[..], &[&lab.folder("profile")]].concat());
    fs::remove_dir(format!("{root}/nix/var/nix/narval-profiles")).unwrap();
    fs::create_dir(&mount).unwrap();
    // A disk with room for one generation and not for two, by its number of files.
    let script = r#"
        mount -t tmpfs -o size=1m,nr_inodes=16 small "$mount" || exit 99
        "$narval" install --quiet --from "$url" --store "$root" --profile "$mount/p" "$hello" || exit 98
        i=0; while (: >"$mount/filler-$i") 2>/dev/null; do i=$((i+1)); done
        "$@"; code=$?
        [ "$(readlink "$mount/p")" = p-1-link ] && cat "$mount/p/bin/hello" >/dev/null || exit 97
        ls -A "$mount" | grep -e .tmp- -e p-2-link && exit 96
        rm "$mount"/filler-*
        "$@" || exit 95
        exit $code"#;
    let profile = format!("{mount}/p");
    let commands: [&[&str]; 2] = [
        &["install", "--quiet", "--from", &url, "--store", &root, "--profile", &profile, &newer],
        &["remove", "--quiet", "--store", &root, "--profile", &profile, "hello"],
    ];
    for args in commands {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--mount", "sh", "-c", script, "sh", NARVAL]).args(args);
        command.env("mount", &mount).env("narval", NARVAL).env("url", &url).env("root", &root).env("hello", &lab.hello);
        command.env_remove("NIX_REMOTE").env("HOME", lab.store.dir.path()).stdin(Stdio::null());
        let output = command.output().unwrap();
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.code() == Some(99) || message.contains("unshare:") {
            eprintln!("note: skipped: namespaces are refused here");
            return;
        }
        assert_eq!(output.status.code(), Some(6), "{args:?}: {message}");
        assert!(message.contains("make room"), "{message}");
    }
}

/// The outputs of a package are in a profile side by side, in whatever order they come; what is replaced is said.
#[test]
fn outputs_coexist_and_replaced_versions_are_printed() {
    let lab = Lab::new();
    let add = |name: &str, program: &str| add_program(&lab.store, name, program, "true");
    let outputs = [add("git-2.47.0", "git"), add("git-2.47.0-doc", "git-doc"), add("git-2.47.0-man", "git-man")];
    let (newer, gtk2, gtk3) = (add("git-2.48.0", "git"), add("gtk+-2.24.33", "gtk"), add("gtk+-3.24.1", "gtk"));
    let url = lab.cache_url();
    let all: Vec<&str> = outputs.iter().chain([&newer, &gtk2, &gtk3]).map(String::as_str).collect();
    lab.done(&[&["copy", "--store", &lab.store.uri(), "--to", &url], &all[..]].concat());
    let root = lab.folder("mine");
    let install = |profile: &str, more: &[&str]| {
        let args = [&["install", "--from", &url, "--store", &root, "--profile", profile], more].concat();
        let output = lab.run(&args);
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        let lines = message.lines().filter(|line| line.starts_with("replaced ")).map(str::to_owned).collect::<Vec<_>>();
        (stdout(output), lines)
    };
    for (at, order) in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]].into_iter().enumerate() {
        let profile = lab.folder(&format!("p{at}"));
        for output in order {
            assert_eq!(install(&profile, &[&outputs[output]]).1, Vec::<String>::new(), "{order:?}");
        }
        assert_eq!(programs(&profile), ["git", "git-doc", "git-man"], "{order:?}");
    }
    let profile = lab.folder("p0");
    assert_eq!(install(&profile, &[&newer]).1, ["replaced git-2.47.0 by git-2.48.0"]);
    assert_eq!(programs(&profile), ["git", "git-doc", "git-man"]);
    install(&profile, &[&gtk2]);
    let printed = install(&profile, &["--json", &gtk3]).0;
    let summary: serde_json::Value = serde_json::from_str(printed.lines().last().unwrap()).unwrap();
    let name = |path: &str| path.rsplit('/').next().unwrap().to_owned();
    assert_eq!(summary["replaced"], serde_json::json!([{"old": name(&gtk2), "new": name(&gtk3)}]), "{summary}");
    // An older version and all outputs at once, too.
    assert_eq!(install(&profile, &[&gtk2]).1, ["replaced gtk+-3.24.1 by gtk+-2.24.33"]);
    let removed = lab.done(&["remove", "--store", &root, "--profile", &profile, "git"]);
    assert_eq!(removed.lines().filter(|line| line.starts_with("removed ")).count(), 3, "{removed}");
}

/// Whatever became of the store and of the profile's place: after an install, the profile is protected and listed.
#[test]
fn an_unchanged_profile_is_protected_again() {
    let lab = Lab::new();
    let (root, profile, url) = (lab.folder("mine"), lab.folder("profile"), lab.cache_url());
    let moved = lab.folder("elsewhere/profile");
    let install = |root: &str, profile: &str| {
        lab.done(&["install", "--quiet", "--from", &url, "--store", root, "--profile", profile, &lab.hello]);
        let collected = lab.done(&["gc", "--store", root]);
        assert!(collected.starts_with("removed 0 paths"), "{collected}");
        assert_eq!(programs(profile), ["hello"]);
        let listed = lab.done(&["profiles", "--store", root]);
        assert!(listed.contains(profile), "{listed}");
    };
    install(&root, &profile);
    fs::remove_dir_all(format!("{root}/nix/var/nix/gcroots/auto")).unwrap();
    fs::create_dir(format!("{root}/nix/var/nix/gcroots/auto")).unwrap();
    fs::remove_file(format!("{root}/nix/var/nix/narval-profiles")).unwrap();
    install(&root, &profile);
    assert!(Command::new("chmod").args(["-R", "u+w", &root]).status().unwrap().success());
    fs::remove_dir_all(&root).unwrap();
    install(&root, &profile);
    assert!(!Path::new(&format!("{profile}-2-link")).exists(), "there was nothing to change");
    fs::create_dir(lab.folder("elsewhere")).unwrap();
    for name in ["profile", "profile-1-link"] {
        fs::rename(lab.folder(name), lab.folder(&format!("elsewhere/{name}"))).unwrap();
    }
    install(&root, &moved);
    // Its programs would be those of the first store.
    let other = lab.folder("other");
    install(&other, &moved);
    assert!(fs::read_to_string(format!("{moved}/bin/hello")).unwrap().contains(&format!("'{other}/nix/store'")));
}

/// Adds a package with these files, and copies it to the lab's cache.
fn add_files(lab: &Lab, name: &str, files: &[(&str, &str)]) -> String {
    let folder = lab.store.path(name);
    for (file, contents) in files {
        let path = folder.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, contents).unwrap();
    }
    let path = lab.store.add(&folder);
    lab.done(&["copy", "--store", &lab.store.uri(), "--to", &lab.cache_url(), &path]);
    path
}

#[test]
fn equal_names_are_no_conflict_but_different_files_are() {
    let lab = Lab::new();
    let (root, profile) = (lab.folder("mine"), lab.folder("profile"));
    let one = [
        ("LICENSE", "one"),
        ("share/info/dir", "same"),
        ("share/doc", "a file"),
        ("bin/tool", "one"),
        ("libexec/x", "one"),
    ];
    let other = [
        ("LICENSE", "other"),
        ("share/info/dir", "same"),
        ("share/doc/a", "a folder"),
        ("bin/other", "other"),
        ("libexec/x", "other"),
    ];
    let one = add_files(&lab, "one-1.0", &one);
    let other = add_files(&lab, "other-1.0", &other);
    let tool = add_files(&lab, "tool-1.0", &[("LICENSE", "tool"), ("share/info/dir", "same"), ("bin/tool", "tool")]);
    let show = |file: &str| fs::read_to_string(Path::new(&profile).join(file)).ok();
    let install = |arguments: &[&str]| lab.install(&root, &[&["--profile", &profile], arguments].concat());

    install(&[&one]);
    assert_eq!((show("LICENSE"), show("libexec/x")), (None, None), "only what programs look for");
    // The names of both files, and the way out. Nothing is changed.
    let url = lab.cache_url();
    let refused =
        |path: &str| lab.fails(1, &["install", "--from", &url, "--store", &root, "--profile", &profile, path]);
    let message = refused(&tool);
    assert!(message.contains(&format!("{one}/bin/tool")) && message.contains(&format!("{tool}/bin/tool")), "{message}");
    assert!(message.contains("--priority 4") && message.lines().count() == 1, "{message}");
    assert_eq!(show("bin/tool").unwrap(), "one");
    install(&["--priority", "4", &tool]);
    assert_eq!(show("bin/tool").unwrap(), "tool");
    assert_eq!(show("share/info/dir").unwrap(), "same");
    // A file and a folder differ. The priority of what was there stays.
    let message = refused(&other);
    assert!(
        message.contains(&format!("{one}/share/doc")) && message.contains(&format!("{other}/share/doc")),
        "{message}"
    );
    install(&["--priority", "7", &other]);
    assert_eq!((show("bin/tool").unwrap(), show("share/doc").unwrap()), ("tool".to_owned(), "a file".to_owned()));
    install(&["--priority", "2", &one]);
    assert_eq!(show("bin/tool").unwrap(), "one");
    install(&["--priority", "1", &other]);
    assert_eq!((show("bin/tool").unwrap(), show("share/doc/a").unwrap()), ("one".to_owned(), "a folder".to_owned()));
    lab.done(&["remove", "--profile", &profile, "--store", &root, "one"]);
    assert_eq!((show("bin/tool").unwrap(), show("bin/other").unwrap()), ("tool".to_owned(), "other".to_owned()));
    assert!(lab.fails(2, &["install", "--store", &root, "--priority", "4", &one]).contains("--profile"));
}
