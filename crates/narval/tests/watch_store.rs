//! `narval watch-store`: stores of real Nix, servers of ours that are written, and a watcher between them.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that fails may say so")]

#[path = "../../narval-s3/tests/ports/mod.rs"]
mod ports;
mod support;

use std::io::Read;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use support::{NARVAL, Nix, Server, Store, hash_part, stdout};

const PATIENCE: Duration = Duration::from_secs(60);

/// A watcher, killed when dropped.
struct Watcher(Child);

impl Watcher {
    /// Ends it with a signal; its exit code and what it said.
    fn end(mut self, signal: &str) -> (Option<i32>, String) {
        let pid = self.0.id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
        let status = self.0.wait().unwrap();
        let mut output_text = String::new();
        self.0.stderr.take().unwrap().read_to_string(&mut output_text).unwrap();
        (status.code(), output_text)
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn command(store: &Store, args: &[&str]) -> Command {
    let mut command = Command::new(NARVAL);
    command.arg("watch-store").args(["--store", &store.uri()]).args(args);
    command.env("NARVAL_STATE", store.path("state")).env("HOME", store.path("home")).env_remove("NOTIFY_SOCKET");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    command
}

/// Starts a watcher, and waits until it watches: systemd would be told so.
fn watch(store: &Store, args: &[&str]) -> Watcher {
    let socket = store.path("notify");
    let _ = std::fs::remove_file(&socket);
    let notified = UnixDatagram::bind(&socket).unwrap();
    notified.set_read_timeout(Some(PATIENCE)).unwrap();
    let watcher = Watcher(command(store, args).env("NOTIFY_SOCKET", &socket).spawn().unwrap());
    let mut message = [0; 1024];
    let len = notified.recv(&mut message).expect("it is not ready");
    assert_eq!(&message[..len], b"READY=1\n", "{}", String::from_utf8_lossy(&message));
    watcher
}

fn once(store: &Store, args: &[&str]) -> Output {
    command(store, args).arg("--once").output().unwrap()
}

fn error(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Waits until a narinfo is in the folder of a cache.
fn wait_for(folder: &Path, path: &str) {
    let until = Instant::now() + PATIENCE;
    while !is_in(folder, path) {
        assert!(Instant::now() < until, "{path} does not come");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn is_in(folder: &Path, path: &str) -> bool {
    folder.join(format!("{}.narinfo", hash_part(path))).exists()
}

fn url(folder: &Path) -> String {
    format!("file://{}", folder.display())
}

/// The text of a file that refers to a path.
fn referring_to(store: &Store, name: &str, path: &str) -> String {
    let file = store.path(name);
    std::fs::write(&file, format!("see {path}\n")).unwrap();
    let expression = format!("builtins.toFile \"{name}\" (builtins.storePath \"{path}\")");
    let args = ["eval", "--raw", "--impure", "--store", &store.uri(), "--expr", &expression];
    stdout(Nix::Newest.nix(store.dir.path(), &args))
}

#[test]
fn new_valid_paths_are_pushed_and_remembered_across_restarts() {
    let store = Store::new();
    let cache = store.path("cache");
    let before = store.add_file("before", "valid before the watcher knew the cache");
    let watcher = watch(&store, &["--to", &url(&cache)]);
    let first = store.add_tree("first");
    wait_for(&cache, &first);
    assert!(!is_in(&cache, &before), "only paths that become valid from now on");
    let (code, output_text) = watcher.end("-TERM");
    assert_eq!(code, Some(0), "{output_text}");
    // While nobody watches.
    let missed = store.add_file("missed", "valid while nobody watches");
    let watcher = watch(&store, &["--to", &url(&cache)]);
    wait_for(&cache, &missed);
    assert!(!is_in(&cache, &before));
    let (code, output_text) = watcher.end("-INT");
    assert_eq!((code, output_text.contains(" pushed 1, already there 0")), (Some(0), true), "{output_text}");
    // Another cache begins by itself; told so, with what is there already.
    let other = store.path("other");
    let output = once(&store, &["--to", &url(&other), "--existing"]);
    assert!(output.status.success(), "{}", error(&output));
    assert!([&before, &first, &missed].into_iter().all(|path| is_in(&other, path)));
    let copy = store.path("copy");
    let args = ["copy", "--from", &url(&other), "--to", copy.to_str().unwrap(), "--no-check-sigs", &first];
    stdout(Nix::Newest.nix(store.dir.path(), &args));
}

#[test]
fn a_path_is_pushed_with_its_references_and_filters_apply() {
    let store = Store::new();
    let cache = store.path("cache");
    assert!(once(&store, &["--to", &url(&cache)]).status.success());
    let (lib, source) = (store.add_file("lib-source", "a reference"), store.add_file("a-source", "alone"));
    let app = referring_to(&store, "app", &lib);
    let output = once(&store, &["--to", &url(&cache), "--exclude", "*-source"]);
    assert!(output.status.success(), "{}", error(&output));
    assert!(is_in(&cache, &app) && is_in(&cache, &lib) && !is_in(&cache, &source));
    // Nothing of this was built here.
    let later = store.add_file("later", "added");
    assert!(once(&store, &["--to", &url(&cache), "--only-built"]).status.success());
    assert!(!is_in(&cache, &later));
    let refused = once(&store, &["--to", &url(&cache), "--exclude", "["]);
    assert_eq!(refused.status.code(), Some(2), "{}", error(&refused));
}

/// A server that has no upstream takes no path that refers to what it lacks; a folder takes any.
#[test]
fn what_another_cache_has_signed_is_left_out_with_the_references_to_it() {
    let store = Store::new();
    let cache = store.path("cache");
    assert!(once(&store, &["--to", &url(&cache)]).status.success());
    let (key, _) = store.key("upstream-1");
    let (lib, own) = (store.add_file("lib", "from upstream"), store.add_file("own-lib", "ours"));
    let args = ["store", "sign", "--store", &store.uri(), "--key-file", key.to_str().unwrap(), &lib];
    stdout(Nix::Newest.nix(store.dir.path(), &args));
    let (app, other) = (referring_to(&store, "app", &lib), referring_to(&store, "other", &own));
    let output = once(&store, &["--to", &url(&cache), "--skip-signed-by", "upstream-1"]);
    assert!(output.status.success(), "{}", error(&output));
    assert!(is_in(&cache, &app) && is_in(&cache, &other) && is_in(&cache, &own) && !is_in(&cache, &lib));
}

/// By default, what the other caches of the machine have; but a cache without them as upstreams refuses what refers to it.
#[test]
fn a_cache_that_takes_complete_closures_alone_gets_them() {
    let store = Store::new();
    let lib = store.add_file("lib", "in another cache");
    let (other, state) = (url(&store.path("other")), store.path("state-of-another"));
    let push = |args: &[&str]| {
        let mut command = Command::new(NARVAL);
        command.args(["push", "--json", "--store", &store.uri()]).args(args).env("NARVAL_CACHES", &other);
        stdout(command.env("HOME", store.path("home")).output().unwrap())
    };
    push(&["--to", &other, &lib]);
    let app = referring_to(&store, "app", &lib);
    let (server, token) = server(&store, "127.0.0.1:0");
    let to = ["--to", &server.url(), "--token-file", token.to_str().unwrap()];
    let lacking = push(&[&to[..], &["--dry-run", &app]].concat());
    assert!(lacking.contains(&app) && !lacking.contains(&lib) && lacking.contains("\"paths\":1"), "{lacking}");
    // The folder of the other cache has no question about itself.
    let whole = push(&[&to[..], &[&app]].concat());
    assert!(whole.contains("\"pushed\":2") && whole.contains("\"elsewhere\":0"), "{whole}");
    let later = referring_to(&store, "later", &store.add_file("more", "in another cache"));
    push(&["--to", &other, &later]);
    let mut watching = command(&store, &[&to[..], &["--state", state.to_str().unwrap(), "--existing"]].concat());
    let pending = watching.arg("--dry-run").env("NARVAL_CACHES", &other).stdout(Stdio::piped()).output().unwrap();
    assert!(pending.status.success() && !state.exists(), "{}", error(&pending));
    let mut watching =
        command(&store, &[&to[..], &["--state", state.to_str().unwrap(), "--existing", "--once"]].concat());
    let pushed = watching.env("NARVAL_CACHES", &other).output().unwrap();
    assert!(pushed.status.success(), "{}", error(&pushed));
    assert_eq!(server.get(&format!("/{}.narinfo", hash_part(&later))).status, 404, "the other cache has it");
}

/// cachix#509: the watcher dies of a path that is invalid by then.
#[test]
fn paths_that_are_no_longer_valid_are_skipped() {
    let store = Store::new();
    let cache = store.path("cache");
    assert!(once(&store, &["--to", &url(&cache)]).status.success());
    let (gone, stays) = (store.add_file("gone", "deleted"), store.add_file("stays", "not deleted"));
    queue(&store, &format!("{gone} {stays} /nix/store/{}-never", "0".repeat(32)));
    stdout(store.nix_store(&["--delete", &gone]));
    let output = once(&store, &["--to", &url(&cache)]);
    assert!(output.status.success(), "{}", error(&output));
    assert!(error(&output).contains("no longer valid"), "{}", error(&output));
    assert!(is_in(&cache, &stays) && !is_in(&cache, &gone));
}

/// A path whose files were changed keeps no other one from being pushed.
#[test]
fn a_damaged_path_does_not_delay_the_others() {
    let store = Store::new();
    let cache = store.path("cache");
    assert!(once(&store, &["--to", &url(&cache)]).status.success());
    let (damaged, fine) = (store.add_file("damaged", "0123456789"), store.add_file("fine", "fine"));
    let real = store.real(&damaged);
    std::fs::remove_file(&real).unwrap();
    std::fs::write(&real, "9876543210").unwrap();
    let output = once(&store, &["--to", &url(&cache)]);
    assert_eq!(output.status.code(), Some(1), "{}", error(&output));
    assert!(error(&output).contains("-damaged was not pushed"), "{}", error(&output));
    assert!(is_in(&cache, &fine) && !is_in(&cache, &damaged));
}

fn queue(store: &Store, paths: &str) {
    let mut command = Command::new(NARVAL);
    command.arg("hook").env("NARVAL_STATE", store.path("state")).env("OUT_PATHS", paths);
    let output = command.output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{}", error(&output));
}

#[test]
fn the_queue_of_hooks_wakes_the_watcher_and_is_emptied() {
    let store = Store::new();
    let cache = store.path("cache");
    let path = store.add_file("built", "valid before; only the hook tells of it");
    let watcher = watch(&store, &["--to", &url(&cache)]);
    queue(&store, &path);
    wait_for(&cache, &path);
    assert_eq!(std::fs::read_dir(store.path("state/queue")).unwrap().count(), 0);
    assert_eq!(watcher.end("-TERM").0, Some(0));
    let (other, queued) = (store.add_file("other", "nobody queues it"), store.add_file("queued", "queued"));
    queue(&store, &queued);
    let watcher = watch(&store, &["--to", &url(&cache), "--queue-only"]);
    wait_for(&cache, &queued);
    // A second one with the same state would take what is the first one's.
    let second = once(&store, &["--to", &url(&cache)]);
    assert_eq!(second.status.code(), Some(2), "{}", error(&second));
    assert!(error(&second).contains("--state"), "{}", error(&second));
    assert_eq!(watcher.end("-TERM").0, Some(0));
    assert!(once(&store, &["--to", &url(&cache)]).status.success());
    assert!(!is_in(&cache, &other), "left out for good");
}

/// A server with a cache that can be written, and a token for it.
fn server(store: &Store, listen: &str) -> (Server, PathBuf) {
    let (data, token) = (store.path("data"), store.path("token"));
    if !token.exists() {
        let mut command = Command::new(NARVAL);
        command.args(["token", "create", "--push", "--pull", "test", "--data"]).arg(&data);
        std::fs::write(&token, stdout(command.output().unwrap())).unwrap();
    }
    let mut command = Command::new(NARVAL);
    command.args(["serve", "--listen", listen, "--data"]).arg(&data);
    (Server::start(command, &[("XDG_CACHE_HOME", store.path("xdg").to_str().unwrap())]), token)
}

/// While a cache is down its paths wait, and another cache gets them.
#[test]
fn a_cache_that_is_down_gets_what_it_missed() {
    let store = Store::new();
    // No other program may get the port while nobody listens.
    let address = format!("127.0.0.1:{}", ports::free_port());
    let (first, token) = server(&store, &address);
    let url_of = first.url();
    let folder = store.path("folder");
    let token = token.to_str().unwrap();
    let to = ["--to", &url_of, "--to", &url(&folder), "--token-file", token, "--attempts", "1"];
    let watcher = watch(&store, &to);
    let one = store.add_tree("one");
    wait_for(&folder, &one);
    let until = Instant::now() + PATIENCE;
    while first.get(&format!("/{}.narinfo", hash_part(&one))).status != 200 {
        assert!(Instant::now() < until);
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(first.terminate(), Some(0));
    let two = store.add_file("two", "while the server is down");
    wait_for(&folder, &two);
    let (code, output_text) = watcher.end("-TERM");
    assert_eq!(code, Some(0), "{output_text}");
    // Down when the watcher begins, too.
    let watcher = watch(&store, &to);
    let (second, _) = server(&store, &address);
    let until = Instant::now() + PATIENCE;
    while second.get(&format!("/{}.narinfo", hash_part(&two))).status != 200 {
        assert!(Instant::now() < until, "{two} does not come");
        std::thread::sleep(Duration::from_millis(50));
    }
    let (code, output_text) = watcher.end("-TERM");
    assert_eq!(code, Some(0), "{output_text}");
    // Without a token nothing is written, and nothing is lost.
    let three = store.add_file("three", "refused at first");
    let refused = once(&store, &["--to", &url_of]);
    assert_eq!(refused.status.code(), Some(1), "{}", error(&refused));
    let given = once(&store, &["--to", &url_of, "--token-file", token]);
    assert!(given.status.success(), "{}", error(&given));
    assert_eq!(second.get(&format!("/{}.narinfo", hash_part(&three))).status, 200);
}

/// Killed at any moment and started again, the watcher has pushed everything in the end.
#[test]
fn nothing_is_lost_by_kills() {
    let store = Store::new();
    let cache = store.path("cache");
    assert!(once(&store, &["--to", &url(&cache)]).status.success());
    let mut paths = Vec::new();
    for round in 0..12_u64 {
        paths.push(store.add_file(&format!("by-database-{round}"), vec![b'x'; 300_000]));
        queue(&store, paths.last().unwrap());
        let mut child = command(&store, &["--to", &url(&cache), "--once"]).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(round * 12));
        // It may have ended.
        let _ = child.kill();
        child.wait().unwrap();
    }
    let output = once(&store, &["--to", &url(&cache)]);
    assert!(output.status.success(), "{}", error(&output));
    assert!(paths.iter().all(|path| is_in(&cache, path)));
    let copy = store.path("copy");
    let mut args = vec!["copy", "--from", "", "--to", copy.to_str().unwrap(), "--no-check-sigs"];
    let from = url(&cache);
    args[2] = &from;
    args.extend(paths.iter().map(String::as_str));
    stdout(Nix::Newest.nix(store.dir.path(), &args));
}

/// A signal while a cache does not answer: the watcher ends, and its pending paths are remembered.
#[test]
fn a_signal_during_the_work_ends_it_cleanly() {
    let store = Store::new();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let to = format!("http://{}", listener.local_addr().unwrap());
    let watcher = watch(&store, &["--to", &to]);
    store.add_file("a", "never answered");
    let (_connection, _) = listener.accept().unwrap();
    let (code, output_text) = watcher.end("-TERM");
    assert_eq!(code, Some(0), "{output_text}");
    assert!(output_text.contains("left for the next run"), "{output_text}");
    drop(listener);
    let output = once(&store, &["--to", &to, "--attempts", "1"]);
    assert_eq!(output.status.code(), Some(1), "{}", error(&output));
    assert!(error(&output).contains("narval: not pushed and left for the next run: 1 path"), "{}", error(&output));
}

/// Puts the database and the files of another store in the place of this one's.
fn replace(store: &Store, by: &Store) {
    let (mine, other) = (store.path("root/nix"), by.path("root/nix"));
    let files = format!("cp -an {}/store/. {}/store/", other.display(), mine.display());
    assert!(Command::new("sh").args(["-c", &files]).status().unwrap().success());
    for log in ["db.sqlite-wal", "db.sqlite-shm"] {
        let _ = std::fs::remove_file(mine.join("var/nix/db").join(log));
    }
    std::fs::rename(other.join("var/nix/db/db.sqlite"), mine.join("var/nix/db/db.sqlite")).unwrap();
}

fn add_files(store: &Store, what: &str, count: usize) -> Vec<String> {
    (0..count).map(|number| store.add_file(&format!("{what}-{number}"), format!("{what} {number}"))).collect()
}

/// A database that takes the place of another one under the watcher loses no path that becomes valid in it.
#[test]
fn a_database_that_is_replaced_while_it_is_watched_is_noticed() {
    for (before, after) in [(6, 2), (2, 12)] {
        let (store, other) = (Store::new(), Store::new());
        let cache = store.path("cache");
        add_files(&store, "mine", before);
        let old = add_files(&other, "old", after);
        let watcher = watch(&store, &["--to", &url(&cache)]);
        replace(&store, &other);
        let new = add_files(&store, "new", 3);
        new.iter().for_each(|path| wait_for(&cache, path));
        let (code, output_text) = watcher.end("-TERM");
        assert!(code == Some(0) && output_text.contains("another database than before"), "{output_text}");
        let output = once(&store, &["--to", &url(&cache), "--existing"]);
        assert!(output.status.success() && !error(&output).contains("another"), "{}", error(&output));
        assert!(old.iter().all(|path| is_in(&cache, path)));
    }
}

#[test]
fn a_database_that_is_replaced_while_nobody_watches_is_noticed() {
    for (before, after) in [(6, 2), (2, 12)] {
        let (store, other) = (Store::new(), Store::new());
        let (cache, slash) = (store.path("cache"), format!("{}/", url(&store.path("cache"))));
        add_files(&store, "mine", before);
        let old = add_files(&other, "old", after);
        assert!(once(&store, &["--to", &url(&cache)]).status.success());
        replace(&store, &other);
        let new = add_files(&store, "new", 3);
        // The address is another spelling of the same cache.
        let output = once(&store, &["--to", &slash]);
        let output_text = error(&output);
        assert!(output.status.success() && output_text.contains("another database than before"), "{output_text}");
        assert!(output_text.contains("--existing") && new.iter().all(|path| is_in(&cache, path)), "{output_text}");
        let output = once(&store, &["--to", &url(&cache), "--existing"]);
        assert!(output.status.success() && !error(&output).contains("another"), "{}", error(&output));
        assert!(old.iter().all(|path| is_in(&cache, path)));
        // Asked for once, and done.
        let output = once(&store, &["--to", &url(&cache), "--existing"]);
        assert!(error(&output).contains("0 paths pushed"), "{}", error(&output));
    }
}
