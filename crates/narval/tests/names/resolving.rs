//! A name becomes a path, or it is said why not.

use serde_json::{Value, json};

use crate::place::{GLIBC, Place, path};
use crate::support::stdout;

#[test]
fn a_name_is_enough_to_install_and_to_run() {
    let place = Place::new();
    let output = place.run(&["install", "hello"]);
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{message}");
    assert!(
        message.contains(&format!("hello is {} in {}/channel of just now", path('0', "hello-2.12"), place.url)),
        "{message}"
    );
    assert!(place.root().join("nix/store").join(path('0', "hello-2.12")).join("bin/hello").exists());
    // The name of a derivation means what the attribute means.
    assert!(place.done(&["install", "hello-2.12"]).contains(&path('0', "hello-2.12")));
    let arm = place.done(&["install", "--system", "aarch64-linux", "hello"]);
    assert!(arm.contains(&path('5', "hello-2.12")), "{arm}");
    // Its main program is not named as it is.
    assert!(place.done(&["run", "vim"]).starts_with("vim"));
    assert!(place.done(&["shell", "hello", "vim", "--", "hello", "you"]).starts_with("hello you"));
    // It is the package's own, and no other program of this name.
    assert!(place.done(&["run", "vim^man,out"]).starts_with("vim"));
    assert!(place.fails(2, &["run", "vim^man"]).contains("'vi', its main program, is not in what is installed"));
    // Without a PATH, the working directory is not searched.
    let mut bare = place.command(&["shell", "hello", "--", "/bin/sh", "-c", "echo $PATH"]);
    let bare = stdout(bare.env_remove("PATH").output().unwrap());
    assert_eq!(bare.trim(), format!("/nix/store/{}/bin", path('0', "hello-2.12")));
}

#[test]
fn outputs_are_those_of_one_derivation() {
    let place = Place::new();
    let listed = place.done(&["install", "vim^out,man"]);
    for name in [path('3', "vim-9.1"), path('4', "vim-9.1-man")] {
        assert!(listed.contains(&name), "{listed}");
    }
    // The manual refers to nothing that tells its system: the program that was made with it does.
    let place = Place::new();
    let listed = place.done(&["install", "--no-build-records", "vim^man"]);
    assert!(listed.contains(&path('4', "vim-9.1-man")) && !listed.contains(&path('3', "vim-9.1")), "{listed}");
    let message = place.fails(3, &["install", "vim^doc"]);
    assert!(message.contains("vim has no output 'doc'; it has: out, man"), "{message}");
    for (text, why) in [
        ("vim^", "outputs follow '^'"),
        ("vim^../../etc", "outputs follow '^'"),
        ("vim@", "no version follows '@'"),
        ("vim=here", "a store path or its hash part follows '='"),
    ] {
        let message = place.fails(2, &["install", text]);
        assert!(message.contains(why), "{text}: {message}");
    }
}

/// There are two paths of the name for this system, and nothing tells them apart.
#[test]
fn what_is_ambiguous_is_not_guessed_and_a_choice_is_remembered() {
    let place = Place::new();
    let message = place.fails(3, &["install", "git"]);
    let (one, other) = (path('1', "git-2.51.0"), path('2', "git-2.51.0"));
    for text in [&one, &other, "refers to hello-2.12", "choose one with 'git=HASH'", "any of 2 paths"] {
        assert!(message.contains(text), "{text}: {message}");
    }
    assert!(!message.contains(&path('6', "git-2.51.0")), "the other system's: {message}");
    assert!(!place.root().join("nix/store").join(&one).exists());
    let json = place.run(&["install", "--json", "git"]);
    let lines: Vec<Value> =
        String::from_utf8(json.stdout).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.iter().filter(|line| line["type"] == "candidate").count(), 2, "{lines:?}");
    assert!(place.fails(3, &["install", &format!("git={}", "z".repeat(32))]).contains("no path"));
    assert!(place.done(&["install", &format!("git={}", "2".repeat(32))]).contains(&other));
    let again = place.run(&["install", "git"]);
    assert!(String::from_utf8_lossy(&again.stdout).contains(&other), "remembered");
    assert!(String::from_utf8_lossy(&again.stderr).contains("as you have chosen"));
}

#[test]
fn build_records_decide_once_and_can_be_switched_off() {
    let place = Place::new();
    place.record("nixpkgs.git.x86_64-linux", &path('1', "git-2.51.0"));
    place.fails(3, &["install", "--no-build-records", "git"]);
    let switched_off = place.command(&["install", "git"]).env("NARVAL_NO_BUILD_RECORDS", "1").output().unwrap();
    assert_eq!(switched_off.status.code(), Some(3), "{switched_off:?}");
    assert!(!place.asked().iter().any(|target| target.starts_with("/eval/")));
    let first = place.run(&["install", "git"]);
    assert!(String::from_utf8_lossy(&first.stderr).contains("asking its build records at"), "{first:?}");
    assert!(String::from_utf8_lossy(&first.stdout).contains(&path('1', "git-2.51.0")), "{first:?}");
    assert_eq!(place.asked().iter().filter(|target| target.starts_with("/eval/")).count(), 1);
    assert!(place.done(&["install", "git"]).contains(&path('1', "git-2.51.0")));
    assert!(!place.asked().iter().any(|target| target.starts_with("/eval/")), "remembered");
    // What it says for another name is not believed.
    place.record("nixpkgs.gitMinimal.x86_64-linux", &path('0', "hello-2.12"));
    place.fails(3, &["install", "gitMinimal"]);
}

/// The other attribute of the name is another package: the only path may be that of either.
#[test]
fn one_path_of_two_different_packages_is_not_guessed() {
    let mut place = Place::new();
    place.add(&path('a', "browser-1"), &[("bin/browser", "x")], &[GLIBC], None);
    place.package("browser", "browser", "1", serde_json::json!({"description": "A browser (with plugins)"}));
    place.package("browser-unwrapped", "browser", "1", serde_json::json!({"description": "A browser"}));
    place.publish("one");
    for attribute in ["browser", "browser-unwrapped"] {
        place.fails(3, &["install", attribute]);
    }
    let message = place.fails(3, &["install", "browser-unwrapped"]);
    assert!(message.contains("may be this path") && message.contains(&path('a', "browser-1")), "{message}");
}

#[test]
fn what_is_not_free_unknown_or_not_built_is_said() {
    let place = Place::new();
    let message = place.fails(1, &["install", "unfree-thing"]);
    assert!(
        message.contains("thing-1 has an unfree licence (unfree); to accept that, set NIXPKGS_ALLOW_UNFREE=1"),
        "{message}"
    );
    let mut allowed = place.command(&["install", "unfree-thing"]);
    let allowed = allowed.env("NIXPKGS_ALLOW_UNFREE", "1").output().unwrap();
    assert_eq!(allowed.status.code(), Some(3), "it was not built: {allowed:?}");
    let message = place.fails(3, &["install", "hwllo"]);
    assert!(message.contains("has no package 'hwllo'; did you mean hello?"), "{message}");
    let message = place.fails(3, &["install", "absent"]);
    assert!(message.contains("it was not built") && message.contains(&format!("{}/cache", place.url)), "{message}");
    // The channel has a path that the cache lacks.
    place.site.lock().unwrap().files.remove(&format!("/cache/{}.narinfo", "3".repeat(32)));
    let message = place.fails(3, &["install", "vim"]);
    assert!(message.contains("asked: ") && message.contains(&format!("{}/cache", place.url)), "{message}");
    assert!(place.done(&["search", "unfree-thing"]).contains("(unfree)"));
    // The cache has it, and nobody who is trusted has signed it.
    let other = narval_nix::SecretKey::generate("other-1").unwrap().public_key().to_string();
    let untrusted = place.command(&["install", "hello"]).env("NARVAL_TRUSTED_KEYS", other).output().unwrap();
    let message = String::from_utf8_lossy(&untrusted.stderr).into_owned();
    assert!(untrusted.status.code() == Some(4) && message.contains("is not signed by a trusted key"), "{message}");
}

#[test]
fn each_problem_of_a_package_is_refused_without_its_variable() {
    let mut place = Place::new();
    for (attribute, meta, message, variable) in [
        ("broken", json!({"broken": true, "available": false}), "is marked as broken", "NIXPKGS_ALLOW_BROKEN"),
        (
            "insecure",
            json!({"insecure": true, "knownVulnerabilities": ["CVE-1: bad\u{1b}[31m"]}),
            "is marked as insecure (CVE-1: bad [31m)",
            "NIXPKGS_ALLOW_INSECURE",
        ),
        ("unfree", json!({"unfree": true}), "has an unfree licence", "NIXPKGS_ALLOW_UNFREE"),
        (
            "elsewhere",
            json!({"available": false}),
            "is not available on this platform",
            "NIXPKGS_ALLOW_UNSUPPORTED_SYSTEM",
        ),
    ] {
        place.package(attribute, attribute, "1", meta);
        place.add(&path('a', &format!("{attribute}-1")), &[("bin/it", "x")], &[GLIBC], None);
        place.publish(attribute);
        place.lead_to(attribute);
        place.done(&["update"]);
        let refused = place.fails(1, &["install", attribute]);
        assert!(refused.contains(message) && refused.contains(&format!("set {variable}=1")), "{refused}");
        let other = if variable.ends_with("UNFREE") { "NIXPKGS_ALLOW_BROKEN" } else { "NIXPKGS_ALLOW_UNFREE" };
        assert!(!place.command(&["install", attribute]).env(other, "1").output().unwrap().status.success());
        let allowed = place.command(&["install", attribute]).env(variable, "1").output().unwrap();
        assert!(String::from_utf8_lossy(&allowed.stdout).contains(&format!("{attribute}-1")), "{allowed:?}");
    }
}

#[test]
fn of_what_is_near_a_misspelt_name_five_are_said() {
    let mut place = Place::new();
    for at in 0..9 {
        place.package(&format!("wordle{at}"), "wordle", "1", json!({}));
    }
    place.publish("one");
    let message = place.fails(3, &["install", "wordl"]);
    assert_eq!(message.matches("wordle").count(), 5, "{message}");
}

#[test]
fn several_names_and_channels_at_once() {
    let mut place = Place::new();
    place.package("other", "other", "1", json!({}));
    place.add(&path('a', "other-1"), &[("bin/other", "x")], &[GLIBC], None);
    place.publish("two");
    let (one, two) = (format!("{}/releases/one", place.url), format!("{}/releases/two", place.url));
    let listed = place.done(&["install", "--channel", &one, "--channel", &two, "hello", "other", "vim^man"]);
    for name in [path('0', "hello-2.12"), path('a', "other-1"), path('4', "vim-9.1-man")] {
        assert!(listed.contains(&name), "{listed}");
    }
    // One that is unknown: nothing of the others is installed.
    let place = Place::new();
    place.fails(3, &["install", "hello", "nowhere"]);
    assert!(!place.root().join("nix/store").join(path('0', "hello-2.12")).exists());
}

#[test]
fn a_version_means_the_newest_that_begins_so() {
    let mut place = Place::new();
    for (attribute, version, digit) in
        [("node_22", "22.9.1", 'a'), ("node_22_old", "22.10.0", 'b'), ("node", "24.1", 'c')]
    {
        place.package(attribute, "node", version, serde_json::json!({}));
        place.add(&path(digit, &format!("node-{version}")), &[("bin/node", version)], &[GLIBC], None);
    }
    place.publish("one");
    assert!(place.done(&["install", "node@22"]).contains("node-22.10.0"));
    assert!(place.done(&["install", "node@22.9"]).contains("node-22.9.1"));
    assert!(place.done(&["install", "node"]).contains("node-24.1"));
    (10..20).for_each(|at| place.package(&format!("node_{at}"), "node", &format!("{at}.1"), json!({})));
    place.publish("two");
    place.lead_to("two");
    place.done(&["update"]);
    let message = place.fails(3, &["install", "node@23"]);
    for near in ["node (24.1)", "node_22_old (22.10.0)", "node_22 (22.9.1)"] {
        assert!(message.contains(near) && message.matches('(').count() == 5, "{message}");
    }
}

#[test]
fn a_search_ranks_names_before_descriptions() {
    let mut place = Place::new();
    place.package("othello", "othello", "1", serde_json::json!({"description": "A game"}));
    place.package(
        "greeter",
        "greeter",
        "1",
        serde_json::json!({"description": "It says \u{1b}[31mhello\u{202e}\nto all"}),
    );
    place.package("sets.hello", "other", "1", serde_json::json!({}));
    place.package("hello-kitty", "hello-kitty", "1", serde_json::json!({}));
    place.publish("one");
    let found = place.done(&["search", "Hello"]);
    let attributes: Vec<_> = found.lines().map(|line| line.split(' ').next().unwrap()).collect();
    assert_eq!(attributes, ["hello", "sets.hello", "hello-kitty", "othello", "greeter"], "{found}");
    assert!(found.contains("It says [31mhello to all"), "{found:?}");
    let json = place.done(&["search", "--json", "editor"]);
    let lines: Vec<Value> = json.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((&lines[0]["attribute"], &lines[0]["outputs"]), (&"vim".into(), &serde_json::json!(["out", "man"])));
    assert_eq!(lines[1]["packages"], 1);
    place.fails(3, &["search", "nowhere"]);
}
