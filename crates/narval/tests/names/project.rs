//! Projects: a folder with `narval.toml` has the same paths on every machine.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::Value;

use crate::place::{GLIBC, Place, path};

struct Project {
    place: Place,
    folder: PathBuf,
}

impl Project {
    /// A project whose `narval.toml` is this.
    fn new(toml: &str) -> Self {
        let place = Place::new();
        let folder = place.home().join("project");
        fs::create_dir_all(folder.join("src/deep")).unwrap();
        let project = Self { place, folder };
        project.write("narval.toml", toml);
        project
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.folder.join(name), text).unwrap();
    }

    fn lock(&self) -> String {
        fs::read_to_string(self.folder.join("narval.lock")).unwrap()
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = self.place.command(args);
        command.current_dir(&self.folder);
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    fn done(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// One line, and an exit code.
    fn fails(&self, code: i32, args: &[&str]) -> String {
        let output = self.run(args);
        let message = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{args:?}: {message}");
        assert_eq!(message.lines().count(), 1, "{message}");
        assert!(!message.contains('\u{1b}'), "{message:?}");
        message
    }
}

const BOTH: &str = "packages = ['hello', 'vim^out,man']\nsystems = ['x86_64-linux', 'aarch64-linux']\n";

#[test]
fn a_lock_gives_the_same_paths_until_it_is_upgraded() {
    let mut project = Project::new(BOTH);
    assert!(project.fails(2, &["shell", "--", "hello"]).contains("no narval.lock beside it: 'narval lock' makes it"));
    let shown = project.done(&["lock"]);
    assert_eq!(shown.lines().count(), 4, "two names on two systems: {shown}");
    let lock = project.lock();
    for line in [
        "[[package]]\nname = \"hello\"\nsystem = \"aarch64-linux\"\n".to_owned(),
        format!("release = \"{}/releases/one\"\nrevision = \"revision-of-one\"\n", project.place.url),
        format!("  {{ name = \"out\", path = \"{}\", nar-hash = \"sha256:", path('5', "hello-2.12")),
        format!("  {{ name = \"man\", path = \"{}\", nar-hash = \"sha256:", path('4', "vim-9.1-man")),
    ] {
        assert!(lock.contains(&line), "{line}: {lock}");
    }
    // The same again, and from a folder below.
    project.done(&["lock"]);
    assert_eq!(project.lock(), lock);
    let deep = project.command(&["shell", "--", "hello", "you"]).current_dir(project.folder.join("src/deep")).output();
    let deep = deep.unwrap();
    assert!(String::from_utf8_lossy(&deep.stdout).starts_with("hello you"), "{deep:?}");
    assert!(project.done(&["run", "--", "vi"]).starts_with("vim"));
    // The channel goes on: the lock does not.
    project.place.add(&path('a', "hello-2.13"), &[("bin/hello", "#!/bin/sh\necho newer\n")], &[GLIBC], None);
    project.place.set("hello", "2.13");
    project.place.publish("two");
    project.place.lead_to("two");
    project.place.done(&["update"]);
    assert!(project.done(&["shell", "--", "hello"]).starts_with("hello"));
    project.place.asked();
    assert!(project.done(&["shell", "--offline", "--", "hello"]).starts_with("hello"));
    assert_eq!(project.place.asked(), Vec::<String>::new(), "nobody is asked for what is there");
    project.done(&["lock"]);
    assert_eq!(project.lock(), lock);
    // One of two systems has a newer one: nothing is written if the other cannot be locked.
    let failed = project.run(&["lock", "--upgrade", "hello"]);
    assert_eq!(failed.status.code(), Some(3));
    let message = String::from_utf8_lossy(&failed.stderr).into_owned();
    assert!(message.contains("hello on aarch64-linux: "), "{message}");
    assert_eq!(project.lock(), lock);
    project.write("narval.toml", "packages = ['hello', 'vim^out,man']\nsystems = ['x86_64-linux']\n");
    assert!(project.done(&["lock", "--upgrade", "hello"]).contains("hello  x86_64-linux  hello-2.12 → hello-2.13"));
    assert!(project.done(&["shell", "--", "hello"]).starts_with("newer"));
    let lines: Vec<Value> =
        project.done(&["lock", "--json", "--check"]).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((&lines[0]["type"], &lines[0]["packages"]), (&"summary".into(), &2.into()));
}

#[test]
fn a_lock_that_does_not_belong_to_the_project_is_refused() {
    let project = Project::new("packages = ['hello']\n");
    project.done(&["lock"]);
    for (toml, message) in [
        ("packages = ['hello', 'vim']\n", "it has no 'vim' for x86_64-linux: 'narval lock' mends that"),
        ("packages = ['vim']\n", "narval.toml has no 'hello' any more: 'narval lock' mends that"),
        ("packages = ['hello']\nchannel = 'nixos-25.11'\n", "narval.toml names another channel"),
        ("packages = ['hello']\nsystems = ['aarch64-linux']\n", "it is not for x86_64-linux: add that to 'systems'"),
        ("packages = ['hello']\npackage = ['x']\n", "narval.toml:2: unknown key 'package'; did you mean 'packages'?"),
        ("packages = ['hello', 'hello']\n", "narval.toml:1: packages = \"hello\": it is there twice"),
        ("packages = ['hello']\npublic-keys = [\"\\u001b[2J\"]\n", "narval.toml:2: public-keys"),
        ("packages = [\"hel\\u001b[2Jlo\"]\n", "it has a control character"),
    ] {
        project.write("narval.toml", toml);
        let all = project.fails(2, &["shell", "--", "hello"]);
        assert!(all.contains(message), "{message}: {all}");
    }
    // The other system is added to what is locked; what is removed goes.
    project.write("narval.toml", "packages = ['vim']\n");
    project.done(&["lock", "--system", "aarch64-linux"]);
    let lock = project.lock();
    assert!(lock.contains("aarch64-linux") && lock.contains("x86_64-linux") && !lock.contains("hello"), "{lock}");
    project.done(&["lock", "--check"]);
}

#[test]
fn a_torn_or_hostile_lock_ends_with_one_line() {
    let project = Project::new(BOTH);
    project.done(&["lock"]);
    let lock = project.lock();
    // Wherever it is torn.
    for len in (0..lock.len()).filter(|len| lock.is_char_boundary(*len)) {
        if lock[len..].trim().is_empty() || lock[len..].trim() == "]" && lock[..len].ends_with(']') {
            continue;
        }
        // Every byte takes too long: those near line breaks tear between values.
        if !(lock[len..].starts_with('\n') || lock[..len].ends_with('\n') || len % 97 == 0) {
            continue;
        }
        project.write("narval.lock", &lock[..len]);
        project.fails(2, &["lock", "--check"]);
    }
    let hash = lock.split("nar-hash = \"").nth(1).unwrap().split('"').next().unwrap();
    for (from, to, code, message) in [
        ("version = 1", "version = 2", 2, "a newer narval has written version 2"),
        ("hello-2.12", "../../etc", 2, "path ="),
        ("[[package]]", "x = 1\n[[package]]", 2, "unknown key"),
        (hash, "sha256:x", 2, "nar-hash"),
        ("name = \"out\"", "name = \"\"", 2, "name ="),
    ] {
        project.write("narval.lock", &lock.replace(from, to));
        let all = project.fails(code, &["shell", "--", "hello"]);
        assert!(all.contains(message) && all.contains("narval.lock"), "{message}: {all}");
    }
    // What it says of the contents is compared with what is signed, before anything is fetched; and with what the store has.
    let other = "sha256:0ip26j2h11n1kgkz36rl4akv694yz65hr72q4kv4b3lxcbi65b3p";
    let lie = lock.lines().map(|line| match line.contains(&path('0', "hello-2.12")) {
        true => format!("{}{other}\" }},\n", line.split("sha256:").next().unwrap()),
        false => format!("{line}\n"),
    });
    let lie: String = lie.collect();
    project.write("narval.lock", &lie);
    project.place.asked();
    let message = project.run(&["shell", "--", "hello"]);
    assert_eq!(message.status.code(), Some(4), "{message:?}");
    assert!(String::from_utf8_lossy(&message.stderr).contains(&format!("and the lock has {other}")), "{message:?}");
    let fetched = project.place.asked();
    let nar = |target: &&String| target.starts_with("/cache/nar/");
    assert!(fetched.iter().filter(nar).count() < 4, "{fetched:?}");
    project.write("narval.lock", &lock);
    project.done(&["shell", "--", "hello"]);
    project.write("narval.lock", &lie);
    assert!(project.fails(4, &["shell", "--", "hello"]).contains("and narval.lock another"));
    // Files that are none, and what would be written elsewhere.
    fs::remove_file(project.folder.join("narval.lock")).unwrap();
    symlink("../elsewhere", project.folder.join("narval.lock")).unwrap();
    assert!(project.fails(2, &["lock"]).contains("it is a symlink"));
    fs::remove_file(project.folder.join("narval.toml")).unwrap();
    symlink("/dev/zero", project.folder.join("narval.toml")).unwrap();
    assert!(project.fails(2, &["lock"]).contains("it is no file"));
}

/// The project is somebody else's: it is asked for before anything of it is used.
#[test]
fn caches_and_keys_of_a_project_are_used_once_they_are_accepted() {
    let project = Project::new("");
    let command = project.command(&[]);
    let key =
        |name: &str| command.get_envs().find(|(key, _)| *key == name).unwrap().1.unwrap().to_str().unwrap().to_owned();
    let (caches, keys) = (key("NARVAL_CACHES"), key("NARVAL_TRUSTED_KEYS"));
    let toml = format!("packages = ['hello']\ncaches = ['{caches}']\npublic-keys = ['{keys}']\n");
    project.write("narval.toml", &toml);
    let bare = |args: &[&str]| {
        let mut command = project.command(args);
        // One that has nothing.
        let none = format!("{}/none", project.place.url);
        command.env("NARVAL_CACHES", none).env_remove("NARVAL_TRUSTED_KEYS").stdin(std::process::Stdio::null());
        command.output().unwrap()
    };
    let refused = |args: &[&str], wants: &str| {
        project.place.asked();
        let output = bare(args);
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{message}");
        assert!(message.contains(wants) && message.contains("--accept-project accepts it"), "{message}");
        assert!(project.place.asked().iter().all(|target| !target.starts_with("/cache")), "nothing is asked");
    };
    refused(&["lock"], &format!("use the cache {caches}, trust the key {keys}"));
    // Its user has both: there is nothing to accept.
    project.done(&["lock"]);
    refused(&["shell", "--", "hello"], "trust the key");
    let output = bare(&["shell", "--accept-project", "--", "hello"]);
    assert!(String::from_utf8_lossy(&output.stdout).starts_with("hello"), "{output:?}");
    // Remembered, for these alone.
    fs::remove_dir_all(project.place.root()).unwrap();
    let output = bare(&["shell", "--", "hello"]);
    assert!(String::from_utf8_lossy(&output.stdout).starts_with("hello"), "{output:?}");
    fs::remove_dir_all(project.place.root()).unwrap();
    project.write("narval.toml", &toml.replace(&caches, &format!("{}/evil", project.place.url)));
    refused(&["shell", "--", "hello"], "/evil. Nothing");
    project.write("narval.toml", "packages = ['hello']\nchannel = 'http://127.0.0.1:9/channel'\n");
    refused(&["lock"], "use the channel http://127.0.0.1:9/channel");
    // Another folder is another project.
    let other = project.place.home().join("other");
    fs::rename(&project.folder, &other).unwrap();
    fs::create_dir(&project.folder).unwrap();
    fs::write(other.join("narval.toml"), &toml).unwrap();
    refused(&["lock", "--project", other.to_str().unwrap()], "use the cache");
}

#[test]
fn a_choice_is_locked_for_the_system_that_has_it() {
    let project = Project::new("packages = ['git']\nsystems = ['x86_64-linux', 'aarch64-linux']\n");
    let output = project.run(&["lock"]);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let (ours, arm) = (format!("git={}", "2".repeat(32)), format!("git={}", "6".repeat(32)));
    assert_eq!(project.run(&["lock", &ours]).status.code(), Some(3), "it is of one system");
    project.done(&["lock", &arm, &ours]);
    let lock = project.lock();
    assert!(lock.contains(&path('2', "git-2.51.0")) && lock.contains(&path('6', "git-2.51.0")), "{lock}");
    project.done(&["lock"]);
    assert_eq!(project.lock(), lock);
    assert!(project.done(&["shell", "--", "git"]).starts_with("minimal"));
}

#[test]
fn the_paths_of_a_project_are_no_garbage_until_it_is_gone() {
    let project = Project::new("packages = ['hello']\n");
    project.done(&["lock"]);
    project.done(&["shell", "--", "hello"]);
    let there = || project.place.root().join("nix/store").join(path('0', "hello-2.12")).exists();
    project.place.done(&["gc"]);
    assert!(there());
    fs::remove_file(project.folder.join("narval.lock")).unwrap();
    project.place.done(&["gc"]);
    assert!(!there());
}

#[test]
fn a_project_of_somebody_else_above_is_not_found() {
    let project = Project::new("packages = ['hello']\n");
    project.done(&["lock"]);
    if !rustix::process::geteuid().is_root() {
        return;
    }
    std::os::unix::fs::chown(project.folder.join("narval.toml"), Some(4711), None).unwrap();
    assert!(project.fails(2, &["shell"]).contains("narval.toml belongs to another user"));
    project.done(&["shell", "--project", ".", "--", "hello"]);
    // A folder of another owner is the border.
    std::os::unix::fs::chown(&project.folder, Some(4711), None).unwrap();
    let below = project.command(&["shell"]).current_dir(project.folder.join("src/deep")).output().unwrap();
    assert_eq!(below.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&below.stderr).contains("there is no narval.toml in"), "{below:?}");
}
