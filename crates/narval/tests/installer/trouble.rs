//! Full disks and interruptions: a clear error, a clean store, and the next run resumes.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use crate::lab::{Lab, leftovers};
use crate::support::stdout;

/// How long anything may take before a test gives up.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

#[test]
fn a_full_disk_is_an_error_of_its_own_and_leaves_a_clean_store() {
    let lab = Lab::new();
    let mount = lab.folder("small");
    std::fs::create_dir(&mount).unwrap();
    // As root of a namespace of its own: a disk that nobody else sees. Then the store is looked at, and given more room.
    let script = r#"
        mount -t tmpfs -o size="$size" small "$mount" || exit 99
        "$@" --store "$mount/root"; code=$?
        find "$mount/root/nix/store" -name '*-narval-tmp-*' 2>/dev/null | grep . && exit 98
        mount -o remount,size=200m "$mount" || exit 96
        if [ -e "$mount/root/nix/var/nix/db/schema" ]; then
            nix-store --store "$mount/root" --verify --check-contents || exit 97
        fi
        "$@" --store "$mount/root" || exit 95
        nix-store --store "$mount/root" --verify --check-contents || exit 94
        exit $code"#;
    let url = lab.cache_url();
    // Files of a few bytes take a page each: what is announced fits, and what is written does not.
    for (size, expected) in [("300k", "not enough space"), ("1500k", "make room")] {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--mount", "sh", "-c", script, "sh"]);
        command.args([crate::support::NARVAL, "install", "--quiet", "--from", &url, &lab.tree]);
        command.env("size", size).env("mount", &mount).env_remove("NIX_REMOTE").env("HOME", lab.store.dir.path());
        let output = command.output().unwrap();
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.code() == Some(99) || message.contains("unshare:") {
            eprintln!("note: skipped: namespaces are refused here");
            return;
        }
        assert_eq!(output.status.code(), Some(6), "{size}: {message}");
        assert!(message.contains(expected), "{size}: {message}");
    }
}

/// Serves a folder: the first half of each NAR, and the rest only when it is released.
pub(crate) fn hesitant_server(folder: PathBuf) -> (String, Receiver<()>, Sender<()>) {
    hesitant_at(folder, |_| true)
}

/// As [`hesitant_server`], where only these NARs are slow.
pub(crate) fn hesitant_at(
    folder: PathBuf,
    is_slow: impl Fn(&str) -> bool + Clone + Send + 'static,
) -> (String, Receiver<()>, Sender<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (asked, was_asked) = channel();
    let (go_on, may_go_on) = channel::<()>();
    let may_go_on = std::sync::Arc::new(std::sync::Mutex::new(may_go_on));
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let (folder, asked, may_go_on) = (folder.clone(), asked.clone(), std::sync::Arc::clone(&may_go_on));
            let is_slow = is_slow.clone();
            std::thread::spawn(move || {
                while let Some(target) = read_target(&mut stream) {
                    let Ok(body) = std::fs::read(folder.join(target.trim_start_matches('/'))) else {
                        let _ = stream.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n");
                        continue;
                    };
                    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
                    let half =
                        if target.starts_with("/nar/") && is_slow(&target) { body.len() / 2 } else { body.len() };
                    let _ = stream.write_all(&[head.as_bytes(), &body[..half]].concat());
                    if half < body.len() {
                        let _ = asked.send(());
                        // Ends when the test does, too.
                        let _ = may_go_on.lock().unwrap().recv();
                        let _ = stream.write_all(&body[half..]);
                    }
                }
            });
        }
    });
    (url, was_asked, go_on)
}

fn read_target(stream: &mut impl Read) -> Option<String> {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        if stream.read(&mut byte).ok()? == 0 {
            return None;
        }
        head.push(byte[0]);
    }
    Some(String::from_utf8(head).ok()?.split(' ').nth(1)?.to_owned())
}

#[test]
fn an_interrupt_leaves_a_clean_store_and_the_next_run_continues() {
    let lab = Lab::new();
    let root = lab.folder("mine");
    let (url, was_asked, go_on) = hesitant_server(lab.cache());
    let mut command = lab.command(&["install", "--from", &url, "--store", &root, &lab.tree]);
    let mut child = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    was_asked.recv_timeout(PATIENCE).unwrap();
    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    // Then the download continues, so that threads that wait for the network see the interrupt.
    let since = Instant::now();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let mut message = String::new();
    while !message.contains("stopping") {
        assert!(stderr.read_line(&mut message).unwrap() > 0, "{message}");
    }
    let _ = go_on.send(());
    stderr.read_to_string(&mut message).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130), "{message}");
    // A machine that is too busy to end the threads in three seconds leaves that to the next install.
    if since.elapsed() < Duration::from_secs(2) {
        assert!(message.contains("interrupted"), "{message}");
        assert_eq!(leftovers(Path::new(&root)), Vec::<String>::new());
    }
    lab.install(&root, &[&lab.tree]);
    lab.assert_accepted(&root, &[&lab.tree]);
}

#[test]
fn a_killed_install_is_resumed() {
    let lab = Lab::new();
    let root = lab.folder("mine");
    let (url, was_asked, _go_on) = hesitant_server(lab.cache());
    let mut command = lab.command(&["install", "--quiet", "--from", &url, "--store", &root, &lab.tree]);
    let mut child = command.stdin(Stdio::null()).spawn().unwrap();
    was_asked.recv_timeout(PATIENCE).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    lab.install(&root, &[&lab.tree]);
    lab.assert_accepted(&root, &[&lab.tree]);
    stdout(lab.run(&["verify", "--store", &root]));
}

/// Names in a cache folder that are neither narinfos nor NARs.
fn hidden_names(cache: &Path) -> Vec<String> {
    let names = |folder: PathBuf| std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
    let all = names(cache.to_owned()).chain(names(cache.join("nar")));
    all.map(|name| name.into_string().unwrap()).filter(|name| name.starts_with('.')).collect()
}

#[test]
fn a_killed_copy_leaves_nothing_behind_forever() {
    let lab = Lab::new();
    let to = lab.store.path("mirror");
    let (url, was_asked, _go_on) = hesitant_server(lab.cache());
    let to_url = format!("file://{}", to.display());
    let args = ["copy", "--no-check-sigs", "--from", &url, "--to", &to_url, &lab.tree];
    let mut child = lab.command(&args).stdin(Stdio::null()).spawn().unwrap();
    was_asked.recv_timeout(PATIENCE).unwrap();
    // Another copy to the same folder meets one that is at work, and leaves it alone.
    lab.done(&["copy", "--quiet", "--store", &lab.store.uri(), "--to", &to_url, &lab.hello]);
    assert_eq!(hidden_names(&to).len(), 1);
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(hidden_names(&to).len(), 1);
    lab.done(&["copy", "--quiet", "--from", &lab.cache_url(), "--to", &to_url, &lab.tree]);
    assert_eq!(hidden_names(&to), Vec::<String>::new());
}
