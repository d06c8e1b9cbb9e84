//! Work that takes hours says how far it is, and what Ctrl-C keeps.

use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::lab::{Lab, Nar, object_of};
use crate::support::{NARVAL, Running, Store, stdout};

/// The length of a file that no test reads to its end. Most of it is a hole.
const LONG: u64 = 1 << 40;

/// How long anything may take before a test gives up.
const PATIENCE: Duration = Duration::from_secs(60);

/// The begin of a NAR with one file of this length.
fn head_of_nar(len: u64) -> Vec<u8> {
    let mut head = Vec::new();
    for text in ["nix-archive-1", "(", "type", "regular", "contents"] {
        head.extend_from_slice(&(text.len() as u64).to_le_bytes());
        head.extend_from_slice(text.as_bytes());
        head.resize(head.len().next_multiple_of(8), 0);
    }
    head.extend_from_slice(&len.to_le_bytes());
    head
}

fn narval(data: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(NARVAL);
    command.args(args).arg("--data").arg(data).env("NARVAL_PROGRESS", "20ms");
    command
}

/// Reads until this text comes. Returns all so far.
fn read_until(output: &mut impl Read, what: &str) -> String {
    let (mut message, mut piece, until) = (Vec::new(), [0; 4096], Instant::now() + PATIENCE);
    loop {
        let len = output.read(&mut piece).unwrap_or(0);
        message.extend_from_slice(&piece[..len]);
        let text = String::from_utf8_lossy(&message);
        if text.contains(what) {
            return text.into_owned();
        }
        assert!(len > 0 && Instant::now() < until, "'{what}' is not in {text}");
    }
}

fn interrupt(child: &Child) {
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
}

/// All that is printed after an interruption, by a process that ends with 130.
fn rest(mut child: Running, output: &mut impl Read) -> String {
    let mut message = String::new();
    output.read_to_string(&mut message).unwrap();
    assert_eq!(child.0.wait().unwrap().code(), Some(130), "{message}");
    message
}

#[test]
fn a_rebuild_says_how_far_it_is_and_its_interruption_keeps_the_old_index() {
    let store = Store::new();
    let data = store.path("data");
    stdout(narval(&data, &["token", "create", "--pull", "a"]).output().unwrap());
    let before = stdout(narval(&data, &["token", "list"]).output().unwrap());
    std::fs::create_dir_all(data.join("caches/default/nar")).unwrap();
    let nar = Nar::of(b"");
    let mut file = File::create(data.join(format!("caches/default{}", nar.url()))).unwrap();
    file.write_all(&head_of_nar(LONG)).unwrap();
    file.set_len(LONG + 4096).unwrap();
    drop(file);
    let mut rebuild = narval(&data, &["cache", "fsck", "--rebuild"]);
    let mut child = Running(rebuild.stderr(Stdio::piped()).spawn().unwrap());
    let mut stderr = child.0.stderr.take().unwrap();
    let line = read_until(&mut stderr, " left\n");
    assert!(line.contains("verifying: 0/1 NARs  ") && line.contains("/1.1 TB  ") && line.contains("B/s "), "{line}");
    interrupt(&child.0);
    let kept = "stopping; the index of before is in force; a second signal stops immediately\n";
    let message = read_until(&mut stderr, kept) + &rest(child, &mut stderr);
    // A machine that is too busy to end it in three seconds gets no more.
    let why = "interrupted; the index of before is in force, and the same command starts from the beginning";
    assert!(message.ends_with(kept) || message.contains(why), "{message}");
    assert_eq!(stdout(narval(&data, &["token", "list"]).output().unwrap()), before);
}

#[test]
fn a_check_fills_a_line_of_a_terminal_until_ctrl_c() {
    let mut lab = Lab::new();
    let token = lab.token("push");
    let nar = Nar::of(b"contents");
    assert_eq!(lab.put(&nar.url(), &token, &nar.bytes).status, 201);
    lab.restart("-TERM");
    let data = lab.data_path();
    let file = object_of(&data.join("caches/default"), &nar.url());
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).unwrap();
    File::options().write(true).open(&file).unwrap().set_len(LONG).unwrap();
    let index = rusqlite::Connection::open(data.join("index.sqlite")).unwrap();
    index.execute("update nars set file_size = ?1", [LONG]).unwrap();
    drop(index);
    let check = format!("exec {NARVAL} cache fsck --contents --data {}", data.display());
    let mut script = Command::new("script");
    script.args(["-qefc", &check, "/dev/null"]).env("TERM", "xterm").env("SHELL", "/bin/sh");
    let mut script = Running(script.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap());
    let (mut keys, mut shown) = (script.0.stdin.take().unwrap(), script.0.stdout.take().unwrap());
    let screen = read_until(&mut shown, " left");
    assert!(screen.contains("NARs  ") && screen.contains("/1.1 TB"), "{screen}");
    keys.write_all(b"\x03").unwrap();
    let message = read_until(&mut shown, "stopping; nothing was changed; a second signal") + &rest(script, &mut shown);
    assert!(message.contains("checking"), "the step has a name: {message}");
}

#[test]
fn a_push_says_what_its_interruption_keeps() {
    let store = Store::new();
    let path = store.add_file("a", "a");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = format!("http://{}", listener.local_addr().unwrap());
    let mut push = Command::new(NARVAL);
    push.args(["push", "--store", &store.uri(), "--to", &to, &path]).env("HOME", store.dir.path());
    let mut child = Running(push.env_remove("NARVAL_STORE").stderr(Stdio::piped()).spawn().unwrap());
    // It is asked, and does not answer.
    let _connection = listener.accept().unwrap();
    interrupt(&child.0);
    let mut stderr = child.0.stderr.take().unwrap();
    read_until(&mut stderr, "stopping; what the cache has received stays there for 24 hours; a second signal");
    rest(child, &mut stderr);
}
