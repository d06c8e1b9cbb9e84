//! The commands of docs/backup.md: a machine is lost, and clients notice nothing.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use crate::lab::Lab;
use crate::support::{NARVAL, Nix, Store};

/// A block of the page, by the word after `sh`.
fn block(word: &str) -> String {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/backup.md");
    let text = std::fs::read_to_string(page).unwrap();
    text.split(&format!("```sh {word}\n")).nth(1).unwrap().split("```").next().unwrap().to_owned()
}

/// Runs a block as it is, but for the places.
fn run(store: &Store, word: &str) {
    let mut script = block(word);
    for (theirs, ours) in [("/etc/narval", "etc"), ("/var/lib/narval", "data"), ("/srv/backup", "backup")] {
        script = script.replace(theirs, store.path(ours).to_str().unwrap());
    }
    // The test starts and stops the server itself.
    let bin = store.path("bin");
    std::fs::create_dir_all(&bin).unwrap();
    let systemctl = bin.join("systemctl");
    std::fs::write(&systemctl, "#!/bin/sh\n").unwrap();
    std::fs::set_permissions(&systemctl, PermissionsExt::from_mode(0o755)).unwrap();
    let _ = std::os::unix::fs::symlink(NARVAL, bin.join("narval"));
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let mut shell = Command::new("sh");
    let shell = shell.args(["-e", "-c", &script]).env("PATH", path).env("NARVAL_CONFIG", store.path("etc/serve.toml"));
    let output = shell.env_remove("NARVAL_DATA").output().unwrap();
    assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
}

/// A path that is not content-addressed, as what is built: it needs a signature.
fn add(store: &Store, name: &str) -> String {
    let path = store.add_file(name, name);
    let statement = format!("update ValidPaths set ca = null where path = '{path}'");
    let database = store.path("root/nix/var/nix/db/db.sqlite");
    assert!(Command::new("sqlite3").arg(database).arg(statement).status().unwrap().success());
    path
}

fn push(lab: &Lab, token: &Path, path: &str) {
    let mut command = Command::new(NARVAL);
    command.args(["push", "--store", &lab.store.uri(), "--to", &lab.server.url(), path, "--token-file"]).arg(token);
    let output = command.env("HOME", lab.store.dir.path()).env_remove("NARVAL_STORE").output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn a_restored_server_serves_old_paths_and_takes_new_ones() {
    let store = Store::new();
    let (made, key) = store.key("cache.example.org-1");
    std::fs::create_dir_all(store.path("etc/keys")).unwrap();
    std::fs::rename(made, store.path("etc/keys/cache.sec")).unwrap();
    let config = format!("data = '{}'\nsign-keys = 'keys/cache.sec'\n", store.path("data").display());
    std::fs::write(store.path("etc/serve.toml"), &config).unwrap();
    let serve = |store: &Store| {
        let mut command = Command::new(NARVAL);
        command.args(["serve", "--listen", "127.0.0.1:0", "--config"]).arg(store.path("etc/serve.toml"));
        crate::support::Server::start(command, &[])
    };
    let server = serve(&store);
    let lab = Lab { store, server };
    let token = lab.store.path("token");
    std::fs::write(&token, lab.token("push,sign")).unwrap();
    let old = add(&lab.store, "old");
    push(&lab, &token, &old);
    run(&lab.store, "backup");

    // All is lost.
    let Lab { store, server } = lab;
    server.terminate();
    std::fs::remove_dir_all(store.path("data")).unwrap();
    std::fs::remove_dir_all(store.path("etc")).unwrap();
    run(&store, "restore");
    let server = serve(&store);
    let lab = Lab { store, server };
    let new = add(&lab.store, "new");
    push(&lab, &token, &new);
    for path in [&old, &new] {
        let fresh = Store::new();
        let (from, to) = (lab.server.url(), fresh.uri());
        let trust = ["--option", "require-sigs", "true", "--option", "trusted-public-keys", &key];
        let args = [&["copy", "--refresh", "--from", &from, "--to", &to, path.as_str()], &trust[..]].concat();
        let output = Nix::Newest.nix(fresh.dir.path(), &args);
        assert!(output.status.success(), "{path}: {}", String::from_utf8_lossy(&output.stderr));
    }
}
