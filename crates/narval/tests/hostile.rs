//! Malicious and malformed requests: the right status, no leak, and the server keeps running.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that fails may say so")]

mod support;

use std::io::{Read, Write};

use support::{Server, Store, hash_part};

fn status(answer: &[u8]) -> Option<u16> {
    std::str::from_utf8(answer.get(9..12)?).ok()?.parse().ok()
}

#[test]
fn paths_that_try_to_leave_the_store() {
    let store = Store::new();
    let path = store.add_file("a", "a");
    std::fs::write(store.path("root/secret"), "the secret").unwrap();
    let hash = hash_part(&path);
    for mut server in [Server::nix_serve(&store, &[], &[]), Server::narval(&store, &[])] {
        for path in [
            "/../secret".to_owned(),
            "/nar/../../secret".to_owned(),
            "/nar/../../../../etc/passwd.nar".to_owned(),
            format!("/nar/{hash}/../../../secret.nar"),
            "/%2e%2e/secret".to_owned(),
            "/nar/%2e%2e%2f%2e%2e%2fsecret.nar".to_owned(),
            format!("/log/{hash}-../../../../secret"),
            format!("/log/{hash}-%2e%2e%2f%2e%2e%2fsecret"),
            format!("/log/{hash}"),
            format!("/log/{hash}-"),
            format!("/log/{hash}-a%00b"),
            format!("/{hash}%00.narinfo"),
            format!("/%00{hash}.narinfo"),
            "/%ff%fe.narinfo".to_owned(),
            "/%".to_owned(),
            "/%zz".to_owned(),
            format!("//{hash}.narinfo"),
            format!("/{hash}.narinfo/"),
            format!("/nar/{hash}.nar/x"),
            format!("/nar/{hash}.nar.xz"),
            format!("/build-trace-v2/{hash}-a.drv/../../x.doi"),
            format!("/realisations/sha256:{}!../x.doi", "0".repeat(64)),
            format!("/{}.narinfo", "0".repeat(5000)),
        ] {
            let answer = server.get(&path);
            assert!(matches!(answer.status, 400 | 404 | 414), "{path}: {}", answer.status);
            let text = String::from_utf8_lossy(&answer.body).into_owned();
            assert!(!text.contains("secret") && !text.contains("/tmp") && !text.contains("root:"), "{path}: {text}");
        }
        assert!(server.is_alive());
    }
}

#[test]
fn other_peoples_files_are_not_served() {
    let store = Store::new();
    store.add_file("a", "a");
    // In the store's folder, and not in its database.
    let hash = "1ck49y25b3d5rywcg7a8fk0s4i8rc2d6";
    std::fs::write(store.path(&format!("root/nix/store/{hash}-unregistered")), "not valid").unwrap();
    for server in [Server::nix_serve(&store, &[], &[]), Server::narval(&store, &[])] {
        for path in [format!("/{hash}.narinfo"), format!("/nar/{hash}.nar")] {
            assert_eq!(server.get(&path).text(), "No such path.\n");
        }
    }
}

#[test]
fn malformed_and_oversized_requests() {
    let store = Store::new();
    store.add_file("a", "a");
    let mut server = Server::narval(&store, &[]);
    let long_field = format!("GET /nix-cache-info HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n", "x".repeat(1 << 20));
    let many_fields = format!("GET /nix-cache-info HTTP/1.1\r\nHost: a\r\n{}\r\n", "X: y\r\n".repeat(10_000));
    let long_target = format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "x".repeat(1 << 20));
    let cases: [&[u8]; 11] = [
        b"nonsense\r\n\r\n",
        b"GET / HTTP/9.9\r\nHost: a\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"GET /\x00 HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET / HTTP/1.1\nHost: a\n\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        long_field.as_bytes(),
        many_fields.as_bytes(),
        long_target.as_bytes(),
    ];
    for case in cases {
        let mut stream = server.connect();
        let _ = stream.write_all(case);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        if let Some(status) = status(&answer) {
            let shown = String::from_utf8_lossy(&case[..case.len().min(60)]).into_owned();
            assert!((400..=505).contains(&status) && status != 500, "{shown}: {status}");
        }
        assert!(server.is_alive());
    }
}

#[test]
fn truncated_requests_and_clients_that_leave() {
    let store = Store::new();
    let path = store.add_tree("tree");
    let mut server = Server::nix_serve(&store, &[], &[]);
    let request = format!("GET /nar/{}.nar HTTP/1.1\r\nHost: a\r\n\r\n", hash_part(&path));
    for length in 0..=request.len() {
        let mut stream = server.connect();
        stream.write_all(&request.as_bytes()[..length]).unwrap();
        drop(stream);
    }
    // Clients that take a little, and go.
    for take in [0, 1, 100, 100_000] {
        let mut stream = server.connect();
        stream.write_all(request.as_bytes()).unwrap();
        stream.read_exact(&mut vec![0; take]).unwrap();
    }
    assert!(server.is_alive());
    assert_eq!(server.get(&format!("/nar/{}.nar", hash_part(&path))).body, store.dump(&path));
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let store = Store::new();
    let path = store.add_tree("tree");
    let server = Server::nix_serve(&store, &[], &[]);
    let hash = hash_part(&path);
    let narinfo = server.get(&format!("/{hash}.narinfo")).body;
    let nar = store.dump(&path);
    let mut requests = String::new();
    for path in [format!("/nar/{hash}.nar"), format!("/{hash}.narinfo"), format!("/nar/{hash}.nar")] {
        requests.push_str(&format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n"));
    }
    requests.push_str("GET /nix-cache-info HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    let answers = server.send(requests.as_bytes());
    let mut rest = &answers[..];
    for body in [&nar, &narinfo, &nar, &b"StoreDir: /nix/store\nWantMassQuery: 1\nPriority: 30\n".to_vec()] {
        let split = rest.windows(4).position(|window| window == b"\r\n\r\n").unwrap() + 4;
        assert!(rest[split..].starts_with(body));
        rest = &rest[split + body.len()..];
    }
    assert!(rest.is_empty());
}
