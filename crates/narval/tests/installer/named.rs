//! Packages by name: search, install, upgrade, with a real server over a store.

use serde_json::Value;

use crate::lab::{Lab, add_program};
use crate::support::{Server, stdout};

/// A lab with two versions of `hello` and `other`, and a server over its store.
fn lab() -> (Lab, Server, [String; 4]) {
    let lab = Lab::new();
    let newer = add_program(&lab.store, "hello-2.0", "hello", "echo newer");
    let manual = add_program(&lab.store, "hello-2.0-man", "manual", "echo manual");
    let other = add_program(&lab.store, "other-1.9", "other", "echo other");
    let source = lab.store.add_file("hello-3.0.tar.gz", "source");
    let server = Server::narval(&lab.store, &[]);
    (lab, server, [newer, manual, other, source])
}

fn base(path: &str) -> &str {
    path.rsplit('/').next().unwrap()
}

#[test]
fn packages_are_found_by_name() {
    let (lab, server, [newer, manual, other, source]) = lab();
    let found = lab.done(&["search", "--from", &server.url(), "hello"]);
    let lines: Vec<_> = found.lines().map(|line| line.split_whitespace().next().unwrap()).collect();
    assert_eq!(lines, [&source, &newer, &manual, &lab.hello].map(|path| base(path)), "{found}");
    let json = lab.done(&["search", "--json", "--from", &server.url(), "other"]);
    let lines: Vec<Value> = json.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines[0]["path"], base(&other));
    assert_eq!((&lines[0]["package"], &lines[0]["version"]), (&"other".into(), &"1.9".into()));
    assert!(lines[0]["size"].as_u64().unwrap() > 0 && lines[0]["time"].as_u64().unwrap() > 0, "{json}");
    assert_eq!((&lines[1]["type"], &lines[1]["paths"]), (&"summary".into(), &1.into()));
    assert!(lab.fails(3, &["search", "--from", &server.url(), "nowhere"]).contains("no cache has a path"));
    // A folder, and a server that knows no names, as cache.nixos.org.
    let plain = Server::nix_serve(&lab.store, &[], &[]);
    for cache in [lab.cache_url(), plain.url()] {
        let message = lab.fails(3, &["search", "--from", &cache, "hello"]);
        assert!(message.contains("cannot be searched by name: https://search.nixos.org/packages"), "{message}");
    }
    let both = lab.run(&["search", "--from", &plain.url(), "--from", &server.url(), "other"]);
    let message = String::from_utf8_lossy(&both.stderr).into_owned();
    assert!(message.contains(&format!("not searched, because they cannot be: {}", plain.url())), "{message}");
    assert!(stdout(both).contains(base(&other)));
}

#[test]
fn a_name_is_installed_if_it_is_that_of_one_path() {
    let (lab, server, [newer, _, other, _]) = lab();
    let (root, from) = (lab.folder("mine"), server.url());
    let args = |name: &'static str| ["install", "--from", &from, "--store", &root, name].map(str::to_owned);
    let run = |name| lab.run(&args(name).iter().map(String::as_str).collect::<Vec<_>>());
    let several = run("hello");
    assert_eq!(several.status.code(), Some(3));
    let listed = String::from_utf8_lossy(&several.stdout).into_owned();
    let lines: Vec<_> = listed.lines().map(|line| line.split_whitespace().next().unwrap()).collect();
    assert_eq!(lines, [base(&newer), base(&lab.hello)], "the newest first, and no source or other output");
    assert!(String::from_utf8_lossy(&several.stderr).contains("'hello' is the name of 2 paths"));
    let one = run("other");
    assert!(String::from_utf8_lossy(&one.stderr).contains(&format!("other is {}", base(&other))));
    assert!(stdout(one).ends_with(base(&other)));
    assert!(stdout(run("hello-2.0")).ends_with(base(&newer)));
    assert_eq!(run("nowhere").status.code(), Some(3));
    let message = lab.fails(2, &["install", "--from", &lab.cache_url(), "--store", &root, "hello"]);
    assert!(
        message.contains("'hello' is not a store path") && message.contains("https://search.nixos.org/packages"),
        "{message}"
    );
}

#[test]
fn newer_versions_make_one_generation() {
    let (lab, server, [newer, _, other, _]) = lab();
    let (root, profile, from) = (lab.folder("mine"), lab.folder("profile"), server.url());
    let usual = ["--from", &from, "--store", &root, "--profile", &profile];
    lab.done(&[&["install"], &usual[..], &[&lab.hello, &other]].concat());
    let newest = add_program(&lab.store, "other-1.10", "other", "echo newest");
    let generations = || {
        let names = std::fs::read_dir(lab.store.dir.path()).unwrap().flatten();
        names.filter(|entry| entry.file_name().to_string_lossy().ends_with("-link")).count()
    };
    let before = generations();
    let dry = lab.done(&[&["upgrade", "--dry-run"], &usual[..]].concat());
    assert!(dry.contains("hello  1.0 → 2.0") && dry.contains("other  1.9 → 1.10"), "{dry}");
    assert_eq!(generations(), before);
    assert!(lab.fails(3, &[&["upgrade"], &usual[..], &["nowhere"]].concat()).contains("nowhere"));
    let one = lab.done(&[&["upgrade", "--dry-run", "--json"], &usual[..], &["other"]].concat());
    let one: Value = serde_json::from_str(&one).unwrap();
    assert_eq!(one["upgraded"].as_array().unwrap().len(), 1);
    assert_eq!((&one["upgraded"][0]["old"], &one["upgraded"][0]["new"]), (&base(&other).into(), &base(&newest).into()));
    lab.done(&[&["upgrade"], &usual[..]].concat());
    assert_eq!(generations(), before + 1);
    let listed = lab.done(&["profiles", "--store", &root]);
    let listed = listed.lines().find(|line| line.contains("(current)")).unwrap();
    for (path, is_there) in [(&newer, true), (&newest, true), (&lab.hello, false), (&other, false)] {
        assert_eq!(listed.contains(base(path)), is_there, "{path}: {listed}");
    }
    let again = lab.run(&[&["upgrade"], &usual[..]].concat());
    assert!(String::from_utf8_lossy(&again.stderr).contains("nothing newer") && again.status.success());
    assert_eq!(generations(), before + 1);
}

/// Two packages have a program of one name: which of them is shown was said when they were installed.
#[test]
fn a_newer_version_has_the_priority_of_the_one_that_it_replaces() {
    let (lab, server, [newer, ..]) = lab();
    let rival = add_program(&lab.store, "rival-1.0", "hello", "echo rival");
    let (root, profile, from) = (lab.folder("mine"), lab.folder("profile"), server.url());
    let usual = ["--from", &from, "--store", &root, "--profile", &profile];
    lab.done(&[&["install"], &usual[..], &[&newer]].concat());
    lab.done(&[&["install", "--priority", "9"], &usual[..], &[&rival]].concat());
    let rival = add_program(&lab.store, "rival-2.0", "hello", "echo newer rival");
    lab.done(&[&["upgrade"], &usual[..], &["rival"]].concat());
    let listed = lab.done(&["profiles", "--store", &root]);
    assert!(listed.lines().last().unwrap().contains(base(&rival)), "{listed}");
    let program = std::fs::read_to_string(format!("{profile}/bin/hello")).unwrap();
    assert!(program.contains(base(&newer)), "{program}");
}
