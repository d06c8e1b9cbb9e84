//! A cache near its clients, in front of upstreams that do not do what they should: real servers and real clients.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that fails may say so")]

mod support;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use support::{NARVAL, Server, Store};

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
