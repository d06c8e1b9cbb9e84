//! Downloads over a connection that breaks: real Nix resumes where it was.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that fails may say so")]

mod support;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use support::{NARVAL, Nix, Server, Store, noise, stdout};

/// Forwards to a server, and cuts the first connections that have carried so many bytes back.
fn cutting_proxy(server: SocketAddr, cut_at: usize, cuts: usize) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, made) = (listener.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
    let counter = Arc::clone(&made);
    std::thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let upstream = TcpStream::connect(server).unwrap();
            let (mut from, mut to) = (client.try_clone().unwrap(), upstream.try_clone().unwrap());
            std::thread::spawn(move || drop(std::io::copy(&mut from, &mut to)));
            let counter = Arc::clone(&counter);
            std::thread::spawn(move || back(upstream, client, cut_at, cuts, &counter));
        }
    });
    (address, made)
}

fn back(mut upstream: TcpStream, mut client: TcpStream, cut_at: usize, cuts: usize, made: &AtomicUsize) {
    let (mut carried, mut buffer) = (0, vec![0; 16 * 1024]);
    while let Ok(got @ 1..) = upstream.read(&mut buffer) {
        if client.write_all(&buffer[..got]).is_err() {
            return;
        }
        carried += got;
        let one_more = |made: usize| (made < cuts).then_some(made + 1);
        if carried > cut_at && made.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_more).is_ok() {
            let _ = client.shutdown(std::net::Shutdown::Both);
            let _ = upstream.shutdown(std::net::Shutdown::Both);
            return;
        }
    }
    let _ = client.shutdown(std::net::Shutdown::Both);
}

fn add_noise(store: &Store) -> String {
    // And a little that does, or it would not be worth compressing.
    store.add_file("noise", [noise(1, 12_000_000), vec![0; 100_000]].concat())
}

fn copy_through_cuts(store: &Store, server: &Server, path: &str) -> String {
    copy_by(store, server, path, "http", &[])
}

fn copy_by(store: &Store, server: &Server, path: &str, scheme: &str, env: &[(&str, &str)]) -> String {
    let (proxy, made) = cutting_proxy(server.address, 3_000_000, 3);
    let (from, to) = (format!("{scheme}://localhost:{}", proxy.port()), store.path("copy"));
    let args = ["copy", "--no-check-sigs", "--from", &from, "--to", to.to_str().unwrap(), path];
    stdout(Nix::Newest.nix_with(store.dir.path(), env, &args));
    assert_eq!(made.load(Ordering::SeqCst), 3, "the line was cut");
    std::fs::read_to_string(store.path("access.log")).unwrap()
}

#[test]
fn an_uncompressed_nar() {
    let store = Store::new();
    let path = add_noise(&store);
    let log = store.path("access.log");
    for program in [support::NIX_SERVE, NARVAL] {
        let args = ["--access-log", log.to_str().unwrap()];
        let server = if program == NARVAL {
            Server::narval(&store, &[&args[..], &["--no-nar-cache"]].concat())
        } else {
            Server::nix_serve(&store, &args, &[])
        };
        let lines = copy_through_cuts(&store, &server, &path);
        assert!(lines.contains("\" 206 "), "{lines}");
        std::fs::remove_file(&log).unwrap();
        assert!(Command::new("chmod").args(["-R", "u+w"]).arg(store.path("copy")).status().unwrap().success());
        std::fs::remove_dir_all(store.path("copy")).unwrap();
        std::fs::remove_dir_all(store.path("nix-cache")).unwrap();
    }
}

#[test]
fn a_compressed_nar() {
    let store = Store::new();
    let path = add_noise(&store);
    let log = store.path("access.log");
    let warmed = Command::new(NARVAL)
        .args(["warm", "--store", &store.uri(), &path])
        .env("XDG_CACHE_HOME", store.path("cache"))
        .output()
        .unwrap();
    stdout(warmed);
    let server = Server::narval(&store, &["--access-log", log.to_str().unwrap()]);
    let lines = copy_through_cuts(&store, &server, &path);
    assert!(lines.contains(".nar.zst HTTP/1.1\" 206 "), "{lines}");
}

/// With HTTP/2 a broken connection aborts all of its streams; each resumes where it was.
#[test]
fn over_http_2() {
    let store = Store::new();
    let path = add_noise(&store);
    let log = store.path("access.log");
    let [cert, key] = support::certificate(store.dir.path()).map(|path| path.to_str().unwrap().to_owned());
    let tls = ["--no-nar-cache", "--access-log", log.to_str().unwrap(), "--tls-cert", &cert, "--tls-key", &key];
    let server = Server::narval(&store, &tls);
    let lines = copy_by(&store, &server, &path, "https", &[("NIX_SSL_CERT_FILE", &cert)]);
    assert!(lines.contains(" HTTP/2.0\" 206 "), "{lines}");
    assert!(lines.lines().all(|line| line.contains(" HTTP/2.0\" ")), "{lines}");
}
