//! NARs onto the disk, against what Nix makes and reads.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails so")]

mod lab;

use std::fs::File;
use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use lab::{Nix, odd_tree, run_raw};
use narval_nix::nar::{Encoder, Event, wire};
use narval_store::{NarLayout, NarNode, NarReader, Unpack, UnpackError, Unpacked};

fn nar(path: &Path) -> Vec<u8> {
    let mut nar = Vec::new();
    NarReader::open(path).unwrap().read_to_end(&mut nar).unwrap();
    nar
}

fn unpack(directory: &Path, name: &str, nar: &[u8], piece: usize) -> Result<Unpacked, UnpackError> {
    let handle = File::open(directory).unwrap();
    let mut unpack = Unpack::begin(handle.as_fd(), name.as_ref(), Some(nar.len() as u64))?;
    for piece in nar.chunks(piece) {
        unpack.write(piece)?;
    }
    unpack.finish()
}

#[test]
fn output_round_trips_and_is_canonical() {
    let dir = tempfile::tempdir().unwrap();
    let tree = dir.path().join("tree");
    odd_tree(&tree);
    let archive = nar(&tree);
    for piece in [7, 4096, 1 << 20] {
        let name = format!("out-{piece}");
        let unpacked = unpack(dir.path(), &name, &archive, piece).unwrap();
        let out = dir.path().join(&name);
        assert!(nar(&out) == archive);
        assert!(run_raw(Nix::New.command("nix-store").arg("--dump").arg(&out)).stdout == archive);
        assert_canonical(&out);
        assert_eq!(unpacked, count(&tree));
        let writable = std::process::Command::new("chmod").args(["-R", "u+w"]).arg(&out).status().unwrap();
        assert!(writable.success());
    }
    for root in ["empty", "rwx", "link-outside", "empty-dir"] {
        let archive = nar(&tree.join(root));
        unpack(dir.path(), root, &archive, 64).unwrap();
        assert!(nar(&dir.path().join(root)) == archive);
        assert_canonical(&dir.path().join(root));
    }
}

fn count(tree: &Path) -> Unpacked {
    let mut count = Unpacked::default();
    for entry in NarLayout::scan(tree).unwrap().entries() {
        match entry.node {
            NarNode::Regular { size_bytes, .. } => {
                count.files += 1;
                count.contents_bytes += size_bytes;
            }
            NarNode::Symlink { .. } => count.symlinks += 1,
            NarNode::Directory => count.directories += 1,
        }
    }
    count
}

fn assert_canonical(path: &Path) {
    let found = std::fs::symlink_metadata(path).unwrap();
    assert_eq!((found.mtime(), found.mtime_nsec()), (1, 0), "{}", path.display());
    if found.is_symlink() {
        return;
    }
    let mode = found.permissions().mode() & 0o7777;
    assert!(mode == 0o555 || (found.is_file() && mode == 0o444), "{}: {mode:o}", path.display());
    if found.is_dir() {
        for entry in std::fs::read_dir(path).unwrap() {
            assert_canonical(&entry.unwrap().path());
        }
    }
}

#[test]
fn nothing_that_exists_is_touched() {
    let dir = tempfile::tempdir().unwrap();
    let outside = dir.path().join("outside");
    std::fs::write(&outside, "kept").unwrap();
    let archive = nar(&outside);
    symlink("outside", dir.path().join("link")).unwrap();
    symlink("nowhere", dir.path().join("dangling")).unwrap();
    std::fs::create_dir(dir.path().join("directory")).unwrap();
    for name in ["outside", "link", "dangling", "directory"] {
        let error = unpack(dir.path(), name, &archive, 100).expect_err(name);
        assert!(error.to_string().contains(name), "{error}");
    }
    assert!(!dir.path().join("nowhere").exists());
    assert_eq!(std::fs::read_to_string(&outside).unwrap(), "kept");
    for name in ["", ".", "..", "a/b", "../x", "/x"] {
        assert!(unpack(dir.path(), name, &archive, 100).is_err(), "{name}");
    }
}

#[test]
fn a_directory_exchanged_for_a_symlink_is_not_followed() {
    let dir = tempfile::tempdir().unwrap();
    let outside = dir.path().join("outside");
    std::fs::create_dir(&outside).unwrap();
    let mut encoder = Encoder::new();
    let mut archive = Vec::new();
    encoder.push(Event::Directory, &mut archive).unwrap();
    encoder.push(Event::Entry { name: b"a" }, &mut archive).unwrap();
    encoder.push(Event::Directory, &mut archive).unwrap();
    let inside = archive.len();
    for name in [&b"x"[..], b"y"] {
        encoder.push(Event::Entry { name }, &mut archive).unwrap();
        encoder.push(Event::Regular { executable: false, size: 0 }, &mut archive).unwrap();
        encoder.push(Event::EndRegular, &mut archive).unwrap();
    }
    encoder.push(Event::EndDirectory, &mut archive).unwrap();
    encoder.push(Event::EndDirectory, &mut archive).unwrap();
    let handle = File::open(dir.path()).unwrap();
    let mut unpack = Unpack::begin(handle.as_fd(), "out".as_ref(), None).unwrap();
    unpack.write(&archive[..inside]).unwrap();
    // Another process of ours is at work on the same tree.
    std::fs::rename(dir.path().join("out/a"), dir.path().join("moved")).unwrap();
    symlink(&outside, dir.path().join("out/a")).unwrap();
    unpack.write(&archive[inside..]).unwrap();
    unpack.finish().unwrap();
    assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 0, "nothing was written through the symlink");
    assert_eq!(std::fs::read_dir(dir.path().join("moved")).unwrap().count(), 2);
}

#[test]
fn hostile_archives() {
    let entry = |name: &[u8]| {
        let mut bytes = Vec::new();
        wire::push_entry_head(&mut bytes, name);
        bytes.extend_from_slice(&wire::REGULAR);
        bytes.extend_from_slice(&0_u64.to_le_bytes());
        bytes.extend_from_slice(&wire::CLOSE_ENTRY);
        bytes
    };
    let link = |name: &[u8], target: &[u8]| {
        let mut bytes = Vec::new();
        wire::push_entry_head(&mut bytes, name);
        wire::push_symlink(&mut bytes, target);
        bytes.extend_from_slice(&wire::CLOSE);
        bytes
    };
    let directory = |entries: &[Vec<u8>]| [&wire::HEAD[..], &wire::DIRECTORY, &entries.concat(), &wire::CLOSE].concat();
    let dir = tempfile::tempdir().unwrap();
    let hostile = [
        directory(&[entry(b"..")]),
        directory(&[entry(b".")]),
        directory(&[entry(b"")]),
        directory(&[entry(b"a/b")]),
        directory(&[entry(b"a\0b")]),
        directory(&[entry(b"b"), entry(b"a")]),
        directory(&[link(b"a", b"/tmp"), entry(b"a")]),
        directory(&[entry(&[b'n'; 256])]),
        [directory(&[entry(b"a")]), vec![0; 8]].concat(),
        directory(&[entry(b"a")])[..100].to_vec(),
    ];
    for (index, archive) in hostile.iter().enumerate() {
        let name = format!("out-{index}");
        for piece in [5, 10_000] {
            let error = unpack(dir.path(), &format!("{name}-{piece}"), archive, piece).expect_err(&name);
            assert!(matches!(error, UnpackError::Nar(_)), "{index}: {error}");
        }
    }
    // A file larger than the archive that it is in: refused before space is reserved for it.
    let mut bomb = [&wire::HEAD[..], &wire::REGULAR].concat();
    bomb.extend_from_slice(&(10_u64 << 30).to_le_bytes());
    assert!(matches!(unpack(dir.path(), "bomb", &bomb, 4096), Err(UnpackError::Nar(_))));
    assert!(!dir.path().join("bomb").exists());
}
