//! docs/upgrades.md: data folders whose index has the tables of an earlier version, and one of a later version.

use std::process::{Command, Output};

use crate::lab::{Lab, serve};
use crate::support::{NARVAL, Nix, Store, hash_part};

/// What takes the tables back by one version each, from the newest. No released version has made them: the first release has the newest ones.
const BACK: [&str; 9] = [
    "pragma foreign_keys = off; create table old (id integer primary key autoincrement not null, nar_hash blob not null, \
     compression text not null, nar_size integer not null, file_hash blob not null, file_size integer not null, listing_size integer, \
     found text not null, fence integer, unique (nar_hash, compression)); insert into old select id, nar_hash, compression, nar_size, \
     file_hash, file_size, listing_size, found, fence from nars; drop table nars; alter table old rename to nars; pragma user_version = 9",
    "alter table releases drop column percent; alter table releases drop column request; pragma user_version = 8",
    "drop table machines; pragma user_version = 7",
    "drop table releases; alter table caches drop column uid; pragma user_version = 6",
    "drop index pins_by_path; alter table work drop column owner; pragma user_version = 5",
    "drop table lost; drop index pending_by_name; pragma user_version = 4",
    "drop table writers; pragma user_version = 3",
    "alter table files drop column doomed; alter table files drop column fence; alter table nars drop column fence; drop table work; \
     drop table collected; pragma user_version = 2",
    "update caches set bytes = 1; pragma user_version = 1",
];

/// A command of the administration.
fn narval(store: &Store, args: &[&str]) -> Output {
    let mut command = Command::new(NARVAL);
    command.args(args).env("NARVAL_DATA", store.path("data")).env("HOME", store.dir.path()).output().unwrap()
}

fn index(store: &Store) -> rusqlite::Connection {
    rusqlite::Connection::open(store.path("data/index.sqlite")).unwrap()
}

fn version(store: &Store) -> u32 {
    index(store).pragma_query_value(None, "user_version", |row| row.get(0)).unwrap()
}

/// A data folder with a path, a pin and a token, which nobody has open.
fn filled() -> (Store, String, String) {
    let lab = Lab::new();
    let path = lab.store.add_tree("tree");
    let token = lab.token("push,pull");
    lab.push(Nix::Newest, &token, "", &path).unwrap();
    let Lab { store, server } = lab;
    assert!(narval(&store, &["pin", "add", "kept", &path]).status.success());
    server.terminate();
    (store, path, token)
}

/// Everything is there, and the folder takes uploads.
fn is_whole(store: Store, path: &str, token: &str, name: &str) -> Store {
    let pins = narval(&store, &["pin", "list"]);
    assert!(String::from_utf8_lossy(&pins.stdout).contains(hash_part(path)), "{pins:?}");
    let server = serve(&store, &[]);
    let lab = Lab { store, server };
    lab.pull(Nix::Newest, path);
    let new = lab.store.add_file(name, name);
    lab.push(Nix::Newest, token, "", &new).unwrap();
    lab.pull(Nix::Newest, &new);
    let Lab { store, server } = lab;
    server.terminate();
    let fsck = narval(&store, &["cache", "fsck", "--contents"]);
    assert!(fsck.status.success(), "{fsck:?}");
    store
}

#[test]
fn folders_of_earlier_versions_are_taken_over() {
    let (mut store, path, token) = filled();
    let newest = version(&store);
    assert_eq!(newest as usize, BACK.len() + 1, "this test has to know how the tables of version {} were", newest - 1);
    for back in 1..=BACK.len() {
        BACK[..back].iter().for_each(|statements| index(&store).execute_batch(statements).unwrap());
        assert_eq!(version(&store) as usize, BACK.len() + 1 - back);
        store = is_whole(store, &path, &token, &format!("new-{back}"));
        assert_eq!(version(&store), newest);
    }
}

/// What an older program says to a newer folder, and the way back that the page has.
#[test]
fn a_folder_of_a_later_version_is_refused_until_the_index_is_made_again() {
    let (store, path, token) = filled();
    let newest = version(&store);
    let saved = store.path("before.json");
    std::fs::write(&saved, narval(&store, &["cache", "export"]).stdout).unwrap();
    index(&store).pragma_update(None, "user_version", newest + 1).unwrap();
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/upgrades.md")).unwrap();
    let shown = page.split("is refused by older ones: `").nth(1).unwrap().split('`').next().unwrap();
    let (_, shown) = shown.split_once("has version ").unwrap();
    for command in [
        &["serve", "--listen", "127.0.0.1:0", "--data"][..],
        &["cache", "stats", "--data"],
        &["token", "list", "--data"],
    ] {
        let output = narval(&store, &[command, &[store.path("data").to_str().unwrap()]].concat());
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.lines().count() <= 2, "{command:?}: {said}");
        let (_, said) = said.split_once("has version ").unwrap_or_else(|| panic!("{command:?}: {said}"));
        let numbers = |text: &str| text.replace(|c: char| c.is_ascii_digit(), "N").replace("NN", "N");
        assert_eq!(numbers(said.trim()), numbers(shown), "the page says something else");
    }
    assert_eq!(version(&store), newest + 1, "it was changed");

    for way_back in [&["cache", "fsck", "--rebuild"][..], &["cache", "import", saved.to_str().unwrap()]] {
        let output = narval(&store, way_back);
        assert!(output.status.success(), "{way_back:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    is_whole(store, &path, &token, "new");
}
