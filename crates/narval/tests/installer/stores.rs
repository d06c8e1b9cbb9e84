//! Stores, profiles and caches on disk.

use std::path::Path;
use std::process::Stdio;

use crate::lab::{Lab, add_program};
use crate::support::{Nix, hash_part, stdout};

#[test]
fn nix_accepts_the_store_and_everything_there_needs_no_cache() {
    let lab = Lab::new();
    let root = lab.folder("new");
    let printed = lab.install(&root, &[&lab.top]);
    assert_eq!(printed, "");
    lab.assert_accepted(&root, &[&lab.top, &lab.tree]);
    let same =
        Nix::Newest.nix_store(lab.store.dir.path(), &["--store", &root, "--dump", &format!("{root}{}", lab.tree)]);
    assert!(same.stdout == lab.store.dump(&lab.tree), "the tree is the same");
    // The cache has gone: what is there is not asked for.
    std::fs::rename(lab.cache(), lab.store.path("away")).unwrap();
    let again = lab.done(&["install", "--json", "--from", &lab.cache_url(), "--store", &root, &lab.top]);
    assert!(again.contains("\"requests\":0"), "{again}");
    let said = lab.fails(3, &["install", "--from", &lab.cache_url(), "--store", &root, &lab.hello]);
    assert!(said.contains("no cache has"), "{said}");
}

/// What is in no profile can be run, and is garbage: both are said.
#[test]
fn an_install_without_a_profile_says_what_next() {
    let lab = Lab::new();
    let (root, url) = (lab.folder("mine"), lab.cache_url());
    let said = |arguments: &[&str]| {
        let output = lab.run(&[&["install", "--from", &url, "--store", &root], arguments].concat());
        assert!(output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    let name = lab.hello.rsplit('/').next().unwrap();
    let shown = said(&[&lab.top, &lab.hello]);
    assert!(
        shown.contains(&format!("narval run --store '{root}' {name}\n")) && shown.contains("--profile DIR"),
        "{shown}"
    );
    let shown = said(&[&lab.top]);
    assert!(!shown.contains("narval run") && shown.contains("--profile DIR"), "{shown}");
    for arguments in
        [&["--quiet", &lab.hello][..], &["--json", &lab.hello], &["--profile", &lab.folder("p"), &lab.hello]]
    {
        let shown = said(arguments);
        assert!(!shown.contains("narval gc"), "{shown}");
    }
}

#[test]
fn profiles_roll_back_and_keep_what_they_show() {
    let lab = Lab::new();
    let newer = add_program(&lab.store, "hello-2.0", "hello", "echo newer");
    lab.done(&["copy", "--store", &lab.store.uri(), "--to", &lab.cache_url(), &newer]);
    let (root, profile) = (lab.folder("mine"), lab.folder("me/profile"));
    std::fs::create_dir(lab.store.path("me")).unwrap();
    let install = |path: &str| lab.install(&root, &["--profile", &profile, path]);
    install(&lab.hello);
    install(&lab.top);
    // The newer one takes the place of the older one.
    install(&newer);
    let program = || std::fs::read_to_string(Path::new(&profile).join("bin/hello")).unwrap();
    assert!(program().contains(&newer));
    let listed = lab.done(&["profiles", "--store", &root]);
    assert_eq!(listed.lines().count(), 3, "{listed}");
    assert!(listed.lines().nth(2).unwrap().contains("3 (current)"), "{listed}");
    let shown = lab.done(&["rollback", "--profile", &profile]);
    assert!(shown.ends_with("shows generation 2"), "{shown}");
    assert!(program().contains(&lab.hello));
    // All generations keep their paths; then only the current one and the newest.
    assert!(lab.done(&["gc", "--store", &root]).starts_with("removed 0 paths"));
    lab.assert_accepted(&root, &[&lab.top, &lab.tree, &lab.hello, &newer]);
    let dry = lab.done(&["gc", "--dry-run", "--store", &root]);
    assert!(dry.contains("would remove 0 paths"), "{dry}");
    lab.done(&["rollback", "--profile", &profile, "--to", "1"]);
    let removed = lab.done(&["gc", "--keep", "0", "--store", &root]);
    assert!(removed.starts_with("removed 3 paths"), "{removed}");
    lab.assert_accepted(&root, &[&lab.hello]);
    let said = lab.fails(2, &["rollback", "--profile", &profile, "--to", "9"]);
    assert!(said.contains("no such generation"), "{said}");
    let said = lab.fails(2, &["rollback", "--profile", &profile]);
    assert!(said.contains("there is nothing before generation 1"), "{said}");
}

#[test]
fn names_with_a_common_prefix_are_not_versions_of_each_other() {
    let lab = Lab::new();
    let lfs = add_program(&lab.store, "hello-lfs-1.0", "hello-lfs", "echo lfs");
    lab.done(&["copy", "--store", &lab.store.uri(), "--to", &lab.cache_url(), &lfs]);
    let (root, profile) = (lab.folder("mine"), lab.folder("profile"));
    lab.install(&root, &["--profile", &profile, &lab.hello]);
    // Somebody who may write to the state directory has put a symlink where the profiles are written down.
    let (list, secret) = (lab.folder("mine/nix/var/nix/narval-profiles"), lab.folder("secret"));
    std::fs::write(&secret, "secret\n").unwrap();
    std::fs::remove_file(&list).unwrap();
    std::os::unix::fs::symlink(&secret, &list).unwrap();
    lab.install(&root, &["--profile", &profile, &lfs]);
    assert_eq!(std::fs::read_to_string(&secret).unwrap(), "secret\n");
    assert_eq!(std::fs::read_to_string(&list).unwrap(), format!("{profile}\n"));
    for program in ["hello", "hello-lfs"] {
        assert!(std::fs::metadata(Path::new(&profile).join("bin").join(program)).is_ok(), "{program}");
    }
}

#[test]
fn installs_into_one_profile_at_once_lose_nothing() {
    let lab = Lab::new();
    let names = ["a-1", "b-1", "c-1", "d-1"];
    let paths = names.map(|name| add_program(&lab.store, name, &name[..1], "true"));
    let refs: Vec<&str> = paths.iter().map(String::as_str).collect();
    lab.done(&[&["copy", "--store", &lab.store.uri(), "--to", &lab.cache_url()], &refs[..]].concat());
    let (root, profile, url) = (lab.folder("mine"), lab.folder("profile"), lab.cache_url());
    let start = |path: &String| {
        let args = ["install", "--quiet", "--from", &url, "--store", &root, "--profile", &profile, path];
        lab.command(&args).stderr(Stdio::piped()).spawn().unwrap()
    };
    for child in paths.iter().map(start).collect::<Vec<_>>() {
        stdout(child.wait_with_output().unwrap());
    }
    let programs = std::fs::read_dir(Path::new(&profile).join("bin")).unwrap().count();
    assert_eq!(programs, names.len());
}

#[test]
fn two_installs_into_one_store_at_once() {
    let lab = Lab::new();
    let root = lab.folder("mine");
    let url = lab.cache_url();
    let args = ["install", "--quiet", "--from", &url, "--store", &root, &lab.top, &lab.hello];
    let children: Vec<_> = (0..4).map(|_| lab.command(&args).stderr(Stdio::piped()).spawn().unwrap()).collect();
    for child in children {
        stdout(child.wait_with_output().unwrap());
    }
    lab.assert_accepted(&root, &[&lab.top, &lab.tree, &lab.hello]);
}

#[test]
fn copies_between_caches_folders_and_stores() {
    let lab = Lab::new();
    let (second, third, root) = (lab.folder("second"), lab.folder("third"), lab.folder("mine"));
    let (second_url, third_url) = (format!("file://{second}"), format!("file://{third}"));
    lab.done(&["copy", "--from", &lab.cache_url(), "--to", &second_url, &lab.top]);
    lab.done(&["copy", "--from", &second_url, "--to", &root, &lab.top]);
    lab.assert_accepted(&root, &[&lab.top, &lab.tree]);
    // Signed on the way out of a store, and then taken by real Nix with its signature.
    let (key, public) = lab.store.key("copy-1");
    lab.done(&["copy", "--store", &root, "--to", &third_url, "--sign-key", key.to_str().unwrap(), &lab.top]);
    let to = lab.folder("by-nix");
    let args = ["copy", "--from", &third_url, "--to", &to, "--option", "trusted-public-keys", &public, &lab.top];
    stdout(Nix::Newest.nix(lab.store.dir.path(), &args));
    lab.assert_accepted(&to, &[&lab.top, &lab.tree]);
}

#[test]
fn changed_files_are_found_and_repaired() {
    use std::os::unix::fs::PermissionsExt;
    let lab = Lab::new();
    let root = lab.folder("mine");
    lab.install(&root, &[&lab.top]);
    assert!(lab.done(&["verify", "--store", &root]).ends_with("2 paths checked, 0 faulty, 0 repaired"));
    let file = format!("{root}{}/bin/run", lab.tree);
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o755)).unwrap();
    std::fs::write(&file, "changed").unwrap();
    let said = lab.fails(4, &["verify", "--store", &root]);
    assert!(said.contains("1 path is faulty"), "{said}");
    lab.done(&["verify", "--repair", "--from", &lab.cache_url(), "--store", &root]);
    lab.assert_accepted(&root, &[&lab.top, &lab.tree]);
}

#[test]
fn a_timeline_is_written() {
    let lab = Lab::new();
    let (root, trace) = (lab.folder("mine"), lab.folder("trace.json"));
    lab.install(&root, &["--trace", &trace, &lab.top]);
    let trace: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&trace).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    for kind in ["fetch", "decompress", "hash", "write", "path"] {
        assert!(events.iter().any(|event| event["cat"] == kind), "no {kind} in {events:?}");
    }
}

#[test]
fn a_source_that_is_named_is_the_source() {
    let lab = Lab::new();
    let (store, other, mirror) = (lab.store.uri(), lab.folder("other"), format!("file://{}", lab.folder("mirror")));
    // Nobody answers there, and nothing of it is wanted.
    let nowhere = "http://127.0.0.1:1";
    let with_env = |name: &str, value: &str, args: &[&str]| {
        let output = lab.command(args).env(name, value).output().unwrap();
        stdout(output)
    };
    with_env("NARVAL_CACHES", nowhere, &["copy", "--quiet", "--store", &store, "--to", &mirror, &lab.top]);
    with_env("NARVAL_CACHES", nowhere, &["copy", "--quiet", "--store", &store, "--to", &other, &lab.top]);
    lab.assert_accepted(&other, &[&lab.top, &lab.tree]);
    assert!(
        lab.store.dump(&lab.tree)
            == Nix::Newest.nix_store(lab.store.dir.path(), &["--dump", &format!("{other}{}", lab.tree)]).stdout
    );
    // The store of the environment is not a source that was named.
    let third = lab.folder("third");
    with_env("NARVAL_STORE", &lab.folder("empty"), &["copy", "--quiet", "--from", &mirror, "--to", &third, &lab.top]);
    lab.assert_accepted(&third, &[&lab.top, &lab.tree]);
    let empty = lab.folder("empty");
    for to in [&mirror, &other] {
        let said = lab.fails(3, &["copy", "--store", &empty, "--to", to, &lab.hello]);
        assert!(said.contains("empty"), "{said}");
    }
    let said = lab.fails(2, &["copy", "--store", &store, "--from", &mirror, "--to", &other, &lab.hello]);
    assert!(said.contains("--store") && said.contains("--from"), "{said}");
    // A signature is asked for as from a cache: of a path that its contents do not name.
    let (plain, narinfo) = (lab.folder("plain"), lab.cache().join(format!("{}.narinfo", hash_part(&lab.tree))));
    let text = std::fs::read_to_string(&narinfo).unwrap();
    let lines = text.lines().filter(|line| !line.starts_with("CA: "));
    std::fs::write(&narinfo, lines.collect::<Vec<_>>().join("\n") + "\n").unwrap();
    lab.done(&["install", "--quiet", "--no-check-sigs", "--from", &lab.cache_url(), "--store", &plain, &lab.tree]);
    let copy = ["copy", "--store", &plain, "--to", &lab.folder("unsigned"), &lab.tree];
    let said = lab.fails(4, &copy);
    assert!(said.contains("not signed"), "{said}");
    lab.done(&[&copy[..], &["--no-check-sigs"]].concat());
    lab.assert_accepted(&lab.folder("unsigned"), &[&lab.tree]);
}
