//! Files, ranges and archives out of NARs, from a live store and from stored NARs of many frames; and two paths compared.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::lab::Lab;
use crate::support::{Server, Store, hash_part};

/// A tree of 40 MB with files in the middle, and names that are hard to handle.
fn large_tree(store: &Store) -> String {
    let root = store.path("large-tree");
    fs::create_dir_all(root.join("sub/deep")).unwrap();
    let noise = |seed: u32, len: u32| -> Vec<u8> {
        (0..len / 4).flat_map(|n| (n ^ seed).wrapping_mul(2_654_435_761).rotate_left(n % 31).to_le_bytes()).collect()
    };
    for (number, name) in ["a", "m", "z"].into_iter().enumerate() {
        fs::write(root.join(name), noise(number as u32, 12_000_000)).unwrap();
    }
    fs::write(root.join("n-small"), "in the middle\n").unwrap();
    fs::write(root.join("sub/run"), "#!/bin/sh\necho hello\n").unwrap();
    fs::set_permissions(root.join("sub/run"), fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(root.join("sub/empty"), "").unwrap();
    symlink("../../etc/passwd", root.join("sub/up")).unwrap();
    symlink("l".repeat(300), root.join("sub/long-link")).unwrap();
    for name in ["-rf", "new\nline", "\u{202e}rtl", "a'b\"c", "%41", &"w".repeat(255)] {
        fs::write(root.join("sub/deep").join(name), name).unwrap();
    }
    store.add(&root)
}

/// Unpacks an archive with the real tar, and compares the result with a folder, including modes.
fn unpack(archive: &[u8], expected: &Path, top: &str) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("x.tar");
    fs::write(&file, archive).unwrap();
    let out = folder.path().join("out");
    fs::create_dir(&out).unwrap();
    let tar = Command::new("tar").arg("-xf").arg(&file).arg("-C").arg(&out).stdin(Stdio::null()).output().unwrap();
    assert!(tar.status.success() && tar.stderr.is_empty(), "{}", String::from_utf8_lossy(&tar.stderr));
    assert_eq!(fs::read_dir(&out).unwrap().count(), 1, "all is below one folder");
    let same = Command::new("diff").args(["-r", "--no-dereference"]).arg(out.join(top)).arg(expected).output().unwrap();
    assert!(same.status.success(), "{}", String::from_utf8_lossy(&same.stdout));
    let run = if top == "sub" { "run" } else { "sub/run" };
    assert_eq!(fs::metadata(out.join(top).join(run)).unwrap().permissions().mode() & 0o777, 0o755);
    let empty = if top == "sub" { "empty" } else { "sub/empty" };
    assert_eq!(fs::metadata(out.join(top).join(empty)).unwrap().permissions().mode() & 0o777, 0o644);
}

#[test]
fn files_ranges_and_archives_are_those_of_the_path() {
    let lab = Lab::new(&[]);
    let path = large_tree(&lab.store);
    let real = lab.store.real(&path);
    lab.push(&path);
    let live = Server::narval(&lab.store, &[]);
    for (server, place) in [(&live, "live"), (&lab.server, "stored")] {
        let url = |route: &str, below: &str| format!("/_narval/page/{route}/{}/{below}", hash_part(&path));
        let m = fs::read(real.join("m")).unwrap();
        let whole = server.get(&url("file", "m"));
        assert!(whole.complete && whole.body == m, "{place}");
        assert_eq!(server.get(&url("file", "n-small")).body, b"in the middle\n");
        assert_eq!(server.get(&url("file", "sub/deep/%2541")).body, b"%41", "{place}");
        let etag = whole.field("etag").unwrap();
        for (range, from, to) in
            [("0-0", 0, 1), ("8000000-8000099", 8_000_000, 8_000_100), ("-7", m.len() - 7, m.len())]
        {
            let part = server.ask("GET", &url("file", "m"), &[&format!("Range: bytes={range}")]);
            assert_eq!(part.status, 206, "{place}");
            assert!(part.body == m[from..to] && part.complete, "{place} {range}");
            assert_eq!(part.field("content-range").unwrap(), format!("bytes {from}-{}/{}", to - 1, m.len()));
        }
        assert_eq!(server.ask("GET", &url("file", "m"), &["Range: bytes=99999999-"]).status, 416);
        assert_eq!(server.ask("GET", &url("file", "m"), &[&format!("If-None-Match: {etag}")]).status, 304);
        let stale = server.ask("GET", &url("file", "m"), &["Range: bytes=0-1", "If-Range: \"x\""]);
        assert_eq!((stale.status, stale.body.len()), (200, m.len()));
        // Archives.
        let archive = server.get(&url("tar", ""));
        assert_eq!(archive.field("content-disposition").unwrap(), "attachment; filename=\"large-tree.tar\"");
        assert!(archive.complete && archive.field("content-length").is_some(), "{place}");
        assert!(archive.field("content-security-policy").unwrap().contains("sandbox"));
        unpack(&archive.body, &real, "large-tree");
        unpack(&server.get(&url("tar", "sub")).body, &real.join("sub"), "sub");
        for absent in ["none", "..", "sub/../../x"] {
            assert_eq!(server.get(&url("tar", absent)).status, 404, "{absent}");
        }
    }
    // Of a stored NAR, a file at the end costs no more than one in the middle: what is before its frame is not read.
    let pid = lab.server.pid();
    let read = || {
        let io = fs::read_to_string(format!("/proc/{pid}/io")).unwrap();
        io.lines().find_map(|line| line.strip_prefix("rchar: ")?.parse::<u64>().ok()).unwrap()
    };
    let url = format!("/_narval/page/file/{}/sub/run", hash_part(&path));
    lab.server.get(&url);
    let before = read();
    assert_eq!(lab.server.get(&url).body, b"#!/bin/sh\necho hello\n");
    let cost = read() - before;
    assert!(cost < 12_000_000, "{cost} bytes were read for a small file in a NAR of 36 MB");
}

#[test]
fn two_paths_are_compared_by_their_contents() {
    let lab = Lab::new(&[]);
    let root = lab.store.path("app-1");
    fs::create_dir_all(root.join("bin")).unwrap();
    for (name, text) in [("bin/a", "one"), ("bin/b", "same"), ("gone", "x"), ("grown", "12")] {
        fs::write(root.join(name), text).unwrap();
    }
    symlink("a", root.join("link")).unwrap();
    let one = lab.store.add(&root);
    fs::write(root.join("bin/a"), "two").unwrap();
    fs::write(root.join("grown"), "1234").unwrap();
    fs::remove_file(root.join("gone")).unwrap();
    fs::write(root.join("new"), "<script>").unwrap();
    fs::set_permissions(root.join("bin/b"), fs::Permissions::from_mode(0o755)).unwrap();
    fs::remove_file(root.join("link")).unwrap();
    symlink("b", root.join("link")).unwrap();
    let other = lab.store.add(&root);
    lab.push(&one);
    lab.push(&other);
    let live = Server::narval(&lab.store, &[]);
    for server in [&live, &lab.server] {
        let compare = |one: &str, other: &str| -> String {
            let answer = server.get(&format!("/_narval/compare/{}/{}", hash_part(one), hash_part(other)));
            assert_eq!(answer.status, 200, "{}", answer.text());
            answer.text().to_owned()
        };
        let compared = compare(&one, &other);
        assert!(compared.contains("1 added, 1 removed, 4 changed, 0 the same."), "{compared}");
        // In the order of the NARs, each with what it is now.
        let rows: Vec<_> =
            compared.split("<tr>").filter(|row| row.contains("class=\"s\"") && row.contains("<bdi>")).collect();
        let expected = [
            ("bin/a", ">changed<", "3 B"),
            ("bin/b", ">changed<", "4 B, executable"),
            ("gone", ">removed<", "1 B"),
            ("grown", ">changed<", "4 B"),
            ("link", ">changed<", "→ <bdi>b</bdi>"),
            ("new", ">added<", "8 B"),
        ];
        assert_eq!(rows.len(), expected.len(), "{rows:?}");
        for (row, (path, change, entry)) in std::iter::zip(rows, expected) {
            let is_so = row.contains(&format!("<bdi>{path}</bdi>")) && row.contains(change) && row.contains(entry);
            assert!(is_so, "{path}: {row}");
        }
        let same = compare(&one, &one);
        assert!(
            same.contains("0 added, 0 removed, 0 changed, 5 the same.") && !same.contains("Files that differ"),
            "{same}"
        );
        let versions = server.get("/_narval/page/paths?package=app");
        assert_eq!(serde_json::from_slice::<Value>(&versions.body).unwrap()["total"], 2);
        let absent = format!("/_narval/compare/{}/{}", hash_part(&one), "0".repeat(32));
        assert_eq!(server.get(&absent).status, 404);
    }
}
