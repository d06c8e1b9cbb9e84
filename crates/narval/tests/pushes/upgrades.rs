//! docs/upgrades.md: data folders whose index is of another version.

use std::process::{Command, Output};

use crate::lab::{Lab, serve};
use crate::support::{NARVAL, Nix, Store, hash_part};

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

/// What a program says to the folder of an older or newer one, and the way on that the page has.
#[test]
fn a_folder_of_another_version_is_refused_until_the_index_is_made_again() {
    let (mut store, path, token) = filled();
    let own = version(&store);
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/upgrades.md")).unwrap();
    let shown = page.split("older or newer: `").nth(1).unwrap().split('`').next().unwrap();
    let (_, shown) = shown.split_once("has version ").unwrap();
    for (other, name) in [(own - 1, "of-an-older-one"), (own + 1, "of-a-newer-one")] {
        let saved = store.path(&format!("before-{other}"));
        let output = narval(&store, &["cache", "backup", saved.to_str().unwrap(), "--without-nars"]);
        assert!(output.status.success(), "{output:?}");
        index(&store).pragma_update(None, "user_version", other).unwrap();
        for command in [
            &["serve", "--listen", "127.0.0.1:0", "--data"][..],
            &["cache", "stats", "--data"],
            &["token", "list", "--data"],
        ] {
            let output = narval(&store, &[command, &[store.path("data").to_str().unwrap()]].concat());
            let message = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(!output.status.success() && message.lines().count() <= 2, "{command:?}: {message}");
            let (_, message) = message.split_once("has version ").unwrap_or_else(|| panic!("{command:?}: {message}"));
            let words = |text: &str| text.replace(|c: char| c.is_ascii_digit(), "N").replace("NN", "N");
            assert_eq!(words(message.trim()), words(shown), "the page says something else");
        }
        assert_eq!(version(&store), other, "it was changed");
        let output = narval(&store, &["cache", "restore", saved.to_str().unwrap()]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        store = is_whole(store, &path, &token, name);
    }
}
