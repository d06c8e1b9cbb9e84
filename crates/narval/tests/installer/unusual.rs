//! Paths and narinfos that are unusual, or that older versions of Nix made.

use std::path::Path;
use std::process::Command;

use crate::lab::Lab;
use crate::support::{Nix, Server, Store, hash_part, stdout};

/// Nix's suffix for file systems that do not distinguish case is part of a name like any other, in both directions.
#[test]
fn names_with_the_case_hack_are_copied_and_unpacked() {
    let lab = Lab::new();
    let folder = lab.store.path("hacked");
    for name in ["A~nix~case~hack~1", "a", "~nix~case~hack~"] {
        std::fs::create_dir_all(folder.join(name)).unwrap();
        std::fs::write(folder.join(name).join("file"), name).unwrap();
    }
    let path = lab.store.add(&folder);
    let (from, cache, home) = (lab.store.uri(), lab.cache_url(), lab.store.dir.path());
    let verified = lab.done(&["verify", "--store", &from, &path]);
    assert_eq!(verified, "1 path checked, 0 faulty, 0 repaired");
    lab.done(&["copy", "--quiet", "--store", &from, "--to", &cache, &path]);
    let (installed, copied, by_nix) = (lab.folder("installed"), lab.folder("copied"), lab.folder("by-nix"));
    lab.install(&installed, &[&path]);
    lab.assert_accepted(&installed, &[&path]);
    lab.done(&["copy", "--quiet", "--store", &from, "--to", &copied, &path]);
    lab.assert_accepted(&copied, &[&path]);
    for nix in Nix::BOTH {
        stdout(nix.nix(home, &["copy", "--no-check-sigs", "--from", &cache, "--to", &by_nix, &path]));
        Command::new("chmod").args(["-R", "u+w", &by_nix]).status().unwrap();
        std::fs::remove_dir_all(&by_nix).unwrap();
    }
    let nar = lab.folder("hacked.nar");
    lab.done(&["nar", "dump", folder.to_str().unwrap(), "--out", &nar]);
    assert_eq!(std::fs::read(&nar).unwrap(), lab.store.dump(&path));
    lab.done(&["nar", "restore", &lab.folder("restored"), &nar]);
    assert!(Path::new(&lab.folder("restored")).join("A~nix~case~hack~1/file").exists());
}

/// Nix 2.8 registers paths that are nested deeper than a NAR may be. They can be neither copied nor served, and are not
/// damaged.
#[test]
fn a_path_that_is_nested_too_deep() {
    let lab = Lab::new();
    let store = Store::made_by(Nix::Old);
    let folder = store.path("deep");
    std::fs::create_dir_all(folder.join("d/".repeat(70))).unwrap();
    let path = store.add(&folder);
    let output = lab.run(&["verify", "--store", &store.uri(), "--no-check-sigs"]);
    let (printed, message) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(4), "{message}");
    assert!(printed.contains("is nested deeper than 64"), "{printed}");
    assert!(!message.contains("--repair"), "{message}");
    for to in [lab.folder("copied"), lab.cache_url()] {
        let message = lab.fails(1, &["copy", "--no-check-sigs", "--store", &store.uri(), "--to", &to, &path]);
        assert!(message.contains("is nested deeper than 64"), "{message}");
    }
    // Once it was asked for, its narinfo does not promise it any more.
    let server = Server::narval(&store, &[]);
    let hash_part = hash_part(&path);
    let narinfo = server.get(&format!("/{hash_part}.narinfo"));
    if narinfo.status == 200 {
        let nar = narinfo.text().lines().find_map(|line| line.strip_prefix("URL: ")).unwrap().to_owned();
        assert_eq!(server.get(&format!("/{nar}")).status, 404);
    }
    assert_eq!(server.get(&format!("/{hash_part}.narinfo")).status, 404);
}

/// A size that no file can have makes a narinfo invalid: the next cache is asked.
#[test]
fn a_nar_size_beyond_all_files() {
    let lab = Lab::new();
    let bad = lab.store.path("bad");
    Command::new("cp").arg("-r").arg(lab.cache()).arg(&bad).status().unwrap();
    let hash_part = hash_part(&lab.hello);
    let narinfo = bad.join(format!("{hash_part}.narinfo"));
    let text = std::fs::read_to_string(&narinfo).unwrap();
    let size = text.lines().find(|line| line.starts_with("NarSize: ")).unwrap();
    std::fs::write(&narinfo, text.replace(size, "NarSize: 9223372036854775808")).unwrap();
    let (root, bad) = (lab.folder("mine"), format!("file://{}?priority=1", bad.display()));
    let message = lab.fails(4, &["install", "--from", &bad, "--store", &root, &lab.hello]);
    assert!(message.contains("NarSize: is larger than 2^63 - 1"), "{message}");
    lab.done(&["install", "--quiet", "--from", &bad, "--from", &lab.cache_url(), "--store", &root, &lab.hello]);
    lab.assert_accepted(&root, &[&lab.hello]);
}
