//! An evaluation becomes an exact index, a cache has it, and its clients use it.

use std::io::Write;
use std::process::Stdio;

use serde_json::{Value, json};

use crate::place::{Place, path};
use crate::support::{Server, stdout};

/// A cache of Narval that signs, its tokens with and without the right to have it sign, and an evaluation.
fn with_a_cache(place: &mut Place) -> Server {
    let file = |name: &str| place.home().join(name).to_str().unwrap().to_owned();
    let (data, key) = (file("data"), file("key"));
    let public = place.done(&["key", "generate", "exact-1", "--out", &key]);
    for (name, sign) in [("token", true), ("unsigned", false)] {
        let mut args = vec!["token", "create", "--push", name, "--data", &data];
        if sign {
            args.push("--sign");
        }
        std::fs::write(file(name), place.done(&args)).unwrap();
    }
    let mut command = place.command(&["serve", "--listen", "127.0.0.1:0", "--data", &data, "--sign-key", &key]);
    command.env_remove("NARVAL_STORE");
    let server = Server::start(command, &[]);
    place.others.push((server.url(), public.trim().to_owned()));
    server
}

/// What `nix-env -qaP --json --out-path --meta` prints, in which `git` is the second of two paths.
fn evaluation() -> Value {
    let entry = |name: &str, outputs: Value| {
        json!({"name": name, "pname": "git", "version": "2.51.0", "system": "x86_64-linux",
        "outputName": "out", "outputs": outputs, "meta": {}})
    };
    json!({
        "git": entry("git-2.51.0", json!({"out": format!("/nix/store/{}", path('2', "git-2.51.0"))})),
        "renamed": entry("renamed-1", json!({"out": format!("/nix/store/{}", path('1', "git-2.51.0"))})),
        "ours": entry("ours-1", json!({"out": format!("/nix/store/{}", path('b', "ours-1"))})),
    })
}

#[test]
fn clients_of_a_cache_use_the_names_that_it_has() {
    let mut place = Place::new();
    let server = with_a_cache(&mut place);
    let file = |name: &str| place.home().join(name).to_str().unwrap().to_owned();
    std::fs::write(file("evaluation"), evaluation().to_string()).unwrap();
    place.done(&["names", "build", &file("evaluation"), "--out", &file("index")]);
    // Not signed: clients would not use it.
    let to = |token: &str| ["--to".to_owned(), server.url(), "--token-file".to_owned(), file(token)];
    let index = file("index");
    let publish = |token: &str| {
        let to = to(token);
        let args: Vec<&str> = ["names", "publish", &index].into_iter().chain(to.iter().map(String::as_str)).collect();
        place.run(&args)
    };
    let unsigned = publish("unsigned");
    assert_eq!(unsigned.status.code(), Some(4), "{unsigned:?}");
    let message = place.fails(3, &["install", "git"]);
    assert!(message.contains("any of 2 paths"), "{message}");
    // The next one is newer, by the second.
    std::thread::sleep(std::time::Duration::from_millis(1100));
    place.done(&["names", "build", &file("evaluation"), "--out", &file("index")]);
    stdout(publish("token"));
    // The server's table of names may be a minute old.
    let is_there = || {
        let updated = place.run(&["update"]);
        String::from_utf8_lossy(&updated.stderr).contains(&format!("{} has published names", server.url()))
    };
    let begun = std::time::Instant::now();
    while !is_there() {
        assert!(begun.elapsed().as_secs() < 120, "the cache does not list its names");
        std::thread::sleep(std::time::Duration::from_millis(200));
    }
    place.asked();
    assert!(place.done(&["install", "git"]).contains(&path('2', "git-2.51.0")));
    // Whoever signs the index vouches for a path of another name.
    assert!(place.done(&["install", "renamed"]).contains(&path('1', "git-2.51.0")));
    assert!(!place.asked().iter().any(|target| target.starts_with("/eval/")));
    // What the channel's release does not list is of another evaluation, unless no channel was asked for.
    let message = place.fails(3, &["install", "ours"]);
    assert!(message.contains("has no package 'ours'"), "{message}");
    place.add(&path('b', "ours-1"), &[("bin/ours", "x")], &[], None);
    let mut command = place.command(&["install", "ours"]);
    let output = command.env("NARVAL_CHANNEL", "none").output().unwrap();
    assert!(stdout(output).contains(&path('b', "ours-1")));
    // Others are found in the channel.
    assert!(place.done(&["install", "hello"]).contains(&path('0', "hello-2.12")));
}

#[test]
fn evaluations_in_both_formats_are_read() {
    let place = Place::new();
    let out = place.home().join("index").to_str().unwrap().to_owned();
    let mut lines = String::new();
    for (attribute, entry) in evaluation().as_object().unwrap() {
        let mut job = json!({"attr": format!("x86_64-linux.{attribute}"), "attrPath": ["x86_64-linux", attribute]});
        job.as_object_mut().unwrap().extend(entry.as_object().unwrap().clone());
        lines.push_str(&format!("{job}\n"));
    }
    lines.push_str("{\"attr\":\"broken\",\"error\":\"it cannot be evaluated\"}\n");
    let build = |text: &str| {
        let mut command = place.command(&["names", "build", "--out", &out]);
        let mut child = command.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, message) = build(&lines);
    assert!(code == Some(0) && message.contains("3 attributes with their paths"), "{message}");
    // Without paths: --out-path was forgotten.
    let (code, message) = build(r#"{"a":{"name":"a-1","outputs":{"out":null}}}"#);
    assert!(code == Some(1) && message.contains("nix-env needs --out-path"), "{message}");
}

#[test]
fn a_package_is_shown_with_its_sizes_and_found_by_its_program() {
    let place = Place::new();
    let shown = place.done(&["info", "hello"]);
    for text in
        ["version      2.12", "A program that greets", &path('0', "hello-2.12"), "in 2 paths", "installed    no"]
    {
        assert!(shown.contains(text), "{text}: {shown}");
    }
    let json: Value = serde_json::from_str(&place.done(&["info", "--json", "vim"])).unwrap();
    assert_eq!((&json["paths"][0], &json["outputs"][1]), (&path('3', "vim-9.1").into(), &"man".into()));
    assert!(json["download"].as_u64().unwrap() > 0 && json["closure"]["paths"] == 2, "{json}");
    // What is known although it is open which path it is, or no cache has one.
    for (name, version) in [("git", "2.51.0"), ("absent", "1")] {
        let output = place.run(&["info", name]);
        let shown = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(output.status.code(), Some(3), "{output:?}");
        assert!(shown.contains(&format!("version      {version}\n")) && !shown.contains("to fetch"), "{shown}");
    }
    assert!(place.done(&["which-package", "vi"]).starts_with("vim  9.1"));
    assert!(place.fails(3, &["which-package", "emacs"]).contains("no package whose main program is 'emacs'"));
}
