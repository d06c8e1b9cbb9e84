//! NARs of files on disk, against `nix-store --dump`.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails so")]

mod lab;

use std::io::Read;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::Path;
use std::sync::Arc;

use lab::{Nix, odd_tree, run_raw};
use narval_nix::Listing;
use narval_nix::nar::{Decoder, Event};
use narval_store::{NarIoError, NarLayout, NarNode, NarReader, NarStream, ReadAhead, Step};

fn dump(path: &Path) -> Vec<u8> {
    run_raw(Nix::New.command("nix-store").arg("--dump").arg(path)).stdout
}

/// The bytes of a stream, asked for in pieces of this size.
fn collect(mut stream: NarStream, room: usize) -> Result<Vec<u8>, NarIoError> {
    let mut all = Vec::new();
    loop {
        match stream.fill(&mut all, room)? {
            Step::More => {}
            Step::File(part) => {
                let from = all.len();
                all.resize(from + part.length as usize, 0);
                part.file.read_exact_at(&mut all[from..], part.offset).unwrap();
            }
            Step::Done => return Ok(all),
        }
    }
}

fn stream(layout: &Arc<NarLayout>, path: &Path, range: std::ops::Range<u64>) -> NarStream {
    NarStream::open(layout.clone(), path, range, None).unwrap()
}

#[test]
fn the_same_bytes_as_nix() {
    let dir = tempfile::tempdir().unwrap();
    let tree = dir.path().join("tree");
    odd_tree(&tree);
    let ahead = Arc::new(ReadAhead::start(3, 4 << 20).unwrap());
    let mut roots = vec![tree.clone()];
    roots.extend(
        ["empty-dir", "empty", "size-large", "size-9", "rwx", "link-outside", "many"].map(|name| tree.join(name)),
    );
    for root in roots {
        let expected = dump(&root);
        let layout = Arc::new(NarLayout::scan(&root).unwrap());
        assert_eq!(layout.size_bytes(), expected.len() as u64, "{}", root.display());
        for room in [1, 1000, 256 * 1024, usize::MAX] {
            assert!(collect(stream(&layout, &root, 0..layout.size_bytes()), room).unwrap() == expected);
            let with_threads =
                NarStream::open(layout.clone(), &root, 0..layout.size_bytes(), Some(ahead.clone())).unwrap();
            assert!(collect(with_threads, room).unwrap() == expected);
        }
        let mut read = Vec::new();
        NarReader::open(&root).unwrap().read_to_end(&mut read).unwrap();
        assert!(read == expected);
    }
}

#[test]
fn every_range() {
    let dir = tempfile::tempdir().unwrap();
    let tree = dir.path().join("tree");
    odd_tree(&tree);
    let expected = dump(&tree);
    let layout = Arc::new(NarLayout::scan(&tree).unwrap());
    let ahead = Arc::new(ReadAhead::start(2, 4 << 20).unwrap());
    let size = expected.len() as u64;
    // The beginnings and ends of entries, and steps that fall anywhere.
    let mut offsets: Vec<u64> = (0..size).step_by(9973).collect();
    for entry in layout.entries().step_by(13) {
        if let NarNode::Regular { nar_offset, size_bytes, .. } = entry.node {
            offsets.extend([
                nar_offset.saturating_sub(1),
                nar_offset,
                nar_offset + 1,
                nar_offset + size_bytes,
                nar_offset + size_bytes + 1,
            ]);
        }
    }
    offsets.extend([0, 1, size - 1, size]);
    for (index, &from) in offsets.iter().enumerate() {
        let from = from.min(size);
        let lengths = [0, 1, 8, 100, 70_000, 300_000, size];
        let to = from.saturating_add(lengths[index % lengths.len()]).min(size);
        let ahead = if index % 2 == 0 { Some(ahead.clone()) } else { None };
        let stream = NarStream::open(layout.clone(), &tree, from..to, ahead).unwrap();
        assert_eq!(stream.remaining_bytes(), to - from);
        assert!(collect(stream, 10_000).unwrap() == expected[from as usize..to as usize], "{from}..{to}");
    }
    assert!(matches!(NarStream::open(layout.clone(), &tree, 0..size + 1, None), Err(NarIoError::Range)));
}

#[test]
fn offsets_are_those_of_the_decoder() {
    let dir = tempfile::tempdir().unwrap();
    let tree = dir.path().join("tree");
    odd_tree(&tree);
    let nar = dump(&tree);
    let mut decoder = Decoder::new();
    let mut decoded = Vec::new();
    let mut rest = &nar[..];
    while !decoder.is_done() {
        let before = decoder.offset();
        let (used, event) = decoder.next(rest).unwrap();
        let kind = event.map(|event| match event {
            Event::Regular { executable, size } => Some((executable, size)),
            _ => None,
        });
        rest = &rest[used..];
        if let Some(Some((executable, size))) = kind {
            decoded.push((executable, size, decoder.offset()));
        }
        assert!(decoder.offset() > before || kind.is_some() || used > 0);
    }
    let layout = NarLayout::scan(&tree).unwrap();
    let planned: Vec<_> = layout
        .entries()
        .filter_map(|entry| match entry.node {
            NarNode::Regular { executable, size_bytes, nar_offset } => Some((executable, size_bytes, nar_offset)),
            _ => None,
        })
        .collect();
    assert_eq!(planned, decoded);
    assert!(layout.entries().all(|entry| entry.parent < entry.index || entry.index == 0));
}

#[test]
fn changes_are_errors_and_never_short_ends() {
    let dir = tempfile::tempdir().unwrap();
    type Change = (&'static str, fn(&Path));
    let changes: [Change; 8] = [
        ("small file longer", |tree| std::fs::write(tree.join("size-9"), "0123456789").unwrap()),
        ("small file shorter", |tree| std::fs::write(tree.join("size-9"), "01234567").unwrap()),
        ("empty file filled", |tree| std::fs::write(tree.join("empty"), "x").unwrap()),
        ("large file shorter", |tree| std::fs::write(tree.join("size-large"), vec![0; 200_000]).unwrap()),
        ("file gone", |tree| std::fs::remove_file(tree.join("many/3/file-3")).unwrap()),
        ("file to symlink", |tree| {
            std::fs::remove_file(tree.join("size-9")).unwrap();
            symlink("size-8", tree.join("size-9")).unwrap();
        }),
        ("directory to symlink", |tree| {
            std::fs::rename(tree.join("many"), tree.join("../elsewhere")).unwrap();
            symlink("../elsewhere", tree.join("many")).unwrap();
        }),
        ("file to fifo", |tree| {
            std::fs::remove_file(tree.join("size-9")).unwrap();
            assert!(std::process::Command::new("mkfifo").arg(tree.join("size-9")).status().unwrap().success());
        }),
    ];
    let ahead = Arc::new(ReadAhead::start(2, 4 << 20).unwrap());
    for (index, (name, change)) in changes.into_iter().enumerate() {
        let tree = dir.path().join(index.to_string()).join("tree");
        odd_tree(&tree);
        let layout = Arc::new(NarLayout::scan(&tree).unwrap());
        for ahead in [None, Some(ahead.clone())] {
            let stream = NarStream::open(layout.clone(), &tree, 0..layout.size_bytes(), ahead).unwrap();
            let untouched = collect(stream, 1 << 20).unwrap();
            assert_eq!(untouched.len() as u64, layout.size_bytes());
        }
        let with_threads = NarStream::open(layout.clone(), &tree, 0..layout.size_bytes(), Some(ahead.clone())).unwrap();
        let alone = stream(&layout, &tree, 0..layout.size_bytes());
        change(&tree);
        for stream in [with_threads, alone] {
            let error = collect(stream, 1 << 20).expect_err(name);
            assert!(matches!(error, NarIoError::Changed { .. } | NarIoError::Io { .. }), "{name}: {error}");
        }
    }
}

#[test]
fn a_replaced_root_is_noticed_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let tree = dir.path().join("tree");
    odd_tree(&tree);
    let layout = Arc::new(NarLayout::scan(&tree).unwrap());
    std::fs::rename(&tree, dir.path().join("old")).unwrap();
    odd_tree(&tree);
    let replaced = NarStream::open(layout.clone(), &tree, 0..1, None);
    assert!(matches!(replaced, Err(NarIoError::Changed { .. })));
}

#[test]
fn contents_that_cannot_be_in_a_nar() {
    let dir = tempfile::tempdir().unwrap();
    let tree = dir.path().join("tree");
    std::fs::create_dir(&tree).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(tree.join("pipe")).status().unwrap().success());
    assert!(matches!(NarLayout::scan(&tree), Err(NarIoError::Kind { path }) if path == tree.join("pipe")));
    std::fs::remove_file(tree.join("pipe")).unwrap();
    // The root is at depth 0, and Nix takes nothing at depth 64.
    let mut deep = tree.clone();
    for level in 1..64 {
        deep.push(level.to_string());
    }
    std::fs::create_dir_all(&deep).unwrap();
    assert_eq!(NarLayout::scan(&tree).unwrap().entry_count(), 64);
    assert_eq!(NarLayout::scan(&tree).unwrap().size_bytes(), dump(&tree).len() as u64);
    std::fs::write(deep.join("one-more"), "").unwrap();
    assert!(matches!(NarLayout::scan(&tree), Err(NarIoError::Limit { .. })));
    std::fs::set_permissions(&tree, PermissionsExt::from_mode(0o755)).unwrap();
}

#[test]
fn the_listing_is_that_of_the_nar() {
    let dir = tempfile::tempdir().unwrap();
    let tree = dir.path().join("tree");
    odd_tree(&tree);
    for root in ["", "empty-dir", "empty", "rwx", "size-large", "link-outside", "many", "deep"] {
        let root = tree.join(root);
        let listing = NarLayout::scan(&root).unwrap().listing().unwrap();
        assert_eq!(listing, Listing::of_nar(&dump(&root)).unwrap(), "{}", root.display());
    }
}
