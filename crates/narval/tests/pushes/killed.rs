//! Real Nix that is killed while it uploads over HTTP/2.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use narval_nix::Sha256;

use crate::lab::Lab;
use crate::support::{hash_part, noise};

const NOISE: usize = 24 << 20;

/// Forwards to a server, slowly enough that a client can be killed meanwhile; and counts the bytes that clients send.
fn slow_relay(server: SocketAddr) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, sent) = (listener.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
    let counter = Arc::clone(&sent);
    std::thread::spawn(move || {
        for mut client in listener.incoming().map_while(Result::ok) {
            let mut server = TcpStream::connect(server).unwrap();
            let (mut back_from, mut back_to) = (server.try_clone().unwrap(), client.try_clone().unwrap());
            std::thread::spawn(move || drop(std::io::copy(&mut back_from, &mut back_to)));
            let counter = Arc::clone(&counter);
            std::thread::spawn(move || {
                let mut buffer = vec![0; 16 * 1024];
                while let Ok(got @ 1..) = client.read(&mut buffer) {
                    if server.write_all(&buffer[..got]).is_err() {
                        break;
                    }
                    counter.fetch_add(got, Ordering::SeqCst);
                    std::thread::sleep(Duration::from_millis(1));
                }
                // It fails if the server has closed the connection.
                let _ = server.shutdown(Shutdown::Both);
            });
        }
    });
    (address, sent)
}

/// What is answered at a path: the status and the body.
fn fetch(lab: &Lab, path: &str) -> (String, Vec<u8>) {
    let url = format!("https://{}{path}", lab.server.address);
    let out =
        Command::new("curl").args(["-sk", "--max-time", "60", "-w", "%{stderr}%{http_code}", &url]).output().unwrap();
    (String::from_utf8(out.stderr).unwrap(), out.stdout)
}

#[test]
fn a_nix_that_is_killed_while_it_uploads_over_http_2_leaves_nothing_half_visible() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("access.log");
    let (lab, cert) = Lab::over_tls(&["--access-log", log.to_str().unwrap()]);
    let path = lab.store.add_file("noise", noise(1, NOISE));
    let nar = lab.store.dump(&path);
    let paths = [format!("/{}.narinfo", hash_part(&path)), format!("/nar/{}.nar", Sha256::of(&nar).to_nix32())];
    let netrc = lab.netrc(&lab.token("push"));
    let (relay, sent) = slow_relay(lab.server.address);
    let copy = || {
        let mut command = Command::new("nix");
        command.args(["--extra-experimental-features", "nix-command", "copy", "--refresh", "--from", &lab.store.uri()]);
        command
            .args(["--to", &format!("https://{relay}?compression=none"), &path, "--option", "netrc-file"])
            .arg(&netrc);
        command.env("HOME", lab.store.dir.path()).env("XDG_CACHE_HOME", lab.store.path("nix-cache"));
        command.env("NIX_SSL_CERT_FILE", &cert).env_remove("NIX_REMOTE");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
    };
    for kill_at in [NOISE / 20, NOISE / 4, NOISE - NOISE / 8] {
        sent.store(0, Ordering::SeqCst);
        let mut nix = copy();
        let until = Instant::now() + Duration::from_secs(60);
        while sent.load(Ordering::SeqCst) < kill_at {
            assert!(Instant::now() < until && nix.try_wait().unwrap().is_none(), "it does not send {kill_at} bytes");
            std::thread::sleep(Duration::from_millis(1));
        }
        nix.kill().unwrap();
        nix.wait().unwrap();
        assert!(sent.load(Ordering::SeqCst) < nar.len(), "it was killed too late");
        for path in &paths {
            assert_eq!(fetch(&lab, path).0, "404", "{path} after {kill_at} bytes");
        }
    }
    let output = copy().wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(fetch(&lab, &paths[0]).0, "200");
    assert!(fetch(&lab, &paths[1]) == ("200".to_owned(), nar));
    // The log has every line once the server has ended.
    assert_eq!(lab.server.terminate(), Some(0));
    let log = std::fs::read_to_string(log).unwrap();
    let uploads = log.lines().filter(|line| line.contains("\"PUT /nar/")).count();
    assert_eq!(uploads, 4, "{log}");
    assert!(log.lines().all(|line| line.contains(" HTTP/2.0\" ")), "{log}");
}
