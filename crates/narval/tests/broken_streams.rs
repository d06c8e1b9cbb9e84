//! Files that are not what the database says, or change while they are sent: never a clean answer that is wrong.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that fails may say so")]

mod support;

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use support::{Server, Store, hash_part};

fn unlock(path: &Path) {
    fs::set_permissions(path, PermissionsExt::from_mode(0o755)).unwrap();
}

/// A tree of files large enough that the first are sent long before the last are opened.
fn add_large_tree(store: &Store) -> String {
    let root = store.path("large");
    fs::create_dir(&root).unwrap();
    for number in 0..40 {
        fs::write(root.join(format!("{number:03}")), vec![number; 1 << 20]).unwrap();
    }
    store.add(&root)
}

#[test]
fn paths_damaged_earlier_are_404_and_logged() {
    let store = Store::new();
    let (shorter, gone) = (store.add_tree("shorter"), store.add_tree("gone"));
    let mut server = Server::nix_serve(&store, &[], &[]);
    let url = |path: &str| format!("/nar/{}.nar", hash_part(path));
    unlock(&store.real(&shorter));
    unlock(&store.real(&shorter).join("large"));
    fs::write(store.real(&shorter).join("large"), "cut").unwrap();
    assert_eq!(server.get(&url(&shorter)).status, 404);
    server.wait_for(|log| log.contains(hash_part(&shorter)).then_some(()));

    assert_eq!(server.get(&url(&gone)).status, 200);
    unlock(&store.real(&gone));
    fs::rename(store.real(&gone), store.path("aside")).unwrap();
    assert_eq!(server.get(&url(&gone)).status, 404, "planned before, gone now");
    assert!(server.is_alive());
}

/// Asks for a NAR, takes its beginning, lets `change` happen, and takes the rest.
fn change_in_mid_stream(change: impl Fn(&Path), planned_before: bool) {
    let store = Store::new();
    let path = add_large_tree(&store);
    let mut server = Server::nix_serve(&store, &[], &[]);
    let url = format!("/nar/{}.nar", hash_part(&path));
    if planned_before {
        assert!(server.get(&url).complete);
    }
    let mut stream = server.connect();
    write!(stream, "GET {url} HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    let mut beginning = vec![0; 100_000];
    stream.read_exact(&mut beginning).unwrap();
    let head = String::from_utf8_lossy(&beginning).into_owned();
    let announced: usize = head.split("content-length: ").nth(1).unwrap().lines().next().unwrap().parse().unwrap();
    let real = store.real(&path);
    unlock(&real);
    change(&real);
    let mut rest = Vec::new();
    // Broken off: an error or an early end, both are what a client notices.
    let _ = stream.read_to_end(&mut rest);
    assert!(beginning.len() + rest.len() < announced, "a NAR that could not be right was sent to its end");
    server.wait_for(|log| (log.contains("aborted") && log.contains(hash_part(&path))).then_some(()));
    assert!(server.is_alive());
}

#[test]
fn a_file_that_vanishes_in_mid_stream() {
    for planned_before in [false, true] {
        change_in_mid_stream(|root| fs::remove_file(root.join("039")).unwrap(), planned_before);
    }
}

#[test]
fn a_file_that_is_cut_in_mid_stream() {
    change_in_mid_stream(
        |root| {
            unlock(&root.join("038"));
            fs::write(root.join("038"), "cut").unwrap();
        },
        false,
    );
}

#[test]
fn a_file_that_grows_in_mid_stream() {
    change_in_mid_stream(
        |root| {
            unlock(&root.join("037"));
            fs::OpenOptions::new().append(true).open(root.join("037")).unwrap().write_all(b"more").unwrap();
        },
        false,
    );
}

#[test]
fn a_file_that_becomes_a_symlink_in_mid_stream() {
    change_in_mid_stream(
        |root| {
            fs::remove_file(root.join("036")).unwrap();
            std::os::unix::fs::symlink("/etc/passwd", root.join("036")).unwrap();
        },
        false,
    );
}
