//! Batch lookups, as `docs/batch-protocol.md` has them.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that fails may say so")]

mod support;

use std::collections::BTreeSet;
use std::io::{Read, Write};

use support::{Answer, Nix, Server, Store, hash_part, stdout, value};

const ABSENT: &str = "00000000000000000000000000000000";

fn post(server: &Server, want: &str, parts: &[&str], field: &str) -> Answer {
    let body = parts.join("\n");
    let head = format!(
        "POST /batch-lookup-v1{want} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{field}Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    Answer::parse(&server.send(head.as_bytes())).unwrap()
}

/// The entries of an answer: hash part, and narinfo or word.
fn entries(mut rest: &[u8]) -> Vec<(String, Vec<u8>)> {
    let mut entries = Vec::new();
    loop {
        let end = rest.iter().position(|byte| *byte == b'\n').unwrap();
        let line = std::str::from_utf8(&rest[..end]).unwrap().to_owned();
        rest = &rest[end + 1..];
        let (part, word) = line.split_once(' ').unwrap();
        if part == "end" {
            assert_eq!((word.parse(), rest.len()), (Ok(entries.len()), 0));
            return entries;
        }
        let length = word.parse().unwrap_or(0);
        let value = if length > 0 { rest[..length].to_vec() } else { word.as_bytes().to_vec() };
        rest = &rest[length..];
        entries.push((part.to_owned(), value));
    }
}

/// A chain of paths, each referring to the one before.
fn chain(store: &Store, length: usize) -> Vec<String> {
    let mut paths = vec![store.add_file("base", "base")];
    for number in 1..length {
        let expression = store.path("default.nix");
        let last = paths.last().unwrap();
        let text = format!(r#"builtins.toFile "link-{number}" "see ${{builtins.storePath "{last}"}}""#);
        std::fs::write(&expression, text).unwrap();
        let uri = store.uri();
        let args = ["eval", "--raw", "--impure", "--store", &uri, "--file", expression.to_str().unwrap()];
        paths.push(stdout(Nix::Newest.nix(store.dir.path(), &args)));
    }
    paths
}

#[test]
fn presence_narinfos_and_closures() {
    let store = Store::new();
    let paths = chain(&store, 4);
    let server = Server::narval(&store, &[]);
    assert!(server.get("/nix-cache-info").text().contains("\nBatchLookup: batch-lookup-v1\n"));
    let (base, top) = (hash_part(&paths[0]), hash_part(&paths[3]));

    let answer = post(&server, "?want=presence", &[top, ABSENT, base, top], "");
    assert!(answer.status == 200 && answer.complete);
    let want = format!("{top} present\n{ABSENT} absent\n{base} present\nend 3\n");
    assert_eq!(answer.text(), want);

    for (query, field) in [("", ""), ("?want=narinfos", "Accept-Encoding: zstd\r\n")] {
        let answer = post(&server, query, &[top, ABSENT], field);
        let body = match answer.field("content-encoding") {
            Some("zstd") => zstd::decode_all(&answer.body[..]).unwrap(),
            _ => answer.body,
        };
        let narinfo = server.get(&format!("/{top}.narinfo")).body;
        assert_eq!(entries(&body), [(top.to_owned(), narinfo), (ABSENT.to_owned(), b"absent".to_vec())]);
    }

    let answer = post(&server, "?want=closure", &[top], "");
    let found: BTreeSet<String> = entries(&answer.body).into_iter().map(|(part, _)| part).collect();
    assert_eq!(found, paths.iter().map(|path| hash_part(path).to_owned()).collect());
    assert_eq!(post(&server, "", &[], "").text(), "end 0\n");
}

#[test]
fn invalid_requests_are_refused() {
    let store = Store::new();
    store.add_file("a", "a");
    let mut server = Server::narval(&store, &[]);
    assert_eq!(post(&server, "", &["nonsense"], "").status, 400);
    assert_eq!(post(&server, "?want=everything", &[ABSENT], "").status, 400);
    let many = vec![ABSENT; 70_000];
    assert_eq!(post(&server, "", &many, "").status, 400);
    let get = server.get("/batch-lookup-v1");
    assert_eq!((get.status, get.field("allow")), (405, Some("POST")));
    assert_eq!(server.ask("POST", "/nix-cache-info", &["Content-Length: 0"]).status, 405);
    assert!(server.is_alive());
    let plain = Server::nix_serve(&store, &[], &[]);
    assert_eq!(plain.get("/batch-lookup-v1").status, 404);
    assert!(!plain.get("/nix-cache-info").text().contains("Batch"));
}

/// A client that is done with its head and sends no body, or only the beginning of one.
#[test]
fn lookups_with_a_stalled_body_block_nobody() {
    let store = Store::new();
    let path = store.add_file("file", "file");
    let server = Server::narval(&store, &["--no-nar-cache"]);
    let (part, other) = (hash_part(&path), hash_part(&store.add_file("other", "other")).to_owned());
    let url = value(server.get(&format!("/{part}.narinfo")).text(), "URL").unwrap().to_owned();
    let lines = format!("{part}\n").repeat(3000);
    for begun in ["", &lines] {
        let mut attackers: Vec<_> = (0..100).map(|_| server.connect()).collect();
        for attacker in &mut attackers {
            let head = "POST /batch-lookup-v1?want=presence HTTP/1.1\r\nHost: a\r\nContent-Length: 2000000\r\n\r\n";
            attacker.write_all(format!("{head}{begun}").as_bytes()).unwrap();
        }
        for path in [&format!("/{other}.narinfo"), &format!("/{url}"), "/health", "/nix-cache-info"] {
            assert_eq!(server.get(path).status, 200, "{path}");
        }
        let answer = post(&server, "?want=presence", &[part; 3000], "");
        assert_eq!(answer.text(), format!("{part} present\nend 1\n"));
        // They were answered while the attackers' bodies were waited for: none of those was given up.
        for attacker in &mut attackers {
            attacker.set_nonblocking(true).unwrap();
            let ended = attacker.read(&mut [0; 1]);
            assert_eq!(ended.unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
        }
    }
}
