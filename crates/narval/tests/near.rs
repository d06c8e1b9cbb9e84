//! A cache near its clients, in front of upstreams that do not do what they should: real servers and real clients.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that fails may say so")]

mod support;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use support::{NARVAL, Nix, Server, Store, hash_part};

const PATIENCE: Duration = Duration::from_secs(120);

const HASH_PART: &str = "00bgd045z0d4icpbc2yyz4gx48ak44la";
const NAR_SIZE: usize = 10_000_000;
const FIRST: usize = 1_000_000;

/// An upstream with one path, whose NAR stops after its first bytes. Says when its connection is closed meanwhile.
fn stopping() -> (String, Receiver<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (sender, closed) = channel();
    thread::spawn(move || {
        for socket in listener.incoming() {
            let (mut socket, sender) = (socket.unwrap(), sender.clone());
            thread::spawn(move || {
                let mut request = [0; 4096];
                while let Ok(len @ 1..) = socket.read(&mut request) {
                    let asked = request[..len].split(|byte| *byte == b' ').nth(1).unwrap();
                    let is_nar = asked.starts_with(b"/nar/");
                    let narinfo = format!(
                        "StorePath: /nix/store/{HASH_PART}-x\nURL: nar/x.nar\nCompression: none\n\
                         NarHash: sha256:{}\nNarSize: {NAR_SIZE}\nReferences: \n",
                        "0".repeat(52)
                    );
                    let head = |len: usize| format!("HTTP/1.1 200 OK\r\nContent-Length: {len}\r\n\r\n");
                    let answer = match asked {
                        _ if is_nar => [head(NAR_SIZE).as_bytes(), &[0; FIRST]].concat(),
                        _ if asked.ends_with(b".narinfo") => [head(narinfo.len()), narinfo].concat().into_bytes(),
                        _ => b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n".to_vec(),
                    };
                    socket.write_all(&answer).unwrap();
                    if is_nar {
                        drop(socket.read(&mut request));
                        sender.send(()).unwrap_or_default();
                    }
                }
            });
        }
    });
    (url, closed)
}

/// A cache with this upstream, which may be silent for hours.
fn in_front_of(store: &Store, url: &str) -> Server {
    let config = format!(
        "listen = '127.0.0.1:0'\ndata = 'data'\nupstream-absent-after = '1m'\n\n[[upstream]]\nurl = '{url}'\n\
         require-signatures = false\ntimeout = '10m'\nstall-timeout = '1h'\n"
    );
    std::fs::write(store.path("narval.toml"), config).unwrap();
    let mut command = Command::new(NARVAL);
    command.args(["serve", "--config"]).arg(store.path("narval.toml"));
    Server::start(command, &[("XDG_CACHE_HOME", store.path("cache").to_str().unwrap())])
}

/// A client that has received the first bytes of the NAR.
fn downloading(cache: &Server, url: &str) -> TcpStream {
    let mut client = cache.connect();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(client, "GET /{url} HTTP/1.1\r\nHost: test\r\n\r\n").unwrap();
    client.read_exact(&mut vec![0; FIRST / 2]).unwrap();
    client
}

/// Clients share a fetch. It goes on while one of them is there, and is given up when the last one has closed its connection.
#[test]
fn a_fetch_lasts_as_long_as_a_client_waits_for_it() {
    let store = Store::new();
    let (url, closed) = stopping();
    let cache = in_front_of(&store, &url);
    let narinfo = cache.get(&format!("/{HASH_PART}.narinfo"));
    let nar = support::value(narinfo.text(), "URL").unwrap().to_owned();
    let (one, two) = (downloading(&cache, &nar), downloading(&cache, &nar));
    drop(one);
    assert!(closed.recv_timeout(Duration::from_secs(5)).is_err(), "the other client waits");
    drop(two);
    closed.recv_timeout(PATIENCE).unwrap();
}

/// A cache that takes uploads and signs them, with the log of its requests.
fn written(store: &Store, args: &[&str]) -> Server {
    let mut command = Command::new(NARVAL);
    command.args(["serve", "--listen", "127.0.0.1:0", "--data"]).arg(store.path("up"));
    command.arg("--access-log").arg(store.path("up.log")).args(args);
    Server::start(command, &[])
}

/// `nix copy` of a path to a cache.
fn push(store: &Store, cache: &Server, path: &str) {
    let mut create = Command::new(NARVAL);
    create.args(["token", "create", "--push", "--sign", &hash_part(path)[..8], "--data"]).arg(store.path("up"));
    let (netrc, token) = (store.path("netrc"), support::stdout(create.output().unwrap()));
    std::fs::write(&netrc, format!("machine 127.0.0.1 login any password {token}\n")).unwrap();
    let (to, from) = (cache.url(), store.uri());
    let args = ["copy", "--to", &to, "--from", &from, "--option", "netrc-file", netrc.to_str().unwrap(), path];
    support::stdout(Nix::Newest.nix(store.dir.path(), &args));
}

/// What an upstream does not have by its presence filter is not asked for, and what it gets is found a second later, also if it was asked
/// for just before.
#[test]
fn what_an_upstream_lacks_is_not_asked_for() {
    const ABSENT: usize = 300;
    let store = Store::new();
    let (file, key) = store.key("up-1");
    let upstream = written(&store, &["--sign-key", file.to_str().unwrap()]);
    assert!(upstream.get("/nix-cache-info").text().contains("\nPresenceFilter: presence-v1\n"));
    let (old, new) = (store.add_file("old", "old"), store.add_file("new", "new"));
    push(&store, &upstream, &old);
    let mut command = Command::new(NARVAL);
    command.args(["serve", "--listen", "127.0.0.1:0", "--data"]).arg(store.path("near"));
    command.args(["--upstream", &upstream.url(), "--upstream-key", &key]);
    let near = Server::start(command, &[]);
    let narinfo = |path: &str| near.get(&format!("/{}.narinfo", hash_part(path))).status;
    let absent = |at: usize| narinfo(&format!("/nix/store/{}{at:04}-absent", "x".repeat(28)));
    let filtered = || near.get("/metrics").figure("narval_upstream_filtered_total").unwrap();
    let asked = || {
        let log = std::fs::read_to_string(store.path("up.log")).unwrap();
        log.lines().filter(|line| line.contains(".narinfo")).count()
    };
    let until = Instant::now() + PATIENCE;
    while filtered() == 0 {
        assert_eq!(absent(0), 404);
        assert!(Instant::now() < until, "{} {}", near.log(), upstream.log());
        thread::sleep(Duration::from_millis(50));
    }
    let (before, of_filter) = (asked(), filtered());
    for at in 1..=ABSENT {
        assert_eq!(absent(at), 404);
    }
    let (asked, by_filter) = (asked() - before, filtered() - of_filter);
    // One in 256 is wrongly present.
    assert!(asked <= 10 && by_filter as usize + asked >= ABSENT, "{asked} {by_filter}");
    assert_eq!((narinfo(&old), narinfo(&new)), (200, 404));
    push(&store, &upstream, &new);
    thread::sleep(Duration::from_millis(1100));
    assert_eq!(narinfo(&new), 200, "{}", near.log());
}

/// `narval why-slow` says who was asked, and who was waited for; of a private cache, only to those who may read it.
#[test]
fn why_a_path_was_slow_can_be_asked() {
    let store = Store::new();
    let (file, key) = store.key("up-1");
    let upstream = Server::narval(&store, &["--sign-key", file.to_str().unwrap()]);
    let path = store.add_file("there", "there");
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = format!("http://{}", silent.local_addr().unwrap());
    let near = |name: &str, extra: &[&str]| {
        let mut command = Command::new(NARVAL);
        command.args(["serve", "--listen", "127.0.0.1:0", "--upstream-key", &key, "--upstream", &silent]);
        command.args(["--upstream", &upstream.url(), "--data"]).arg(store.path(name)).args(extra);
        Server::start(command, &[])
    };
    let cache = near("near", &[]);
    let why = |cache: &Server, path: &str, extra: &[&str]| {
        let mut command = Command::new(NARVAL);
        command.args(["why-slow", "--from", &cache.url(), path]).args(extra).env("HOME", store.path(""));
        command.output().unwrap()
    };
    let unknown = why(&cache, &path, &["--json"]);
    assert_eq!(unknown.status.code(), Some(3), "{unknown:?}");
    let narinfo = cache.get(&format!("/{}.narinfo", hash_part(&path)));
    assert_eq!(narinfo.status, 200);
    assert_eq!(cache.get(&format!("/{}", support::value(narinfo.text(), "URL").unwrap())).status, 200);
    let absent = "/nix/store/yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy-absent";
    assert_eq!(cache.get(&format!("/{}.narinfo", hash_part(absent))).status, 404);
    let text = support::stdout(why(&cache, &path, &[]));
    assert!(text.contains("the narinfo of") && text.contains(": found after"), "{text}");
    assert!(text.contains(&format!("{}  narinfo: has it", upstream.url())), "{text}");
    assert!(text.contains("the NAR of") && text.contains("longest wait"), "{text}");
    let text = support::stdout(why(&cache, absent, &[]));
    assert!(text.contains(&format!("{silent}  narinfo: ")) && text.contains("unknown after"), "{text}");
    assert!(text.contains(&format!("{}  narinfo: does not have it", upstream.url())), "{text}");
    let json = support::stdout(why(&cache, absent, &["--json"]));
    assert!(json.contains("\"type\":\"trace\"") && json.lines().last().unwrap().contains("summary"), "{json}");
    // The rights are those of reading.
    let private = near("private", &["--private"]);
    let route = format!("/_narval/v1/traces/{}", hash_part(&path));
    assert_eq!((cache.get(&route).status, private.get(&route).status), (200, 401));
    assert_eq!(upstream.get(&route).status, 404);
    assert_ne!(why(&private, &path, &[]).status.code(), Some(0));
}

/// A filter tells who has what: only those who may read get it, and a cache with more sources than its own has none.
#[test]
fn a_presence_filter_is_for_those_who_may_read() {
    let store = Store::new();
    let (file, key) = store.key("up-1");
    let private = written(&store, &["--private", "--sign-key", file.to_str().unwrap()]);
    assert_eq!(private.get("/presence-v1").status, 401);
    // A near cache with a token for pulls uses it.
    let mut create = Command::new(NARVAL);
    create.args(["token", "create", "--pull", "near", "--data"]).arg(store.path("up"));
    let (netrc, token) = (store.path("netrc"), support::stdout(create.output().unwrap()));
    std::fs::write(&netrc, format!("machine 127.0.0.1 login any password {token}\n")).unwrap();
    let config = format!(
        "listen = '127.0.0.1:0'\ndata = 'near'\nupstream-absent-after = '10s'\n\n[[upstream]]\nurl = '{}'\nkeys = ['{key}']\n\
         netrc-file = 'netrc'\n",
        private.url()
    );
    std::fs::write(store.path("near.toml"), config).unwrap();
    let mut command = Command::new(NARVAL);
    command.args(["serve", "--config"]).arg(store.path("near.toml"));
    let near = Server::start(command, &[]);
    let until = Instant::now() + PATIENCE;
    for at in 0.. {
        if near.get("/metrics").figure("narval_upstream_filtered_total").unwrap() > 0 {
            break;
        }
        assert!(Instant::now() < until, "{}", near.log());
        assert_eq!(near.get(&format!("/{}{at:04}.narinfo", "x".repeat(28))).status, 404);
        thread::sleep(Duration::from_millis(50));
    }
    let live = Server::narval(&store, &[]);
    assert_eq!(live.get("/presence-v1").status, 404);
    assert!(!live.get("/nix-cache-info").text().contains("PresenceFilter"));
}
