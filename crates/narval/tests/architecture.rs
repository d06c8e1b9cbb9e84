//! `docs/architecture.md` names files and folders that exist, and all locks of the server; folders and files stay small.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that fails may say so")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// All files and folders of the crates as the page writes them: the crate, then the path below its `src`. Folders end in `/`.
fn places() -> Vec<String> {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut places = Vec::new();
    for entry in fs::read_dir(crates).unwrap() {
        let entry = entry.unwrap();
        collect(&entry.path().join("src"), &format!("/{}/", entry.file_name().to_str().unwrap()), &mut places);
    }
    places
}

fn collect(folder: &Path, name: &str, places: &mut Vec<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        let place = format!("{name}{}", entry.file_name().to_str().unwrap());
        if entry.file_type().unwrap().is_dir() {
            collect(&entry.path(), &format!("{place}/"), places);
            places.push(format!("{place}/"));
        } else {
            places.push(place);
        }
    }
}

/// The files and folders that a page names, in its text and in its pictures.
fn named(page: &str) -> Vec<&str> {
    let words = page.split(|c: char| c.is_whitespace() || "`(),;:|".contains(c)).map(|word| word.trim_matches('.'));
    let is_name = |word: &&str| {
        (word.ends_with(".rs") || word.ends_with('/'))
            && word.starts_with(|c: char| c.is_ascii_lowercase())
            && word.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/_-.".contains(&byte))
    };
    words.filter(is_name).collect()
}

#[test]
fn every_file_and_folder_that_the_page_names_exists() {
    let page = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/architecture.md")).unwrap();
    let (places, named) = (places(), named(&page));
    assert!(named.len() > 100, "only {} names are found in the page", named.len());
    // A name may leave out the crate and the first folders, which the text around it says.
    let is_there = |name: &str| places.iter().any(|place| place.ends_with(&format!("/{name}")));
    let missing: Vec<_> = named.into_iter().filter(|name| !is_there(name)).collect();
    assert!(missing.is_empty(), "docs/architecture.md names what is not there: {missing:?}");
}

/// A folder has no more files than a newcomer reads the names of.
const FILES_MAX: usize = 14;

/// A file has no more lines than are read in one go.
const LINES_MAX: usize = 600;

/// What is larger: each is to be cut by ideas, and none is to be added.
const LARGER: [&str; 7] = [
    "/narval-http/message/",
    "/narval-http/run/",
    "/narval-http/run/shard/",
    "/narval-http/io/driver/uring.rs",
    "/narval-http/run/server.rs",
    "/narval-http/sim/http2.rs",
    "/narval-http/tls/session.rs",
];

#[test]
fn no_folder_and_no_file_outgrows_its_shape() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut files: BTreeMap<String, usize> = BTreeMap::new();
    let mut larger = BTreeSet::new();
    for place in places().into_iter().filter(|place| place.ends_with(".rs")) {
        let (name, path) = place[1..].split_once('/').unwrap();
        if fs::read_to_string(crates.join(name).join("src").join(path)).unwrap().lines().count() > LINES_MAX {
            larger.insert(place.clone());
        }
        *files.entry(format!("{}/", place.rsplit_once('/').unwrap().0)).or_default() += 1;
    }
    larger.extend(files.into_iter().filter(|(_, count)| *count > FILES_MAX).map(|(folder, _)| folder));
    assert_eq!(larger, LARGER.map(String::from).into(), "more than {FILES_MAX} files or {LINES_MAX} lines");
}

/// The locks of a crate: the file and the name of each field or static variable.
fn locks(folder: &Path, name: &str, found: &mut Vec<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        let place = format!("{name}{}", entry.file_name().to_str().unwrap());
        if entry.file_type().unwrap().is_dir() {
            locks(&entry.path(), &format!("{place}/"), found);
            continue;
        }
        let text = fs::read_to_string(entry.path()).unwrap();
        let code = text.split("#[cfg(test)]\nmod tests").next().unwrap();
        for line in code.lines().map(str::trim).filter(|line| !line.starts_with("//")) {
            let is_lock = ["Mutex<", "RwLock<"].iter().any(|lock| line.contains(lock));
            let is_place = line.ends_with(',') || line.starts_with("static ");
            if let Some((field, _)) = line.split_once(": ").filter(|_| is_lock && is_place) {
                found.push(format!(
                    "`{place}` {}",
                    field.trim_start_matches("static ").trim_start_matches("pub(super) ")
                ));
            }
        }
    }
}

/// No lock is held while a body is read or a database is asked, because one slow client would stop all threads that wait for the lock. A new
/// lock is added to the table, which says what it is held over.
#[test]
fn the_page_names_every_lock_of_the_server() {
    let page = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/architecture.md")).unwrap();
    let section = page.split("\n## ").find(|section| section.starts_with("Locks")).expect("a section 'Locks'");
    let row = |line: &str| line.strip_prefix("| `")?.split(" | ").next().map(|cell| format!("`{cell}"));
    let mut named: Vec<_> = section.lines().filter_map(row).collect();
    let mut found = Vec::new();
    locks(&Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("narval-serve/src"), "", &mut found);
    named.sort();
    found.sort();
    assert_eq!(named, found);
}

/// The crates that the page's table lets each crate depend on are those of its manifest.
#[test]
fn the_page_names_every_arrow_between_crates() {
    let page = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/architecture.md")).unwrap();
    let table = page.split("| crate | depends on |\n").nth(1).unwrap().split("\n\n").next().unwrap();
    let names = |text: &str| -> Vec<String> {
        text.split('`').skip(1).step_by(2).filter(|name| name.starts_with("narval-")).map(str::to_owned).collect()
    };
    let mut told: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for row in table.lines().skip(1) {
        let cells: Vec<_> = row.split('|').collect();
        let mut on: BTreeSet<_> = names(cells[2]).into_iter().collect();
        // "those of `narval-cache`": what that crate depends on.
        if let Some(other) = cells[2].split("those of `").nth(1).and_then(|rest| rest.split('`').next()) {
            on.extend(told[other].clone());
        }
        for name in names(cells[1]) {
            told.insert(name, on.clone());
        }
    }
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(crates).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        let manifest = fs::read_to_string(entry.path().join("Cargo.toml")).unwrap();
        let dependencies = manifest.split("\n[dependencies]\n").nth(1).unwrap_or_default().split("\n[").next().unwrap();
        let on = dependencies.lines().filter_map(|line| line.split(['.', ' ']).next());
        let on: BTreeSet<_> = on.filter(|on| on.starts_with("narval-")).map(str::to_owned).collect();
        if name != "narval" {
            found.insert(name, on);
        }
    }
    assert_eq!(told, found);
}
